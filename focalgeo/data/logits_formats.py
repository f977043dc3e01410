"""Named arrays in .npz, .npy, .csv, .safetensors and PyTorch files; nothing in a file is ever executed."""

import codecs
import contextlib
import csv
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, NamedTuple

import numpy as np
from ml_dtypes import bfloat16  # makes the type known to NumPy too, which safetensors asks for it
from safetensors import SafetensorError, safe_open

from focalgeo.data.archives import CORRUPT_FILE, check_declared, check_zip_member, corrupt_file
from focalgeo.files import check_regular
from focalgeo.types import InputError, shown

Arrays = Mapping[str, Callable[[], np.ndarray]]  # name -> a function that reads the array

_COPIES = 3  # arrays of a file's size that reading and checking it take, at the most
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_OF_NUMBERS = b"0123456789eE+-., \t\r\n"  # of these float() and NumPy take numbers and nothing else
_NUMBERED = re.compile(r"(.+)_[0-9]+")


def open_arrays(path: Path) -> Arrays:
    """The arrays of a file by name, each read when its function is called; the suffix names the format.

    .npz and .safetensors: their own names. .npy: one array named "". .csv: a header; columns `name_0`, `name_1`, ...
    are one array `name` [rows, columns], any other column is an array of text. .pt and .pth: a dict of tensors, read by
    torch with weights_only.

    Raises:
        InputError: another suffix, what is no regular file, a file that is missing, empty, corrupt or cut short, that
        declares more than it holds or than memory does, or pickled objects.
    """
    check_regular(path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path} is of no known format: give one of {', '.join(FORMATS)}")
    try:
        size = path.stat().st_size
        if size == 0:
            raise InputError(f"{path} is empty: write it again")
        check_declared(path, "the file", size)
        return FORMATS[path.suffix.lower()](path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; check the path") from error


def _open_npz(path: Path) -> Arrays:
    _check_start(path, b"PK")
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
    except CORRUPT_FILE as error:
        raise corrupt_file(path, error) from error
    found: dict[str, Callable[[], np.ndarray]] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name in found:
            raise InputError(f"{path} holds {shown(name)} twice: write it again with one array of each name")
        found[name] = partial(_load_member, path, member)
    return found


def _open_npy(path: Path) -> Arrays:
    _check_start(path, b"\x93NUMPY")
    return {"": partial(_load, path)}


def _check_start(path: Path, start: bytes) -> None:
    """Refuses what begins as a pickle does, or otherwise than the format."""
    with path.open("rb") as file:
        found = file.read(len(start))
    if found[:1] == b"\x80":
        raise _pickled(path)
    if found != start:
        raise corrupt_file(path, "it does not begin as one")


def _pickled(path: Path) -> InputError:
    return InputError(f"{path} holds pickled objects, which could run code: save plain numbers with np.savez")


def _load(path: Path) -> np.ndarray:
    try:
        with path.open("rb") as file:
            _check_header(path, "the array", file, path.stat().st_size)
            file.seek(0)
            return np.lib.format.read_array(file, allow_pickle=False)
    except CORRUPT_FILE as error:
        raise corrupt_file(path, error) from error


def _load_member(path: Path, member: zipfile.ZipInfo) -> np.ndarray:
    check_zip_member(path, member)
    try:
        with zipfile.ZipFile(path) as archive:
            with archive.open(member) as file:
                _check_header(path, shown(member.filename), file, member.file_size)
            with archive.open(member) as file:
                found = np.lib.format.read_array(file, allow_pickle=False)
                file.read()  # to the end, where the checksum is compared
                return found
    except CORRUPT_FILE as error:
        raise corrupt_file(path, error) from error


def _check_header(path: Path, name: str, file: BinaryIO, size: int) -> None:
    """Refuses an array of objects, and a header whose shape and type are not what `size` bytes hold, to the byte."""
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if dtype.hasobject:
        raise _pickled(path)
    declared = dtype.itemsize
    for length in shape:
        declared *= max(length, -1)
    held = size - file.tell()
    if min(shape, default=0) < 0 or declared != held:
        raise corrupt_file(path, f"{name} declares shape {shown(shape)} of {dtype.str}, and {held:,} bytes follow")
    check_declared(path, name, _COPIES * declared)


def _open_safetensors(path: Path) -> Arrays:
    with _safetensors(path) as file:
        return {name: partial(_load_safetensor, path, name) for name in file.keys()}  # noqa: SIM118 (no mapping)


def _load_safetensor(path: Path, name: str) -> np.ndarray:
    with _safetensors(path) as file:
        values = file.get_tensor(name)
    return values.astype(np.float32) if values.dtype == bfloat16 else values


@contextlib.contextmanager
def _safetensors(path: Path) -> Iterator[safe_open]:
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, *CORRUPT_FILE, AttributeError) as error:  # AttributeError: a type that NumPy has not
        raise corrupt_file(path, error) from error


