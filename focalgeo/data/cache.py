"""Decoded data sets on disk: one file each, written whole or not at all, verified whenever it is read."""

import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from focalgeo.data.checks import one_line
from focalgeo.data.splits import Source
from focalgeo.types import InputError, Split

# Part of every file's name: raise it when what is stored, or how images are decoded, changes.
FORMAT = 1


def cache_directory(cache_dir: str | os.PathLike | None) -> Path:
    """The folder given, else $XDG_CACHE_HOME/focalgeo, else ~/.cache/focalgeo."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "focalgeo"


def cached_source(key: str, build: Callable[[], Source], *, cache_dir: str | os.PathLike | None) -> Source:
    """The source kept under `key`, or `build()`, which is then kept; a damaged file is built again, never trusted.

    Args:
        key: names the content, so it holds a checksum and everything that changes the decoding.
        build: makes the source.
        cache_dir: see `cache_directory`.

    Raises:
        InputError: the folder cannot be written to.

    Accuracy:
        the arrays read are those built, bit for bit: tests/data/test_cache.py changes single bytes of the file.
    """
    path = cache_directory(cache_dir) / f"{key}-v{FORMAT}.npz"
    source = _read(path)
    if source is None:
        source = build()
        _write(path, source)
    return source


def _read(path: Path) -> Source | None:
    try:
        # testzip first: NumPy alone would not see a header that claims fewer rows than the file holds.
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                return None
        with np.load(path, allow_pickle=False) as arrays:
            parts = [name[: -len("_x")] for name in arrays.files if name.endswith("_x")]
            splits = {part: Split(arrays[f"{part}_x"], arrays[f"{part}_y"]) for part in parts}
            return Source(splits, tuple(arrays["class_names"].tolist()), str(arrays["checksum"]))
    except Exception:  # whatever a damaged file raises, the answer is to decode again
        return None


def _write(path: Path, source: Source) -> None:
    arrays = {"class_names": np.array(source.class_names), "checksum": np.array(source.checksum)}
    for part, split in source.splits.items():
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
