"""The calibrate command: files of outputs in, probabilities, calibrator.json and a page out; bad input in one line."""

import html
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import digits
from focalgeo import calibrate as command
from focalgeo import calibration, job, records, report, run
from focalgeo.calibrate import main, parse
from focalgeo.calibration import METHODS, METRICS, Fitted, Method, read_calibrator
from focalgeo.config import default_config, load_config
from focalgeo.data.logits_files import Outputs
from focalgeo.job import calibrate as job_calibrate
from focalgeo.job import calibration as job_calibration
from focalgeo.job.members import make_members
from focalgeo.job.calibrate import Inputs, _chi_square_p_value, input_warnings, noise_floor
from focalgeo.report.__main__ import main as report_main
from focalgeo.rows import Difference, Fit, Metric, ReliabilityBin, select
from focalgeo.types import InputError, Predictions

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "calibration.md"
FEW = "--num-resamples=100"
NAMES = ("temperature_scaling", "focal_temperature_scaling")


def draw(n, classes, *, sharpness=1.7, seed=0):
    """Logits `sharpness` times those that the labels are drawn from."""
    rng = np.random.default_rng(seed)
    truth = 2 * rng.standard_normal((n, classes))
    labels = np.argmax(truth + rng.gumbel(size=truth.shape), axis=1)
    return (sharpness * truth).astype(np.float32), labels


def write_samples(folder, *, n, classes=3):
    """val.npz and test.npz."""
    for seed, split in enumerate(("val", "test")):
        logits, labels = draw(n, classes, seed=seed)
        np.savez(folder / f"{split}.npz", logits=logits, labels=labels)


def files_in(folder):
    return [f"--{split}={folder}/{split}.npz" for split in ("val", "test")]


def outputs(logits, labels, **fields):
    settings = {"source": "a.npz", "checksum": str(labels[:9]), "given": "logits", "group": None}
    settings |= {"saturated": 0, "looks_like_probs": False, **fields}
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
    files = files_in(trained / "predictions")
    assert main([*files, f"--out={out}", FEW, "--trained-gamma=3"]) == 0
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
    command = [f"--val={folder}/val.csv", f"--out={folder}/out", *keys, FEW, "--folds=3", "--criterion=nll"]
    assert main(command) == 0
    return folder / "out"


def by_place(rows):
    kinds = (Metric, ReliabilityBin, Difference, Fit)
    fields = ("name", "split", "method", "criterion", "bin", "against")
    rows = [row for row in rows if isinstance(row, kinds) and row.method is not None]
    return {tuple(getattr(row, field, None) for field in fields): row for row in rows}


def test_the_main_jobs_predictions_give_the_main_jobs_rows(trained, finished):
    theirs, ours = (by_place(records.read_rows(folder)) for folder in (trained, finished))
    on_test = {
        place: row for place, row in theirs.items() if getattr(row, "split", None) != "val" or isinstance(row, Fit)
    }
    assert len(on_test) > 100
    for place, row in on_test.items():
        for field in {"value", "low", "high", "confidence", "n"} & set(row._fields):
            wanted = getattr(row, field)
            np.testing.assert_allclose(getattr(ours[place], field), wanted, atol=1e-6, err_msg=f"{place} {field}")
    search = records.read_arrays(finished, "search")
    for name, values in records.read_arrays(trained, "search").items():  # the command goes on to higher temperatures
        np.testing.assert_allclose(search[name][..., : values.shape[-1]], values, atol=1e-6)


def test_both_manifests_name_methods_and_metrics_in_the_order_of_their_tables(trained, finished):
    for folder in (trained, finished):
        manifest = records.read_manifest(folder)
        assert list(manifest["methods"]) == list(METHODS)
        assert list(manifest["metrics"]) == list(METRICS)
        assert manifest["methods"]["temperature_scaling"] == {
            "title": "Temperature scaling",
            "criteria": ["nll", "ece", "adaptive_ece"],
            "keeps_class": True,
        }
        assert manifest["methods"]["vector_scaling"]["keeps_class"] is False
        assert manifest["metrics"]["accuracy"]["best"] == "high"


def test_the_folder_holds_everything_and_nothing_half_written(finished):
    names = {str(path.relative_to(finished)) for path in finished.rglob("*") if path.is_file()}
    wanted = {"manifest.json", "metrics.jsonl", "search.npz", "calibrator.json", "report.html"}
    assert wanted | {"probabilities/val.npz", "probabilities/test.npz"} <= names
    assert not [name for name in names if name.endswith(".tmp")]


