"""Several processes: the numbers of one with as many devices, one line and one code for what goes wrong, kills."""

import fcntl
import json
import os
import shutil
import signal

import clusters
import numpy as np
import pytest
from clusters import PROGRAM, ROOT, cluster, differences, run_cluster, steps_done
from PIL import Image

pytestmark = pytest.mark.long

ROUNDING = 1e-5  # of sums in another order
CHEAP = {
    "evaluation.methods": ("temperature_scaling",),
    "evaluation.num_resamples": 20,  # 2 are never skewed, but by rounding, and an interval depends on that
    "evaluation.temperature_step": 0.5,
    "curvature.examples": 0,
    "optimizer.epochs": 2,
    "log_every": 5,
    "checkpoint.every": 10,
}
CURVED = {
    "curvature.examples": 13,
    "curvature.batch_size": 8,
    "curvature.max_products": 2,
    "curvature.num_probes": 4,
    "curvature.density_probes": 2,
    "curvature.density_steps": 2,
}
DIAGNOSED = {"diagnostics.every": 1, "diagnostics.examples": 100, "diagnostics.num_bins": 5}
IMAGES = {
    "data.name": "folder:{images}",
    "data.train_size": 100,  # the last of its batches is short
    "data.val_size": 18,
    "model.options.widths": (4, 8),
    "optimizer.batch_size": 16,
    "optimizer.learning_rate": 0.02,
    "optimizer.decay_epochs": (1,),
    "evaluation.batch_size": 16,
}
TREES = {
    "data.name": "sst:{trees}",
    "model.options.embedding_size": 6,
    "model.options.width": 5,
    "optimizer.batch_size": 10,
    "evaluation.batch_size": 7,
}
# name -> config, and what is set beside CHEAP; "sent" in the name: the training examples do not stay on the devices
JOBS = {
    "digits": ("digits.py:quick", {**CURVED, "evaluation.methods": ()}),
    "digits_uncurved": ("digits.py:quick", {}),
    "gammas": (
        "digits_gamma.py:quick",
        {"model.options.hidden": (16,), "optimizer.select": "best_val", "sweep.at_once": 4},  # else it is measured
    ),
    "batch_norm_sent": ("cifar10.py:quick", {**IMAGES, **DIAGNOSED, "optimizer.select": "best_val"}),
    "dropout_mmce": ("sst.py:quick,mmce", TREES),
    "adafocal_trace_penalty": (
        "digits_trace.py:quick",  # three members, which no number of devices here divides: batches are spread
        {
            **DIAGNOSED,
            "model.options.hidden": (8,),
            "loss.name": "adafocal_loss",
            "data.train_size": 300,
            "sweep.seed": (0, 1, 2),
            "sweep.at_once": 3,
        },
    ),
    "small": ("digits.py:quick", {"model.options.hidden": (8,), "optimizer.epochs": 1}),
    "long": (
        "digits.py:quick",  # 340 steps, to be stopped among
        {"model.options.hidden": (16,), "optimizer.epochs": 20, "checkpoint.every": 20, "log_every": 10},
    ),
}
SENT = """
import runpy, sys
from focalgeo.job import preparation
assert callable(preparation.resident_bytes)
preparation.resident_bytes = lambda *_, **__: 0
runpy.run_module("focalgeo.run", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="session")
def sources(tmp_path_factory):
    """Data on disk by name: a folder of images in three classes, and trees of words."""
    folder, random = tmp_path_factory.mktemp("sources"), np.random.default_rng(0)
    for split, count in (("train", 40), ("test", 6)):
        for label, name in enumerate(("ant", "bee", "cat")):
            (folder / "images" / split / name).mkdir(parents=True)
            for number in range(count):
                image = random.integers(0, 120, (16, 16, 3), np.uint8)
                image[..., label] += 100
                Image.fromarray(image).save(folder / "images" / split / name / f"{number:03}.png")

    def tree(words):
        if words == 1:
            sentiment = random.integers(0, 5)
            return f"({sentiment} {('awful', 'bad', 'so', 'good', 'great')[sentiment]})"
        left = random.integers(1, words)
        return f"({random.integers(0, 5)} {tree(left)} {tree(words - left)})"

    (folder / "trees").mkdir()
    for name, count in (("train", 64), ("dev", 20), ("test", 20)):
        lines = [tree(random.integers(1, 6)) for _ in range(count)]
        (folder / "trees" / f"{name}.txt").write_text("\n".join(lines))
    return {name: folder / name for name in ("images", "trees")}


@pytest.fixture(scope="session")
def job(sources):
    """The arguments of a job by name, its workdir relative; other fields beside its own where they are given."""

    def arguments(name, **settings):
        config, own = JOBS[name]
        fields = CHEAP | own | {each.replace("__", "."): value for each, value in settings.items()}
        words = {field: str(value).format(**sources).replace(" ", "") for field, value in fields.items()}
        flags = [f"--config.{field}={value}" for field, value in words.items()]
        return [f"--config={ROOT / 'configs' / config}", "--workdir=run", *flags]

    return arguments


@pytest.fixture(scope="session")
def finished(job, tmp_path_factory):
    """The workdir of a job that processes x devices have run without a stop, made once for all tests that ask."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root  # the tests of all pytest's workers

    def workdir(name, processes, devices):
        folder = root / f"{name}-{processes}x{devices}"
        folder.mkdir(exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "done").exists():
                program = ("-c", SENT) if "sent" in name else PROGRAM
                shutil.rmtree(folder / "cwd", ignore_errors=True)
                ended = run_cluster(processes, devices, job(name), folder / "cwd", program=program)
                assert [each.code for each in ended] == [0] * processes, ended
                assert [each.lines for each in ended] == [[]] * processes
                assert "report: " in ended[0].out
                assert [each.out for each in ended[1:]] == [""] * (processes - 1)
                (folder / "done").touch()
        return folder / "cwd" / "run"

    return workdir


