"""The workdir: manifest.json, rows in metrics.jsonl, predictions, arrays. A file is complete, or it is not there.

Of several processes the first alone writes: on the others every function that writes does nothing.
"""

import contextlib
import errno
import fcntl
import json
import math
import os
import re
import stat
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import IO, Any

import numpy as np

from focalgeo import files
from focalgeo.rows import Row, Title, from_json, to_json
from focalgeo.types import InputError, Predictions, RunError, shown

Workdir = str | os.PathLike[str]

MANIFEST = "manifest.json"
METRICS_FILE = "metrics.jsonl"
LOCK = ".lock"

_ELSEWHERE = "choose another --workdir"
_ADVICE = {
    errno.ENOSPC: f"free some space or {_ELSEWHERE}",
    errno.EDQUOT: f"free some space or {_ELSEWHERE}",
    errno.EROFS: f"make it writable or {_ELSEWHERE}",
    errno.EACCES: f"make it writable or {_ELSEWHERE}",
    errno.EPERM: f"make it writable or {_ELSEWHERE}",
    errno.ENOTDIR: f"a file stands where a folder should be: move it or {_ELSEWHERE}",
    errno.EEXIST: f"a file stands where a folder should be: move it or {_ELSEWHERE}",
    errno.EISDIR: f"a folder stands where a file should be: move it or {_ELSEWHERE}",
    errno.ELOOP: f"it is a link: put what it points to in its place or {_ELSEWHERE}",
    errno.ENAMETOOLONG: "choose a --workdir with a shorter name",
}
_CORRUPTION = (
    *(ValueError, TypeError, KeyError, EOFError, RuntimeError, MemoryError, OverflowError),  # RecursionError is one
    *(struct.error, zlib.error, zipfile.BadZipFile, UserWarning),
)


