"""The main job at quick size: what a workdir holds, laws of its rows, going on, and every config."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from focalgeo import calibration, job, parallel, records, report, run
from focalgeo.config import load_config as read_config
from focalgeo.config import parse_arguments, with_values
from focalgeo.job import measurement, preparation
from focalgeo.rows import (
    AttributionPart,
    DensityBin,
    Difference,
    Eigenvalue,
    Fit,
    Metric,
    Scalar,
    Seconds,
    Sharpness,
    Trace,
    encode,
    select,
)
from focalgeo.training import checkpoint
from focalgeo.types import InputError, Predictions, RunError

ROOT = Path(__file__).parent.parent
PLAIN, FOCAL = "temperature_scaling", "focal_temperature_scaling"


def load_config(name="digits", variant="quick"):
    return read_config(ROOT / "configs" / f"{name}.py", variant)


def tiny(config):
    """The same job with fewer evaluations."""
    config.optimizer.epochs = 1
    config.evaluation.update({"num_resamples": 5, "temperature_step": 0.5})
    config.curvature.update({"examples": 8, "max_products": 2, "num_probes": 4, "density_steps": 2})
    return config


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "digits"
    job.run(load_config(), workdir)
    return workdir


@pytest.fixture(scope="module")
def rows(finished):
    return records.read_rows(finished)


def value(rows, name, split="test", **where):
    (row,) = select(rows, Metric, name=name, split=split, **where)
    return row.value


def test_the_workdir_holds_everything(finished):
    names = {str(path.relative_to(finished)) for path in finished.rglob("*")}
    assert names >= {"manifest.json", "metrics.jsonl", "predictions/val.npz", "predictions/test.npz", "search.npz"}
    assert names >= {"report.html", "checkpoints/34/digest.json", "figures/spectral_density_val.svg"}
    assert not [name for name in names if name.endswith(".tmp")]


def test_every_metric_of_every_method_has_its_interval(rows):
    places = [("uncalibrated", None), *((name, by) for name in (PLAIN, FOCAL) for by in ("ece", "nll"))]
    for method, criterion in places:
        for metric in ("accuracy", "nll", "brier", "ece", "adaptive_ece"):
            for split in ("val", "test"):
                (row,) = select(rows, Metric, name=metric, method=method, criterion=criterion, split=split)
                assert row.low <= row.high
                assert (row.n, row.gamma, row.seed, row.step) == (359, 3, 0, 34)
    by_method = {row.method: row.value for row in select(rows, Metric, name="accuracy", split="test")}
    kept = {name for name in by_method if calibration.METHODS[name].keeps_class}
    assert len(by_method) - len(kept) == 3
    assert len({by_method[name] for name in kept}) == 1


def test_methods_are_fitted_on_val_and_compared_on_test_alone(rows):
    for by in ("ece", "nll"):
        focal, plain = (value(rows, by, "val", method=name, criterion=by) for name in (FOCAL, PLAIN))
        assert focal <= plain <= value(rows, by, "val", method="uncalibrated")
    assert {row.split for row in select(rows, Difference)} == {"test"}


def test_the_loss_implied_map_knows_the_training_s_gamma(rows, finished):
    name, val = "loss_implied_temperature_scaling", records.read_predictions(finished, "val")
    fitted = {row.name: row.value for row in select(rows, Fit, method=name)}
    expected = calibration.fit(name, val.logits, val.labels, trained_gamma=3.0)
    assert fitted["calibration_gamma"] == 3
    assert fitted["temperature"] == pytest.approx(float(expected.params["temperature"]), rel=1e-4)


@pytest.mark.parametrize("loss", ["cross_entropy", "focal_loss"])
def test_curvature_carries_its_errors_and_its_parts_sum_to_the_whole(rows, loss):
    (top,), (trace,) = select(rows, Eigenvalue, loss=loss), select(rows, Trace, name="trace", loss=loss)
    assert 0 <= top.residual <= 1e-3 * top.value
    assert trace.low < trace.value < trace.high
    assert trace.value < 64 * top.value  # far fewer than 3,466 directions are curved
    for of in ("trace", "lambda_max"):
        named = {row.part: row.value for row in select(rows, AttributionPart, of=of, loss=loss)}
        assert named["gauss_newton"] + named["residual"] == pytest.approx(named["whole"])
        if loss == "focal_loss":
            assert named["softmax_weighted"] + named["rank_one"] == pytest.approx(named["gauss_newton"])
    bins = select(rows, DensityBin, loss=loss)
    assert sum(row.value for row in bins) == pytest.approx(1, abs=1e-5)
    low, high = (3466 * sum(row.value * getattr(row, end) for row in bins) for end in ("lower", "upper"))
    assert low - 0.5 * trace.value < trace.value < high + 0.5 * trace.value  # two probes


@pytest.mark.long
def test_curvature_between_epochs_where_it_is_asked_for_and_the_rate_of_the_row_s_own_step(tmp_path):
    config = tiny(load_config())
    config.optimizer.update({"epochs": 6, "decay_epochs": (4,)})  # the last is measured after training, once
    config.log_every = 17  # an epoch
    config.curvature.update({"every": 2, "density_probes": 0, "sharpness": True})
    job.run(config, tmp_path / "run")
    rows = records.read_rows(tmp_path / "run")
    assert [row.epoch for row in select(rows, Trace, name="trace", loss="focal_loss")] == [2.0, 4.0, None]
    assert {row.n for row in select(rows, Trace | Sharpness)} == {8}  # examples
    assert [row.epoch for row in select(rows, Sharpness, name="pac_bayes_sigma", loss="focal_loss")] == [None]
    assert "Adaptive sharpness, ρ = 0.5" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    rates = {row.epoch: row.value for row in select(rows, Scalar, name="learning_rate")}
    assert rates == pytest.approx({1.0: 0.1, 2.0: 0.1, 3.0: 0.1, 4.0: 0.1, 5.0: 0.01, 6.0: 0.01})


def test_states_that_memory_does_not_hold_are_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "free_memory", lambda: 40_000)  # parameters and momentum are 28 kB, held twice
    with pytest.raises(InputError, match=r"^1 networks of 3,466 parameters with .* are free: sweep fewer values"):
        job.run(tiny(load_config()), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_the_same_command_on_a_finished_run_changes_nothing_and_redraws_the_page(rows, finished):
    page = (finished / "report.html").read_bytes()
    (finished / "report.html").unlink()
    job.run(load_config(), finished)
    assert list(map(encode, records.read_rows(finished))) == list(map(encode, rows))
    assert {row.phase for row in select(rows, Seconds)} == {"prepare", "compile", "train", "evaluate"}
    assert (finished / "report.html").read_bytes() == page
    (finished / "report.html").unlink()
    report.write_report(finished)
    assert (finished / "report.html").read_bytes() == page


def test_other_data_and_another_config_are_refused_and_nothing_is_lost(finished):
    before, manifest = (finished / "metrics.jsonl").read_bytes(), records.read_manifest(finished)
    config = load_config()
    config.loss.gamma = 4.0
    with pytest.raises(InputError, match=r"belongs to another config \(loss.gamma: 3.0 there, 4.0 here\)"):
        job.run(config, finished)
    records.write_manifest(finished, {**manifest, "data": {**manifest["data"], "checksum": "0123456789ab"}})
    try:
        with pytest.raises(InputError, match=r"digits has changed since the run in .* began \(checksum 012345678"):
            job.run(load_config(), finished)
    finally:
        records.write_manifest(finished, manifest)
    assert (finished / "metrics.jsonl").read_bytes() == before


def test_a_workdir_that_vanishes_ends_the_run_at_its_next_checkpoint(tmp_path, monkeypatch):
    config, save = tiny(load_config()), checkpoint.save
    config.checkpoint.every = 1

    def lost(*arguments, **options):
        save(*arguments, **options)
        (tmp_path / "run").rename(tmp_path / "elsewhere")

    monkeypatch.setattr(checkpoint, "save", lost)
    with pytest.raises(InputError, match="run was removed or moved while its run went on; choose another --workdir"):
        job.run(config, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_other_versions_than_a_run_began_with_are_said(finished, capsys):
    manifest = records.read_manifest(finished)
    versions = {**manifest["versions"], "jax": "0.1.2"}
    records.write_manifest(finished, {**manifest, "versions": versions})
    try:
        job.run(load_config(), finished)
    finally:
        records.write_manifest(finished, manifest)
    assert "began with jax 0.1.2, now" in capsys.readouterr().err


def test_a_run_that_diverges_names_the_step_and_keeps_its_last_good_checkpoint(tmp_path):
    config = tiny(load_config())
    config.optimizer.learning_rate, config.checkpoint.every = 1e12, 1
    with pytest.raises(RunError, match=r"is (nan|inf|-inf) at step \d+; what was saved before is kept") as caught:
        job.run(config, tmp_path / "run")
    step = int(re.search(r"at step (\d+)", str(caught.value))[1])
    assert step > 1
    assert checkpoint.find(tmp_path / "run" / "checkpoints").name == str(step - 1)


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory):
    """Three classes of 32x32 images, coloured by class so that they can be learnt."""
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for split, count in (("train", 24), ("test", 12)):
        for label, name in enumerate(("ant", "bee", "cat")):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                image = rng.integers(0, 120, (32, 32, 3), np.uint8)
                image[..., label] += 100
                Image.fromarray(image).save(folder / split / name / f"{number:03}.png")
    return folder


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "variant", "dtype"),
    [("cifar10", "", "float32"), ("cifar10", "quick", "bfloat16"), ("cifar10_gamma", "", "float32")],
)
def test_every_image_config_runs(tmp_path, image_folder, name, variant, dtype):
    config = tiny(load_config(name, variant))
    config.curvature.density_probes = 0
    if config.sweep.gamma:
        config.sweep.gamma, config.sweep.seed = (0.0, 1.0), (0,)
        config.optimizer.warmup_epochs = 0
    config.data.update({"name": f"folder:{image_folder}", "train_size": 40, "val_size": 30})
    config.optimizer.batch_size = 16
    config.model.dtype, config.model.options.widths = dtype, (4, 8)  # the same network, shallower and thinner
    if config.model.name != "cnn":
        config.model.options.blocks = (1, 1)
    rows = job.run(config, tmp_path / "run")
    members = max(len(config.sweep.gamma), 1)
    assert len(select(rows, Eigenvalue)) == 2 * members
    assert len(select(rows, Metric, name="ece", method="uncalibrated")) == 2 * members
    seen = [row.value for row in select(records.read_rows(tmp_path / "run"), Scalar, name="examples_seen")]
    assert seen[-1] == 40


@pytest.mark.parametrize("size", ["val_size", "test_size"])
def test_too_few_examples_to_calibrate_on_are_refused_before_training(size, tmp_path):
    config = tiny(load_config("digits", "quick"))
    config.data[size] = 29
    with pytest.raises(InputError, match=f"has 29 examples, too few .*: set config.data.{size} to 30"):
        job.run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_speaks_against_a_calibration_is_said(capsys):
    (member,) = preparation.make_members(tiny(load_config("digits", "quick")))
    labels = np.arange(60) % 10
    sure = Predictions(np.float32(20 * np.eye(10)[labels]), labels)
    measurement.calibrate(member, {"val": sure, "test": sure})
    said = capsys.readouterr().err
    assert "warning: 60 examples of test are few for" in said
    assert "config.evaluation.num_bins=1." in said
    assert "warning: Temperature scaling by NLL ended at temperature" in said


def test_a_page_s_python_runs_on_a_finished_job(finished, tmp_path, monkeypatch, capsys):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "digits").symlink_to(finished)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/calibration.md").read_text(), re.DOTALL)
    (block,) = [block for block in blocks if "runs/digits" in block and "compare" in block]
    exec("import numpy as np\nfrom focalgeo import calibration\n" + block, {})
    said, number = capsys.readouterr().out, "[0-9]+[.][0-9]+"
    fit = rf"\{{'gamma': -?{number}, 'temperature': {number}\}} ECE {number} \({number} to {number}\)\n"
    methods = "(Uncalibrated|Temperature scaling|Vector scaling)"
    assert re.fullmatch(rf"{fit}{methods} [0-9]+\n", said), said


@pytest.mark.parametrize("page", ["README.md", "docs/training.md"])
def test_a_page_s_commands_name_configs_and_fields_that_exist(page):
    text = (ROOT / page).read_text()
    commands = re.findall(r"^(?:.* `)?python -m focalgeo\.run ([^`\n]*)`?", text, re.MULTILINE)
    assert len(commands) >= 3
    for command in commands:
        if command.split()[0] != "--fields":
            values, flags = parse_arguments(shlex.split(command, comments=True), run.FLAGS)
            job.check_config(with_values(read_config(ROOT / flags["config"]), values))
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^|`)make ([\w-]+)", text, re.MULTILINE):
        assert f"\n{target}:" in makefile


@pytest.mark.long
def test_a_trace_penalty_lowers_the_trace_on_train_and_both_splits_have_rows(tmp_path):
    traces = []
    for weight in (0.0, 0.001):
        config = load_config("digits_trace", "")
        config.optimizer.update({"epochs": 40, "decay_epochs": (25, 35)})
        config.evaluation.update({"num_resamples": 2, "temperature_step": 0.5})
        config.curvature.update({"max_products": 2, "num_probes": 20})
        config.loss.trace_penalty = weight
        rows = job.run(config, tmp_path / str(weight))
        assert {row.split for row in select(rows, Trace, name="trace", loss="cross_entropy")} == {"val", "train"}
        traces += select(rows, Trace, name="trace", split="train")
        penalties = select(records.read_rows(tmp_path / str(weight)), Scalar, name="penalty")
        assert bool(penalties) == (weight > 0)
        assert all(abs(row.value) < 1 for row in penalties)  # of a mean, not of a sum over the examples
    plain, flat = traces
    assert flat.value + 4 * flat.stderr < plain.value - 4 * plain.stderr
