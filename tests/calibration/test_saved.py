"""calibrator.json: what is written is read back and predicts the same, and what is corrupt is one line."""

import functools
import json

import numpy as np
import pytest

from focalgeo.calibration import METHODS, Fitted, calibrator_json, fit, read_calibrator
from focalgeo.types import InputError

FOCAL = Fitted(METHODS["focal_temperature_scaling"], "nll", {"gamma": np.float32(-0.5), "temperature": 1.25}, 7)


def write(path, fitted, **options):
    path.write_text(json.dumps(calibrator_json(fitted, **options)))


def refused(path, found, says):
    path.write_text(json.dumps(found))
    with pytest.raises(InputError, match=says) as raised:
        read_calibrator(path)
    assert "\n" not in str(raised.value)


def test_the_calibrator_reads_back_as_it_was(tmp_path):
    path = tmp_path / "calibrator.json"
    path.write_text(FOCAL.to_json())
    found = read_calibrator(path)
    assert found.method is FOCAL.method
    assert (found.criterion, found.num_classes, found.converged) == ("nll", 7, True)
    assert found.parameters == {"gamma": -0.5, "temperature": 1.25}
    assert json.loads(FOCAL.to_json()) == {
        "format": "focalgeo-calibrator",
        "version": 2,
        "method": "focal_temperature_scaling",
        "criterion": "nll",
        "num_classes": 7,
        "parameters": {"gamma": -0.5, "temperature": 1.25},
        "inputs": {},
        "fits": [],
    }


@pytest.mark.parametrize("criterion", ["nll", "ece", "adaptive_ece", "line_search", None])
def test_every_criterion_is_read(tmp_path, criterion):
    write(tmp_path / "calibrator.json", FOCAL._replace(criterion=criterion))
    assert read_calibrator(tmp_path / "calibrator.json").criterion == criterion


def test_a_corrupt_calibrator_is_one_line(tmp_path):
    path, found = tmp_path / "calibrator.json", json.loads(FOCAL.to_json())
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
        ({"criterion": "mse"}, "criterion is mse, not nll, ece, adaptive_ece, line_search or null"),
        ({"criterion": ["ece"]}, "criterion is"),
        ({"num_classes": 1}, "num_classes is 1, out of range"),
        ({"num_classes": 10**12}, "num_classes is 1000000000000, out of range"),
        ({"method": "temperature"}, "did you mean 'temperature_scaling'"),
        ({"parameters": {"gamma": [[1.0], [1.0, 2.0]], "temperature": 1}}, "out of range"),
        ({"parameters": {"gamma": True, "temperature": 1}}, "out of range"),
        ({"parameters": {"gamma": 1e39, "temperature": 1}}, "out of range"),
    ):
        refused(path, {**found, **change}, says)
    refused(path, {name: value for name, value in found.items() if name != "criterion"}, "has no criterion")
    for text in ("{", "[" * 10**5):
        path.write_text(text)
        with pytest.raises(InputError, match="is no JSON"):
            read_calibrator(path)
    with pytest.raises(InputError, match="No such file"):
        read_calibrator(tmp_path / "nowhere.json")
    with pytest.raises(InputError, match="is a folder: give a file"):
        read_calibrator(tmp_path)


