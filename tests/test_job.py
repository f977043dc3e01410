"""The main job at quick size: what a workdir holds, laws of its rows, going on, and every config."""

import gc
import json
import os
import re
import shlex
import struct
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from focalgeo import calibration, job, parallel, records, report, run
from focalgeo.config import load_config as read_config
from focalgeo.config import parse_arguments, with_values
from focalgeo.job import measurement, preparation, training
from focalgeo.job.members import make_members
from focalgeo.rows import (
    AttributionPart,
    DensityBin,
    Difference,
    Eigenvalue,
    Fit,
    HistogramBin,
    Metric,
    Scalar,
    Seconds,
    Trace,
    select,
    to_json,
)
from focalgeo.training import checkpoint
from focalgeo.types import InputError, RunError, TrainState

ROOT = Path(__file__).parent.parent
METHODS = (
    ("uncalibrated", None),
    ("temperature_scaling", "ece"),
    ("temperature_scaling", "nll"),
    ("focal_temperature_scaling", "ece"),
    ("focal_temperature_scaling", "nll"),
)


def load_config(name: str, variant: str = ""):
    return read_config(ROOT / "configs" / f"{name}.py", variant)


def tiny(config):
    """The same job with fewer evaluations."""
    config.optimizer.epochs = 1
    config.evaluation.num_resamples = 5
    config.evaluation.temperature_step = 0.5
    config.curvature.examples = 8
    config.curvature.max_products = 2
    config.curvature.num_probes = 4
    config.curvature.density_steps = 2
    return config


def value(rows, name, split="test", **where):
    (row,) = select(rows, Metric, name=name, split=split, **where)
    return row.value


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "digits"
    job.run(load_config("digits", "quick"), workdir)
    return workdir


def test_the_workdir_holds_everything(finished):
    names = {str(path.relative_to(finished)) for path in finished.rglob("*")}
    expected = (
        "manifest.json",
        "metrics.jsonl",
        "predictions/val.npz",
        "predictions/test.npz",
        "search.npz",
        "report.html",
    )
    assert names.issuperset(expected)
    assert any(name.startswith("checkpoints/34/") for name in names)
    assert any(name.startswith("figures/") for name in names)
    assert not [name for name in names if name.endswith(".tmp")]


@pytest.mark.parametrize(("method", "criterion"), METHODS)
@pytest.mark.parametrize("metric", ["accuracy", "nll", "brier", "ece", "adaptive_ece"])
def test_every_metric_has_a_row_with_its_interval(finished, method, criterion, metric):
    rows = records.read_rows(finished)
    for split in ("val", "test"):
        (row,) = select(rows, Metric, name=metric, method=method, criterion=criterion, split=split)
        assert row.low <= row.high
        assert row.n == 359
        assert (row.gamma, row.seed, row.step) == (3, 0, 34)


def test_focal_temperature_scaling_is_never_worse_on_val(finished):
    rows = records.read_rows(finished)
    for criterion in ("ece", "nll"):
        plain, focal = (
            value(rows, criterion, "val", method=name, criterion=criterion)
            for name in ("temperature_scaling", "focal_temperature_scaling")
        )
        assert focal <= plain
        assert plain <= value(rows, criterion, "val", method="uncalibrated")


def test_the_difference_of_two_methods_has_its_own_interval(finished):
    rows = records.read_rows(finished)
    for criterion in ("ece", "nll"):
        pair = {"method": "focal_temperature_scaling", "against": "temperature_scaling", "criterion": criterion}
        (row,) = select(rows, Difference, name="ece_difference", split="test", **pair, against_criterion=None)
        focal, plain = (
            value(rows, "ece", method=name, criterion=criterion)
            for name in ("focal_temperature_scaling", "temperature_scaling")
        )
        assert row.value == pytest.approx(focal - plain, abs=1e-6)
        assert row.low < row.high
        assert row.n == 359


