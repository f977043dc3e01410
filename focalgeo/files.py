"""Files safely read and written: regular files alone, strict JSON, atomic writing, and the memory that is free."""

import contextlib
import json
import math
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, BinaryIO

from focalgeo.types import InputError, shown

# Control characters, ends of lines, and the parts of a name that are not UTF-8: no line and no file of text holds them.
UNUSABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
TEMPORARY = re.compile(r"\.(?P<file>.+)\.(?P<process>\d+)-[0-9a-f]{16}\.tmp")  # the names that `replace` writes to
_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a folder"),
)

process = 0  # the number of this process of a job's several; `parallel.connect` sets it


def is_first() -> bool:
    """Whether this is process 0, which alone writes files and speaks."""
    return process == 0


def say(line: str) -> None:
    """Write a line on standard error, where it does not mix with results; of several processes, process 0 alone."""
    if is_first():
        write_line(line)


def write_line(line: str) -> None:
    """Write a line of this process on standard error; one that cannot be written, on a full disk, is lost."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def check_regular(path: Path) -> None:
    """Refuse what is no file that can be read to its end: a pipe, a device, a folder, a link to nothing.

    Nothing is opened, since opening a pipe waits for its writer.

    Raises:
        InputError: what stands there instead, or why the system does not find it.
    """
    name = shown(path, most=200)
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a name that no system takes
        if os.path.islink(path) and isinstance(error, FileNotFoundError):
            where = shown(os.readlink(path), most=200)
            raise InputError(f"{name} is a link to {where}, where nothing is: mend the link") from error
        raise InputError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}; check the path") from error
    _check_kind(path, mode)


def _check_kind(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((kind for is_kind, kind in _KINDS if is_kind(mode)), "no regular file")
        raise InputError(f"{shown(path, most=200)} is {kind}: give a file")


def opened(path: Path, *, own: bool = False) -> BinaryIO:
    """A regular file, to be read, whoever put it there: opening it waits for no writer of a pipe.

    With `own` it is not one that a link leads to.

    Raises:
        InputError: it is a pipe, a device or a folder.
        OSError: it cannot be opened; ELOOP for a link where `own` is given.
    """
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_NOFOLLOW if own else 0))
    try:
        _check_kind(path, os.fstat(number).st_mode)
    except InputError:
        os.close(number)
        raise
    return os.fdopen(number, "rb")


def parse_json(data: bytes) -> Any:
    """The JSON value of UTF-8 text whose numbers are finite.

    Raises:
        ValueError, RecursionError: it is none, or nested deeper than Python goes.
    """
    value = _DECODER.decode(data.decode("utf-8-sig"))
    json.dumps(value, allow_nan=False)  # refuses 1e999
    return value


def parse_json_line(data: bytes) -> Any:
    """`parse_json` for a line of many, whose numbers the reader checks itself."""
    return _DECODER.decode(data.decode())


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def replace(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Write a file atomically: a reader, or a kill at any moment, sees the old file or the new one.

    The temporary file beside it has a random name and is never one that is there, nor a link.

    Raises:
        OSError: it cannot be written; the old file stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(8)}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666), "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sweep_temporaries(folder: Path, *, but: tuple[str, ...] = ()) -> None:
    """Remove what `replace` left half written below a folder where its process was killed.

    Folders whose names begin as one of `but` are not looked into.
    """
    for path, below, names in os.walk(folder):
        below[:] = [name for name in below if not name.startswith(but)]
        for name in names:
            found = TEMPORARY.fullmatch(name)
            if found and not _runs(found["process"]):
                Path(path, name).unlink(missing_ok=True)


def _runs(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        pass
    return True


def free_memory() -> float:
    """Bytes that the machine, or its container, can still give; infinite where neither is known."""
    found = [_number_in("/proc/meminfo", r"^MemAvailable:\s*(\d+)", unit=1024)]
    for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        folder = "/sys/fs/cgroup" if limit == "memory.max" else "/sys/fs/cgroup/memory"
        cached = _number_in(f"{folder}/memory.stat", r"^(?:total_)?inactive_file (\d+)", absent=0)  # is given back
        found.append(_number_in(f"{folder}/{limit}") - _number_in(f"{folder}/{used}", absent=0) + cached)
    return min(found)


def _number_in(path: str, pattern: str = r"^(\d+)", *, unit: int = 1, absent: float = math.inf) -> float:
    """The number that the pattern finds in a file of the system; `absent` where it has none."""
    try:
        found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    except OSError:
        return absent
    return unit * int(found[1]) if found else absent