def ends_alike(ended, code, line):
    """Every process has ended with this code and the same one line, in which `line` is found."""
    assert [each.code for each in ended] == [code] * len(ended), ended
    assert [len(each.lines) for each in ended] == [1] * len(ended), ended
    assert len({each.lines[0] for each in ended}) == 1, ended
    assert line in ended[0].lines[0]
    for each in ended:
        assert "Traceback" not in each.err
        assert "stack trace" not in each.err


@pytest.mark.parametrize("name", [name for name in JOBS if name not in ("digits_uncurved", "small", "long")])
def test_two_processes_give_the_bits_of_one_with_two_devices(finished, name):
    assert differences(finished(name, 2, 1), finished(name, 1, 2)) == {}


@pytest.mark.parametrize(
    ("name", "processes", "devices"), [("digits", 2, 2), ("digits_uncurved", 4, 1), ("gammas", 4, 1)]
)
def test_four_devices_of_several_processes_give_the_numbers_of_one(finished, name, processes, devices):
    assert differences(finished(name, processes, devices), finished(name, 1, 4), ROUNDING) == {}


def test_variables_of_slurm_are_enough(finished, job, tmp_path):
    number = str(clusters.free_port())  # jax makes its port of it
    shared = {"SLURM_JOB_ID": number, "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}

    def variables(index):
        return shared | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": str(index), "SLURM_LOCALID": str(index)}

    ended = run_cluster(2, 1, job("small"), tmp_path / "cwd", own=variables)
    assert [each.code for each in ended] == [0, 0], ended
    assert differences(tmp_path / "cwd" / "run", finished("small", 1, 2)) == {}


def test_a_process_that_is_stopped_killed_or_hangs_ends_all_and_any_split_goes_on(finished, job, tmp_path):
    """SIGTERM to one saves; of the others' ends the last checkpoint is left. All of them on one run."""
    workdir, copy = (tmp_path / name / "run" for name in ("cwd", "copy"))
    env = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "xla")}  # what is killed may leave half a compiled program
    arguments, moment = [*job("long"), "--heartbeat=10"], 0
    for victim, signum in (
        (1, signal.SIGTERM),
        (1, signal.SIGKILL),
        (0, signal.SIGKILL),
        (1, signal.SIGSTOP),
        (0, signal.SIGSTOP),
    ):
        moment += 30  # of the steps that have rows, some are trained again
        with cluster(2, 1, arguments, tmp_path / "cwd", env=env) as running:
            running.wait_for(lambda moment=moment: steps_done(workdir) >= moment)
            running.signal(victim, signum)
            if signum == signal.SIGTERM:
                ends_alike(running.wait(20), 128 + signum, "saved; the same command goes on from there")
                shutil.copytree(workdir, copy)
            else:
                ends_alike(running.wait(20, only=[1 - victim]), 3, "the same command")
        assert moment <= steps_done(workdir) < 340
        moment = steps_done(workdir)
    for folder, processes, devices in ((workdir, 2, 1), (copy, 1, 2)):
        ended = run_cluster(processes, devices, job("long"), folder.parent, env=env)
        assert [each.code for each in ended] == [0] * processes, ended
        assert differences(folder, finished("long", 1, 2)) == {}


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ("--config.loss.gama=3", "config.loss.gama; did you mean config.loss.gamma?"),  # before they join
        ("--config.data.name=folder:nowhere", "nowhere"),  # each sees it
        (("--config.seed=0", "--config.seed=1"), "seed"),  # none sees it alone
    ],
)
def test_wrong_flags_are_the_same_line_everywhere(job, tmp_path, wrong, line):
    wrong = (wrong, wrong) if isinstance(wrong, str) else wrong
    kept = [flag for flag in job("small") if flag.partition("=")[0] != wrong[0].partition("=")[0]]
    ended = run_cluster(2, 1, lambda index: [*kept, wrong[index]], tmp_path / "cwd", limit=60)
    ends_alike(ended, 2, line)
    assert not (tmp_path / "cwd" / "run").exists()


