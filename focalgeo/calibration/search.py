"""Search over a grid of (gamma, temperature) for focal temperature scaling, and along a line.

The plain search is the map at every point, then the metrics of its result. It works under jit and vmap and on
accelerators. On the CPU `grid_search` uses the one of `fast_search`, which tests compare with the plain one.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Shaped

from focalgeo.calibration import fast_search
from focalgeo.calibration.binning import Labels, Logits, Mask, Scalar
from focalgeo.calibration.maps import focal_temperature_scaling
from focalgeo.calibration.metrics import ece_of, nll_of
from focalgeo.checks import (
    Examples,
    check_bins,
    check_choice,
    is_traced,
    marked,
    number_array,
    predicted_logits,
)
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
        mask: Bool [examples], or how often each example counts; None counts each once.

    Returns:
        GridSearch. Equal values go to the temperature nearest 1 in |log T|, then to the smallest |gamma|, then to the
        first. The surfaces are `plain_surfaces` inside jit and vmap, where logits, labels and mask may be traced but
        not the grid, and on accelerators. On the CPU they are those of `fast_search`, which agree with them to 1e-5,
        but where a confidence lies within rounding of a bin's edge; tested in tests/calibration/test_search.py.
        Traced values that `check_predictions` would refuse give NaN.

    Raises:
        InputError: predictions that `check_predictions` refuses, a value out of range, an unknown criterion, an empty
        mask.

    Source: Komisarenko & Kull, arXiv 2408.11598, sections 4.2 and 5.1 (their grid has no gamma = 0).
    """
    gammas, temperatures = _checked_grid(gammas, temperatures, criterion, num_bins)
    by_rank = criterion == "adaptive_ece"
    given = _checked_examples(logits, labels, mask, num_bins, by_rank=by_rank)
    if is_traced(tuple(given)) or is_plain():
        surfaces = _surfaces(given, gammas, temperatures, num_bins=num_bins, by_rank=by_rank)
    else:
        inputs = fast_search.SearchInputs(*map(np.asarray, given), gammas, temperatures)
        surfaces = fast_search.surfaces(inputs, num_bins, by_rank=by_rank)
    return _best(gammas, temperatures, *surfaces, surfaces[1] if criterion == "nll" else surfaces[0])


def is_plain() -> bool:
    """Whether `grid_search` outside jit and vmap is the plain one: on every device but the CPU."""
    return jax.default_backend() != "cpu"


def plain_surfaces(
    logits: Logits,
    labels: Labels,
    gammas: Float[Array, " gammas"],
    temperatures: Float[Array, " temperatures"],
    *,
    num_bins: int = 15,
    mask: Mask = None,
    by_rank: bool = False,
) -> tuple[Surface, Surface]:
    """ECE and NLL [gammas, temperatures] of `focal_temperature_scaling`, point by point; for jit and vmap.

    Arguments and errors as `grid_search`; `by_rank` asks for `adaptive_ece` in place of `ece`.
    """
    gammas, temperatures = _checked_grid(gammas, temperatures, "nll", num_bins)
    given = _checked_examples(logits, labels, mask, num_bins, by_rank=by_rank)
    return _surfaces(given, gammas, temperatures, num_bins=num_bins, by_rank=by_rank)


def _surfaces(
    given: Examples, gammas: Array, temperatures: Array, *, num_bins: int, by_rank: bool
) -> tuple[Array, Array]:
    """`plain_surfaces` of what has been checked."""
    gammas, temperatures = jnp.asarray(gammas), jnp.asarray(temperatures)
    shape = gammas.size, temperatures.size
    points = jnp.repeat(gammas, shape[1]), jnp.tile(temperatures, shape[0])
    values = _at_points(*given, *points, num_bins=num_bins, by_rank=by_rank)
    return values[0].reshape(shape), values[1].reshape(shape)


