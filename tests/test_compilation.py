"""Compiled programs kept from run to run: in which folder, and when in none."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import pytest

from focalgeo.job import compilation
from focalgeo.job.compilation import VARIABLE, keep_programs

NAMES = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture
def home(monkeypatch, tmp_path):
    """A new cache folder of the user's, and jax as without settings; restored afterwards."""
    before = {name: getattr(jax.config, name) for name in NAMES}
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with warnings.catch_warnings():
        yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)


def test_programs_are_kept_beside_the_data_by_version_and_processor(home, monkeypatch):
    folder = keep_programs()
    assert folder.parent == home / "focalgeo" / "xla"
    assert jax.config.jax_compilation_cache_dir == str(folder)
    assert folder.name.startswith(f"jax-{jax.__version__}-")
    assert folder.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(compilation.Path, "read_text", lambda path: "flags : fpu sse\n")
    assert compilation._machine() != folder.name


@pytest.mark.parametrize("value", ["", "elsewhere"])
def test_the_variable_is_heeded(home, monkeypatch, value):
    jax.config.update("jax_compilation_cache_dir", value)  # as jax reads it at import
    monkeypatch.setenv(VARIABLE, value)
    assert keep_programs() is None
    assert jax.config.jax_compilation_cache_dir == (value or None)
    assert not list(home.iterdir())


def test_a_folder_named_to_jax_is_heeded(home):
    jax.config.update("jax_compilation_cache_dir", "mine")
    assert keep_programs() is None
    assert jax.config.jax_compilation_cache_dir == "mine"


def test_nothing_is_kept_where_no_folder_can_be(home, capsys):
    (home / "focalgeo").write_text("a file")
    assert keep_programs() is None
    with compilation.programs_kept():
        assert capsys.readouterr().err == ""
    [line] = capsys.readouterr().err.splitlines()
    assert f"no compiled programs are kept: {home}/focalgeo/xla is" in line
    assert jax.config.jax_compilation_cache_dir is None


def test_nothing_is_kept_where_others_can_write(home):
    folder = keep_programs()
    jax.config.update("jax_compilation_cache_dir", None)
    folder.chmod(0o777)
    assert keep_programs() is None
    assert jax.config.jax_compilation_cache_dir is None


def test_those_unused_for_longest_go(home, monkeypatch):
    monkeypatch.setattr(compilation, "MOST_BYTES", 250)
    folder = home / "focalgeo" / "xla" / "jax-0.0-old"
    folder.mkdir(parents=True)
    for day, name in enumerate(("c", "a", "b")):
        (folder / f"{name}-cache").write_bytes(bytes(100))
        os.utime(folder / f"{name}-cache", (day * 86400, 0))
    keep_programs()
    assert sorted(path.name for path in folder.iterdir()) == ["a-cache", "b-cache"]


PROGRAM = """
import sys
import jax
from focalgeo.job import compilation
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name.rpartition("/")[2]))
with compilation.programs_kept():
    if "bad input" in sys.argv:
        sys.exit("bad input")
    print(jax.jit(lambda x: x * 3 + 1)(2.0), hits.count("cache_hits"))
"""


def run(home, *arguments):
    names = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    env = {name: value for name, value in os.environ.items() if name not in names}
    env["XDG_CACHE_HOME"] = str(home)
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env=env,
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
    )
    return found.stdout.split(), found.stderr


def test_a_second_process_compiles_nothing_and_half_a_program_is_compiled_in_silence(tmp_path):
    assert run(tmp_path, "bad input") == ([], "bad input\n")
    found, said = run(tmp_path)
    assert found == ["7.0", "0"]
    assert f"kept in {tmp_path / 'focalgeo' / 'xla'}" in said
    assert run(tmp_path) == (["7.0", "1"], "")
    (kept,) = tmp_path.glob("focalgeo/xla/*/*-cache")
    kept.write_bytes(kept.read_bytes()[:100])
    assert run(tmp_path) == (["7.0", "0"], "")


def test_both_commands_keep_them(home, monkeypatch):
    from focalgeo import calibrate, job
    from focalgeo import run as main_job

    monkeypatch.setattr("focalgeo.job.calibrate.run_and_print", lambda *given, **named: None)
    assert calibrate.main(["--val=val.npz", "--out=out"]) == 0
    assert jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setattr(main_job, "_parse_and_join", lambda arguments: main_job.Job(None, "out", None, {}))
    monkeypatch.setattr(job, "run_and_print", lambda *given, **named: None, raising=False)
    assert main_job.main(["run"]) == 0
    assert jax.config.jax_compilation_cache_dir
