"""What the sweeps say of Kimura & Naganuma's claims on curvature."""

import numpy as np

from experiments.claims import Claim
from experiments.curvature_and_gamma.runs import NETWORKS, with_own
from experiments.curvature_and_gamma.statistics import Runs, gammas_of, inner_minimum, slope
from experiments.intervals import rank_correlation, shown, verdict
from experiments.writing import Interval

SURFACES = {  # number -> words
    "lambda_max own val": "λ_max of the trained loss's Hessian on val falls with γ",
    "lambda_max CE val": "λ_max of cross-entropy's Hessian on val falls with γ",
    "trace own val": "the trace of the trained loss's Hessian on val falls with γ",
    "trace CE val": "the trace of cross-entropy's Hessian on val falls with γ",
    "lambda_max CE train": "λ_max of cross-entropy's Hessian on train falls with γ",
    "trace CE train": "the trace of cross-entropy's Hessian on train falls with γ",
    "scale_free_trace CE val": "the scale-free trace of cross-entropy's Hessian on val falls with γ",
}


def claims(runs: dict[str, Runs]) -> list[Claim]:
    """Each claim for each network, and of three networks or more one over all of them."""
    found = []
    for network, own in runs.items():
        full = [with_own(run) for run in own]
        for name, words in SURFACES.items():
            change = slope(full, name)
            claim = f"{NETWORKS[network]}: {words}"
            found.append(
                Claim("K Fig. 2", claim, verdict(change), f"change of log for a unit of γ {shown(change, signed=True)}")
            )
        found.append(_inner(network, own))
    return [*found, _together(runs)] if len(runs) > 2 else found


def _inner(network: str, own: Runs) -> Claim:
    best = inner_minimum(own)
    because = (
        f"coefficient {shown(best.curvature, scale=100)} points of ECE, vertex {shown(best.vertex)} of the range; "
        f"least ECE inside in {best.inside} of {best.seeds} seeds"
    )
    claim = f"{NETWORKS[network]}: ECE has a minimum inside the range of the trace (cross-entropy, val)"
    return Claim("K Fig. 3", claim, best.verdict, because)


def _together(runs: dict[str, Runs]) -> Claim:
    """Over all networks, runs averaged over seeds: does ECE grow with the trace?"""
    pairs = []
    for own in runs.values():
        for gamma in gammas_of(own):
            at = [run for run in own if run["gamma"] == gamma]
            pairs.append([np.mean([run[name] for run in at]) for name in ("trace CE val", "ece")])
    correlation = rank_correlation(*np.array(pairs).T) if pairs else rank_correlation([], [])
    claim = "over all networks and γ: ECE as trained grows with the trace (rank correlation)"
    turned = Interval(-correlation.mean, -correlation.high, -correlation.low)
    return Claim("K Fig. 3", claim, verdict(turned), shown(correlation))
