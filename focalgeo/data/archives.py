"""Files of a folder or of a tar or zip archive: checksum, one pass in order, and the error of a corrupt file."""

import bz2
import gzip
import hashlib
import io
import lzma
import math
import os
import stat
import struct
import tarfile
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from focalgeo.files import UNUSABLE, check_regular, free_memory, opened
from focalgeo.types import InputError, shown

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
# What readers of single files raise on content that is not what the suffix says, or that is larger than memory: also
# UnicodeError and InputError (ValueError), RecursionError and NotImplementedError (RuntimeError), OverflowError.
CORRUPT_FILE = (
    *(ArithmeticError, EOFError, LookupError, MemoryError, OSError, RuntimeError, SyntaxError),
    *(TypeError, ValueError, lzma.LZMAError, struct.error, tarfile.TarError, zipfile.BadZipFile, zlib.error),
)
BUFFER_BYTES = 1 << 20
SECONDS = 5.0  # between two lines of progress
LARGEST_FILE = 1 << 30  # bytes of one image or text
MOST_PATHS = 100  # to one folder, through links
_ZIP_END_BYTES = 22 + 2**16  # the last record of a zip archive, with the longest comment
MOST_ZEROS = 64 << 20  # bytes at the end of a tar archive
# A compressed archive may unpack to LEAST + RATIO times its size: images hardly shrink, texts at most twentyfold.
UNPACKED_LEAST, UNPACKED_RATIO = 1 << 30, 200
_DEFLATE_RATIO = 1032  # the most bytes that one byte of a deflated member can stand for


def one_line(error: object) -> str:
    """The error's message, or its type where it has none, on one line of at most 200 characters."""
    return shown(" ".join(str(error).split()), most=200) or type(error).__name__


def corrupt_file(path: Path, why: object) -> InputError:
    """The error for a file that is corrupt, cut short or of another format than its suffix says, or beyond memory.

    An InputError, which says more, stays as it is.
    """
    if isinstance(why, InputError):
        return why
    if isinstance(why, MemoryError):
        return InputError(f"{path} declares more than memory holds: it is corrupt, or needs a larger machine")
    return InputError(f"{path} is corrupt, cut short or no {path.suffix} file ({one_line(why)}): write it again")


def check_declared(path: Path, name: str, declared: int, *, held: float = math.inf) -> None:
    """Refuse a member or an array before it is read, if its file cannot hold or memory cannot take what is declared.

    Args:
        path: The file.
        name: Of the member or array, for the message.
        declared: Bytes, as a header says.
        held: The most bytes that the file can hold of it; infinite where its compression has no bound.

    Raises:
        InputError: how much is declared, and how much there is.
    """
    if declared < 0 or declared > held:
        raise corrupt_file(path, f"{name} declares {_size(declared)} and holds at most {_size(held)}")
    free = free_memory()
    if declared > free:
        needs = f"{path}: {name} needs {_size(declared)} of memory, and {_size(free)} are free"
        raise InputError(f"{needs}: write it again if it should be smaller, or use a larger machine")


def check_zip_member(path: Path, member: zipfile.ZipInfo) -> None:
    """Refuse a member of a zip archive that is encrypted, or declares more than its bytes or memory hold.

    Raises:
        InputError: the member and what is wrong.
    """
    if member.flag_bits & 1:
        raise InputError(f"{path}: {shown(member.filename)} is encrypted: pack it without a password")
    ratios = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: _DEFLATE_RATIO}
    held = ratios.get(member.compress_type, math.inf) * min(member.compress_size, path.stat().st_size)
    check_declared(path, shown(member.filename), member.file_size, held=held)


def _size(count: float) -> str:
    return f"{count / 2**30:,.1f} GiB" if abs(count) >= 2**30 else f"{count:,.0f} bytes"


Tell = Callable[[str], None]  # gets a line of progress


def counter(tell: Tell | None, where: str) -> Callable[[int], None]:
    """A function of the number of examples read so far, which gives a line to `tell` every few seconds."""
    told = time.monotonic()

    def count(number: int) -> None:
        nonlocal told
        if tell is not None and time.monotonic() - told > SECONDS:
            tell(f"read {number:,} examples of {where}")
            told = time.monotonic()

    return count


