"""Sweeps: a member is the run that it would be alone; stops, extensions and shards give the rows of the whole."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from focalgeo import job, parallel, records, report
from focalgeo.config import load_config as config_file
from focalgeo.job import calibration, measurement, members, preparation, training
from focalgeo.report.__main__ import main as report_main
from focalgeo.rows import Scalar, tagged, to_json
from focalgeo.training.step import member_state
from focalgeo.types import InputError, Predictions, RunError

ROOT = Path(__file__).parent.parent
STEPS = 20


def load_config(name="digits", variant="quick", **axes):
    config = config_file(ROOT / "configs" / f"{name}.py", variant)
    config.sweep.update(axes)
    return config


def tiny(**axes):
    """A sweep of the digits that measures little."""
    config = load_config(**axes)
    config.model.options.hidden = (8,)
    config.evaluation.update({"num_resamples": 2, "temperature_step": 0.5})
    config.curvature.update({"examples": 16, "max_products": 2, "num_probes": 4, "density_probes": 0})
    config.checkpoint.every = 5
    config.optimizer.select = "best_val"
    config.diagnostics.every = 1
    return config


def trained(config, *, at_once):
    """The states of all members after STEPS steps, stacked, in host memory."""
    run_members = members.make_members(config)
    prepared = preparation.prepare(config)
    state = preparation.initial_state(prepared, run_members)
    pipeline = preparation.make_pipeline(config, prepared.dataset, preparation.stream_seeds(run_members))
    program, _ = training.choose_program(config, prepared, at_once, state, pipeline)
    groups, count = program.place(state), 0
    for epoch in range(STEPS):
        for spec in pipeline.specs(epoch, 0):
            groups, _, _ = program.step(groups, spec)
            count += 1
            if count == STEPS:
                return program.gather(groups)


def largest_difference(first, second):
    """Of any leaf of the parameters and batch statistics, in units of that leaf's largest value."""
    pairs = zip(
        jax.tree.leaves((first.params, first.model_state)),
        jax.tree.leaves((second.params, second.model_state)),
        strict=True,
    )
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


AXES = [
    {"gamma": (0.0, 3.0), "seed": (0, 1)},
    {"trace_penalty": (0.0, 0.001), "seed": (0, 1)},
    {"learning_rate": (0.01, 0.1)},
]


@pytest.mark.parametrize("axes", AXES, ids=lambda axes: next(iter(axes)))
@pytest.mark.parametrize("at_once", ["all", 1])
def test_a_member_equals_its_run_alone(axes, at_once):
    config = load_config(**axes)
    run_members = members.make_members(config)
    together = trained(config, at_once=len(run_members) if at_once == "all" else 1)
    apart = []
    for index, member in enumerate(run_members):
        alone = member_state(trained(member.config, at_once=1), 0)
        apart.append(alone)
        assert largest_difference(member_state(together, index), alone) < 1e-5, member.name
    assert largest_difference(apart[0], apart[-1]) > 1e-3


def test_members_take_the_trace_of_the_rows_that_a_run_alone_takes_on_any_number_of_devices():
    config = load_config(trace_penalty=(0.0, 0.01), seed=(0,))
    config.loss.trace_examples = 16
    whole = trained(config, at_once=2)  # one on each device
    for index, member in enumerate(members.make_members(config)):
        alone = member_state(trained(member.config, at_once=1), 0)  # each batch over both
        assert largest_difference(member_state(whole, index), alone) < 1e-5


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory):
    from PIL import Image

    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for split, count in (("train", 40), ("test", 4)):
        for label, name in enumerate(("ant", "bee")):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                image = rng.integers(0, 120, (16, 16, 3), np.uint8)
                image[..., label] += 100
                Image.fromarray(image).save(folder / split / name / f"{number:03}.png")
    return folder


def of_images(folder, **axes):
    """A CNN with batch norm on augmented images."""
    config = load_config("cifar10", "quick", **axes)
    config.data.update({"name": f"folder:{folder}", "train_size": 64, "val_size": 8})
    config.model.options.widths = (4, 8)
    config.optimizer.update({"batch_size": 16, "learning_rate": 0.02})
    return config


