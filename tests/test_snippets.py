"""The NumPy lines that the page shows: they give what the methods give, from a calibrator.json alone."""

import functools
import json

import jax
import numpy as np
import pytest

from focalgeo.calibration import METHODS, Fitted, fit, read_calibrator
from focalgeo.report.snippets import SNIPPETS

CLASSES = 4


@functools.cache
def drawn_fit(name, num_classes=CLASSES, trained_gamma=1.5):
    """A method fitted on drawn examples, of which one class is never right and all are too sure."""
    rng = np.random.default_rng(0)
    truth = 2 * rng.normal(size=(600, num_classes)) + np.linspace(1, 0, num_classes)
    logits = (1.7 * truth * (1 + 0.3 * np.abs(truth))).astype(np.float32)
    known = {"trained_gamma": trained_gamma} if "trained_gamma" in METHODS[name].options else {}
    return fit(name, logits, np.argmax(truth + rng.gumbel(size=truth.shape), axis=1), **known)


def logits_of(kind):
    rng = np.random.default_rng(1)
    if kind == "two classes":
        return np.concatenate([rng.normal(size=(300, 2)) * 4, [[60, 0], [0, -60], [30, 30], [0, 17.5]]])
    if kind == "ordinary":
        return rng.normal(size=(300, CLASSES)) * 4
    gaps = np.float64([[60, 0, -60, 0], [0, 0, 60, 0], [0, 60, 60, 0], [0, 0, 0, 0], [17, 0, -1, 40], [700, 0, 5, 640]])
    return np.concatenate([gaps, 30 * rng.normal(size=(100, CLASSES))])


def agrees(fitted, folder, logits):
    """The probabilities that the text gives from the file of the fit, held against the method in float64."""
    path, names = folder / "calibrator.json", {"logits": logits}
    path.write_text(fitted.to_json())
    exec(SNIPPETS[fitted.method.name].replace('"calibrator.json"', repr(str(path))), names)
    probs, parameters = names["probs"], json.loads(path.read_text())["parameters"]
    with jax.enable_x64(True):
        params = {name: np.float64(value) for name, value in parameters.items()}
        expected = np.asarray(fitted.method.apply(params, logits))
    assert expected.dtype == probs.dtype == np.float64
    seen = expected > -80
    np.testing.assert_allclose(np.log(probs[seen]), expected[seen], atol=1e-5, rtol=0)
    assert (probs[~seen] < np.exp(-79)).all()
    np.testing.assert_allclose(probs.sum(-1), 1, atol=1e-6)
    return probs


@pytest.mark.parametrize("kind", ["ordinary", "saturated", "two classes"])
@pytest.mark.parametrize("name", METHODS)
def test_the_lines_give_what_the_method_gives(name, kind, tmp_path):
    logits = logits_of(kind)
    probs = agrees(drawn_fit(name, logits.shape[1]), tmp_path, logits)
    single = read_calibrator(tmp_path / "calibrator.json").predict_proba(np.float32(logits))
    np.testing.assert_allclose(probs, single, atol=2e-5)


@pytest.mark.parametrize("step", [1.0, 0.5, 0.1])
def test_the_histogram_lines_take_tied_examples_to_the_bin_of_the_method(step, tmp_path):
    rng = np.random.default_rng(0)
    logits = (np.round(rng.normal(size=(2000, 3)) * 3 / step) * step).astype(np.float32)
    fitted = fit("histogram_binning", logits, np.argmax(logits / 1.5 + rng.gumbel(size=logits.shape), axis=1))
    np.testing.assert_allclose(agrees(fitted, tmp_path, np.float64(logits)), fitted.predict_proba(logits), atol=2e-5)


@pytest.mark.parametrize("gamma", [-0.9, -0.5, 0.37, 5.0])
@pytest.mark.parametrize("temperature", [0.01, 0.6, 5.0])
def test_the_focal_lines_are_right_at_the_ends_of_gamma_and_temperature(gamma, temperature, tmp_path):
    params = {"gamma": np.float32(gamma), "temperature": np.float32(temperature)}
    scales = {"scales": np.float32([0.02, 1, 1.5, 0.5]), "biases": np.float32([1, 0, -2, 0.5])}
    for name, own in (
        ("focal_temperature_scaling", params),
        ("loss_implied_temperature_scaling", params),
        ("focal_vector_scaling", params | scales),
    ):
        agrees(Fitted(METHODS[name], "nll", own, CLASSES), tmp_path, logits_of("saturated"))


def test_every_method_has_its_lines_six_at_most_and_no_wider_than_a_page():
    assert SNIPPETS.keys() == METHODS.keys()
    for text in SNIPPETS.values():
        lines = text.splitlines()
        assert len(lines) <= 6
        assert max(map(len, lines)) <= 120
        assert "focalgeo" not in text
