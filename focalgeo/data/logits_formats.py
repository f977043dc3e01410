"""Named arrays in a file of one of the formats that frameworks write; nothing in a file is ever executed."""

import json
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np

from focalgeo.data.damage import DAMAGE, damaged
from focalgeo.data.logits_csv import open_csv
from focalgeo.types import InputError

Arrays = Mapping[str, Callable[[], np.ndarray]]  # name -> a function that reads the array

_LONGEST_HEADER = 100_000_000  # bytes, the format's own limit
_SAFE_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
}


def open_arrays(path: Path) -> Arrays:
    """The arrays of a file by name, each read when its function is called; the suffix names the format.

    .npz and .safetensors: their own names. .npy: one array named "". .csv: a header; columns `name_0`, `name_1`, ...
    are one array `name` [rows, columns], any other column is an array of text. .pt and .pth: a dict of tensors, read by
    torch with weights_only.

    Raises:
        InputError: another suffix, a file that is missing, empty, damaged or cut short, or pickled objects.
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
    except DAMAGE as error:
        raise damaged(path, error) from error
    return {name: partial(_load, path, name) for name in names}


def _open_npy(path: Path) -> Arrays:
    _refuse_pickle(path)
    with path.open("rb") as file:
        if file.read(6) != b"\x93NUMPY":  # np.load would take it for a pickle
            raise damaged(path, "it does not begin as one")
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
    except DAMAGE as error:
        if "allow_pickle" in str(error):
            raise _pickled(path) from error
        raise damaged(path, error) from error


def _open_safetensors(path: Path) -> Arrays:
    """Eight bytes of header length, a JSON header, raw numbers: the format is read here, so no library is needed."""
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        header = file.read(start - 8) if start <= _LONGEST_HEADER else b""
    try:
        entries = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
    except (ValueError, AttributeError) as error:
        raise damaged(path, "its header is no JSON") from error
    return {name: partial(_safe_array, path, start, entry) for name, entry in entries.items()}


def _safe_array(path: Path, start: int, entry: dict) -> np.ndarray:
    try:
        (first, end), shape, kind = entry["data_offsets"], tuple(entry["shape"]), entry["dtype"]
        dtype = np.dtype(_SAFE_TYPES[kind])
        count = int(np.prod(shape, dtype=np.int64))
        if first < 0 or end - first != count * dtype.itemsize or start + end > path.stat().st_size:
            raise ValueError("sizes do not agree")
        values = np.fromfile(path, dtype, count, offset=start + first).reshape(shape)
    except (*DAMAGE, TypeError) as error:
        raise damaged(path, error) from error
    return (values.astype("<u4") << 16).view("<f4") if kind == "BF16" else values


def _open_torch(path: Path) -> Arrays:
    try:
        import torch  # optional, and slow to import
    except ImportError as error:
        raise InputError(f"{path} needs torch to be read: pip install torch, or save it as .npz") from error
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises what its readers raise; the first line says it
        raise damaged(path, str(error).splitlines()[0] if str(error) else type(error).__name__) from error
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
        ".csv": open_csv,
        ".safetensors": _open_safetensors,
        ".pt": _open_torch,
        ".pth": _open_torch,
    }
)
