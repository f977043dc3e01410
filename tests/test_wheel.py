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
pytestmark = pytest.mark.long


def run(*command, folder=ROOT):
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XLA_FLAGS")}
    done = subprocess.run([*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from the sdist."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", f"--outdir={out}", ROOT)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def scripts(wheel, tmp_path_factory):
    """The bin folder of a Python that has the wheel, and the packages of this one, but not the clone."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    # a .pth file names folders, whose own .pth files, such as that of an editable clone, are not read
    Path(site, "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    run(*pip, "--ignore-installed", wheel)
    return folder / "bin"


def test_the_wheel_holds_package_configs_and_templates_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.partition("/")[0] for name in names} == {"focalgeo", f"focalgeo-{focalgeo.__version__}.dist-info"}
    tracked = run("git", "ls-files", "focalgeo", "configs").split()
    packed = [f"focalgeo/shipped/{path}" if path.startswith("configs/") else path for path in tracked]
    assert {path for path, at in zip(packed, tracked, strict=True) if (ROOT / at).exists()} <= names
    assert not [name for name in names if "__pycache__" in name]


def test_digits_are_trained_and_their_outputs_calibrated_without_the_clone(scripts, tmp_path):
    where = run(scripts / "python", "-c", "import focalgeo; print(focalgeo.__file__)", folder=tmp_path)
    assert Path(where).is_relative_to(scripts.parent)
    assert "configs/digits.py " in run(scripts / "focalgeo", folder=tmp_path)
    flags = ("--config=configs/digits.py:quick", "--workdir=digits")
    run(scripts / "focalgeo", "run", *flags, folder=tmp_path)
    splits = (f"--{split}=digits/predictions/{split}.npz" for split in ("val", "test"))
    run(scripts / "focalgeo", "calibrate", *splits, "--out=mine", "--num-resamples=100", folder=tmp_path)
    page = tmp_path / "digits" / "report.html"
    before = page.read_text()
    page.unlink()
    run(scripts / "focalgeo", "report", "digits", folder=tmp_path)
    assert page.read_text() == before
    assert (tmp_path / "mine" / "calibrator.json").exists()
    assert (tmp_path / "mine" / "report.html").exists()