@contextlib.contextmanager
def writing(path: Workdir) -> Iterator[None]:
    """Turn an OSError raised inside the block into one line about `path`.

    Raises:
        InputError: what failed, at which path, and how to correct it.
    """
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno, _ELSEWHERE)
        what = shown(error.strerror or error, most=200)
        raise InputError(f"cannot write {shown(path, most=200)}: {what}; {advice}") from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The file, to be read, or one line on why it cannot be."""
    try:
        with _regular(path) as file:
            yield file
    except InputError:
        raise
    except OSError as error:
        mend = "make it readable" if error.errno in (errno.EACCES, errno.EPERM) else "run the job that writes it first"
        raise InputError(f"cannot read {shown(path, most=200)}: {error.strerror or error}; {mend}") from error
    except _CORRUPTION as error:
        raise _corrupt(path) from error


def _regular(path: Path) -> IO[bytes]:
    try:
        return files.opened(path)
    except InputError as error:
        raise InputError(f"{error}, or {_ELSEWHERE}") from error


def _corrupt(path: Path, why: str = "") -> InputError:
    return InputError(f"{shown(path, most=200)} is corrupt{why}; restore it or {_ELSEWHERE}")


def _replace(path: Path, write: Callable[[Any], None]) -> None:
    if not files.is_first():
        return
    with writing(path):
        files.replace(path, write)


def _plain(value: Any) -> Any:
    return value.tolist()  # NumPy and JAX scalars and arrays; anything else is a mistake and raises


def write_text(path: Workdir, text: str) -> None:
    """Write UTF-8 text atomically: a reader, or a kill -9, sees the old file or the new one.

    Raises:
        InputError: the file cannot be written.
    """
    _replace(Path(path), lambda file: file.write(text.encode()))


def write_json(path: Workdir, value: Any) -> None:
    """Write one JSON value, atomically; tuples become lists, and a number that is not finite is a ValueError.

    A list of numbers stands in one line: a matrix is a row a line.
    """
    text = json.dumps(value, indent=2, allow_nan=False, default=_plain)  # a text in it holds no line break
    write_text(path, _NUMBERS.sub(_in_one_line, text) + "\n")


def _in_one_line(found: re.Match) -> str:
    return f"[{' '.join(found[1].split())}]"


def read_json(path: Workdir) -> Any:
    """Read one JSON value: UTF-8, all numbers finite.

    Raises:
        InputError: it is missing or corrupt.
    """
    with _opened(Path(path)) as file:
        return files.parse_json(file.read())


_NUMBERS = re.compile(r"\[\n\s*([^\[\]{}\"]+?)\n\s*\]")  # a list that holds no text, list or object
_MOST_LEVELS = 20


def _levels(value: Any) -> int:
    level, count = [value], 0
    while level:
        level, count = [child for each in level for child in _children(each)], count + 1
    return count


def _children(value: Any) -> Sequence[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()


def write_manifest(workdir: Workdir, manifest: Mapping[str, Any]) -> None:
    """Write manifest.json; job/provenance.py makes the manifest."""
    write_json(Path(workdir) / MANIFEST, manifest)


_NUMBER = (int, float)
_METRIC = {name: _NUMBER if kind is float else kind for name, kind in Title.__annotations__.items()}
_CHOICE = {"method": str, "criterion": (str, NoneType), "parameters": dict}
# by field: its type, [that of each in a list] or {those of its own fields, "*" for all others}; none needs to be there
_SHAPE = {
    "config": {
        "sweep": {"at_once": int, "*": [_NUMBER]},
        "loss": {"name": str, "gamma": _NUMBER, "trace_penalty": _NUMBER},
        "evaluation": {"num_bins": int, "num_resamples": int, "methods": [str], "metrics": [str]},
        "curvature": {"examples": int},
        "inputs": {"*": {"examples": int, "classes": int, "*": str}},
    },
    "shard": str,
    "start": {"*": str},
    "data": {"classes": [str], "train": int, "val": int, "test": int, "*": str},
    "devices": [str],
    "processes": int,
    "loss_values": [str],
    "parameters": int,
    "versions": {"*": str},
    "command": [str],
    "methods": {"*": {"title": str, "criteria": [str], "keeps_class": bool}},
    "metrics": {"*": _METRIC},
    "calibration": {
        "split": str,
        "criterion": str,
        "warnings": [str],
        "trained_gamma": _NUMBER,
        "choice": _CHOICE,
        "level": _NUMBER,
        "refused": {"*": str},
        "beaten": {"*": str},
        "score_test": {"statistic": _NUMBER, "p_value": _NUMBER},
    },
    "runs": [str],
    "merged": [str],
    **dict.fromkeys(("git", "platform", "created"), str),
}
_WORDS = {dict: "an object", list: "a list", str: "a text", int: "a whole number", _NUMBER: "a number"}
_WORDS |= {(str, NoneType): "a text", bool: "true or false"}


def read_manifest(workdir: Workdir) -> dict[str, Any]:
    """Read manifest.json.

    Raises:
        InputError: it is missing, it is not a JSON object, or a field that is read is of another type (names it).
    """
    manifest = read_json(Path(workdir) / MANIFEST)
    check_manifest(Path(workdir) / MANIFEST, manifest)
    return manifest


def check_manifest(path: Path, manifest: Any) -> None:
    """Refuse a manifest, that of the file `path`, with a field of another type than a job or a report reads.

    Raises:
        InputError: names the field.
    """
    misfit = "it is nested too deep" if _levels(manifest) > _MOST_LEVELS else _misfit(manifest, _SHAPE, "it")
    if misfit:
        raise _corrupt(path, f": {misfit}")


def _misfit(value: Any, shape: Any, name: str) -> str:
    """The field of a JSON value that is not of its shape, in words; "" if all are."""
    kind = dict if isinstance(shape, dict) else list if isinstance(shape, list) else shape
    if not isinstance(value, kind) or (isinstance(value, bool) and kind not in (bool, object)):
        return f"{shown(name)} is not {_WORDS.get(kind, 'of its type')}"
    if kind is list and isinstance(shape, list):
        found = (_misfit(each, shape[0], f"each of {name}") for each in value)
    elif isinstance(shape, dict):
        prefix = "" if name == "it" else f"{name}."
        shapes = ((key, shape.get(key, shape.get("*", object))) for key in value)
        found = (_misfit(value[key], own, f"{prefix}{key}") for key, own in shapes)
    else:
        found = iter(())
    return next(filter(None, found), "")


def check_name(workdir: Workdir) -> None:
    """Refuse a path that cannot be shown on a line, or be written as UTF-8.

    Raises:
        InputError: it holds a control character, or bytes that are no UTF-8.
    """
    if files.UNUSABLE.search(os.fspath(workdir)):
        what = "control characters or bytes that are no UTF-8"
        raise InputError(f"the path {shown(workdir, most=200)} holds {what}: {_ELSEWHERE}")


def _encode(row: Row) -> bytes:
    fields = to_json(row)
    plain = {name: value if isinstance(value, str | int | float) else _plain(value) for name, value in fields.items()}
    for name, value in plain.items():
        if isinstance(value, float) and not math.isfinite(value):
            where = f" at step {plain['step']}" if "step" in plain else ""
            raise RunError(f"row {row.name!r}{where}: {name} is {value}; a row holds finite numbers only")
    return json.dumps(plain, allow_nan=False).encode() + b"\n"


def append_rows(workdir: Workdir, rows: Sequence[Row]) -> None:
    """Append rows to metrics.jsonl, one JSON object a line, in a single write that has reached the disk on return.

    A field that is None is absent in the file. NumPy and JAX scalars are taken. A write that a full disk takes only in
    part is undone. After a kill call `replace_rows` first, as the last line may be torn.

    Raises:
        InputError: the file cannot be written.
        RunError: a number is not finite; nothing is written.
    """
    path, data = Path(workdir) / METRICS_FILE, b"".join(_encode(row) for row in rows)
    if not files.is_first():
        return
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            written = os.write(descriptor, data)
            if written < len(data):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if data:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _open_own(path: Path, flags: int) -> int:
    """Open a file of the workdir by its own name, never one that a link leads to, nor a pipe or device."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"{shown(path, most=200)} is no file; move it away or {_ELSEWHERE}")
    return descriptor


