"""Cache of decoded data sets: one file each, written atomically, verified whenever it is read."""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from focalgeo.data.archives import one_line
from focalgeo.data.splits import RawDataset
from focalgeo.files import opened, replace
from focalgeo.types import InputError, Split

# Part of every file's name: raise it when what is stored, or how images are decoded, changes.
FORMAT = 2
_SPLITS = ({"train"}, {"train", "val"}, {"train", "test"}, {"train", "val", "test"})


def cache_directory(cache_dir: str | os.PathLike | None) -> Path:
    """The folder given, else $XDG_CACHE_HOME/focalgeo, else ~/.cache/focalgeo."""
    if cache_dir is not None:
        return Path(os.path.expanduser(cache_dir))
    return Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")) / "focalgeo"


def cached_dataset(key: str, build: Callable[[], RawDataset], *, cache_dir: str | os.PathLike | None) -> RawDataset:
    """The data set stored under `key`, or else `build()`, which is then stored; a corrupt file is built again.

    So is a link, a file of another user, and one that holds anything else than images with labels.

    Args:
        key: names the content, so it holds a checksum and everything that changes the decoding.
        build: makes the data set.
        cache_dir: see `cache_directory`.

    Raises:
        InputError: the folder cannot be written to.

    Accuracy:
        the arrays read are those built, bit for bit: tests/data/test_cache.py changes single bytes of the file.
    """
    path = cache_directory(cache_dir) / f"{key}-v{FORMAT}.npz"
    raw = _read(path)
    if raw is None:
        raw = build()
        _write(path, raw)
    return raw


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
