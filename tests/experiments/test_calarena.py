"""CalArena's door: the object that its runner calls, and the command over a file of its layout."""

import sys

import numpy as np
import pandas as pd
import pytest

from experiments import calarena
from experiments.calarena import Calibrator
from focalgeo import calibration
from focalgeo.types import InputError


def drawn(n, classes, seed=0):
    """Overconfident probabilities and labels."""
    rng = np.random.default_rng(seed)
    truth = 2 * rng.standard_normal((n, classes))
    labels = np.argmax(truth + rng.gumbel(size=truth.shape), axis=1)
    probs = np.exp(2 * truth)
    return probs / probs.sum(axis=1, keepdims=True), labels


@pytest.mark.parametrize("method", ["choice", "uncalibrated", "temperature_scaling", "stacking"])
@pytest.mark.parametrize("form", ["[n]", "[n, 1]", "[n, 3]"])
def test_the_object_is_what_the_runner_calls(method, form):
    # fit(p_cal, y_cal) and predict_proba(p_test): NumPy arrays, of two classes P(1); probabilities of all classes back
    probs, labels = drawn(300, 3 if form == "[n, 3]" else 2)
    p = {"[n]": probs[:, 1], "[n, 1]": probs[:, 1:], "[n, 3]": probs}[form]
    p[0] = np.eye(3)[0] if form == "[n, 3]" else 1  # as forests say
    calibrator = Calibrator(method)
    calibrator.fit(p[:200], labels[:200])
    found = calibrator.predict_proba(p[200:])
    assert isinstance(found, np.ndarray)
    assert found.shape == (100, probs.shape[1])
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-12)
    if method == "uncalibrated":
        np.testing.assert_allclose(found, probs[200:], atol=1e-6)
    else:
        nll = [calarena.measured(each, labels[200:])["nll"] for each in (found, probs[200:])]
        assert nll[0] < nll[1]


@pytest.mark.parametrize("classes", [2, 4])
def test_the_choice_is_that_of_compare(classes):
    probs, labels = drawn(400, classes)
    logits = calarena.scores(probs)
    compared = calibration.compare((logits, labels), num_resamples=200).choice.fitted
    ours = calarena.chosen(logits, labels)
    assert ours.method.name == compared.method.name
    for name, value in compared.params.items():
        np.testing.assert_allclose(ours.params[name], value, rtol=1e-3, atol=1e-4)


def test_a_class_may_be_absent_and_a_method_must_be_known():
    probs, labels = drawn(200, 3)
    found = Calibrator().fit(probs[labels < 2], labels[labels < 2]).predict_proba(probs)
    assert np.isfinite(found).all()
    with pytest.raises(InputError, match="is not one of"):
        Calibrator("temperature")


def test_scores_are_those_of_the_metrics():
    probs, labels = drawn(500, 3)
    found, log_probs = calarena.measured(probs, labels), np.float32(np.log(probs))
    for name in ("nll", "brier", "ece", "accuracy"):
        np.testing.assert_allclose(found[name], getattr(calibration, name)(log_probs, labels), atol=1e-5)


def command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["calarena", *map(str, arguments)])
    calarena.main()


def test_the_command_runs_over_a_file_and_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    h5py = pytest.importorskip("h5py")
    path, out = tmp_path / "tabrepo-binary.h5", tmp_path / "results" / "ours.csv"
    with h5py.File(path, "w") as file:
        for seed, model in enumerate(("forest", "boosting")):
            probs, labels = drawn(300, 2, seed)
            group = file.create_group(f"credit/{model}")
            group["probas_cal"], group["labels_cal"] = probs[:200, 1], labels[:200]
            group["probas_test"], group["labels_test"] = probs[200:, 1], labels[200:]
    command(monkeypatch, path, "--methods", "uncalibrated", f"--out={out}")
    command(monkeypatch, path, "--methods", "uncalibrated", "platt_scaling", f"--out={out}")
    rows = pd.read_csv(out)
    assert len(rows) == 4
    assert set(rows.columns) >= {"dataset", "model", "method", "examples", "classes", "seconds", "nll", "brier", "ece"}
    means = rows.groupby("method").nll.mean()
    assert means["platt_scaling"] < means["uncalibrated"]
    assert capsys.readouterr().err.count("uncalibrated") == 2


def test_what_is_no_file_of_calarena_is_one_line(tmp_path, monkeypatch, capsys):
    h5py = pytest.importorskip("h5py")
    (tmp_path / "text.h5").write_text("no HDF5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file.create_group("a/b")
    for name, said in (("text.h5", "as HDF5"), ("other.h5", "a/b has no probas_cal"), ("none.h5", "as HDF5")):
        with pytest.raises(SystemExit) as ended:
            command(monkeypatch, tmp_path / name, f"--out={tmp_path}/out.csv")
        assert ended.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