def test_the_loss_implied_map_is_compared_with_none(finished):
    rows = records.read_rows(finished)
    pair = {"method": "loss_implied_map", "against": "uncalibrated"}
    (row,) = select(rows, Difference, name="ece_difference", split="test", **pair)
    after, before = (value(rows, "ece", method=name) for name in ("loss_implied_map", "uncalibrated"))
    assert row.value == pytest.approx(after - before, abs=1e-6)


def test_only_class_wise_methods_change_accuracy(finished):
    rows = select(records.read_rows(finished), Metric, name="accuracy", split="test")
    class_wise = {"vector_scaling", "focal_vector_scaling", "structured_matrix_scaling"}
    others = {"loss_implied_map": None, "loss_implied_temperature_scaling": "nll", **dict.fromkeys(class_wise, "nll")}
    assert {(row.method, row.criterion) for row in rows} == {*METHODS, *others.items()}
    assert len({row.value for row in rows if row.method not in class_wise}) == 1


def test_the_loss_implied_map_followed_by_temperature_stands_beside_the_fitted_ones(finished):
    """The training's gamma is known: it is 3."""
    rows = records.read_rows(finished)
    name = "loss_implied_temperature_scaling"
    fitted = {row.name: row.value for row in select(rows, Fit, method=name)}
    val = records.read_predictions(finished, "val")
    found = calibration.fit(name, val.logits, val.labels, trained_gamma=3.0)
    assert fitted["calibration_gamma"] == 3
    assert fitted["temperature"] == pytest.approx(float(found.params["temperature"]), rel=1e-4)
    assert value(rows, "nll", method=name, criterion="nll") < value(rows, "nll", method="uncalibrated")
    pair = {"method": name, "against": "temperature_scaling", "criterion": "nll", "against_criterion": None}
    assert select(rows, Difference, name="nll_difference", split="test", **pair)


def test_the_predictions_are_those_of_the_rows(finished):
    test = records.read_predictions(finished, "test")
    right = np.mean(test.logits.argmax(-1) == test.labels)
    assert value(records.read_rows(finished), "accuracy", method="uncalibrated") == pytest.approx(right, abs=1e-6)


def test_curvature_rows_carry_their_errors(finished):
    rows = records.read_rows(finished)
    for loss in ("cross_entropy", "focal_loss"):
        (top,) = select(rows, Eigenvalue, name="lambda_max", loss=loss)
        assert 0 <= top.residual <= 1e-3 * top.value
        (total,) = select(rows, Trace, name="trace", loss=loss)
        assert total.low < total.value < total.high
        assert total.stderr > 0
        assert total.value < 64 * top.value  # far fewer than 3,466 directions are curved


def test_attribution_sums_to_the_whole_for_both_losses(finished):
    parts = select(records.read_rows(finished), AttributionPart)
    measured = {(row.of, row.loss) for row in parts}
    assert measured == {(of, loss) for of in ("trace", "lambda_max") for loss in ("cross_entropy", "focal_loss")}
    for of, loss in measured:
        named = {row.part: row.value for row in select(parts, AttributionPart, of=of, loss=loss)}
        assert named["gauss_newton"] + named["residual"] == pytest.approx(named["whole"])
        if loss == "focal_loss":
            assert named["softmax_weighted"] + named["rank_one"] == pytest.approx(named["gauss_newton"])


def test_the_shares_of_eigenvalues_sum_to_1_and_their_mean_to_the_trace(finished):
    rows = records.read_rows(finished)
    for loss in ("cross_entropy", "focal_loss"):
        bins = select(rows, DensityBin, loss=loss)
        (trace,) = select(rows, Trace, name="trace", loss=loss)
        assert sum(row.value for row in bins) == pytest.approx(1, abs=1e-5)
        low, high = (3466 * sum(row.value * getattr(row, end) for row in bins) for end in ("lower", "upper"))
        assert low - 0.5 * trace.value < trace.value < high + 0.5 * trace.value  # two probes
    assert (finished / "figures" / "spectral_density_val.svg").exists()


