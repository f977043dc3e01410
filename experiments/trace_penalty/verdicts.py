"""What the weights say of Kimura & Naganuma's trace penalty."""

from experiments.claims import Claim
from experiments.intervals import NOT, paired, shown, verdict
from experiments.trace_penalty import weights
from experiments.writing import Interval

MARGIN = 0.01  # of accuracy that counts as none


def claims(runs: weights.Runs) -> list[Claim]:
    """For each task and form: ECE and trace fall with the weight, and accuracy is kept where ECE is chosen by val."""
    found = []
    for task in dict.fromkeys(run["task"] for run in runs):
        own = [run for run in runs if run["task"] == task]
        for form in weights.FORMS:
            cells = weights.at_chosen(own, form)
            if len(cells) > 1:
                found += _claims(f"{weights.TASKS[task].title}, {form.replace('_', '-')}", cells)
    return found


def _claims(title: str, cells: dict) -> list[Claim]:
    ece, trace = (weights.slope(cells, name) for name in ("ece", "trace train"))
    because = "rank correlation with λ, by seed, {}"
    return [
        Claim(
            "K Fig. 4", f"{title}: ECE as trained falls with λ", verdict(ece), because.format(shown(ece, signed=True))
        ),
        Claim(
            "K 4.3",
            f"{title}: the trace on train falls with λ",
            verdict(trace),
            because.format(shown(trace, signed=True)),
        ),
        _best(title, cells),
        _kept(title, cells),
    ]


def _best(title: str, cells: dict) -> Claim:
    """The penalty with the least NLL on val against none."""
    best = _chosen(cells)
    claim = f"{title}: with the λ of least NLL on val ECE is below that without penalty"
    if not best:
        return Claim("K Fig. 4", claim, NOT, "on val no penalty is best")
    less = paired(weights.column(cells[best], "ece"), weights.column(cells[0.0], "ece"))
    return Claim("K Fig. 4", claim, verdict(less), f"λ = {best:g}, {shown(less, scale=100, signed=True)} points of ECE")


def _kept(title: str, cells: dict) -> Claim:
    largest = max(cells)
    less = paired(*(weights.column(cells[penalty], "accuracy") for penalty in (largest, 0.0)))
    claim = f"{title}: the largest λ, {largest:g}, costs less than a point of accuracy"
    lost = Interval(-less.mean - MARGIN, -less.high - MARGIN, -less.low - MARGIN)
    return Claim("K 4.3", claim, verdict(lost), f"{shown(less, scale=100, signed=True)} points")


def _chosen(cells: dict) -> float:
    means = {}
    for penalty, cell in cells.items():
        values = list(weights.column(cell, weights.CRITERION).values())
        if values:
            means[penalty] = sum(values) / len(values)
    return min(means, key=means.__getitem__)
