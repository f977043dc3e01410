"""Tables and verdicts from the runs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.claims import Claim
from experiments.intervals import NOT, SHOWS, UNTOLD, interval, paired, shown, verdict
from experiments.two_parameters.descent import DEVIATIONS, TITLES
from experiments.writing import markdown

Runs = Sequence[dict[str, Any]]
LIMITS = {"ce": 2.1972245773362196, "fl1": 1.2334701342764571}  # ‖w‖ where the clusters are points: logit of p = 0.9
SHARPEST = 1e-3
COLUMNS = {
    "weight norm": ("‖w‖", 1),
    "logit norm": ("mean size of the logit, test", 1),
    "error": ("error, %", 100),
    "ece": ("ECE, %", 100),
    "confidence of wrong": ("confidence of wrong, %", 100),
    "nll of wrong": ("NLL of wrong, nats", 1),
}
STATEMENTS = (
    ("M App. G, text", "the norm of the weights is larger with focal loss", "weight norm", False),
    ("M Fig. 5", "the norm of the weights is smaller with focal loss", "weight norm", True),
    ("M Fig. 5", "the logits are smaller with focal loss", "logit norm", True),
    ("M Fig. 6", "misclassified test points are classified with less confidence", "confidence of wrong", True),
    ("M App. G", "misclassified test points have a smaller NLL", "nll of wrong", True),
)


def by_seed(runs: Runs, deviation: float, loss: str, name: str) -> dict[int, float]:
    """Seed -> number."""
    return {run["seed"]: run[name] for run in runs if (run["deviation"], run["loss"]) == (deviation, loss)}


def claims(runs: Runs) -> list[Claim]:
    """Each statement for each deviation above 0, and the known limit."""
    found = []
    for where, statement, name, falls in STATEMENTS:
        for deviation in DEVIATIONS[1:]:
            change = paired(by_seed(runs, deviation, "fl1", name), by_seed(runs, deviation, "ce", name))
            claim = f"deviation {deviation:g}: {statement}"
            found.append(
                Claim(where, claim, verdict(change, falls=falls), f"FL-1 less CE {shown(change, signed=True)}")
            )
    return [*found, *(_limit(runs, loss) for loss in LIMITS)]


def _limit(runs: Runs, loss: str) -> Claim:
    norms = list(by_seed(runs, 0.0, loss, "weight norm").values())
    error = max((abs(norm - LIMITS[loss]) for norm in norms), default=np.inf)
    claim = f"without spread ‖w‖ of {TITLES[loss]} is {LIMITS[loss]:.4f}"
    return Claim(
        "focalgeo", claim, SHOWS if error < SHARPEST else NOT if norms else UNTOLD, f"largest difference {error:.1g}"
    )


def table(runs: Runs) -> str:
    """Means over samples for each deviation and loss, and the paired differences."""
    rows = []
    for deviation in DEVIATIONS:
        for loss, title in TITLES.items():
            means = {name: interval(_values(runs, deviation, loss, name)) for name in COLUMNS}
            cells = [shown(means[name], scale=scale) for name, (_, scale) in COLUMNS.items()]
            rows.append([f"{deviation:g}", title, *cells])
        if not deviation:
            continue
        pairs = {name: [by_seed(runs, deviation, loss, name) for loss in ("fl1", "ce")] for name in COLUMNS}
        cells = [shown(paired(*pairs[name]), scale=scale, signed=True) for name, (_, scale) in COLUMNS.items()]
        rows.append(["", "FL-1 less CE", *cells])
    return markdown(["deviation", "loss", *(title for title, _ in COLUMNS.values())], rows)


def _values(runs: Runs, deviation: float, loss: str, name: str) -> list[float]:
    """The numbers of all samples; without spread these are the same points, and so one number."""
    found = list(by_seed(runs, deviation, loss, name).values())
    return found if deviation else found[:1]