def test_the_probabilities_are_those_of_the_calibrator(trained, finished):
    calibrator = read_calibrator(finished / "calibrator.json")
    assert calibrator.num_classes == 10
    for split in ("val", "test"):
        given = records.read_predictions(trained, split)
        found = records.read_arrays(finished / "probabilities", split)
        np.testing.assert_allclose(found["log_probs"], calibrator.log_probs(given.logits), atol=1e-5)
        np.testing.assert_allclose(found["probs"], np.exp(found["log_probs"]), rtol=1e-6)
        np.testing.assert_array_equal(found["labels"], given.labels)
        assert found["probs"].dtype == np.float32


def test_the_page_says_what_the_rows_say_and_can_be_made_again(finished):
    page = (finished / "report.html").read_text()
    for heading in ("Before and after calibration", "Loss-implied map: what the training loss did", "How to apply it"):
        assert f"<h2>{heading}</h2>" in page
    for absent in ("Two classes", "Group by group"):
        assert f"<h2>{absent}" not in page
    assert "trained with focal loss, γ\u00a0=\u00a03" in page
    assert "python -m focalgeo.calibrate --val=" in page
    drawn = len({row.method for row in select(records.read_rows(finished), ReliabilityBin)} - {"loss_implied_map"})
    assert page.count("<svg ") == drawn + 6  # differences, classes, the loss-implied map twice, the search twice
    assert not re.search(r"<script|<link|src=|https?://(?!www\.w3\.org)", page)
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert report.write_report(finished).read_text() == page


def test_the_same_command_may_run_again_and_another_may_not(trained, finished, capsys):
    files = files_in(trained / "predictions")
    before = (finished / "metrics.jsonl").read_text().splitlines()
    assert main([*files, f"--out={finished}", FEW, "--trained-gamma=3", "--seed=1"]) == 2
    assert "seed: 0 there, 1 here); choose another --out, or delete this one" in capsys.readouterr().err
    assert main([*files, f"--out={finished}", FEW, "--trained-gamma=3"]) == 0
    after = (finished / "metrics.jsonl").read_text().splitlines()
    kept = [[line for line in lines if '"seconds"' not in line] for lines in (before, after)]
    assert kept[0] == kept[1]


def apply_snippet(page, folder, logits):
    """Run what the page shows, in a process's own names, beside calibrator.json."""
    (text,) = re.findall(r'<pre id="snippet">(.*?)</pre>', page, re.DOTALL)
    names = {"logits": logits}
    exec(html.unescape(text).replace('"calibrator.json"', repr(str(folder / "calibrator.json"))), names)
    return names["probs"]


def test_the_snippet_on_the_page_gives_our_probabilities(trained, finished):
    logits = records.read_predictions(trained, "test").logits
    probs = apply_snippet((finished / "report.html").read_text(), finished, logits)
    np.testing.assert_allclose(probs, records.read_arrays(finished / "probabilities", "test")["probs"], atol=2e-6)
    assert "These 6 lines of NumPy apply it without focalgeo:" in (finished / "report.html").read_text()


def test_two_classes_have_both_kinds_of_calibration_and_groups_are_named(binary):
    rows, page = records.read_rows(binary), (binary / "report.html").read_text()
    for name in ("class1_ece", "ece"):
        found = select(rows, Metric, name=name, criterion="nll") + select(rows, Metric, name=name, criterion=None)
        assert {row.method for row in found} >= {"uncalibrated", *NAMES}
    assert "<h2>Two classes: top-label and class-1 calibration</h2>" in page
    assert "<h2>Group by group</h2>" in page
    groups = select(rows, Metric, name="group_ece", method=read_calibrator(binary / "calibrator.json").method.name)
    largest = max(groups, key=lambda row: row.value)
    assert all(row.low < row.high for row in select(rows, Metric, name="group_ece"))
    assert f"is group “{largest.group}”: ECE {100 * largest.value:.2f}% [" in page
    assert "fewer than 100 examples are left out of the table of groups: few." in page
    assert "logits = np.log(np.maximum(probs, 1.1754944e-38))" in page


def test_without_test_the_rows_are_of_held_out_examples(binary):
    rows = records.read_rows(binary)
    assert {row.split for row in select(rows, Metric, name="ece")} == {"cross_fit"}
    assert {row.split for row in select(rows, Fit, name="temperature")} == {"val"}
    found = records.read_arrays(binary / "probabilities", "cross_fit")
    choice = read_calibrator(binary / "calibrator.json")
    nll = -found["log_probs"][np.arange(600), found["labels"]].mean()
    (row,) = select(rows, Metric, name="nll", method=choice.method.name, criterion="nll")
    np.testing.assert_allclose(row.value, nll, atol=1e-5)
    assert (
        "every example is measured with methods that were fitted without its fold"
        in (binary / "report.html").read_text()
    )


