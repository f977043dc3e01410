"""The workdir: manifest.json, rows in metrics.jsonl, predictions, arrays. A file is complete, or it is not there."""

import contextlib
import errno
import fcntl
import json
import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from focalgeo.rows import Row, from_json, to_json
from focalgeo.types import InputError, Predictions, RunError

Workdir = str | os.PathLike[str]

MANIFEST = "manifest.json"
METRICS_FILE = "metrics.jsonl"
LOCK = ".lock"

_ADVICE = {
    errno.ENOSPC: "free some space or choose another --workdir",
    errno.EDQUOT: "free some space or choose another --workdir",
    errno.EROFS: "make it writable or choose another --workdir",
    errno.EACCES: "make it writable or choose another --workdir",
    errno.EPERM: "make it writable or choose another --workdir",
    errno.ENOTDIR: "a file stands where a folder should be: move it or choose another --workdir",
    errno.EEXIST: "a file stands where a folder should be: move it or choose another --workdir",
    errno.EISDIR: "a folder stands where a file should be: move it or choose another --workdir",
}


@contextlib.contextmanager
def writing(path: Workdir) -> Iterator[None]:
    """Turn an OSError raised inside the block into one line about `path`.

    Raises:
        InputError: what failed, at which path, and how to correct it.
    """
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno, "choose another --workdir")
        raise InputError(f"cannot write {path}: {error.strerror or error}; {advice}") from error


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    corruption = (ValueError, KeyError, EOFError, zipfile.BadZipFile)
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; run the job that writes it first") from error
    except corruption as error:
        raise InputError(f"{path} is corrupt; restore it or choose another --workdir") from error


def _replace(path: Path, write: Callable[[Any], None]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def _plain(value: Any) -> Any:
    return value.tolist()  # NumPy and JAX scalars and arrays; anything else is a mistake and raises


def write_text(path: Workdir, text: str) -> None:
    """Write UTF-8 text atomically: a reader, or a kill -9, sees the old file or the new one.

    Raises:
        InputError: the file cannot be written.
    """
    _replace(Path(path), lambda file: file.write(text.encode()))


def write_json(path: Workdir, value: Any) -> None:
    """Write one JSON value, atomically; tuples become lists, and a number that is not finite is a ValueError."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False, default=_plain) + "\n")


def read_json(path: Workdir) -> Any:
    """Read one JSON value.

    Raises:
        InputError: it is missing or corrupt.
    """
    with _reading(Path(path)):
        return json.loads(Path(path).read_bytes())


def write_manifest(workdir: Workdir, manifest: Mapping[str, Any]) -> None:
    """Write manifest.json; job/provenance.py makes the manifest."""
    write_json(Path(workdir) / MANIFEST, manifest)


def read_manifest(workdir: Workdir) -> dict[str, Any]:
    """Read manifest.json.

    Raises:
        InputError: it is missing, or it is not a JSON object.
    """
    path = Path(workdir) / MANIFEST
    manifest = read_json(path)
    if not isinstance(manifest, dict):
        raise InputError(f"{path} is corrupt; restore it or choose another --workdir")
    return manifest


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
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            written = os.write(descriptor, data)
            if written < len(data):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if data:
                _sync(descriptor)
        finally:
            os.close(descriptor)


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a pipe or a device cannot be synced, and need not be
            raise


def _lines(path: Path) -> list[tuple[bytes, Row]]:
    with _reading(path):
        data = path.read_bytes()
    complete = data[: data.rfind(b"\n") + 1]  # what follows the last newline is a row torn by a kill
    return [(line, _decode(path, number, line)) for number, line in enumerate(complete.splitlines(keepends=True), 1)]


def _decode(path: Path, number: int, line: bytes) -> Row:
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise InputError(f"{path} is corrupt at line {number}; delete that line")
    try:
        return from_json(fields)
    except InputError as error:
        raise InputError(f"{path}, line {number}: {error}") from error


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
    kept = [line for line, row in _lines(path) if not where(row)] if path.exists() else []
    data = b"".join([*kept, *(_encode(row) for row in rows)])
    _replace(path, lambda file: file.write(data))


def write_arrays(workdir: Workdir, name: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write named arrays to {name}.npz, atomically."""
    _replace(Path(workdir) / f"{name}.npz", lambda file: np.savez(file, allow_pickle=False, **arrays))


def read_arrays(workdir: Workdir, name: str) -> dict[str, np.ndarray]:
    """Read every array of {name}.npz; pickled objects are refused.

    Raises:
        InputError: the file is missing or corrupt.
    """
    path = Path(workdir) / f"{name}.npz"
    with _reading(path), open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
        return dict(archive)


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
    if logits is None or labels is None or logits.ndim != 2 or labels.shape != logits.shape[:1]:
        path = Path(workdir) / f"predictions/{split}.npz"
        raise InputError(f"{path} does not hold logits [n, classes] and labels [n]; delete it and run the job again")
    return Predictions(logits, labels, np.ones(labels.shape, bool))


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict) or not tree:
        return {prefix: tree}
    return {
        name: leaf for key, value in tree.items() for name, leaf in _flat(value, f"{prefix}.{key}".strip(".")).items()
    }


