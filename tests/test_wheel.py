"""The built wheel, without the clone: commands, configs, templates; train digits, calibrate a file, make a report."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import focalgeo

ROOT = Path(__file__).parent.parent
QUICK = ("--config.optimizer.epochs=2", "--config.evaluation.num_resamples=100")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from the sdist."""
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", f"--outdir={out}", str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("*.whl")
    assert len(list(out.glob("*.tar.gz"))) == 1
    return path


@pytest.fixture(scope="module")
def scripts(wheel, tmp_path_factory):
    """The bin folder of a Python that has the wheel, and the packages of this one, but not the clone."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    bin_ = folder / "bin"
    paths = subprocess.run(
        [bin_ / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    site = Path(paths.stdout.strip())
    # a .pth file names folders, whose own .pth files, such as that of an editable clone, are not read
    (site / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(bin_ / "python"),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*pip, "--ignore-installed", str(wheel)], check=True, capture_output=True)
    return bin_


def run(scripts, folder, *arguments):
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XLA_FLAGS")}
    done = subprocess.run(
        [str(scripts / arguments[0]), *arguments[1:]], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_holds_package_configs_and_templates_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.partition("/")[0] for name in names} == {"focalgeo", f"focalgeo-{focalgeo.__version__}.dist-info"}
    for folder, packed in (("focalgeo", "focalgeo"), ("configs", "focalgeo/shipped/configs")):
        tracked = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True)
        for path in tracked.stdout.split():
            assert f"{packed}{path.removeprefix(folder)}" in names
    assert not [name for name in names if "__pycache__" in name]


@pytest.mark.slow
def test_the_commands_are_listed_and_come_from_the_wheel(scripts, tmp_path):
    where = run(scripts, tmp_path, "python", "-c", "import focalgeo; print(focalgeo.__file__)")
    assert Path(where.strip()).is_relative_to(scripts.parent)
    listed = run(scripts, tmp_path, "python", "-m", "focalgeo")
    assert "configs/digits.py " in listed
    assert run(scripts, tmp_path, "focalgeo") == listed
    assert "loss.gamma" in run(scripts, tmp_path, "focalgeo", "run", "--fields")


@pytest.mark.long
def test_digits_are_trained_and_their_outputs_calibrated_without_the_clone(scripts, tmp_path):
    run(scripts, tmp_path, "focalgeo", "run", "--config=configs/digits.py", "--workdir=digits", *QUICK)
    predictions = tmp_path / "digits" / "predictions"
    flags = (
        f"--val={predictions / 'val.npz'}",
        f"--test={predictions / 'test.npz'}",
        "--out=mine",
        "--num-resamples=100",
    )
    run(scripts, tmp_path, "focalgeo", "calibrate", *flags)
    page = tmp_path / "digits" / "report.html"
    before = page.read_text()
    page.unlink()
    run(scripts, tmp_path, "focalgeo", "report", "digits")
    assert page.read_text() == before
    assert (tmp_path / "mine" / "calibrator.json").exists()
    assert (tmp_path / "mine" / "report.html").exists()