def test_probabilities_of_zero_are_warned_of_and_the_snippet_takes_them(tmp_path, capsys):
    logits, labels = draw(600, 3)
    probs = np.array(jax.nn.softmax(logits))
    probs[:5] = np.eye(3)[(labels[:5] + 1) % 3]
    np.savez(tmp_path / "val.npz", probs=probs, labels=labels)
    assert main([f"--val={tmp_path}/val.npz", f"--out={tmp_path}/out", FEW]) == 0
    assert (
        "In 5 examples of val the true class has probability 0, which is taken for 1.2e-38" in capsys.readouterr().err
    )
    with np.load(tmp_path / "out" / "probabilities" / "val.npz") as found:
        page = (tmp_path / "out" / "report.html").read_text()
        ours = apply_snippet(page, tmp_path / "out", np.log(np.maximum(probs, 1.1754944e-38)))
        np.testing.assert_allclose(ours, found["probs"], atol=2e-6)


def test_the_choice_sees_methods_that_were_fitted_without_the_example(tmp_path, monkeypatch):
    seen, cross_fit, choose = {}, calibration.cross_fit, calibration.choose

    def watched_fit(*arguments, **settings):
        seen["held_out"] = cross_fit(*arguments, **settings)
        return seen["held_out"]

    def watched_choice(fits, differences, **settings):
        seen["differences"] = differences
        return choose(fits, differences, **settings)

    monkeypatch.setattr("focalgeo.calibration.comparison.cross_fit", watched_fit)
    monkeypatch.setattr("focalgeo.calibration.comparison.choose", watched_choice)
    write_samples(tmp_path, n=300)
    assert main([*files_in(tmp_path), f"--out={tmp_path}/out", FEW, "--folds=3"]) == 0
    assert {row.split for row in seen["differences"]} == {"cross_fit"}
    _, labels = draw(300, 3)
    log_probs = {(each.method.name, each.criterion): each.log_probs for each in seen["held_out"]}
    (row,) = select(seen["differences"], Difference, name="nll_difference", method=NAMES[0], against="uncalibrated")
    nll = calibration.nll(log_probs[NAMES[0], "nll"], labels) - calibration.nll(log_probs["uncalibrated", None], labels)
    np.testing.assert_allclose(row.value, nll, atol=1e-6)


@pytest.mark.long
def test_logits_eight_times_too_large_are_scaled_back(tmp_path, capsys):
    logits, labels = draw(3000, 5, sharpness=8)
    np.savez(tmp_path / "val.npz", logits=logits, labels=labels)
    assert main([f"--val={tmp_path}/val.npz", f"--out={tmp_path}/out", FEW, "--criterion=nll"]) == 0
    found = read_calibrator(tmp_path / "out" / "calibrator.json")
    assert found.method.name == "temperature_scaling"
    assert found.parameters["temperature"] == pytest.approx(8, rel=0.1)


def fit_class_scaling(logits, labels, *, criterion, mask=None):
    """A scale and a bias of each class by 300 steps down the gradient of the NLL."""
    weight = np.ones(len(labels), np.float32) if mask is None else np.float32(mask)

    def loss(params):
        log_probs = apply_class_scaling(params, logits)
        return -jnp.average(jnp.take_along_axis(log_probs, labels[:, None], axis=1)[:, 0], weights=weight)

    step = lambda _, params: jax.tree.map(lambda at, slope: at - 0.1 * slope, params, jax.grad(loss)(params))  # noqa: E731
    classes = logits.shape[1]
    start = {"scale": jnp.ones(classes, jnp.float32), "bias": jnp.zeros(classes, jnp.float32)}
    return jax.lax.fori_loop(0, 300, step, start)


def apply_class_scaling(params, logits):
    return jax.nn.log_softmax(logits * params["scale"][None] + params["bias"][None])


NEW = (*NAMES, "class_scaling")
MEASURED = {"accuracy", "nll", "brier", "classwise_ece"}
METRICS_FLAG = f"--metrics={','.join(sorted(MEASURED))}"


@pytest.fixture
def extended(monkeypatch):
    """A method more, by one entry."""
    method = Method("class_scaling", "Class scaling", fit_class_scaling, apply_class_scaling, ("nll",))
    monkeypatch.setitem(METHODS, "class_scaling", method._replace(keeps_class=False))


def biased(n, seed):
    """Logits with a bias of the classes, which no temperature takes away."""
    logits, labels = draw(n, 3, seed=seed)
    return logits + np.float32([1.5, 0.0, -1.0]), np.int32(labels)


def holds_the_method(rows, split):
    """Metrics, differences and a metric asked for of class scaling."""
    found = select(rows, Metric, split=split, method="class_scaling", criterion="nll", group=None)
    assert {row.name for row in found} == MEASURED
    for against, criterion in ((NAMES[0], "nll"), ("uncalibrated", None)):
        place = {"split": split, "method": "class_scaling", "against": against, "against_criterion": None}
        found = {row.name: row for row in select(rows, Difference, **place)}
        assert set(found) == {f"{name}_difference" for name in MEASURED}, criterion
        assert found["nll_difference"].high < 0


