from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focalgeo import calibration
from focalgeo.calibration import (
    CRITERIA,
    METHODS,
    Fitted,
    Method,
    fit_methods,
)
from focalgeo.types import InputError

GAMMAS = (0.0, -0.5, 0.5, 2.0)
TEMPERATURES = tuple(np.arange(0.25, 4, 0.25))
GRID = {name: METHODS[name] for name in ("temperature_scaling", "focal_temperature_scaling")}
SETTINGS = {"gammas": GAMMAS, "temperatures": TEMPERATURES, "trained_gamma": 3.0, "num_bins": 10}


def predictions(num_examples=400, num_classes=4, seed=0):
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(num_examples, num_classes)) * 3).astype(np.float32)
    return logits, np.argmax(logits / 1.6 + rng.gumbel(size=logits.shape), axis=1).astype(np.int32)


def fit_vector_scaling(logits, labels, *, criterion, mask=None):
    """A weight and a bias for each class (Guo et al., section 4.2), by plain gradient descent on the NLL."""

    def nll(params):
        return calibration.nll(apply_vector_scaling(params, logits), labels, mask=mask)

    start = {"weight": jnp.ones(logits.shape[-1]), "bias": jnp.zeros(logits.shape[-1])}
    step = lambda _, params: jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(nll)(params))  # noqa: E731
    return jax.lax.fori_loop(0, 200, step, start)


def apply_vector_scaling(params, logits):
    return jax.nn.log_softmax(logits * params["weight"][None] + params["bias"][None])


VECTOR_SCALING = Method(
    "own_scaling", "Own scaling", fit_vector_scaling, apply_vector_scaling, criteria=("nll",), keeps_class=False
)


def test_a_new_method_is_a_function_pair_and_stands_beside_the_others():
    logits, labels = predictions()
    fits = fit_methods({**METHODS, "own_scaling": VECTOR_SCALING}, logits, labels, settings=SETTINGS)
    names = [(fitted.method.name, fitted.criterion) for fitted in fits]
    assert names[-1] == ("own_scaling", "nll")
    nll = {
        name: calibration.nll(fitted.predict_log_proba(logits), labels)
        for name, fitted in zip(names, fits, strict=True)
    }
    assert nll["own_scaling", "nll"] < nll["temperature_scaling", "nll"] < nll["uncalibrated", None]
    compiled = jax.jit(VECTOR_SCALING.fit, static_argnames="criterion")(logits, labels, criterion="nll")
    np.testing.assert_allclose(compiled["weight"], fits[-1].params["weight"], rtol=1e-4)
    np.testing.assert_allclose(
        jax.vmap(VECTOR_SCALING.apply, (None, 0))(compiled, logits[None])[0],
        fits[-1].predict_log_proba(logits),
        atol=1e-3,
    )


def test_every_method_is_fitted_by_each_of_its_criteria_in_the_order_of_the_table():
    settings = {**SETTINGS, "criteria": CRITERIA}
    fits = fit_methods(METHODS, *predictions(), settings=settings)
    found = [(fitted.method.name, fitted.criterion) for fitted in fits]
    assert found == [(name, each) for name, method in METHODS.items() for each in method.criteria or (None,)]
    assert {("focal_temperature_scaling", each) for each in CRITERIA} <= set(found)
    usual = [
        (fitted.method.name, fitted.criterion) for fitted in fit_methods(METHODS, *predictions(), settings=SETTINGS)
    ]
    assert usual == [each for each in found if each[1] in ("nll", "ece", None)]
    by_ece = fit_methods(METHODS, *predictions(), settings={**SETTINGS, "criteria": ("ece",)})
    assert {each.criterion for each in by_ece if each.method.criteria == ("nll",)} <= {"nll"}
    assert ("loss_implied_map", None) in found
    assert all(name == method.name for name, method in METHODS.items())


@pytest.mark.parametrize("criterion", ["ece", "adaptive_ece"])
def test_temperature_scaling_by_an_ece_is_the_row_of_gamma_0_of_the_same_search(criterion):
    logits, labels = predictions()
    keep = np.arange(400) % 5 > 0
    search = calibration.grid_search(logits, labels, GAMMAS, TEMPERATURES, criterion=criterion, num_bins=10, mask=keep)
    for fitted in fit_methods(GRID, logits, labels, settings={**SETTINGS, "criteria": (criterion,)}, mask=keep):
        gamma = 0 if fitted.method.name == "temperature_scaling" else None
        best = calibration.best_point(search, GAMMAS, TEMPERATURES, criterion=criterion, gamma=gamma)
        assert fitted.params["temperature"] == best.temperature
        assert fitted.params.get("gamma", 0) == best.gamma


