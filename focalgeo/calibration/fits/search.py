"""Search over a grid of (gamma, temperature) for focal temperature scaling, and along a line.

The plain search is the map at every point, then the metrics of its result: the map stays vmapped over the grid of gamma
and T, in chunks of points where memory asks for it. It works under jit and vmap and on accelerators. On the CPU
`grid_search` uses the one of `fast_search`, which tests compare with the plain one.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Shaped

from focalgeo import checks
from focalgeo.calibration.fits import fast_search
from focalgeo.calibration.maps import focal_temperature_scaling
from focalgeo.calibration.metrics.binning import Labels, Logits, Mask, Scalar, Weights
from focalgeo.calibration.metrics.top_label import adaptive_ece, ece, nll
from focalgeo.types import MOST_PAIRS, Array, InputError

GAMMAS = (0.0, -0.5, -0.25, 0.05, 0.25, 0.37, 0.5, 0.75, 1.0, 5.0)  # temperature scaling before the paper's nine
TEMPERATURES = tuple(i / 100 for i in range(1, 501))  # the paper's 0.01, 0.02, ..., 5.00
CRITERIA = ("ece", "nll", "adaptive_ece")

Grid = Shaped[Array, "_"] | Sequence
Surface = Float[Array, "gammas temperatures"]

_LARGEST_GAMMA = 100.0  # 2^gamma must stay within float32
_LARGEST_TEMPERATURE = 1e6  # the fast search cuts differences of logits at 1e20
TABLE_NUMBERS = 2**22  # in a table [points, examples, classes or bins] of the plain search: 16 MB


class GridSearch(NamedTuple):
    """The best point of a grid and the surfaces."""

    gamma: Scalar
    temperature: Scalar
    value: Scalar  # the criterion at the best point
    ece: Surface  # equal-mass ECE where that is the criterion
    nll: Surface  # nats


def grid_search(
    logits: Logits,
    labels: Labels,
    gammas: Grid = GAMMAS,
    temperatures: Grid = TEMPERATURES,
    *,
    criterion: str = "ece",
    num_bins: int = 15,
    mask: Mask = None,
    weights: Weights = None,
) -> GridSearch:
    """The (gamma, temperature) of `focal_temperature_scaling` with the least ECE or NLL over a grid.

    Args:
        logits: Float [examples, classes], of a validation split.
        labels: Int [examples].
        gammas: Float [gammas], above -1 and at most 100; the grid has 100,000 points at most. With 0 among them the
            best point is never worse than temperature scaling alone on the same examples.
        temperatures: Float [temperatures], above 0 and at most 1e6.
        criterion: "ece" (bins of equal width), "adaptive_ece" (equal mass) or "nll".
        num_bins: Bins of the ECE, 1 or more.
        mask: Bool [examples], which examples count; None takes all.
        weights: Float [examples], 0 or more: how often each example counts; None counts each once.

    Returns:
        GridSearch. Equal values go to the temperature nearest 1 in |log T|, then to the smallest |gamma|, then to the
        first. The surfaces are `plain_surfaces` inside jit and vmap, where all may be traced but the grid, on
        accelerators, and for adaptive ECE of weights that are not whole. Else, on the CPU, they are those of
        `fast_search`, which agree with them to 1e-5, but where a confidence lies within rounding of a bin's edge;
        tested in tests/calibration/test_search.py.

    Source: Komisarenko & Kull, arXiv 2408.11598, sections 4.2 and 5.1 (their grid has no gamma = 0).

    Example:
        >>> best = calibration.grid_search(logits, labels, [0.0, 1.0], [1.0, 1.5, 2.0], criterion="nll")
        >>> float(best.gamma), float(best.temperature), round(float(best.value), 4)
        (0.0, 1.0, 0.8055)
    """
    grid = checked_grid(gammas, temperatures, criterion, num_bins)
    examples = checks.predicted_logits(logits, labels, mask, weights)
    return searched_grid(examples, *grid, criterion=criterion, num_bins=num_bins)


def searched_grid(examples, gammas, temperatures, *, criterion, num_bins) -> GridSearch:
    """`grid_search` of what has been checked."""
    by_rank = criterion == "adaptive_ece"
    # the fast search by rank repeats each example as often as it counts, so weights have to be whole there
    if checks.is_traced(examples) or jax.default_backend() != "cpu" or (by_rank and (examples.weight % 1).any()):
        surfaces = plain_surfaces(examples, gammas, temperatures, num_bins=num_bins, by_rank=by_rank)
    else:
        surfaces = fast_search.surfaces(examples, gammas, temperatures, num_bins, by_rank=by_rank)
    return _best(gammas, temperatures, *surfaces, surfaces[criterion == "nll"])


def plain_surfaces(
    examples: checks.Examples,
    gammas: Float[Array, " gammas"],
    temperatures: Float[Array, " temperatures"],
    *,
    num_bins: int = 15,
    by_rank: bool = False,
) -> tuple[Surface, Surface]:
    """ECE, or by rank adaptive ECE, and NLL of `focal_temperature_scaling`, point by point; for jit and vmap."""
    points = jnp.repeat(jnp.asarray(gammas), len(temperatures)), jnp.tile(jnp.asarray(temperatures), len(gammas))
    values = _at_points(*examples, *points, num_bins=num_bins, by_rank=by_rank)
    return tuple(surface.reshape(len(gammas), len(temperatures)) for surface in values)


@partial(jax.jit, static_argnames=("num_bins", "by_rank"))
def _at_points(logits, labels, weight, gammas, temperatures, *, num_bins, by_rank):
    """ECE and NLL [points] for a gamma and a temperature each."""

    def at_point(point):
        examples = checks.Examples(focal_temperature_scaling(logits, *point), labels, weight)
        return (adaptive_ece if by_rank else ece).of(num_bins=num_bins)(examples), nll.of()(examples)

    numbers = logits.shape[0] * max(logits.shape[1], num_bins)
    return jax.lax.map(at_point, (gammas, temperatures), batch_size=max(TABLE_NUMBERS // numbers, 1))


def best_point(
    search: GridSearch, gammas: Grid, temperatures: Grid, *, criterion: str = "ece", gamma: float | None = None
) -> GridSearch:
    """The best point of surfaces already computed, by another criterion or for one gamma alone.

    With gamma=0 it is the best point of temperature scaling, computed from the same numbers. So focal temperature
    scaling is never worse on the same examples; two searches would differ in the last bit.

    Args:
        search: Result of `grid_search` for `gammas` and `temperatures`.
        gammas: Float [gammas].
        temperatures: Float [temperatures].
        criterion: "nll" or the ECE of the search ("ece" and "adaptive_ece" both mean search.ece).
        gamma: Only points of this gamma are considered; None considers all.

    Example:
        >>> grid = [0.0, 1.0], [1.0, 1.5, 2.0]
        >>> search = calibration.grid_search(logits, labels, *grid)
        >>> best = calibration.best_point(search, *grid, criterion="nll", gamma=0.0)
        >>> float(best.temperature), round(float(best.value), 4)
        (1.0, 0.8055)
    """
    gammas, temperatures = np.asarray(gammas, np.float32), np.asarray(temperatures, np.float32)
    rows = slice(None) if gamma is None else np.flatnonzero(gammas == np.float32(gamma))
    if not gammas[rows].size:
        raise InputError(f"gamma {gamma} is not on the grid {gammas.tolist()}: search with it, or choose another")
    surface = search.nll if criterion == "nll" else search.ece
    return _best(gammas[rows], temperatures, search.ece, search.nll, surface[rows])


class LineSearch(NamedTuple):
    """The best point of the line, and all points of it."""

    gamma: Scalar
    temperature: Scalar
    value: Scalar  # the criterion at the best point
    temperatures: Float[Array, " gammas"]  # of the line
    ece: Float[Array, " gammas"]  # equal-mass ECE where that is the criterion
    nll: Float[Array, " gammas"]  # nats


def line_search(
    logits: Logits,
    labels: Labels,
    gammas: Grid = GAMMAS,
    temperatures: Grid = TEMPERATURES,
    *,
    criterion: str = "ece",
    num_bins: int = 15,
    mask: Mask = None,
    weights: Weights = None,
) -> LineSearch:
    """The best (gamma, T) on the line through the best T of the least and of the greatest gamma.

    Args:
        logits: Float [examples, classes], of a validation split.
        labels: Int [examples].
        gammas: Float [gammas], above -1 and at most 100, two different ones or more.
        temperatures: Float [temperatures], above 0, for the two fits; the line runs between them.
        criterion: "ece" (bins of equal width), "adaptive_ece" (equal mass) or "nll".
        num_bins: Bins of the ECE, 1 or more.
        mask: Bool [examples], which examples count; None takes all.
        weights: Float [examples], 0 or more: how often each example counts; None counts each once.

    Returns:
        LineSearch; 2 temperatures + gammas evaluations, where the grid has gammas times temperatures. Equal values go
        to the temperature nearest 1 in |log T|, then to the smallest |gamma|. Its points are those of `grid_search`
        (tests/calibration/test_search.py); with 0 among the gammas it can still be worse than temperature scaling
        alone, since T at 0 is read off the line. For use inside jit and vmap as `grid_search`.

    Source: Komisarenko & Kull, arXiv 2408.11598, section 5.2: the best T is nearly linear in gamma. They name no two
    gammas; the ends are our choice. They count 3 m evaluations for m temperatures and m points of the line.

    Example:
        >>> best = calibration.line_search(logits, labels, [0.0, 0.5, 1.0], [1.0, 1.5, 2.0], criterion="nll")
        >>> float(best.gamma), float(best.temperature), round(float(best.value), 4)
        (0.0, 1.0, 0.8055)
    """
    grid = checked_grid(gammas, temperatures, criterion, num_bins, whole=False)
    examples = checks.predicted_logits(logits, labels, mask, weights)
    return searched_line(examples, *grid, criterion=criterion, num_bins=num_bins)


def searched_line(examples, gammas, temperatures, *, criterion="ece", num_bins) -> LineSearch:
    """`line_search` of what has been checked."""
    ends = np.array([gammas.min(), gammas.max()])
    if ends[0] == ends[1]:
        raise InputError(f"gammas are {gammas.tolist()}: a line needs two different values or more")
    search = searched_grid(examples, ends, temperatures, criterion=criterion, num_bins=num_bins)
    fitted = [best_point(search, ends, temperatures, criterion=criterion, gamma=end).temperature for end in ends]
    gammas, ends = jnp.asarray(gammas), jnp.asarray(ends)
    line = jnp.interp(gammas, ends, jnp.stack(fitted))
    eces, nlls = _at_points(*examples, gammas, line, num_bins=num_bins, by_rank=criterion == "adaptive_ece")
    best = _least(nlls if criterion == "nll" else eces, gammas, line)
    return LineSearch(*best, line, eces, nlls)


def _best(gammas, temperatures, ece, nll, surface):
    """The least value of the surface."""
    gamma, temperature = np.repeat(gammas, len(temperatures)), np.tile(temperatures, len(gammas))
    return GridSearch(*_least(surface.ravel(), gamma, temperature), ece, nll)


@jax.jit
def _least(values, gammas, temperatures):
    """Gamma, temperature and value of the least of [points]; ties go to the least |log T|, then the least |gamma|."""
    # ties are common, as an ECE is piecewise constant: without an order the result would hang on rounding
    order = jnp.lexsort((jnp.abs(gammas), jnp.abs(jnp.log(temperatures))))
    best = order[jnp.argmin(values[order])]
    return gammas[best], temperatures[best], values[best]


def checked_grid(
    gammas: Grid, temperatures: Grid, criterion: str, num_bins: int, *, whole: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Gammas and temperatures of a grid as float32; refuses what is no grid, no criterion or no number of bins.

    whole: every pair is a point; of a line each value is one.
    """
    checks.check_choice("criterion", criterion, CRITERIA)
    checks.check_bins(num_bins)
    grid = []
    for name, values, low, high in (
        ("gammas", gammas, -1, _LARGEST_GAMMA),
        ("temperatures", temperatures, 0, _LARGEST_TEMPERATURE),
    ):
        values = np.asarray(checks.number_array(name, values), np.float32)
        if values.ndim != 1 or not values.size or not ((values > low) & (values <= high)).all():
            raise InputError(f"{name} are {np.unique(values)}: give a list of numbers above {low} and at most {high:g}")
        grid.append(values)
    points = grid[0].size * grid[1].size if whole else grid[0].size + 2 * grid[1].size
    if points > MOST_PAIRS:
        raise InputError(f"gammas and temperatures make {points} points: give at most {MOST_PAIRS}")
    return tuple(grid)
