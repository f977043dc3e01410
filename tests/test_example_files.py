"""The files of examples/ that a person copies: each runs, and each diff that adds something does what it promises."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
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


def run(*command, folder, **environment):
    own = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env={**own, **environment}, capture_output=True, text=True
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["training_step", "nnx_model"])
def test_an_example_trains(name, tmp_path):
    done = run(EXAMPLES / f"{name}.py", folder=tmp_path, PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stderr) == (0, "")
    assert float(re.match(r"accuracy (0\.\d+), ECE 0\.", done.stdout)[1]) > 0.88


def test_the_training_step_is_short():
    lines = (EXAMPLES / "training_step.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 42


@pytest.mark.slow
@pytest.mark.parametrize("torch", ["installed", "stand-in"])
def test_outputs_of_pytorch_are_calibrated(torch, tmp_path):
    path = str(ROOT)
    if torch == "installed":
        pytest.importorskip("torch")
    else:
        (tmp_path / "torch.py").write_text(TORCH)
        path = f"{tmp_path}{os.pathsep}{path}"
    done = run(EXAMPLES / "pytorch_outputs.py", folder=tmp_path, PYTHONPATH=path)
    assert (done.returncode, done.stderr) == (0, "")
    before, after = map(float, re.search(r"ECE (0\.\d+) as trained, (0\.\d+) after", done.stdout).groups())
    assert after < before / 5
    assert (tmp_path / "test.npz").exists()


@pytest.mark.long
def test_a_loss_a_method_a_metric_and_a_network_are_added_by_their_diffs(tmp_path):
    shutil.copytree(ROOT / "focalgeo", tmp_path / "focalgeo", ignore=shutil.ignore_patterns("__pycache__"))
    diffs = sorted((EXAMPLES / "adding").glob("*.diff"))
    assert [path.stem for path in diffs] == ["loss", "method", "metric", "network"]
    for path in diffs:
        subprocess.run(["git", "apply", str(path)], cwd=tmp_path, check=True)
    done = run(ROOT / "tests" / "added_parts.py", folder=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    lint = [sys.executable, "-m", "ruff", "check", "--quiet", f"--config={ROOT / 'pyproject.toml'}", "focalgeo"]
    assert subprocess.run(lint, cwd=tmp_path).returncode == 0
