"""The workdir: manifest.json, rows in metrics.jsonl, predictions, arrays. A file is complete, or it is not there.

Of several processes the first alone writes: on the others every function that writes does nothing.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock
import msgspec
import numpy as np

from focalgeo import files, rows
from focalgeo.config import flat
from focalgeo.rows import Row
from focalgeo.types import InputError, Predictions, shown

Workdir = str | os.PathLike[str]

MANIFEST = "manifest.json"
METRICS_FILE = "metrics.jsonl"
LOCK = ".lock"

_ELSEWHERE = "choose another folder"
_LIST_OF_NUMBERS = re.compile(r"\[\n\s*([^\[\]{}\"]+?)\n\s*\]")


@contextlib.contextmanager
def writing(path: Workdir) -> Iterator[None]:
    """Turn an OSError raised inside the block into one line about `path`, exit code 2."""
    try:
        yield
    except OSError as error:
        what = shown(error.strerror or error, most=200)
        raise InputError(
            f"cannot write {shown(path, most=200)}: {what}; free some space there, make it writable or {_ELSEWHERE}"
        ) from error


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[Any]:
    """The file, to be read, or one line on why it cannot be."""
    with files.reading(path, f"restore it, run the job that writes it first, or {_ELSEWHERE}"):
        files.check_regular(path)
        with open(path, "rb") as file:
            yield file


def _replace(path: Path, write: Callable[[Any], None]) -> None:
    if files.is_first():
        with writing(path):
            files.replace(path, write)


def write_text(path: Workdir, text: str) -> None:
    """Write UTF-8 text atomically: a reader, or a kill -9, sees the old file or the new one."""
    _replace(Path(path), lambda file: file.write(text.encode()))


def write_json(path: Workdir, value: Any) -> None:
    """Write one JSON value, atomically; tuples become lists, and a number that is not finite is a ValueError.

    A list of numbers stands in one line: a matrix is a row a line.
    """
    text = json.dumps(value, indent=2, allow_nan=False, default=lambda array: array.tolist())
    write_text(path, _LIST_OF_NUMBERS.sub(lambda match: f"[{' '.join(match[1].split())}]", text) + "\n")


def write_manifest(workdir: Workdir, manifest: Mapping[str, Any]) -> None:
    """Write manifest.json; job/start.py and job/calibrate.py make the manifest."""
    write_json(Path(workdir) / MANIFEST, manifest)


def read_manifest(workdir: Workdir) -> dict[str, Any]:
    """Read manifest.json, a JSON object."""
    with _reading(Path(workdir) / MANIFEST) as file:
        return msgspec.json.decode(file.read(), type=dict[str, Any])


def append_rows(workdir: Workdir, rows_: Sequence[Row]) -> None:
    """Append rows to metrics.jsonl, one JSON object a line, in a single write that has reached the disk on return.

    A field that is None is absent in the file. NumPy and JAX scalars are taken. After a kill or a full disk call
    `replace_rows` first, as the last line may be torn.

    Raises:
        InputError: the file cannot be written.
        RunError: a number is not finite; nothing is written.
    """
    path, data = Path(workdir) / METRICS_FILE, _lines_of(rows_)
    if files.is_first():
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "ab") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())


def _lines_of(rows_: Sequence[Row]) -> bytes:
    return b"".join(rows.encode(row) + b"\n" for row in rows_)


def read_rows(workdir: Workdir) -> list[Row]:
    """Read all rows of metrics.jsonl in the order written; a last line torn by a kill is left out.

    Raises:
        InputError: the file is missing, or a line elsewhere than at its end holds no row (names the line).
    """
    path = Path(workdir) / METRICS_FILE
    with _reading(path) as file:
        # what follows the last newline is torn
        lines = file.read().split(b"\n")[:-1]
    read = []
    try:
        for line in lines:
            read.append(rows.DECODER.decode(line))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        where = f"{shown(path, most=200)}, line {len(read) + 1}"
        raise InputError(f"{where} is no row: {error}; delete that line, or make the folder again") from error
    return read


def replace_rows(workdir: Workdir, rows_: Sequence[Row], *, where: Callable[[Row], bool]) -> None:
    """Drop the rows for which `where` holds, and a torn last line, and append `rows`, all in one atomic write.

    Raises:
        InputError: the file cannot be written, or a line elsewhere than at its end holds no row.
        RunError: a number is not finite; the file stays as it was.
    """
    path = Path(workdir) / METRICS_FILE
    if files.is_first():
        kept = [row for row in read_rows(workdir) if not where(row)] if path.exists() else []
        data = _lines_of([*kept, *rows_])
        _replace(path, lambda file: file.write(data))


def write_arrays(workdir: Workdir, name: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write named arrays to {name}.npz, atomically."""
    _replace(Path(workdir) / f"{name}.npz", lambda file: np.savez(file, allow_pickle=False, **arrays))


