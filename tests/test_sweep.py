"""Sweeps: a member is the run that it would be alone; stops and shards give the rows of the whole."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest

from focalgeo import job, records
from focalgeo.config import load_config as config_file
from focalgeo.job import measurement, preparation, training
from focalgeo.report.__main__ import main as report_main
from focalgeo.rows import Row, encode, select
from focalgeo.training.step import member_state
from focalgeo.types import InputError, Predictions, RunError

pytestmark = pytest.mark.long

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


def ready(config, count=None):
    """What `choose_program` takes, and the members."""
    run_members = preparation.make_members(config)[:count]
    prepared = preparation.prepare(config)
    state = preparation.initial_state(prepared, run_members)
    pipeline = preparation.make_pipeline(config, prepared.dataset, preparation.stream_seeds(run_members))
    choose = functools.partial(training.choose_program, prepared, state=state, pipeline=pipeline)
    return choose, state, pipeline


def trained(config, *, at_once):
    """The states of all members after STEPS steps, stacked, in host memory."""
    choose, state, pipeline = ready(config)
    program, _ = choose(at_once=at_once)
    groups = program.place(state)
    specs = (spec for epoch in range(STEPS) for spec in pipeline.specs(epoch, 0))
    for _, spec in zip(range(STEPS), specs, strict=False):
        groups, _, _ = program.step(groups, spec)
    return program.gather(groups)


def largest_difference(first, second):
    """Of any leaf of the parameters and batch statistics, in units of that leaf's largest value."""
    leaves = [jax.tree.leaves((state.params, state.model_state)) for state in (first, second)]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(*leaves, strict=True))


AXES = [
    {"gamma": (0.0, 3.0), "seed": (0, 1)},
    {"trace_penalty": (0.0, 0.001), "seed": (0, 1)},
    {"learning_rate": (0.01, 0.1)},
    {"weight_decay": (0.0, 0.05)},
]


@pytest.mark.parametrize("axes", AXES, ids=lambda axes: next(iter(axes)))
def test_a_member_equals_its_run_alone(axes):
    config = load_config(**axes)
    run_members = preparation.make_members(config)
    alone = [member_state(trained(member.config, at_once=1), 0) for member in run_members]
    assert largest_difference(alone[0], alone[-1]) > 1e-3
    for at_once in (len(run_members), 1):
        together = trained(config, at_once=at_once)
        for index, own in enumerate(alone):
            assert largest_difference(member_state(together, index), own) < 1e-5, run_members[index].name


def test_members_take_the_trace_of_the_rows_that_a_run_alone_takes_on_any_number_of_devices():
    config = load_config(trace_penalty=(0.01,), seed=(0, 1))
    config.loss.trace_examples = 16
    whole = trained(config, at_once=2)  # one on each device
    alone = member_state(trained(preparation.make_members(config)[1].config, at_once=1), 0)  # each batch over both
    assert largest_difference(member_state(whole, 1), alone) < 1e-5


def test_a_member_equals_its_run_alone_with_batch_norm_and_augmentation(tmp_path):
    from PIL import Image

    rng = np.random.default_rng(0)
    for split, name, number in ((s, n, i) for s in ("train", "test") for n in ("ant", "bee") for i in range(40)):
        (tmp_path / split / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (16, 16, 3), np.uint8)).save(tmp_path / split / name / f"{number:03}.png")
    config = load_config("cifar10", gamma=(0.0, 2.0), seed=(0, 1))
    config.data.update({"name": f"folder:{tmp_path}", "train_size": 64, "val_size": 8})
    config.model.options.widths = (4, 8)
    config.optimizer.update({"batch_size": 16, "learning_rate": 0.02})
    assert config.data.augment == "crop_flip"
    together = trained(config, at_once=4)
    alone = member_state(trained(preparation.make_members(config)[3].config, at_once=1), 0)
    assert largest_difference(member_state(together, 3), alone) < 1e-5
    assert alone.model_state  # batch statistics are part of what agrees


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
    for at_once in (2, 1):  # members over devices, or each batch over devices
        states = [trained(load_config(**axes), at_once=at_once).params for axes in AXES]
        for a, b in zip(jax.tree.leaves(states), expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max())


