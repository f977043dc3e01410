"""Choice of gamma and of the loss on val, and what it costs on test (Komisarenko & Kull, 2; Mukhoti et al., 5)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.calibration_of_losses.quantities import by_seed, losses_of
from experiments.calibration_of_losses.tables import Runs
from experiments.cells import LOSSES, TASKS
from experiments.intervals import paired, shown
from experiments.writing import Interval, markdown

GAMMAS = ("ce", "fl1", "fl2", "fl3", "fl7")  # gamma 0, 1, 2, 3, 7
CRITERIA = {  # quantity that is least on val -> words
    "nll": "NLL as trained",
    "nll after T by nll": "NLL after T",
    "ece": "ECE as trained",
    "error": "error",
}


def chosen(own: Sequence[dict[str, Any]], among: Sequence[str], criterion: str) -> str | None:
    """The loss whose mean over seeds is least on val; None without two losses of equally many seeds."""
    found = {loss: by_seed(own, loss, criterion, "val") for loss in among}
    most = max(map(len, found.values()), default=0)
    full = {loss: np.mean(list(values.values())) for loss, values in found.items() if len(values) == most > 0}
    return min(full, key=full.__getitem__) if len(full) > 1 else None


def cost(own: Sequence[dict[str, Any]], among: Sequence[str], criterion: str) -> tuple[str, Interval] | None:
    """The loss that is best on test, and how much worse the chosen one is there, paired by seed."""
    picked = chosen(own, among, criterion)
    if picked is None:
        return None
    full = [loss for loss in among if len(by_seed(own, loss, criterion)) == len(by_seed(own, picked, criterion))]
    best = min(full, key=lambda loss: np.mean(list(by_seed(own, loss, criterion).values())))
    return best, paired(by_seed(own, picked, criterion), by_seed(own, best, criterion))


def choices_table(runs: Runs) -> str:
    """For each data set and criterion: gamma and loss chosen on val, the best on test, and the cost of the choice."""
    rows = []
    for task, own in runs.items():
        for group, among in (("gamma", GAMMAS), ("loss", losses_of(own))):
            for criterion, words in CRITERIA.items():
                picked, found = chosen(own, among, criterion), cost(own, among, criterion)
                if picked and found:
                    best, difference = found
                    rows.append(
                        [TASKS[task].title, group, words, LOSSES[picked], LOSSES[best], _cost(picked, best, difference)]
                    )
    heads = ["data", "chosen", "by least, on val", "chosen", "best on test", "costs on test (1/100)"]
    return markdown(heads, rows)


def _cost(picked: str, best: str, difference: Interval) -> str:
    return "0" if picked == best else shown(difference)