class _Table(NamedTuple):
    """A csv file: its header, and its other rows that are not blank, each with the number of its line, from 1."""

    path: Path
    header: list[str]
    lines: list[str]
    numbers: list[int]
    plain: bool  # whether the lines hold nothing but characters of numbers


def _open_csv(path: Path) -> Arrays:
    """Columns `name_0`, `name_1`, ... are one float array `name` [rows, columns], any other column an array of text.

    A cell in quotes may hold line breaks, unless what the quotes embrace looks like rows; every row has as many cells
    as the header.

    Raises:
        InputError: no UTF-8, no header, columns not separated by commas, a row of another length; when an array is
        read, columns twice or out of order, a cell that is no number, by its line and column.
    """
    table = _read_table(path)
    _check_table(table)
    columns: dict[str, list[int]] = {}
    for index, name in enumerate(table.header):
        numbered = _NUMBERED.fullmatch(name)
        columns.setdefault(numbered[1] if numbered else name, []).append(index)
    return {stem: partial(_csv_array, table, stem, indices) for stem, indices in columns.items()}


def _read_table(path: Path) -> _Table:
    check_declared(path, "the text", _COPIES * path.stat().st_size)
    try:
        data = path.read_bytes()
        why = next((why for start, why in _PACKED if data.startswith(start)), None)
        if why or b"\0" in data:
            raise corrupt_file(path, why or "it holds zero bytes: UTF-16 should be UTF-8")
        text = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
        found = [(number, row) for number, row in _rows(text.split("\n"), path) if row and not row.isspace()]
    except (UnicodeDecodeError, MemoryError) as error:
        raise corrupt_file(path, error) from error
    number, first = found[0] if found else (1, "")
    header = [name.strip(" \t") for name in _cells(first, path, number)]
    rest = data.translate(None, _OF_NUMBERS).removeprefix(codecs.BOM_UTF8)
    plain = rest == first.encode().translate(None, _OF_NUMBERS)
    return _Table(path, header, [line for _, line in found[1:]], [number for number, _ in found[1:]], plain)


_PACKED = ((b"\x1f\x8b", "it is packed by gzip: unpack it"), (b"PK\3\4", "it is a zip archive or a workbook"))


def _rows(lines: list[str], path: Path) -> Iterator[tuple[int, str]]:
    """Each row with the number of its first line; a cell in quotes may hold line breaks.

    Lines that would each be a row, were it not for the quotes, are rows with a stray quote.
    """
    at = 0
    while at < len(lines):
        first, count = lines[at], 1
        if first.count('"') % 2:
            reader = _reader(f"{lines[below]}\n" for below in range(at, len(lines)))
            with _quotes(path, at + 1):
                next(reader)
            count = reader.line_num
        row = lines[at : at + count]
        if count > 1 and {line.count(",") for line in row} == {first.count(",")}:
            raise InputError(f"{path}, line {at + 1} {_OPEN}")
        yield at + 1, "\n".join(row)
        at += count


def _check_table(table: _Table) -> None:
    """Refuses a header that is none, and rows that are longer or shorter than it."""
    path, header = table.path, table.header
    for mark, name in ((";", "semicolons"), ("\t", "tabs")) if len(header) == 1 else ():
        if mark in header[0]:
            raise InputError(f"{path}: columns are separated by {name}: write it with commas")
    above = header[0].startswith(("# ", "sep=")) or (len(header) == 1 and table.lines and "," in table.lines[0])
    if above or all(_NUMBER.fullmatch(name) for name in header):
        what = f"{path} has no header" if not above else f"{path}: its first line is {header[0][:60]!r} and no header"
        raise InputError(f"{what}: begin it with a line such as labels,logits_0,logits_1")
    for number, line in zip(table.numbers, table.lines, strict=True):
        count = len(_cells(line, path, number)) if '"' in line else line.count(",") + 1
        if count != len(header):
            what = f"{path}, line {number} has {count} cells, the header {len(header)}"
            raise InputError(f"{what}: {'complete or remove it' if count < len(header) else _LONGER}")


