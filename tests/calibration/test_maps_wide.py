"""The maps in float64, on random rows of 2 to 1,000 classes, and the class they keep."""

import jax
import numpy as np
import pytest
from reference.calibration import focal_temperature_scaling as oracle

from focalgeo.calibration import focal_calibration, focal_temperature_scaling

scaled = jax.jit(focal_temperature_scaling)
mapped = jax.jit(focal_calibration)


def assert_close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-300)


def test_every_record_in_float64(papers):
    with jax.enable_x64(True):
        for record in papers["multiclass_map"]:
            given = papers["multiclass_inputs"][record["name"]]
            logits = np.array(given["z"], float) if "z" in given else np.log(np.array(given["q"], float))
            got = np.asarray(mapped(logits, record["gamma"]))
            log_p = np.array(record.get("log_phat") or record["log_phat_first5"])
            # log(0.999...) stands in the file as 0: what it lost is in one_minus_phat_max
            log_p = np.where(np.arange(len(log_p)) == record["argmax"], np.log1p(-record["one_minus_phat_max"]), log_p)
            assert_close(got[: len(log_p)], log_p)
        for record in papers["focal_temperature_scaling"]:
            got = np.exp(scaled(np.array(record["logits"]), record["gamma"], record["T"]))
            assert_close(got, record["phat_T_then_focal"])


@pytest.mark.parametrize("num_classes", [2, 1000])
def test_random_rows_in_both_types(num_classes):
    row = (np.random.default_rng(num_classes).normal(size=num_classes) * 5).astype(np.float32)
    gamma, temperature = np.float32(2.3), np.float32(0.8)
    expected = oracle(row, gamma, temperature)
    np.testing.assert_allclose(scaled(row, gamma, temperature), expected, rtol=2e-6, atol=2e-5)
    with jax.enable_x64(True):
        got = scaled(row.astype(float), np.float64(gamma), np.float64(temperature))
        assert_close(got, expected)
