"""Focal loss and trace penalties beside cross-entropy on the transformer, with the Tree-LSTM's cells beside."""

from collections.abc import Sequence
from typing import Any

from experiments.claims import Claim
from experiments.curvature_rows import with_own
from experiments.intervals import clipped, interval, paired, shown, verdict
from experiments.text_transformer.runs import TRAININGS
from experiments.writing import Interval, markdown

Runs = Sequence[dict[str, Any]]
NUMBERS = {  # number -> title, scale
    "train accuracy": ("accuracy on train at the end, %", 100),
    "accuracy": ("accuracy, %", 100),
    "ece": ("ECE as trained, %", 100),
    "ece after T": ("ECE after T, %", 100),
    "nll": ("NLL as trained", 1),
    "nll after T": ("NLL after T", 1),
    "temperature": ("T", 1),
    "lambda_max CE val": ("λ_max, CE, val", 1),
    "trace CE val": ("trace, CE, val", 1),
    "trace own val": ("trace, own, val", 1),
}
CLAIMS = (  # training, number, words, source
    ("fl3", "ece", "focal loss has a lower ECE as trained", "M Table 1"),
    ("fl3", "nll", "focal loss has a lower NLL as trained", "M Table 5"),
    ("fl3", "trace own val", "focal loss's own Hessian has a smaller trace on val", "K Fig. 2"),
    ("fl3", "trace CE val", "focal loss's network has a smaller trace of cross-entropy's Hessian on val", "K Fig. 2"),
    ("hessian", "trace CE val", "the Hessian's trace as a penalty lowers that trace on val", "K 4.3"),
    ("hessian", "ece", "the Hessian's trace as a penalty lowers ECE as trained", "K Fig. 4"),
    ("gauss_newton", "trace CE val", "the Gauss-Newton trace as a penalty lowers the Hessian's trace on val", "K 4.3"),
    ("gauss_newton", "ece", "the Gauss-Newton trace as a penalty lowers ECE as trained", "K Fig. 4"),
)


def of(runs: Runs, name: str) -> dict[int, dict[str, Any]]:
    """Seed -> run of a way of training, with the numbers of its own loss."""
    return {run["seed"]: with_own(run) for run in runs if run["training"] == name}


def less(runs: Runs, name: str, number: str) -> Interval:
    """The mean difference to cross-entropy over seeds, paired."""
    return paired(*({seed: run[number] for seed, run in of(runs, each).items()} for each in (name, "ce")))


def claims(runs: Runs) -> list[Claim]:
    """Of each way of training beside cross-entropy."""
    found = []
    for name, number, words, source in CLAIMS:
        change, (_, scale) = less(runs, name, number), NUMBERS[number]
        because = f"difference {shown(change, scale=scale, signed=True)}{' points' if scale == 100 else ''}"
        found.append(
            Claim(source, f"{words} than cross-entropy" if "has a" in words else words, verdict(change), because)
        )
    return found


def table(runs: Runs) -> str:
    """Every way of training, means over seeds."""
    lines = []
    for name, training in TRAININGS.items():
        own = list(of(runs, name).values())
        cells = []
        for number, (_, scale) in NUMBERS.items():
            found = interval([run[number] for run in own])
            cells.append(shown(clipped(found, 0, 1) if scale == 100 else found, scale=scale))
        lines.append([training.title, str(len(own)), *cells])
    return markdown(["trained with", "n", *(title for title, _ in NUMBERS.values())], lines)


def changes_table(runs: Runs) -> str:
    """Differences to cross-entropy, paired by seed."""
    lines = []
    for name, training in TRAININGS.items():
        if name != "ce":
            cells = [shown(less(runs, name, each), scale=scale, signed=True) for each, (_, scale) in NUMBERS.items()]
            lines.append([training.title, *cells])
    return markdown(["less cross-entropy's", *(title for title, _ in NUMBERS.values())], lines)


def cost_table(runs: Runs, costs: dict[str, float]) -> str:
    """Operations of a step and seconds of training, as multiples of cross-entropy's."""
    plain = interval([run["train seconds"] for run in of(runs, "ce").values()]).mean
    lines = []
    for name, training in TRAININGS.items():
        own = interval([run["train seconds"] for run in of(runs, name).values()]).mean
        lines.append([training.title, f"{costs[name] / costs['ce']:.3g}", f"{own:.0f}", f"{own / plain:.2g}"])
    heads = ["trained with", "operations of a step, of plain's", "seconds of training", "of plain's"]
    return markdown(heads, lines)