@pytest.mark.parametrize("given", [("val", "test"), ("val",)])
@pytest.mark.usefixtures("extended")
def test_a_new_method_and_a_new_metric_need_an_entry_each_and_nothing_else(tmp_path, given, capsys):
    for seed, split in enumerate(("val", "test")):
        logits, labels = biased(500, seed)
        np.savez(tmp_path / f"{split}.npz", logits=logits, labels=labels)
    files = [f"--{split}={tmp_path}/{split}.npz" for split in given]
    assert main([*files, f"--out={tmp_path}/out", FEW, f"--methods={','.join(NEW)}", METRICS_FLAG, "--folds=2"]) == 0
    rows, page = records.read_rows(tmp_path / "out"), (tmp_path / "out" / "report.html").read_text()
    holds_the_method(rows, "test" if "test" in given else "cross_fit")
    printed = capsys.readouterr().out
    assert "to use: class scaling" in printed
    calibrator = read_calibrator(tmp_path / "out" / "calibrator.json")
    assert (calibrator.method.name, calibrator.criterion, set(calibrator.parameters)) == (
        "class_scaling",
        "nll",
        {"scale", "bias"},
    )
    for split in given:
        with np.load(tmp_path / f"{split}.npz") as arrays:
            log_probs = records.read_arrays(tmp_path / "out" / "probabilities", split)["log_probs"]
            np.testing.assert_allclose(calibrator.log_probs(arrays["logits"]), log_probs, atol=1e-5)
    manifest = records.read_manifest(tmp_path / "out")
    entry = {"title": "Class scaling", "criteria": ["nll"], "keeps_class": False}
    assert manifest["methods"]["class_scaling"] == entry
    assert "Class scaling" in page
    assert "Class-wise ECE" in page


@pytest.mark.usefixtures("extended")
def test_the_main_job_takes_the_new_method_and_metric_too():
    config = digits.get_config("quick")
    config.evaluation.num_resamples = 20
    config.evaluation.methods, config.evaluation.metrics = NEW, tuple(MEASURED)
    predictions = {
        split: Predictions(*biased(400, seed), np.ones(400, bool)) for seed, split in enumerate(("val", "test"))
    }
    predictions = {split: each._replace(logits=each.logits[:, None]) for split, each in predictions.items()}
    ((rows, search),) = job_calibration.calibrate_members(make_members(config), predictions)
    holds_the_method(rows, "test")
    assert {row.method for row in select(rows, Metric, name="classwise_ece", split="val")} >= {"class_scaling", *NAMES}
    assert set(search) == {"gammas", "temperatures", "ece", "nll"}


OPTIONS = parse(["--val=v", "--out=o", "--num-bins=10"])


def fitted_at(temperature, *, converged=True):
    params = {"temperature": np.float32(temperature), "converged": converged}
    return [Fitted(METHODS["uncalibrated"], None, {}), Fitted(METHODS["temperature_scaling"], "ece", params)]


SAME = draw(2000, 4, seed=1), draw(2000, 4, seed=2)


def warnings_of(val, test, fits=None, also=None):
    return input_warnings(OPTIONS, inputs.Inputs(val, test, also or {}), fits or fitted_at(1.5))


def test_files_without_faults_have_no_warnings():
    assert warnings_of(*(outputs(*pair) for pair in SAME)) == []
    assert warnings_of(outputs(*SAME[0]), None) == []


@pytest.mark.parametrize(
    ("val", "test", "says"),
    [
        (outputs(*draw(400, 4)), None, "400 examples of val are few for 10 bins"),
        (outputs(*SAME[0], looks_like_probs=True), None, "The logits of val look like probabilities"),
        (
            outputs(*SAME[0]),
            outputs(*SAME[1], saturated=7),
            "7 of 2,000 examples of test have a probability of exactly",
        ),
        (outputs(SAME[0][0], SAME[0][1] % 3), None, "No example of val has label 3"),
        (outputs(*SAME[0]), outputs(*SAME[0]), "Val and test hold the same examples"),
        (outputs(*SAME[0]), outputs(SAME[1][0], np.minimum(SAME[1][1], 2)), "differ in their class shares"),
        (outputs(*SAME[0]), outputs(*draw(2000, 4, sharpness=3.0)), "differ in mean confidence beyond noise"),
        (outputs(*SAME[0]), outputs(SAME[1][0], SAME[1][1][::-1]), "differ in accuracy beyond noise"),
        (outputs(*SAME[0], group=np.where(np.arange(2000) < 5, "x", "y")), None, "left out of the table of groups: x."),
    ],
)
def test_each_fault_has_its_warning(val, test, says):
    assert any(says in warning for warning in warnings_of(val, test))


