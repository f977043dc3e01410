import json

import jax
import numpy as np
import pytest

from focalgeo.calibration import (
    METHODS,
    Fitted,
    SavedCalibrator,
    calibrator_json,
    fit,
    focal_temperature_scaling,
    read_calibrator,
    saved_calibrator,
)
from focalgeo.types import InputError


def write(path, calibrator, **options):
    path.write_text(json.dumps(calibrator_json(calibrator, inputs={"val": {"checksum": "sha256:1"}}, **options)))


def test_the_calibrator_reads_back_and_another_file_does_not(tmp_path):
    path = tmp_path / "calibrator.json"
    calibrator = SavedCalibrator("focal_temperature_scaling", "nll", 7, {"gamma": -0.5, "temperature": 1.25})
    write(path, calibrator)
    assert read_calibrator(path) == calibrator
    found = json.loads(path.read_text())
    assert (found["format"], found["version"]) == ("focalgeo-calibrator", 2)
    for change, says in (
        ({"version": 1}, "is of version 1, this focalgeo reads 2"),
        ({"format": "other"}, "is no calibrator"),
        ({"parameters": {"gamma": 1.0, "temperature": 0}}, "out of range"),
        ({"parameters": {"gamma": -1.0, "temperature": 1}}, "out of range"),
        ({"parameters": {"gamma": "one", "temperature": 1}}, "out of range"),
        ({"parameters": {"gamma": 1.0}}, "out of range"),
        ({"parameters": 1.0}, "out of range"),
        ({"parameters": {"gamma": 1.0, "temperature": -1}}, "out of range"),
        ({"parameters": {"gamma": 1.0, "temperature": [1.0]}}, "out of range"),
        ({"parameters": {"gamma": 10**400, "temperature": 1}}, "out of range"),
        ({"parameters": {"gamma": 1e17, "temperature": 1}}, "out of range"),
        ({"parameters": {"gamma": float("nan"), "temperature": 1}}, "is no JSON"),
        ({"criterion": ["ece"]}, "criterion is"),
        ({"num_classes": 1}, "num_classes is 1, out of range"),
        ({"num_classes": 10**12}, "num_classes is 1000000000000, out of range"),
        ({"method": "temperature"}, "did you mean 'temperature_scaling'"),
    ):
        path.write_text(json.dumps({**found, **change}))
        with pytest.raises(InputError, match=says):
            read_calibrator(path)
    path.write_text(json.dumps({name: value for name, value in found.items() if name != "criterion"}))
    with pytest.raises(InputError, match="has no criterion"):
        read_calibrator(path)
    path.write_text("{")
    with pytest.raises(InputError, match="is no JSON"):
        read_calibrator(path)
    path.write_text("[" * 10**5)
    with pytest.raises(InputError, match="is no JSON"):
        read_calibrator(path)
    with pytest.raises(InputError, match="No such file"):
        read_calibrator(tmp_path / "nowhere.json")
    with pytest.raises(InputError, match="is a folder: give a file"):
        read_calibrator(tmp_path)


@pytest.mark.parametrize(
    ("logits", "says"),
    [
        ([[0.0, np.nan, 1.0]], "logits are not all finite"),
        ([["a", "b", "c"]], "logits are of type <U1"),
        ([[1.0], [1.0, 2.0]], "logits are no array"),
        ([1.0, 2.0, 3.0], r"logits have shape \(3,\)"),
    ],
)
def test_logits_that_are_none_are_refused(logits, says):
    with pytest.raises(InputError, match=says):
        SavedCalibrator("temperature_scaling", "ece", 3, {"temperature": 1.5}).log_probs(logits)


@pytest.mark.parametrize("name", ["temperature_scaling", "focal_temperature_scaling", "loss_implied_map"])
def test_a_method_is_saved_by_its_parameters_and_applied_as_it_was_fitted(tmp_path, name):
    params = {"gamma": np.float32(0.51), "temperature": np.float32(1.37), "converged": np.True_}
    fitted = Fitted(METHODS[name], None, params)
    calibrator = saved_calibrator(fitted, 3)
    assert calibrator.parameters == {"gamma": 0.51, "temperature": 1.37}
    write(tmp_path / "calibrator.json", calibrator, fits=[fitted])
    logits = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    got = read_calibrator(tmp_path / "calibrator.json").log_probs(logits)
    np.testing.assert_array_equal(got, fitted.predict_log_proba(logits))
    if name == "focal_temperature_scaling":
        np.testing.assert_allclose(got, focal_temperature_scaling(logits, 0.51, 1.37), atol=1e-6)
    (listed,) = json.loads((tmp_path / "calibrator.json").read_text())["fits"]
    assert listed == {"method": name, "criterion": None, "parameters": {**calibrator.parameters, "converged": True}}


def test_parameters_may_be_arrays_and_logits_of_other_classes_are_refused(monkeypatch, tmp_path):
    scaling = METHODS["uncalibrated"]._replace(
        name="vector_scaling", apply=lambda p, z: jax.nn.log_softmax(z * p["weight"][None])
    )
    monkeypatch.setitem(METHODS, "vector_scaling", scaling)
    calibrator = saved_calibrator(Fitted(scaling, "nll", {"weight": np.float32([1, 0.1, 2])}), 3)
    assert calibrator.parameters == {"weight": [1, 0.1, 2]}
    write(tmp_path / "calibrator.json", calibrator)
    found = read_calibrator(tmp_path / "calibrator.json")
    wanted = np.float32([1, 0.1, 2]) - np.log(np.exp([1, 0.1, 2]).sum())
    np.testing.assert_allclose(found.log_probs(np.ones((1, 3), np.float32))[0], wanted, rtol=1e-6)
    with pytest.raises(InputError, match=r"logits have shape \(1, 4\): give \[examples, 3\]"):
        found.log_probs(np.ones((1, 4)))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_reads_back_and_predicts_the_same(name, tmp_path):
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(200, 4)) * 3).astype(np.float32)
    labels = np.argmax(logits / 2 + rng.gumbel(size=logits.shape), axis=1)
    options = {"trained_gamma": 2.0} if "trained_gamma" in METHODS[name].options else {}
    fitted = fit(name, logits, labels, **options)
    path = tmp_path / "calibrator.json"
    write(path, saved_calibrator(fitted, 4))
    np.testing.assert_array_equal(read_calibrator(path).log_probs(logits), fitted.predict_log_proba(logits))