def test_curvature_between_epochs_where_it_is_asked_for_and_the_rate_of_the_row_s_own_step(tmp_path):
    config = tiny(load_config("digits", "quick"))
    config.optimizer.epochs = 6  # the last of which is measured after training, once
    config.optimizer.decay_epochs = (4,)
    config.log_every = 17  # an epoch
    config.curvature.every = 2
    config.curvature.density_probes = 0
    job.run(config, tmp_path / "run")
    rows = records.read_rows(tmp_path / "run")
    epochs = [row.epoch for row in select(rows, Trace, name="trace", loss="focal_loss")]
    assert epochs == [2.0, 4.0, None]
    assert {row.n for row in select(rows, Trace)} == {8}  # examples
    rates = {row.epoch: row.value for row in select(rows, Scalar, name="learning_rate")}
    assert rates == pytest.approx({1.0: 0.1, 2.0: 0.1, 3.0: 0.1, 4.0: 0.1, 5.0: 0.01, 6.0: 0.01})
    assert (tmp_path / "run" / "figures" / "training_trace.svg").exists()
    assert not list((tmp_path / "run" / "figures").glob("spectral*"))


@pytest.mark.parametrize(
    ("free", "message"),
    [
        (1000, r"^a network of .* parameters with .* needs at least .* set smaller config\.model\.options"),
        (60_000, r"^config\.optimizer\.batch_size is 64: .* needs at least .* lower it"),
        (140_000, r"^config\.evaluation\.batch_size is 512: .* needs at least .* lower it"),
        (400_000, "^curvature needs about .* lower config.curvature.batch_size"),
    ],
)
def test_a_run_that_memory_does_not_hold_is_refused_before_training(tmp_path, monkeypatch, free, message):
    monkeypatch.setattr(parallel, "free_memory", lambda: free)
    with pytest.raises(InputError, match=message):
        job.run(tiny(load_config("digits", "quick")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("every", [0, 2])
def test_memory_for_curvature_in_training_is_what_the_training_examples_leave(monkeypatch, every):
    config = tiny(load_config("digits", "quick"))
    config.curvature.every = every
    prepared, asked = preparation.prepare(config), []
    (member,) = make_members(config)
    state = preparation.initial_state(prepared, [member])
    monkeypatch.setattr(parallel, "free_memory", lambda: 10**9)
    monkeypatch.setattr(measurement.evaluation, "check_memory", lambda forecast, free: asked.append(free))
    measurement.check_curvature(member, prepared, state)
    assert asked == [10**9 - (prepared.dataset.train.x.nbytes + prepared.dataset.train.y.nbytes if every else 0)]


def test_the_same_command_on_a_finished_run_changes_no_number(finished):
    before = records.read_rows(finished)
    job.run(load_config("digits", "quick"), finished)
    evaluated = lambda row: isinstance(row, Seconds) and row.phase == "evaluate"  # noqa: E731
    after = records.read_rows(finished)
    by_text = lambda rows: sorted(json.dumps(to_json(row)) for row in rows if not evaluated(row))  # noqa: E731
    assert by_text(after) == by_text(before)
    assert sum(map(evaluated, after)) == 1
    assert {row.phase for row in select(after, Seconds)} == {"prepare", "compile", "train", "evaluate"}


def test_the_page_is_rebuilt_byte_for_byte(finished):
    page = (finished / "report.html").read_bytes()
    (finished / "report.html").unlink()
    report.write_report(finished)
    assert (finished / "report.html").read_bytes() == page


def test_a_run_does_not_go_on_with_other_data(finished):
    manifest = records.read_manifest(finished)
    changed = {**manifest, "data": {**manifest["data"], "checksum": "0123456789ab"}}
    records.write_manifest(finished, changed)
    try:
        with pytest.raises(InputError, match=r"digits has changed since the run in .* began \(checksum 0123456789ab"):
            job.run(load_config("digits", "quick"), finished)
    finally:
        records.write_manifest(finished, manifest)


def test_another_config_is_refused_and_nothing_is_lost(finished):
    before = (finished / "metrics.jsonl").read_bytes()
    config = load_config("digits", "quick")
    config.loss.gamma = 4.0
    with pytest.raises(InputError, match=r"belongs to another config \(loss.gamma: 3.0 there, 4.0 here\)"):
        job.run(config, finished)
    assert (finished / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("field", "wrong", "message"),
    [
        ("loss.gamma", -1.0, "config.loss.gamma is -1.0: it must be 0 or more"),
        ("loss.gamma", float("nan"), "config.loss.gamma is nan"),
        ("loss.name", "focal", "did you mean 'focal_loss'"),
        ("evaluation.temperature_step", 0.0, "must be 1/2"),
        ("evaluation.gammas", (1.0,), "must hold 0"),
        ("evaluation.gammas", (0.0, 101.0), "at most 100"),
        ("curvature.max_products", 1, "must be 2 or more"),
        ("curvature.density_probes", 1, "must be 0 .* or 2 or more"),
        ("curvature.every", -1, "must be 0"),
        ("curvature.trace_method", "hutch", "hutchinson, hutch"),
        ("model.options.hidden", (0,), "must hold whole numbers of 1 or more, or None"),
        ("model.options.hidden", "abc", "must hold whole numbers of 1 or more, or None"),
        ("model.options.heads", 3, r"config.model.options.heads: mlp has no such option \(it has: hidden\)"),
        ("evaluation.temperature_step", 0.3, "must be 1/2"),
        ("data.std", "abc", "config.data.std is"),
        ("data.mean", "abc", "config.data.mean is"),
        ("evaluation.gammas", (0.0, float("nan")), "above -1"),
        ("optimizer.decay_epochs", "abc", "config.optimizer.decay_epochs is"),
        ("seed", 99999999999999999999, "below 2"),
        ("optimizer.decay_epochs", (-1,), "must all be greater than 0"),
        ("optimizer.learning_rate", 0.0, "config.optimizer.learning_rate is 0.0"),
        ("optimizer.name", "sdg", "did you mean 'sgd'"),
        ("optimizer.batch_size", 0, "config.optimizer.batch_size is 0"),
        ("model.name", "restnet18", "did you mean 'resnet18'"),
        ("model.dtype", "float16", "must be float32 or bfloat16"),
        ("data.name", "digit", "digits"),
        ("data.name", "folder:nowhere", "nowhere"),
        ("data.augment", "crop", "crop_flip"),
        ("data.train_size", 5000, "1079"),
        ("data.mean", (0.1, 0.2), "mean"),
    ],
)
def test_a_wrong_field_is_one_line_and_writes_nothing(tmp_path, field, wrong, message):
    config = load_config("digits", "quick")
    config.update_from_flattened_dict({field: wrong})
    with pytest.raises(InputError, match=message) as caught:
        job.run(config, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_run_that_diverges_says_so_and_keeps_its_checkpoints(tmp_path):
    config = tiny(load_config("digits", "quick"))
    config.optimizer.learning_rate = 1e30
    config.checkpoint.every = 1
    with pytest.raises(RunError, match=r"is (nan|inf|-inf) at step \d+; what was saved before is kept"):
        job.run(config, tmp_path / "run")
    assert records.read_manifest(tmp_path / "run")["parameters"] == 3466


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory):
    """Three classes of 32x32 images, coloured by class so that they can be learnt."""
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for split, count in (("train", 16), ("test", 6)):
        for label, name in enumerate(("ant", "bee", "cat")):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                image = rng.integers(0, 120, (32, 32, 3), np.uint8)
                image[..., label] += 100
                Image.fromarray(image).save(folder / split / name / f"{number:03}.png")
    return folder


@pytest.mark.long
@pytest.mark.parametrize(("name", "variant"), [("cifar10", ""), ("cifar10", "quick"), ("cifar10_gamma", "")])
def test_every_image_config_runs(tmp_path, image_folder, name, variant):
    config = tiny(load_config(name, variant))
    config.curvature.density_probes = 0
    if config.sweep.gamma:
        config.sweep.gamma, config.sweep.seed = (0.0, 1.0), (0,)
        config.optimizer.warmup_epochs = 0
    config.data.name = f"folder:{image_folder}"
    config.data.train_size, config.data.val_size = 40, 8
    config.optimizer.batch_size = 16
    config.model.options.widths = (4, 8)  # the same network, shallower and thinner
    if config.model.name != "cnn":
        config.model.options.blocks = (1, 1)
    rows = job.run(config, tmp_path / "run")
    assert (tmp_path / "run" / "report.html").exists()
    members = max(len(config.sweep.gamma), 1)
    assert len(select(rows, Eigenvalue)) == 2 * members
    assert len(select(rows, Metric, name="ece", method="uncalibrated")) == 2 * members
    seen = [row.value for row in select(records.read_rows(tmp_path / "run"), Scalar, name="examples_seen")]
    assert seen[-1] == 40


@pytest.mark.long
def test_bfloat16_runs(tmp_path, image_folder):
    config = tiny(load_config("cifar10", "quick"))
    config.data.name = f"folder:{image_folder}"
    config.data.train_size, config.data.val_size, config.optimizer.batch_size = 40, 8, 16
    config.model.dtype, config.model.options.widths = "bfloat16", (4, 8)
    rows = job.run(config, tmp_path / "run")
    assert records.read_predictions(tmp_path / "run", "test").logits.dtype == np.float32
    assert {row.loss for row in select(rows, Trace, name="trace")} == {"cross_entropy", "focal_loss"}


@pytest.mark.parametrize("page", ["README.md", "docs/calibration.md"])
def test_a_page_s_python_runs_on_a_finished_job(page, finished, tmp_path, monkeypatch, capsys):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "digits").symlink_to(finished)
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)[1], {})
    fitted, *compared = capsys.readouterr().out.splitlines()
    number = "[0-9]+[.][0-9]+"
    parameters = rf"\{{'gamma': -?{number}, 'temperature': {number}\}}"
    assert re.fullmatch(rf"{parameters} ECE {number} \({number} to {number}\)", fitted)
    for line in compared:
        assert re.match(r"(Uncalibrated|Temperature scaling|Vector scaling) [0-9]+$", line)


