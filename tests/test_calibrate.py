"""The calibrate command: files of outputs in, probabilities, calibrator.json and a page out; bad input in one line."""

import html
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest
from scipy.special import softmax

from configs import digits
from focalgeo import calibration, job, records, report, run
from focalgeo.calibrate import main, parse
from focalgeo.calibration import METHODS, METRICS, Fitted, read_calibrator
from focalgeo.calibration.methods.zeros import Zeros
from focalgeo.calibration.study import findings
from focalgeo.calibration.study.comparison import Settings
from focalgeo.data.logits_files import Outputs
from focalgeo.job import calibrate
from focalgeo.rows import Difference, Fit, Metric, ReliabilityBin, Seconds, select
from focalgeo.types import floored_log

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent
FEW = "--num-resamples=100"
WITH_SEARCH = (FEW, "--trained-gamma=3", "--criteria=ece")
NAMES = ("temperature_scaling", "focal_temperature_scaling")


def draw(n, classes, *, sharpness=1.7, seed=0):
    """Logits `sharpness` times those that the labels are drawn from."""
    rng = np.random.default_rng(seed)
    truth = 2 * rng.standard_normal((n, classes))
    labels = np.argmax(truth + rng.gumbel(size=truth.shape), axis=1)
    return (sharpness * truth).astype(np.float32), labels


def write_samples(folder, *, n, bias=0.0):
    """val.npz and test.npz of three classes; returns their flags."""
    for seed, split in enumerate(("val", "test")):
        logits, labels = draw(n, 3, seed=seed)
        np.savez(folder / f"{split}.npz", logits=logits + np.float32(bias), labels=labels)
    return files_in(folder)


def files_in(folder):
    return [f"--{split}={folder}/{split}.npz" for split in ("val", "test")]


def outputs(logits, labels, **fields):
    settings = {"checksum": str(labels[:9]), "kind": "logits", "group": None, "cluster": None}
    settings |= {"unit": 0, "unread": (), "looks_like_probs": False, **fields}
    return Outputs(logits=np.float32(logits), labels=np.int32(labels), **settings)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A workdir of the main job, one epoch, no curvature."""
    config = digits.get_config("quick")
    config.optimizer.epochs = 1
    config.evaluation.num_resamples = 100
    config.curvature.examples = 0
    workdir = tmp_path_factory.mktemp("runs") / "digits"
    job.run(config, workdir)
    return workdir


@pytest.fixture(scope="module")
def finished(trained, tmp_path_factory):
    """What the command makes of the main job's predictions."""
    out = tmp_path_factory.mktemp("runs") / "mine"
    assert main([*files_in(trained / "predictions"), f"--out={out}", *WITH_SEARCH]) == 0
    return out


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
    """Two classes in a csv file of probabilities with groups, without a test file."""
    folder = tmp_path_factory.mktemp("runs")
    logits, labels = draw(600, 2)
    probs = np.asarray(jax.nn.softmax(logits))
    group = np.where(np.arange(600) < 12, "few", np.where(np.arange(600) % 3, "a", "b"))
    lines = [f"{y},{g},{p[0]:.9g},{p[1]:.9g}" for y, g, p in zip(labels, group, probs, strict=True)]
    (folder / "val.csv").write_text("\n".join(["y,site,p_0,p_1", *lines]) + "\n")
    keys = ["--probs-key=p", "--labels-key=y", "--group-key=site"]
    assert main([f"--val={folder}/val.csv", f"--out={folder}/out", *keys, FEW, "--folds=3", "--criterion=nll"]) == 0
    return folder / "out"


def by_place(rows):
    kinds = (Metric, ReliabilityBin, Difference, Fit)
    fields = ("name", "split", "method", "criterion", "bin", "against")
    rows = [row for row in rows if isinstance(row, kinds) and row.method is not None]
    return {tuple(getattr(row, field, None) for field in fields): row for row in rows}


def test_the_main_jobs_predictions_give_the_main_jobs_rows(trained, finished):
    theirs, ours = (by_place(records.read_rows(folder)) for folder in (trained, finished))
    on_test = {place: row for place, row in theirs.items() if row.split != "val" or isinstance(row, Fit)}
    assert len(on_test) > 100
    for place, row in on_test.items():
        for field in ("value", "low", "high", "confidence", "n"):
            wanted = getattr(row, field, None)
            if wanted is not None:
                np.testing.assert_allclose(getattr(ours[place], field), wanted, atol=1e-6, err_msg=f"{place} {field}")
    search = records.read_arrays(finished, "search")
    for name, values in records.read_arrays(trained, "search").items():  # the command goes on to higher temperatures
        np.testing.assert_allclose(search[name][..., : values.shape[-1]], values, atol=1e-6)
    for folder in (trained, finished):
        manifest = records.read_manifest(folder)
        assert list(manifest["methods"]) == list(METHODS)
        assert list(manifest["metrics"]) == list(METRICS)
        assert manifest["methods"]["vector_scaling"]["keeps_class"] is False


def apply_snippet(folder, logits):
    """Run what the page shows, in a process's own names, beside calibrator.json."""
    (text,) = re.findall(r'<pre id="snippet">(.*?)</pre>', (folder / "report.html").read_text(), re.DOTALL)
    names = {"logits": logits}
    exec(html.unescape(text).replace('"calibrator.json"', repr(str(folder / "calibrator.json"))), names)
    return names["probs"]