@pytest.mark.parametrize("seed", [6, 17])
def test_a_small_test_set_that_differs_by_chance_is_not_warned_of(seed):
    logits, labels = draw(60, 4, seed=seed)
    assert not any("differ" in warning for warning in warnings_of(outputs(*SAME[0]), outputs(logits, labels)))


def rounded(n, *, sharpness=1.7, step=1.0):
    """Outputs of two classes in whole steps of the logits: many rows are equal by that alone."""
    logits, labels = draw(n, 2, sharpness=sharpness, seed=3)
    return outputs(np.round(logits / step) * step, labels)


def test_copies_are_warned_of_and_rows_that_rounding_makes_equal_are_not():
    logits, labels = SAME[0]
    few, many = (np.r_[:2000, :copies] for copies in (20, 50))
    assert warnings_of(outputs(logits[few], labels[few]), None) == []
    (warning,) = warnings_of(outputs(logits[many], labels[many]), None)
    assert warning.startswith("50 of 2,050 rows of val repeat others in all logits and the label: if they are copies,")
    signed = logits[many] * np.float32([1, 1, 1, 0])
    signed[:2000, 3], signed[2000:, 3] = 0.0, -0.0  # which are equal
    assert any("50 of 2,050 rows" in each for each in warnings_of(outputs(signed, labels[many]), None))
    (warning,) = warnings_of(outputs(*SAME[0]), outputs(np.repeat(logits, 2, 0), np.repeat(labels, 2)))
    assert warning.startswith("2,000 of 4,000 rows of test repeat others")


@pytest.mark.parametrize(
    "equal",
    [
        rounded(2000),
        rounded(50_000, step=0.05),
        rounded(2000, step=0.01),
        outputs(np.zeros((2000, 2)), draw(2000, 2)[1]),
        outputs(1e4 * np.eye(4)[SAME[0][1]], SAME[0][1]),
    ],
    ids=["whole numbers", "many examples", "fine steps", "constant", "sure and right"],
)
def test_outputs_that_are_equal_by_rounding_are_no_copies(equal):
    assert not any("repeat" in warning for warning in warnings_of(equal, None))


def test_predictions_from_elsewhere_in_another_order_are_asked_about():
    (logits, labels), (other, truth) = SAME
    log_probs, of_test = (np.asarray(jax.nn.log_softmax(each / 1.7)) for each in (logits, other))
    val, test = outputs(logits, labels), outputs(other, truth)
    assert warnings_of(val, test, also={"mine": (log_probs, of_test)}) == []
    (warning,) = warnings_of(val, test, also={"mine": (log_probs, of_test[np.argsort(truth)])})
    assert re.fullmatch(
        r"--also=mine is right in 2\d\.\d% of test, no more than by chance, and the outputs as given in \d\d\.\d%: are"
        r" its rows in the order of --test\?",
        warning,
    )
    (warning,) = warnings_of(val, None, also={"mine": (log_probs[::-1], None)})
    assert warning.endswith("are its rows in the order of --val?")
    guess = outputs(np.zeros((2000, 4)) + np.arange(2000)[:, None], labels)  # no better than chance themselves
    assert warnings_of(guess, None, also={"mine": (log_probs[::-1], None)}) == []


def test_a_class_with_fewer_examples_than_folds_is_named_where_a_method_has_numbers_of_each_class():
    logits, labels = SAME[0]
    kept = np.sort(np.r_[np.flatnonzero(labels != 3), np.flatnonzero(labels == 3)[:4]])
    val = outputs(logits[kept], labels[kept])
    vector = Fitted(METHODS["vector_scaling"], "nll", {"temperature": np.float32(1.5), "biases": np.zeros(4)})
    assert warnings_of(val, None) == []
    (warning,) = warnings_of(val, None, [*fitted_at(1.5), vector])
    assert warning.startswith("Fewer than 5 examples of val, the number of folds, have label 3: what methods with")
    assert warnings_of(outputs(*SAME[0]), None, [*fitted_at(1.5), vector]) == []


def test_class_shares_of_rare_classes_are_compared_together():
    rng, shares = np.random.default_rng(0), 1 / np.arange(1, 1001)
    tables = (np.stack([rng.multinomial(n, shares / shares.sum()) for n in (100, 10_000)]) for _ in range(2000))
    alarms = np.mean([_chi_square_p_value(table[:, table.any(axis=0)]) < 0.0027 for table in tables])
    assert alarms < 0.006
    assert _chi_square_p_value(np.array([[30, 30, 1, 2], [30, 30, 2, 1]])) > 0.5
    assert _chi_square_p_value(np.array([[2, 1], [1, 2]])) == 1
    assert _chi_square_p_value(np.array([[60, 2, 0], [30, 9, 30]])) < 1e-6