_LONGER = "write numbers with points and no other commas, or quote the cell that holds one"


def _cells(line: str, path: Path, number: int, last: int = -1) -> list[str]:
    """The cells of a line, at least those up to the position `last`; -1 for all."""
    if '"' not in line:
        return line.split(",", last + 1) if last >= 0 else line.split(",")
    with _quotes(path, number):
        return next(_reader([line]))


def _reader(lines: Iterable[str]) -> Iterator[list[str]]:
    return csv.reader(lines, strict=True, skipinitialspace=True)


_OPEN = "has a quote that is not closed: close or remove it"


@contextlib.contextmanager
def _quotes(path: Path, number: int) -> Iterator[None]:
    """Turns what csv says of the quotes in a row into one line."""
    try:
        yield
    except csv.Error as error:
        behind = "has text behind a cell in quotes: write a quote inside a cell twice"
        raise InputError(f"{path}, line {number} {behind if 'expected after' in str(error) else _OPEN}") from error


def _csv_array(table: _Table, stem: str, columns: list[int]) -> np.ndarray:
    names, last = [table.header[column] for column in columns], columns[-1]
    if names == [stem]:
        rows = (_cells(line, table.path, number, last) for number, line in zip(table.numbers, table.lines, strict=True))
        return np.array([cells[last].strip(" \t") for cells in rows], str)
    if names != [f"{stem}_{k}" for k in range(len(names))]:
        what = f"{table.path}: columns of {stem!r} must be {stem}_0, {stem}_1, ... once each and in order"
        raise InputError(f"{what}, and are {', '.join(names[:8])}")
    if table.plain and table.lines:
        with contextlib.suppress(ValueError):  # then row by row, which finds the cell
            return np.loadtxt(table.lines, delimiter=",", comments=None, usecols=columns, ndmin=2)
    return np.array([_numbers(table, row, names, columns) for row in range(len(table.lines))]).reshape(-1, len(names))


def _numbers(table: _Table, row: int, names: list[str], columns: list[int]) -> list[float]:
    cells = _cells(table.lines[row], table.path, table.numbers[row])
    chosen = [cells[column] for column in columns]
    if not ",".join(chosen).encode().translate(None, _OF_NUMBERS):
        with contextlib.suppress(ValueError):
            return list(map(float, chosen))
    pairs = zip(names, chosen, strict=True)
    name, cell = next((name, cell) for name, cell in pairs if not _NUMBER.fullmatch(cell.strip(" \t")))
    what = f"{table.path}, line {table.numbers[row]}, column {name!r} is {cell[:40]!r}"
    raise InputError(f"{what}, no number: mend the cell or remove the line")


def _open_torch(path: Path) -> Arrays:
    try:
        import torch  # optional, and slow to import
    except ImportError as error:
        raise InputError(f"{path} needs torch to be read: pip install torch, or save it as .npz") from error
    try:
        _check_members(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises what its readers raise
        raise corrupt_file(path, _without_advice(error)) from error
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise InputError(f"{path} is no dict of tensors: torch.save({{'logits': logits, 'labels': labels}}, path)")
    return {str(name): partial(_torch_array, path, str(name), tensor) for name, tensor in found.items()}


def _check_members(path: Path) -> None:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                check_zip_member(path, member)


def _without_advice(error: Exception) -> object:
    """The message of torch, but for its advice to switch weights_only off, which lets a file run code."""
    if isinstance(error, InputError | MemoryError):
        return error
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in str(error):
        return "it holds more than tensors, which could run code"
    return (str(error).splitlines() or [type(error).__name__])[0]


def _torch_array(path: Path, name: str, tensor) -> np.ndarray:
    try:
        tensor = tensor.detach()
        found = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    except CORRUPT_FILE as error:  # sparse, quantised, or without storage
        raise corrupt_file(path, f"{shown(name)}: {_without_advice(error)}") from error
    check_declared(path, shown(name), found.nbytes)  # a view of one number may declare any shape
    return found


FORMATS = MappingProxyType(
    {
        ".npz": _open_npz,
        ".npy": _open_npy,
        ".csv": _open_csv,
        ".safetensors": _open_safetensors,
        ".pt": _open_torch,
        ".pth": _open_torch,
    }
)
