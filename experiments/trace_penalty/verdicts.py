"""What the weights say of Kimura & Naganuma's trace penalty."""

from experiments.claims import Claim
from experiments.intervals import UNTOLD, paired, shown, verdict
from experiments.trace_penalty import choice, weights
from experiments.trace_penalty.choice import Cells, Runs

MARGIN = 0.01  # of accuracy that counts as none
FALLS = {
    "ece": ("K Fig. 4", "ECE as trained falls with λ"),
    "trace train": ("K 4.3", "the trace on train falls with λ"),
    "trace val": ("K 4.3", "the trace on val falls with λ"),
}


def claims(runs: Runs) -> list[Claim]:
    """For each task and form: ECE and traces fall with the weight, and accuracy is kept."""
    found = []
    for task, own in choice.by_task(runs).items():
        for form, name in weights.FORMS.items():
            cells = choice.at_chosen(own, form)
            if len(cells) > 1 and 0.0 in cells:
                title = f"{weights.TASKS[task].title}, {name}"
                found += [*_falls(title, cells), _best(title, cells), _kept(title, cells)]
    return found


def _falls(title: str, cells: Cells) -> list[Claim]:
    found = []
    for name, (source, text) in FALLS.items():
        along = choice.slope(cells, name)
        because = f"rank correlation with λ, by seed, {shown(along, signed=True)}".rstrip(", ")
        found.append(Claim(source, f"{title}: {text}", verdict(along), because))
    return found


def _best(title: str, cells: Cells) -> Claim:
    """The penalty with the least NLL on val, of those above 0, against none."""
    claim = f"{title}: with the λ above 0 of least NLL on val, ECE is below that without penalty"
    means = {}
    for penalty in list(cells)[1:]:
        values = list(choice.column(cells[penalty], weights.CRITERION).values())
        if len(values) == len(cells[penalty]):
            means[penalty] = sum(values) / len(values)
    if not means:
        return Claim("K Fig. 4", claim, UNTOLD, "no λ trains all its runs")
    best = min(means, key=means.__getitem__)
    less = paired(choice.column(cells[best], "ece"), choice.column(cells[0.0], "ece"))
    return Claim("K Fig. 4", claim, verdict(less), f"λ = {best:g}, {shown(less, scale=100, signed=True)} points of ECE")


def _kept(title: str, cells: Cells) -> Claim:
    """Accuracy with the largest penalty against none, runs at chance too."""
    largest = max(cells)
    one, other = ({seed: run["accuracy"] for seed, run in cells[penalty].items()} for penalty in (largest, 0.0))
    less = paired(one, other)
    claim = f"{title}: the largest λ, {largest:g}, costs less than a point of accuracy"
    kept = verdict(less, falls=False, margin=MARGIN)
    return Claim("K 4.3", claim, kept, f"{shown(less, scale=100, signed=True)} points")
