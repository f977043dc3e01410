"""The NumPy lines that the page shows: they give what the methods give, from a calibrator.json alone."""

import functools
import json

import jax
import numpy as np
import pytest

from focalgeo.calibration import DEFAULT_METHODS, METHODS, Fitted, fit
from focalgeo.formulas import SNIPPETS

SATURATED = [[60, 0, -60, 0], [0, 0, 60, 0], [0, 60, 60, 0], [0, 0, 0, 0], [17, 0, -1, 40], [700, 0, 5, 640]]


@functools.cache
def drawn_fit(name, num_classes):
    """A method fitted on drawn examples, of which one class is never right and all are too sure."""
    rng = np.random.default_rng(0)
    truth = 2 * rng.normal(size=(600, num_classes)) + np.linspace(1, 0, num_classes)
    logits = (1.7 * truth * (1 + 0.3 * np.abs(truth))).astype(np.float32)
    known = {"trained_gamma": 1.5} if "trained_gamma" in METHODS[name].options else {}
    return fit(name, logits, np.argmax(truth + rng.gumbel(size=truth.shape), axis=1), **known)


def agrees(fitted, folder, logits):
    """The text, run on the file of the fit, gives the method's probabilities in float64."""
    path, names = folder / "calibrator.json", {"logits": logits, "group": [""] * len(logits)}
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


@pytest.mark.parametrize(
    ("name", "num_classes"), [(name, k) for name in SNIPPETS for k in (2, 4) if k <= (METHODS[name].most_classes or k)]
)
def test_the_lines_give_what_the_method_gives(name, num_classes, tmp_path):
    logits = np.random.default_rng(1).normal(size=(300, num_classes)) * 4
    logits[np.arange(150), np.arange(150) % 5 % num_classes] = -np.inf
    logits = np.concatenate([logits, np.float64(SATURATED)[:, :num_classes]])
    probs = agrees(drawn_fit(name, num_classes), tmp_path, logits)
    np.testing.assert_array_equal(probs[np.isneginf(logits)], 0)


def test_the_histogram_lines_take_tied_examples_to_the_bin_of_the_method(tmp_path):
    rng = np.random.default_rng(0)
    logits = (2 * np.round(rng.normal(size=(2000, 3)) * 6) / 4).astype(np.float32)
    agrees(fit("histogram_binning", logits, np.argmax(logits / 1.5 + rng.gumbel(size=logits.shape), axis=1)), tmp_path,
           np.float64(logits))  # fmt: skip


@pytest.mark.parametrize("gamma", [-0.9, 0.37, 5.0])
@pytest.mark.parametrize("temperature", [0.01, 5.0])
def test_the_focal_lines_are_right_at_the_ends_of_gamma_and_temperature(gamma, temperature, tmp_path):
    params = {"gamma": np.float32(gamma), "temperature": np.float32(temperature)}
    scales = {"scales": np.float32([0.02, 1, 1.5, 0.5]), "biases": np.float32([1, 0, -2, 0.5])}
    for name, own in (("focal_temperature_scaling", {}), ("focal_vector_scaling", scales)):
        agrees(Fitted(METHODS[name], "nll", params | own, 4), tmp_path, np.float64(SATURATED))


def test_every_method_has_its_lines_six_at_most_and_no_wider_than_a_page():
    assert METHODS.keys() >= SNIPPETS.keys() >= {*DEFAULT_METHODS, "stacking"}
    for name, text in SNIPPETS.items():
        assert len(text.splitlines()) <= (16 if name == "stacking" else 6)  # that holds its members'
        assert max(map(len, text.splitlines())) <= 120
        assert "focalgeo" not in text