def _differences(there: Any, here: Any) -> list[str]:
    left, right = _flat(there), _flat(here)
    names = [*left, *(name for name in right if name not in left)]
    different = [name for name in names if left.get(name, _ABSENT) != right.get(name, _ABSENT)]
    sides = ((name, _short(left.get(name, "absent")), _short(right.get(name, "absent"))) for name in different)
    return [f"{name}: {there} there, {here} here" for name, there, here in sides]


def _short(value: Any) -> str:
    """A value as text of 24 characters at most; a checksum or a long list says no more in full."""
    text = str(value)
    return text if len(text) <= 24 else f"{text[:21]}..."


_ABSENT = object()
_OLDER = "rounds.json"  # a file of the first version's runs


def check_workdir(workdir: Workdir, config: Mapping[str, Any], *, but: str = "") -> str:
    """Say whether a run with `config` starts "fresh" in `workdir` (missing or empty) or goes on there ("resume").

    `but` names a part of the config that may differ.

    Raises:
        InputError: the folder holds something else, or a run of another config (names the first fields that differ).
    """
    path, mend = Path(workdir), "choose another --workdir, or delete this one"
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file, not a folder; choose another --workdir")
    names = {child.name for child in path.iterdir()} if path.exists() else set()
    if names <= {f".{MANIFEST}.tmp", LOCK}:  # all that a kill during the very first write leaves behind
        return "fresh"
    if MANIFEST not in names:
        raise InputError(f"{path} is not a focalgeo workdir: it is not empty and has no {MANIFEST}; {mend}")
    if _OLDER in names:
        raise InputError(f"{path} was written by an older focalgeo, whose runs this one does not go on with; {mend}")
    here = json.loads(json.dumps(config, default=_plain))
    there = read_manifest(path).get("config")
    differences = _differences(*({k: v for k, v in each.items() if k != but} for each in (there or {}, here)))
    if differences:
        more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise InputError(f"{path} belongs to another config ({'; '.join(differences[:3])}{more}); {mend}")
    return "resume"


@contextlib.contextmanager
def locked(workdir: Workdir) -> Iterator[None]:
    """Hold the workdir for this process, so that no second run writes there; a process that dies lets go of it.

    Raises:
        InputError: another process holds it.
    """
    path = Path(workdir) / LOCK
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "w")  # noqa: SIM115 - it stays open as long as the lock is held
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"another run is writing {workdir}; wait for it, or choose another --workdir") from error
        yield


@contextlib.contextmanager
def tensorboard_writer(workdir: Workdir, *, step: int = 0) -> Iterator[Callable[..., None]]:
    """Open TensorBoard event files; yields write(row, member=""), which writes a row with a step, unless it is a bin's.

    `member` is the name of a sweep's member, under which TensorBoard groups its rows. `step` is where a resumed run
    goes on: TensorBoard hides what an earlier run wrote from that step on. Nothing is written without tensorboardX.
    """
    try:
        from tensorboardX import SummaryWriter  # optional, and slow to import
    except ImportError:
        yield lambda row, member="": None
        return
    with writing(Path(workdir) / "tensorboard"):
        writer = SummaryWriter(str(Path(workdir) / "tensorboard"), purge_step=step or None)

    def write(row: Row, member: str = "") -> None:
        if row.tags.step is not None and not hasattr(row, "bin"):
            fields = ("split", "name", "outcome", "method", "criterion", "loss")
            path = [member, *(getattr(row, field, None) for field in fields)]
            writer.add_scalar("/".join(text for text in path if text), float(row.value), row.tags.step)

    with contextlib.closing(writer):
        yield write
