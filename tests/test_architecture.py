"""The house's walls: who may import whom, and what only one room may do. Reads the source."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from focalgeo.config import FIELDS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "focalgeo"
LAYER_0 = {"types", "files", "formulas", "rows", "config", "trees", "checks"}
LAYER_1 = {"losses", "calibration", "curvature", "models", "data", "records", "workdir", "parallel"}
LAYER_2 = {"theory", "training", "evaluation", "report"}
ALLOWED = {
    "__init__": set(),
    **{room: {"types"} for room in LAYER_0},
    "checks": {"types"},
    **{room: LAYER_0 for room in LAYER_1},
    "theory": LAYER_0 | {"losses", "calibration"},
    "training": LAYER_0 | {"parallel"},
    "evaluation": LAYER_0 | {"parallel", "calibration", "curvature"},
    "report": LAYER_0 | {"records", "workdir"},
    "job": LAYER_0 | LAYER_1 | LAYER_2,
    "run": LAYER_0 | {"parallel", "job"},  # it joins the processes before a job begins
    "calibrate": LAYER_0 | {"job"},
    "__main__": {"types", "config", "files"},
}
# library -> the rooms that alone may import it
ONLY = {
    "flax": {"models"},
    "matplotlib": {"report"},
    "jinja2": {"report"},
    "optax": {"training"},
    "orbax": {"training"},
    "tqdm": {"calibration", "data", "training"},
    "tensorflow_datasets": {"data"},
    "pandas": {"data"},
    "safetensors": {"data"},
    "ml_dtypes": {"data"},
    "PIL": {"data"},
    "sklearn": {"data", "calibration"},
    "filelock": {"records", "workdir", "data"},
    "platformdirs": {"data", "job"},
    "ml_collections": {"config", "job", "run"},
}
WITHOUT_JAX = ("files", "rows", "config", "records", "workdir", "report", "data", "calibrate")
SOURCES = sorted(PACKAGE.rglob("*.py"))
each_source = pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Dotted names of everything a file imports, also inside functions; `from a import b` counts as a.b."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def identifiers(path: Path) -> set[str]:
    """Names and attributes of the code itself; comments and docstrings do not count."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    return {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }


@each_source
def test_rooms_import_only_what_the_table_allows(path):
    rooms = {found.stem for found in PACKAGE.iterdir()}
    inside = {name.split(".")[1] for name in imports(path) if name.startswith("focalgeo.")} & rooms
    assert inside - {room(path)} <= ALLOWED[room(path)]
    assert not {name.split(".")[0] for name in imports(path)} & {"configs", "experiments", "colabs", "tests"}


def test_no_cycles_between_files():
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in SOURCES}

    def targets(name):
        return {found if found in names else found.rpartition(".")[0] for found in imports(names[name])}

    graph = {name: targets(name) for name in names}
    while leaves := {name for name, others in graph.items() if not others & graph.keys()}:
        graph = {name: others for name, others in graph.items() if name not in leaves}
    assert not graph, f"a cycle is among {sorted(graph)}"


@pytest.mark.parametrize(("library", "rooms"), ONLY.items(), ids=ONLY)
def test_a_library_is_imported_by_its_rooms_only(library, rooms):
    assert {room(path) for path in SOURCES if library in {name.split(".")[0] for name in imports(path)}} <= rooms


def test_rooms_without_jax():
    there = [f"focalgeo.{name}" for name in WITHOUT_JAX if name in map(room, SOURCES)]
    program = f"import {', '.join(there)}, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"jax", "flax", "optax", "chex", "torch", "tensorflow", "sklearn"} & set(loaded.stdout.split())


def test_what_does_not_train_imports_none_of_the_libraries_that_train():
    program = """import sys
for name in ("flax", "optax", "orbax", "chex", "sklearn"):
    sys.modules[name] = None
from focalgeo import run, losses, calibration, curvature, theory, data, evaluation, parallel, report
from focalgeo.job import calibrate
try:
    calibration.TemperatureScaling
except ValueError as error:
    print(error)
for arguments in (["--config=configs/digits.py", "--workdir=none"], ["--fields"]):
    print(run.main(["run", *arguments]))"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "sklearn is not installed: pip install 'focalgeo[sklearn]'\n2\n2\n"
    assert done.stderr == "focalgeo: training needs flax: pip install 'focalgeo[train]'\n" * 2


def test_no_file_uses_private_parts_of_jax_or_of_the_system():
    for path in SOURCES:
        assert not [name for name in imports(path) if name.startswith(("jax._src", "ctypes", "fcntl"))], path


def test_only_parallel_names_devices():
    words = {"pmap", "shard_map", "NamedSharding", "PartitionSpec", "Mesh", "axis_index_groups", "all_gather"}
    assert [path.name for path in SOURCES if words & identifiers(path)] == ["parallel.py"]


def test_only_job_reads_the_config():
    parts = {name.split(".")[0] for name in FIELDS}

    def read(path):
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
        return {node.attr for node in nodes if getattr(node.value, "attr", getattr(node.value, "id", "")) == "config"}

    assert {room(path) for path in SOURCES if read(path) & parts} <= {"config", "job"}


@each_source
def test_every_field_that_a_message_or_a_line_names_exists(path):
    sections = {name.split(".")[0] for name in FIELDS if "." in name}
    named = re.findall(rf"config\.((?:{'|'.join(sections)})\.[a-z_]+)", path.read_text())
    of_dicts = {f"{section}.{name}" for section in sections for name in ("update", "items", "get", "to_dict")}
    assert set(named) - of_dicts <= {*FIELDS, "model.options"}


def test_configs_import_the_config_and_each_other_only():
    for path in (ROOT / "configs").glob("*.py"):
        allowed = ("ml_collections.ConfigDict", "focalgeo.config.", "configs.")
        assert all(name.startswith(allowed) for name in imports(path)), path


def test_oracles_import_no_focalgeo():
    for path in (ROOT / "tests" / "reference").rglob("*.py"):
        assert "focalgeo" not in {name.split(".")[0] for name in imports(path)}, path


def test_questions_of_experiments_never_import_each_other():
    questions = {path.name for path in (ROOT / "experiments").iterdir() if path.is_dir()}
    for path in (ROOT / "experiments").rglob("*.py"):
        others = questions - {path.relative_to(ROOT / "experiments").parts[0]}
        named = {tuple(name.split(".")[:2]) for name in imports(path)}
        assert not named & {("experiments", other) for other in others}, path


def test_files_are_nouns_and_no_nan_is_hidden():
    assert not {path.stem for path in SOURCES} & {"utils", "util", "helpers", "helper", "misc", "common"}
    assert not [path for path in SOURCES if "nan_to_num" in identifiers(path)]


def test_the_step_is_seen_from_the_step():
    assert "focalgeo.training.penalties" in {name.rpartition(".")[0] for name in imports(PACKAGE / "training/step.py")}
    for path in (PACKAGE / "job").glob("*.py"):
        assert not {"grad", "value_and_grad", "jvp", "vjp"} & identifiers(path), path


@pytest.mark.parametrize("command", ["run", "calibrate"])
def test_a_command_is_flags_alone(command):
    libraries = {name.split(".")[0] for name in imports(PACKAGE / f"{command}.py")} - {"focalgeo"}
    assert libraries <= {"argparse", "collections", "contextlib", "ml_collections", "os", "signal", "sys", "typing"}
