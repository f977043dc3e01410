"""Files of a folder or of a tar or zip archive: checksum, one pass in order, and the error of a corrupt file."""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from focalgeo.types import InputError

OPENERS: MappingProxyType[str, Callable] = MappingProxyType(
    {
        ".tar": open,
        ".tar.gz": gzip.open,
        ".tgz": gzip.open,
        ".tar.bz2": bz2.open,
        ".tar.xz": lzma.open,
        ".txz": lzma.open,
    }
)
CORRUPT_ARCHIVE = (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, EOFError, zlib.error, gzip.BadGzipFile)
# What readers of single files raise on content that is not what the suffix says.
CORRUPT_FILE = (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error, UnicodeDecodeError)
BUFFER_BYTES = 1 << 20


def one_line(error: Exception) -> str:
    """The error's message, or its type where it has none, on one line of at most 200 characters."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def corrupt_file(path: Path, why: object) -> InputError:
    """The error for a file that is corrupt, cut short or of another format than its suffix says."""
    text = " ".join(str(why).split())
    return InputError(f"{path} is corrupt, cut short or no {path.suffix} file ({text}): write it again")


def list_files(folder: Path) -> list[str]:
    """Sorted relative POSIX paths of all files below the folder but hidden ones; links to folders are followed.

    Raises:
        OSError: a folder that cannot be listed.
    """

    def refuse(error: OSError) -> None:
        raise error

    found = []
    for parent, _, names in os.walk(folder, onerror=refuse, followlinks=True):
        found += [Path(parent, name).relative_to(folder).as_posix() for name in names]
    return sorted(name for name in found if not is_hidden(name))


def is_hidden(name: str) -> bool:
    """Whether a part of the path begins with a dot, or is the folder that macOS adds to archives."""
    return any(part.startswith(".") or part == "__MACOSX" for part in PurePosixPath(name).parts)


def checksum(path: Path) -> str:
    """SHA-256, in hex, of an archive's bytes, or of a folder's sorted relative paths, sizes and contents.

    Raises:
        OSError: a file that cannot be read.
    """
    if not path.is_dir():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    digest = hashlib.sha256()
    for name in list_files(path):
        data = (path / name).read_bytes()
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


def read_files(path: Path, suffixes: frozenset[str]) -> Iterator[tuple[str, bytes]]:
    """(relative path, content) of every file with one of the suffixes, in the archive's order or sorted by path.

    Raises:
        InputError: a file that is no archive by its name, a corrupt one, or one that holds links.
        OSError: a file that cannot be read.
    """
    if not path.is_dir():
        yield from _read_archive(path, suffixes)
        return
    for name in list_files(path):
        if PurePosixPath(name).suffix.lower() in suffixes:
            yield name, (path / name).read_bytes()


def _read_archive(path: Path, suffixes: frozenset[str]) -> Iterator[tuple[str, bytes]]:
    ending = next((ending for ending in (*OPENERS, ".zip") if path.name.lower().endswith(ending)), None)
    if ending is None:
        choices = ", ".join((*OPENERS, ".zip"))
        raise InputError(f"{path} is neither a folder nor an archive: give a folder or one of {choices}")
    try:
        yield from _read_zip(path, suffixes) if ending == ".zip" else _read_tar(path, suffixes, OPENERS[ending])
    except CORRUPT_ARCHIVE as error:
        raise InputError(f"{path} is corrupt or cut short ({error}): fetch or pack it again") from error


def _read_tar(path: Path, suffixes: frozenset[str], opener: Callable) -> Iterator[tuple[str, bytes]]:
    # Buffered "r:" reads as far ahead as "r|" but spends a third of its time on each small member.
    with (
        opener(path, "rb") as raw,
        io.BufferedReader(raw, BUFFER_BYTES) as stream,
        tarfile.open(fileobj=stream, mode="r:") as archive,
    ):
        for member in archive:
            name = PurePosixPath(member.name).as_posix()
            archive.members = []  # else every header stays in memory
            if is_hidden(name) or PurePosixPath(name).suffix.lower() not in suffixes:
                continue
            if member.issym() or member.islnk():
                raise InputError(f"{path}: {name} is a link: pack it with tar --dereference --hard-dereference")
            if member.isreg():
                yield name, archive.extractfile(member).read()
        _check_end(stream)


def _read_zip(path: Path, suffixes: frozenset[str]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = PurePosixPath(member.filename).as_posix()
            if member.is_dir() or is_hidden(name) or PurePosixPath(name).suffix.lower() not in suffixes:
                continue
            if stat.S_ISLNK(member.external_attr >> 16):
                raise InputError(f"{path}: {name} is a link: pack it without zip's option --symlinks")
            if member.flag_bits & 1:
                raise InputError(f"{path}: {name} is encrypted: pack it without a password")
            yield name, archive.read(member)


def _check_end(stream: io.BufferedReader) -> None:
    """Reads on to the end, where a compressed stream checks itself; there must be zeros and nothing else.

    tarfile takes an unreadable header, or the end of a file cut between two members, for the end of the archive.
    """
    zeros = 0
    while block := stream.read(BUFFER_BYTES):
        if block.strip(b"\0"):
            raise tarfile.ReadError("unreadable header")
        zeros += len(block)
    if zeros == 0:
        raise tarfile.ReadError("no end mark")
