"""CalArena's door: the object that its runner calls, and the command over a file of its layout.

The runner, as its repository has it: for each experiment an object is made by a function without arguments, then
fit(p_cal, y_cal) and predict_proba(p_test) are called on NumPy's arrays as the file holds them: p float32 [n, classes],
of two classes P(1) [n], in [0, 1] with both ends; y int32 [n]. What comes back is made a tensor, [n, classes], and is
measured: NLL, Brier score, accuracy, ECE in 15 bins, of two classes that of P(1).
"""

import sys

import numpy as np
import pytest

from experiments import calarena, peers, timing
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
    probs, labels = drawn(300, 3 if form == "[n, 3]" else 2)
    probs, labels = probs.astype(np.float32), labels.astype(np.int32)
    probs[[0, 200]] = np.eye(probs.shape[1])[1]  # as forests say
    p = {"[n]": probs[:, 1], "[n, 1]": probs[:, 1:], "[n, 3]": probs}[form]
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
    for name in ("temperature", "loss_implied_map"):  # which needs the gamma of the training
        with pytest.raises(InputError, match="choose one of choice, uncalibrated"):
            Calibrator(name)


@pytest.mark.parametrize("classes", [2, 3])
def test_certain_and_wrong_is_a_finite_loss(classes):
    probs, labels = drawn(60, classes)
    probs[:30] = np.eye(classes)[labels[:30]]
    probs[0] = np.eye(classes)[labels[0] - 1]
    for method in ("uncalibrated", "choice"):
        found = Calibrator(method).fit(probs, labels).predict_proba(probs)
        assert np.isfinite(calarena.measured(found, labels)["nll"])
    assert calarena.measured(probs, labels)["nll"] < -np.log(np.finfo(np.float32).tiny)


@pytest.mark.parametrize("p", [[0.5, np.nan], [0.5, 1.5], [-2.0, 0.5], [[0.5, 0.2], [0.3, 0.7]], [[[0.5, 0.5]]]])
def test_what_is_no_probability_is_refused(p):
    with pytest.raises(InputError, match=r"^p"):
        Calibrator("uncalibrated").fit(np.array(p), np.array([0, 1]))


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_are_those_of_the_metrics(classes):
    probs, labels = drawn(500, classes)
    found, log_probs = calarena.measured(probs, labels), np.float32(np.log(probs))
    ece = calibration.binary_ece if classes == 2 else calibration.ece
    np.testing.assert_allclose(found.pop("ece"), ece(log_probs, labels), atol=1e-5)
    for name, value in found.items():
        np.testing.assert_allclose(value, getattr(calibration, name)(log_probs, labels), atol=1e-5)


@pytest.mark.parametrize("classes", [2, 4])
def test_scores_are_those_of_the_runner(classes):
    if not (timing.version("probmetrics") and timing.version("torchmetrics")):
        pytest.skip("pip install -e '.[peers,which-ece]'")
    probs, labels = drawn(500, classes)
    probs[:2] = np.eye(classes)[:2]

    def of_the_runner(probs, labels):
        import torch
        from probmetrics.metrics import Metrics

        metrics = Metrics.from_names(["logloss", "brier", "ece-15", "accuracy"])
        found = metrics.compute_all_from_labels_probs(torch.tensor(labels), torch.tensor(probs))
        return [float(value) for value in found.values()]

    for rows in (labels >= 0, labels > 0)[: classes - 1]:  # all, and without a class, of two classes all
        test = probs[rows], labels[rows]
        found = [*calarena.measured(*test).values()]
        np.testing.assert_allclose(found, peers.quietly(of_the_runner, *test), atol=1e-6)


def test_the_ece_is_of_the_classes_that_test_has():
    probs, labels = drawn(500, 4)
    for kept in ([0, 1, 3], [1, 2]):
        rows = np.isin(labels, kept)
        others = probs[rows][:, kept] / probs[rows][:, kept].sum(axis=1, keepdims=True)
        fewer = calarena.measured(others, np.searchsorted(kept, labels[rows]))
        assert calarena.measured(probs[rows], labels[rows])["ece"] == pytest.approx(fewer["ece"], abs=1e-6)
    # closed on the left: 0.2 is of the fourth bin of fifteen, beside 0.25
    p = np.array([0.2, 0.25, 0.2, 0.25])
    assert calarena.measured(calarena.columns(p), np.array([0, 0, 1, 0]))["ece"] == pytest.approx(0.025)


def command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["calarena", *map(str, arguments)])
    calarena.main()