def test_the_folder_holds_the_probabilities_of_the_calibrator_and_of_the_snippet(trained, finished):
    names = {str(path.relative_to(finished)) for path in finished.rglob("*") if path.is_file()}
    assert names >= {"manifest.json", "metrics.jsonl", "search.npz", "calibrator.json", "report.html"}
    assert not [name for name in names if name.endswith(".tmp")]
    calibrator = read_calibrator(finished / "calibrator.json")
    for split in ("val", "test"):
        given = records.read_predictions(trained, split)
        held = records.read_arrays(finished / "probabilities", split)
        np.testing.assert_allclose(held["log_probs"], calibrator.predict_log_proba(given.logits), atol=1e-5)
        np.testing.assert_allclose(held["probs"], np.exp(held["log_probs"]), rtol=1e-6)
        np.testing.assert_allclose(apply_snippet(finished, given.logits), held["probs"], atol=2e-6)
        np.testing.assert_array_equal(held["labels"], given.labels)


def test_the_same_command_may_run_again_and_another_may_not(trained, finished, capsys):
    command = [*files_in(trained / "predictions"), f"--out={finished}", *WITH_SEARCH]
    before, page = records.read_rows(finished), (finished / "report.html").read_text()
    assert main([*command, "--seed=1"]) == 2
    assert "seed: 0 there, 1 here); choose another" in capsys.readouterr().err
    assert main(command) == 0
    kept = [[row for row in rows if row.name != "seconds"] for rows in (before, records.read_rows(finished))]
    assert kept[0] == kept[1]
    page = (finished / "report.html").read_text()
    assert report.write_report(finished).read_text() == page
    assert not re.search(r"<script|<link|src=|https?://(?!www\.w3\.org)", page)


def test_two_classes_have_both_kinds_of_calibration_and_groups_are_named(binary):
    rows = records.read_rows(binary)
    for name in ("class1_ece", "ece"):
        assert {row.method for row in select(rows, Metric, name=name)} >= {"uncalibrated", *NAMES}
    assert {row.group for row in select(rows, Metric, name="group_ece")} == {"a", "b"}
    said = records.read_manifest(binary)["calibration"]["warnings"]
    assert any("fewer than 100 examples are left out of the table of groups: few." in line for line in said)


@pytest.mark.parametrize("split", ["test", "cross_fit"])
def test_each_of_several_labels_is_judged_on_the_rows_that_have_it(tmp_path, capsys, split):
    logits, labels = draw(200, 3)
    labels = (np.random.default_rng(0).gumbel(size=logits.shape) < logits).astype(float)
    labels[:150:2, 0], labels[5:50, 1], labels[50:90, 2] = np.nan, -1, 7
    np.savez(tmp_path / "val.npz", logits=logits, labels=labels)
    files = [f"--{name}={tmp_path}/val.npz" for name in ("val", "test")][: 1 + (split == "test")]
    assert main([*files, "--task=multilabel", "--ignore-label=7", f"--out={tmp_path}/out", FEW]) == 0
    assert "160 labels of val are missing, -1 or of --ignore-label: each label is judged on" in capsys.readouterr().err
    rows, known = records.read_rows(tmp_path / "out"), np.isin(labels, (0, 1))
    rows = select(rows, Metric, split=split, method="uncalibrated", name="group_accuracy")
    for row, k in zip(sorted(rows, key=lambda row: row.group), range(3), strict=True):
        right = (logits[:, k] > 0) == labels[:, k]
        np.testing.assert_allclose((row.n, row.value), (known[:, k].sum(), right[known[:, k]].mean()), rtol=1e-6)
    held = records.read_arrays(tmp_path / "out/probabilities", split)
    np.testing.assert_array_equal(held["labels"], np.where(known, labels, -1))
    np.testing.assert_array_equal(np.isnan(held["probs"]), ~known & (split == "cross_fit"))


def test_a_prevalence_is_a_column_of_weights(tmp_path, capsys):
    (logits, labels), found = draw(300, 2), []
    weight = np.where(labels, 0.02 / labels.mean(), 0.98 / (1 - labels.mean()))
    for flag, more in (("--prevalence=0.02", {}), ("--seed=0", {"weight": weight})):
        np.savez(tmp_path / "val.npz", logits=logits, labels=labels, **more)
        assert (
            main([f"--val={tmp_path}/val.npz", f"--out={tmp_path / flag}", flag, FEW, "--methods=platt_scaling"]) == 0
        )
        found.append({place: row.value for place, row in by_place(records.read_rows(tmp_path / flag)).items()})
    assert "all numbers are for 0.02 of class 1 in use" in capsys.readouterr().err
    assert found[0] == found[1]


def test_without_test_the_rows_are_of_held_out_examples(binary):
    rows, held = records.read_rows(binary), records.read_arrays(binary / "probabilities", "cross_fit")
    name = read_calibrator(binary / "calibrator.json").method.name
    nll = -held["log_probs"][np.arange(600), held["labels"]].mean()
    (row,) = select(rows, Metric, name="nll", method=name, criterion="nll")
    assert (row.split, row.value) == ("cross_fit", pytest.approx(nll, abs=1e-5))


OPTIONS = parse(["--val=v", "--out=o", "--num-bins=10"])
SAME = draw(2000, 4, seed=1), draw(2000, 4, seed=2)


def fitted_at(method="temperature_scaling", criterion="ece", *, converged=True, **params):
    params = {name: np.float32(value) for name, value in (params or {"temperature": 1.5}).items()}
    good = Fitted(METHODS["temperature_scaling"], "nll", {"temperature": np.float32(1.2), "converged": True})
    return [
        Fitted(METHODS["uncalibrated"], None, {}),
        good,
        Fitted(METHODS[method], criterion, params | {"converged": converged}),
    ]


