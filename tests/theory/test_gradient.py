import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import theory as oracle

from focalgeo.losses import focal_loss
from focalgeo.theory import focal_slope, gradient_ratio, logit_curvature_ratio
from focalgeo.types import InputError

GAMMAS = np.float32([0, 0.25, 0.5, 1, 2, 3, 5, 7])


def column(records, name):
    return np.array([record[name] for record in records])


def close(got, expected, rtol=1e-5, atol=0.0):
    np.testing.assert_allclose(np.asarray(got, float), expected, rtol=rtol, atol=atol)


def test_equals_differentiation_in_high_precision():
    p = np.float32([1e-6, 0.01, 0.19, 0.5, 0.9, 0.9999])
    grid, gammas = (axis.ravel() for axis in np.meshgrid(p, GAMMAS))
    close(focal_slope(grid, gammas), [oracle.derivative(a, g) for a, g in zip(grid, gammas, strict=True)])
    expected = [oracle.logit_curvature_ratio(a, g) for a, g in zip(grid, gammas, strict=True)]
    close(logit_curvature_ratio(grid, gammas), expected, 1e-5, 1e-5)


def test_records_of_the_gradient_ratio(papers):
    records = papers["g_samples"]
    p, gamma, g = (column(records, name) for name in ("p", "gamma", "g"))
    complement = 1 - p  # in float64: float32 p = 0.9999 is not the record's
    close(gradient_ratio(p, gamma, complement=complement), g, 1e-5)


def test_records_of_peak_and_crossing(papers):
    for record in papers["g_peak_and_crossing"]:
        gamma, peak = record["gamma"], record["p_peak"]
        close(gradient_ratio(peak, gamma), record["g_peak"], 1e-6)
        close(gradient_ratio(record["p0_where_g_eq_1"], gamma), 1, 2e-6)
        below, above = jax.vmap(jax.grad(gradient_ratio), (0, None))(np.float32([peak - 1e-4, peak + 1e-4]), gamma)
        assert below > 0 > above
        assert peak < 0.2032


def test_records_of_both_derivatives_and_their_limits(papers):
    records = papers["focal_derivatives_in_p"]
    p, gamma = column(records, "p"), column(records, "gamma")
    close(focal_slope(p, gamma, complement=1 - p), column(records, "dFL_dp"), 1e-5)
    with jax.enable_x64(True):
        for record in papers["derivative_limits_p_to_1"]:
            gamma, tiny = np.float64(record["gamma"]), np.float64(1e-20)
            slope = focal_slope(np.float64(1), gamma, complement=tiny)
            close(slope, record["dFL_at_1_minus_1e_20"], 1e-12)
            close(slope, -(1 + gamma) * tiny**gamma, 1e-12)
            close(tiny * focal_slope(tiny, gamma), record["p_times_dFL_at_1e_20"], 1e-12)


def test_values_at_the_ends():
    np.testing.assert_array_equal(gradient_ratio(np.ones(3), np.array([2, 0, -0.5])), [0, 1, np.inf])
    np.testing.assert_array_equal(gradient_ratio(0.0, GAMMAS), 1)
    np.testing.assert_array_equal(focal_slope(np.ones(3), np.array([2, 0, -0.5])), [0, -1, -np.inf])


def test_records_of_the_logit_curvature_ratio(papers):
    for record in papers["binary_logit_curvature_ratio_focal_over_CE"]:
        gamma = record["gamma"]
        for p, name in ((0.5, "ratio_p05"), (0.9, "ratio_p09"), (0.99, "ratio_p099")):
            close(logit_curvature_ratio(p, gamma, complement=1 - p), record[name], 1e-5)
        sign = record["curvature_negative_below_p"]
        assert logit_curvature_ratio(sign * 0.999, gamma) < 0 < logit_curvature_ratio(sign * 1.001, gamma)
        close(logit_curvature_ratio(np.array(record["ratio_eq_1_at_p"]), gamma), 1, 0, 1e-5)
        p = np.arange(1, 2000) / 2000
        ratio = np.asarray(logit_curvature_ratio(p, gamma))
        close(ratio.max(), record["max_ratio"], 1e-5)
        assert abs(p[ratio.argmax()] - record["max_ratio_at_p"]) <= 5e-4


def test_curvature_of_the_loss_is_not_the_frozen_factor():
    # Kimura & Naganuma, Eq. 28, keep (1-p)^gamma fixed; for an undecided model the curvature rises instead
    assert logit_curvature_ratio(0.5, 2.0) > 1 > 0.5**2
    second = jax.grad(jax.grad(lambda s: focal_loss(jnp.stack([s, jnp.float32(0)]), 0, 2.0)))(jnp.float32(0.4))
    p = jax.nn.sigmoid(0.4)
    close(logit_curvature_ratio(p, 2.0) * p * (1 - p), second, 1e-5)


def test_derivatives_are_finite_at_the_end_and_numbers_out_of_range_are_refused():
    assert np.isfinite(jax.grad(gradient_ratio, argnums=1)(1.0, 0.5))
    for p, gamma in ((1.1, 1.0), (np.nan, 1.0), (0.5, -2.0)):
        with pytest.raises(InputError):
            gradient_ratio(p, gamma)
