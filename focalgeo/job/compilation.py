"""Shorter runs: compiled programs kept for the next one, and garbage looked for rarely."""

import gc
import hashlib
import os
import platform
import re
import warnings
from pathlib import Path

import jax
import platformdirs

VARIABLE = "JAX_COMPILATION_CACHE_DIR"
MOST_BYTES = 2**29  # of each version's and processor's programs; beyond it jax removes those unused for longest


def keep_programs() -> None:
    """Let jax keep what it compiles in this process, and read what earlier ones have kept.

    $JAX_COMPILATION_CACHE_DIR is heeded: another folder, or, where it is empty, none. Nothing is kept in a folder that
    cannot be written to, or that others can write to: what lies there is run.
    """
    gc.set_threshold(10_000)  # tracing makes many objects that live on: looking for garbage was a sixth of a short run
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # a short run compiles a hundred small programs, in a fifth of its time
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    if os.environ.get(VARIABLE) == "":
        jax.config.update("jax_compilation_cache_dir", None)  # jax takes it for the folder it runs in
    if VARIABLE in os.environ or jax.config.jax_compilation_cache_dir is not None:
        return
    folder = platformdirs.user_cache_path("focalgeo") / "xla" / f"jax-{jax.__version__}-{_processor()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError:
        return
    if status.st_uid == os.geteuid() and not status.st_mode & 0o022 and os.access(folder, os.W_OK | os.X_OK):
        # a full disk, or a program half written by a process that was killed: it is compiled, and nothing is lost
        warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
        jax.config.update("jax_compilation_cache_max_size", MOST_BYTES)
        jax.config.update("jax_compilation_cache_dir", str(folder))


def _processor() -> str:
    """A name for this processor's instructions: a home is shared by machines that lack some."""
    path = Path("/proc/cpuinfo")
    flags = re.findall(r"^(?:flags|Features)\s*:.*$", path.read_text(), re.MULTILINE)[:1] if path.exists() else []
    return hashlib.sha256(f"{platform.machine()} {flags or platform.processor()}".encode()).hexdigest()[:12]
