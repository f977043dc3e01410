"""Tables laid out as the papers' are, each from the stored runs and the papers' own numbers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from experiments.calibration_of_losses.quantities import PAPERS, QUANTITIES, by_seed, losses_of, mean
from experiments.cells import LOSSES, TASKS
from experiments.intervals import paired, rank_correlation, shown
from experiments.writing import markdown

Runs = dict[str, list[dict[str, Any]]]  # task -> its stored runs


class PaperTable(NamedTuple):
    """One of Mukhoti et al.'s tables: its title, its losses, and the quantities in each cell."""

    title: str
    losses: tuple[str, ...]
    quantities: tuple[str, ...]


_MAIN = ("ce", "brier", "mmce", "flsd53")
_FOCAL = ("fl3", "fls532", "flsd53")
_MORE_FOCAL = ("fl1", "fl2", "fl3", "fls532", "flsd53")
_ALL = ("ce", "brier", "mmce", "fl1", "fl2", "fl3", "fls532", "flsd53")
_ECE = ("ece", "ece after T", "T by ece")
_ADAPTIVE = ("adaptive_ece", "adaptive_ece after T", "T by adaptive_ece")
_S99 = ("s99", "s99 accuracy", "s99 after T", "s99 accuracy after T")

PAPER_TABLES = {
    "M Table 1": PaperTable("ECE before and after T (by ECE on val), and T", _MAIN, _ECE),
    "M Table 2": PaperTable("AdaECE before and after T (by AdaECE on val), and T", _MAIN, _ADAPTIVE),
    "M Table 3": PaperTable("error", ("ce", "brier", "mmce", "fl3", "fls532", "flsd53"), ("error",)),
    "M Table 4": PaperTable("ECE of focal losses before and after T, and T", _FOCAL, _ECE),
    "M Table 5": PaperTable("AdaECE of focal losses before and after T, and T", _FOCAL, _ADAPTIVE),
    "M Table 6": PaperTable("|S99| and its accuracy, before and after T", ("ce", "mmce", "flsd53"), _S99),
    "M Table 7": PaperTable("ECE of more focal losses before and after T, and T", _MORE_FOCAL, _ECE),
    "M Table 8": PaperTable("AdaECE of more focal losses before and after T, and T", _MORE_FOCAL, _ADAPTIVE),
    "M Table 9": PaperTable("error of more focal losses", _MORE_FOCAL, ("error",)),
    "M Table 10": PaperTable("NLL before T", _ALL, ("nll",)),
    "M Table 11": PaperTable("NLL after T", _ALL, ("nll after T",)),
    "M Table 12": PaperTable("MCE before T", _ALL, ("mce",)),
    "M Table 13": PaperTable("MCE after T", _ALL, ("mce after T",)),
}
RANKED = ("error", "ece", "ece after T", "adaptive_ece", "adaptive_ece after T", "nll", "nll after T", "mce")


def paper_table(name: str, runs: Runs) -> str:
    """A table of the paper: for each data set our means with intervals, and the paper's numbers of each network."""
    table, rows = PAPER_TABLES[name], []
    for task, own in runs.items():
        if own:
            cells = [shown(mean(own, loss, one)) for loss in table.losses for one in table.quantities]
            rows.append([TASKS[task].title, "here", *cells])
        for network in _networks(task, table.quantities[0]):
            cells = [_of_paper(task, network, loss, one) for loss in table.losses for one in table.quantities]
            rows.append(["", network, *cells])
    heads = [f"{LOSSES[loss]}: {_title(one)}" for loss in table.losses for one in table.quantities]
    return markdown(["data", "network", *heads], rows)


def _title(name: str) -> str:
    return QUANTITIES[name].title if name in QUANTITIES else "error, %"


def _networks(task: str, quantity: str) -> list[str]:
    return list(PAPERS.get(quantity, {}).get(task, {}))


def _of_paper(task: str, network: str, loss: str, quantity: str) -> str:
    found = PAPERS.get(quantity, {}).get(task, {}).get(network, {}).get(loss)
    return "" if found is None else f"{found:g}"


def all_losses(own: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    """Of one data set: a row for each loss, a column for each quantity."""
    rows = [
        [LOSSES[loss], str(len(by_seed(own, loss, names[0]))), *(shown(mean(own, loss, name)) for name in names)]
        for loss in losses_of(own)
    ]
    return markdown(["loss", "seeds", *map(_title, names)], rows)


def differences(own: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    """Of one data set: each loss less cross-entropy, paired by seed; bold where the interval leaves out 0."""
    rows = []
    for loss in losses_of(own):
        if loss != "ce":
            both = [paired(by_seed(own, loss, name), by_seed(own, "ce", name)) for name in names]
            rows.append([LOSSES[loss], *(shown(one, signed=True) for one in both)])
    return markdown(["less CE", *map(_title, names)], rows)


def ranks(runs: Runs) -> str:
    """The rank correlation of the losses here and in the paper (means over its networks), where cells match."""
    rows = []
    for name in RANKED:
        cells = [shown(rank_correlation(*_matched(own, task, name))) for task, own in runs.items()]
        rows.append([_title(name), *cells])
    return markdown(["Spearman's correlation of ranks", *(TASKS[task].title for task in runs)], rows)


def _matched(own: Sequence[dict[str, Any]], task: str, name: str) -> tuple[list[float], list[float]]:
    networks = PAPERS[name][task].values()
    shared = [loss for loss in losses_of(own) if all(loss in network for network in networks)]
    theirs = [sum(network[loss] for network in networks) / len(networks) for loss in shared]
    return [mean(own, loss, name).mean for loss in shared], theirs