def store(file, name, probs, labels):
    """An experiment in the layout and the types of the benchmark's files."""
    group = file.create_group(name)
    p = np.float32(probs[:, 1] if probs.shape[1] == 2 else probs)
    for split, rows in (("cal", slice(200)), ("test", slice(200, None))):
        group.create_dataset(f"probas_{split}", data=p[rows], compression="gzip")
        group.create_dataset(f"labels_{split}", data=np.int32(labels[rows]), compression="gzip")


def test_the_command_runs_over_a_file_and_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    h5py = pytest.importorskip("h5py")
    path, out = tmp_path / "tabrepo-binary.h5", tmp_path / "results" / "ours.csv"
    with h5py.File(path, "w") as file:
        for seed, name in enumerate(("007/forest", "12/NA")):  # names that are not to be read as numbers
            store(file, name, *drawn(300, 2, seed))
    command(monkeypatch, path, "--methods", "uncalibrated", f"--out={out}")
    command(monkeypatch, path, "--methods", "uncalibrated", "platt_scaling", f"--out={out}")
    rows = calarena.table(out)
    assert [*zip(rows.dataset, rows.model, strict=True)] == [("007", "forest"), ("12", "NA")] * 2
    assert set(rows.columns) >= {"model", "method", "examples", "classes", "fit_seconds", "seconds", "accuracy"}
    means = rows.groupby("method").nll.mean()
    assert means["platt_scaling"] < means["uncalibrated"]
    given = rows[rows.method == "uncalibrated"]
    for name in ("nll", "brier", "ece", "accuracy"):
        np.testing.assert_allclose(given[name], given[f"{name}_before"], atol=1e-6)
        np.testing.assert_array_equal(rows[f"{name}_before"][:2], rows[f"{name}_before"][2:])
    assert capsys.readouterr().err.count("uncalibrated") == 2


def test_what_cannot_be_done_is_said_and_the_rest_is_done(tmp_path, monkeypatch, capsys):
    h5py = pytest.importorskip("h5py")
    path, out = tmp_path / "cv-multiclass.h5", tmp_path / "ours.csv"
    probs, labels = drawn(300, 3)
    with h5py.File(path, "w") as file:
        store(file, "a/nan", np.where(np.arange(300)[:, None] == 7, np.nan, probs), labels)
        store(file, "b/labels", probs, labels + 1)
        store(file, "c/whole", probs, labels)
    with pytest.raises(SystemExit) as ended:
        command(monkeypatch, path, "--methods", "platt_scaling", "choice", f"--out={out}")
    assert ended.value.code == 2
    *_, nan, outside, platt = capsys.readouterr().err.splitlines()
    assert "a/nan: probas_cal, labels_cal: p is nan" in nan
    assert "b/labels: probas_cal, labels_cal: labels" in outside
    assert "c/whole, platt_scaling: logits have 3 classes" in platt
    (row,) = calarena.table(out).itertuples()
    assert (row.dataset, row.model, row.method, row.classes) == ("c", "whole", "choice", 3)
    assert row.chosen in calibration.METHODS


def test_what_is_no_file_of_calarena_is_one_line(tmp_path, monkeypatch, capsys):
    h5py = pytest.importorskip("h5py")
    out, table = tmp_path / "out.csv", tmp_path / "table.csv"
    (tmp_path / "text.h5").write_text("no HDF5")
    table.write_text("a,b\n1,2\n")
    for name in ("other.h5", "root.h5", "deep.h5", "damaged.h5"):
        with h5py.File(tmp_path / name, "w") as file:
            if name == "other.h5":
                file.create_group("a/b")
            elif name == "damaged.h5":
                store(file, "a/b", *drawn(300, 2))
                chunk = file["a/b/probas_test"].id.get_chunk_info(0)
            else:
                file["x" if name == "root.h5" else "a/b"] = np.arange(3.0)
    with open(tmp_path / "damaged.h5", "r+b") as file:
        file.seek(chunk.byte_offset)
        file.write(bytes(chunk.size))
    for name, said, where in (
        ("text.h5", "as HDF5", out),
        ("none.h5", "as HDF5", out),
        ("root.h5", "no groups dataset/model", out),
        ("other.h5", "a/b: it has no probas_cal", out),
        ("deep.h5", "a/b: it has no probas_cal", out),
        ("damaged.h5", "a/b: cannot read probas_test", out),
        ("other.h5", "has no column dataset", table),
    ):
        with pytest.raises(SystemExit) as ended:
            command(monkeypatch, tmp_path / name, f"--out={where}")
        assert ended.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
    assert not out.exists()


def test_without_h5py_it_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(SystemExit) as ended:
        command(monkeypatch, tmp_path / "tabrepo-binary.h5", f"--out={tmp_path}/out.csv")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "CalArena's files need h5py: pip install h5py\n"