def test_as_many_folds_as_examples_are_taken_and_no_more(tmp_path):
    write_samples(tmp_path, n=40)
    options = parse([f"--val={tmp_path / 'val.npz'}", f"--out={tmp_path / 'out'}", "--folds=40"])
    inputs.read_inputs(options)
    with pytest.raises(InputError, match="--folds is 41, but val has 40 examples"):
        inputs.read_inputs(options._replace(num_folds=41))


def test_a_fit_at_the_end_of_the_grid_has_a_warning():
    warnings = warnings_of(outputs(*SAME[0]), None, fitted_at(0.01, converged=False))
    (warning,) = [warning for warning in warnings if "end of" in warning]
    assert warning == (
        "Temperature scaling by ECE ended at temperature 0.01, an end of the range searched: it is not chosen."
    )


def test_a_fit_that_ended_inside_its_range_is_not_told_as_at_its_end():
    params = {"temperature": np.float32(0.93), "shares": np.float32([1, 0, 0]), "converged": False}
    fits = [*fitted_at(1.2), Fitted(METHODS["ensemble_temperature_scaling"], "nll", params)]
    assert warnings_of(outputs(*SAME[0]), None, fits) == [
        "Ensemble temperature scaling by NLL did not converge: it is not chosen."
    ]


def test_a_gamma_at_the_end_of_the_grid_has_a_warning():
    params = {"gamma": np.float32(5), "temperature": np.float32(4.06), "converged": False}
    fits = [*fitted_at(1.2), Fitted(METHODS["focal_temperature_scaling"], "ece", params)]
    (warning,) = [warning for warning in warnings_of(outputs(*SAME[0]), None, fits) if "end of" in warning]
    assert warning.startswith("Focal temperature scaling by ECE ended at gamma 5 and temperature 4.06, an end of")


def test_the_noise_floor_is_the_ece_of_labels_drawn_from_the_confidences():
    logits, _ = draw(400, 4)
    rng = np.random.default_rng(5)
    ece = jax.jit(lambda labels: calibration.ece(jax.nn.log_softmax(jnp.asarray(logits)), labels, num_bins=10))
    draws = [ece(np.int32(np.argmax(logits + rng.gumbel(size=logits.shape), axis=1))) for _ in range(200)]
    assert abs(noise_floor(jax.nn.log_softmax(logits), 10) / np.mean(draws) - 1) < 0.1


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    for name, classes in (("val", 3), ("other", 4)):
        logits, labels = draw(60, classes)
        np.savez(folder / f"{name}.npz", logits=logits, labels=labels)
    return folder


def one_line(arguments, capsys):
    assert main([str(argument) for argument in arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert re.fullmatch(r"focalgeo: [^\n]+\n", output.err)
    return output.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            [],
            "--val is missing: for example python -m focalgeo.calibrate --val=val.npz --test=test.npz --out=runs/mine",
        ),
        (["--val=a.npz"], "--out is missing"),
        (["--vla=a.npz"], "the flag is '--vla': did you mean '--val'?"),
        (["val.npz"], "unknown argument 'val.npz'"),
        (["--val=a", "--out=o", "--seed=x"], "--seed: invalid int value: 'x'"),
        (["--val=a", "--out=o", "--seed=-1"], "--seed is -1: it must be from 0 to"),
        (["--val=a", "--out=o", "--folds=1"], "--folds is 1: it must be from 2 to 100"),
        (["--val=a", "--out=o", "--num-bins=0"], "--num-bins is 0"),
        (["--val=a", "--out=o", "--num-resamples=1"], "--num-resamples is 1"),
        (["--val=a", "--out=o", "--criterion=ecce"], "--criterion is 'ecce': did you mean 'ece'?"),
        (["--val=a", "--out=o", "--trained-gamma=nan"], "--trained-gamma is nan: it must be from 0 to 100"),
        (["--val=a", "--out=o", "--logits-key=z", "--probs-key=p"], "--logits-key and --probs-key are both given"),
        (["--val=a", "--out=o", "--test="], "--test= has no value: give one or leave the flag out"),
        (["--val=a", "--out=o", ""], "an argument is empty"),
        (["--val=a", "--out=o", "--val=b"], "--val is given 2 times: give it once"),
        (["--val=a\nb", "--out=o"], r"--val=a\nb holds what is no UTF-8 text on one line"),
        (["--val=a", "--out=o", "--num-bins=1_0"], "--num-bins: invalid int value: '1_0', give a whole number"),
        (["--val=a", "--out=o", "--trained-gamma=1_0"], "--trained-gamma: invalid float value: '1_0'"),
        (
            ["--val=a", "--out=o", "--num-resamples=1000000"],
            "--num-resamples is 1000000: it must be from 100 to ",
        ),
        (["--val=nowhere.npz", "--out=o"], "cannot read nowhere.npz: No such file or directory"),
    ],
)
def test_wrong_flags_are_one_line(arguments, says, capsys):
    assert says in one_line(arguments, capsys)