@pytest.mark.parametrize("name", ["loss_implied_temperature_scaling", "loss_implied_map"])
def test_a_method_that_needs_the_gamma_of_the_training_asks_for_it(name):
    with pytest.raises(InputError, match=f"{name} needs the gamma .*: give trained_gamma"):
        calibration.fit(name, *predictions())


def test_a_fit_that_did_not_converge_warns_once_where_values_are_concrete():
    logits, _ = predictions()
    with pytest.warns(calibration.ConvergenceWarning) as told:
        found = calibration.fit("vector_scaling", logits, logits.argmax(1))
    assert [str(each.message) for each in told] == [
        "vector scaling: its fit ended at the end of the range searched (temperature 0.01): look at the labels, give"
        " more examples or take another method"
    ]
    right = jnp.asarray(logits.argmax(1))
    traced = jax.jit(lambda logits: calibration.fit("temperature_scaling", logits, right).params)(logits)
    np.testing.assert_allclose(traced["temperature"], found.params["temperature"])
    fit_methods(GRID, logits, np.asarray(right), settings=SETTINGS)  # of the command, which has a line of its own


def test_methods_that_promise_it_keep_the_class_and_the_others_say_so():
    logits, labels = predictions(300)
    labels = np.where(labels == 1, 2, labels)  # class 1 is predicted and never right
    changed = set()
    for fitted in fit_methods(METHODS, logits, labels, settings=SETTINGS):
        log_probs = np.asarray(fitted.predict_log_proba(logits))
        np.testing.assert_allclose(np.exp(np.float64(log_probs)).sum(axis=1), 1, atol=1e-5)
        if not np.array_equal(log_probs.argmax(axis=1), logits.argmax(axis=1)):
            changed.add(fitted.method.name)
    assert changed == {name for name, method in METHODS.items() if not method.keeps_class}


def test_methods_of_the_same_gamma_and_temperature_agree_to_the_bit():
    logits, _ = predictions(1000, 10)
    plain, focal = METHODS["temperature_scaling"], METHODS["focal_temperature_scaling"]
    for temperature in np.float32([0.3, 1.0, 1.37]):
        first = Fitted(plain, "nll", {"temperature": temperature, "converged": np.True_})
        second = Fitted(focal, "nll", {"gamma": np.float32(0), "temperature": temperature, "converged": np.True_})
        np.testing.assert_array_equal(first.predict_log_proba(logits), second.predict_log_proba(logits))
    uncalibrated = METHODS["uncalibrated"].apply({}, logits)
    one = {"temperature": np.float32(1)}
    np.testing.assert_array_equal(uncalibrated, plain.apply(one, logits))
    np.testing.assert_allclose(uncalibrated, jax.nn.log_softmax(logits), atol=2e-5)
    implied = METHODS["loss_implied_map"]
    np.testing.assert_array_equal(
        implied.apply({"gamma": np.float32(2)}, logits),
        focal.apply({"gamma": np.float32(2), "temperature": np.float32(1)}, logits),
    )


@pytest.mark.filterwarnings("ignore::focalgeo.calibration.ConvergenceWarning")
def test_a_temperature_at_the_end_of_its_grid_has_not_converged():
    logits, labels = predictions()
    fit = partial(calibration.fit, "temperature_scaling", logits, labels, criterion="ece")
    found = fit(temperatures=(0.5, 1.0))
    assert found.params["temperature"] == 1
    assert not found.converged
    assert fit(temperatures=(0.5,)).converged
    with pytest.raises(InputError, match=r"gamma 0.0 is not on the grid"):
        fit(gammas=(1.0,), temperatures=(0.5,))


@pytest.mark.filterwarnings("ignore::focalgeo.calibration.ConvergenceWarning")
def test_a_gamma_at_the_end_of_its_grid_has_not_converged():
    logits, labels = predictions()
    fit = partial(calibration.fit, "focal_temperature_scaling", logits, labels, temperatures=TEMPERATURES)
    for criterion in ("ece", "line_search"):
        for gammas in ((0.0, 0.01), (-0.01, 0.0), (0.0, -0.5, 0.5, 2.0)):
            found = fit(criterion=criterion, gammas=gammas)
            assert found.converged == (min(gammas) < found.params["gamma"] < max(gammas))
