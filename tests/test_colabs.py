"""Notebooks: no stored output, no definitions, run from the first cell to the last; focalgeo beside a runtime's jax."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs import notebooks

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "colabs").glob("*.ipynb"))
# Stands in for pip: writes what it was given and the constraints that it read, and fails when it is told to.
PIP = """
import os, sys
from pathlib import Path
arguments = sys.argv[1:]
constraints = Path(arguments[arguments.index("-c") + 1]).read_text()
Path(os.environ["STAND_IN_LOG"]).write_text("\\n".join([arguments[-1], constraints]))
sys.exit(int(os.environ.get("STAND_IN_EXIT", 0)))
"""
TPU = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1", "numpy": "2.0.2"}
GPU = {"jax": "0.10.0.dev20260101", "jax-cuda12-pjrt": "0.10.2", "jax_cuda12_plugin": "0.10.2", "jaxlib": "0.10.2"}
OLD = {"jax": "0.9.9", "jax-cuda12-plugin": "0.9.9"}


def code_cells(path):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.fixture
def runtime(tmp_path):
    """Makes the environment of a Python that has these versions, and a pip that notes what it is asked for."""

    def make(versions):
        packages = tmp_path / "packages"
        (packages / "pip").mkdir(parents=True)
        (packages / "pip" / "__init__.py").touch()  # or the real pip would come before it
        (packages / "pip" / "__main__.py").write_text(PIP)
        for name, version in {"six": "1.17.0", **versions}.items():
            folder = packages / f"{name.replace('-', '_')}-{version}.dist-info"
            folder.mkdir()
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        return {"PYTHONPATH": str(packages), "STAND_IN_LOG": str(tmp_path / "pip.txt"), "PIP_DRY_RUN": "1"}

    return make


def install(environment):
    """Runs the script in a Python that sees the stand-ins alone; gives its end and what pip was told."""
    command = [sys.executable, "-S", str(ROOT / "colabs" / "install.py")]
    found = subprocess.run(command, env={"PATH": os.environ["PATH"], **environment}, capture_output=True, text=True)
    log = Path(environment["STAND_IN_LOG"])
    return found, log.read_text().splitlines() if log.exists() else []


@pytest.mark.parametrize("versions", [TPU, GPU, {"jax": "0.7.2", "numpy": "2.0.2"}], ids=["TPU", "GPU", "CPU"])
def test_a_runtime_with_an_accelerator_keeps_its_jax_and_what_fits_it(runtime, versions):
    found, told = install(runtime(versions))
    kept = {} if len(versions) == 2 else {name.replace("_", "-"): version for name, version in versions.items()}
    pins = [f"{name}=={kept[name]}" for name in sorted(kept)]
    beside = f" beside this runtime's {', '.join(pins)}" if pins else ""
    assert (found.returncode, found.stderr, told) == (0, "", [f"{ROOT}[train]", *pins])
    assert found.stdout == f"focalgeo is installed{beside}\n"


def test_too_old_a_jax_and_a_pip_that_fails_are_one_line(runtime, tmp_path):
    environment = runtime(OLD)
    found, told = install(environment)
    assert (found.returncode, found.stdout, told) == (1, "", [])
    assert re.fullmatch(r".*jax 0\.9\.9 is older than .*'jax\[cuda12\]>=0\.10'.*\n", found.stderr)
    shutil.rmtree(tmp_path / "packages")
    found, _ = install(runtime(TPU) | {"STAND_IN_EXIT": "1"})
    assert found.returncode == 1
    assert re.fullmatch("pip could not install focalgeo .*\n", found.stderr)


def test_notebooks_store_no_output_define_nothing_and_say_their_time():
    assert len(NOTEBOOKS) >= 5
    assert len({"".join(code_cells(path)[0]["source"]) for path in NOTEBOOKS}) == 1  # installs
    for path in NOTEBOOKS:
        for cell in code_cells(path):
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            assert not [line for line in cell["source"] if line.lstrip().startswith(("def ", "class ", "lambda", "@"))]
        text = "".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"])
        assert re.search(r"([Mm]inutes?|[Ss]econds) on a CPU", text), path.name
        assert re.search("GPU (or|and) TPU", text), path.name


@pytest.mark.filterwarnings("default")  # of the notebook machinery, which is not ours
def test_the_first_cell_clones_and_installs_as_often_as_it_is_run(runtime, tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    origin, session = tmp_path / "origin", tmp_path / "session"
    for folder in (origin / "colabs", session):
        folder.mkdir(parents=True)
    for name in ("pyproject.toml", "colabs/install.py"):
        shutil.copy(ROOT / name, origin / name)
    identity = ("-c", "user.name=focalgeo", "-c", "user.email=focalgeo@localhost")
    for command in (["init"], ["add", "."], [*identity, "commit", "-m", "first"]):
        subprocess.run(["git", *command], cwd=origin, check=True, capture_output=True)
    for name, value in runtime(TPU).items():
        monkeypatch.setenv(name, value)
    first = "".join(code_cells(NOTEBOOKS[0])[0]["source"])
    cell = first.replace('repository = ""', f'repository = "{origin.as_uri()}"')
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)] * 2)
    nbclient.NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(session)}}).execute()
    assert (tmp_path / "pip.txt").read_text().splitlines()[0] == f"{session / 'focalgeo'}[train]"


@pytest.mark.long
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_from_a_fresh_kernel(path, tmp_path):
    pytest.importorskip("nbclient")
    flags = os.environ.get("XLA_FLAGS", "").replace("device_count=2", "device_count=1")
    notebook = notebooks.run(path, tmp_path / "run", XLA_FLAGS=flags)  # the copy that it keeps is a page of the site
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/svg+xml" in output.get("data", {}) for output in outputs)
    if "FOCALGEO_WORKDIR" in path.read_text():
        assert (tmp_path / "run" / "report.html").exists()
