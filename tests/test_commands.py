"""The list of commands, and what it hands on: python -m focalgeo NAME is python -m focalgeo.NAME."""

import subprocess
import sys
from pathlib import Path

import pytest

import focalgeo
from focalgeo.__main__ import COMMANDS
from focalgeo.config import load_config, own_configs
from focalgeo.types import InputError

ROOT = Path(__file__).parent.parent


def command(*arguments, folder=ROOT):
    return subprocess.run([sys.executable, "-m", "focalgeo", *arguments], cwd=folder, capture_output=True, text=True)


def test_without_arguments_it_lists_every_command_and_every_config():
    found = command()
    assert (found.returncode, found.stderr) == (0, "")
    for name in COMMANDS:
        assert f"python -m focalgeo.{name} " in found.stdout
    for path in (ROOT / "configs").glob("[!_]*.py"):
        assert f"configs/{path.name} " in found.stdout


def test_every_module_that_is_a_command_is_listed():
    package = ROOT / "focalgeo"
    modules = {path.stem for path in package.glob("*.py") if '__name__ == "__main__"' in path.read_text()}
    modules |= {path.parent.name for path in package.glob("*/__main__.py")}
    assert modules - {"__main__"} == set(COMMANDS)


def test_its_version_is_the_package_s():
    assert command("--version").stdout == f"focalgeo {focalgeo.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_handed_its_arguments(name):
    direct = [sys.executable, "-m", f"focalgeo.{name}", "--help"]
    expected = subprocess.run(direct, cwd=ROOT, capture_output=True, text=True)
    found = command(name, "--help")
    assert (found.returncode, found.stdout, found.stderr) == (0, expected.stdout, expected.stderr)


def test_bad_input_of_a_command_is_its_one_line_and_exit_code():
    found = command("run", "--workdir=x")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == "focalgeo: --config is missing: for example --config=configs/digits.py\n"


def test_an_unknown_command_is_one_line_with_the_nearest():
    found = command("calibrat")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == "focalgeo: 'calibrat' is no command: did you mean focalgeo calibrate?\n"


def test_own_configs_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in own_configs():
        assert load_config(f"configs/{name}") == load_config(ROOT / "configs" / name)
    with pytest.raises(InputError, match=r"no config file: .*'configs/digts.py'; did you mean configs/digits.py\?$"):
        load_config("configs/digts.py")


def test_a_config_of_one_s_own_starts_from_focalgeo_s(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("wide.py").write_text(
        "from configs import digits\n\n"
        "def get_config():\n    config = digits.get_config()\n    config.loss.gamma = 4.0\n    return config\n"
    )
    assert load_config("wide.py").loss.gamma == 4.0
    (tmp_path / "configs").mkdir()
    Path("configs/digits.py").write_text(Path("wide.py").read_text().replace("from configs", "from focalgeo"))
    with pytest.raises(InputError, match=r"configs/digits.py, line 1"):  # one's own goes before focalgeo's
        load_config("configs/digits.py")