def test_a_temperature_for_each_row_of_a_check_is_no_temperature(tmp_path):
    """The check applies a method to two rows, for which two temperatures would do."""
    found = json.loads(FOCAL.to_json())
    refused(tmp_path / "calibrator.json", {**found, "parameters": {"gamma": 0, "temperature": [1, 2]}}, "out of range")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_saved_by_its_parameters_and_applied_as_it_was_fitted(tmp_path, name):
    fitted = drawn_fit(name)
    write(tmp_path / "calibrator.json", fitted, inputs={"val": {"checksum": "sha256:1"}}, fits=[fitted])
    found = read_calibrator(tmp_path / "calibrator.json")
    logits = 20 * np.random.default_rng(1).normal(size=(50, 3)).astype(np.float32)
    np.testing.assert_array_equal(found.predict_log_proba(logits), fitted.predict_log_proba(logits))
    np.testing.assert_array_equal(found.log_probs(logits), fitted.predict_log_proba(logits))
    assert found.to_json() == fitted.to_json()
    written = json.loads((tmp_path / "calibrator.json").read_text())
    assert written["inputs"] == {"val": {"checksum": "sha256:1"}}
    ((listed,), converged) = written["fits"], {"converged": fitted.converged} if "converged" in fitted.params else {}
    assert listed == {"method": name, "criterion": fitted.criterion, "parameters": {**found.parameters, **converged}}


@pytest.mark.parametrize(
    ("name", "parameter", "change"),
    [
        ("vector_scaling", "scales", lambda x: x[:2]),
        ("vector_scaling", "biases", lambda x: [x, x]),
        ("focal_vector_scaling", "scales", lambda x: [*x, 1]),
        ("structured_matrix_scaling", "weights", lambda x: x[0]),
        ("structured_matrix_scaling", "weights", lambda x: x[:2]),
        ("structured_matrix_scaling", "weights", lambda x: [x[0][:2], *x[1:]]),
        ("structured_matrix_scaling", "biases", lambda x: [1e39] * 3),
        ("ensemble_temperature_scaling", "shares", lambda x: [0.5, 0.5]),
        ("ensemble_temperature_scaling", "shares", lambda x: [1.5, -0.5, 0]),
        ("ensemble_temperature_scaling", "shares", lambda x: [1, 1, 1]),
        ("histogram_binning", "edges", lambda x: x[:-1]),
        ("histogram_binning", "edges", lambda x: [9, *x[1:]]),
        ("histogram_binning", "accuracies", lambda x: [*x, 0.5]),
        ("histogram_binning", "accuracies", lambda x: [*x[:5], 1.5, *x[6:]]),
        ("histogram_binning", "accuracies", lambda x: 0.5),
        ("isotonic", "thresholds", lambda x: x[:-1]),
        ("isotonic", "thresholds", lambda x: x[::-1]),
        ("isotonic", "probabilities", lambda x: [0, *x[1:]]),
        ("isotonic", "probabilities", lambda x: [*x[:-1], 1.5]),
        ("isotonic", "probabilities", lambda x: [*x[1:-1], "a"]),
        ("loss_implied_temperature_scaling", "gamma", lambda x: [x]),
    ],
)
def test_arrays_of_another_shape_or_out_of_range_are_one_line(tmp_path, name, parameter, change):
    found = json.loads(drawn_fit(name).to_json())
    write(tmp_path / "calibrator.json", drawn_fit(name))
    assert read_calibrator(tmp_path / "calibrator.json").method.name == name
    changed = {**found["parameters"], parameter: change(found["parameters"][parameter])}
    refused(tmp_path / "calibrator.json", {**found, "parameters": changed}, "holds parameters out of range")
    del changed[parameter]
    refused(tmp_path / "calibrator.json", {**found, "parameters": changed}, "holds parameters out of range")


def test_more_classes_than_a_method_takes_are_refused_before_their_matrix_is_made(tmp_path):
    found = json.loads(drawn_fit("structured_matrix_scaling").to_json())
    found["parameters"] = {"temperature": 1, "weights": 1, "biases": 0}
    refused(tmp_path / "calibrator.json", {**found, "num_classes": 300}, "must be from 2 to 200;")


@functools.cache
def drawn_fit(name):
    """A method fitted on drawn examples of three classes."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(300, 3)).astype(np.float32)
    labels = np.argmax(logits / 1.6 + [0.3, 0, -0.3] + rng.gumbel(size=logits.shape), axis=1)
    known = {"trained_gamma": 1.5} if "trained_gamma" in METHODS[name].options else {}
    return fit(name, logits, labels, **known)
