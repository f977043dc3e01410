"""Named arrays in .npz, .npy, .csv, .safetensors and PyTorch files; nothing in a file is ever executed."""

import csv
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
from ml_dtypes import bfloat16  # makes the type known to NumPy too, which safetensors asks for it
from safetensors import SafetensorError, safe_open

from focalgeo.data.archives import CORRUPT_FILE, corrupt_file
from focalgeo.types import InputError

Arrays = Mapping[str, Callable[[], np.ndarray]]  # name -> a function that reads the array


def open_arrays(path: Path) -> Arrays:
    """The arrays of a file by name, each read when its function is called; the suffix names the format.

    .npz and .safetensors: their own names. .npy: one array named "". .csv: a header; columns `name_0`, `name_1`, ...
    are one array `name` [rows, columns], any other column is an array of text. .pt and .pth: a dict of tensors, read by
    torch with weights_only.

    Raises:
        InputError: another suffix, a file that is missing, empty, corrupt or cut short, or pickled objects.
    """
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path} is of no known format: give one of {', '.join(FORMATS)}")
    try:
        if path.stat().st_size == 0:
            raise InputError(f"{path} is empty: write it again")
        return FORMATS[path.suffix.lower()](path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; check the path") from error


def _open_npz(path: Path) -> Arrays:
    _refuse_pickle(path)
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
    except CORRUPT_FILE as error:
        raise corrupt_file(path, error) from error
    return {name: partial(_load, path, name) for name in names}


def _open_npy(path: Path) -> Arrays:
    _refuse_pickle(path)
    with path.open("rb") as file:
        if file.read(6) != b"\x93NUMPY":  # np.load would take it for a pickle
            raise corrupt_file(path, "it does not begin as one")
    return {"": partial(_load, path, None)}


def _refuse_pickle(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(1) == b"\x80":
            raise _pickled(path)


def _pickled(path: Path) -> InputError:
    return InputError(f"{path} holds pickled objects, which could run code: save plain numbers with np.savez")


def _load(path: Path, name: str | None) -> np.ndarray:
    try:
        found = np.load(path, allow_pickle=False)
        if name is None:
            return found
        with found:
            return found[name]
    except CORRUPT_FILE as error:
        if "allow_pickle" in str(error):
            raise _pickled(path) from error
        raise corrupt_file(path, error) from error


def _open_safetensors(path: Path) -> Arrays:
    with _safetensors(path) as file:
        return {name: partial(_load_safetensor, path, name) for name in file.keys()}  # noqa: SIM118 (no mapping)


def _load_safetensor(path: Path, name: str) -> np.ndarray:
    with _safetensors(path) as file:
        values = file.get_tensor(name)
    return values.astype(np.float32) if values.dtype == bfloat16 else values


@contextmanager
def _safetensors(path: Path) -> Iterator[safe_open]:
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, *CORRUPT_FILE, TypeError) as error:
        raise corrupt_file(path, error) from error


def _open_csv(path: Path) -> Arrays:
    """Columns `name_0`, `name_1`, ... are one float array `name` [rows, columns], any other column an array of text.

    Raises:
        InputError: no header, columns not separated by commas or out of order; when an array is read, a cell that is no
        number, by its line (counted from 1, the header included) and column.
    """
    header = _csv_header(path)
    columns: dict[str, list[int]] = {}
    for index, name in enumerate(header):
        stem, _, number = name.rpartition("_")
        columns.setdefault(stem if number.isdecimal() else name, []).append(index)
    for stem, indices in columns.items():
        if len(indices) > 1 and [header[i] for i in indices] != [f"{stem}_{k}" for k in range(len(indices))]:
            raise InputError(f"{path}: columns of {stem!r} must be {stem}_0, {stem}_1, ... once each and in order")
    numeric = {stem for stem, indices in columns.items() if header[indices[0]] != stem}
    return {stem: partial(_csv_array, path, indices, numeric=stem in numeric) for stem, indices in columns.items()}


def _csv_header(path: Path) -> list[str]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header = [name.strip() for name in next(csv.reader(file), [])]
    except (UnicodeDecodeError, csv.Error) as error:
        raise corrupt_file(path, error) from error
    if len(header) == 1:
        for mark, name in ((";", "semicolons"), ("\t", "tabs")):
            if mark in header[0]:
                raise InputError(f"{path}: columns are separated by {name}: write it with commas")
    if header and all(_is_number(name) for name in header):
        raise InputError(f"{path} has no header: begin it with a line such as labels,logits_0,logits_1")
    return header


def _csv_array(path: Path, columns: list[int], *, numeric: bool) -> np.ndarray:
    style = {"delimiter": ",", "comments": None, "quotechar": '"', "skiprows": 1, "encoding": "utf-8-sig"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a file without rows, which is refused for having too few
            if not numeric:
                return np.char.strip(np.loadtxt(path, dtype=str, usecols=columns[0], ndmin=1, **style))
            return np.loadtxt(path, dtype=np.float64, usecols=columns, ndmin=2, **style)
    except CORRUPT_FILE as error:
        raise _first_bad_cell(path, columns, numeric=numeric) or corrupt_file(path, error) from error


def _first_bad_cell(path: Path, columns: list[int], *, numeric: bool) -> InputError | None:
    """The error that names the first unreadable cell; None where the file itself cannot be read."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            header = next(rows)
            for row in filter(None, rows):
                where = f"{path}, line {rows.line_num}"
                if len(row) <= max(columns):
                    return InputError(f"{where} has {len(row)} cells, the header {len(header)}: complete or remove it")
                for column in columns if numeric else ():
                    if not _is_number(row[column]):
                        what = f"{where}, column {header[column].strip()!r} is {row[column]!r}"
                        return InputError(f"{what}, no number: mend the cell or remove the line")
    except (*CORRUPT_FILE, csv.Error):
        return None
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _open_torch(path: Path) -> Arrays:
    try:
        import torch  # optional, and slow to import
    except ImportError as error:
        raise InputError(f"{path} needs torch to be read: pip install torch, or save it as .npz") from error
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises what its readers raise; the first line says it
        raise corrupt_file(path, str(error).splitlines()[0] if str(error) else type(error).__name__) from error
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise InputError(f"{path} is no dict of tensors: torch.save({{'logits': logits, 'labels': labels}}, path)")
    return {str(name): partial(_torch_array, tensor) for name, tensor in found.items()}


def _torch_array(tensor) -> np.ndarray:
    tensor = tensor.detach()
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()


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
