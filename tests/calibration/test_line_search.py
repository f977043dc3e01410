import importlib
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from focalgeo.calibration import grid_search, line_search
from focalgeo.types import InputError

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


def test_line_inside_jit_is_the_same_line():
    logits, labels = drawn()
    found = line_search(logits, labels, GAMMAS, TEMPERATURES)
    compiled = jax.jit(lambda z, y: line_search(z, y, GAMMAS, TEMPERATURES))(logits, labels)
    for got, expected in zip(compiled, found, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_ties_go_to_the_temperature_nearest_one():
    logits, labels = np.zeros((4, 2), np.float32), np.array([0, 0, 1, 1])
    found = line_search(logits, labels, (1.0, 0.0), (3.0, 1.0))
    assert (found.gamma, found.temperature) == (0, 1)


def test_a_tie_along_a_line_whose_temperature_differs(monkeypatch):
    """Every point has ECE 0; of T = 0.45 at gamma 0 and 2 at gamma 2 the latter is nearer 1 in |log T| alone."""
    fitted = {0.0: 0.45, 2.0: 2.0}
    module = importlib.import_module("focalgeo.calibration.search")
    fit = SimpleNamespace
    monkeypatch.setattr(module, "best_point", lambda *_, gamma, **__: fit(temperature=np.float32(fitted[float(gamma)])))
    found = line_search(np.zeros((4, 2), np.float32), np.array([0, 0, 1, 1]), (0.0, 2.0), (1.0,))
    np.testing.assert_allclose(found.temperatures, [0.45, 2])
    assert (found.gamma, found.temperature) == (2, 2)


def test_one_gamma_makes_no_line():
    with pytest.raises(InputError, match="two different values"):
        line_search(*drawn(), (1.0, 1.0), TEMPERATURES)
