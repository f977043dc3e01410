"""The built wheel, without the clone: the base install and extras, each in an environment of its own.

Such an environment has links to this Python's packages, those alone that an install would bring. With
FOCALGEO_PYTHONS=python3.12,python3.13 pip installs them anew for each of these; FOCALGEO_WHEEL names a wheel to test.
"""

import os
import subprocess
import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import focalgeo

ROOT = Path(__file__).parent.parent
PYTHONS = list(filter(None, os.environ.get("FOCALGEO_PYTHONS", "").split(",")))
DATA = """
import numpy as np
labels = np.arange(300) % 3
logits = np.random.default_rng(0).normal(size=(300, 3)) + 2 * np.eye(3)[labels]
np.savez("val.npz", labels=labels, logits=logits)
rows = [f"{label == 1:d},{1 / (1 + np.exp(row[0] - row[1])):.5f}" for label, row in zip(labels, logits)]
open("val.csv", "w").write("\\n".join(["y_true,y_prob", *rows]))
"""
OF_EXTRA = {  # extra -> what it is for, and what is printed without it
    "onnx": (
        "calibration.fit('temperature_scaling', logits, labels).to_onnx()",
        "onnx is not installed: pip install 'focalgeo[onnx]'",
    ),
    "torch": (
        "calibration.fit('temperature_scaling', logits, labels).to_torch()",
        "torch is not installed: pip install 'focalgeo[torch]'",
    ),
    "sklearn": (
        "calibration.TemperatureScaling().fit(logits, labels)",
        "sklearn is not installed: pip install 'focalgeo[sklearn]'",
    ),
    "tables": (
        "__import__('pandas').DataFrame({'labels': labels, 'logits': logits.tolist()}).to_parquet('val.parquet')",
        "pyarrow",
    ),
}
CALIBRATE = ("-m", "focalgeo.calibrate", "--methods=temperature_scaling", "--num-resamples=100")
pytestmark = pytest.mark.long


def ended(*command, folder=ROOT):
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XLA_FLAGS")}
    return subprocess.run([*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True)


def run(*command, folder=ROOT):
    done = ended(*command, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def refused(*command, folder):
    done = ended(*command, folder=folder)
    assert done.returncode == 2, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from the sdist."""
    if path := os.environ.get("FOCALGEO_WHEEL"):
        return Path(path).resolve()
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", f"--outdir={out}", ROOT)
    (path,) = out.glob("*.whl")
    return path


def link_packages(site, extra):
    """Link what the wheel in `site` asks for, and what that asks for, from this Python's packages."""
    (wheel,) = metadata.distributions(name="focalgeo", path=[str(site)])
    queue, met = [("focalgeo", ""), ("focalgeo", extra)], set()
    while queue:
        name, extra = queue.pop()
        distribution = wheel if name == "focalgeo" else metadata.distribution(name)
        for text in distribution.requires or ():
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                queue += {(need.name, each) for each in ("", *need.extras)} - met
                met |= {(need.name, each) for each in ("", *need.extras)}
        for entry in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site / entry).exists():
                (site / entry).symlink_to(Path(sysconfig.get_path("purelib"), entry))


@pytest.fixture(scope="module", params=PYTHONS or [sys.executable], ids=lambda path: Path(path).name)
def installed(request, wheel, tmp_path_factory):
    """Makes the Python of a fresh environment that has the wheel and what it asks for with an extra."""

    def make(extra):
        folder = tmp_path_factory.mktemp("installed")
        python = folder / "bin" / "python"
        run(request.param, "-m", "venv", folder)
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        if PYTHONS:
            run(*pip, "-c", ROOT / "constraints.txt", f"focalgeo[{extra}] @ {wheel.as_uri()}")
            return python
        run(*pip, "--no-deps", "--no-index", wheel)
        try:
            link_packages(Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")), extra)
        except metadata.PackageNotFoundError as error:
            pytest.skip(str(error))
        return python

    return make


def test_the_wheel_holds_package_configs_and_templates_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.partition("/")[0] for name in names} == {"focalgeo", f"focalgeo-{focalgeo.__version__}.dist-info"}
    tracked = run("git", "ls-files", "focalgeo", "configs").split()
    packed = [f"focalgeo/shipped/{path}" if path.startswith("configs/") else path for path in tracked]
    assert {path for path, at in zip(packed, tracked, strict=True) if (ROOT / at).exists()} <= names
    assert not [name for name in names if "__pycache__" in name]


def test_the_base_install_calibrates_and_says_what_the_rest_needs(installed, tmp_path):
    python = installed("")
    where = run(python, "-c", f"import focalgeo; print(focalgeo.__file__)\n{DATA}", folder=tmp_path)
    assert Path(where).is_relative_to(python.parent.parent)
    faces = "calibration, curvature, data, evaluation, losses, report, theory"
    lacking = ("flax", "optax", "orbax", "chex", "sklearn", "onnx", "torch", "pyarrow", "tensorflow_datasets")
    program = f"import importlib.util as u; print([name for name in {lacking} if u.find_spec(name)])"
    assert run(python, "-c", f"from focalgeo import {faces}\n{program}", folder=tmp_path) == "[]"
    for kind in ("npz", "csv"):
        run(python, *CALIBRATE, f"--val=val.{kind}", f"--out={kind}", folder=tmp_path)
        assert (tmp_path / kind / "calibrator.json").exists()
        (tmp_path / kind / "report.html").unlink()
        run(python, "-m", "focalgeo.report", kind, folder=tmp_path)
        assert (tmp_path / kind / "report.html").exists()
    line = "focalgeo: training needs flax: pip install 'focalgeo[train]', or '.[train]' in a clone\n"
    flags = ("--config=configs/digits.py:quick", "--workdir=digits")
    assert refused(python, "-m", "focalgeo.run", *flags, folder=tmp_path) == line
    (tmp_path / "model.onnx").touch()
    flags = ("--val=val.npz", "--out=attached", "--attach=model.onnx")
    line = f"focalgeo: {OF_EXTRA['onnx'][1]}\n"
    assert refused(python, *CALIBRATE, *flags, folder=tmp_path).endswith(line)
    for program, line in OF_EXTRA.values():
        done = ended(python, "-c", f"from focalgeo import calibration\n{DATA}{program}", folder=tmp_path)
        assert line in done.stderr


@pytest.mark.parametrize("extra", OF_EXTRA)
def test_an_extra_brings_what_it_is_for(installed, tmp_path, extra):
    python, (program, _) = installed(extra), OF_EXTRA[extra]
    run(python, "-c", f"from focalgeo import calibration\n{DATA}{program}", folder=tmp_path)
    if extra == "tables":
        run(python, *CALIBRATE, "--val=val.parquet", "--out=mine", folder=tmp_path)


def test_digits_are_trained_and_their_outputs_calibrated_without_the_clone(installed, tmp_path):
    command = installed("train").parent / "focalgeo"
    assert "configs/digits.py " in run(command, folder=tmp_path)
    run(command, "run", "--config=configs/digits.py:quick", "--workdir=digits", folder=tmp_path)
    splits = (f"--{split}=digits/predictions/{split}.npz" for split in ("val", "test"))
    run(command, "calibrate", *splits, "--out=mine", "--num-resamples=100", folder=tmp_path)
    page = tmp_path / "digits" / "report.html"
    before = page.read_text()
    page.unlink()
    run(command, "report", "digits", folder=tmp_path)
    assert page.read_text() == before
    assert (tmp_path / "mine" / "calibrator.json").exists()
    assert (tmp_path / "mine" / "report.html").exists()
