"""Cache of decoded data sets: one file each, written atomically, verified whenever it is read."""

import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from focalgeo.data.archives import one_line
from focalgeo.data.splits import RawDataset
from focalgeo.types import InputError, Split

# Part of every file's name: raise it when what is stored, or how images are decoded, changes.
FORMAT = 1


def cache_directory(cache_dir: str | os.PathLike | None) -> Path:
    """The folder given, else $XDG_CACHE_HOME/focalgeo, else ~/.cache/focalgeo."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "focalgeo"


def cached_dataset(key: str, build: Callable[[], RawDataset], *, cache_dir: str | os.PathLike | None) -> RawDataset:
    """The data set stored under `key`, or else `build()`, which is then stored; a corrupt file is built again.

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
        # testzip first: NumPy alone would not see a header that claims fewer rows than the file holds.
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                return None
        with np.load(path, allow_pickle=False) as arrays:
            parts = [name[: -len("_x")] for name in arrays.files if name.endswith("_x")]
            splits = {part: Split(arrays[f"{part}_x"], arrays[f"{part}_y"]) for part in parts}
            return RawDataset(splits, tuple(arrays["class_names"].tolist()), str(arrays["checksum"]))
    except Exception:  # whatever a corrupt file raises, the answer is to decode again
        return None


def _write(path: Path, raw: RawDataset) -> None:
    arrays = {"class_names": np.array(raw.class_names), "checksum": np.array(raw.checksum)}
    for part, split in raw.splits.items():
        arrays |= {f"{part}_x": split.x, f"{part}_y": split.y}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.stem, suffix=".tmp", delete=False) as file:
            try:
                np.savez(file, **arrays)
                file.close()
                os.replace(file.name, path)
            finally:
                Path(file.name).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"the decoded images cannot be kept in {path.parent} ({one_line(error)}): free some space or name another "
            "folder in XDG_CACHE_HOME"
        ) from error