def list_files(folder: Path) -> list[str]:
    """Sorted relative POSIX paths of all files below the folder but hidden ones; links to folders are followed.

    Raises:
        InputError: a link that leads back to a folder around it, too many to one folder, or a name of several lines.
        OSError: a folder that cannot be listed.
    """

    def refuse(error: OSError) -> None:
        raise error

    found: list[str] = []
    above, met = {os.fspath(folder): frozenset({_identity(folder)})}, Counter()
    for parent, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        around = above.pop(parent)
        folders[:] = [name for name in folders if not is_hidden(name)]
        for child in (os.path.join(parent, name) for name in folders):
            own = _identity(child)
            if own in around:
                raise InputError(f"{shown(child)} is a link that leads back to a folder around it: remove it")
            met[own] += 1
            if met[own] > MOST_PATHS:
                raise InputError(f"{shown(child)} is reached through more than {MOST_PATHS} links: remove some")
            above[child] = around | {own}
        inside = Path(parent).relative_to(folder).as_posix()
        below = "" if inside == "." else f"{inside}/"
        found += [f"{below}{name}" for name in names if not is_hidden(name)]
    for name in found:
        _check_name(name, folder)
    return sorted(found)


def _identity(folder: str | Path) -> tuple[int, int]:
    found = os.stat(folder)
    return found.st_dev, found.st_ino


def _check_name(name: str, path: Path) -> None:
    if UNUSABLE.search(name):
        raise InputError(f"{path} holds {name!a}, which is not text of one line in UTF-8: rename it")


def is_hidden(name: str) -> bool:
    """Whether a part of the path begins with a dot, or is the folder that macOS adds to archives."""
    return any(part == "__MACOSX" or (part[:1] == "." and part != ".") for part in name.split("/"))


def checksum(path: Path) -> str:
    """SHA-256, in hex, of an archive's bytes, or of a folder's sorted relative paths, sizes and contents.

    Raises:
        InputError: as `list_files`; or something that is no file, such as a pipe.
        OSError: a file that cannot be read.
    """
    if not path.is_dir():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    digest = hashlib.sha256()
    for name in list_files(path):
        data = _content(os.path.join(path, name))
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


def _content(path: str | Path) -> bytes:
    path = Path(path)
    try:
        file = opened(path)
    except OSError:
        check_regular(path)  # says so of a socket, or of a link to nothing
        raise
    with file:
        _check_size(path, "it", os.fstat(file.fileno()).st_size)
        return file.read()


def _check_size(path: Path, name: str, size: int) -> None:
    if not 0 <= size <= LARGEST_FILE:
        raise InputError(
            f"{path}: {name} has {_size(size)}, and no image or text more than {_size(LARGEST_FILE)}: remove it"
        )


def read_files(path: Path, suffixes: frozenset[str], *, others: list[str] | None = None) -> Iterator[tuple[str, bytes]]:
    """(relative path, content) of every file with one of the suffixes, in the archive's order or sorted by path.

    The paths of all files with other suffixes but hidden ones are appended to `others`.

    Nothing is unpacked to the disk, so a name may be absolute; one that leads out of the archive is refused.

    Raises:
        InputError: a file that is no archive by its name, a corrupt one, one that holds links or unpacks to
            `UNPACKED_RATIO` times its size; or as `checksum`.
        OSError: a file that cannot be read.
    """
    others = [] if others is None else others
    if not path.is_dir():
        yield from _read_archive(path, suffixes, others)
        return
    for name in list_files(path):
        if PurePosixPath(name).suffix.lower() in suffixes:
            yield name, _content(os.path.join(path, name))
        else:
            others.append(name)


def _read_archive(path: Path, suffixes: frozenset[str], others: list[str]) -> Iterator[tuple[str, bytes]]:
    ending = next((ending for ending in (*OPENERS, ".zip") if path.name.lower().endswith(ending)), None)
    if ending is None:
        choices = ", ".join((*OPENERS, ".zip"))
        raise InputError(f"{path} is neither a folder nor an archive: give a folder or one of {choices}")
    try:
        read = _read_zip if ending == ".zip" else partial(_read_tar, opener=OPENERS[ending])
        yield from read(path, suffixes, others)
    except CORRUPT_FILE as error:
        of_the_system = isinstance(error, OSError) and error.errno is not None
        if isinstance(error, InputError) or of_the_system:
            raise
        raise InputError(f"{path} is corrupt or cut short ({one_line(error)}): fetch or pack it again") from error