def test_the_page_on_curvature_has_python_that_runs(capsys):
    with jax.numpy_rank_promotion("allow"):  # as it is for who copies it
        exec(re.search(r"```python\n(.*?)```", (ROOT / "docs" / "curvature.md").read_text(), re.DOTALL)[1], {})
    top, trace = capsys.readouterr().out.splitlines()
    assert top.endswith(" True")
    assert trace.startswith("Estimate(value=")


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
        config = load_config("digits_trace")
        config.optimizer.update({"epochs": 40, "decay_epochs": (25, 35)})
        config.evaluation.update({"num_resamples": 2, "temperature_step": 0.5})
        config.curvature.update({"max_products": 2, "num_probes": 20})
        config.loss.trace_penalty = weight
        rows = job.run(config, tmp_path / str(weight))
        assert {(row.split, row.loss) for row in select(rows, Trace, name="trace")} == {
            ("val", "cross_entropy"),
            ("train", "cross_entropy"),
        }
        traces += select(rows, Trace, name="trace", split="train")
        penalties = select(records.read_rows(tmp_path / str(weight)), Scalar, name="penalty")
        assert bool(penalties) == (weight > 0)
        assert all(abs(row.value) < 1 for row in penalties)  # of a mean, not of a sum over the examples
    plain, flat = traces
    assert flat.value + 4 * flat.stderr < plain.value - 4 * plain.stderr
    assert "cross-entropy, train" in (tmp_path / "0.001" / "report.html").read_text()


