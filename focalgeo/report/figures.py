"""Figures of a classifier's outputs, from arrays of any framework, into axes of one's own: several models in one.

Each takes log-probabilities (or logits, which are normalised) [examples, classes] and labels [examples], draws into
`ax`, of the page's size where none is given, and returns the axes. Two models are two calls with one `ax`.
"""

import math
import statistics
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import is_color_like
from numpy.typing import ArrayLike
from scipy import optimize, special

from focalgeo.report.style import COLOURS, colour_of, new_axes, percentages, ribbon, styled
from focalgeo.rows import wilson
from focalgeo.types import Estimate, InputError, count, inner_ends, shown, tied_means

MOST_CELLS = 2000  # of an isotonic curve: more examples share cells of nearly one confidence
LEAST = 0.5  # half-width of an interval, by the root of the examples: where nearly all draws agree it would be 0
SHARE = 0.95  # of the curves of calibrated models that lie within the band


class Calibration(NamedTuple):
    """The isotonic curve of a model's accuracy over its confidence, and where it lies if the model is calibrated."""

    confidence: np.ndarray  # [cells], ascending
    accuracy: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def leaves(self) -> bool:
        """Whether the curve leaves the band anywhere, as that of 5 in 100 calibrated models does."""
        return bool(np.any((self.accuracy < self.low - 1e-12) | (self.accuracy > self.high + 1e-12)))


