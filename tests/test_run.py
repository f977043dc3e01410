"""The main job as a user types it: flags, exit codes, one line for whatever is wrong, signals, devices, kills."""

import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from focalgeo import records
from focalgeo.rows import Metric, Scalar, select

ROOT = Path(__file__).parent.parent
FLAGS = os.environ["XLA_FLAGS"].replace("--xla_force_host_platform_device_count=2", "")
QUICK = f"--config={ROOT / 'configs' / 'digits.py'}:quick"


def run(*arguments, devices=1):
    environment = {**os.environ, "XLA_FLAGS": f"{FLAGS} --xla_force_host_platform_device_count={devices}"}
    command = [sys.executable, "-m", "focalgeo.run", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300)


def one_line(result, code=2):
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("focalgeo: ")]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--config is missing: for example --config=configs/digits.py"),
        ([QUICK], "--workdir is missing"),
        (["--config=configs/nothing.py", "--workdir=w"], "No such file or directory: 'configs/nothing.py'"),
        (
            ["--config=configs/digits.py:fast", "--workdir=w"],
            "digits.py knows no 'fast': did you mean 'quick'?",
        ),
        ([QUICK, "--workdir=w", "--config.loss.gama=3"], "config.loss.gama; did you mean config.loss.gamma?"),
        ([QUICK, "--workdir=w", "--config.los.gamma=3"], "config.los.gamma; did you mean config.loss.gamma?"),
        ([QUICK, "--workdir=w", "--config.loss.gamma=big"], "config.loss.gamma is big: it must be a number"),
        ([QUICK, "--workdir=w", "--config.model.options.heads=3"], "mlp has no such option (it has: hidden)"),
        ([QUICK, "--workdir=w", "--wordkir=x"], "Unknown command line flag 'wordkir'"),
        ([QUICK, "--workdir=w", "gamma=3"], "unknown argument 'gamma=3'"),
        ([QUICK, "--workdir=w", "--config.loss.gamma=-1"], "config.loss.gamma is -1.0"),
    ],
)
def test_wrong_flags_are_one_line(arguments, message):
    assert message in one_line(run(*arguments))
    assert not (ROOT / "w").exists()


def test_a_file_in_the_way_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    assert "not a folder" in one_line(run(QUICK, f"--workdir={tmp_path / 'file'}"))
    assert "file stands where a folder" in one_line(run(QUICK, f"--workdir={tmp_path / 'file' / 'below'}"))


def test_a_disk_that_takes_no_more_is_one_line(tmp_path):
    # a limit on the size of files is met by the same calls as a full disk
    command = shlex.join([sys.executable, "-m", "focalgeo.run", QUICK, f"--workdir={tmp_path / 'run'}"])
    limited = ["bash", "-c", f"ulimit -f 20; exec {command}"]
    line = one_line(subprocess.run(limited, capture_output=True, text=True, cwd=ROOT, timeout=300))
    assert "cannot write" in line
    assert str(tmp_path / "run") in line


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_the_same_command_goes_on(tmp_path, signum):
    arguments = [QUICK, f"--workdir={tmp_path / 'run'}", "--config.optimizer.epochs=4000"]
    command = [sys.executable, "-m", "focalgeo.run", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        metrics = tmp_path / "run" / "metrics.jsonl"
        for _ in range(600):
            if metrics.exists() and len(metrics.read_text().splitlines()) > 20:
                break
            time.sleep(0.1)
        process.send_signal(signum)
        error = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signum
    assert "saved; the same command goes on from there" in error
    assert "Traceback" not in error
    saved = [int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir()]
    stopped_at = int(error.split("stopped at step ")[1].split()[0])
    assert max(saved) == stopped_at


def final_numbers(workdir):
    rows = select(records.read_rows(workdir), Metric, split="test", method="uncalibrated")
    assert rows
    return {row.name: row.value for row in rows}


@pytest.mark.long
def test_any_number_of_devices_gives_the_same_run(tmp_path):
    numbers, seen = [], []
    for devices in (1, 2, 4):
        workdir = tmp_path / str(devices)
        flags = [QUICK, f"--workdir={workdir}", "--config.optimizer.epochs=10", "--config.optimizer.decay_epochs=(7,)"]
        flags += ["--config.curvature.examples=0", "--config.evaluation.num_resamples=2"]
        assert run(*flags, devices=devices).returncode == 0
        assert len(json.loads((workdir / "manifest.json").read_text())["devices"]) == devices
        numbers.append(final_numbers(workdir))
        seen.append(select(records.read_rows(workdir), Scalar, name="examples_seen")[-1].value)
    assert seen == [10 * 1079] * 3
    for other in numbers[1:]:
        assert other == pytest.approx(numbers[0], abs=1e-3)


@pytest.mark.long
def test_kills_at_random_moments_change_no_bit():
    script = [sys.executable, str(ROOT / "tests" / "kill_and_resume.py"), "--times=4", "--chain"]
    cheap = ["--config.curvature.examples=0", "--config.evaluation.num_resamples=2", "--config.checkpoint.every=50"]
    cheap += ["--config.evaluation.temperature_step=0.5", "--config.optimizer.epochs=100"]
    as_users = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    result = subprocess.run([*script, *cheap], capture_output=True, text=True, timeout=400, cwd=ROOT, env=as_users)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "parameters and rows: equal" in result.stdout


def test_any_directory_will_do_and_the_fields_are_shown(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def run_there(*arguments):
        command = [sys.executable, "-m", "focalgeo.run", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300)

    shown = run_there("--fields")
    assert shown.returncode == 0
    assert "optimizer.epochs            60 " in shown.stdout
    gamma = f"--config={ROOT / 'configs' / 'digits_gamma.py'}:quick"
    refused = run_there(gamma, "--workdir=w", "--config.sweep.at_once=3")
    assert one_line(refused) == "focalgeo: config.sweep.at_once is 3: it must divide the 4 members"


@pytest.mark.parametrize("module", ["focalgeo.run", "focalgeo.calibrate"])
def test_a_command_that_runs_out_of_memory_ends_in_one_line(module, monkeypatch, capsys):
    def raise_error(*_, **__):
        raise MemoryError

    command = importlib.import_module(module)
    monkeypatch.setattr(command, "parse", raise_error)
    assert command.main(["x", "y"]) == 3
    assert re.fullmatch("focalgeo: .* more memory than is free: .*\n", capsys.readouterr().err)
