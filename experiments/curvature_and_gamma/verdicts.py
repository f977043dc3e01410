"""What the sweeps say of Kimura & Naganuma's claims on curvature."""

import numpy as np

from experiments.claims import Claim
from experiments.curvature_and_gamma.minima import InnerMinimum, SharedMinimum, inner_minimum, shared_minimum
from experiments.curvature_and_gamma.runs import DIGITS, NETWORKS
from experiments.curvature_and_gamma.statistics import Runs, gammas_of, has_log, slope
from experiments.curvature_rows import with_own
from experiments.intervals import NOT, SHOWS, UNTOLD, joined, rank_correlation, shown, verdict

SURFACES = {  # number -> words
    "lambda_max own val": "λ_max of the trained loss's Hessian on val falls with γ",
    "lambda_max CE val": "λ_max of cross-entropy's Hessian on val falls with γ",
    "trace own val": "the trace of the trained loss's Hessian on val falls with γ",
    "trace CE val": "the trace of cross-entropy's Hessian on val falls with γ",
    "lambda_max CE train": "λ_max of cross-entropy's Hessian on train falls with γ",
    "trace CE train": "the trace of cross-entropy's Hessian on train falls with γ",
    "scale_free_trace CE val": "the scale-free trace of cross-entropy's Hessian on val falls with γ",
}


TRACES = {"trace CE val": "cross-entropy, val", "trace own val": "trained loss, val"}


def claims(runs: dict[str, Runs]) -> list[Claim]:
    """Each claim for each network, and of two networks or more of CIFAR-10 those on all of them."""
    full = {network: [with_own(run) for run in own] for network, own in runs.items()}
    images = {network: own for network, own in full.items() if network != DIGITS}
    found = [claim for network, own in full.items() for claim in _of_network(network, own)]
    return found + (_of_all(images) if len(images) > 1 else [])


def _of_network(network: str, own: Runs) -> list[Claim]:
    found = []
    for name, words in SURFACES.items():
        change = slope(own, name)
        measured = "log" if has_log(own, name) else "the number"
        because = f"change of {measured} for a unit of γ {shown(change, signed=True)}"
        found.append(Claim("K Fig. 2", f"{NETWORKS[network]}: {words}", verdict(change), because))
    return found + [_inner(network, own, trace) for trace in TRACES]


def _inner(network: str, own: Runs, trace: str) -> Claim:
    best = inner_minimum(own, trace)
    because = f"{_parabola(best)}; least ECE inside in {best.inside} of {best.seeds} seeds"
    claim = f"{NETWORKS[network]}: ECE has a minimum inside the range of the trace ({TRACES[trace]})"
    return Claim("K Fig. 3", claim, best.verdict, because)


def _of_all(images: dict[str, Runs]) -> list[Claim]:
    found = [_everywhere(images, name, words) for name, words in SURFACES.items()]
    found += [_shared(images, trace, within) for trace in TRACES for within in (True, False)]
    return [*found, *(_together(images, trace) for trace in TRACES)]


def _everywhere(images: dict[str, Runs], name: str, words: str) -> Claim:
    """The paper's "for all architectures": shown where each shows it, not shown where one has the opposite."""
    each = {NETWORKS[network]: verdict(slope(own, name)) for network, own in images.items()}
    named = {said: [title for title, its in each.items() if its == said] for said in (SHOWS, NOT, UNTOLD)}
    because = ". ".join(f"{said}: {'; '.join(titles)}" for said, titles in named.items() if titles)
    return Claim("K Fig. 2", f"every network on CIFAR-10: {words}", joined(list(each.values())), because)


def _shared(images: dict[str, Runs], trace: str, within: bool) -> Claim:
    """One parabola for all networks, with a constant and a range for each of them, or one for all."""
    best = shared_minimum(images, trace, within=within)
    where = "within networks" if within else "over networks and γ together"
    inside = f"least mean ECE inside for {best.inside} of {best.groups} networks" if within else _inside(best.inside)
    because = (
        f"{_parabola(best)}; inner minimum in {100 * best.share:.3g}% of resamples; {inside}"
        if np.isfinite(best.share)
        else f"needs two networks with two seeds each at every γ; {inside}"
    )
    claim = f"CIFAR-10, {where}: ECE has a minimum inside the range of the trace ({TRACES[trace]})"
    return Claim("K Fig. 3", claim, best.verdict, because)


def _parabola(best: InnerMinimum | SharedMinimum) -> str:
    vertex = shown(best.vertex)
    where = f"vertex {vertex} of the range" if vertex else "no vertex is a minimum"
    return f"coefficient {shown(best.curvature, scale=100)} points of ECE, {where}"


def _inside(found: int) -> str:
    return "least mean ECE inside" if found else "least mean ECE at an end"


def _together(images: dict[str, Runs], trace: str) -> Claim:
    """Over all networks, runs averaged over seeds: does ECE grow with the trace?"""
    pairs = []
    for own in images.values():
        for gamma in gammas_of(own):
            at = [run for run in own if run["gamma"] == gamma and trace in run]
            pairs.append([np.mean([run[name] for run in at]) for name in (trace, "ece")])
    correlation = rank_correlation(*np.array(pairs).T)
    claim = f"CIFAR-10, over networks and γ: ECE as trained grows with the trace ({TRACES[trace]}; rank correlation)"
    return Claim("K 4.2", claim, verdict(correlation, falls=False), shown(correlation))
