"""Files safely read and written: regular files alone, atomic writing, and the memory that is free."""

import contextlib
import errno
import math
import os
import re
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from focalgeo.types import InputError, RunError, shown

# Control characters, ends of lines, and the parts of a name that are not UTF-8: no line and no file of text holds them.
UNUSABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

process = 0  # the number of this process of a job's several; `parallel.connect` sets it


def is_first() -> bool:
    """Whether this is process 0, which alone writes files and speaks."""
    return process == 0


def say(line: str) -> None:
    """Write a line on standard error, where it does not mix with results; of several processes, process 0 alone."""
    if is_first():
        write_line(line)


@contextlib.contextmanager
def waiting(line: str, seconds: float = 3) -> Iterator[None]:
    """Say this line where what is done inside `with` takes longer than so many seconds."""
    timer = threading.Timer(seconds, say, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def write_line(line: str) -> None:
    """Write a line of this process on standard error; one that cannot be written, on a full disk, is lost."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def spoken(main: Callable[[], int]) -> int:
    """What `main` returns once all it says is written; 141, as of SIGPIPE, where nobody reads on; 2 on a full disk.

    A letter that standard output cannot encode, as γ in ASCII, is a question mark there.
    """
    with contextlib.suppress(AttributeError):  # closed before the start
        sys.stdout.reconfigure(errors="replace")
    try:
        code = main()
        if sys.stdout is not None:  # closed before the start
            sys.stdout.flush()
        return code
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        with open(os.devnull, "wb") as nowhere:  # what is left is not tried again at the exit
            os.dup2(nowhere.fileno(), 1)
        if error.errno == errno.EPIPE:
            return 128 + getattr(signal, "SIGPIPE", 13)
        write_line(
            f"focalgeo: cannot write to standard output: {error.strerror}; what a command writes into files is there"
        )
        return InputError.exit_code


@contextlib.contextmanager
def reading(where: object, mend: str = "check the path and the disk, or write it again") -> Iterator[None]:
    """Turn whatever a reader raises into one line: what is damaged or beyond memory raises some thirty types.

    Raises:
        InputError: it says what cannot be read and why; one that is raised inside stays as it is, as does a RunError.
    """
    try:
        yield
    except (InputError, RunError):
        raise
    except Exception as error:
        why = " ".join((repr(error) if isinstance(error, LookupError) else str(error)).split()) or type(error).__name__
        if "bad_alloc" in why:
            why = "more memory than is free"
        if re.search("(?i)pickle|weights_only", why) and not isinstance(error, OSError):  # which name a path
            why = "it holds more than arrays, which could run code"  # not the advice to let the file run its code
        raise InputError(f"{where} cannot be read or written ({shown(why, most=200)}): {mend}") from error


def check_regular(path: Path) -> None:
    """Refuse what cannot be read to its end: a folder, a device, a pipe, whose opening waits for a writer."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{shown(path, most=200)} is no regular file: give a file")


def replace(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Write a file atomically: a reader, or a kill at any moment, sees the old file or the new one.

    Raises:
        OSError: it cannot be written; the old file stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # hidden, and of its own name: two writers do not meet, and `records.locked` removes what a killed one leaves
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def free_memory() -> float:
    """Bytes that the machine, or its container, can still give; infinite where neither is known."""
    machine = _number_in("/proc/meminfo", r"MemAvailable:\s*(\d+) kB")
    limit, used = (_number_in(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    # a container's copies of files count as used, but are given back when memory is short
    cached = _number_in("/sys/fs/cgroup/memory.stat", r"inactive_file (\d+)")
    return min(1024 * machine or math.inf, limit - used + cached if limit else math.inf)


def _number_in(path: str, pattern: str = r"^(\d+)") -> int:
    """The number that the pattern finds in a file of the system; 0 where it has none."""
    try:
        match = re.search(pattern, Path(path).read_text())
    except OSError:
        return 0
    return int(match[1]) if match else 0
