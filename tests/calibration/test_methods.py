from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focalgeo import calibration
from focalgeo.calibration import (
    DEFAULT_METRICS,
    METHODS,
    METRICS,
    Fitted,
    Method,
    configured,
    fit_methods,
    searched_members,
    usable,
)
from focalgeo.calibration.search import TABLE_NUMBERS
from focalgeo.types import InputError

GAMMAS = (0.0, -0.5, 0.5, 2.0)
TEMPERATURES = tuple(np.arange(0.25, 4, 0.25))
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
    "vector_scaling", "Vector scaling", fit_vector_scaling, apply_vector_scaling, criteria=("nll",), keeps_class=False
)


def test_a_new_method_is_a_function_pair_and_stands_beside_the_others():
    logits, labels = predictions()
    fits = fit_methods({**METHODS, "vector_scaling": VECTOR_SCALING}, logits, labels, settings=SETTINGS)
    names = [(fitted.method.name, fitted.criterion) for fitted in fits]
    assert names[-1] == ("vector_scaling", "nll")
    nll = {name: calibration.nll(fitted.log_probs(logits), labels) for name, fitted in zip(names, fits, strict=True)}
    assert nll["vector_scaling", "nll"] < nll["temperature_scaling", "nll"] < nll["uncalibrated", None]
    compiled = jax.jit(VECTOR_SCALING.fit, static_argnames="criterion")(logits, labels, criterion="nll")
    np.testing.assert_allclose(compiled["weight"], fits[-1].params["weight"], rtol=1e-4)
    np.testing.assert_allclose(
        jax.vmap(VECTOR_SCALING.apply, (None, 0))(compiled, logits[None])[0], fits[-1].log_probs(logits), atol=1e-3
    )


def test_every_method_is_fitted_by_each_of_its_criteria_in_the_order_of_the_table():
    fits = fit_methods(METHODS, *predictions(), settings=SETTINGS)
    found = [(fitted.method.name, fitted.criterion) for fitted in fits]
    assert found == [(name, each) for name, method in METHODS.items() for each in method.criteria or (None,)]
    assert found[:5] == [
        ("uncalibrated", None),
        ("temperature_scaling", "ece"),
        ("temperature_scaling", "nll"),
        ("focal_temperature_scaling", "ece"),
        ("focal_temperature_scaling", "nll"),
    ]
    assert ("loss_implied_map", None) in found
    assert all(name == method.name for name, method in METHODS.items())


@pytest.mark.parametrize("binning", ["ece", "adaptive_ece"])
def test_temperature_scaling_is_the_row_of_gamma_0_of_the_same_search(binning):
    logits, labels = predictions()
    keep = np.arange(400) % 5 > 0
    search = calibration.grid_search(logits, labels, GAMMAS, TEMPERATURES, criterion=binning, num_bins=10, mask=keep)
    fits = fit_methods(METHODS, logits, labels, settings={**SETTINGS, "binning": binning}, mask=keep)
    for fitted in fits[1:5]:
        plain = fitted.method.name == "temperature_scaling"
        grid = {"criterion": fitted.criterion, "gamma": 0 if plain else None}
        best = calibration.best_point(search, GAMMAS, TEMPERATURES, **grid)
        assert fitted.params["temperature"] == best.temperature
        assert fitted.params.get("gamma", 0) == best.gamma
        assert fitted.converged
        alone = configured(fitted.method, {}).fit(logits, labels, criterion=fitted.criterion, mask=keep)
        assert alone == fitted.params


def test_methods_are_fitted_and_applied_to_all_members_of_a_sweep_at_once():
    members = [predictions(seed=seed) for seed in range(3)]
    logits, labels = (np.stack(arrays) for arrays in zip(*members, strict=True))
    methods = [configured(method, SETTINGS) for method in METHODS.values()]
    for method, criterion in [(each, criterion) for each in methods for criterion in each.criteria or (None,)]:
        fit = partial(method.fit, criterion=criterion)
        params = jax.vmap(fit)(logits, labels)
        log_probs = jax.vmap(method.apply)(params, logits)
        for i in range(3):
            expected = fit(logits[i], labels[i])
            assert {name: values[i] for name, values in params.items()} == expected
            np.testing.assert_allclose(log_probs[i], method.apply(expected, logits[i]), atol=1e-5)


def test_methods_of_the_same_gamma_and_temperature_agree_to_the_bit():
    logits, _ = predictions(1000, 10)
    plain, focal = METHODS["temperature_scaling"], METHODS["focal_temperature_scaling"]
    for temperature in np.float32([0.3, 1.0, 1.37]):
        first = Fitted(plain, "nll", {"temperature": temperature, "converged": np.True_})
        second = Fitted(focal, "nll", {"gamma": np.float32(0), "temperature": temperature, "converged": np.True_})
        np.testing.assert_array_equal(first.log_probs(logits), second.log_probs(logits))
    uncalibrated = METHODS["uncalibrated"].apply({}, logits)
    one = {"temperature": np.float32(1)}
    np.testing.assert_array_equal(uncalibrated, plain.apply(one, logits))
    np.testing.assert_allclose(uncalibrated, jax.nn.log_softmax(logits), atol=2e-5)
    implied = METHODS["loss_implied_map"]
    np.testing.assert_array_equal(
        implied.apply(implied.fit(logits, None, trained_gamma=2.0), logits),
        focal.apply({"gamma": np.float32(2), "temperature": np.float32(1)}, logits),
    )


