"""Rank correlations of curvature with calibration, plain and with accuracy and confidence held fixed; the tables."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import stats

from experiments.claims import Claim
from experiments.curvature_of_losses.runs import TRAININGS
from experiments.curvature_rows import trained, with_own
from experiments.intervals import UNKNOWN, clipped, interval, paired, shown, verdict
from experiments.writing import Interval, markdown

Runs = Sequence[dict[str, Any]]
CURVATURE = {
    "lambda_max CE val": "λ_max, CE, val",
    "trace CE val": "trace, CE, val",
    "scale_free_trace CE val": "scale-free trace, CE, val",
    "lambda_max own val": "λ_max, own, val",
    "trace own val": "trace, own, val",
    "trace CE train": "trace, CE, train",
    "trace own train": "trace, own, train",
}
CALIBRATION = {"ece": "ECE as trained", "ece after T": "ECE after T", "nll after T": "NLL after T"}
FIXED = ("accuracy", "p_y")
OUTPUTS = {  # number -> title, scale
    "train accuracy": ("accuracy on train at the end, %", 100),
    "accuracy": ("accuracy on test, %", 100),
    "p_y": ("mean p of the label, %", 100),
    "ece": ("ECE as trained, %", 100),
    "ece after T": ("ECE after T, %", 100),
    "nll": ("NLL as trained, nats", 1),
    "nll after T": ("NLL after T, nats", 1),
    "temperature": ("T", 1),
}
RESAMPLES = 2000


def by_training(runs: Runs) -> dict[str, list[dict[str, Any]]]:
    """Way of training -> its runs that have learned something, with the numbers of its own loss."""
    found = {name: [with_own(run) for run in trained(runs) if run["training"] == name] for name in TRAININGS}
    return {name: own for name, own in found.items() if own}


def partial_rank_correlation(one: np.ndarray, other: np.ndarray, fixed: np.ndarray) -> float:
    """Of ranks, once what a linear function of the ranks of `fixed` [points, k] explains is taken from both.

    NaN where nothing is left of one of them.
    """
    ranks = stats.rankdata(np.column_stack([one, other, fixed]), axis=0)
    given = np.column_stack([ranks[:, 2:], np.ones(len(ranks))])
    left = ranks[:, :2] - given @ np.linalg.lstsq(given, ranks[:, :2])[0]
    lengths = np.sqrt((left**2).sum(0))
    return float(left[:, 0] @ left[:, 1] / lengths.prod()) if (lengths > 1e-9 * len(ranks)).all() else float("nan")


def between(runs: Runs, one: str, other: str, fixed: Sequence[str]) -> Interval:
    """Over ways of training, each the mean of its seeds; 95% by the bootstrap over ways of training."""
    own = list(by_training(runs).values())
    means = np.array([[np.mean([run[name] for run in each]) for name in (one, other, *fixed)] for each in own])
    return _resampled(len(own), lambda drawn: means[drawn])


def within(runs: Runs, one: str, other: str, fixed: Sequence[str]) -> Interval:
    """Over runs, each less the mean of its way of training; 95% by the bootstrap over seeds, of all ways at once."""
    own = list(by_training(runs).values())
    seeds = sorted(set.intersection(*({run["seed"] for run in each} for each in own)))
    table = np.array(
        [
            [[run[name] for name in (one, other, *fixed)] for run in sorted(each, key=_seed) if run["seed"] in seeds]
            for each in own
        ]
    )
    table -= table.mean(1, keepdims=True)  # [ways, seeds, names]
    return _resampled(len(seeds), lambda drawn: table[:, drawn].reshape(-1, table.shape[-1]))


def _seed(run: dict[str, Any]) -> int:
    return run["seed"]


def _resampled(count: int, points_of: Callable[[np.ndarray], np.ndarray]) -> Interval:
    """Of as many things to draw; unknown for fewer than five."""
    if count < 5:
        return UNKNOWN
    generator = np.random.default_rng(0)
    value = _of_points(points_of(np.arange(count)))
    found = np.array([_of_points(points_of(generator.integers(0, count, count))) for _ in range(RESAMPLES)])
    found = found[np.isfinite(found)]
    if not np.isfinite(value) or len(found) < RESAMPLES / 2:
        return UNKNOWN
    return Interval(value, *np.quantile(found, [0.025, 0.975]).round(9).tolist())


def _of_points(points: np.ndarray) -> float:
    return partial_rank_correlation(points[:, 0], points[:, 1], points[:, 2:])


def claims(runs: Runs) -> list[Claim]:
    """ECE as trained against each curvature, between and within ways of training, plain and held fixed."""
    found = []
    for words, correlation in (("between ways of training", between), ("within a way of training", within)):
        for name, title in CURVATURE.items():
            held = correlation(runs, name, "ece", FIXED)
            plain = correlation(runs, name, "ece", ())
            claim = f"{words}, accuracy and p_y held fixed: ECE as trained grows with {title}"
            because = f"rank correlation {shown(held, signed=True)}; nothing held fixed {shown(plain, signed=True)}"
            found.append(Claim("focalgeo", claim, verdict(held, falls=False), because))
    return found


def correlations_table(runs: Runs, correlation: Callable) -> str:
    """Each curvature against each measure of calibration, plain and with accuracy and p_y held fixed."""
    lines = []
    for name, title in CURVATURE.items():
        cells = []
        for other in CALIBRATION:
            cells += [shown(correlation(runs, name, other, fixed), signed=True, digits=2) for fixed in ((), FIXED)]
        lines.append([title, *cells])
    heads = [f"{title}{words}" for title in CALIBRATION.values() for words in ("", ", held fixed")]
    return markdown(["curvature", *heads], lines)


def curvature_table(runs: Runs) -> str:
    """Each curvature by way of training, means over seeds."""
    lines = []
    for name, own in by_training(runs).items():
        cells = [shown(interval([run[number] for run in own])) for number in CURVATURE]
        lines.append([TRAININGS[name].title, str(len(own)), *cells])
    return markdown(["trained with", "seeds", *CURVATURE.values()], lines)


def changes_table(runs: Runs) -> str:
    """Each curvature less cross-entropy's, in % of it: geometric means of ratios, paired by seed."""
    own = by_training(runs)
    lines = []
    for name, each in own.items():
        if name != "ce" and "ce" in own:
            cells = [shown(_ratio(each, own["ce"], number), scale=100, signed=True) for number in CURVATURE]
            lines.append([TRAININGS[name].title, *cells])
    return markdown(["trained with", *(f"{title}, %" for title in CURVATURE.values())], lines)


def _ratio(own: Runs, other: Runs, name: str) -> Interval:
    if min(run[name] for run in (*own, *other)) <= 0:
        return UNKNOWN
    one, none = ({run["seed"]: float(np.log(run[name])) for run in each} for each in (own, other))
    return Interval(*(float(np.expm1(end)) for end in paired(one, none)))


def outputs_table(runs: Runs) -> str:
    """Accuracy and calibration by way of training, with the paired difference of ECE to cross-entropy."""
    own = by_training(runs)
    lines = []
    for name, each in own.items():
        levels = {number: interval([run[number] for run in each]) for number in OUTPUTS}
        shares = {number: clipped(levels[number], 0, 1) for number, (_, scale) in OUTPUTS.items() if scale == 100}
        cells = [shown((levels | shares)[number], scale=scale) for number, (_, scale) in OUTPUTS.items()]
        less = paired(*({run["seed"]: run["ece"] for run in runs} for runs in (each, own.get("ce", []))))
        less = shown(less, scale=100, signed=True) if name != "ce" else ""
        lines.append([TRAININGS[name].title, *cells, less])
    return markdown(["trained with", *(title for title, _ in OUTPUTS.values()), "ECE less cross-entropy's, %"], lines)
