"""Shorter runs: compiled programs kept for the next one, and garbage looked for rarely."""

import contextlib
import gc
import hashlib
import os
import platform
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import jax
import platformdirs

from focalgeo.job import say
from focalgeo.types import shown

VARIABLE = "JAX_COMPILATION_CACHE_DIR"
_LEAST = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"  # of compilation: what takes less is not kept
MOST_BYTES = 2**29  # in the folders of all versions and machines; beyond it the programs unused for longest go
_FLAGS = re.compile(r"^(?:flags|Features)\s*:\s*(.*)$", re.MULTILINE)


def keep_programs() -> Path | None:
    """Let jax keep what it compiles in this process, and read what earlier ones have kept; returns the folder.

    $JAX_COMPILATION_CACHE_DIR is heeded: another folder, or, where it is empty, none. Of this and of a folder that
    cannot be written to, or that others can write to, nothing is kept and None is returned: what lies there is run.
    """
    if _LEAST not in os.environ:
        jax.config.update(_LEAST.lower(), 0)  # a short run compiles a hundred small programs, in a fifth of its time
    if os.environ.get(VARIABLE) == "":
        jax.config.update("jax_compilation_cache_dir", None)  # jax takes it for the folder it runs in
    if VARIABLE in os.environ or jax.config.jax_compilation_cache_dir is not None:
        return None
    kept = platformdirs.user_cache_path("focalgeo") / "xla"
    folder = kept / _machine()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_own(folder)
        _remove_oldest(kept, MOST_BYTES)
    except OSError:
        return None
    # a full disk, or a program half written by a process that was killed: it is compiled, and nothing is lost
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    return folder


@contextlib.contextmanager
def programs_kept() -> Iterator[None]:
    """`keep_programs` for a command, which says so, when it has ended well, the first time that any are kept.

    It says too where none are kept that nobody has asked not to keep.
    """
    folder = keep_programs()
    is_empty = folder is not None and not any(folder.iterdir())
    yield
    if folder is None and VARIABLE not in os.environ and jax.config.jax_compilation_cache_dir is None:
        kept = shown(platformdirs.user_cache_path("focalgeo") / "xla", most=200)
        say(f"no compiled programs are kept: {kept} is no folder that you can write to, and nobody else")
    if is_empty and any(folder.iterdir()):
        say(f"compiled programs are kept in {shown(folder, most=200)}: the next runs start sooner")


def collect_rarely() -> None:
    """Look for garbage after 10,000 new objects instead of 700: tracing makes many that live on.

    To look through them again and again was a sixth of a short run's time.
    """
    gc.set_threshold(10_000)


def _machine() -> str:
    """A name for jax's version and this processor's instructions: a home is shared by machines that lack some."""
    try:
        found = _FLAGS.search(Path("/proc/cpuinfo").read_text())
    except (OSError, UnicodeDecodeError):
        found = None
    flags = sorted(found[1].split()) if found else [platform.processor()]
    named = hashlib.sha256(" ".join([platform.machine(), *flags]).encode()).hexdigest()
    return f"jax-{jax.__version__}-{named[:12]}"


def _check_own(folder: Path) -> None:
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022 or not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} is not this user's own")


def _remove_oldest(kept: Path, most: int) -> None:
    """Remove the programs read longest ago until the others fit in `most` bytes; those of other processes too."""
    found = []
    for path in kept.glob("*/*-cache"):
        with contextlib.suppress(OSError):  # another process may have removed it
            each = path.stat()
            found.append((max(each.st_atime, each.st_mtime), each.st_size, path))
    left = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if left <= most:
            return
        path.unlink(missing_ok=True)
        left -= size
