"""The commands as a user types them: flags, exit codes, one line for whatever is wrong, signals, devices, kills."""

import importlib
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import clusters
import numpy as np
import pytest

import focalgeo
from focalgeo import config, files, job, records, run
from focalgeo.__main__ import COMMANDS
from focalgeo.job import process
from focalgeo.rows import Metric, select
from focalgeo.types import InputError

ROOT = Path(__file__).parent.parent
QUICK = f"--config={ROOT / 'configs' / 'digits.py'}:quick"
CHEAP = ("--config.curvature.examples=0", "--config.evaluation.num_resamples=2", "--config.evaluation.methods=isotonic")


def command(*words, folder=ROOT):
    found = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return found.returncode, found.stdout, found.stderr


REFUSED = {
    "--config=configs/nothing.py": "the config file is 'configs/nothing.py'",
    f"--config={ROOT}/configs/digits.py:fast": "digits.py is 'fast'",
    f"{QUICK} --processes=2": "--coordinator is missing",
    f"{QUICK} --coordinator=h:1 --processes=two --process=0": "--processes is two",
    f"{QUICK} --coordinator=h:1 --processes=2 --process=2": "--process=2",
    f"{QUICK} --shard=3": "shard",
    f"{QUICK} --config.loss.gama=3": "config.loss.gama; did you mean config.loss.gamma?",
    f"{QUICK} --config.model.options.heads=3": "the option of mlp in config.model.options is 'heads': choose one of",
    f"{QUICK} --config.loss.gamma=-1": "config.loss.gamma is -1.0",
    f"{QUICK} --config.loss.name=focal": "did you mean 'focal_loss'",
    f"{QUICK} --config.optimizer.decay_epochs=-1": "give array, number, minimum",
    f"{QUICK} --config.data.name=folder:nowhere": "nowhere",
    f"{QUICK} --config.data.train_size=5000": "1079",
    f"{QUICK} --config.loss.alpha=1,2": "config.loss.alpha holds 2 weights, digits has 10 classes",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_wrong_flags_are_one_line_and_nothing_is_written(flags, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run.main(["focalgeo.run", "--workdir=w", *flags.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch("focalgeo: [^\n]*\n", err)
    assert REFUSED[flags] in err
    assert not list(tmp_path.iterdir())


def test_what_is_missing_is_named(capsys):
    for flags, name in (([], "--config is missing: for example --config=configs/digits.py"), ([QUICK], "--workdir is")):
        assert run.main(["focalgeo.run", *flags]) == 2
        assert name in capsys.readouterr().err


def test_a_typo_ends_the_process_in_one_line_before_jax_is_imported():
    code, out, err = command("-X", "importtime", "-m", "focalgeo.run", "--config.loss.gama=3")
    assert (code, out) == (2, "")
    lines = [line for line in err.splitlines() if not line.startswith("import time:")]
    assert lines == ["focalgeo: no such config field: config.loss.gama; did you mean config.loss.gamma?"]
    assert not re.search(r"\| +jax$", err, re.MULTILINE)


def test_every_command_is_listed_and_handed_its_arguments(tmp_path):
    modules = {path.stem for path in (ROOT / "focalgeo").glob("*.py") if '__name__ == "__main__"' in path.read_text()}
    modules |= {path.parent.name for path in (ROOT / "focalgeo").glob("*/__main__.py")}
    assert modules - {"__main__"} == set(COMMANDS)
    code, out, err = command("-m", "focalgeo", folder=tmp_path)
    assert (code, err) == (0, "")
    assert all(f"python -m focalgeo.{name} " in out for name in COMMANDS)
    assert all(f"configs/{name} " in out for name in config.own_configs())
    assert command("-m", "focalgeo", "--version")[1] == f"focalgeo {focalgeo.__version__}\n"
    for name in COMMANDS:
        assert command("-m", "focalgeo", name, "--help") == command("-m", f"focalgeo.{name}", "--help")
    unknown = command("-m", "focalgeo", "calibrat")
    assert unknown == (2, "", "focalgeo: the command is 'calibrat': did you mean 'calibrate'?\n")


def test_the_fields_are_shown_from_any_folder(tmp_path):
    for flag, says in (("--fields", "optimizer.epochs            60 "), ("--help", "--fields  ")):
        code, out, _ = command("-m", "focalgeo.run", flag, folder=tmp_path)
        assert code == 0
        assert says in out
    assert len(out.splitlines()) <= 15


@pytest.mark.parametrize("module", ["focalgeo.run", "focalgeo.calibrate"])
def test_a_command_that_runs_out_of_memory_ends_in_one_line(module, monkeypatch, capsys):
    def raise_error(*_, **__):
        raise MemoryError

    command = importlib.import_module(module)
    monkeypatch.setattr(command, "parse", raise_error)
    assert command.main(["x", "y"]) == 3
    assert re.fullmatch("focalgeo: .* more memory than is free: .*\n", capsys.readouterr().err)


def test_a_file_in_the_way_and_a_full_disk_are_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for workdir in (tmp_path / "file", tmp_path / "file" / "below"):
        assert run.main(["focalgeo.run", QUICK, f"--workdir={workdir}"]) == 2
        assert str(workdir) in capsys.readouterr().err
    # a limit on the size of files is met by the same calls as a full disk
    words = shlex.join([sys.executable, "-m", "focalgeo.run", QUICK, f"--workdir={tmp_path / 'run'}"])
    limited = ["bash", "-c", f"ulimit -f 20; exec {words}"]
    env = {**os.environ, "GIT_DIR": str(tmp_path)}  # git would be killed while it holds the lock of its index
    found = subprocess.run(limited, capture_output=True, text=True, cwd=ROOT, env=env)
    assert found.returncode == 2
    (line,) = [line for line in found.stderr.splitlines() if line.startswith("focalgeo: ")]
    assert "cannot write" in line
    assert str(tmp_path / "run") in line


@pytest.mark.parametrize(
    "signum",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.long),
        signal.SIGTERM,
        pytest.param(signal.SIGHUP, marks=pytest.mark.long),
    ],
)
def test_a_signal_saves_and_ends_in_one_line(tmp_path, signum):
    flags = [QUICK, "--workdir=run", "--config.optimizer.epochs=4000"]
    with clusters.cluster(tmp_path / "cwd", 1, 1, *flags) as (process,):
        clusters.wait_for(lambda: clusters.steps_done(tmp_path / "cwd" / "run") > 20)
        process.send_signal(signum)
        (line,) = process.ends(128 + signum, 60)
    assert "saved; the same command goes on from there" in line
    saved = [int(path.name) for path in (tmp_path / "cwd" / "run" / "checkpoints").iterdir()]
    assert max(saved) == int(line.split("stopped at step ")[1].split()[0])


@pytest.mark.parametrize("signum", process.SIGNALS)
def test_a_signal_is_held_back_once_and_the_handlers_come_back(signum):
    before = signal.getsignal(signum)
    with process.deferred_signals() as stopped:
        assert stopped() is None
        signal.raise_signal(signum)
        assert stopped() == signum
        assert signal.getsignal(signum) is before
    assert signal.getsignal(signum) is before


def test_a_hangup_stops_a_run_but_not_under_nohup():
    begin = "import signal; from focalgeo.job import process as i; i.stop_at_once(); "
    raised = [sys.executable, "-c", f"{begin}signal.raise_signal(signal.SIGHUP); print('goes on')"]
    found = subprocess.run(raised, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (129, "")
    assert "stopped; the same command goes on from what is saved" in found.stderr
    assert subprocess.run(["nohup", *raised], capture_output=True, text=True).stdout == "goes on\n"


@pytest.mark.long
def test_one_device_and_two_give_the_same_run(tmp_path):
    flags = [QUICK, "--workdir=run", "--config.optimizer.epochs=10", "--config.optimizer.decay_epochs=7", *CHEAP]
    numbers = []
    for devices in (1, 2):
        clusters.run_cluster(tmp_path / str(devices), 1, devices, *flags)
        rows = records.read_rows(tmp_path / str(devices) / "run")
        numbers.append({row.name: row.value for row in select(rows, Metric, split="test", method="uncalibrated")})
        assert len(records.read_manifest(tmp_path / str(devices) / "run")["devices"]) == devices
        assert [row.value for row in rows if row.name == "examples_seen"][-1] == 10 * 1079
    assert numbers[0]
    assert numbers[1] == pytest.approx(numbers[0], abs=1e-3)


@pytest.mark.long
def test_kills_at_random_moments_change_no_bit(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")  # what is killed may leave half a compiled program
    flags = [QUICK, "--workdir=run", "--config.optimizer.epochs=100", "--config.checkpoint.every=50", *CHEAP]
    workdir, began = tmp_path / "killed" / "run", time.monotonic()
    clusters.run_cluster(tmp_path / "whole", 1, 1, *flags)
    seconds = time.monotonic() - began
    for _ in range(3):
        with clusters.cluster(tmp_path / "killed", 1, 1, *flags) as (process,):
            clusters.wait_for(lambda: clusters.steps_done(workdir) > 0)
            time.sleep(random.uniform(0, 0.5 * seconds))
            process.kill()
    clusters.run_cluster(tmp_path / "killed", 1, 1, *flags)
    assert clusters.differences(workdir, tmp_path / "whole" / "run") == []


def test_a_fault_of_the_code_is_raised_where_no_other_process_can_be_its_cause(tmp_path, monkeypatch):
    def broken(*arguments, **options):
        raise KeyError("a fault")

    monkeypatch.setattr(job, "run_and_print", broken)
    with pytest.raises(KeyError, match="a fault"):
        run.main(["focalgeo.run", QUICK, f"--workdir={tmp_path / 'run'}"])


SPOKEN = [[name, "--help"] for name in ("focalgeo.run", "focalgeo.calibrate", "focalgeo.report", "focalgeo")]


@pytest.mark.parametrize("words", SPOKEN, ids=" ".join)
def test_output_that_nobody_reads_or_that_finds_no_room_ends_in_good_order(words):
    full = "exec python -m {} > /dev/full".format(" ".join(words)).replace("python", sys.executable)
    found = subprocess.run(["bash", "-c", full], capture_output=True, text=True, cwd=ROOT)
    line = (
        "focalgeo: cannot write to standard output: No space left on device; what a command writes into files is there"
    )
    assert (found.returncode, found.stderr.strip()) == (2, line)
    closed, writing = os.pipe()
    os.close(closed)
    with os.fdopen(writing, "w") as pipe:
        found = subprocess.run([sys.executable, "-m", *words], stdout=pipe, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert (found.returncode, found.stderr) == (141, "")


def test_what_standard_output_cannot_encode_is_a_question_mark():
    code = "from focalgeo import files; files.spoken(lambda: print('γ = 3'))"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "? = 3\n", "")


def test_memory_that_ends_while_a_file_is_read_is_said():
    with pytest.raises(InputError, match=r"cannot be read .* \(more memory than is free\)"), files.reading("a.npz"):
        raise MemoryError("std::bad_alloc")


@pytest.mark.parametrize("platform", ["cuda", "tpus"])
def test_a_platform_that_jax_does_not_find_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, platform):
    monkeypatch.setenv("JAX_PLATFORMS", platform)
    np.savez(tmp_path / "val.npz", logits=np.eye(3)[np.arange(60) % 3], labels=np.arange(60) % 3)
    for words in (["focalgeo.run", QUICK, "--workdir=out"], ["focalgeo.calibrate", "--val=val.npz", "--out=out"]):
        code, _, error = command("-m", *words, folder=tmp_path)
        assert (code, error.count("\n")) == (2, 1)
        assert f"JAX finds no device of {platform}" in error
    assert not (tmp_path / "out").exists()


def test_settings_of_jax_that_do_not_suit_are_said_and_it_goes_on(tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    np.savez(tmp_path / "val.npz", logits=generator.normal(size=(60, 3)), labels=np.arange(60) % 3)
    for name in ("JAX_DEBUG_NANS", "JAX_DEBUG_INFS"):
        monkeypatch.setenv(name, "1")
    flags = ["--val=val.npz", "--out=out", "--methods=temperature_scaling", "--num-resamples=100"]
    code, _, error = command("-m", "focalgeo.calibrate", *flags, folder=tmp_path)
    assert code == 0, error
    assert error.count("is switched off: empty bins are NaN by design") == 2


def test_library_functions_bear_the_strictest_settings():
    """NaN looked for by JAX, and every error of floats by NumPy, on outputs that saturate."""
    script = """
import warnings, jax, numpy as np
from focalgeo import calibration
jax.config.update("jax_debug_nans", True)
np.seterr(all="raise")
logits = np.float32(60 * np.random.default_rng(0).normal(size=(200, 3)))
labels = np.argmax(logits + np.float32(np.random.default_rng(1).gumbel(size=logits.shape)) * 30, 1)
log_probs = np.asarray(jax.nn.log_softmax(logits))
for name, entry in calibration.METRICS.items():
    if "of P(1)" in entry.shown.note:
        continue
    entry.function(log_probs, labels)
    calibration.bootstrap(entry.function, log_probs, labels, jax.random.key(0), 4)
assert np.isnan(np.asarray(calibration.reliability(log_probs, labels).accuracy)).any()
halves = [(logits[half], labels[half]) for half in (slice(100), slice(100, 200))]
calibration.compare(*halves, ("temperature_scaling",), num_resamples=100)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    calibration.compare(halves[0], halves[0], ("temperature_scaling",), num_resamples=100)
assert {each.filename for each in caught} == {"<string>"}  # the line that calls compare
"""
    code, _, error = command("-W", "ignore", "-c", script)
    assert code == 0, error


def test_what_takes_long_is_said_and_what_does_not_is_silent(capsys):
    for seconds, took in ((60, 0), (0.01, 1)):
        with files.waiting(f"after {seconds} s", seconds):
            time.sleep(took)
    assert capsys.readouterr().err == "after 0.01 s\n"
