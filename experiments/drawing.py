"""What the experiments' figures share: the lengths of error bars, and plain ticks of a logarithmic axis."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter

from experiments.writing import Interval


def error_lengths(found: Sequence[Interval]) -> np.ndarray:
    """Lengths [2, intervals] of the bars below and above the means; none where an end is infinite."""
    lengths = np.array([[one.mean - one.low, one.high - one.mean] for one in found]).T
    return np.where(np.isfinite(lengths), lengths, 0)


def plain_ticks(axis: Any) -> None:
    """Ticks at 1, 2 and 5 of each decade of a matplotlib axis, as plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())