def _lines(path: Path) -> list[tuple[bytes, Row]]:
    with _opened(path) as file:
        data = file.read()
    complete = data[: data.rfind(b"\n") + 1]  # what follows the last newline is a row torn by a kill
    lines = complete.split(b"\n")[:-1]
    return [(line + b"\n", _decode(path, number, line)) for number, line in enumerate(lines, 1)]


def _decode(path: Path, number: int, line: bytes) -> Row:
    try:
        fields = files.parse_json_line(line)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise InputError(f"{shown(path, most=200)} is corrupt at line {number}; delete that line")
    try:
        return from_json(fields)
    except InputError as error:
        raise InputError(f"{shown(path, most=200)}, line {number}: {error}") from error


def read_rows(workdir: Workdir) -> list[Row]:
    """Read all rows of metrics.jsonl in the order written; a last line torn by a kill is left out.

    Raises:
        InputError: the file is missing, or a line elsewhere than at its end holds no row (names the line).
    """
    return [row for _, row in _lines(Path(workdir) / METRICS_FILE)]


def replace_rows(workdir: Workdir, rows: Sequence[Row], *, where: Callable[[Row], bool]) -> None:
    """Drop the rows for which `where` holds, and a torn last line, and append `rows`, all in one atomic write.

    Raises:
        InputError: the file cannot be written, or a line elsewhere than at its end holds no row.
        RunError: a number is not finite; the file stays as it was.
    """
    path = Path(workdir) / METRICS_FILE
    if not files.is_first():
        return
    kept = [line for line, row in _lines(path) if not where(row)] if path.exists() else []
    data = b"".join([*kept, *(_encode(row) for row in rows)])
    _replace(path, lambda file: file.write(data))