class _Stream(io.BufferedReader):
    """A buffered stream that gives at most LARGEST_FILE bytes at once: tarfile asks for what headers declare."""

    def read(self, size: int = -1) -> bytes:
        if size > LARGEST_FILE:
            raise tarfile.ReadError(f"a header declares {_size(size)}")
        return super().read(size)


def _read_tar(
    path: Path, suffixes: frozenset[str], others: list[str], *, opener: Callable
) -> Iterator[tuple[str, bytes]]:
    # Buffered "r:" reads as far ahead as "r|" but spends a third of its time on each small member.
    packed = path.stat().st_size
    with (
        opener(path, "rb") as raw,
        _Stream(raw, BUFFER_BYTES) as stream,
        tarfile.open(fileobj=stream, mode="r:") as archive,
    ):
        for member in archive:
            name = _member_name(member.name, path)
            archive.members = []  # else every header stays in memory
            _check_unpacked(path, archive.offset, packed)  # up to the next header, before what is between is read
            if is_hidden(name) or member.isdir():
                continue
            if PurePosixPath(name).suffix.lower() not in suffixes:
                others.append(name)
                continue
            if member.issym() or member.islnk():
                raise InputError(f"{path}: {name} is a link: pack it with tar --dereference --hard-dereference")
            if not member.isreg():
                raise InputError(f"{path}: {name} is no regular file: pack it again without it")
            _check_size(path, name, member.size)
            yield name, archive.extractfile(member).read()
        _check_end(stream)


def _read_zip(path: Path, suffixes: frozenset[str], others: list[str]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        wanted = []
        for member in archive.infolist():
            name = _member_name(member.filename, path)
            is_file = not (member.is_dir() or is_hidden(name))
            if is_file and PurePosixPath(name).suffix.lower() in suffixes:
                wanted.append((name, member))
                continue
            others += [name] if is_file else []
            if not member.flag_bits & 1:
                archive.open(member).close()  # has it the same name there? Else a corrupt one is passed over
        _check_count(path, len(archive.infolist()))
        _check_unpacked(path, sum(member.file_size for _, member in wanted), path.stat().st_size)
        for name, member in wanted:
            if stat.S_ISLNK(member.external_attr >> 16):
                raise InputError(f"{path}: {name} is a link: pack it without zip's option --symlinks")
            check_zip_member(path, member)
            _check_size(path, name, member.file_size)
            yield name, archive.read(member)


def _check_count(path: Path, count: int) -> None:
    """Compares the members found with their number at the end of a zip archive, which zipfile does not.

    A corrupt length would hide the members behind it.
    """
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _ZIP_END_BYTES))
        _, _, end = file.read().rpartition(b"PK\5\6")
    (declared,) = struct.unpack("<H", end[6:8])
    if declared not in (count % 2**16, 2**16 - 1):  # the latter: the number stands elsewhere
        raise zipfile.BadZipFile(f"{count} of {declared} members")


def _member_name(name: str, path: Path) -> str:
    _check_name(name, path)
    if ".." in PurePosixPath(name).parts:
        raise InputError(f"{path}: {name} leads out of the archive: pack it again")
    return PurePosixPath(name).as_posix()


def _check_unpacked(path: Path, unpacked: int, packed: int) -> None:
    if unpacked > UNPACKED_LEAST + UNPACKED_RATIO * packed:
        raise InputError(
            f"{path} unpacks to more than {UNPACKED_RATIO} times its own size, {_size(unpacked)}, as no images or texts"
            " do: fetch it again, or give it unpacked"
        )


def _check_end(stream: io.BufferedReader) -> None:
    """Reads on to the end, where a compressed stream checks itself; there must be zeros and nothing else.

    tarfile takes an unreadable header, or the end of a file cut between two members, for the end of the archive.
    """
    zeros = 0
    while block := stream.read(BUFFER_BYTES):
        if block.strip(b"\0"):
            raise tarfile.ReadError("unreadable header")
        zeros += len(block)
        if zeros > MOST_ZEROS:
            raise tarfile.ReadError(f"more than {_size(MOST_ZEROS)} of zeros at its end")
    if zeros == 0:
        raise tarfile.ReadError("no end mark")
