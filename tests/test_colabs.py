"""Notebooks: no stored output, no definitions, run from the first cell to the last; focalgeo beside a runtime's jax."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

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
CUDA = {"jax-cuda12-pjrt": "0.10.2", "jax_cuda12_plugin": "0.10.2"}
RUNTIMES = {
    "TPU": {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1", "numpy": "2.0.2"},
    "GPU": {"jax": "0.10.2", "jaxlib": "0.10.2", "numpy": "2.0.2", **CUDA},
    "just new enough": {"jax": "0.10.0.dev20260101", "jaxlib": "0.10.0", "libtpu": "0.0.40"},
    "next year's": {"jax": "1.2.0", "jaxlib": "1.2.0", "libtpu": "1.0"},
}


def source(notebook):
    cells = json.loads(notebook.read_text())["cells"]
    return next("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


@pytest.fixture
def runtime(tmp_path):
    """Makes the folder of a Python that has these versions, and a pip that notes what it is asked for."""

    def make(versions):
        packages = tmp_path / "packages"
        (packages / "pip").mkdir(parents=True)
        (packages / "pip" / "__init__.py").touch()  # or the real pip would come before it
        (packages / "pip" / "__main__.py").write_text(PIP)
        for name, version in {"six": "1.17.0", **versions}.items():
            folder = packages / f"{name.replace('-', '_')}-{version}.dist-info"
            folder.mkdir()
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        never = {"PIP_DRY_RUN": "1", "PIP_NO_INDEX": "1"}  # what the real pip would do
        return {"PYTHONPATH": str(packages), "STAND_IN_LOG": str(tmp_path / "pip.txt"), **never}

    return make


def install(environment, **more):
    """Runs the script in a Python that sees the stand-ins alone; gives the process and what pip was told."""
    command = [sys.executable, "-S", str(ROOT / "colabs" / "install.py")]
    environment = {"PATH": os.environ["PATH"], **environment, **more}
    found = subprocess.run(command, env=environment, capture_output=True, text=True)
    log = Path(environment["STAND_IN_LOG"])
    asked, _, constraints = log.read_text().partition("\n") if log.exists() else (None, "", "")
    return found, asked, constraints.splitlines()


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_runtime_with_an_accelerator_keeps_its_jax_and_what_fits_it(runtime, name):
    found, asked, constraints = install(runtime(RUNTIMES[name]))
    assert (found.returncode, found.stderr, asked) == (0, "", str(ROOT))
    versions = {package.replace("_", "-"): version for package, version in RUNTIMES[name].items()}
    pins = [f"{package}=={versions[package]}" for package in sorted(versions)]
    assert constraints == pins
    assert found.stdout == f"focalgeo is installed beside this runtime's {', '.join(pins)}\n"


@pytest.mark.parametrize(
    "versions",
    [{}, {"numpy": "2.0.2"}, {"jax": "0.7.2", "jaxlib": "0.7.2", "numpy": "2.0.2"}, {"libtpu": "2.18.0"}],
    ids=["nothing", "no jax", "jax without an accelerator", "libtpu without jax"],
)
def test_where_no_jax_has_an_accelerator_pip_is_free(runtime, versions):
    found, asked, constraints = install(runtime(versions))
    assert (found.returncode, found.stderr, asked, constraints) == (0, "", str(ROOT), [])
    assert found.stdout == "focalgeo is installed\n"


@pytest.mark.parametrize(
    ("plugin", "extra"),
    [("libtpu", "tpu"), ("libtpu-nightly", "tpu"), ("jax-cuda12-plugin", "cuda12"), ("jax-cuda13-plugin", "cuda13")],
)
@pytest.mark.parametrize("version", ["0.7.2", "0.4.33", "0.9.9"])
def test_too_old_a_jax_is_one_line_that_says_what_to_do_and_pip_is_not_run(runtime, plugin, extra, version):
    found, asked, _ = install(runtime({"jax": version, "jaxlib": version, plugin: version}))
    assert (found.returncode, found.stdout, asked) == (1, "", None)
    (line,) = found.stderr.splitlines()
    assert line == (
        f"this runtime's jax {version} is older than the 0.10 that focalgeo needs: run %pip install -U "
        f"'jax[{extra}]>=0.10' (jax and its plugin together), restart the session, and run this cell again"
    )


def test_a_pip_that_fails_is_one_line(runtime):
    found, _, _ = install(runtime(RUNTIMES["TPU"]), STAND_IN_EXIT="1")
    assert found.returncode == 1
    (line,) = found.stderr.splitlines()
    assert line.startswith("pip could not install focalgeo beside this runtime's jax==0.10.2, ")
    assert line.endswith(": what it printed says why")


def test_the_extras_are_what_jax_calls_them():
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {re.match(r"jax\[(\w+)\]", own[name][0])[1] for name in ("gpu", "tpu")}
    assert named | {"tpu", "cuda12", "cuda13"} <= set(metadata.metadata("jax").get_all("Provides-Extra"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_stores_no_output_and_defines_nothing(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert cells
    for cell in cells:
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        assert not [line for line in cell["source"] if line.lstrip().startswith(("def ", "class ", "lambda", "@"))]


def test_every_notebook_installs_by_the_same_cell():
    assert len({source(path) for path in NOTEBOOKS}) == 1


@pytest.fixture
def clone(tmp_path):
    """A repository that holds what the first cell uses."""
    origin = tmp_path / "origin"
    (origin / "colabs").mkdir(parents=True)
    for name in ("pyproject.toml", "colabs/install.py"):
        shutil.copy(ROOT / name, origin / name)
    identity = ("-c", "user.name=focalgeo", "-c", "user.email=focalgeo@localhost")
    for command in (["init"], ["add", "."], [*identity, "commit", "-m", "first"]):
        subprocess.run(["git", *command], cwd=origin, check=True, capture_output=True)
    return origin.as_uri()


@pytest.mark.filterwarnings("default")  # of the notebook machinery, which is not ours
def test_the_first_cell_clones_and_installs_as_often_as_it_is_run(runtime, clone, tmp_path, monkeypatch):
    (tmp_path / "session").mkdir()
    for name, value in runtime(RUNTIMES["TPU"]).items():
        monkeypatch.setenv(name, value)
    cells = [source(NOTEBOOKS[0]).replace('repository = ""', f'repository = "{clone}"'), "print(Path.cwd())"]
    notebook = execute([*cells, *cells], tmp_path / "session")
    beside = ", ".join(f"{package}=={version}" for package, version in RUNTIMES["TPU"].items())
    folder = tmp_path / "session" / "focalgeo"
    assert printed(notebook) == 2 * [f"focalgeo is installed beside this runtime's {beside}\n", f"{folder}\n"]
    assert (tmp_path / "pip.txt").read_text().splitlines()[0] == str(folder)


@pytest.mark.filterwarnings("default")
def test_too_old_a_jax_stops_the_notebook_at_the_first_cell(runtime, clone, tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    for name, value in runtime({"jax": "0.7.2", "jax-cuda12-plugin": "0.7.2"}).items():
        monkeypatch.setenv(name, value)
    cell = source(NOTEBOOKS[0]).replace('repository = ""', f'repository = "{clone}"')
    with pytest.raises(nbclient.exceptions.CellExecutionError, match=r"jax 0\.7\.2 is older than .* and run this cell"):
        execute([cell, "print('goes on')"], tmp_path)


def execute(cells, folder):
    """The notebook of these cells, run in a kernel of its own."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def printed(notebook):
    """What each cell printed."""
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in notebook.cells]


@pytest.mark.long
@pytest.mark.filterwarnings("default")  # of the notebook machinery, which is not ours
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_from_a_fresh_kernel(path, tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("FOCALGEO_VARIANT", "quick")
    monkeypatch.setenv("FOCALGEO_WORKDIR", str(tmp_path / "run"))
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # the tests' own: two devices, little optimisation
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}})
    client.execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    shown = [output for cell in cells for output in cell.outputs]
    assert any("image/svg+xml" in output.get("data", {}) for output in shown)
    if "FOCALGEO_WORKDIR" in path.read_text():
        assert (tmp_path / "run" / "report.html").exists()


def test_there_are_at_least_five_notebooks_and_each_says_its_time_and_what_an_accelerator_changes():
    assert len(NOTEBOOKS) >= 5
    for path in NOTEBOOKS:
        text = "".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"])
        assert re.search(r"([Mm]inutes?|[Ss]econds) on a CPU", text), path.name
        assert re.search("GPU (or|and) TPU", text), path.name