def read_arrays(workdir: Workdir, name: str) -> dict[str, np.ndarray]:
    """Read every array of {name}.npz; pickled objects are refused."""
    with _reading(Path(workdir) / f"{name}.npz") as file, np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)


def write_predictions(workdir: Workdir, split: str, logits: np.ndarray, labels: np.ndarray) -> None:
    """Write predictions/{split}.npz: logits as float32 [n, classes], labels as int32 [n]."""
    arrays = {"logits": np.asarray(logits, np.float32), "labels": np.asarray(labels, np.int32)}
    write_arrays(workdir, f"predictions/{split}", arrays)


def read_predictions(workdir: Workdir, split: str) -> Predictions:
    """Read predictions/{split}.npz."""
    arrays = read_arrays(workdir, f"predictions/{split}")
    logits, labels = (arrays.get(name, np.zeros(())) for name in ("logits", "labels"))
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        path = shown(Path(workdir) / f"predictions/{split}.npz", most=200)
        raise InputError(f"{path} does not hold logits [n, classes] and labels [n]; delete it and run the job again")
    return Predictions(logits, labels)


def check_workdir(workdir: Workdir, config: Mapping[str, Any]) -> str:
    """Say whether a run with `config` starts "fresh" in `workdir` (missing or empty) or goes on there ("resume").

    Raises:
        InputError: the folder holds something else, or a run of another config (names the first fields that differ).
    """
    path, named = Path(workdir), shown(workdir, most=200)
    if is_empty(path):
        return "fresh"
    if not (path / MANIFEST).exists():
        raise InputError(f"{named} is not a focalgeo workdir: it is not empty and has no {MANIFEST}; {_ELSEWHERE}")
    there = dict(flat(read_manifest(path).get("config", {})))
    here = dict(flat(json.loads(json.dumps(config, default=np.ndarray.tolist))))
    pairs = {name: [side.get(name, "absent") for side in (there, here)] for name in there | here}
    different = [f"{name}: {old} there, {new} here" for name, (old, new) in pairs.items() if old != new]
    if different:
        what = shown("; ".join(different), most=200)
        raise InputError(f"{named} belongs to another config ({what}); {_ELSEWHERE}, or delete this one")
    return "resume"


def is_empty(folder: Workdir) -> bool:
    """Whether a folder is missing, or holds nothing but what systems and killed writers leave: hidden files and such.

    Raises:
        InputError: it is a file, or cannot be listed, or no line can name it.
    """
    if files.UNUSABLE.search(os.fspath(folder)):
        raise InputError(f"the path {shown(folder, most=200)} holds control characters or no UTF-8: {_ELSEWHERE}")
    with writing(folder):
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            return True
    return all(name.startswith(".") or name.lower() in ("lost+found", "thumbs.db", "desktop.ini") for name in names)


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
    lock = filelock.FileLock(folder / LOCK, blocking=False)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise InputError(f"another run is writing {shown(folder, most=200)}; wait, or {_ELSEWHERE}") from error
    try:
        for half_written in filter(Path.is_file, folder.rglob(".*.tmp")):
            half_written.unlink(missing_ok=True)
        yield
    finally:
        lock.release()
