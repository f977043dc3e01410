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


def test_a_corrupt_calibrator_is_one_line(tmp_path):
    path, found = tmp_path / "calibrator.json", json.loads(FOCAL.to_json())
    for change in (
        {"version": 1},
        {"format": "other"},
        {"method": "temperature"},
        {"criterion": "mse"},
        {"num_classes": 1},
        {"parameters": {"gamma": 1.0}},
        {"parameters": {"gamma": "one", "temperature": 1}},
        {"parameters": {"gamma": 1.0, "temperature": 0}},
        {"parameters": {"gamma": 1.0, "temperature": [1.0, 2.0]}},
        {"parameters": {"gamma": float("nan"), "temperature": 1}},
    ):
        refused(path, {**found, **change}, "calibrator.json")
    path.write_text("[" * 10**5)
    for place in (path, tmp_path / "nowhere.json", tmp_path):
        with pytest.raises(InputError):
            read_calibrator(place)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_saved_by_its_parameters_and_applied_as_it_was_fitted(tmp_path, name):
    fitted = drawn_fit(name)
    write(tmp_path / "calibrator.json", fitted, inputs={"val": {"checksum": "sha256:1"}}, fits=[fitted])
    found = read_calibrator(tmp_path / "calibrator.json")
    logits = 20 * np.random.default_rng(1).normal(size=(50, 3)).astype(np.float32)
    np.testing.assert_array_equal(found.predict_log_proba(logits), fitted.predict_log_proba(logits))
    assert found.to_json() == fitted.to_json()
    written = json.loads((tmp_path / "calibrator.json").read_text())
    assert written["inputs"] == {"val": {"checksum": "sha256:1"}}
    ((listed,), converged) = written["fits"], {"converged": fitted.converged} if "converged" in fitted.params else {}
    assert listed == {"method": name, "criterion": fitted.criterion, "parameters": {**found.parameters, **converged}}


@pytest.mark.parametrize(
    ("name", "parameter", "change"),
    [
        ("vector_scaling", "scales", lambda x: x[:2]),
        ("structured_matrix_scaling", "weights", lambda x: [x[0][:2], *x[1:]]),
        ("ensemble_temperature_scaling", "shares", lambda x: [1.5, -0.5, 0]),
        ("histogram_binning", "edges", lambda x: x[:-1]),
        ("isotonic", "probabilities", lambda x: [*x[1:-1], "a"]),
    ],
)
def test_arrays_of_another_shape_or_out_of_range_are_one_line(tmp_path, name, parameter, change):
    found = json.loads(drawn_fit(name).to_json())
    changed = {**found["parameters"], parameter: change(found["parameters"][parameter])}
    refused(tmp_path / "calibrator.json", {**found, "parameters": changed}, "calibrator.json")


@functools.cache
def drawn_fit(name):
    """A method fitted on drawn examples of three classes."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(300, 3)).astype(np.float32)
    labels = np.argmax(logits / 1.6 + [0.3, 0, -0.3] + rng.gumbel(size=logits.shape), axis=1)
    known = {"trained_gamma": 1.5} if "trained_gamma" in METHODS[name].options else {}
    return fit(name, logits, labels, **known)
