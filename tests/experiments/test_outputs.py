"""Outputs of a finished job's network, and the best temperatures of outputs."""

import numpy as np
import pytest

from experiments import jobs, outputs
from focalgeo import calibration, records


@pytest.mark.parametrize("select", ["last", "best_val"])
def test_the_network_is_the_one_that_the_job_predicted_with(tmp_path, select):
    fields = {
        "optimizer.select": select,
        "optimizer.epochs": 3,
        "curvature.examples": 0,
        "evaluation.num_resamples": 20,
    }
    jobs.run("configs/digits.py:quick", tmp_path / "w", fields)
    logits, labels = outputs.train_outputs(tmp_path / "w", 100, split="val")
    predicted = records.read_predictions(tmp_path / "w", "val")
    np.testing.assert_allclose(logits, predicted.logits[:100], atol=1e-4)
    np.testing.assert_array_equal(labels, predicted.labels[:100])
    logits, labels = outputs.train_outputs(tmp_path / "w", 200)
    assert logits.shape == (200, 10)
    assert (logits.argmax(-1) == labels).mean() > 0.3


def test_the_temperatures_are_those_of_the_fits():
    rng = np.random.default_rng(0)
    logits = (3 * rng.standard_normal((600, 5))).astype(np.float32)
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(-1).astype(np.int32)
    found = outputs.temperatures(logits, labels, (0.0, 1.0))
    assert found.keys() == {"nll", "ece", "adaptive_ece"}
    np.testing.assert_allclose(found["nll"][0], 2, rtol=0.15)
    assert found["nll"][1] > found["nll"][0]  # the map of gamma 1 sharpens
    plain = calibration.fit("temperature_scaling", logits, labels).parameters["temperature"]
    np.testing.assert_allclose(found["nll"][0], plain, atol=0.006)