def test_a_member_equals_its_run_alone_with_batch_norm_and_augmentation(image_folder):
    config = of_images(image_folder, gamma=(0.0, 2.0), seed=(0, 1))
    assert config.data.augment == "crop_flip"
    run_members = members.make_members(config)
    together = trained(config, at_once=4)
    for index in (0, 3):
        alone = member_state(trained(run_members[index].config, at_once=1), 0)
        assert largest_difference(member_state(together, index), alone) < 1e-5
        assert alone.model_state  # batch statistics are part of what agrees


@pytest.mark.long
def test_two_devices_give_what_one_gives(tmp_path):
    """The same sweep in a process with one device; here members lie on two, and an odd number shares its batches."""
    script = (
        "import sys, numpy as np, jax; sys.path.insert(0, 'tests'); import test_sweep as t;"
        "assert jax.device_count() == 1;"
        "leaves = [jax.tree.leaves(t.trained(t.load_config(**a), at_once=0).params) for a in t.AXES];"
        f"np.savez({str(tmp_path / 'one.npz')!r}, *[leaf for each in leaves for leaf in each])"
    )
    environment = {**os.environ, "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("device_count=2", "device_count=1")}
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, env=environment, capture_output=True)
    assert jax.device_count() == 2
    with np.load(tmp_path / "one.npz") as one:
        expected = [one[name] for name in one.files]
    for split in (2, 1):  # members at once: over devices, or each batch over devices
        found = [leaf for axes in AXES for leaf in jax.tree.leaves(trained(load_config(**axes), at_once=split).params)]
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max())


def without_times(rows):
    """Rows as text, in any order, less what a clock wrote and what names the workdir."""
    kept = [row for row in rows if row.name not in ("seconds", "examples_per_second")]
    return sorted(json.dumps(to_json(row), sort_keys=True) for row in kept)


def swept():
    return tiny(gamma=(0.0, 3.0), seed=(0, 1), at_once=2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "whole"
    job.run(swept(), workdir)
    return workdir


def test_every_member_has_its_rows_its_files_and_a_place_on_the_page(whole):
    rows = records.read_rows(whole)
    for gamma in (0.0, 3.0):
        for seed in (0, 1):
            names = {row.name for row in rows if (row.gamma, row.seed) == (gamma, seed)}
            assert {"loss", "accuracy", "ece", "temperature", "lambda_max", "trace", "seconds"} <= names
            assert (whole / "members" / f"gamma={gamma:g},seed={seed}" / "predictions" / "test.npz").exists()
    assert not (whole / "predictions").exists()
    page = (whole / "report.html").read_text()
    assert "4 runs trained side by side" in page
    assert {"sweep_ece.svg", "sweep_trace_val.svg"} <= {path.name for path in (whole / "figures").iterdir()}


def test_members_of_a_seed_begin_alike_and_see_the_same_batches():
    config = swept()
    run_members = members.make_members(config)
    prepared = preparation.prepare(config)
    state = preparation.initial_state(prepared, run_members)
    first = [np.asarray(jax.tree.leaves(state.params)[1][index]) for index in range(4)]
    np.testing.assert_array_equal(first[0], first[2])  # gamma 0 and 3, seed 0
    assert np.any(first[0] != first[1])
    assert state.stream.tolist() == [0, 1, 0, 1]
    spec = next(preparation.make_pipeline(config, prepared.dataset, [0, 1]).specs(0, 0))
    assert spec.indices.shape[0] == 2
    assert np.any(spec.indices[0] != spec.indices[1])


def test_a_row_belongs_to_the_one_member_that_has_all_its_tags():
    run_members = members.make_members(swept())
    for member in run_members:
        (row,) = tagged([Scalar("loss", 0.5)], **member.tags, step=3)
        assert [each.name for each in run_members if members.belongs(row, each)] == [member.name]


@pytest.mark.long
def test_kill_9_and_the_same_command_give_the_rows_of_the_whole(whole, tmp_path):
    workdir = tmp_path / "killed"
    script = f"import sys; sys.path.insert(0, 'tests'); import test_sweep as t; t.job.run(t.swept(), {str(workdir)!r})"
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.DEVNULL)
    while not (workdir / "checkpoints" / "10" / "digest.json").exists():
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert [row for row in records.read_rows(workdir) if row.name == "ece"] == []
    job.run(swept(), workdir)
    assert without_times(records.read_rows(workdir)) == without_times(records.read_rows(whole))