def test_a_tilde_is_the_home_folder_in_every_command(tmp_path, monkeypatch, capsys):
    home = tmp_path / "home"
    home.mkdir()
    write_samples(home, n=60)
    (home / "job.py").write_text("from focalgeo.config import default_config as get_config\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    options = parse(["--val=~/val.npz", "--test=~/test.npz", "--out=~/out"])
    assert options.out == f"{home}/out"
    val, test, _ = inputs.read_inputs(options)
    assert len(val.labels) == len(test.labels) == 60
    with np.load(home / "val.npz") as arrays:
        for name in arrays:
            np.save(home / f"{name}.npy", arrays[name])
    pair = inputs.read_inputs(parse(["--val=logits=~/logits.npy,labels=~/labels.npy", "--out=~/o"])).val
    np.testing.assert_array_equal(pair.logits, val.logits)
    assert run.parse(["--config=~/job.py", "--workdir=~/work"]).workdir == f"{home}/work"
    assert load_config("~/job.py").seed == default_config().seed
    for arguments in (["~/gone"], ["~/gone", "~/away", "--out=~/together"]):
        assert report_main(arguments) == 2
        assert f"{home}/gone" in capsys.readouterr().err
    assert "~no-such-user/out begins with ~" in one_line(["--val=~/val.npz", "--out=~no-such-user/out"], capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"logits": np.full((60, 3), np.nan)}, "val: logits of 60 examples are NaN or infinite, the first in row 0"),
        ({"logits": None, "probs": np.full((60, 3), 0.3)}, "60 rows of probs do not sum to 1"),
        ({"logits": None, "probs": np.full((60, 3), -3.0)}, "no probability: if these are logits, say --logits-key"),
        ({"labels": np.full(60, 0.5)}, "labels"),
        ({"labels": np.full(60, 3)}, "labels[0] is 3"),
        ({"labels": np.zeros(59, int)}, "labels have shape (59,)"),
        ({"labels": np.array([None] * 60)}, "holds pickled objects, which could run code"),
        ({"logits": np.zeros((60, 1))}, "logits have 1 class"),
        ({"logits": np.zeros((10, 3)), "labels": np.zeros(10, int)}, "val has 10 examples"),
    ],
)
def test_bad_files_are_one_line_and_leave_nothing_behind(good, tmp_path, capsys, arrays, says):
    whole = {**np.load(good / "val.npz"), **arrays}
    np.savez(tmp_path / "a.npz", **{name: array for name, array in whole.items() if array is not None})
    assert says in one_line([f"--val={tmp_path}/a.npz", f"--out={tmp_path}/out"], capsys)
    for name, content in (("empty.npz", b""), ("short.npz", (good / "val.npz").read_bytes()[:-50])):
        (tmp_path / name).write_bytes(content)
        assert name in one_line([f"--val={tmp_path / name}", f"--out={tmp_path}/out"], capsys)
    assert not (tmp_path / "out").exists()


def test_two_files_that_do_not_go_together_are_one_line(good, tmp_path, capsys):
    arguments = [f"--val={good}/val.npz", f"--test={good}/other.npz", f"--out={tmp_path}/out"]
    assert "val has 3 classes and test 4: give two files of one classifier" in one_line(arguments, capsys)
    assert not (tmp_path / "out").exists()
    logits, labels = draw(300, 3)
    np.savez(tmp_path / "a.npz", logits=logits, labels=labels, group=np.arange(300))
    assert "group has 300 different values" in one_line([f"--val={tmp_path}/a.npz", f"--out={tmp_path}/o"], capsys)
    assert "--folds is 70, but val has 60 examples" in one_line(
        [f"--val={good}/val.npz", "--folds=70", f"--out={tmp_path}/o"], capsys
    )


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--methods=loss_implied_temperature_scaling"], "was trained with: give --trained-gamma="),
        (["--methods=vektor_scaling"], "--methods is 'vektor_scaling': did you mean 'vector_scaling'?"),
        (["--metrics=ecce"], "--metrics is 'ecce': did you mean"),
        (["--also=temperature_scaling=also.npz"], "--also names temperature_scaling, a method of focalgeo's own"),
        (["--also=val=also.npz"], "--also names val as a method, the name of a split: give each method its own name"),
        (["--also=a=also.npz", "--also=a=also.npz"], "--also names a twice"),
    ],
)
def test_methods_that_cannot_be_compared_are_one_line_and_leave_nothing_behind(
    good, tmp_path, capsys, monkeypatch, flags, says
):
    monkeypatch.chdir(tmp_path)
    np.savez("also.npz", val=np.full((60, 3), 1 / 3))
    assert says in one_line([f"--val={good}/val.npz", "--out=out", *flags], capsys)
    assert not Path("out").exists()


