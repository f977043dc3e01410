"""The maps in float64, on random rows of 2 to 1,000 classes, and the class they keep."""

import jax
import numpy as np

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
