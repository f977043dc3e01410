"""The house's walls: who may import whom, and what only one room may do. Reads the source."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from focalgeo.config import FIELDS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "focalgeo"
LAYER_0 = {"types", "files", "rows", "config", "trees", "checks", "processes", "precision"}
LAYER_1 = {"losses", "calibration", "curvature", "models", "data", "records", "parallel"}
LAYER_2 = {"theory", "training", "evaluation", "report"}
ALLOWED = {
    "types": set(),
    **{room: {"types"} for room in ("files", "rows", "config", "trees", "processes", "precision")},
    "checks": {"types"},
    **{room: LAYER_0 for room in LAYER_1},
    "theory": LAYER_0 | {"losses", "calibration"},
    "training": LAYER_0 | {"parallel"},
    "evaluation": LAYER_0 | {"parallel", "calibration", "curvature"},
    "report": LAYER_0 | {"records"},
    "job": LAYER_0 | LAYER_1 | LAYER_2,
    "run": LAYER_0 | {"job"},
    "calibrate": LAYER_0 | {"job"},
    "__main__": {"types", "config"},
}
# library -> the rooms that alone may import it
ONLY = {
    "flax": {"models"},
    "matplotlib": {"report"},
    "jinja2": {"report"},
    "optax": {"training"},
    "orbax": {"training"},
    "tqdm": {"training"},
    "tensorflow_datasets": {"data"},
    "safetensors": {"data"},
    "ml_dtypes": {"data"},
    "sklearn": {"data", "calibration"},
    "PIL": {"data"},
    "ml_collections": {"config", "job", "run"},
    "absl": set(),
    "tensorboardX": {"job"},
}
WITHOUT_JAX = ("files", "rows", "config", "records", "report", "data", "calibrate", "processes")
BANNED_NAMES = {"utils", "util", "helpers", "helper", "misc", "common"}
# modules of one name in several rooms, and the one idea that they are
NAMESAKES = {
    "calibrate": "the command: its flags, and its composition by job",
}


def sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Dotted names of everything a file imports, also inside functions; `from a import b` counts as a.b."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def own_rooms(path: Path) -> set[str]:
    """Rooms of focalgeo that a file imports."""
    rooms = {path.stem if path.is_file() else path.name for path in PACKAGE.iterdir()}
    found = {name.split(".")[1] for name in imports(path) if name.startswith("focalgeo.")}
    return found & rooms


@pytest.mark.parametrize("path", sources(PACKAGE), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_rooms_import_only_what_the_table_allows(path):
    here = room(path)
    if here == "__init__":
        assert own_rooms(path) == set()
        return
    assert here in ALLOWED, f"{here} is not a room of the house: add it to the table and to the design"
    assert own_rooms(path) - {here} <= ALLOWED[here]


def test_no_cycles_between_files():
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sources(PACKAGE)
    }

    def targets(path: Path) -> set[str]:
        longest = (name if name in modules else name.rpartition(".")[0] for name in imports(path))
        return {found for found in longest if found in modules}

    graph = {name: targets(path) for name, path in modules.items()}
    done, path_here = set(), []

    def visit(name):
        assert name not in path_here, f"cycle: {' -> '.join([*path_here[path_here.index(name) :], name])}"
        if name in done:
            return
        path_here.append(name)
        for target in sorted(graph[name]):
            visit(target)
        done.add(path_here.pop())

    for name in graph:
        visit(name)


@pytest.mark.parametrize(("library", "rooms"), ONLY.items(), ids=ONLY)
def test_a_library_is_imported_by_its_rooms_only(library, rooms):
    users = {
        room(path) for path in sources(PACKAGE) if any(f"{name}.".startswith(f"{library}.") for name in imports(path))
    }
    assert users <= rooms


def test_rooms_without_jax():
    program = f"import {', '.join(f'focalgeo.{name}' for name in WITHOUT_JAX)}, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"jax", "flax", "optax", "chex", "torch", "tensorflow", "sklearn"} & set(loaded.stdout.split())


def names_in(path: Path) -> set[str]:
    """Identifiers and attributes of the code itself; comments and docstrings do not count."""
    tree = ast.parse(path.read_text())
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)
    }


def test_only_parallel_names_devices():
    words = {"pmap", "shard_map", "NamedSharding", "PartitionSpec", "Mesh", "axis_index_groups", "all_gather"}
    assert {path.name for path in sources(PACKAGE) if words & names_in(path)} <= {"parallel.py"}
    assert "pmap" in names_in(PACKAGE / "parallel.py")


def parts_of_config_in(path: Path) -> set[str]:
    """What the code takes from something called config, as `loss` of member.config.loss."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
    called = [(node.attr, getattr(node.value, "attr", getattr(node.value, "id", None))) for node in nodes]
    return {part for part, of in called if of == "config"}