def other_config(run):
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["config"]["loss"]["gamma"] = 4.5
    (run / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda run: (shutil.rmtree(run), run.write_text("")), "not a folder"),
        (other_config, "belongs to another config (loss.gamma: 4.5 there, 3.0 here)"),
    ],
    ids=["file", "other config"],
)
def test_a_workdir_that_only_process_0_can_see_is_refused_by_all(finished, job, tmp_path, spoil, line):
    (tmp_path / "cwd").mkdir()
    shutil.copytree(finished("small", 1, 2), tmp_path / "cwd" / "run")
    spoil(tmp_path / "cwd" / "run")
    ends_alike(run_cluster(2, 1, job("small"), tmp_path / "cwd", limit=60), 2, line)


@pytest.mark.parametrize("lacking", [0, 1])
def test_data_that_one_process_lacks_end_all(sources, job, tmp_path, lacking):
    for index, name in enumerate(("cwd", "cwd.process1")):
        (tmp_path / name).mkdir()
        if index != lacking:
            (tmp_path / name / "images").symlink_to(sources["images"])
    arguments = job("batch_norm_sent", data__name="folder:images")
    with cluster(2, 1, arguments, tmp_path / "cwd") as running:
        ends_alike(running.wait(60), 2, "images")
    assert not (tmp_path / "cwd" / "run").exists()
    assert not (tmp_path / "cwd.process1" / "run").exists()


def test_a_full_disk_at_a_checkpoint_ends_all(job, tmp_path):
    # a limit on the size of files is met by the same calls as a full disk; a cache of programs has none
    env = {"JAX_COMPILATION_CACHE_DIR": ""}
    arguments = job("digits", checkpoint__every=5)
    ended = run_cluster(2, 1, arguments, tmp_path / "cwd", limit=90, env=env, largest_file=20 * 1024)
    ends_alike(ended, 2, "cannot write checkpoint")


def test_numbers_that_are_not_finite_end_all(job, tmp_path):
    ended = run_cluster(2, 1, job("small", optimizer__learning_rate=1e30), tmp_path / "cwd", limit=90)
    ends_alike(ended, 3, "what was saved before is kept")


def test_the_differences_of_two_runs_are_found(finished, tmp_path):
    whole = finished("small", 1, 2)
    assert differences(whole, whole) == {}
    shutil.copytree(whole, tmp_path / "copy")
    lines = (whole / "metrics.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    changed = json.dumps(first | {"value": first["value"] * (1 + 1e-4)})
    (tmp_path / "copy" / "metrics.jsonl").write_text("\n".join([*lines[1:], changed]))
    found = differences(whole, tmp_path / "copy", ROUNDING)
    assert found == {f"{first['kind']} {first['name']}": pytest.approx(1e-4, rel=1e-3)}
    assert differences(whole, tmp_path / "copy")["order of rows"] == np.inf
    bins = next(line for line in lines if json.loads(line)["kind"] == "reliability_bin")
    moved = json.dumps(json.loads(bins) | {"confidence": json.loads(bins)["confidence"] + 0.01})
    (tmp_path / "copy" / "metrics.jsonl").write_text("\n".join([moved if line == bins else line for line in lines]))
    assert differences(whole, tmp_path / "copy", ROUNDING) == {"reliability_bin reliability": pytest.approx(1e-4)}
    (tmp_path / "copy" / "metrics.jsonl").write_text("\n".join(lines[1:]))
    assert differences(whole, tmp_path / "copy", ROUNDING)["rows"] == np.inf
    (tmp_path / "copy" / "predictions" / "val.npz").unlink()
    assert "predictions/val.npz:logits of one alone" in differences(whole, tmp_path / "copy", ROUNDING)


def test_no_process_outlives_its_cluster(tmp_path):
    sleeper = "import time\nprint('up', flush=True)\ntime.sleep(600)"
    with cluster(2, 1, [], tmp_path / "cwd", program=("-c", sleeper)) as running:
        running.wait_for(lambda: all(running.ended(index).out for index in (0, 1)))
        running.signal(1, signal.SIGSTOP)
        with pytest.raises(AssertionError, match="not ended after"):
            running.wait(0.1)
    assert [each.returncode for each in running.processes] == [-signal.SIGKILL] * 2
