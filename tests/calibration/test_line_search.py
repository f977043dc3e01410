import numpy as np
import pytest

from focalgeo.calibration import grid_search, line_search

GAMMAS = (0.0, -0.5, 1.0, 5.0)
TEMPERATURES = tuple(np.arange(0.25, 4, 0.25))


def drawn():
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(500, 5)) * 3).astype(np.float32)
    return logits, np.argmax(logits / 1.6 + rng.gumbel(size=logits.shape), axis=1).astype(np.int32)


@pytest.mark.parametrize("criterion", ["ece", "nll"])
def test_line_runs_through_the_two_fits_and_its_points_are_the_grids(criterion):
    logits, labels = drawn()
    found = line_search(logits, labels, GAMMAS, TEMPERATURES, criterion=criterion)
    assert found.num_evaluations == 2 * len(TEMPERATURES) + len(GAMMAS)
    ends = [grid_search(logits, labels, [g], TEMPERATURES, criterion=criterion).temperature for g in (-0.5, 5.0)]
    np.testing.assert_allclose(found.temperatures, ends[0] + (np.array(GAMMAS) + 0.5) / 5.5 * (ends[1] - ends[0]), 1e-6)
    for i, gamma in enumerate(GAMMAS):
        point = grid_search(logits, labels, [gamma], [found.temperatures[i]], criterion=criterion)
        np.testing.assert_allclose(found.ece[i], point.ece[0, 0], atol=1e-6)
        np.testing.assert_allclose(found.nll[i], point.nll[0, 0], atol=1e-6)
    values = found.nll if criterion == "nll" else found.ece
    assert found.value == values.min()
    best = GAMMAS.index(float(found.gamma))
    assert (found.value, found.temperature) == (values[best], found.temperatures[best])


def test_ties_go_to_the_temperature_nearest_one():
    logits, labels = np.zeros((4, 2), np.float32), np.array([0, 0, 1, 1])
    found = line_search(logits, labels, (1.0, 0.0), (3.0, 1.0))
    assert (found.gamma, found.temperature) == (0, 1)
