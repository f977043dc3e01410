"""Search over a grid of (gamma, temperature) for focal temperature scaling, with ECE and NLL at every point."""

from typing import NamedTuple

import numpy as np

from focalgeo.calibration.binning import check_predictions
from focalgeo.calibration.streaming import Problem, surfaces
from focalgeo.types import Array, InputError

GAMMAS = (0.0, -0.5, -0.25, 0.05, 0.25, 0.37, 0.5, 0.75, 1.0, 5.0)  # temperature scaling before the paper's nine
TEMPERATURES = tuple(i / 100 for i in range(1, 501))  # the paper's 0.01, 0.02, ..., 5.00
CRITERIA = ("ece", "nll", "adaptive_ece")

_LARGEST_GAMMA = 100.0  # 2^gamma must stay within float32


class GridSearch(NamedTuple):
    """The best point of a grid and the whole surface."""

    gamma: Array
    temperature: Array
    value: Array  # the criterion at the best point
    ece: Array  # [gammas, temperatures]; equal-mass ECE where that is the criterion
    nll: Array  # [gammas, temperatures], nats


def grid_search(
    logits: Array,
    labels: Array,
    gammas: Array = GAMMAS,
    temperatures: Array = TEMPERATURES,
    *,
    criterion: str = "ece",
    num_bins: int = 15,
    mask: Array | None = None,
) -> GridSearch:
    """The (gamma, temperature) of `focal_temperature_scaling` with the least ECE or NLL over a grid.

    Args:
        logits: Float [examples, classes], of a validation split.
        labels: Int [examples].
        gammas: Float [gammas], above -1 and at most 100. With 0 among them the best point is never worse than
            temperature scaling alone on the same examples.
        temperatures: Float [temperatures], above 0.
        criterion: "ece" (bins of equal width), "adaptive_ece" (equal mass) or "nll".
        num_bins: Bins of the ECE, 1 or more.
        mask: Bool [examples], or how often each example counts; None counts each once.

    Returns:
        GridSearch. Equal values go to the temperature nearest 1 in |log T|, then to the smallest |gamma|, then to the
        first. The surfaces agree with `ece` and `nll` of `focal_temperature_scaling` to 1e-5, but where a confidence
        lies within rounding of a bin's edge; held by tests/calibration/test_search.py. Not for use inside jit: it
        streams from the host.

    Raises:
        InputError: predictions that `check_predictions` refuses, a value out of range, an unknown criterion, an empty
        mask.

    Source: Komisarenko & Kull, arXiv 2408.11598, sections 4.2 and 5.1 (their grid has no gamma = 0).
    """
    gammas, temperatures = np.asarray(gammas, np.float32), np.asarray(temperatures, np.float32)
    _check_grid(gammas, temperatures, criterion)
    if num_bins < 1:
        raise InputError(f"num_bins is {num_bins}: give 1 or more")
    logits, labels = np.asarray(logits), np.asarray(labels)
    weight = np.ones(labels.shape, np.float32) if mask is None else np.asarray(mask, np.float32)
    counted = _counted(weight, labels, by_rank=criterion == "adaptive_ece")
    check_predictions(*((logits, labels) if counted.all() else (logits[counted], labels[counted])))
    problem = Problem(logits, labels.astype(np.int32), weight, gammas, temperatures)
    ece, nll = surfaces(problem, num_bins, by_rank=criterion == "adaptive_ece")
    return _best(gammas, temperatures, ece, nll, nll if criterion == "nll" else ece)


def best_point(
    found: GridSearch, gammas: Array, temperatures: Array, *, criterion: str = "ece", gamma: float | None = None
) -> GridSearch:
    """The best point of surfaces already computed, by another criterion or for one gamma alone.

    One search serves four fits: with gamma=0 it gives temperature scaling from the very numbers of focal temperature
    scaling, so that the latter is never worse on the same examples (two searches differ in the last bit).

    Args:
        found: What `grid_search` returned for `gammas` and `temperatures`.
        gammas: Float [gammas].
        temperatures: Float [temperatures].
        criterion: "nll" or the ECE of the search ("ece" and "adaptive_ece" both stand for found.ece).
        gamma: Only points of this gamma are considered; None considers all.

    Raises:
        InputError: unknown criterion, or `gamma` is not among `gammas`.
    """
    gammas, temperatures = np.asarray(gammas, np.float32), np.asarray(temperatures, np.float32)
    _check_grid(gammas, temperatures, criterion)
    allowed = np.ones(gammas.shape, bool) if gamma is None else gammas == np.float32(gamma)
    if not allowed.any():
        raise InputError(f"gamma {gamma} is not on the grid {gammas.tolist()}: search with it, or choose one of these")
    ece, nll = np.asarray(found.ece), np.asarray(found.nll)
    surface = nll if criterion == "nll" else ece
    return _best(gammas, temperatures, ece, nll, np.where(allowed[:, None], surface, np.inf))


