"""Tables of the curvature by gamma, of the differences to cross-entropy, and of the attribution."""

from collections.abc import Iterable, Iterator

import numpy as np

from experiments.curvature_and_gamma.minima import shared_minimum
from experiments.curvature_and_gamma.runs import DIGITS, NETWORKS
from experiments.curvature_and_gamma.statistics import Runs, by_seed, change, gammas_of, has_log, slope
from experiments.curvature_rows import with_own, with_sums
from experiments.intervals import clipped, interval, paired, shown
from experiments.writing import markdown

CURVATURE = {
    "lambda_max CE val": "λ_max, CE, val",
    "lambda_max own val": "λ_max, own, val",
    "trace CE val": "trace, CE, val",
    "trace own val": "trace, own, val",
    "lambda_max CE train": "λ_max, CE, train",
    "trace CE train": "trace, CE, train",
    "trace own train": "trace, own, train",
    "scale_free_trace CE val": "scale-free trace, CE, val",
}
OUTPUTS = {
    "train accuracy": ("accuracy on train at the end, %", 100),
    "accuracy": ("accuracy on test, %", 100),
    "ece": ("test ECE, %", 100),
    "ece after T": ("ECE after T, %", 100),
    "temperature": ("T", 1),
}
TRACES = {  # each trace by the vectors of the tables, and by those of its parts
    "trace CE val": "trace, CE, val",
    "trace by parts CE val": "the same by its parts",
    "trace own val": "trace, own, val",
    "trace by parts own val": "the same by its parts",
}
PARTS = {
    "trace own val": "trace",
    "trace, gauss_newton own val": "Gauss-Newton",
    "trace, residual own val": "residual",
    "trace, scale_only own val": "by the mean weight alone",
}


def curvature(own: Runs) -> str:
    """Of one network: each curvature by gamma, and its change for a unit of gamma, of the log where it has one."""
    full = [with_own(run) for run in own]
    rows = [[f"{gamma:g}", *(shown(_mean(full, gamma, name)) for name in CURVATURE)] for gamma in gammas_of(full)]
    return markdown(["γ", *CURVATURE.values()], [*rows, *_slopes(full, CURVATURE)])


def _slopes(full: Runs, names: Iterable[str]) -> Iterator[list[str]]:
    """A row of the changes of logarithms along gamma, and one of the numbers themselves, where there are any."""
    slopes = {name: shown(slope(full, name), signed=True) for name in names}
    for words, logs in (("change of log by γ", True), ("change by γ", False)):
        own = [found if has_log(full, name) == logs else "" for name, found in slopes.items()]
        if any(own):
            yield [words, *own]


def changes(own: Runs) -> str:
    """Of one network: each curvature's change from gamma 0, paired by seed, in % where the runs have logarithms."""
    full = [with_own(run) for run in own]
    scales = {name: 100 if has_log(full, name) else 1 for name in CURVATURE}
    rows = [
        [f"{at:g}", *(shown(change(full, at, name), scale=scale, signed=True) for name, scale in scales.items())]
        for at in gammas_of(full)
        if at
    ]
    titles = [f"{CURVATURE[name]}, %" if scale == 100 else CURVATURE[name] for name, scale in scales.items()]
    return markdown(["γ", *titles], rows)


def outputs(own: Runs) -> str:
    """Of one network: accuracy and calibration by gamma, with the difference of ECE to gamma 0."""
    rows = []
    for gamma in gammas_of(own):
        cells = [_output(own, gamma, name, scale) for name, (_, scale) in OUTPUTS.items()]
        less = paired(by_seed(own, gamma, "ece"), by_seed(own, 0.0, "ece"))
        rows.append([f"{gamma:g}", *cells, "" if gamma == 0 else shown(less, scale=100, signed=True)])
    return markdown(["γ", *(title for title, _ in OUTPUTS.values()), "ECE less that at γ = 0, %"], rows)


def _output(own: Runs, gamma: float, name: str, scale: float) -> str:
    """The mean with its interval, cut where its range ends: at 0, and shares at 100%."""
    return shown(clipped(_mean(own, gamma, name), 0, 1 if scale == 100 else float("inf")), scale=scale)


def attribution(runs: dict[str, Runs]) -> str:
    """Of each network and gamma: parts of the trained loss's trace on val, and the trace by the mean weight alone."""
    rows = []
    for network, own in runs.items():
        for gamma in gammas_of(own):
            if gamma:
                rows.append([NETWORKS[network], f"{gamma:g}", *(shown(_mean(own, gamma, name)) for name in PARTS)])
    return markdown(["network", "γ", *PARTS.values()], rows)


def other_vectors(runs: dict[str, Runs]) -> str:
    """Of each network: the change of both traces along gamma, and of the sums of their parts, by other vectors."""
    rows = []
    for network, own in runs.items():
        full = [with_sums(with_own(run)) for run in own]
        rows += [[NETWORKS[network], *row] for row in _slopes(full, TRACES)]
    return markdown(["network", "", *TRACES.values()], rows)


def minima(runs: dict[str, Runs]) -> str:
    """Shares in % of the resamples with an inner minimum of ECE over both traces and the sums of their parts.

    By one parabola for all networks on CIFAR-10, and without each of them; over logarithms where all traces have one.
    """
    images = {name: [with_sums(with_own(run)) for run in own] for name, own in runs.items() if name != DIGITS}
    rows = [["within networks", *_shares(images, within=True)], ["together", *_shares(images, within=False)]]
    for network in images:
        others = {name: own for name, own in images.items() if name != network}
        rows.append([f"together, without {NETWORKS[network]}", *_shares(others, within=False)])
    return markdown(["", *TRACES.values()], rows)


def _shares(images: dict[str, Runs], *, within: bool) -> list[str]:
    found = [shared_minimum(images, trace, within=within).share for trace in TRACES]
    return ["" if np.isnan(share) else f"{100 * share:.3g}" for share in found]


def _mean(own: Runs, gamma: float, name: str):
    return interval(list(by_seed(own, gamma, name).values()))
