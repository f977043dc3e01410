"""What the experiments' figures share."""

import pytest
from matplotlib.figure import Figure

from experiments.drawing import plain_ticks


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.8, 70, [1, 2, 5, 10, 20, 50]),
        (1150, 2850, [1500, 2000, 2500]),
        (160, 285, [175, 200, 225, 250, 275]),
    ],
)
def test_a_logarithmic_axis_has_few_plain_ticks(low, high, ticks):
    axes = Figure().subplots()
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    plain_ticks(axes.yaxis)
    found = [tick for tick in axes.yaxis.get_majorticklocs() if low <= tick <= high]
    assert found == pytest.approx(ticks)
    assert not len(axes.yaxis.get_minorticklocs())
