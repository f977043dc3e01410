"""Where data sets lie: a folder, or an archive that is unpacked once into the cache; and the images decoded from them.

The cache is `platformdirs`' folder of the user, $XDG_CACHE_HOME/focalgeo or ~/.cache/focalgeo on Linux.
"""

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import numpy as np
import platformdirs

from focalgeo import files
from focalgeo.data.splits import RawDataset
from focalgeo.types import InputError, Split, shown

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".txz", ".zip")
# Of the arrays in the cache: raise it when what is stored, or how images are decoded, changes.
FORMAT = 3
LARGEST_FILE = 1 << 30  # bytes of one image or text
# An archive may unpack to LEAST + RATIO times its size: images hardly shrink, texts at most twentyfold.
UNPACKED_LEAST, UNPACKED_RATIO = 1 << 30, 200


class Source(NamedTuple):
    """A folder or an archive."""

    where: str  # as messages call it: kind:location
    path: Path
    checksum: str  # see `checksum`


def find(kind: str, location: str) -> Source:
    """The folder or archive at a location; ~ is the home folder.

    Raises:
        InputError: nothing is there, or it cannot be read.
    """
    where, path = shown(f"{kind}:{location}", most=200), Path(os.path.expanduser(location))
    if not location or not (os.path.isdir(path) or os.path.isfile(path)):
        raise InputError(f"{where}: there is no such folder or archive: check the path, relative to {Path.cwd()}")
    with files.reading(where):
        return Source(where, path, checksum(path))


def checksum(path: Path) -> str:
    """SHA-256, in hex, of a file's bytes, or of a folder's sorted relative paths, sizes and contents."""
    if not path.is_dir():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    digest = hashlib.sha256()
    for name in list_files(path):
        content = (path / name).read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def list_files(folder: Path) -> list[str]:
    """Sorted relative POSIX paths of all files below the folder but hidden ones; links are followed.

    Raises:
        InputError: a folder that is reached twice through links, something that is no file, such as a pipe, or one of
            more than LARGEST_FILE bytes.
        OSError: a folder that cannot be listed.
    """

    def refuse(error):
        raise error

    names, met = [], set()
    for parent, folders, inside in os.walk(folder, onerror=refuse, followlinks=True):
        folders[:] = [name for name in folders if not is_hidden(name)]
        if os.path.realpath(parent) in met:
            raise InputError(f"{parent} is reached twice through links: remove one")
        met.add(os.path.realpath(parent))
        names += [Path(parent, name) for name in inside if not is_hidden(name)]
    for path in names:
        if not path.is_file() or path.stat().st_size > LARGEST_FILE:
            raise InputError(f"{path} is no file of at most {LARGEST_FILE >> 30} GiB: remove it")
    return sorted(path.relative_to(folder).as_posix() for path in names)


def is_hidden(name: str) -> bool:
    """Whether a name begins with a dot, or is that of the folder that macOS adds to archives."""
    return name.startswith(".") or name == "__MACOSX"


def unpacked(source: Source) -> Path:
    """The folder itself, or the one in the cache that an archive has been unpacked to, by its checksum.

    Raises:
        InputError: no archive by its name, a corrupt one, one with links or names that lead out of it, or one that
            declares far more than its own size.
    """
    if source.path.is_dir():
        return source.path
    if not source.path.name.lower().endswith(ARCHIVES):
        choices = ", ".join(ARCHIVES)
        raise InputError(f"{source.where} is neither a folder nor an archive: give a folder or one of {choices}")
    return _made(f"unpacked-{source.checksum}", partial(_unpack, source.path), source.where)


def check_unpacked(path: Path, size: float) -> None:
    """Refuse a file that unpacks to so many bytes, far more than its own, before they fill the memory or the disk."""
    if size > UNPACKED_LEAST + UNPACKED_RATIO * path.stat().st_size:
        raise ValueError(f"it unpacks to more than {UNPACKED_RATIO} times its own size")


def content_of(path: Path) -> bytes:
    """The bytes of a file, unpacked where its name ends in .gz."""
    if path.suffix.lower() != ".gz":
        return path.read_bytes()
    with gzip.open(path) as file:
        content = file.read(UNPACKED_LEAST + UNPACKED_RATIO * path.stat().st_size + 1)
    check_unpacked(path, len(content))
    return content


def open_npz(path: Path) -> Any:
    """The arrays of an .npz file by name, each read when it is asked for; nothing is left to be closed."""
    arrays = np.lib.npyio.NpzFile(io.BytesIO(path.read_bytes()))
    check_unpacked(path, sum(member.file_size for member in arrays.zip.infolist()))
    return arrays


def _unpack(path, folder):
    total, is_zip = 0, path.suffix.lower() == ".zip"
    with zipfile.ZipFile(path) if is_zip else tarfile.open(path) as archive:
        for member in archive.infolist() if is_zip else archive:
            size = member.file_size if is_zip else member.size
            total += size if size >= 0 else np.inf
            check_unpacked(path, total)
            if not is_zip and not (member.isfile() or member.isdir()):
                raise ValueError(f"{member.name} is a link or a device, not a file")
            try:  # neither writes outside of the folder
                archive.extract(member, folder, **({} if is_zip else {"filter": "data"}))
            except tarfile.FilterError as error:  # it names two long paths before it says what is wrong
                raise ValueError(f"{member.name} is outside the destination") from error
        if not is_zip:
            # tarfile takes an unreadable header, or the end of a file that is cut, for the end of the archive.
            archive.fileobj.seek(archive.offset)
            rest = archive.fileobj.read(1 << 20)
            if not rest or any(rest):
                raise ValueError("it is cut short, or has an unreadable header")


def decoded(source: Source, image_size: int | None, decode: Callable) -> RawDataset:
    """Images with labels, decoded from a source once, then read from the cache.

    Args:
        source: its checksum and its kind name the content.
        image_size: nothing else changes what is decoded.
        decode: () -> splits by name, class names.
    """

    def write(path):
        splits, class_names = decode()
        arrays = {f"{part}_{axis}": array for part, split in splits.items() for axis, array in split._asdict().items()}
        np.savez(path, class_names=class_names, **arrays)

    kind, _, _ = source.where.partition(":")
    path = _made(f"{kind}-{image_size}-{source.checksum}-v{FORMAT}.npz", write, source.where)
    with files.reading(path, "remove it, and it is made again"), np.load(path) as arrays:
        parts = [name.removesuffix("_x") for name in arrays if name.endswith("_x")]
        splits = {part: Split(arrays[f"{part}_x"], arrays[f"{part}_y"]) for part in parts}
        return RawDataset(splits, tuple(arrays["class_names"].tolist()), source.checksum)


def _made(name, make, where):
    """A file or folder of the cache, made at another path and then moved; of several processes one makes it."""
    path = platformdirs.user_cache_path("focalgeo") / name
    if path.exists():
        return path
    temporary = path.with_name(f".{name}")
    with files.reading(
        where, "write it again if it is damaged, else name another folder for the cache in XDG_CACHE_HOME"
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(path.with_name(f".{name}.lock")):
            if not path.exists():
                temporary.mkdir(exist_ok=True)  # a process that was killed may have left it
                try:
                    make(temporary / name)
                    os.replace(temporary / name, path)
                finally:
                    shutil.rmtree(temporary)
    return path
