"""The files of examples/ that a person copies, and the lines of docs/several_machines.md, with a stand-in for srun."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import socket
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import synthetic_workdir

from focalgeo import config, job, rows, run

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SCRIPT = EXAMPLES / "slurm.sh"
# Starts two tasks as SLURM does, the second before the first; ends with the largest exit code.
SRUN = f"""#!{sys.executable}
import os, shlex, subprocess, sys

command = sys.argv[1:]
while command[0].startswith("--"):
    print(command.pop(0), flush=True)
if "ONLY_SHOW" in os.environ:
    sys.exit(print(shlex.join(command)))
step = {{"STEP_NODELIST": "localhost", "STEP_NUM_NODES": "1", "STEP_ID": "0", "NTASKS": "2", "STEP_NUM_TASKS": "2"}}
tasks = []
for i in "10":
    own = {{f"SLURM_{{name}}": value for name, value in (step | {{"PROCID": i, "LOCALID": i}}).items()}}
    tasks.append(subprocess.Popen(command, env={{**os.environ, **own}}))
sys.exit(max(abs(task.wait()) for task in tasks))
"""
# Stands in for PyTorch where it is not installed: what examples/pytorch_outputs.py uses of it, on NumPy arrays.
TORCH = """
import contextlib, numpy, types

class Tensor(numpy.ndarray):
    def numpy(self): return numpy.asarray(self)

class Module:
    def __call__(self, *given): return self.forward(*given)
    def eval(self): return self