def without_times(workdir):
    """Rows as text, in any order, less what a clock wrote."""
    kept = [row for row in records.read_rows(workdir) if row.name not in ("seconds", "examples_per_second")]
    return sorted(json.dumps(json.loads(encode(row)), sort_keys=True) for row in kept)


def swept(**more):
    return tiny(gamma=(0.0, 3.0), seed=(0, 1), at_once=2, **more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "whole"
    job.run(swept(), workdir)
    return workdir


def test_every_member_has_its_rows_its_files_and_a_place_on_the_page(whole):
    rows, run_members = records.read_rows(whole), preparation.make_members(swept())
    for member in run_members:
        names = {row.name for row in select(rows, Row, **member.tags)}
        assert {"loss", "accuracy", "ece", "temperature", "lambda_max", "trace", "seconds"} <= names
        assert (whole / "members" / member.name / "predictions" / "test.npz").exists()
    assert not (whole / "predictions").exists()
    assert "4 runs trained side by side" in (whole / "report.html").read_text()


def test_kill_9_and_the_same_command_give_the_rows_of_the_whole(whole, tmp_path):
    workdir = tmp_path / "killed"
    script = f"import sys; sys.path.insert(0, 'tests'); import test_sweep as t; t.job.run(t.swept(), {str(workdir)!r})"
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.DEVNULL)
    while not (workdir / "checkpoints" / "10" / "digest.json").exists():
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    job.run(swept(), workdir)
    assert without_times(workdir) == without_times(whole)


