"""Without what Windows lacks: modules, os.fork, signals; the three commands run as they do elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
BLOCKED = """
import os, signal, sys
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for name in ("fork", "forkpty", "geteuid", "setsid", "killpg", "sched_getaffinity"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGHUP", "SIGPIPE", "SIGQUIT", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGKILL", "alarm", "pthread_sigmask"):
    if hasattr(signal, name):
        delattr(signal, name)
"""


def test_the_commands_need_nothing_that_windows_lacks(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BLOCKED)
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 400)
    logits = random.normal(size=(400, 3)) + 3 * np.eye(3)[labels]
    np.savez(tmp_path / "val.npz", logits=logits, labels=labels)
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}

    def ran(*arguments):
        command = [sys.executable, "-m", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]

    with pytest.raises(AssertionError, match="has no attribute 'fork'"):
        ran("timeit", "-s", "import os", "os.fork()")
    ran("focalgeo.calibrate", "--val=val.npz", "--out=runs/calibrated", "--methods=temperature_scaling")
    fields = ("evaluation.num_resamples=20", "evaluation.methods=temperature_scaling", "curvature.max_products=2")
    flags = [f"--config.{field}" for field in fields]
    ran("focalgeo.run", f"--config={ROOT / 'configs' / 'digits.py'}:quick", "--workdir=runs/digits", *flags)
    ran("focalgeo.report", "runs")
    assert (tmp_path / "runs" / "digits" / "report.html").exists()