def test_tensorboard_gets_rows_with_a_step_and_its_absence_is_silent(tmp_path, monkeypatch):
    def at(step, **fields):
        return Scalar("loss", 0.5, split="train", step=step, **fields)

    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with training.tensorboard_writer(tmp_path) as write:
        write(at(1))
    assert not (tmp_path / "tensorboard").exists()
    monkeypatch.undo()
    pytest.importorskip("tensorboardX")
    with training.tensorboard_writer(tmp_path, step=5) as write:
        write(at(7))
        write(at(7), member="gamma=1")
        write(Metric("accuracy", 0.9, split="test"))
        write(HistogramBin("gradient_norm_histogram", 0.5, 3, 0.1, 1.0, 100, "train", step=7))
    (path,) = (tmp_path / "tensorboard").iterdir()
    version, start, *events = tensorboard_events(path)
    assert version.file_version == "brain.Event:2"
    assert (start.step, start.session_log.status) == (5, 1)
    shown = [(each.summary.value[0].tag, each.summary.value[0].simple_value, each.step) for each in events]
    assert shown == [("train/loss", 0.5, 7), ("gamma_1/train/loss", 0.5, 7)]


def tensorboard_events(path):
    """The events of a file: each has its length (8 bytes), a checksum (4), itself, and another checksum."""
    from tensorboardX.proto.event_pb2 import Event

    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        found.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return found


