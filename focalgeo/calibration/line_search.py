"""The search of Komisarenko & Kull that replaces the grid of (gamma, temperature) by a line through two fits."""

from typing import NamedTuple

import numpy as np

from focalgeo.calibration.search import GAMMAS, TEMPERATURES, best_point, grid_search
from focalgeo.types import Array, InputError


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