@pytest.mark.parametrize("flags", [["--methods=uncalibrated"], ["--methods=loss_implied_map", "--trained-gamma=2"]])
def test_methods_of_which_none_is_fitted_are_compared(good, tmp_path, capsys, flags):
    assert main([f"--val={good}/val.npz", f"--out={tmp_path}/out", FEW, *flags]) == 0
    assert "to use: uncalibrated" in capsys.readouterr().out
    assert "Leave the outputs as they are" in (tmp_path / "out" / "report.html").read_text()


def test_an_out_folder_that_holds_something_else_or_cannot_be_written_is_one_line(good, trained, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("gone")
    for out, says in (
        (tmp_path / "mine", "is not empty and has no manifest.json; choose another --out"),
        (tmp_path / "file", "is a file, not a folder; choose another --out"),
        (tmp_path / "link", "is a link to gone, where nothing is"),
        (tmp_path / "file" / "out", "a file stands where a folder should be: move it or choose another --out"),
        (trained, "belongs to another config"),
    ):
        assert says in one_line([f"--val={good}/val.npz", f"--out={out}"], capsys)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_bins_beyond_examples_or_memory_are_one_line(good, tmp_path, capsys, monkeypatch):
    arguments = [f"--val={good}/val.npz", f"--out={tmp_path}/out"]
    assert "--num-bins is 61, but val has 60 examples: give fewer" in one_line([*arguments, "--num-bins=61"], capsys)
    monkeypatch.setattr(inputs, "free_memory", lambda: 30_000)
    assert "60 examples of val needs 0.0 GiB of memory" in one_line(arguments, capsys)


def test_files_beyond_memory_are_one_line(good, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "read_inputs", lambda options: bytes(2**62))
    assert command.main([f"--val={good}/val.npz", f"--out={tmp_path}/out"]) == 3
    assert capsys.readouterr().err == "focalgeo: the files need more memory than is free: give fewer examples\n"


def test_what_takes_minutes_is_said_to(capsys):
    small, large = (outputs(*draw(n, 4)) for n in (300, 20_000))
    job_calibrate._say_how_long(OPTIONS, small, small)
    assert capsys.readouterr().err == ""
    options = OPTIONS._replace(num_resamples=100_000)
    job_calibrate._say_how_long(options, large, large)
    assert re.search(r"about \d+ minutes of one core: 100,000 resamples", capsys.readouterr().err)


def test_help_and_errors_are_answered_at_once_and_without_jax(good):
    script = "import sys; from focalgeo.calibrate import main; code = main(sys.argv[1:]); "
    script += "assert not {'jax', 'matplotlib', 'scipy'} & set(sys.modules); sys.exit(code)"
    for arguments, code in ((["--help"], 0), (["--vla=x"], 2), ([f"--val={good}/nowhere.npz", "--out=o"], 2)):
        began = time.perf_counter()
        found = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, cwd=ROOT)
        assert found.returncode == code, found.stderr
        assert "Traceback" not in found.stderr
        assert time.perf_counter() - began < 5  # under 0.4 s on an idle core


def test_the_page_s_command_runs_as_written(tmp_path, monkeypatch, capsys):
    (command,) = re.findall(r"^python -m focalgeo\.calibrate (.*)$", PAGE.read_text(), re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    write_samples(tmp_path, n=300)
    assert main(shlex.split(command)) == 0
    assert "report: runs/mine/report.html" in capsys.readouterr().out
    assert read_calibrator("runs/mine/calibrator.json").num_classes == 3


def test_uncalibrated_is_measured_whatever_methods_are_named():
    config = digits.get_config("quick")
    config.evaluation.methods = ("loss_implied_map",)
    config.loss.name, config.evaluation.num_resamples = "cross_entropy", 10
    logits = np.random.default_rng(0).normal(size=(60, 1, 10)).astype(np.float32)
    labels = np.argmax(logits[:, 0], axis=1).astype(np.int32)
    predictions = {split: Predictions(logits, labels, np.ones(60, bool)) for split in ("val", "test")}
    ((rows, _),) = job_calibration.calibrate_members(make_members(job.check_config(config)), predictions)
    assert {row.method for row in select(rows, Metric, split="test")} == {"uncalibrated"}