def test_a_temperature_at_the_end_of_its_grid_has_not_converged():
    logits, labels = predictions()
    found = METHODS["temperature_scaling"].fit(logits, labels, criterion="nll", temperatures=(0.5, 1.0))
    assert found["temperature"] == 1
    assert not found["converged"]
    assert METHODS["temperature_scaling"].fit(logits, labels, criterion="nll", temperatures=(0.5,))["converged"]
    with pytest.raises(InputError, match=r"gamma 0.0 is not on the grid"):
        METHODS["temperature_scaling"].fit(logits, labels, criterion="nll", gammas=(1.0,), temperatures=(0.5,))


def test_the_loss_implied_map_needs_the_gamma_of_the_training():
    assert list(usable(METHODS, {"trained_gamma": None})) == [name for name in METHODS if name != "loss_implied_map"]
    assert usable(METHODS, {"trained_gamma": 0.0}) == METHODS


def test_metrics_of_the_table_are_those_of_the_functions():
    logits, labels = predictions()
    log_probs = jax.nn.log_softmax(logits)
    got = calibration.all_metrics(log_probs, labels, num_bins=7, names=METRICS)
    assert list(got) == list(METRICS)
    assert list(METRICS)[:5] == list(DEFAULT_METRICS) == list(calibration.all_metrics(log_probs, labels))
    split = calibration.brier_split(log_probs, labels, num_bins=7)
    assert (got.pop("brier_calibration"), got.pop("brier_refinement")) == split[:2]
    share, of_share = calibration.high_confidence(log_probs, labels)
    assert 0 < share < 1
    assert (got.pop("high_confidence"), got.pop("high_confidence_accuracy")) == (share, of_share)
    for name, value in got.items():
        bins = {"num_bins": 7} if METRICS[name].binned else {}
        assert value == getattr(calibration, name)(log_probs, labels, **bins), name
    higher = [name for name, entry in METRICS.items() if entry.best == "high"]
    assert higher == ["accuracy", "high_confidence", "high_confidence_accuracy", "auroc"]


def test_names_of_metrics_that_are_none_are_refused():
    logits, labels = predictions()
    log_probs = jax.nn.log_softmax(logits)
    with pytest.raises(InputError, match="a metric is 'aucr': did you mean 'aurc'"):
        calibration.all_metrics(log_probs, labels, names=["ece", "aucr"])
    with pytest.raises(InputError, match=r"metrics are 'ece': give a list of names, \['ece'\]"):
        calibration.all_metrics(log_probs, labels, names="ece")


@pytest.mark.parametrize("binning", ["ece", "adaptive_ece"])
def test_each_fit_is_the_best_of_its_part_of_the_grid(binning):
    logits, labels = predictions(150, 3)
    metrics = {"ece": partial(getattr(calibration, binning), num_bins=10), "nll": calibration.nll}

    @jax.jit
    def measured(gamma, temperature):
        log_probs = calibration.focal_temperature_scaling(logits, gamma, temperature)
        return {name: metric(log_probs, labels) for name, metric in metrics.items()}

    methods = {name: METHODS[name] for name in ("temperature_scaling", "focal_temperature_scaling")}
    for fitted in fit_methods(methods, logits, labels, settings={**SETTINGS, "binning": binning}):
        allowed = np.float32(GAMMAS if fitted.method.name == "focal_temperature_scaling" else [0.0])
        assert fitted.params["gamma"] in allowed
        grid = [(gamma, t) for gamma in allowed for t in np.float32(TEMPERATURES)]
        best = min(float(measured(gamma, t)[fitted.criterion]) for gamma, t in grid)
        reached = measured(fitted.params["gamma"], fitted.params["temperature"])[fitted.criterion]
        np.testing.assert_allclose(reached, best, rtol=1e-5)


def test_masked_examples_take_no_part_in_a_fit():
    logits, labels = predictions(200, 3)
    mask = np.arange(200) % 3 > 0
    masked = fit_methods(METHODS, logits, labels, settings=SETTINGS, mask=mask)
    alone = fit_methods(METHODS, logits[mask], labels[mask], settings=SETTINGS)
    assert [each.params for each in masked] == [each.params for each in alone]
    others = fit_methods(METHODS, logits[mask], np.roll(labels[mask], 1), settings=SETTINGS)
    assert [each.params for each in masked] != [each.params for each in others]


@pytest.mark.parametrize("at_once", [1, 2, 8])
def test_searches_of_members_in_one_program_are_those_of_each_alone(monkeypatch, at_once):
    logits = np.stack([predictions(60, seed=seed)[0] for seed in range(3)])
    labels = predictions(60)[1]
    settings = {"gammas": GAMMAS, "temperatures": TEMPERATURES, "num_bins": 10}
    alone = searched_members(logits, labels, settings=settings)
    monkeypatch.setattr("focalgeo.calibration.methods.is_plain", lambda: True)
    monkeypatch.setattr("focalgeo.calibration.methods._MOST_NUMBERS", at_once * TABLE_NUMBERS)
    together = searched_members(logits, labels, settings=settings)
    assert len(together) == len(alone) == 3
    for found, expected in zip(together, alone, strict=True):
        for name, value in expected._asdict().items():
            np.testing.assert_allclose(getattr(found, name), value, atol=1e-5)