def test_a_stop_between_evaluations_measures_only_what_is_left(whole, tmp_path, monkeypatch):
    evaluate, measured = measurement.evaluate, []

    def stop_at_the_third(member, *rest):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(member.name)
        return evaluate(member, *rest)

    monkeypatch.setattr(measurement, "evaluate", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        job.run(swept(), tmp_path / "run")
    monkeypatch.setattr(
        measurement, "evaluate", lambda member, *rest: measured.append(member.name) or evaluate(member, *rest)
    )
    job.run(swept(), tmp_path / "run")
    assert measured == ["gamma=0,seed=0", "gamma=0,seed=1", "gamma=3,seed=0", "gamma=3,seed=1"]
    assert without_times(records.read_rows(tmp_path / "run")) == without_times(records.read_rows(whole))


def test_an_extension_trains_only_the_new_members(whole, tmp_path):
    workdir = tmp_path / "grown"
    job.run(tiny(gamma=(3.0,), seed=(0, 1), at_once=2), workdir)
    before = [row for row in records.read_rows(workdir) if row.name != "seconds"]
    job.run(swept(), workdir)
    rows = records.read_rows(workdir)
    assert [row for row in rows if row.gamma == 3 and row.name != "seconds"] == before
    assert without_times(rows) == without_times(records.read_rows(whole))
    assert [each["members"] for each in records.read_json(workdir / "extensions.json")] == [
        ["gamma=3,seed=0", "gamma=3,seed=1"],
        ["gamma=0,seed=0", "gamma=0,seed=1"],
    ]
    assert "4 runs trained side by side" in (workdir / "report.html").read_text()


def test_a_resumed_sweep_keeps_its_groups_and_is_measured_again_where_rows_are_gone(whole, tmp_path, monkeypatch):
    shutil.copytree(whole, tmp_path / "copy")
    (tmp_path / "copy" / "metrics.jsonl").unlink()
    monkeypatch.setattr(training, "candidates", None)  # they would be timed if the groups were chosen anew
    job.run(tiny(gamma=(0.0, 3.0), seed=(0, 1)), tmp_path / "copy")
    assert [each["at_once"] for each in records.read_json(tmp_path / "copy" / "extensions.json")] == [2]
    kept = [row for row in records.read_rows(whole) if row.epoch is None]
    assert without_times(records.read_rows(tmp_path / "copy")) == without_times(kept)


def test_a_member_whose_predictions_are_gone_is_measured_again_and_no_other(whole, tmp_path, capsys):
    shutil.copytree(whole, tmp_path / "copy")
    lost = tmp_path / "copy" / "members" / "gamma=0,seed=1" / "predictions" / "val.npz"
    lost.unlink()
    job.run(swept(), tmp_path / "copy")
    said = capsys.readouterr().err
    assert f"{lost} is missing or corrupt; it is measured again" in said
    assert "measured gamma=0,seed=1" in said
    assert "measured gamma=3" not in said
    np.testing.assert_array_equal(
        records.read_predictions(lost.parent.parent, "val").logits,
        records.read_predictions(whole / "members" / "gamma=0,seed=1", "val").logits,
    )
    assert without_times(records.read_rows(tmp_path / "copy")) == without_times(records.read_rows(whole))


def test_members_cannot_be_taken_away(whole):
    with pytest.raises(InputError, match=r"holds gamma=0,seed=1 and 1 more, which config\.sweep no longer names"):
        job.run(tiny(gamma=(0.0, 3.0), seed=(0,), at_once=2), whole)
    with pytest.raises(InputError, match="holds all of the sweep, this run is shard 0/2"):
        job.run(swept(), whole, shard="0/2")


@pytest.mark.long
def test_shards_merge_to_the_rows_and_the_page_of_the_whole(whole, tmp_path):
    for index in (0, 1):
        job.run(swept(), tmp_path / f"part{index}", shard=f"{index}/2")
    parts = [str(tmp_path / f"part{index}") for index in (0, 1)]
    assert report_main([*parts, f"--out={tmp_path / 'merged'}"]) == 0
    rows = records.read_rows(tmp_path / "merged")
    assert without_times(rows) == without_times(records.read_rows(whole))
    pages = [(folder / "report.html").read_text() for folder in (tmp_path / "merged", whole)]
    for page in pages:
        assert page[page.index("All numbers") : page.index("The sweep, and how")] in pages[0]
    assert report_main([*parts, f"--out={tmp_path / 'merged'}"]) == 0  # a merge may be made anew


def test_what_cannot_be_merged_is_one_line(whole, tmp_path, capsys):
    assert report_main([str(whole), str(whole), f"--out={tmp_path / 'new'}"]) == 2
    assert "is named twice; give each workdir once" in capsys.readouterr().err
    shutil.copytree(whole, tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints", "figures"))
    assert report_main([str(whole), str(tmp_path / "copy"), f"--out={tmp_path / 'new'}"]) == 2
    assert "both hold the run with gamma 0.0, seed 0; leave one of them out" in capsys.readouterr().err
    assert report_main([str(whole), f"--out={whole}"]) == 2
    assert "is one of the workdirs" in capsys.readouterr().err
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.tex").write_text("")
    assert report_main([str(whole), f"--out={tmp_path / 'used'}"]) == 2
    assert not (tmp_path / "new").exists()


def test_a_run_without_sweep_joins_the_sweep_that_it_belongs_to(whole, tmp_path):
    alone = tiny()
    alone.loss.gamma = 5.0
    job.run(alone, tmp_path / "five")
    assert report_main([str(whole), str(tmp_path / "five"), f"--out={tmp_path / 'three'}"]) == 0
    manifest = records.read_manifest(tmp_path / "three")
    assert manifest["config"]["sweep"]["gamma"] == [0.0, 3.0, 5.0]
    rows = records.read_rows(tmp_path / "three")
    assert {(row.gamma, row.seed) for row in rows if row.name == "trace"} == {
        *[(gamma, seed) for gamma in (0.0, 3.0) for seed in (0, 1)],
        (5.0, 0),
    }
    assert "γ = 5" in (tmp_path / "three" / "report.html").read_text()


def test_shards_of_other_data_are_refused(whole, tmp_path, capsys):
    shutil.copytree(whole, tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints", "figures"))
    manifest = records.read_manifest(tmp_path / "copy")
    records.write_manifest(tmp_path / "copy", {**manifest, "data": {**manifest["data"], "checksum": "0"}})
    assert report_main([str(whole), str(tmp_path / "copy"), f"--out={tmp_path / 'new'}"]) == 2
    assert "was trained on other data than" in capsys.readouterr().err


@pytest.mark.long
def test_runs_of_other_configs_stand_side_by_side(whole, tmp_path):
    other = swept()
    other.optimizer.learning_rate = 0.05
    job.run(other, tmp_path / "slower")
    assert report_main([str(whole), str(tmp_path / "slower"), f"--out={tmp_path / 'both'}"]) == 0
    rows = records.read_rows(tmp_path / "both")
    assert {row.run for row in rows} == {"whole", "slower"}
    page = (tmp_path / "both" / "report.html").read_text()
    assert "slower" in page


def test_a_member_that_diverges_stands_still_and_the_others_go_on(tmp_path, capsys):
    config = tiny(learning_rate=(0.1, 1e30))
    rows = job.run(config, tmp_path / "run")
    assert "member gamma 3.0, learning_rate 1e+30, seed 0 stops, the others go on" in capsys.readouterr().err
    written = records.read_rows(tmp_path / "run")
    (stopped,) = [row for row in written if row.name == "stopped"]
    assert stopped.learning_rate == 1e30
    assert {row.learning_rate for row in rows if row.name == "ece"} == {0.1}
    later = [row for row in written if row.name == "loss" and row.step > stopped.value]
    assert {row.learning_rate for row in later} == {0.1}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "stopped there and have no results: gamma 3.0, learning_rate 1e+30, seed 0 at step" in page
    alone = member_state(trained(members.make_members(config)[0].config, at_once=1), 0)
    beside = member_state(trained(config, at_once=2), 0)
    assert largest_difference(beside, alone) < 1e-5


def test_a_sweep_whose_members_all_diverge_is_an_error_and_can_be_extended(tmp_path, capsys):
    says = r"every member stopped .*learning_rate=1e\+29 at step 1; learning_rate=1e\+30 at step 1"
    for _ in range(2):  # the same command again says the same
        with pytest.raises(RunError, match=says):
            job.run(tiny(learning_rate=(1e29, 1e30)), tmp_path / "run")
    assert "loss 0.0000" not in capsys.readouterr().err
    assert [row.value for row in records.read_rows(tmp_path / "run") if row.name == "stopped"] == [1, 1]
    assert "stopped there and have no results" in (tmp_path / "run" / "report.html").read_text()
    job.run_and_print(tiny(learning_rate=(1e29, 1e30, 0.1)), tmp_path / "run")
    last = capsys.readouterr().out.splitlines()[-2:]
    assert last[0].startswith("2 of 3 members stopped and have no results: learning_rate=1e+29 at step 1; ")
    ece = [row for row in records.read_rows(tmp_path / "run") if row.name == "ece"]
    assert {row.learning_rate for row in ece} == {0.1}


def test_a_member_that_cannot_be_measured_is_named_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    evaluate = measurement.evaluate

    def fail(member, *rest):
        if member.name.startswith("gamma=0"):
            raise RunError("the gradient is not finite")
        return evaluate(member, *rest)

    monkeypatch.setattr(measurement, "evaluate", fail)
    job.run(tiny(gamma=(0.0, 3.0), at_once=2), tmp_path / "run")
    assert "member gamma=0 has no results, the others go on: the gradient is not" in capsys.readouterr().err
    ece = [row for row in records.read_rows(tmp_path / "run") if row.name == "ece"]
    assert {row.gamma for row in ece} == {3.0}


def test_a_member_is_calibrated_as_it_is_alone_and_its_error_is_its_own():
    run_members = members.make_members(tiny(gamma=(0.0, 3.0), seed=(0, 1)))
    rng = np.random.default_rng(0)
    predictions = {}
    for split in ("val", "test"):
        logits = rng.normal(size=(150, 4, 10)).astype(np.float32)
        predictions[split] = Predictions(logits, rng.integers(0, 10, 150).astype(np.int32), np.ones(150, bool))
    predictions["test"].logits[7, 1] = np.inf
    predictions["test"].logits[:, 2] *= np.float32(1e37)
    first, infinite, unbounded, last = calibration.calibrate_members(run_members, predictions)
    assert str(infinite) == "logits on test are not finite"
    assert isinstance(unbounded, RunError)
    assert "name nll" in str(unbounded)
    for index, together in ((0, first), (3, last)):
        own = {split: each._replace(logits=each.logits[:, [index]]) for split, each in predictions.items()}
        (alone,) = calibration.calibrate_members(run_members[index : index + 1], own)
        assert together.rows == alone.rows
    assert {row.method for row in last.rows} - {row.method for row in first.rows} == {
        "loss_implied_map",
        "loss_implied_temperature_scaling",
    }


def test_seeds_of_many_digits_are_different_members():
    names = [member.name for member in members.make_members(load_config(seed=(20240101, 20240102)))]
    assert names == ["seed=20240101", "seed=20240102"]
    assert [each.name for each in members.make_members(load_config(gamma=(0.0, 1e-05)))] == ["gamma=0", "gamma=1e-05"]


def test_a_member_stays_in_its_shard_when_an_axis_grows():
    before, after = load_config(gamma=(0.0, 3.0), seed=(0, 1)), load_config(gamma=(0.0, 3.0, 5.0), seed=(0, 1, 2))
    for index in (0, 1):
        old, new = (
            {each.name for each in members.of_shard(members.make_members(config), f"{index}/2")}
            for config in (before, after)
        )
        assert old < new
    every = members.make_members(after)
    parts = [members.of_shard(every, f"{index}/3") for index in range(3)]
    assert sorted(each.name for part in parts for each in part) == sorted(each.name for each in every)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"gamma": (0.0, 0.0)}, r"config\.sweep\.gamma is \(0\.0, 0\.0\): it must hold finite numbers, each once"),
        ({"gamma": (-1.0,)}, r"config\.sweep, member gamma=-1: config\.loss\.gamma is -1\.0: it must be 0 or more"),
        ({"seed": (0.5,)}, "must hold whole numbers"),
        ({"gamma": "abc"}, "must hold numbers"),
        ({"trace_penalty": (float("nan"),)}, "must hold finite numbers"),
        ({"seed": (0, 1, 2), "at_once": 2}, r"at_once is 2: it must divide the 3 members"),
    ],
)
def test_a_wrong_axis_is_one_line(tmp_path, axes, message):
    config = load_config()
    with config.ignore_type():
        config.sweep.update(axes)
    with pytest.raises(InputError, match=message) as caught:
        job.run(config, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_gamma_of_a_loss_without_gamma_is_one_line(tmp_path):
    config = load_config(gamma=(0.0, 1.0))
    config.loss.name = "cross_entropy"
    with pytest.raises(InputError, match=r"config\.sweep\.gamma is given, but .* cross_entropy has no gamma"):
        job.run(config, tmp_path / "run")


@pytest.mark.parametrize("shard", ["2/2", "0", "a/b", "0/9", "-1/2"])
def test_a_wrong_shard_is_one_line(tmp_path, shard):
    with pytest.raises(InputError, match=r"^--shard=.*: give i/n with i from 0 to n - 1, and n at most 3"):
        job.run(swept(), tmp_path / "run", shard=shard)


def test_numbers_of_members_at_once_that_are_tried_divide_them():
    assert training.candidates(35) == [35, 5, 1]
    assert training.candidates(16) == [16, 4, 1]
    assert training.candidates(7) == [7, 1]
    assert training.candidates(1) == [1]


def test_one_member_on_each_device_is_tried_where_they_divide_evenly():
    assert training.candidates(40, 8) == [40, 8, 1]  # 5 would cut the batch and group the convolutions as well
    assert training.candidates(40, 4) == [40, 4, 1]
    assert training.candidates(35, 4) == [35, 5, 1]
    assert training.candidates(4, 4) == [4, 1]


@pytest.mark.parametrize(("count", "expected"), [(4, 2), (3, 1), (1, 1)])
def test_a_shard_trains_as_many_at_once_as_divide_it(count, expected):
    config = load_config(gamma=(0.0, 1.0, 2.0, 3.0), at_once=2)
    prepared, run_members = preparation.prepare(config), members.make_members(config)[:count]
    state = preparation.initial_state(prepared, run_members)
    pipeline = preparation.make_pipeline(config, prepared.dataset, [0])
    assert training.choose_program(config, prepared, 0, state, pipeline)[1] == expected


def test_memory_is_forecast_before_more_members_are_tried_at_once(monkeypatch, capsys):
    config = load_config(gamma=(0.0, 1.0, 2.0, 3.0))
    prepared, run_members = preparation.prepare(config), members.make_members(config)
    state = preparation.initial_state(prepared, run_members)
    pipeline = preparation.make_pipeline(config, prepared.dataset, [0])
    batch = next(pipeline.specs(0, 0))
    choose = functools.partial(training.choose_program, config, prepared, 0, state, pipeline)
    one, _ = training.choose_program(config, prepared, 1, state, pipeline)
    all_four, _ = training.choose_program(config, prepared, 4, state, pipeline)
    each, together = one.temporary(state, batch), all_four.temporary(state, batch)
    assert 0 < together <= 4 * each + 4096  # activations times the members at once, no more
    states = 2 * sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    monkeypatch.setattr(parallel, "free_memory", lambda: states + 3 * each)
    _, at_once = choose()
    assert at_once in (1, 2)
    assert "4 members at once need about" in capsys.readouterr().err


def test_the_page_of_a_sweep_is_rebuilt_byte_for_byte(whole):
    page = (whole / "report.html").read_bytes()
    (whole / "report.html").unlink()
    report.write_report(whole)
    assert (whole / "report.html").read_bytes() == page
