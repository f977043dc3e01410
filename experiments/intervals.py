"""Means over seeds with their 95% intervals, paired differences, rank correlation, and the verdicts that follow."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from experiments.writing import Interval, plain

SHOWS, NOT, UNTOLD = "shows", "does not show", "cannot be told"
UNKNOWN = Interval(float("nan"), float("-inf"), float("inf"))


def interval(values: Sequence[float]) -> Interval:
    """Mean +- t sd / sqrt(n) of independent seeds, t of n - 1 degrees of freedom; infinite ends of one value."""
    own = np.asarray(values, np.float64)
    if len(own) < 2:
        return UNKNOWN._replace(mean=float(own[0])) if len(own) else UNKNOWN
    half = stats.t.ppf(0.975, len(own) - 1) * own.std(ddof=1) / np.sqrt(len(own))
    return Interval(float(own.mean()), float(own.mean() - half), float(own.mean() + half))


def resampled_interval(values: Sequence[float]) -> Interval:
    """The mean over random halves of the same examples, with the corrected resampled t interval.

    mean +- t sqrt(1 / J + 1) sd for J halves that are tested after a fit on the other half: halves overlap, so that
    sd / sqrt(J) would be far too little.

    Source: Nadeau & Bengio, Machine Learning 52, 2003, section 4.
    """
    own = interval(values)
    if not is_known(own):
        return own
    half = (own.high - own.mean) * np.sqrt(1 + len(values))
    return Interval(own.mean, own.mean - half, own.mean + half)


def is_known(found: Interval) -> bool:
    """Whether both ends are finite: of one value, or none, they are not."""
    return bool(np.isfinite(found.low + found.high))


def clipped(found: Interval, least: float, most: float) -> Interval:
    """The interval cut where the range of its number ends; one that is unknown stays as it is."""
    if not is_known(found):
        return found
    return found._replace(low=max(found.low, least), high=min(found.high, most))


def paired(one: Mapping[Any, float], other: Mapping[Any, float]) -> Interval:
    """The mean of one less other over the seeds that both have; seed -> value."""
    return interval([one[seed] - other[seed] for seed in one if seed in other])


def verdict(difference: Interval, *, falls: bool = True, margin: float = 0.0) -> str:
    """Whether a fall (or rise) is shown: the interval lies on that side of 0, on the other side, or holds 0.

    margin: how far the other side of 0 still counts, for claims such as "at most a point more".
    """
    if not is_known(difference):
        return UNTOLD
    low, high = (difference.low, difference.high) if falls else (-difference.high, -difference.low)
    return SHOWS if high < margin else NOT if low > margin else UNTOLD


def alike(difference: Interval, room: float) -> str:
    """Whether a difference of at most `room` is shown: its interval lies inside, outside, or across an end."""
    if not is_known(difference):
        return UNTOLD
    inside = -room <= difference.low and difference.high <= room
    return SHOWS if inside else NOT if difference.high < -room or difference.low > room else UNTOLD


def joined(verdicts: Sequence[str]) -> str:
    """The verdict of a claim that several verdicts must all bear: NOT if one does not show, SHOWS if all do."""
    return NOT if NOT in verdicts else SHOWS if verdicts and set(verdicts) == {SHOWS} else UNTOLD


def rank_correlation(one: Sequence[float], other: Sequence[float], *, resamples: int = 2000) -> Interval:
    """Spearman's rank correlation with a 95% interval by the bootstrap over its pairs; unknown for fewer than four."""
    pairs = np.asarray([one, other], np.float64)
    if pairs.shape[1] < 4:
        return UNKNOWN
    drawn = np.random.default_rng(0).integers(0, pairs.shape[1], (resamples, pairs.shape[1]))
    ranks = stats.rankdata(pairs[:, drawn], axis=-1)
    ranks -= ranks.mean(-1, keepdims=True)
    scale = np.sqrt((ranks**2).sum(-1).prod(0))
    found = (ranks[0] * ranks[1]).sum(-1)[scale > 0] / scale[scale > 0]  # a resample of one pair alone has no ranks
    if not len(found):  # one of the two is the same number throughout
        return UNKNOWN
    low, high = np.quantile(found, [0.025, 0.975])
    return Interval(float(stats.spearmanr(*pairs).statistic), float(low), float(high))


def shown(value: Interval, *, digits: int = 3, scale: float = 1.0, signed: bool = False) -> str:
    """As "1.2 (0.9 to 1.5)"; of one seed the number alone; signed, and bold where the interval leaves out 0."""
    if np.isnan(value.mean):
        return ""
    mean, low, high = (plain(scale * number, digits, "+" if signed else "") for number in value)
    if not is_known(value):
        return mean
    text = f"{mean} ({low} to {high})"
    return f"**{text}**" if signed and (scale * value.low > 0 or scale * value.high < 0) else text


def as_json(value: Interval) -> dict[str, float | None]:
    """The numbers by name; infinite ends and means that do not exist are null."""
    return {name: float(number) if np.isfinite(number) else None for name, number in value._asdict().items()}
