"""Tables of the curvature by gamma, of the differences to cross-entropy, and of the attribution."""

from experiments.curvature_and_gamma.runs import NETWORKS, with_own
from experiments.curvature_and_gamma.statistics import Runs, by_seed, change, gammas_of, slope
from experiments.intervals import interval, paired, shown
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
    "train accuracy": ("accuracy on train in the last epoch, %", 100),
    "accuracy": ("accuracy on test, %", 100),
    "ece": ("test ECE, %", 100),
    "ece after T": ("ECE after T, %", 100),
    "temperature": ("T", 1),
}
PARTS = {
    "trace own val": "trace",
    "trace, gauss_newton own val": "Gauss-Newton",
    "trace, residual own val": "residual",
    "trace, scale_only own val": "by the mean weight alone",
}


def curvature(own: Runs) -> str:
    """Of one network: each curvature by gamma, and the change of its logarithm for a unit of gamma."""
    full = [with_own(run) for run in own]
    rows = [[f"{gamma:g}", *(shown(_mean(full, gamma, name)) for name in CURVATURE)] for gamma in gammas_of(full)]
    rows.append(["change of log by γ", *(shown(slope(full, name), signed=True) for name in CURVATURE)])
    return markdown(["γ", *CURVATURE.values()], rows)


def changes(own: Runs) -> str:
    """Of one network: each curvature's change from gamma 0, in %, paired by seed."""
    full = [with_own(run) for run in own]
    rows = [
        [f"{gamma:g}", *(shown(change(full, gamma, name), scale=100, signed=True) for name in CURVATURE)]
        for gamma in gammas_of(full)
        if gamma
    ]
    return markdown(["γ", *(f"{title}, %" for title in CURVATURE.values())], rows)


def outputs(own: Runs) -> str:
    """Of one network: accuracy and calibration by gamma, with the difference of ECE to gamma 0."""
    rows = []
    for gamma in gammas_of(own):
        cells = [shown(_mean(own, gamma, name), scale=scale) for name, (_, scale) in OUTPUTS.items()]
        less = paired(by_seed(own, gamma, "ece"), by_seed(own, 0.0, "ece"))
        rows.append([f"{gamma:g}", *cells, "" if gamma == 0 else shown(less, scale=100, signed=True)])
    return markdown(["γ", *(title for title, _ in OUTPUTS.values()), "ECE less that at γ = 0, %"], rows)


def attribution(runs: dict[str, Runs]) -> str:
    """Of each network and gamma: parts of the trained loss's trace on val, and the trace by the mean weight alone."""
    rows = []
    for network, own in runs.items():
        for gamma in gammas_of(own):
            if gamma:
                rows.append([NETWORKS[network], f"{gamma:g}", *(shown(_mean(own, gamma, name)) for name in PARTS)])
    return markdown(["network", "γ", *PARTS.values()], rows)


def _mean(own: Runs, gamma: float, name: str):
    return interval(list(by_seed(own, gamma, name).values()))
