import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import theory as oracle

from focalgeo.losses import cross_entropy, focal_loss
from focalgeo.theory import focal_curvature, focal_slope, gradient_ratio, gradient_ratio_slope, logit_curvature_ratio
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
    close(focal_curvature(grid, gammas), [oracle.derivative(a, g, 2) for a, g in zip(grid, gammas, strict=True)])
    expected = [oracle.logit_curvature_ratio(a, g) for a, g in zip(grid, gammas, strict=True)]
    close(logit_curvature_ratio(grid, gammas), expected, 1e-5, 1e-5)


def test_records_of_the_gradient_ratio(papers):
    records = papers["g_samples"]
    p, gamma, g = (column(records, name) for name in ("p", "gamma", "g"))
    complement = 1 - p  # in float64: float32 p = 0.9999 is not the record's
    close(gradient_ratio(p, gamma, complement=complement), g, 1e-5)
    close(gradient_ratio_slope(p, gamma, complement=complement), column(records, "dg_dp"), 1e-5, 1e-5)


def test_records_of_peak_and_crossing(papers):
    for record in papers["g_peak_and_crossing"]:
        gamma, peak = record["gamma"], record["p_peak"]
        close(gradient_ratio(peak, gamma), record["g_peak"], 1e-6)
        close(gradient_ratio(record["p0_where_g_eq_1"], gamma), 1, 2e-6)
        below, above = gradient_ratio_slope(np.array([peak - 1e-4, peak + 1e-4]), gamma)
        assert below > 0 > above
        assert peak < 0.2032


def test_records_of_both_derivatives_and_their_limits(papers):
    records = papers["focal_derivatives_in_p"]
    p, gamma = column(records, "p"), column(records, "gamma")
    close(focal_slope(p, gamma, complement=1 - p), column(records, "dFL_dp"), 1e-5)
    close(focal_curvature(p, gamma, complement=1 - p), column(records, "d2FL_dp2"), 1e-5)
    with jax.enable_x64(True):
        for record in papers["derivative_limits_p_to_1"]:
            gamma, tiny = np.float64(record["gamma"]), np.float64(1e-20)
            slope = focal_slope(np.float64(1), gamma, complement=tiny)
            close(slope, record["dFL_at_1_minus_1e_20"], 1e-12)
            close(slope, -(1 + gamma) * tiny**gamma, 1e-12)
            close(focal_curvature(np.float64(1), gamma, complement=tiny), record["d2FL_at_1_minus_1e_20"], 1e-12)
            close(tiny * focal_slope(tiny, gamma), record["p_times_dFL_at_1e_20"], 1e-12)


def test_values_at_the_ends():
    np.testing.assert_array_equal(gradient_ratio(np.ones(3), np.array([2, 0, -0.5])), [0, 1, np.inf])
    np.testing.assert_array_equal(gradient_ratio(0.0, GAMMAS), 1)
    np.testing.assert_array_equal(focal_slope(np.ones(3), np.array([2, 0, -0.5])), [0, -1, -np.inf])
    np.testing.assert_array_equal(focal_curvature(np.ones(3), np.array([0.5, 1, 1.5])), [np.inf, 2, 0])


def test_loss_is_convex_for_gamma_of_0_and_more_only(papers):
    p = np.linspace(0.0025, 0.999999, 4000)
    for record in papers["convexity_min_second_derivative"]:
        with jax.enable_x64(True):  # 1e-52 is positive too
            gamma = np.float64(record["gamma"])
            least = float(focal_curvature(p, gamma).min())
            at_record = float(focal_curvature(np.float64(record["at_p"]), gamma))
        assert (least > 0) == (record["gamma"] >= 0)
        close(at_record, record["min_d2"], 1e-9)
        close(least, record["min_d2"], 1e-3)


def test_gradient_identity_of_a_logistic_model(papers):
    record = papers["logistic_gradient_identity"]
    w, x = jnp.asarray(record["w"], jnp.float32), jnp.asarray(record["x"], jnp.float32)

    def gradient(loss, *hyper):
        return jax.grad(lambda v: loss(jnp.stack([jnp.float32(0), jnp.dot(v, x)]), record["y"], *hyper))(w)

    close(gradient(cross_entropy), record["ce_grad"], 1e-5)
    for gamma, expected in record["fl_grad"].items():
        close(gradient(focal_loss, float(gamma)), expected, 1e-5)
        close(gradient_ratio(record["p"], float(gamma)) * gradient(cross_entropy), expected, 1e-5)


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


def test_derivatives_and_transforms():
    p = np.float32([0.01, 0.3, 0.8])
    slopes = jax.jit(jax.vmap(jax.grad(gradient_ratio), in_axes=(0, None)))(p, np.float32(2))
    close(slopes, gradient_ratio_slope(p, 2.0), 1e-5, 1e-5)
    assert np.isfinite(jax.grad(gradient_ratio, argnums=1)(1.0, 0.5))


@pytest.mark.parametrize(
    ("p", "gamma", "word"), [(1.1, 1.0, "p is 1.1"), (np.nan, 1.0, "p is nan"), (0.5, -2.0, "gamma")]
)
def test_bad_input_is_one_line(p, gamma, word):
    with pytest.raises(InputError, match=word) as error:
        gradient_ratio(p, gamma)
    assert "\n" not in str(error.value)