@pytest.mark.parametrize("times", [3, 3000])  # it ends at the last write, or while writing
def test_a_disk_that_fills_ends_tensorboard_in_one_line_and_the_run_goes_on(tmp_path, times, monkeypatch, capfd):
    record_writer = pytest.importorskip("tensorboardX.record_writer")
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full, a device that is always full")
    monkeypatch.setattr(record_writer, "open_file", lambda path: open("/dev/full", "wb"))  # noqa: SIM115
    with training.tensorboard_writer(tmp_path) as write:
        for step in range(times):
            write(Scalar("loss", 0.5, split="train", step=step))
    gc.collect()
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("no more TensorBoard events, the run goes on: cannot write ")
    assert "No space left on device; free some space" in line


def a_state(step):
    """The state of one member as a checkpoint keeps it, of a network of three weights."""
    fields = {"opt_state": (), "loss_values": {}, "model_state": {}, "learning_rate": np.zeros(1, np.float32)}
    fields |= {"frozen": np.zeros(1, bool), "stream": np.zeros(1, np.int32), "key": np.zeros((1, 2), np.uint32)}
    return TrainState(step=np.full(1, step, np.int32), params={"w": np.full((1, 3), step, np.float32)}, **fields)


@pytest.mark.parametrize("damage", ["cut", "link", "pipe", "file"])
def test_a_damaged_checkpoint_is_removed_so_that_its_step_can_be_saved_again(tmp_path, capfd, damage):
    folder, outside = tmp_path / "checkpoints", tmp_path / "elsewhere"
    manager = checkpoint.make_manager(folder, keep=3)
    for step in (1, 2):
        checkpoint.save(manager, checkpoint.Checkpoint(a_state(step), {"loss": [1.0]}))
    if damage == "cut":
        (folder / "2" / "state" / "manifest.ocdbt").write_bytes(b"")
    elif damage == "pipe":
        (folder / "2" / "_CHECKPOINT_METADATA").unlink()
        os.mkfifo(folder / "2" / "_CHECKPOINT_METADATA")
    else:
        (folder / "2").rename(outside)
        (folder / "2").symlink_to(outside) if damage == "link" else (folder / "2").write_text("")
    manager = checkpoint.make_manager(folder, keep=3)
    restored = checkpoint.restore_latest(manager, a_state(0))
    assert int(restored.state.step[0]) == 1
    assert capfd.readouterr().err.endswith("2 is corrupt or incomplete; falling back to the one before\n")
    checkpoint.save(manager, checkpoint.Checkpoint(a_state(2), {"loss": [1.0]}))
    again = checkpoint.restore_latest(checkpoint.make_manager(folder, keep=3), a_state(0))
    np.testing.assert_array_equal(again.state.params["w"], a_state(2).params["w"])
    assert damage in ("cut", "pipe") or (damage == "file") or any(outside.iterdir())


def test_a_checkpoint_under_another_step_s_name_is_refused(tmp_path):
    manager = checkpoint.make_manager(tmp_path, keep=3)
    checkpoint.save(manager, checkpoint.Checkpoint(a_state(2), {"loss": [1.0]}))
    (tmp_path / "2").rename(tmp_path / "9")
    with pytest.raises(InputError, match=r"9 does not fit this network.*choose another --workdir"):
        checkpoint.restore_latest(checkpoint.make_manager(tmp_path, keep=3), a_state(0))
