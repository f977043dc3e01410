import jax
import numpy as np
import pytest
from scipy import optimize, special

from focalgeo.calibration import fit, fit_temperature
from focalgeo.calibration.maps import (
    ensemble_temperature_scaling,
    focal_calibration,
    loss_implied_temperature_scaling,
    temperature_scaling,
)

pytestmark = pytest.mark.filterwarnings("ignore::focalgeo.calibration.ConvergenceWarning")


def fit_ensemble_temperature(logits, labels, mask=None):
    return fit("ensemble_temperature_scaling", logits, labels, mask=mask).params


def fit_loss_implied_temperature(logits, labels, mask=None, *, trained_gamma):
    return fit("loss_implied_temperature_scaling", logits, labels, mask=mask, trained_gamma=trained_gamma).params


SHARES = np.float32([0.6, 0.3, 0.1])


def drawn(num_examples=800, classes=5, noise=0.15):
    """Labels of overconfident logits, a share of them drawn without regard to these."""
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(num_examples, classes)) * 5).astype(np.float32)
    labels = np.argmax(logits * 0.5 + rng.gumbel(size=logits.shape), axis=1)
    replaced = rng.random(num_examples) < noise
    return logits, np.where(replaced, rng.integers(0, classes, num_examples), labels).astype(np.int32)


def mixture(logits, temperature, shares):
    logits = logits.astype(float)
    scaled, plain = special.softmax(logits / temperature, axis=1), special.softmax(logits, axis=1)
    return shares[0] * scaled + shares[1] * plain + shares[2] / logits.shape[1]


def test_ensemble_is_the_mixture_and_keeps_the_class():
    logits, _ = drawn()
    out = ensemble_temperature_scaling(logits, 2.5, SHARES)
    np.testing.assert_allclose(out, np.log(mixture(logits, 2.5, SHARES)), atol=2e-5)
    np.testing.assert_array_equal(np.argmax(out, axis=1), np.argmax(logits, axis=1))


def least_nll(parts):
    """The least NLL over the shares of parts [3, examples], by scipy in float64 from several starts."""
    starts = ([1 / 3, 1 / 3, 1 / 3], [0.9, 0.05, 0.05], [0.1, 0.8, 0.1])
    found = [
        optimize.minimize(
            lambda shares: -np.log(shares @ parts).mean(),
            start,
            jac=lambda shares: -(parts / (shares @ parts)).mean(axis=1),
            method="SLSQP",
            bounds=[(0, 1)] * 3,
            constraints={"type": "eq", "fun": lambda shares: shares.sum() - 1, "jac": np.ones_like},
            options={"ftol": 1e-14, "maxiter": 500},
        ).fun
        for start in starts
    ]
    return min(found)


@pytest.mark.parametrize("calibrated_at", [0.6, 1.02])  # 1: the first two parts are nearly the same
@pytest.mark.parametrize("num_examples", [300, 5000])
def test_ensemble_fit_converges_whatever_the_temperature(num_examples, calibrated_at):
    for seed in range(2):
        rng = np.random.default_rng(seed)
        logits = (rng.normal(size=(num_examples, 5)) * 3).astype(np.float32)
        labels = np.argmax(logits / calibrated_at + rng.gumbel(size=logits.shape), axis=1).astype(np.int32)
        params = fit_ensemble_temperature(logits, labels)
        assert params["converged"]
        assert (params["shares"] >= 0).all()
        own, temperature = np.arange(num_examples), float(params["temperature"])
        parts = np.stack([mixture(logits, temperature, corner)[own, labels] for corner in np.eye(3)])
        shares = np.float64(params["shares"])
        assert -np.log(shares / shares.sum() @ parts).mean() <= least_nll(parts) + 1e-6


def test_ensemble_fit_is_never_worse_than_its_temperature():
    logits, labels = drawn(noise=0.0)
    params = fit_ensemble_temperature(logits, labels)
    out = np.asarray(ensemble_temperature_scaling(logits, params["temperature"], params["shares"]))
    assert -out[np.arange(len(labels)), labels].mean() <= fit_temperature(logits, labels).nll + 2e-7


def test_loss_implied_temperature_is_the_map_then_a_temperature():
    logits, labels = drawn()
    expected = temperature_scaling(focal_calibration(jax.nn.log_softmax(logits), 2.0), 1.7)
    np.testing.assert_allclose(loss_implied_temperature_scaling(logits, 2.0, 1.7), expected, atol=2e-5)
    params = fit_loss_implied_temperature(logits, labels, trained_gamma=2.0)
    alone = fit_temperature(focal_calibration(logits, 2.0), labels)
    assert params["gamma"] == 2
    assert params["converged"]
    np.testing.assert_allclose(params["temperature"], alone.temperature, rtol=1e-5)
    plain = fit_loss_implied_temperature(logits, labels, trained_gamma=0.0)
    np.testing.assert_allclose(plain["temperature"], fit_temperature(logits, labels).temperature, rtol=1e-4)


def fit_loss_implied(logits, labels, mask=None):
    return fit_loss_implied_temperature(logits, labels, mask, trained_gamma=2.0)


@pytest.mark.parametrize("fit", [fit_ensemble_temperature, fit_loss_implied])
class TestBothFits:
    def test_a_mask_is_a_subset_and_counts_are_repeats(self, fit):
        logits, labels = drawn(300)
        count = np.arange(300) % 3
        expected = fit(np.repeat(logits, count, axis=0), np.repeat(labels, count))
        logits[count == 0] = np.nan
        for name, value in fit(logits, labels, count).items():
            np.testing.assert_allclose(value, expected[name], atol=2e-3)

    def test_predictions_that_are_all_right_end_at_the_bracket(self, fit):
        logits = np.eye(4, dtype=np.float32)[np.arange(200) % 4] * 5
        params = fit(logits, np.argmax(logits, axis=1).astype(np.int32))
        assert not params["converged"]
        assert all(np.isfinite(value).all() for value in params.values())
