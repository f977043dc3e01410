"""What the experiments' figures share: the lengths of error bars, and plain ticks of a logarithmic axis."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from experiments.writing import Interval


def error_lengths(found: Sequence[Interval]) -> np.ndarray:
    """Lengths [2, intervals] of the bars below and above the means; none where an end is infinite."""
    lengths = np.array([[one.mean - one.low, one.high - one.mean] for one in found]).T
    return np.where(np.isfinite(lengths), lengths, 0)


def plain_ticks(axis: Any) -> None:
    """Plain numbers on a logarithmic axis, called last: 1, 2 and 5 of each decade in view, or where few, even steps."""
    low, high = sorted(axis.get_view_interval())
    powers = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    in_view = [tick for tick in np.outer(powers, (1, 2, 5)).ravel() if low <= tick <= high]
    few = MaxNLocator(nbins=5, steps=(1, 2, 2.5, 5, 10))
    axis.set_major_locator(FixedLocator(in_view) if len(in_view) > 2 else few)
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())