def warnings_of(val, test=None, fits=None):
    splits = {"val": val} | ({} if test is None else {"test": test})
    fits, settings = fits or fitted_at(), Settings(num_bins=10)
    pairs = {name: calibrate._pair(split) for name, split in splits.items()}
    found = [*calibrate.input_warnings(OPTIONS, splits), *findings.of_study(pairs, fits, settings)]
    return [*found, *findings.of_fits(fits, None)]


def rounded(n, *, step=1.0):
    """Outputs of two classes in whole steps of the logits: many rows are equal by that alone."""
    logits, labels = draw(n, 2, seed=3)
    return outputs(np.round(logits / step) * step, labels)


FAULTLESS = {
    "val and test": (outputs(*SAME[0]), outputs(*SAME[1])),
    "val alone": (outputs(*SAME[0]),),
    "a small test set that differs by chance": (outputs(*SAME[0]), outputs(*draw(500, 4, seed=6))),
    "few copies": (outputs(SAME[0][0][np.r_[:2000, :20]], SAME[0][1][np.r_[:2000, :20]]),),
    "rows equal by rounding": (rounded(2000),),
    "rows equal by fine rounding": (rounded(50_000, step=0.05),),
    "sure and right": (outputs(1e4 * np.eye(4)[SAME[0][1]], SAME[0][1]),),
}


@pytest.mark.parametrize("name", FAULTLESS)
def test_files_without_faults_have_no_warnings(name):
    assert warnings_of(*FAULTLESS[name]) == []


TRUE = np.eye(4, dtype=bool)[SAME[0][1]]
CUT = np.where(TRUE & (np.arange(2000) < 5)[:, None], 0, softmax(SAME[0][0], axis=1))
SURELY_WRONG = floored_log(CUT / CUT.sum(axis=1, keepdims=True))
RARE = np.r_[np.flatnonzero(~TRUE[:, 3]), np.flatnonzero(TRUE[:, 3])[:4]]
WHOLE = outputs(*SAME[0])
FAULTS = {
    "400 examples of val are few for 10 bins": [outputs(*draw(400, 4))],
    "The logits of val look like probabilities": [WHOLE._replace(looks_like_probs=True)],
    "Arrays of val that are not used: weights, one without a name.": [WHOLE._replace(unread=("weights", ""))],
    "of val count by its array weight, 1 to 90: rename": [WHOLE._replace(weight=np.linspace(1, 90, 2000))],
    " of val (5 of the true class). In the NLL, and in fits by NLL, a 0 counts as": [
        outputs(SURELY_WRONG, SAME[0][1], kind="probs"),
        None,
        [fit._replace(zeros=Zeros("half_least", 0.001)) for fit in fitted_at()],
    ],
    "No example of val has label 3": [outputs(SAME[0][0], SAME[0][1] % 3)],
    "Methods with numbers of each class are not chosen for that: if these classes cannot occur, leave": [
        outputs(SAME[0][0], SAME[0][1] % 3),
        None,
        fitted_at("vector_scaling", "nll", temperature=1.5, biases=np.zeros(4)),
    ],
    "differ significantly in their class shares": [WHOLE, outputs(SAME[1][0], np.minimum(SAME[1][1], 2))],
    "differ significantly in mean confidence": [WHOLE, outputs(*draw(2000, 4, sharpness=3.0))],
    "differ significantly in accuracy": [WHOLE, outputs(SAME[1][0], SAME[1][1][::-1])],
    "left out of the table of groups: x.": [WHOLE._replace(group=np.where(np.arange(2000) < 5, "x", "y"))],
    "50 of 2,050 rows of val repeat others in all logits and the label": [
        outputs(*(array[np.r_[:2000, :50]] for array in SAME[0]))
    ],
    "Fewer than 5 examples of val, the number of folds, have label 3": [
        outputs(*(array[RARE] for array in SAME[0])),
        None,
        fitted_at("vector_scaling", "nll", temperature=1.5, biases=np.zeros(4)),
    ],
    "Temperature scaling by ECE ended at temperature 0.01, an end of the range": [
        WHOLE,
        None,
        fitted_at(temperature=0.01, converged=False),
    ],
    "Focal temperature scaling by ECE ended at gamma 5 and temperature 4.06, an end": [
        WHOLE,
        None,
        fitted_at("focal_temperature_scaling", gamma=5, temperature=4.06, converged=False),
    ],
    "Ensemble temperature scaling by NLL did not converge: it is not chosen.": [
        WHOLE,
        None,
        fitted_at("ensemble_temperature_scaling", "nll", temperature=0.93, shares=[1, 0, 0], converged=False),
    ],
}


@pytest.mark.parametrize("says", FAULTS)
def test_each_fault_has_its_warning(says):
    warnings = warnings_of(*FAULTS[says])
    assert sum(says in warning for warning in warnings) == 1
    assert len(warnings) <= 2


def test_class_shares_of_rare_classes_are_compared_together():
    rng, shares = np.random.default_rng(0), 1 / np.arange(1, 1001)
    tables = (np.stack([rng.multinomial(n, shares / shares.sum()) for n in (100, 10_000)]) for _ in range(2000))
    p_value = findings.chi_square_p_value
    assert np.mean([p_value(table[:, table.any(axis=0)]) < 0.0027 for table in tables]) < 0.006
    assert p_value(np.array([[30, 30, 1, 2], [30, 30, 2, 1]])) > 0.5
    assert p_value(np.array([[2, 1], [1, 2]])) == 1
    assert p_value(np.array([[60, 2, 0], [30, 9, 30]])) < 1e-6


