"""The SLURM script and the lines of docs/several_machines.md, with a stand-in for srun."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from focalgeo import job, run
from focalgeo.config import load_config, parse_arguments, with_values

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "slurm.sh"
TASKS = 2
# Starts the tasks as SLURM does, the second before the first; ends with the largest exit code.
SRUN = f"""#!{sys.executable}
import os, shlex, subprocess, sys

command = sys.argv[1:]
while command[0].startswith("--"):
    print(command.pop(0), flush=True)
if "ONLY_SHOW" in os.environ:
    sys.exit(print(shlex.join(command)))
given = {{"SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_ID": "0"}}
given |= {{"SLURM_NTASKS": "{TASKS}", "SLURM_STEP_NUM_TASKS": "{TASKS}"}}
tasks = []
for i in reversed(range({TASKS})):
    own = {{"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)}}
    tasks.append(subprocess.Popen(command, env={{**os.environ, **given, **own}}))
sys.exit(max(abs(task.wait()) for task in tasks))
"""


def directives():
    """Option -> value of the script's #SBATCH lines, which SLURM reads up to the first command."""
    lines = SCRIPT.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first:])
    found = (line.removeprefix("#SBATCH ") for line in lines[:first] if line.startswith("#SBATCH"))
    return dict(re.fullmatch(r"--([a-z-]+)=(\S+)", each).groups() for each in found)


def sbatch(folder, *arguments, **environment):
    """Run the script as a job's first node does, with a stand-in for srun; returns the running process."""
    (folder / "bin").mkdir()
    (folder / "bin" / "srun").write_text(SRUN)
    (folder / "bin" / "srun").chmod(0o755)
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment |= {"PATH": path, "SLURM_CPUS_PER_TASK": directives()["cpus-per-task"]}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    return subprocess.Popen(
        ["bash", str(SCRIPT), *map(str, arguments)], cwd=ROOT, env={**os.environ, **environment}, **pipes
    )


def ended(process, seconds):
    """The exit code and output; what still runs after so many seconds is killed, with all that it started."""
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


def free_job_id():
    """A SLURM job whose port, as jax computes it, is free."""
    first = 65535 - 2**12 + 1
    for port in range(first + os.getpid() % 2000, 65536):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return str(port - first)
    raise AssertionError("no free port")


def test_the_slurm_script_parses_and_asks_for_one_task_per_gpu():
    subprocess.run(["bash", "-n", SCRIPT], check=True)
    asked = directives()
    assert asked["ntasks-per-node"] == asked["gpus-per-node"]
    assert "gpus-per-task" not in asked
    assert re.fullmatch(r"TERM@\d+", asked["signal"])


def test_the_slurm_script_hands_its_arguments_on_as_they_are(tmp_path):
    arguments = ["--config=configs/digits.py", "--config.model.options.hidden=(64, 64)", "--workdir=a  b"]
    code, out, err = ended(sbatch(tmp_path, *arguments, ONLY_SHOW="1"), 60)
    assert (code, err) == (0, "")
    asked, command = out.splitlines()
    assert asked == f"--cpus-per-task={directives()['cpus-per-task']}"
    assert shlex.split(command) == ["python", "-m", "focalgeo.run", *arguments]


def commands():
    """The arguments of every command of focalgeo.run in docs/several_machines.md, and of the script's own example."""
    page = (ROOT / "docs" / "several_machines.md").read_text()
    text = (page + SCRIPT.read_text()).replace("\\\n", " ")
    return [shlex.split(each) for each in re.findall(r"(?:-m focalgeo\.run|slurm\.sh) (--[^`\"&\n]*)", text)]


def test_the_lines_for_several_machines_name_flags_configs_and_fields_that_exist():
    assert len(commands()) == 6
    for arguments in commands():
        values, given = parse_arguments(arguments, run.FLAGS)
        job.check_config(with_values(load_config(given["config"]), values))
        assert {"coordinator", "processes", "process"} <= given.keys() or "coordinator" not in given


@pytest.mark.long
def test_the_slurm_script_runs_two_tasks_as_one_run(tmp_path):
    arguments = [f"--config={ROOT / 'configs' / 'digits.py'}:quick", f"--workdir={tmp_path / 'run'}"]
    process = sbatch(tmp_path, *arguments, "--heartbeat=10", JAX_PLATFORMS="cpu", SLURM_JOB_ID=free_job_id())
    code, out, err = ended(process, 300)
    assert code == 0, err
    assert (tmp_path / "run" / "report.html").exists()
    assert out.count("report: ") == 1  # process 0 alone says so