def test_only_job_reads_the_config():
    parts = {name.split(".")[0] for name in FIELDS}
    assert {room(path) for path in sources(PACKAGE) if parts_of_config_in(path) & parts} == {"config", "job"}


@pytest.mark.parametrize("path", sources(PACKAGE), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_field_that_a_message_or_a_line_names_exists(path):
    sections = {name.split(".")[0] for name in FIELDS if "." in name}
    named = re.findall(rf"config\.((?:{'|'.join(sections)})\.[a-z_]+)", path.read_text())
    of_dicts = {f"{section}.{name}" for section in sections for name in ("update", "items", "get", "to_dict")}
    assert set(named) - of_dicts <= set(FIELDS)


def test_the_fields_that_report_reads_from_a_manifest_exist():
    found = {
        node.args[1].value
        for path in sources(PACKAGE / "report")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "setting" and len(node.args) == 2
        if isinstance(node.args[1], ast.Constant)
    }
    assert {name for name in found if "." in name} <= set(FIELDS)
    assert "evaluation.num_bins" in found


def test_no_room_imports_what_stands_outside():
    for path in sources(PACKAGE):
        outside = {
            name for name in imports(path) if name.split(".")[0] in ("configs", "experiments", "colabs", "tests")
        }
        assert not outside, path


@pytest.mark.parametrize("path", sources(ROOT / "configs"), ids=lambda path: path.name)
def test_configs_import_the_config_and_each_other_only(path):
    allowed = ("ml_collections.ConfigDict", "focalgeo.config.", "configs.")
    assert all(name.startswith(allowed) for name in imports(path))


def test_oracles_import_no_focalgeo():
    for path in sources(ROOT / "tests" / "reference"):
        assert not any(name.split(".")[0] == "focalgeo" for name in imports(path)), path


def test_questions_of_experiments_never_import_each_other():
    questions = {path.name for path in (ROOT / "experiments").iterdir() if path.is_dir()}
    for path in sources(ROOT / "experiments"):
        others = questions - {path.relative_to(ROOT / "experiments").parts[0]}
        named = {tuple(name.split(".")[:2]) for name in imports(path)}
        assert not named & {("experiments", other) for other in others}, path


def test_files_are_nouns():
    assert not [path for path in sources(PACKAGE) if path.stem in BANNED_NAMES]


def test_modules_of_one_name_are_one_idea():
    names = Counter(path.stem for path in sources(PACKAGE) if not path.stem.startswith("__"))
    assert {name for name, count in names.items() if count > 1} <= set(NAMESAKES)


def first_lines(path: Path) -> list[str]:
    """First lines of the docstrings of the module and of its public classes and functions."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]
    public = [node for node in nodes if not getattr(node, "name", "").startswith("_")]
    return [text.splitlines()[0] for text in map(ast.get_docstring, public) if text]


@pytest.mark.parametrize("path", sources(PACKAGE), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_docstring_s_first_line_names_the_thing(path):
    riddle = re.compile(r"((Return|Yield) )?(what|how|where|which|that) ", re.IGNORECASE)
    assert not [line for line in first_lines(path) if riddle.match(line)]


def test_what_a_step_minimises_is_seen_from_the_step():
    assert "focalgeo.training.penalties" in {name.rpartition(".")[0] for name in imports(PACKAGE / "training/step.py")}
    for path in sources(PACKAGE / "job"):
        assert not {"grad", "value_and_grad", "jvp", "vjp"} & names_in(path), path


@pytest.mark.parametrize("command", ["run", "calibrate"])
def test_a_command_is_flags_alone(command):
    libraries = {name.split(".")[0] for name in imports(PACKAGE / f"{command}.py")} - {"focalgeo"}
    assert libraries <= {"argparse", "collections", "ml_collections", "re", "signal", "sys", "typing"}


def test_no_hidden_nans():
    assert not [path for path in sources(PACKAGE) if "nan_to_num" in names_in(path)]