def test_the_noise_floor_is_the_ece_of_labels_drawn_from_the_confidences():
    logits, _ = draw(400, 4)
    rng = np.random.default_rng(5)
    ece = jax.jit(lambda labels: calibration.ece(jax.nn.log_softmax(jnp.asarray(logits)), labels, num_bins=10))
    draws = [ece(np.int32(np.argmax(logits + rng.gumbel(size=logits.shape), axis=1))) for _ in range(200)]
    assert abs(calibration.noise_floor(jax.nn.log_softmax(logits), num_bins=10).mean / np.mean(draws) - 1) < 0.1


def one_line(arguments, capsys):
    assert main([str(argument) for argument in arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert re.fullmatch(r"focalgeo: [^\n]+\n", output.err)
    return output.err


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Files of 60 examples of three classes, others that do not go with them, and files that are damaged."""
    folder = tmp_path_factory.mktemp("inputs")
    save = lambda name, **arrays: np.savez(folder / f"{name}.npz", **arrays)  # noqa: E731
    (logits, labels), (other, of_four), (many, of_many) = draw(60, 3), draw(60, 4), draw(300, 3)
    several = (np.random.default_rng(0).gumbel(size=logits.shape) < logits).astype(int)
    save("val", logits=logits, labels=labels)
    save("other", logits=other, labels=of_four)
    save("groups", logits=many, labels=of_many, group=np.arange(300))
    save("cluster", logits=logits, labels=labels, cluster=np.zeros(60))
    save("also", val=np.full((60, 3), 1 / 3))
    save("several", logits=logits, labels=several)
    save("two", logits=logits[:, :2], labels=several[:, :2])
    save("scores", scores=np.asarray(jax.nn.softmax(logits)), labels=labels)
    save("far", scores=logits, labels=labels)
    save("nan", logits=logits * np.nan, labels=labels)
    save("three", logits=logits, labels=np.full(60, 3))
    save("objects", logits=logits, labels=np.array([None] * 60))
    save("ten", logits=np.zeros((10, 3)), labels=np.zeros(10, int))
    (folder / "torn.npz").write_bytes(b"PK\x03\x04 and no more")
    np.save(folder / "z.npy", many.reshape(10, 6, 5, 3))
    np.save(folder / "p.npy", np.asarray(jax.nn.softmax(many)).reshape(10, 6, 5, 3))
    np.save(folder / "y.npy", of_many.reshape(10, 6, 5))
    return folder


PIXELS = "--val=logits=z.npy,labels=y.npy --class-axis=-1"
TEST = "--test=logits=z.npy,labels=y.npy"
OF_PIXELS, ON_TEST = f"{PIXELS} {TEST}", f"{TEST} --class-axis=-1"
SCORES = "of outputs for every pixel give logits=z.npy,labels=y.npy"
REFUSED = {
    "--vla=a.npz": "unrecognized arguments: --vla=a.npz",
    "val.npz": "val.npz",
    "--valid=a.npz": "unrecognized arguments: --valid=a.npz",
    "--val=val.npz --val=other.npz": "--val is given twice: give it once",
    "--val=val.npz --out=a --out=b": "--out is given twice",
    "--test=": "--test= has nothing behind it: give a value",
    "--test ''": "a flag has nothing behind it",
    "--val=cluster.npz": "--folds is 5 for 1 clusters of val: give clusters of which there are two or more",
    "--seed=x": "--seed",
    "--folds=1": "--folds",
    "--criterion=ecce": "--criterion",
    "--trained-gamma=nan": "--trained-gamma",
    "'--val=a\nb'": r"a\nb",
    "--val=nowhere.npz": "there is no file nowhere.npz",
    "--val=groups.npz": "group of val has 300 different values",
    "--test=other.npz": "val has 3 classes and test has 4 classes: give files of one classifier",
    "--test=val.npz --test=val.npz": "--test=val.npz: give each but the first as NAME=PATH, a new name in",
    "--test=a=val.npz --test=test=val.npz": "--test=test=val.npz: give each but the first as NAME=PATH",
    "--test=val.npz --test=b=none.npz": "there is no file none.npz",
    "--test=val.npz --test=b=other.npz": "test has 3 classes and b has 4 classes: give files of one classifier",
    "--test=a=val.npz --test=b=val.npz --class-axis=1": "--class-axis goes with one --test",
    "--folds=70": "--folds is 70 for 60 examples of val: give at most 60",
    "--num-bins=61": "--num-bins is 61 for 60 examples of val: give at most 60",
    "--methods=loss_implied_temperature_scaling": "trained_gamma",
    "--methods=vektor_scaling": "did you mean 'vector_scaling'?",
    "--metrics=ecce": "did you mean",
    "--also=temperature_scaling=also.npz": "also names temperature_scaling, a method of focalgeo's own",
    "--also=val=also.npz": "--also=val=also.npz: give NAME=PATH",
    "--also=a=also.npz --also=a=also.npz": "--also=a=also.npz: give NAME=PATH",
    "--val=several.npz --test=two.npz --task=multilabel": "val and test have not the same labels in one order: give",
    "--val=scores.npz --test=far.npz": "val holds probs and test holds logits: give all as one",
    "--val=nan.npz": "logits",
    "--val=three.npz": "labels",
    "--val=objects.npz": "objects.npz",
    "--val=ten.npz": "val: it has 10 examples",
    "--val=torn.npz": "torn.npz",
    "--coverage=1.5": "--coverage is 1.5: give a number from 0.01 to 0.999",
    "--error-at-most=0.1 --sets=aps": "--sets, --sets-of and --least-one say which sets: give --coverage=0.9",
    "--least-one": "--sets, --sets-of and --least-one say which sets: give --coverage=0.9",
    "--coverage=0.9 --test=val.npz --sets-of=group": "--sets-of=group asks for the group of each example: give --val",
    "--coverage=0.9 --val=several.npz --test=several.npz --task=multilabel": "--coverage does not go with multilabel",
    "--coverage=0.9": "give --test, with labels or without",
    "--threshold=0.1": "thresholds are of P(1) of two classes, here are 3",
    "--threshold=0": "--threshold: 0 is no probability from 0.001 to 0.999: give 0.1, or costs 1:9",
    "--threshold=-1:-9": "--threshold: -1:-9 is no probability from 0.001 to 0.999: give 0.1, or costs 1:9",
    "--threshold=1:x": "--threshold: 1:x is no probability from 0.001 to 0.999: give 0.1, or costs 1:9",
    "--assess --folds=3": "--assess fits nothing: leave out --folds",
    "--assess --test=val.npz --test=b=val.npz": "--assess fits nothing, as several tests ask for: give one --test",
    "--assess --attach=model.onnx": "--assess fits nothing: leave out --attach",
    "--prevalence=0.1": "--prevalence is the share of class 1 of two classes: leave it out",
    "--val=several.npz --task=multilabel --prevalence=0.1": "--prevalence is the share of class 1 of two classes",
    PIXELS: f"--test=None: {SCORES}",
    f"{ON_TEST} --val=z.npy": f"--val=z.npy: {SCORES}",
    f"{ON_TEST} --val=logits=z.npy,labels=none.npy": "none.npy cannot be read",
    f"{ON_TEST} --val=logits=p.npy,labels=y.npy": "look like probabilities: give their logarithms",
    f"{OF_PIXELS} --ignore-label=sky": "--ignore-label is sky: of every pixel give whole numbers",
    OF_PIXELS.replace("-1", "1"): "name the classes' axis",
    OF_PIXELS.replace("-1", "7"): "7",
    f"{OF_PIXELS} --methods=isotonic": "--methods does not go with --class-axis",
    f"{OF_PIXELS} --metrics=mce": "--metrics does not go with --class-axis",
    f"{OF_PIXELS} --trained-gamma=5": "--trained-gamma does not go with --class-axis",
    f"{OF_PIXELS} --positive=all": "--positive does not go with --class-axis",
    f"{OF_PIXELS} --folds=5": "--folds does not go with --class-axis",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_bad_flags_and_files_are_one_line_and_leave_nothing_behind(good, capsys, monkeypatch, flags):
    monkeypatch.chdir(good)
    usual = [flag for flag in ("--val=val.npz", "--out=out") if f"{flag[:6]}" not in flags]
    assert REFUSED[flags] in one_line([*usual, *shlex.split(flags)], capsys)
    assert not Path("out").exists()


def test_what_is_missing_is_named(capsys):
    assert "required: --val, --out" in one_line([], capsys)


def test_several_tests_stand_on_the_page_and_in_the_terminal(tmp_path, capsys):
    """The first is measured as one alone is; of those with labels it is said whether the calibration holds there."""
    for name, sharpness in (("val", 1.7), ("test", 1.7), ("far", 6.0)):
        logits, labels = draw(600, 3, sharpness=sharpness, seed=len(name) + len(name[:2]) * (name > "f"))
        np.savez(tmp_path / f"{name}.npz", logits=logits, labels=labels)
        np.savez(tmp_path / "bare.npz", logits=logits[:20])
    command = [*files_in(tmp_path), FEW, "--methods=temperature_scaling", f"--out={tmp_path}/alone"]
    assert main(command) == 0
    capsys.readouterr()
    more = [f"--test=far={tmp_path}/far.npz", f"--test=bare={tmp_path}/bare.npz", f"--test=again-2={tmp_path}/val.npz"]
    assert main([*command[:-1], *more, f"--out={tmp_path}/out"]) == 0
    printed, warned = capsys.readouterr()
    assert "600 of 600 rows of again-2 are rows of val too" in warned
    assert "do not mean on far what they mean on val" in printed
    assert re.search(r"\nTest +Accuracy .*\ntest, 600 examples .*\nfar, 600 examples .* < 0.001 +−0", printed)
    of = {name: records.read_rows(tmp_path / name) for name in ("alone", "out")}
    assert select(of["out"], Metric, split="test") == select(of["alone"], Metric, split="test")
    assert {path.stem for path in (tmp_path / "out/probabilities").iterdir()} == {
        "val",
        "test",
        "far",
        "bare",
        "again-2",
    }
    text = html.unescape((tmp_path / "out/report.html").read_text())
    assert "do not mean on far what they mean on val: the difference is significant (corrected for 3 tests)." in text
    assert "A fit of its own would lower the NLL on far (−" in text


def test_an_out_folder_that_holds_something_else_or_cannot_be_written_is_one_line(good, trained, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    (tmp_path / "file").write_text("x")
    for out, says in (
        (tmp_path / "mine", "is not empty and has no manifest.json; choose another"),
        (tmp_path / "file", "file"),
        (tmp_path / "file" / "out", "file"),
        (trained, "belongs to another config"),
    ):
        assert says in one_line([f"--val={good}/val.npz", f"--out={out}"], capsys)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("flags", [["--methods=uncalibrated"], ["--methods=loss_implied_map", "--trained-gamma=2"]])
def test_methods_of_which_none_is_fitted_are_compared(good, tmp_path, capsys, flags):
    assert main([f"--val={good}/val.npz", f"--out={tmp_path}/out", FEW, *flags]) == 0
    assert "calibrator.json, uncalibrated\n" in capsys.readouterr().out


def test_outputs_are_assessed_without_a_fit(tmp_path, capsys):
    out, (logits, labels) = tmp_path / "out", draw(200, 2)
    np.savez(tmp_path / "val.npz", logits=logits, labels=labels)
    assert main([f"--val={tmp_path}/val.npz", f"--out={out}", FEW, "--assess", "--threshold=1:4"]) == 0
    said = capsys.readouterr().out
    assert "ECE of P(1) on val is " in said
    assert "At a threshold of 20% the net benefit of acting on P(1) " in said
    assert "The outputs were measured as they are, and nothing was fitted." in said
    assert said.splitlines()[0].split("  ")[0] == "on val"
    assert {path.name for path in out.iterdir()} >= {"report.html", "metrics.jsonl", "manifest.json"}
    assert not {"calibrator.json", "probabilities"} & {path.name for path in out.iterdir()}
    assert not select(records.read_rows(out), Fit)


@pytest.mark.parametrize("name", ["--val=", "--test=", "--test=cohort="])
def test_one_file_is_assessed_by_either_name(name):
    options = parse([f"{name}z.npz", "--out=o", "--assess"])
    assert (options.val, options.test, options.tests, options.methods) == ("z.npz", None, {}, ("uncalibrated",))


def test_the_gamma_of_the_training_stands_in_the_config_where_it_is_given():
    options = parse(["--val=v", "--out=o", "--trained-gamma=0.5"])
    assert calibrate.make_config(options, {}, {})["trained_gamma"] == 0.5
    assert "trained_gamma" not in calibrate.make_config(OPTIONS, {}, {})


def test_a_tilde_is_the_home_folder_in_every_command(tmp_path, monkeypatch, capsys):
    home = tmp_path / "home"
    home.mkdir()
    write_samples(home, n=60)
    (home / "job.py").write_text("from focalgeo.config import default_config as get_config\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    options = parse(["--val=~/val.npz", "--test=~/test.npz", "--out=~/out"])
    assert options.out == f"{home}/out"
    splits, _ = calibrate.read_inputs(options)
    assert [len(outputs.labels) for outputs in splits.values()] == [60, 60]
    assert run.parse(["--config=~/job.py", "--workdir=~/work"])[1] == f"{home}/work"
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    nobody = "~no-such-user/out"  # of no user it is a plain name, as for a shell
    assert parse(["--val=~/val.npz", f"--out={nobody}"]).out == nobody
    assert run.parse(["--config=~/job.py", f"--workdir={nobody}"])[1] == nobody


def test_help_and_errors_of_flags_are_answered_without_jax():
    script = "import sys; from focalgeo.calibrate import main; code = main(sys.argv[1:]); "
    script += "assert not {'jax', 'matplotlib', 'scipy'} & set(sys.modules); sys.exit(code)"
    for argument, code in (("--help", 0), ("--vla=x", 2)):
        ended = subprocess.run([sys.executable, "-c", script, argument], capture_output=True, text=True, cwd=ROOT)
        assert ended.returncode == code, ended.stderr
        assert ended.stdout.count("\n") <= 60


def test_the_page_s_command_runs_as_written(tmp_path, monkeypatch, capsys):
    text = (ROOT / "docs" / "calibration.md").read_text()
    command, *_ = re.findall(r"^python -m focalgeo\.calibrate (.*)$", text, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    write_samples(tmp_path, n=300)
    assert main(shlex.split(command)) == 0
    assert "report: runs/mine/report.html" in capsys.readouterr().out
    assert read_calibrator("runs/mine/calibrator.json").num_classes == 3


def recipes():
    """The head and the shown lines of each recipe of the page, whose last is the command."""
    text = (ROOT / "docs" / "files.md").read_text().partition("An error names")[2]
    found = re.findall(r"\*\*(.+?)\*\*.*?```\n(.*?)```", text, re.DOTALL)
    return {head: shown.splitlines() for head, shown in found}


def write_recipe(folder, shown):
    """Files of 300 examples, after those that a recipe shows, for what its command names."""
    logits, labels = draw(300, 3)
    table = pandas.DataFrame(logits).add_prefix("logits_")
    table = table.assign(labels=labels, patient=np.arange(300) // 2, survey_weight=1 + labels)
    table[["p_cat", "p_dog", "p_owl"]] = np.asarray(jax.nn.softmax(logits))
    table["y_prob"] = table.p_dog
    for name, words in (("y_true", "ham spam ham"), ("site", "n s n"), ("label", "cat dog owl")):
        table[name] = np.take(words.split(), labels)
    arrays = {"logits": logits, "labels": labels}
    if "-100" in shown[-1]:
        arrays["labels"] = np.where(np.arange(300) % 3 == 1, -100, labels)
    if "multilabel" in shown[-1]:
        arrays["labels"] = (np.random.default_rng(0).gumbel(size=logits.shape) < logits).astype(int)
    lines = {"choices": [], "samples": []}
    for k, (y, row) in enumerate(zip(labels.tolist(), logits.tolist(), strict=True)):
        lines["choices"].append({"labels": y, "logits": row[: max(y, k % 3, 1) + 1]})
        pairs = [[str(value), "False"] for value in row]
        lines["samples"].append({"doc_id": k, "target": str(y), "filtered_resps": pairs})
    for name in set(re.findall(r"--(?:val|test)=(\S+)", shown[-1])):
        if name.endswith(".npz"):
            unlabelled = name == "test.npz" and shown[1] == "['logits']"
            np.savez(folder / name, **({"logits": logits} if unlabelled else arrays))
        elif name.endswith(".csv"):
            text = table[shown[1].split(",")].to_csv(index=False, header=False)
            (folder / name).write_text("\n".join([*shown[1:-1], text]))
        else:
            kind = lines["samples" if name.startswith("samples") else "choices"]
            before = [line for line in shown if not line.startswith("$")]
            (folder / name).write_text("\n".join([*before, *map(json.dumps, kind), ""]))


SHOWN = {"Choices that cannot be": 2} | dict.fromkeys(
    ("Two classes in one column", "A rebalanced file", "Columns named for classes", "Weights"), 1
)
SAID = {
    "Test without labels": ["No labels are in test: its calibrated probabilities are written, and nothing is measured"],
    "Labels to be ignored": [f"100 rows of {name} have a label of --ignore-label" for name in ("val", "test")],
}


@pytest.mark.parametrize("head", recipes())
def test_every_recipe_of_the_page_is_read_and_runs(head, tmp_path, monkeypatch, capsys):
    shown, is_ignored = recipes()[head], head == "Labels to be ignored"
    assert len(shown) <= 5
    monkeypatch.chdir(tmp_path)
    write_recipe(tmp_path, shown)
    command = shlex.split(shown[-1].removeprefix("$ python -m focalgeo.calibrate "))
    splits, _ = calibrate.read_inputs(parse(command))
    is_multilabel = head == "Several labels a row"
    assert len(splits["val"].logits) == 300 * 3**is_multilabel - 100 * is_ignored + SHOWN.get(head, 0)
    assert main([*command, FEW, "--folds=2", "--methods=temperature_scaling", "--metrics=nll"]) == 0
    said, out = capsys.readouterr(), Path(parse(command).out)
    assert "to use: " in said.out
    for sentence in SAID.get(head, []):
        assert sentence in said.err
        assert sentence in (out / "report.html").read_text()
    for name, outputs in splits.items():
        held = records.read_arrays(out / "probabilities", name)
        assert held["probs"].shape == ((300, 3) if is_multilabel else outputs.logits.shape)
        assert ("labels" in held) == (outputs.labels is not None)
    measured = {row.split for row in select(records.read_rows(out), Metric, name="nll")}
    assert ("test" in measured) == ("test" in splits and head != "Test without labels")


@pytest.fixture(scope="module")
def pixels(tmp_path_factory):
    """Outputs for every pixel of 30 images, in the files that docs/decisions.md names."""
    folder = tmp_path_factory.mktemp("pixels")
    for seed, name in enumerate(("val", "test")):
        logits, labels = draw(30 * 8 * 6, 3, seed=seed)
        np.save(folder / f"{name}.npy", logits.reshape(30, 8, 6, 3).astype(np.float16))
        np.save(folder / f"{name}_labels.npy", np.where(np.arange(len(labels)) % 7, labels, 255).reshape(30, 8, 6))
    np.save(folder / "probs.npy", np.asarray(jax.nn.softmax(logits)).reshape(30, 8, 6, 3))
    return folder


def test_outputs_for_every_pixel_by_the_page_s_command(pixels, monkeypatch, capsys):
    text = (ROOT / "docs" / "decisions.md").read_text().replace("\\\n", "")
    (command,) = re.findall(r"^\$ python -m focalgeo\.calibrate (.*--class-axis.*)$", text, re.MULTILINE)
    monkeypatch.chdir(pixels)
    assert main(shlex.split(command)) == 0
    out = Path("runs/pixels")
    found = calibration.dense(("val.npy", "val_labels.npy"), ("test.npy", "test_labels.npy"), ignore_label=255)
    saved = read_calibrator(out / "calibrator.json")
    assert saved.params["temperature"] == pytest.approx(found.choice.fitted.params["temperature"], rel=1e-6)
    rows = records.read_rows(out)
    assert [row for row in rows if not isinstance(row, Seconds)] == found.rows
    assert {row.n for row in select(rows, Fit)} == {np.sum(np.load("val_labels.npy") != 255)}
    manifest = records.read_manifest(out)["config"]
    assert manifest["reading"] == {"ignore_label": ["255"], "class_axis": -1}
    assert manifest["inputs"]["val"]["clusters"] == 30
    page = html.unescape((out / "report.html").read_text())
    assert "Use temperature scaling" in page
    assert "probabilities/" not in page
    assert not (out / "probabilities").exists()


@pytest.mark.parametrize(("task", "method"), [("multiclass", "platt_scaling"), ("multilabel", "temperature_scaling")])
def test_the_page_s_lines_apply_to_scores_as_they_were_given(tmp_path, monkeypatch, task, method):
    monkeypatch.chdir(tmp_path)
    p = {}
    for seed, name in enumerate(("val", "test")):
        logits, labels = draw(300, 2, seed=seed)
        p[name] = np.asarray(jax.nn.softmax(logits))[:, 1]
        scores, truth = {
            "multiclass": (p[name], labels),
            "multilabel": (p[name].reshape(100, 3), labels.reshape(100, 3)),
        }[task]
        np.savez(f"{name}.npz", probs=scores, labels=truth)
    flags = [f"--task={task}", f"--methods={method}", "--prefer=plain", "--out=out", FEW]
    assert main([*files_in(Path(".")), *flags]) == 0
    page = html.unescape(Path("out/report.html").read_text())
    (prepare,) = re.findall(r"set <code>(logits = .*?)</code> first", page)
    names = {}
    exec(re.search(r'<pre id="code">(.*?)</pre>', page, re.DOTALL)[1], names)
    (lines,) = re.findall(r'<pre id="snippet">(.*?)</pre>', page, re.DOTALL)
    of_file = names["probs"][:, 1]
    monkeypatch.chdir("out")
    names = {"np": np, "p": np.load("../test.npz")["probs"]}
    exec(f"{prepare}\n{lines}", names)
    written = np.load("probabilities/test.npz")["probs"]
    expected = written if task == "multilabel" else written[:, 1]
    np.testing.assert_allclose(names["probs"][..., 1], expected, atol=1e-5)
    np.testing.assert_allclose(of_file, expected.ravel(), atol=1e-5)


def test_decisions_are_set_on_what_neither_fit_nor_choice_saw(tmp_path, capsys):
    flags = [*write_samples(tmp_path, n=900), "--methods=temperature_scaling", FEW]
    assert main([*flags, f"--out={tmp_path}/out", "--coverage=0.8", "--error-at-most=0.3", "--sets=aps"]) == 0
    fitted = read_calibrator(tmp_path / "out" / "calibrator.json")
    (fit,) = select(records.read_rows(tmp_path / "out"), Fit, name="temperature")
    assert fit.n == 600
    decided = np.load(tmp_path / "out" / "probabilities" / "decisions.npz")
    test = np.load(tmp_path / "test.npz")
    rows = {row.name: row for row in select(records.read_rows(tmp_path / "out"), Metric, method=fitted.method.name)}
    hits = decided["members"][np.arange(900), test["labels"]]
    assert rows["set_coverage"].value == pytest.approx(hits.mean())
    assert rows["set_size"].value == pytest.approx(decided["members"].sum(axis=1).mean())
    assert rows["expected_coverage"].n == 300
    answered = decided["answered"]
    wrong = fitted.predict_log_proba(test["logits"]).argmax(axis=1) != test["labels"]
    assert rows["answered_error"].value == pytest.approx(wrong[answered].mean())
    assert rows["answered_bound"].high <= 0.3
    page = html.unescape((tmp_path / "out" / "report.html").read_text())
    said = capsys.readouterr().out
    for text in (page, said):
        assert f"label of 80% of the examples, contain that of {100 * hits.mean():.2f}% [" in text
        assert "With errors of at most 30%, " in text
    again = [*flags, f"--out={tmp_path}/plain"]
    assert main(again) == 0
    assert "What to do with them" not in (tmp_path / "plain" / "report.html").read_text()


def test_empty_sets_are_counted_and_least_one_leaves_none(tmp_path, capsys):
    flags = [*write_samples(tmp_path, n=300), "--methods=temperature_scaling", FEW]
    for more, any_empty in (
        (["--coverage=0.4"], True),
        (["--coverage=0.4", "--least-one"], False),
        (["--coverage=0.999"], 0),
    ):
        out = tmp_path / "-".join(more)
        assert main([*flags, f"--out={out}", *more]) == 0
        empty = ~np.load(out / "probabilities/decisions.npz")["members"].any(axis=1)
        row = select(records.read_rows(out), Metric, name="empty_sets")[-1]
        assert row.value == empty.mean()
        said = capsys.readouterr()
        assert ("of the sets are empty" in said.out) == empty.any() == any_empty
        assert "Empty sets" in (out / "report.html").read_text()
    assert "Every set holds all classes: fewer than 999 examples are held back." in said.err


def test_the_coverage_of_each_group_and_class_is_shown_and_what_has_no_threshold_is_named(tmp_path, capsys):
    flags = [*write_samples(tmp_path, n=300), "--methods=temperature_scaling", FEW, "--coverage=0.9"]
    for name in ("val", "test"):
        arrays = dict(np.load(tmp_path / f"{name}.npz"))
        group = np.where(np.arange(300) < 10, "new" if name == "test" else "a", np.where(arrays["labels"], "a", "b"))
        arrays["labels"][(arrays["labels"] == 2) & (np.arange(300) > 20) & (name == "val")] = 0  # few of class 2 in val
        np.savez(tmp_path / f"{name}.npz", **arrays, group=group)
    labels = arrays["labels"]
    for part, of_test, few, says in (
        ("group", group, ["new"], "Sets hold all classes in groups of which fewer than 9 examples"),
        ("class", labels.astype(str), ["2"], "--sets-of=class_cluster may serve better: every set holds the classes"),
    ):
        out = tmp_path / part
        assert main([*flags, f"--out={out}", f"--sets-of={part}"]) == 0
        decided, rows = np.load(out / "probabilities/decisions.npz"), records.read_rows(out)
        rows = select(rows, Metric, method="temperature_scaling", criterion="nll")
        names = decided["set_parts"].tolist()
        assert names == [row.group for row in rows if row.name == "expected_coverage"] == sorted({*of_test})
        assert decided["set_parts"][np.isinf(decided["set_thresholds"])].tolist() == few
        covered = {row.group: row for row in rows if row.name == "set_coverage" and row.group}
        hits = decided["members"][np.arange(300), labels]
        for name in names:
            row, inside = covered[name], hits[of_test == name]
            assert (row.n, row.value) == (len(inside), pytest.approx(inside.mean()))
            assert (row.low, row.high) == pytest.approx(calibration.wilson_interval(inside.sum(), len(inside)))
        worst = min(names, key=lambda name: covered[name].value)
        page, said = html.unescape((out / "report.html").read_text()), capsys.readouterr()
        assert f"Least covered on test is {part} “{worst}”: {100 * covered[worst].value:.2f}%" in page
        assert says in page
        assert says in said.err