def test_a_stop_between_evaluations_measures_only_what_is_left_in_the_same_groups(whole, tmp_path, monkeypatch):
    evaluate, measured = measurement.evaluate, []

    def stop_at_the_third(member, *rest):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(member.name)
        return evaluate(member, *rest)

    monkeypatch.setattr(measurement, "evaluate", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        job.run(swept(), tmp_path / "run")
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"kind": "scalar", "na')  # torn by a kill
    monkeypatch.setattr(
        measurement, "evaluate", lambda member, *rest: measured.append(member.name) or evaluate(member, *rest)
    )
    monkeypatch.setattr(training, "candidates", None)  # they would be timed if the groups were chosen anew
    job.run(swept(), tmp_path / "run")
    assert measured == ["gamma=0,seed=0", "gamma=0,seed=1", "gamma=3,seed=0", "gamma=3,seed=1"]
    assert without_times(tmp_path / "run") == without_times(whole)


def test_a_finished_sweep_does_not_grow_and_is_no_other_shard(whole):
    for axes in ({"seed": (0,)}, {"seed": (0, 1, 2)}):
        config = swept()
        config.sweep.update(axes)
        with pytest.raises(InputError, match=r"belongs to another config \(sweep\.seed"):
            job.run(config, whole)
    with pytest.raises(InputError, match="holds all of the sweep, this run is shard 0/2"):
        job.run(swept(), whole, shard="0/2")


def test_shards_merge_to_the_rows_and_the_page_of_the_whole(whole, tmp_path):
    parts = [tmp_path / f"part{index}" for index in (0, 1)]
    for index, part in enumerate(parts):
        job.run(swept(), part, shard=f"{index}/2")
    for _ in range(2):  # a merge may be made anew
        assert report_main([*map(str, parts), f"--out={tmp_path / 'merged'}"]) == 0
        assert without_times(tmp_path / "merged") == without_times(whole)
    pages = [(folder / "report.html").read_text() for folder in (tmp_path / "merged", whole)]
    for page in pages:
        assert page[page.index("All numbers") : page.index("The sweep, and how")] in pages[0]


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
    alone = member_state(trained(preparation.make_members(config)[0].config, at_once=1), 0)
    beside = member_state(trained(config, at_once=2), 0)
    assert largest_difference(beside, alone) < 1e-5


def test_a_member_that_cannot_be_measured_is_named_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    evaluate = measurement.evaluate

    def fail(member, *rest):
        if member.name.startswith("gamma=0"):
            raise RunError("the gradient is not finite")
        return evaluate(member, *rest)

    monkeypatch.setattr(measurement, "evaluate", fail)
    job.run_and_print(tiny(gamma=(0.0, 3.0), at_once=2), tmp_path / "run")
    said = capsys.readouterr()
    assert "member gamma=0 has no results, the others go on: the gradient is not" in said.err
    assert "1 of 2 members stopped and have no results: gamma=0 at step 34" in said.out
    ece = [row for row in records.read_rows(tmp_path / "run") if row.name == "ece"]
    assert {row.gamma for row in ece} == {3.0}


def test_a_member_is_calibrated_as_it_is_alone_and_its_error_is_its_own():
    run_members = preparation.make_members(tiny(gamma=(0.0, 3.0), seed=(0, 1)))
    rng = np.random.default_rng(0)
    predictions = {}
    for split in ("val", "test"):
        logits = rng.normal(size=(150, 4, 10)).astype(np.float32)
        predictions[split] = Predictions(logits, rng.integers(0, 10, 150).astype(np.int32))
    predictions["test"].logits[7, 1] = np.inf
    predictions["test"].logits[:, 2] *= np.float32(1e37)

    def calibrated(index):
        of_member = {split: outputs._replace(logits=outputs.logits[:, index]) for split, outputs in predictions.items()}
        return measurement.calibrate(run_members[index], of_member)[0]

    with ThreadPoolExecutor(4) as pool:
        first, infinite, unbounded, last = [pool.submit(calibrated, index) for index in range(4)]
    assert str(infinite.exception()) == "logits on test are not finite"
    assert "nll" in str(unbounded.exception())
    assert [first.result(), last.result()] == [calibrated(0), calibrated(3)]
    implied = {"loss_implied_map", "loss_implied_temperature_scaling"}
    assert {row.method for row in last.result()} - {row.method for row in first.result()} == implied


def test_shards_are_parts_of_the_members_and_a_wrong_one_is_one_line(tmp_path):
    names = [member.name for member in preparation.make_members(load_config(gamma=(0.0, 1e-05), seed=(1, 20240102)))]
    assert names[1:3] == ["gamma=0,seed=20240102", "gamma=1e-05,seed=1"]
    parts = [preparation.of_shard(names, f"{index}/3") for index in range(3)]
    assert sorted(name for part in parts for name in part) == sorted(names)
    for shard in ("2/2", "0", "a/b", "0/9", "-1/2"):
        with pytest.raises(InputError, match=r"^--shard=.*: give i/n with i from 0 to n - 1, and n at most 4"):
            job.run(swept(), tmp_path / "run", shard=shard)


def test_numbers_of_members_at_once_that_are_tried_divide_them():
    # one on each device where they divide evenly: 5 would cut the batch and group the convolutions as well
    found = [training.candidates(count, devices) for count, devices in ((40, 8), (40, 4), (35, 4), (4, 4))]
    assert found == [[1, 8, 40], [1, 4, 40], [1, 5, 35], [1, 4]]


@pytest.mark.parametrize(("count", "expected"), [(4, 2), (3, 1), (1, 1)])
def test_a_shard_trains_as_many_at_once_as_divide_it(count, expected):
    choose, *_ = ready(load_config(gamma=(0.0, 1.0, 2.0, 3.0), at_once=2), count)
    assert choose(at_once=0)[1] == expected


def test_no_more_members_are_tried_at_once_where_more_take_longer(monkeypatch, capsys):
    choose, *_ = ready(load_config(gamma=(0.0, 1.0, 2.0, 3.0)))
    clock = iter([0, 1, 1, 3, 3, 4])  # one at once takes 1 s, two take 2
    monkeypatch.setattr(training.time, "perf_counter", lambda: next(clock))
    assert choose(at_once=0)[1] == 1
    said = capsys.readouterr().err
    assert "1 at once 83.3 ms, 2 at once 167 ms; taking 1" in said
