"""Compiled programs kept from run to run: in which folder, and when in none."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import pytest

from focalgeo.job import process

DIR = "jax_compilation_cache_dir"
NAMES = (DIR, "jax_persistent_cache_min_compile_time_secs", "jax_compilation_cache_max_size")


@pytest.fixture
def home(monkeypatch, tmp_path):
    """A new cache folder of the user's, and jax as without settings; restored afterwards."""
    before = {name: getattr(jax.config, name) for name in NAMES}
    jax.config.update(DIR, None)
    monkeypatch.delenv(process.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with warnings.catch_warnings():
        yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)


def test_programs_are_kept_for_this_user_and_this_processor_and_jax_removes_the_oldest(home, monkeypatch):
    process.keep_programs()
    folder = Path(jax.config.jax_compilation_cache_dir)
    assert folder.parent == home / "focalgeo" / "xla"
    assert folder.name.startswith(f"jax-{jax.__version__}-")
    assert folder.stat().st_mode & 0o077 == 0
    assert jax.config.jax_compilation_cache_max_size == 2**29
    monkeypatch.setattr(process.Path, "read_text", lambda path: "flags : fpu sse\n")
    assert process._processor() not in folder.name


@pytest.mark.parametrize(("variable", "named", "kept"), [("", "", None), ("x", "x", "x"), (None, "mine", "mine")])
def test_a_folder_named_to_jax_is_heeded(home, monkeypatch, variable, named, kept):
    jax.config.update(DIR, named)  # as jax reads it at import
    if variable is not None:
        monkeypatch.setenv(process.VARIABLE, variable)
    process.keep_programs()
    assert jax.config.jax_compilation_cache_dir == kept
    assert not list(home.iterdir())


def test_nothing_is_kept_where_no_folder_can_be_or_others_can_write(home):
    process.keep_programs()
    Path(jax.config.jax_compilation_cache_dir).chmod(0o777)
    jax.config.update(DIR, None)
    process.keep_programs()
    assert jax.config.jax_compilation_cache_dir is None
    (home / "focalgeo").rename(home / "before")
    (home / "focalgeo").write_text("a file")
    process.keep_programs()
    assert jax.config.jax_compilation_cache_dir is None


PROGRAM = """
import jax
from focalgeo.job import process
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name.rpartition("/")[2]))
process.keep_programs()
print(jax.jit(lambda x: x * 3 + 1)(2.0), hits.count("cache_hits"))
"""


def test_a_second_process_compiles_nothing_and_half_a_program_is_compiled_in_silence(tmp_path):
    env = {name: value for name, value in os.environ.items() if "CACHE" not in name} | {"XDG_CACHE_HOME": str(tmp_path)}

    def run():
        done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True)
        return done.stdout.split(), done.stderr

    assert run() == (["7.0", "0"], "")
    assert run() == (["7.0", "1"], "")
    (kept,) = tmp_path.glob("focalgeo/xla/*/*-cache")
    kept.write_bytes(kept.read_bytes()[:100])
    assert run() == (["7.0", "0"], "")
