"""This process of a command: the signals that ask it to stop, and the compiled programs that it keeps for the next."""

import contextlib
import errno
import gc
import hashlib
import os
import platform
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from focalgeo.files import say
from focalgeo.types import STOPPED, InputError, shown

HANGUP = getattr(signal, "SIGHUP", None)  # Windows lacks it
SIGNALS = (signal.SIGINT, signal.SIGTERM, *([HANGUP] if HANGUP else []))
VARIABLE = "JAX_COMPILATION_CACHE_DIR"
MOST_BYTES = 2**29  # of each version's and processor's programs; beyond it jax removes those unused for longest


@contextmanager
def handled(handler) -> Iterator[Callable[[], None]]:
    """Within the block, or until the yielded function is called, `handler` has the signals that stop a run."""
    before = _set(handler)

    def restore():
        for signum, previous in before.items():
            signal.signal(signum, previous)

    try:
        yield restore
    finally:
        restore()


def _set(handler) -> dict[signal.Signals, object]:
    """Handle the signals that stop a run, but SIGHUP where `nohup` has it ignored; returns the handlers before."""
    ignored = HANGUP and signal.getsignal(HANGUP) is signal.SIG_IGN
    return {signum: signal.signal(signum, handler) for signum in SIGNALS[: 2 if ignored else 3]}


def stop_at_once() -> None:
    """From now on SIGINT, SIGTERM and SIGHUP end the process in one line, with exit code 128 + signal.

    No exception is raised for them: it would rise in the middle of a library's call, or be lost in a callback. What is
    on disk is consistent at any moment.
    """

    def stop(signum, frame):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a terminal that is gone
            os.write(sys.stderr.fileno(), f"\nfocalgeo: {STOPPED}\n".encode())
        os._exit(128 + signum)

    _set(stop)


def end_at_once(code: int) -> None:
    """End the process at once, once all is written, so that no thread of a library adds to the error's one line."""
    with contextlib.suppress(OSError, AttributeError):  # of a terminal that is gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


@contextmanager
def deferred_signals() -> Iterator[Callable[[], int | None]]:
    """Within the block the first signal of SIGNALS is only noted; the yielded function returns its number, or None.

    The second one acts at once, so that a run that hangs can still be stopped. Handlers are restored on the way out.
    Outside of the main thread, where Python allows no handlers, nothing is deferred.
    """
    seen = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def note(signum, frame):
        for descriptor in (1, 2):
            try:
                os.tcgetpgrp(descriptor)
            except OSError as error:
                if error.errno == errno.EIO:  # a terminal that is gone: the next line would be an error
                    with open(os.devnull, "wb") as nowhere:
                        os.dup2(nowhere.fileno(), descriptor)
        seen.append(signum)
        restore()

    with handled(note) as restore:
        yield lambda: seen[0] if seen else None


def check_jax() -> None:
    """Ask for JAX's devices, and say which of its settings from outside are not, or hardly, of use to a command.

    Raises:
        InputError: JAX has no device of the platform asked for.
    """
    import jax

    try:
        jax.devices()
    except Exception as error:  # an AssertionError among them
        mend = "unset JAX_PLATFORMS, or install jax for that platform"
        raise InputError(
            f"JAX finds no device of {jax.config.jax_platforms} ({shown(error, most=150) or 'none is there'}): {mend}"
        ) from error
    for name in ("jax_debug_nans", "jax_debug_infs"):
        if getattr(jax.config, name):
            say(f"{name.upper()} is switched off: empty bins are NaN by design, and a loss that is NaN ends a run")
            jax.config.update(name, False)
    if jax.config.jax_disable_jit:
        say("JAX_DISABLE_JIT is set: nothing is compiled, which takes some hundred times as long")


def keep_programs() -> None:
    """Let jax keep what it compiles in this process, and read what earlier ones have kept.

    $JAX_COMPILATION_CACHE_DIR is heeded: another folder, or, where it is empty, none. Nothing is kept in a folder that
    cannot be written to, or that others can write to: what lies there is run.
    """
    import jax  # slow, and signals are handled before
    import platformdirs

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
    # Windows has neither owner nor mode: there a user's cache is that user's
    own = not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & 0o022)
    if own and os.access(folder, os.W_OK | os.X_OK):
        # a full disk, or a program half written by a process that was killed: it is compiled, and nothing is lost
        warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
        jax.config.update("jax_compilation_cache_max_size", MOST_BYTES)
        jax.config.update("jax_compilation_cache_dir", str(folder))


def _processor() -> str:
    """A name for this processor's instructions: a home is shared by machines that lack some."""
    path = Path("/proc/cpuinfo")
    flags = re.findall(r"^(?:flags|Features)\s*:.*$", path.read_text(), re.MULTILINE)[:1] if path.exists() else []
    return hashlib.sha256(f"{platform.machine()} {flags or platform.processor()}".encode()).hexdigest()[:12]
