"""Several processes: the bits of one with as many devices; how signals, kills and what is wrong end them."""

import signal

import numpy as np
import pytest
from clusters import ROOT, cluster, differences, run_cluster, steps_done, wait_for
from PIL import Image

pytestmark = pytest.mark.long

CHEAP = {
    "evaluation.methods": "temperature_scaling",
    "evaluation.num_resamples": 20,
    "evaluation.temperature_step": 0.5,
    "optimizer.epochs": 2,
    "log_every": 5,
    "checkpoint.every": 10,
    "curvature.examples": 0,
}
CURVED = {
    "curvature.examples": 13,
    "curvature.batch_size": 8,
    "curvature.max_products": 2,
    "curvature.num_probes": 4,
    "curvature.density_probes": 2,
    "curvature.density_steps": 2,
}
JOBS = {
    # four members, spread over the devices
    "members": (
        "digits_gamma.py:quick",
        {"model.options.hidden": 16, "optimizer.select": "best_val", "sweep.at_once": 4},
    ),
    # three members, whose batches are cut: penalty, adaptation, diagnostics, curvature
    "batches": (
        "digits_trace.py:quick",
        {
            **CURVED,
            "diagnostics.every": 1,
            "diagnostics.examples": 100,
            "model.options.hidden": 8,
            "loss.name": "adafocal_loss",
            "data.train_size": 300,
            "sweep.seed": "0,1,2",
            "sweep.at_once": 3,
        },
    ),
    # batch norm; a short last batch
    "images": (
        "cifar10.py:quick",
        {
            "data.train_size": 50,
            "data.val_size": 30,
            "model.options.widths": "4,8",
            "optimizer.batch_size": 16,
            "optimizer.decay_epochs": 1,
            "evaluation.batch_size": 16,
        },
    ),
    "steps": (
        "digits.py:quick",  # 340 steps, to be stopped among
        {"model.options.hidden": 16, "optimizer.epochs": 20, "checkpoint.every": 20, "log_every": 10},
    ),
}


def job(name, **values):
    config, own = JOBS[name]
    fields = CHEAP | own | {field.replace("__", "."): value for field, value in values.items()}
    flags = [f"--config.{field}={value}" for field, value in fields.items()]
    return [f"--config={ROOT / 'configs' / config}", "--workdir=run", "--heartbeat=10", *flags]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of images in three classes."""
    folder, random = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for split, count in (("train", 28), ("test", 12)):
        for label in range(3):
            (folder / split / str(label)).mkdir(parents=True)
            for number in range(count):
                image = random.integers(0, 120, (16, 16, 3), np.uint8)
                image[..., label] += 100
                Image.fromarray(image).save(folder / split / str(label) / f"{number}.png")
    return folder


@pytest.mark.parametrize("name", ["members", "batches", "images"])
def test_two_processes_give_the_bits_of_one_with_two_devices(name, images, tmp_path):
    flags = job(name, **({"data__name": f"folder:{images}"} if name == "images" else {}))
    for folder, processes in (("one", 1), ("two", 2)):
        assert run_cluster(tmp_path / folder, processes, 2 // processes, *flags) == [[]] * processes
    assert differences(tmp_path / "one" / "run", tmp_path / "two" / "run") == []
    assert (tmp_path / "two" / "run" / "report.html").exists()


def test_two_devices_each_give_the_numbers_of_four(tmp_path):
    flags, logits = job("batches", sweep__seed=0, sweep__trace_penalty="()", sweep__at_once=0), []
    for processes in (1, 2):
        run_cluster(tmp_path / str(processes), processes, 4 // processes, *flags)
        (found,) = (tmp_path / str(processes)).rglob("predictions/test.npz")
        logits.append(np.load(found)["logits"])
    np.testing.assert_allclose(*logits, rtol=1e-4, atol=1e-4)


def test_a_run_that_is_stopped_and_killed_goes_on_to_the_bits_of_one_that_is_not(tmp_path):
    """SIGTERM to either saves and stops both; of a kill the last checkpoint is left; any split of devices goes on."""
    workdir, flags = tmp_path / "cwd" / "run", job("steps")
    run_cluster(tmp_path / "whole", 1, 2, *flags)
    for victim, signum in ((1, signal.SIGTERM), (0, signal.SIGTERM), (1, signal.SIGKILL), (0, signal.SIGKILL)):
        begun = steps_done(workdir)
        with cluster(tmp_path / "cwd", 2, 1, *flags) as running:
            wait_for(lambda begun=begun: steps_done(workdir) > begun + 20)
            running[victim].send_signal(signum)
            if signum == signal.SIGTERM:
                lines = [process.ends(143, 30) for process in running]
                assert lines[0] == lines[1]
                assert "and saved; the same command goes on from there" in lines[0][0]
            else:
                running[1 - victim].wait(30)
                assert running[1 - victim].returncode in (3, -signal.SIGABRT)  # jax's own abort may be faster
        assert steps_done(workdir) < 340
    run_cluster(tmp_path / "cwd", 1, 2, *flags)
    assert differences(workdir, tmp_path / "whole" / "run") == []


def test_a_signal_to_a_process_that_waits_for_another_stops_both(tmp_path):
    flags = job("steps", optimizer__epochs=1, evaluation__num_resamples=20_000)
    with cluster(tmp_path / "cwd", 2, 1, *flags) as running:
        wait_for(lambda: "calibrating" in running[0].log.read_text())
        running[1].send_signal(signal.SIGTERM)
        lines = [process.ends(143, 60) for process in running]
    assert lines == [["focalgeo: stopped; the same command goes on from what is saved"]] * 2


def test_a_process_that_hangs_ends_the_other_within_the_heartbeat(tmp_path):
    with cluster(tmp_path / "cwd", 2, 1, *job("steps", optimizer__epochs=4000)) as running:
        wait_for(lambda: steps_done(tmp_path / "cwd" / "run") > 10)
        running[1].send_signal(signal.SIGSTOP)
        assert running[0].wait(60) != 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("--config.loss.gama=3", "did you mean config.loss.gamma?"),  # before they join
        ("--config.seed=1|--config.seed=2", "config"),  # none sees it alone
        ("--config.optimizer.learning_rate=1e30", "what was saved before is kept"),
    ],
)
def test_an_error_is_the_same_line_of_all(wrong, words, tmp_path):
    flags = [flag for flag in job("steps") if flag.partition("=")[0] != wrong.partition("=")[0]]
    code = 3 if "rate" in wrong else 2
    lines = run_cluster(tmp_path / "cwd", 2, 1, *flags, wrong, code=code)
    assert [len(each) for each in lines] == [1, 1]
    assert words in lines[1][0]


def test_a_workdir_that_only_process_0_can_see_is_refused_by_all(tmp_path):
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd" / "run").write_text("")
    lines = run_cluster(tmp_path / "cwd", 2, 1, *job("steps"), code=2)
    assert lines[0] == lines[1]
    assert "run" in lines[0][0]
