import jax
import numpy as np
import pytest

from focalgeo.calibration import binary_focal_calibration, focal_calibration

binary = jax.jit(binary_focal_calibration)


@pytest.mark.parametrize("wide", [False, True])
def test_every_record(papers, wide):
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if wide else {"rtol": 2e-6, "atol": 2e-5}
    dtype = np.float64 if wide else np.float32
    with jax.enable_x64(wide):
        for given, value, name in (("logit_q", "logit_phat", "binary_map"), ("s", "fc_logit", "binary_map_logit")):
            rows = papers[name]
            s, gamma, expected = (np.array([row[key] for row in rows], float) for key in (given, "gamma", value))
            np.testing.assert_allclose(binary(s.astype(dtype), gamma.astype(dtype)), expected, **tolerance)


def test_slopes(papers):
    with jax.enable_x64(True):
        for row in papers["binary_map_slopes"]:
            slope = jax.grad(binary_focal_calibration)(0.0, row["gamma"])
            np.testing.assert_allclose(slope, row["slope_at_0"], rtol=1e-12)
            np.testing.assert_allclose(1 / slope, row["T_at_0"], rtol=1e-12)
            far = binary(300.0, row["gamma"])
            np.testing.assert_allclose(far - row["slope_at_inf"] * 300, row["intercept_at_inf"], atol=1e-11)
        for row in papers["negative_gamma"]["slopes"]:
            if row["gamma"] > -1:
                slope = jax.grad(binary_focal_calibration)(0.0, row["gamma"])
                np.testing.assert_allclose(slope, row["slope0"], rtol=1e-12)


def test_odd_and_the_two_class_map():
    s = np.linspace(-40, 40, 81, dtype=np.float32)
    for gamma in (-0.5, 0.7, 5.0):
        np.testing.assert_array_equal(binary(s, gamma), -binary(-s, gamma))
        log_p = focal_calibration(np.stack([s, 0 * s], axis=1), gamma)
        np.testing.assert_allclose(binary(s, gamma), log_p[:, 0] - log_p[:, 1], rtol=2e-6, atol=2e-5)