nn = types.SimpleNamespace(Module=Module)
no_grad = contextlib.nullcontext
from_numpy = lambda array: array.view(Tensor)
cat = lambda arrays: numpy.concatenate(arrays).view(Tensor)
"""


def python(*command, folder, **environment):
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | environment
    return subprocess.run([sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True)


def passes(example, folder, *arguments):
    done = python(EXAMPLES / example, *arguments, folder=folder, PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stderr) == (0, "")
    return done


def sbatch(folder, *arguments, **environment):
    """Run the script as a job's first node does, with a stand-in for srun."""
    (folder / "bin").mkdir()
    (folder / "bin" / "srun").write_text(SRUN)
    (folder / "bin" / "srun").chmod(0o755)
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "SLURM_CPUS_PER_TASK": "8", **environment}
    return subprocess.run(["bash", SCRIPT, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)


def test_the_slurm_script_asks_for_one_task_per_gpu_and_hands_its_arguments_on(tmp_path):
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)", SCRIPT.read_text(), re.MULTILINE))
    assert options["ntasks-per-node"] == options["gpus-per-node"]
    assert "gpus-per-task" not in options
    assert options["signal"].startswith("TERM@")
    arguments = ["--config=configs/digits.py", "--config.model.options.hidden=(64, 64)", "--workdir=a  b"]
    done = sbatch(tmp_path, *arguments, ONLY_SHOW="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert shlex.split(done.stdout) == ["--cpus-per-task=8", "python", "-m", "focalgeo.run", *arguments]


def test_the_lines_for_several_machines_name_flags_configs_and_fields_that_exist():
    text = ((ROOT / "docs" / "several_machines.md").read_text() + SCRIPT.read_text()).replace("\\\n", " ")
    commands = re.findall(r"(?:-m focalgeo\.run|slurm\.sh) (--[^`\"&\n]*)", text)
    assert len(commands) == 6
    for command in commands:
        values, flags = config.parse_arguments(shlex.split(command), run.FLAGS)
        job.check_config(config.with_values(config.load_config(flags["config"]), values))
        assert {"coordinator", "processes", "process"} <= flags.keys() or "coordinator" not in flags


@pytest.mark.long
def test_the_slurm_script_runs_two_tasks_as_one_run(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = {"JAX_COORDINATOR_PORT": str(probe.getsockname()[1]), "JAX_PLATFORMS": "cpu", "SLURM_JOB_ID": "1"}
    flags = [f"--config={ROOT / 'configs' / 'digits.py'}:quick", f"--workdir={tmp_path / 'run'}"]
    done = sbatch(tmp_path, *flags, "--config.evaluation.methods=isotonic", "--config.curvature.examples=0", **port)
    assert done.returncode == 0, done.stderr
    assert "process 1 of 2" in done.stderr
    assert done.stdout.count("report: ") == 1  # process 0 alone says so


@pytest.mark.long
@pytest.mark.parametrize("name", ["training_step", "nnx_model"])
def test_an_example_trains(name, tmp_path):
    done = passes(f"{name}.py", tmp_path)
    assert float(re.match(r"accuracy (0\.\d+), ECE 0\.", done.stdout)[1]) > 0.88
    assert len(list(filter(str.strip, (EXAMPLES / "training_step.py").read_text().splitlines()))) <= 42


@pytest.mark.long
@pytest.mark.parametrize("name", ["pieces_jax", "pieces_nnx", "pieces_equinox"])
def test_the_pieces_train_with_another_library(name, tmp_path):
    skip_without(name.removeprefix("pieces_").replace("nnx", "flax"))
    done = passes(f"{name}.py", tmp_path)
    found = re.findall(r"^(.+): accuracy (\d\.\d+), trace (\d+\.\d+)$", done.stdout, re.MULTILINE)
    traces = {piece: float(trace) for piece, _, trace in found}
    assert [*traces] == ["focal loss", "FLSD", "trace penalty", "SAM"]
    assert all(float(accuracy) > 0.88 for _, accuracy, _ in found)
    assert traces["trace penalty"] < 0.8 * traces["focal loss"]
    assert traces["SAM"] < 0.95 * traces["focal loss"]
    assert traces["FLSD"] != traces["focal loss"]
    assert len(list(filter(str.strip, (EXAMPLES / f"{name}.py").read_text().splitlines()))) <= 42


def test_calarena_is_run_over_a_file_of_its_layout(tmp_path):
    h5py = pytest.importorskip("h5py")
    draws = np.random.default_rng(0)
    with h5py.File(tmp_path / "two.h5", "w") as file:
        for name, classes in (("007/forest", 2), ("12/NA", 3)):
            truth = 2 * draws.standard_normal((400, classes))
            labels = np.argmax(truth + draws.gumbel(size=truth.shape), axis=1).astype(np.int32)
            probs = np.float32(np.exp(2 * truth) / np.exp(2 * truth).sum(axis=1, keepdims=True))
            probs[[0, 300]] = np.eye(classes)[1]  # as forests say
            for split, rows in (("cal", slice(200)), ("test", slice(200, None))):
                file[f"{name}/probas_{split}"] = probs[rows, 1] if classes == 2 else probs[rows]
                file[f"{name}/labels_{split}"] = labels[rows]
    done = python(EXAMPLES / "calarena.py", "two.h5", folder=tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    found = re.findall(r"(\S+): \w+, NLL (\d\.\d+) -> (\d\.\d+)", done.stdout)
    assert [name for name, *_ in found] == ["007/forest", "12/NA"]
    assert all(float(after) < float(before) for _, before, after in found)


def skip_without(package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")


@pytest.fixture
def workdirs(tmp_path):
    """A run and a calibration, and the points of each: {(series, step): value}."""
    written = {"run": synthetic_workdir.run_rows(), "calibration": synthetic_workdir.calibration_rows()}
    points = {}
    for name, of_workdir in written.items():
        (tmp_path / name).mkdir()
        synthetic_workdir.write_workdir(tmp_path / name, of_workdir)
        numbers = [row for row in of_workdir if not hasattr(row, "bin")]
        points[name] = {(rows.series(row), row.step or 0): row.value for row in numbers}
        assert len(points[name]) == len(numbers)  # no two of one name
    return points


def written_for_tensorboard(folder):
    """(series, step, value) of the event files, read by their format: length, checksum, event, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    for path in folder.glob("tensorboard/events*"):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + length])
            yield from ((value.tag, event.step, value.simple_value) for value in event.summary.value)
            at += 16 + length


def test_rows_become_event_files(workdirs, tmp_path):
    skip_without("tensorboardX")
    passes("tensorboard.py", tmp_path, *workdirs)
    for name, points in workdirs.items():
        read = {(series, step): value for series, step, value in written_for_tensorboard(tmp_path / name)}
        assert read == pytest.approx(points, rel=1e-6)


def test_rows_become_runs_of_mlflow(workdirs, tmp_path):
    skip_without("mlflow")
    skip_without("sqlalchemy")
    store = tmp_path / "store.db"
    environment = {"PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": f"sqlite:///{store}"}
    done = python(EXAMPLES / "mlflow_runs.py", *workdirs, folder=tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    tables = sqlite3.connect(store)
    query = "select key, step, value from metrics join runs using (run_uuid) where name = ?"
    for name, points in workdirs.items():
        assert {(key, step): value for key, step, value in tables.execute(query, [name])} == points
        settings = "select key, value from params join runs using (run_uuid) where name = ?"
        assert dict(tables.execute(settings, [name]))["loss.gamma"] == "3.0"
    tables.close()


def test_rows_become_runs_of_wandb_without_a_network(workdirs, tmp_path):
    skip_without("wandb")
    environment = {"PYTHONPATH": str(ROOT), "WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}
    done = python(EXAMPLES / "wandb_runs.py", *workdirs, folder=tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    files = [path.read_bytes() for path in tmp_path.glob("wandb/offline-run-*/run-*.wandb")]
    assert len(files) == len(workdirs)
    for points in workdirs.values():
        texts = [series.encode() for series, _ in points]
        texts += [json.dumps(value).removesuffix(".0").encode() for value in points.values()]
        assert any(all(text in data for text in texts) for data in files)


@pytest.mark.long
@pytest.mark.parametrize("name", ["nnx_metrics", "metric_class"])
def test_an_example_streams_metrics_of_calibrated_outputs(name, tmp_path):
    done = passes(f"{name}.py", tmp_path)
    accuracy, ece = map(float, re.match(r"accuracy (0\.\d+), ece (0\.\d+), nll 1\.", done.stdout).groups())
    assert 0.45 < accuracy < 0.65
    assert ece < 0.03  # of 6,400 rows


@pytest.mark.long
@pytest.mark.slow
def test_outputs_of_pytorch_are_calibrated(tmp_path):
    (tmp_path / "torch.py").write_text(TORCH)
    done = python(EXAMPLES / "pytorch_outputs.py", folder=tmp_path, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert (done.returncode, done.stderr) == (0, "")
    before, after = map(float, re.search(r"ECE (0\.\d+) as trained, (0\.\d+) after", done.stdout).groups())
    assert after < before / 5


@pytest.mark.parametrize("path", sorted((EXAMPLES / "adding").glob("*.diff")), ids=lambda path: path.stem)
def test_an_addition_fits_the_files_as_they_are(path):
    done = subprocess.run(["git", "apply", "--check", str(path)], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_a_loss_a_method_a_metric_a_network_a_data_set_and_a_question_are_added_by_their_diffs(tmp_path):
    for name in ("focalgeo", "experiments", "configs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.png", "*.jsonl"))
    for path in sorted((EXAMPLES / "adding").glob("*.diff")):
        subprocess.run(["git", "apply", str(path)], cwd=tmp_path, check=True)
        assert sum(line.startswith("+++") for line in path.read_text().splitlines()) <= 3, path
    done = python(ROOT / "tests" / "added_parts.py", folder=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    lint = [sys.executable, "-m", "ruff", "check", "--quiet", f"--config={ROOT / 'pyproject.toml'}", "."]
    assert subprocess.run(lint, cwd=tmp_path).returncode == 0