def _best(
    gammas: np.ndarray, temperatures: np.ndarray, ece: np.ndarray, nll: np.ndarray, surface: np.ndarray
) -> GridSearch:
    """The least value of the surface, ties by a fixed order of preference."""
    gamma = np.repeat(gammas, len(temperatures))
    temperature = np.tile(temperatures, len(gammas))
    order = np.lexsort((np.abs(gamma), np.abs(np.log(temperature))))
    best = order[np.argmin(surface.ravel()[order])]
    return GridSearch(gamma[best], temperature[best], surface.ravel()[best], ece, nll)


def _counted(weight: np.ndarray, labels: Array, *, by_rank: bool) -> np.ndarray:
    if weight.shape != np.shape(labels):
        raise InputError(f"mask has shape {weight.shape}, labels {np.shape(labels)}: give one entry for each label")
    if weight.size and not (np.round(weight) if by_rank else weight).any():
        raise InputError("the mask leaves no example: give at least one")
    return weight > 0


def _check_grid(gammas: np.ndarray, temperatures: np.ndarray, criterion: str) -> None:
    if criterion not in CRITERIA:
        raise InputError(f"unknown criterion {criterion!r}: choose one of {', '.join(CRITERIA)}")
    if gammas.ndim != 1 or temperatures.ndim != 1 or not (gammas.size and temperatures.size):
        shapes = f"gammas have shape {gammas.shape}, temperatures {temperatures.shape}"
        raise InputError(f"{shapes}: give two non-empty lists")
    if not ((gammas > -1) & (gammas <= _LARGEST_GAMMA)).all():
        raise InputError(f"gammas run from {gammas.min()} to {gammas.max()}: give values above -1 and at most 100")
    if not ((temperatures > 0) & np.isfinite(temperatures)).all():
        raise InputError(f"temperatures run from {temperatures.min()} to {temperatures.max()}: give values above 0")


class LineSearch(NamedTuple):
    """The best point of the line, and the whole line."""

    gamma: Array
    temperature: Array
    value: Array  # the criterion at the best point
    temperatures: Array  # [gammas] of the line
    ece: Array  # [gammas]; equal-mass ECE where that is the criterion
    nll: Array  # [gammas], nats
    num_evaluations: int  # points at which the map was computed


def line_search(
    logits: Array,
    labels: Array,
    gammas: Array = GAMMAS,
    temperatures: Array = TEMPERATURES,
    *,
    criterion: str = "ece",
    num_bins: int = 15,
    mask: Array | None = None,
) -> LineSearch:
    """The best (gamma, T) on the line through the best T of the least and of the greatest gamma.

    Args:
        logits: Float [examples, classes], of a validation split.
        labels: Int [examples].
        gammas: Float [gammas], above -1 and at most 100, two different ones or more.
        temperatures: Float [temperatures], above 0, for the two fits; the line runs between them.
        criterion: "ece" (bins of equal width), "adaptive_ece" (equal mass) or "nll".
        num_bins: Bins of the ECE, 1 or more.
        mask: Bool [examples], or how often each example counts; None counts each once.

    Returns:
        LineSearch; 2 temperatures + gammas evaluations, where the grid has gammas times temperatures. Equal values go
        to the temperature nearest 1 in |log T|, then to the smallest |gamma|. Its points are those of `grid_search`
        (tests/calibration/test_line_search.py); with 0 among the gammas it can still be worse than temperature scaling
        alone, since T at 0 is read off the line. Not for use inside jit.

    Raises:
        InputError: whatever `grid_search` refuses, or fewer than two different gammas.

    Source: Komisarenko & Kull, arXiv 2408.11598, section 5.2: the best T is nearly linear in gamma. They name no two
    gammas; the ends are our choice. They count 3 m evaluations for m temperatures and m points of the line.
    """
    gammas, temperatures = np.asarray(gammas, np.float32), np.asarray(temperatures, np.float32)
    if np.unique(gammas).size < 2:
        raise InputError(f"gammas are {gammas.tolist()}: a line needs two different values or more")
    options = {"criterion": criterion, "num_bins": num_bins, "mask": mask}
    ends = np.array([gammas.min(), gammas.max()])
    fits = grid_search(logits, labels, ends, temperatures, **options)
    fitted = [best_point(fits, ends, temperatures, criterion=criterion, gamma=end).temperature for end in ends]
    line = np.interp(gammas, ends, np.asarray(fitted, np.float32)).astype(np.float32)
    points = [grid_search(logits, labels, [g], [t], **options) for g, t in zip(gammas, line, strict=True)]
    ece, nll, value = (np.array([np.ravel(getattr(p, name))[0] for p in points]) for name in ("ece", "nll", "value"))
    order = np.lexsort((np.abs(gammas), np.abs(np.log(line))))
    best = order[np.argmin(value[order])]
    return LineSearch(
        gammas[best], line[best], value[best], line, ece, nll, num_evaluations=2 * temperatures.size + gammas.size
    )