def write_arrays(workdir: Workdir, name: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write named arrays to {name}.npz, atomically."""
    _replace(Path(workdir) / f"{name}.npz", lambda file: np.savez(file, allow_pickle=False, **arrays))


def read_arrays(workdir: Workdir, name: str) -> dict[str, np.ndarray]:
    """Read every array of {name}.npz; pickled objects are refused.

    Raises:
        InputError: the file is missing or corrupt, or it declares more than it holds.
    """
    path = Path(workdir) / f"{name}.npz"
    with _opened(path) as file, warnings.catch_warnings():
        warnings.simplefilter("error")
        with zipfile.ZipFile(file) as archive:
            if sum(member.file_size for member in archive.infolist()) > os.fstat(file.fileno()).st_size:
                raise ValueError("compressed, which write_arrays does not")
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            arrays = dict(archive)
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise _corrupt(path)
    return arrays


def write_predictions(workdir: Workdir, split: str, logits: np.ndarray, labels: np.ndarray) -> None:
    """Write predictions/{split}.npz: logits as float32 [n, classes], labels as int32 [n]."""
    arrays = {"logits": np.asarray(logits, np.float32), "labels": np.asarray(labels, np.int32)}
    write_arrays(workdir, f"predictions/{split}", arrays)


def read_predictions(workdir: Workdir, split: str) -> Predictions:
    """Read predictions/{split}.npz; the mask is all True, as padding is never written.

    Raises:
        InputError: the file is missing, corrupt or holds other shapes.
    """
    arrays = read_arrays(workdir, f"predictions/{split}")
    logits, labels = arrays.get("logits"), arrays.get("labels")
    if logits is None or labels is None or not _are_predictions(logits, labels):
        path = shown(Path(workdir) / f"predictions/{split}.npz", most=200)
        raise InputError(f"{path} does not hold logits [n, classes] and labels [n]; delete it and run the job again")
    return Predictions(logits, labels, np.ones(labels.shape, bool))


def _are_predictions(logits: np.ndarray, labels: np.ndarray) -> bool:
    shaped = logits.ndim == 2 and labels.shape == logits.shape[:1]
    return shaped and (logits.dtype, labels.dtype) == (np.float32, np.int32)


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict) or not tree:
        return {prefix: tree}
    return {
        name: leaf for key, value in tree.items() for name, leaf in _flat(value, f"{prefix}.{key}".strip(".")).items()
    }


def _filled(own: Any, defaults: Any) -> Any:
    """A JSON object with what only the defaults have, section by section."""
    if not isinstance(own, dict) or not isinstance(defaults, dict):
        return own
    return {**own, **{key: _filled(own.get(key, value), value) for key, value in defaults.items()}}


def differences(there: Any, here: Any) -> list[str]:
    """The fields in which two JSON objects differ, the first three with their values."""
    left, right = _flat(there), _flat(here)
    names = [*left, *(name for name in right if name not in left)]
    different = [name for name in names if left.get(name, _ABSENT) != right.get(name, _ABSENT)]
    sides = ((name, *(shown(side.get(name, "absent"), most=24) for side in (left, right))) for name in different[:3])
    listed = [f"{shown(name)}: {there} there, {here} here" for name, there, here in sides]
    return [*listed, *different[3:]]


_ABSENT = object()
_OLDER = "rounds.json"  # a file of the first version's runs


def check_workdir(
    workdir: Workdir, config: Mapping[str, Any], *, but: str = "", defaults: Mapping[str, Any] | None = None
) -> str:
    """Say whether a run with `config` starts "fresh" in `workdir` (missing or empty) or goes on there ("resume").

    A folder in which each name `is_nothing` is empty. `but` names a part of the config that may differ.
    defaults: what fields were that the run's manifest does not have yet, since they are newer than the run.

    Raises:
        InputError: the folder holds something else, or a run of another config (names the first fields that differ).
    """
    path, named = Path(workdir), shown(workdir, most=200)
    names = _listed(path)
    if all(map(is_nothing, names)):
        return "fresh"
    if MANIFEST not in names:
        raise InputError(f"{named} is not a focalgeo workdir: it is not empty and has no {MANIFEST}; {_ELSEWHERE}")
    if _OLDER in names:
        raise InputError(
            f"{named} was written by an older focalgeo, whose runs this one does not go on with; {_ELSEWHERE}"
        )
    manifest, here = read_manifest(path), json.loads(json.dumps(config, default=_plain))
    if "config" not in manifest:
        raise InputError(f"{named} is not a focalgeo workdir: its {MANIFEST} holds no config; {_ELSEWHERE}")
    there = _filled(manifest["config"], json.loads(json.dumps(defaults or {}, default=_plain)))
    different = differences(*({k: v for k, v in each.items() if k != but} for each in (there, here)))
    if different:
        more = f" and {len(different) - 3} more" if len(different) > 3 else ""
        what = f"{'; '.join(different[:3])}{more}"
        raise InputError(f"{named} belongs to another config ({what}); {_ELSEWHERE}, or delete this one")
    check_links(path)
    return "resume"


def _listed(path: Path) -> set[str]:
    """The names of what a folder holds; none of one that is not there."""
    check_name(path)
    with writing(path):
        try:
            return set(os.listdir(path))
        except FileNotFoundError as error:
            if path.is_symlink():
                what = f"{shown(path, most=200)} is a link to {shown(os.readlink(path), most=200)}, where nothing is"
                raise InputError(f"{what}; make that folder or {_ELSEWHERE}") from error
            return set()
        except NotADirectoryError as error:
            if path.exists():
                raise InputError(f"{shown(path, most=200)} is a file, not a folder; {_ELSEWHERE}") from error
            raise


_BY_SYSTEMS = re.compile(  # what file browsers, notebooks, disks and Git put into folders unasked
    r"\.DS_Store|\._.*|\.localized|\.Spotlight-V100|\.Trashes|\.fseventsd|\.directory|\.Trash-\d+|\.nfs[0-9a-f]+"
    r"|(?i:thumbs\.db|ehthumbs\.db|desktop\.ini)|lost\+found|\.ipynb_checkpoints|\.(?:git)?keep|\.gitignore"
)


def is_nothing(name: str) -> bool:
    """Whether a folder that holds this name alone is empty: a system's file, or left by a kill at the first write."""
    if name in (LOCK, f".{MANIFEST}.tmp") or _BY_SYSTEMS.fullmatch(name):
        return True
    found = files.TEMPORARY.fullmatch(name)
    return found is not None and found["file"] == MANIFEST


def check_links(workdir: Workdir, *folders: str) -> None:
    """Refuse links inside a workdir, as what is written there would be written elsewhere.

    `folders` are those that will be written; where none is named, all that it holds. The workdir itself may be a link.

    Raises:
        InputError: one of them is a link (names it).
    """
    path = Path(workdir)
    below = [*path.glob("*"), *path.glob("members/*"), *path.glob("members/*/*")]
    for each in (path / name for name in folders) if folders else below:
        if each.is_symlink():
            what = f"{shown(each, most=200)} is a link, and nothing is written through links inside a workdir"
            raise InputError(f"{what}: put what it points to in its place, or {_ELSEWHERE}")


@contextlib.contextmanager
def locked(workdir: Workdir) -> Iterator[None]:
    """Hold the workdir for this process, so that no second run writes there; a process that dies lets go of it.

    What processes that were killed have left half written is removed.

    Raises:
        InputError: another process holds it.
    """
    folder = Path(workdir)
    if not files.is_first():
        yield
        return
    with writing(folder / LOCK):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _open_own(folder / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        with writing(folder):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                named = shown(folder, most=200)
                raise InputError(f"another run is writing {named}; wait for it, or {_ELSEWHERE}") from error
            files.sweep_temporaries(folder, but=("checkpoints", "tensorboard"))
        yield
    finally:
        os.close(descriptor)
