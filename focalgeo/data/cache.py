"""Cache of decoded data sets: one file each, written once and atomically, verified whenever it is read."""

import contextlib
import fcntl
import os
import stat
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from focalgeo.data.archives import Tell, one_line
from focalgeo.data.splits import RawDataset
from focalgeo.files import TEMPORARY, opened, replace
from focalgeo.types import InputError, Split, shown

# Part of every file's name: raise it when what is stored, or how images are decoded, changes.
FORMAT = 2
PATIENCE, POLL = 1.0, 0.1  # seconds of waiting for another process before it is said, and between two looks
_SPLITS = ({"train"}, {"train", "val"}, {"train", "test"}, {"train", "val", "test"})


def cache_directory(cache_dir: str | os.PathLike | None) -> Path:
    """The folder given, else $XDG_CACHE_HOME/focalgeo, else ~/.cache/focalgeo."""
    if cache_dir is not None:
        return Path(os.path.expanduser(cache_dir))
    return Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")) / "focalgeo"


def cached_dataset(
    key: str, build: Callable[[], RawDataset], *, cache_dir: str | os.PathLike | None, tell: Tell | None = None
) -> RawDataset:
    """The data set stored under `key`, or else `build()`, which is then stored; a corrupt file is built again.

    So is a link, a file of another user, and one that holds anything else than images with labels. Of several processes
    that need it at once one builds and the others wait, see `one_at_a_time`; where it is stored nobody waits.

    Args:
        key: names the content, so it holds a checksum and everything that changes the decoding.
        build: makes the data set.
        cache_dir: see `cache_directory`.
        tell: gets a line where another process is waited for.

    Raises:
        InputError: the folder cannot be written to.

    Accuracy:
        the arrays read are those built, bit for bit: tests/data/test_cache.py changes single bytes of the file.
    """
    path = cache_directory(cache_dir) / f"{key}-v{FORMAT}.npz"
    raw = _read(path)
    if raw is None:
        with one_at_a_time(path, tell):
            raw = _read(path)  # again: another process may have stored it meanwhile
            if raw is None:
                raw = build()
                _write(path, raw)
    return raw


@contextlib.contextmanager
def one_at_a_time(path: Path, tell: Tell | None = None) -> Iterator[None]:
    """Let one process of this user at a time make the file `path`, while the others wait; one that dies lets go.

    The lock is held on an empty file beside it, .NAME.lock, which stays: if it were removed, those who wait for it and
    those who come later would hold two different files. Where the file system has no locks, or the folder cannot be
    written to, nobody waits, and each process makes the whole file.

    Args:
        path: what is made; one who has waited looks for it again.
        tell: gets one line if another process is waited for longer than a second.
    """
    descriptor = _open_lock(path.with_name(f".{path.name}.lock"))
    try:
        if descriptor is not None and _wait_for_lock(descriptor, path, tell):
            _remove_half_written(path)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open_lock(path: Path) -> int | None:
    """A file of its own, which no other user can hold, never a link or a pipe; None where there can be none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def _wait_for_lock(descriptor: int, path: Path, tell: Tell | None) -> bool:
    """Hold the lock as soon as nobody else does; False where the file system has none."""
    patience, told = time.monotonic() + PATIENCE, tell is None
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # asked again and again, so that Ctrl-C is heeded
        except BlockingIOError:
            if not told and time.monotonic() > patience:
                tell(f"another process is making {shown(path, most=200)}: waiting for it")
                told = True
            time.sleep(POLL)
        except OSError:
            return False
        else:
            return True


def _remove_half_written(path: Path) -> None:
    """Remove what processes that were killed have left of this file; under its lock nobody writes it."""
    with contextlib.suppress(OSError):
        for left in path.parent.iterdir():
            found = TEMPORARY.fullmatch(left.name)
            if found and found["file"] == path.name:
                left.unlink()


def _read(path: Path) -> RawDataset | None:
    try:
        with opened(path, own=True) as file:
            _check_owner(file)
            _check_members(file)
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                parts = [name[: -len("_x")] for name in arrays.files if name.endswith("_x")]
                splits = {part: Split(arrays[f"{part}_x"], arrays[f"{part}_y"]) for part in parts}
                names, checksum = arrays["class_names"], arrays["checksum"]
        raw = RawDataset(splits, tuple(names.tolist()), str(checksum))
        return raw if _is_data(raw) else None
    except Exception:  # whatever a corrupt file raises, the answer is to decode again
        return None


def _check_owner(file: BinaryIO) -> None:
    if os.fstat(file.fileno()).st_uid not in (os.geteuid(), 0):
        raise InputError("it is not a file of this user")


def _check_members(file: BinaryIO) -> None:
    """Stored as they are and no larger than the file, by their headers; then by their checksums.

    NumPy alone would not see a header that claims fewer rows than the file holds.
    """
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise zipfile.BadZipFile("compressed")
        if sum(member.file_size for member in members) > os.fstat(file.fileno()).st_size:
            raise zipfile.BadZipFile("larger than the file")
        if archive.testzip() is not None:
            raise zipfile.BadZipFile("wrong checksum")


def _is_data(raw: RawDataset) -> bool:
    """Whether the splits are images with labels, train among them; labels are checked with every data set's."""
    return set(raw.splits) in _SPLITS and all(
        x.dtype == np.uint8 and x.ndim == 4 and y.dtype == np.int32 and y.shape == x.shape[:1]
        for x, y in raw.splits.values()
    )


def _write(path: Path, raw: RawDataset) -> None:
    arrays = {"class_names": np.array(raw.class_names), "checksum": np.array(raw.checksum)}
    for part, split in raw.splits.items():
        arrays |= {f"{part}_x": split.x, f"{part}_y": split.y}
    try:
        replace(path, lambda file: np.savez(file, **arrays))
    except OSError as error:
        raise InputError(
            f"the decoded images cannot be kept in {path.parent} ({one_line(error)}): free some space or name another "
            "folder in XDG_CACHE_HOME"
        ) from error