@partial(jax.jit, static_argnames=("num_bins", "by_rank"))
def _at_points(
    logits: Array,
    labels: Array,
    weight: Array,
    gammas: Array,
    temperatures: Array,
    *,
    num_bins: int,
    by_rank: bool,
) -> tuple[Array, Array]:
    """ECE and NLL [points] for a gamma and a temperature each."""

    def at_point(point: tuple[Array, Array]) -> tuple[Array, Array]:
        scaled = Examples(focal_temperature_scaling(logits, *point), labels, weight)
        return ece_of(scaled, num_bins, by_rank=by_rank), nll_of(scaled)

    numbers = logits.shape[0] * max(logits.shape[1], num_bins)
    return jax.lax.map(at_point, (gammas, temperatures), batch_size=max(TABLE_NUMBERS // numbers, 1))


def best_point(
    found: GridSearch, gammas: Grid, temperatures: Grid, *, criterion: str = "ece", gamma: float | None = None
) -> GridSearch:
    """The best point of surfaces already computed, by another criterion or for one gamma alone.

    With gamma=0 the best point is that of temperature scaling, from the same numbers as that of focal temperature
    scaling, which is then never worse on the same examples (the numbers of two searches differ in the last bit).

    Args:
        found: What `grid_search` returned for `gammas` and `temperatures`.
        gammas: Float [gammas].
        temperatures: Float [temperatures].
        criterion: "nll" or the ECE of the search ("ece" and "adaptive_ece" both stand for found.ece).
        gamma: Only points of this gamma are considered; None considers all.

    Raises:
        InputError: unknown criterion, or `gamma` is not among `gammas`.
    """
    gammas, temperatures = _checked_grid(gammas, temperatures, criterion)
    if gamma is not None:
        number_array("gamma", gamma, ())
    shape = gammas.size, temperatures.size
    if np.shape(found.ece) != shape or np.shape(found.nll) != shape:
        raise InputError(f"found has surfaces of shape {np.shape(found.ece)}, the grid {shape}: give the grid searched")
    allowed = np.ones(gammas.shape, bool) if gamma is None else gammas == np.float32(gamma)
    if not allowed.any():
        raise InputError(f"gamma {gamma} is not on the grid {gammas.tolist()}: search with it, or choose one of these")
    surface = found.nll if criterion == "nll" else found.ece
    considered = _module(surface).where(allowed[:, None], surface, np.float32(np.inf))
    return _best(gammas, temperatures, found.ece, found.nll, considered)


class LineSearch(NamedTuple):
    """The best point of the line, and all points of it."""

    gamma: Scalar
    temperature: Scalar
    value: Scalar  # the criterion at the best point
    temperatures: Float[Array, " gammas"]  # of the line
    ece: Float[Array, " gammas"]  # equal-mass ECE where that is the criterion
    nll: Float[Array, " gammas"]  # nats
    num_evaluations: int  # points at which the map was computed


def line_search(
    logits: Logits,
    labels: Labels,
    gammas: Grid = GAMMAS,
    temperatures: Grid = TEMPERATURES,
    *,
    criterion: str = "ece",
    num_bins: int = 15,
    mask: Mask = None,
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
        alone, since T at 0 is read off the line. For use inside jit and vmap as `grid_search`.

    Raises:
        InputError: whatever `grid_search` refuses, or fewer than two different gammas.

    Source: Komisarenko & Kull, arXiv 2408.11598, section 5.2: the best T is nearly linear in gamma. They name no two
    gammas; the ends are our choice. They count 3 m evaluations for m temperatures and m points of the line.
    """
    gammas, temperatures = _checked_grid(gammas, temperatures, criterion, num_bins)
    if np.unique(gammas).size < 2:
        raise InputError(f"gammas are {gammas.tolist()}: a line needs two different values or more")
    given = predicted_logits(logits, labels, mask)
    ends = np.array([gammas.min(), gammas.max()])
    fits = grid_search(logits, labels, ends, temperatures, criterion=criterion, num_bins=num_bins, mask=mask)
    fitted = [best_point(fits, ends, temperatures, criterion=criterion, gamma=end).temperature for end in ends]
    line = jnp.interp(jnp.asarray(gammas), jnp.asarray(ends), jnp.stack(jax.tree.map(jnp.float32, fitted)))
    eces, nlls = _at_points(*given, gammas, line, num_bins=num_bins, by_rank=criterion == "adaptive_ece")
    values = nlls if criterion == "nll" else eces
    best = _index_of_least(values, jnp.asarray(gammas), line)
    evaluations = 2 * temperatures.size + gammas.size
    valid = ~jnp.isnan(values[best])
    gamma, temperature = marked(valid, (jnp.asarray(gammas)[best], line[best]))
    return LineSearch(gamma, temperature, values[best], marked(valid, line), eces, nlls, evaluations)


def _best(gammas: np.ndarray, temperatures: np.ndarray, ece: Array, nll: Array, surface: Array) -> GridSearch:
    """The least value of the surface."""
    gamma, temperature = np.repeat(gammas, len(temperatures)), np.tile(temperatures, len(gammas))
    values = surface.ravel()
    best = _index_of_least(values, gamma, temperature)
    module = _module(surface)
    point = module.asarray(gamma)[best], module.asarray(temperature)[best]
    valid = ~module.isnan(values[best])  # of traced values that are not, the surfaces are NaN
    return GridSearch(*(module.where(valid, each, np.float32(np.nan))[()] for each in point), values[best], ece, nll)


def _index_of_least(values: Array, gammas: Array, temperatures: Array) -> Array:
    """Index of the least of [points]; ties go to the least |log T|, then to the least |gamma|, then to the first."""
    order = _module(temperatures).lexsort((abs(gammas), abs(_module(temperatures).log(temperatures))))
    module = _module(values)
    return module.asarray(order)[module.argmin(values[order])]


def _module(values: Array):
    """The module that computes with these values: NumPy, where they lie on the host, else jax.numpy."""
    return np if isinstance(values, np.ndarray) else jnp


def _checked_examples(logits: Array, labels: Array, mask: Array | None, num_bins: int, *, by_rank: bool) -> Examples:
    given = predicted_logits(logits, labels, mask)
    if by_rank and not is_traced(given.weight) and not np.round(np.asarray(given.weight)).any():
        raise InputError("the mask leaves no example: give at least one")
    return given


def _checked_grid(gammas: Grid, temperatures: Grid, criterion: str, num_bins: int = 1) -> tuple[np.ndarray, np.ndarray]:
    check_choice("criterion", criterion, CRITERIA)
    given = {"gammas": gammas, "temperatures": temperatures}
    if is_traced(gammas, temperatures):
        raise InputError("gammas or temperatures are traced: give plain numbers, the grid is static")
    gammas, temperatures = (np.asarray(number_array(name, grid), np.float32) for name, grid in given.items())
    if gammas.ndim != 1 or temperatures.ndim != 1 or not (gammas.size and temperatures.size):
        shapes = f"gammas have shape {gammas.shape}, temperatures {temperatures.shape}"
        raise InputError(f"{shapes}: give two non-empty lists")
    if not ((gammas > -1) & (gammas <= _LARGEST_GAMMA)).all():
        raise InputError(f"gammas run from {gammas.min()} to {gammas.max()}: give values above -1 and at most 100")
    if not ((temperatures > 0) & (temperatures <= _LARGEST_TEMPERATURE)).all():
        ends = f"{temperatures.min()} to {temperatures.max()}"
        raise InputError(f"temperatures run from {ends}: give values above 0 and at most {_LARGEST_TEMPERATURE:g}")
    points = gammas.size * temperatures.size
    if points > MOST_PAIRS:
        raise InputError(
            f"gammas and temperatures make {points} points: give at most {MOST_PAIRS}, half a minute of search"
        )
    check_bins(num_bins)
    return gammas, temperatures
