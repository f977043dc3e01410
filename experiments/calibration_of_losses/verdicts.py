"""What the runs say of the statements of Mukhoti et al. on calibration by the training loss."""

from collections.abc import Callable, Sequence
from typing import Any

from experiments.calibration_of_losses.quantities import by_seed
from experiments.calibration_of_losses.tables import Runs
from experiments.cells import LOSSES, SAME_ERROR, TASKS
from experiments.claims import Claim
from experiments.intervals import NOT, SHOWS, UNTOLD, paired, shown, verdict
from experiments.writing import Interval

# where, statement, quantity, losses it is made of; all against cross-entropy
FALLS = (
    ("M Table 1", "ECE as trained is below cross-entropy's", "ece", ("flsd53", "fl3", "brier", "mmce")),
    ("M Table 1", "ECE after temperature scaling is below cross-entropy's", "ece after T", ("flsd53", "fl3")),
    ("M Table 2", "AdaECE as trained is below cross-entropy's", "adaptive_ece", ("flsd53", "fl3")),
    ("M Table 10", "NLL as trained is below cross-entropy's", "nll", ("flsd53", "fl3")),
    ("M Table 11", "NLL after temperature scaling is below cross-entropy's", "nll after T", ("flsd53",)),
    ("M Table 6", "fewer test examples have a confidence above 99%", "s99", ("flsd53", "mmce")),
)
RIVALS = ("brier", "mmce")  # the paper has FLSD-53 before them on CIFAR-10 and 20 Newsgroups


def claims(runs: Runs) -> list[Claim]:
    """Each statement for each data set and loss."""
    found = []
    for task, own in runs.items():
        for where, statement, quantity, losses in FALLS:
            found += [_falls(own, task, where, statement, quantity, loss) for loss in losses]
        for rival in RIVALS:
            statement = f"ECE as trained is below that of {LOSSES[rival]}"
            found.append(_falls(own, task, "M Table 1", statement, "ece", "flsd53", rival))
        found += [_keeps_accuracy(own, task, loss) for loss in ("flsd53", "fl3")]
        found.append(_nearer_one(own, task))
        found.append(_after(own, task))
    return found


def _falls(own: list, task: str, where: str, statement: str, quantity: str, loss: str, than: str = "ce") -> Claim:
    difference = paired(by_seed(own, loss, quantity), by_seed(own, than, quantity))
    claim = f"{TASKS[task].title}, {LOSSES[loss]}: {statement}"
    unit = "in 1/100 nat" if quantity.startswith("nll") else "points"
    return Claim(where, claim, verdict(difference), _because(difference, unit=unit))


def _keeps_accuracy(own: list, task: str, loss: str) -> Claim:
    difference = paired(by_seed(own, loss, "error"), by_seed(own, "ce", "error"))
    claim = f"{TASKS[task].title}, {LOSSES[loss]}: error is at most {SAME_ERROR:g} point above cross-entropy's"
    return Claim("M Table 3", claim, verdict(difference, margin=SAME_ERROR), _because(difference, unit="points"))


def _nearer_one(own: list, task: str) -> Claim:
    distance = [_map(by_seed(own, loss, "T by ece"), lambda t: abs(t - 1)) for loss in ("flsd53", "ce")]
    difference = paired(*distance)
    claim = f"{TASKS[task].title}, FLSD-53: the best temperature is nearer 1 than cross-entropy's"
    return Claim("M Table 1", claim, verdict(difference), _because(difference, "distance of T from 1,"))


def _after(own: list, task: str) -> Claim:
    """FLSD-53 untouched against cross-entropy with temperature scaling."""
    difference = paired(by_seed(own, "flsd53", "ece"), by_seed(own, "ce", "ece after T"))
    claim = f"{TASKS[task].title}, FLSD-53: ECE as trained is below that of cross-entropy after temperature scaling"
    return Claim("M Table 1", claim, verdict(difference), _because(difference, unit="points"))


def _because(difference: Interval, what: str = "difference", unit: str = "") -> str:
    said = f"{what} {shown(difference, signed=True)} {unit}".rstrip()
    return said if shown(difference) else "no runs to compare"


def _map(values: dict[int, float], function: Callable[[float], float]) -> dict[int, float]:
    return {seed: function(value) for seed, value in values.items()}


def over_tasks(found: Sequence[Claim]) -> dict[str, dict[str, int]]:
    """Verdict -> how many claims have it, by data set."""
    counts: dict[str, Any] = {}
    for claim in found:
        own = counts.setdefault(claim.claim.partition(",")[0], dict.fromkeys((SHOWS, NOT, UNTOLD), 0))
        own[claim.verdict] += 1
    return counts