def calibration_curve(
    confidence: ArrayLike, right: ArrayLike, *, num_resamples: int = 1000, seed: int = 0
) -> Calibration:
    """The isotonic regression of accuracy on confidence, with a band that 95 in 100 calibrated models stay within.

    The band comes from curves of outcomes that are drawn with the confidences as their probabilities. Half of the
    curves give pointwise intervals; these are widened, by one factor on either side of the median, until the band
    contains 95 in 100 of the other curves whole.

    Args:
        confidence: [examples], probabilities of what is predicted.
        right: [examples], whether it came true, as truth values or 0 and 1.
        num_resamples: number of curves drawn, 100 or more.
        seed: seed of the draws.

    Raises:
        InputError: no examples, confidences outside 0 to 1, outcomes that are not 0 or 1, or too few resamples.

    Source: Dimitriadis, Gneiting & Jordan, PNAS 118 (2021), CORP and its consistency bands; Myllymaki et al., Global
    envelope tests for spatial processes (2017), the band's directional quantiles.

    Example:
        >>> confidence = np.exp(log_probs.max(axis=1))
        >>> found = report.calibration_curve(confidence, log_probs.argmax(axis=1) == labels)
        >>> print(found.confidence.round(3), found.accuracy, found.leaves)
        [0.506 0.629 0.665 0.844] [0. 0. 1. 1.] False
    """
    confidence, right = np.asarray(confidence, np.float64), np.asarray(right, np.float64)
    if confidence.ndim != 1 or confidence.shape != right.shape or not len(right):
        raise InputError(f"confidence {confidence.shape} and right {right.shape}: give both [examples]")
    if not (np.all((confidence >= 0) & (confidence <= 1)) and np.isin(right, (0, 1)).all()):
        raise InputError("give confidences from 0 to 1, and outcomes that are 0 or 1")
    num_resamples, random = count("num_resamples", num_resamples, 100), np.random.default_rng(count("seed", seed, 0))
    right, order = tied_means(confidence, right), np.argsort(confidence, kind="stable")
    cells = np.unique(np.linspace(0, len(order), min(len(order), MOST_CELLS) + 1).astype(int))[:-1]
    sizes = np.diff(np.append(cells, len(order)))
    means, shares = (np.add.reduceat(each[order], cells) / sizes for each in (confidence, right))

    def curve(rates):
        return optimize.isotonic_regression(rates, weights=sizes).x

    draws = random.binomial(sizes, np.minimum(means, 1), (num_resamples, len(cells))) / sizes
    curves = np.array([curve(rates) for rates in draws])
    # the second half, as the model's own curve, is new to the quantiles, which are of the first
    low, middle, high = np.quantile(curves[: num_resamples // 2], [0.025, 0.5, 0.975], axis=0)
    below, above = np.maximum((middle - low, high - middle), LEAST / len(order) ** 0.5)
    away = curves[num_resamples // 2 :] - middle
    furthest = np.sort(np.maximum(away / above, -away / below).max(axis=1))
    reach = furthest[min(int(np.ceil(SHARE * (len(away) + 1))), len(away)) - 1]
    ends = middle - reach * below, middle + reach * above
    return Calibration(means, curve(shares), *(np.clip(end, 0, 1) for end in ends))


def _predicted(log_probs, labels, of_class=None):
    """Confidence [examples], and whether the most probable class is the label; or those of one class."""
    rows, labels = np.asarray(log_probs, np.float64), np.asarray(labels)
    if rows.ndim != 2 or rows.shape[1] < 2 or labels.shape != rows.shape[:1] or labels.dtype.kind not in "iu":
        raise InputError(
            f"log_probs {rows.shape} and labels {labels.dtype}{labels.shape}: give [examples, classes] and whole "
            "numbers [examples]"
        )
    if not len(labels) or labels.min() < 0 or labels.max() >= rows.shape[1]:
        raise InputError(f"labels must be whole numbers from 0 to {rows.shape[1] - 1}, one or more")
    if not np.isfinite(rows.max(axis=1)).all():
        raise InputError("log_probs hold NaN, +inf, or a row without a class that can be")
    if np.all(rows >= 0) and np.allclose(rows.sum(axis=1), 1, atol=1e-3):
        raise InputError("log_probs are probabilities, which sum to 1: give their logarithms")
    rows = special.log_softmax(rows, axis=1)
    predicted = rows.argmax(axis=1) if of_class is None else count("of_class", of_class, 0, rows.shape[1] - 1)
    return np.exp(rows[np.arange(len(rows)), predicted]), predicted == labels


def seed_mean(seeds: ArrayLike) -> Estimate:
    """Return the mean over seeds with its 95% interval by Student's t; NaN of none, without interval of one.

    The interval is that of a bootstrap over seeds, whose standard error is s / sqrt(n) times sqrt((n - 1) / n), made
    wide enough for few seeds. Of a difference it is paired: runs of one seed share weights and batches.
    """
    values = seeds[np.isfinite(seeds)].tolist()
    n = len(values)
    if n < 2:
        return Estimate(values[0] if n else math.nan, math.nan, math.nan, math.nan, n)
    return Estimate.by_student(statistics.fmean(values), statistics.stdev(values) / math.sqrt(n), n)


@styled()
def reliability(
    log_probs: ArrayLike,
    labels: ArrayLike,
    *,
    ax: Axes | None = None,
    label: str = "",
    colour: str = "blue",
    num_bins: int = 15,
    num_resamples: int = 1000,
    seed: int = 0,
    of_class: int | None = None,
) -> Axes:
    """Draw the isotonic curve of accuracy over confidence, its band if calibrated, and bins with Wilson's intervals.

    A curve that leaves its band anywhere is not that of a calibrated model, at the level of 5%; see
    `calibration_curve`. num_bins: bins of equal width, 0 for none. of_class: the class, such as 1 of two, whose share
    is drawn over its probability; None draws the accuracy of the predicted class.

    Example:
        >>> ax = report.reliability(scores, drawn, label="true")  # logits will do
        >>> ax = report.reliability(3 * scores, drawn, ax=ax, label="thrice as sure", colour="red")
        >>> ax.figure.savefig("reliability.svg")
        >>> ax.get_legend_handles_labels()[1]
        ['true', 'thrice as sure']
    """
    ax = _axes(ax, colour, 3.6, 3.6)
    confidence, right = _predicted(log_probs, labels, of_class)
    num_bins = count("num_bins", num_bins, 0)
    found = calibration_curve(confidence, right, num_resamples=num_resamples, seed=seed)
    ax.plot([0, 1], [0, 1], "--", color=COLOURS["muted"], linewidth=1)
    ribbon(ax, *found, colour=colour, label=label or None)
    if num_bins:
        _, places = np.unique(np.searchsorted(inner_ends(num_bins, float), confidence), return_inverse=True)
        sizes, hits, sums = (np.bincount(places, each) for each in (None, right, confidence))
        ax.vlines(sums / sizes, *wilson(hits, sizes), color=colour_of(colour), linewidth=1.2, alpha=0.7)
        ax.plot(sums / sizes, hits / sizes, "o", color=colour_of(colour), markersize=3.5)
    xlabel, ylabel = "confidence", "accuracy"
    if of_class is not None:
        xlabel, ylabel = f"probability of class {of_class}", f"share of class {of_class}"
    return _of_shares(ax, label, ylim=(0, 1.02), xlabel=xlabel, ylabel=ylabel)


@styled()
def confidence_histogram(
    log_probs: ArrayLike,
    labels: ArrayLike,
    *,
    ax: Axes | None = None,
    label: str = "",
    colour: str = "blue",
    num_bins: int = 15,
) -> Axes:
    """Draw the share of examples in bins of confidence, and as lines accuracy and mean confidence: their gap.

    Example:
        >>> ax = report.confidence_histogram(3 * scores, drawn)
        >>> confidence, accuracy = (float(line.get_xdata()[0]) for line in ax.lines)  # the two vertical lines
        >>> round(confidence, 2), round(accuracy, 2)
        (0.81, 0.6)
    """
    ax = _axes(ax, colour, 3.6, 2.6)
    confidence, right = _predicted(log_probs, labels)
    colour = colour_of(colour)
    weights = np.full(len(confidence), 1 / len(confidence))
    edges = np.linspace(0, 1, count("num_bins", num_bins, 1) + 1)
    ax.hist(confidence, edges, weights=weights, histtype="stepfilled", alpha=0.3, color=colour, label=label or None)
    ax.axvline(confidence.mean(), color=colour, linestyle="--")
    ax.axvline(right.mean(), color=colour)
    return _of_shares(ax, label, xlabel="confidence\n(line: accuracy, dashes: mean confidence)", ylabel="examples")


@styled()
def risk_coverage(
    log_probs: ArrayLike, labels: ArrayLike, *, ax: Axes | None = None, label: str = "", colour: str = "blue"
) -> Axes:
    """Draw the share of errors among the most confident share of the examples, with Wilson's 95% intervals.

    Example:
        >>> ax = report.risk_coverage(scores, drawn, label="true")
        >>> share, errors = ax.lines[0].get_data()
        >>> round(float(errors[0]), 2), round(float(errors[-1]), 2)  # of the surest 2%, and of all
        (0.0, 0.4)
    """
    ax = _axes(ax, colour)
    confidence, right = _predicted(log_probs, labels)
    sizes = np.unique(np.ceil(np.linspace(0.02, 1, 50) * len(confidence)).astype(int))
    wrong = tied_means(confidence, ~right)
    errors = np.cumsum(wrong[np.argsort(-confidence, kind="stable")])[sizes - 1]
    ends = wilson(errors, sizes)
    ribbon(ax, sizes / len(confidence), errors / sizes, *ends, colour=colour, label=label or None)
    ax.set_ylim(0, auto=True)  # the next model may have more errors
    return _of_shares(ax, label, xlabel="share that is answered", ylabel="errors among the answers")


@styled()
def against_gamma(
    gammas: ArrayLike,
    numbers: ArrayLike,
    *,
    ax: Axes | None = None,
    label: str = "",
    colour: str = "blue",
    name: str = "",
) -> Axes:
    """Draw numbers of several seeds, such as traces, against gamma: their mean, and Student's 95% interval of it.

    Args:
        gammas: [runs].
        numbers: [runs], one for each; a gamma with one run has no interval.
        ax: axes to draw into.
        label: of this line.
        colour: of this line.
        name: of the numbers, with their unit.

    Example:
        >>> ax = report.against_gamma([0, 0, 2, 2], [9.0, 11.0, 4.0, 5.0], name="trace of the Hessian")
        >>> [float(mean) for mean in ax.lines[0].get_ydata()]
        [10.0, 4.5]
    """
    ax = _axes(ax, colour)
    gammas, numbers = np.asarray(gammas, np.float64), np.asarray(numbers, np.float64)
    if gammas.ndim != 1 or gammas.shape != numbers.shape or not np.isfinite([gammas, numbers]).all():
        raise InputError(f"gammas {gammas.shape} and numbers {numbers.shape}: give finite numbers, one for each run")
    at = np.unique(gammas)
    value, _, low, high, n = np.transpose([seed_mean(numbers[gammas == gamma]) for gamma in at])
    half = np.where(n > 1, (high - low) / 2, 0)
    ax.errorbar(at, value, half, color=colour_of(colour), marker="o", capsize=2, label=label or None)
    ax.set(xlabel="γ", ylabel=name)
    return _named(ax, label)


def _axes(ax, colour, *size):
    """The axes, or new ones of a size."""
    if not is_color_like(colour_of(colour)):
        raise InputError(f"colour is {shown(colour)}: choose one of {', '.join(COLOURS)}, or matplotlib's own")
    if not isinstance(ax, Axes | None):
        raise InputError(f"ax is {type(ax).__name__}: give the axes of one panel, as plt.subplots()[1]")
    return ax or new_axes(*size)


def _of_shares(ax, label, **settings):
    ax.set(xlim=(0, 1), **settings)
    percentages(ax, "x", "y")
    return _named(ax, label)


def _named(ax, label):
    if label:
        ax.legend()
    return ax
