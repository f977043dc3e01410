"""Classifier outputs with their labels, read from files of any framework: logits or probabilities, as the user says.

Nothing in a file is ever executed.
"""

import io
import os
import re
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int32
from ml_dtypes import bfloat16  # makes the type known to NumPy too, which safetensors asks for it
from safetensors.numpy import load_file

from focalgeo.data import sources
from focalgeo.types import InputError, floored_log, look_like_probabilities

_LARGEST_LOGIT = 1e30  # sums of more would leave float32
_LARGE_LOGIT = 1e6  # float32 rounds what is less by 0.03 at the most
_FEWEST_EXAMPLES = 30
_LARGEST_LABEL = 2**53  # up to which a float is a whole number for certain
_NEGATIVE_ROUNDING = 1e-6  # a probability this far below 0 counts as 0
_SUM_TOLERANCE = 1e-2  # what rounding to 8 bits leaves of a sum of 1
_ROLES = "logits|probs|labels|group"
_NUMBERED = re.compile(r"^(.+)_[0-9]+$")


class Keys(NamedTuple):
    """The names of arrays in a file; None is the role's own name, and for logits and probs "whichever is there"."""

    logits: str | None = None
    probs: str | None = None
    labels: str | None = None
    group: str | None = None


class Outputs(NamedTuple):
    """One split's outputs as logits; from probabilities the logits are log p."""

    source: str  # as the user wrote it
    checksum: str  # SHA-256 of each file, in the order named
    kind: str  # "logits" or "probs"
    logits: Float32[np.ndarray, "examples classes"]  # finite
    labels: Int32[np.ndarray, " examples"]
    group: np.ndarray | None  # text [examples]
    saturated: int  # examples given with a probability of exactly 0 or 1
    looks_like_probs: bool  # given as logits, but every row is in [0, 1] and sums to 1


def read_outputs(source: str, keys: Keys, *, where: str) -> Outputs:
    """Read logits (or probabilities), labels and perhaps groups.

    Args:
        source: A path that ends as one of `FORMATS`, or "logits=z.npy,labels=y.npy[,group=g.npy]"; "probs=" likewise.
        keys: Names of the arrays in the file; "logits" or "probs", "labels" and "group" where None.
        where: The name of the split, for messages.

    Returns:
        Outputs. A probability below PROBABILITY_FLOOR, 0 too, counts as that floor.

    Raises:
        InputError: a file that cannot be read, pickled objects, an array that is missing, a wrong shape or type,
        numbers that are not finite, labels out of range, probabilities that are none, fewer than 30 examples.
    """
    parts = re.findall(rf"(?:^|, *)({_ROLES})=(.+?)(?=, *(?:{_ROLES})=|$)", source)
    if not parts or os.path.isfile(os.path.expanduser(source)):  # whatever its name looks like
        parts = [("", source)]
    paths = [Path(os.path.expanduser(text)) for _, text in parts]
    with sources.reading(f"--{where}={source}"):
        files = {role: _open(path, where) for (role, _), path in zip(parts, paths, strict=True)}
        arrays = files[""] if "" in files else {role: file[""] for role, file in files.items()}
        kind, *more = (
            [role for role in ("logits", "probs") if getattr(keys, role)]
            or [role for role in ("logits", "probs") if role in arrays]
            or ["logits"]
        )
        if more:
            raise InputError(f"{where} has logits and probs: say which by --logits-key or --probs-key alone")
        scores, labels = (_array(arrays, getattr(keys, role) or role, role, where) for role in (kind, "labels"))
        has_group = keys.group or "group" in arrays
        group = _array(arrays, keys.group or "group", "group", where) if has_group else None
    for fault in _faults(scores, labels, group, kind):
        raise InputError(f"{where}: {fault}")
    is_probs = kind == "probs"
    return Outputs(
        source=source,
        checksum=" ".join(f"sha256:{sources.checksum(path)}" for path in paths),
        kind=kind,
        logits=floored_log(scores) if is_probs else _as_float32(scores),
        labels=labels.astype(np.int32),
        group=group,
        saturated=int(((scores <= 0) | (scores >= 1)).any(axis=1).sum()) if is_probs else 0,
        looks_like_probs=not is_probs and look_like_probabilities(scores, _SUM_TOLERANCE),
    )


def read_calibrated(path: str, shapes: Mapping[str, tuple[int, ...]], *, where: str) -> dict[str, np.ndarray]:
    """Log-probabilities by a method from elsewhere, an array of probabilities for each split.

    Args:
        path: A file with an array for each split, named as it.
        shapes: Split -> [examples, classes] that its array must have.
        where: The flag and name, for errors.

    Raises:
        InputError: a file that cannot be read, an array that is missing, of another shape, or no probabilities.
    """
    with sources.reading(path):
        arrays = _open(Path(os.path.expanduser(path)), where)
        probs = {split: _array(arrays, split, "probs", where) for split in shapes}
    for split, array in probs.items():
        if array.dtype.kind not in "fiu" or array.shape != shapes[split]:
            mend = f"give probabilities {list(shapes[split])}, as --{split} has examples and classes"
            raise InputError(f"{where}: {split} is {array.dtype}{list(array.shape)}: {mend}")
        for fault in _faults_of_scores(array, "probs"):
            raise InputError(f"{where}, {split}: {fault}")
    return {split: floored_log(array) for split, array in probs.items()}


def _array(arrays, name, role, where):
    """The array of a role as NumPy's: of labels whole numbers, also where they are floats or text, of groups text."""
    if name not in arrays:
        names = ", ".join(map(repr, list(arrays)[:8])) or "none"
        raise InputError(f"{where} has no array {name!r}, only {names}: name the {role} by --{role}-key")
    values = arrays[name] if isinstance(arrays[name], np.ndarray) else _of_columns(arrays[name])
    if values.dtype == bfloat16:
        return values.astype(np.float32)
    if role == "labels" and values.dtype.kind in "fU":
        numbers = values.astype(np.float64)
        wrong = values[~(np.abs(numbers) < _LARGEST_LABEL) | (numbers != np.round(numbers))]
        if wrong.size:
            raise ValueError(f"labels hold {wrong[0]}, no class number 0, 1, 2 ...")
        return numbers.astype(np.int64)
    if role == "group" and values.dtype.kind in "USbiufM":
        return np.where(values != values, "", values.astype(str))  # NaN, which differs from itself, is no name
    return values


def _faults(scores, labels, group, kind):
    """What is wrong with the arrays, one line each; a line may be asked for only where those above it do not hold."""
    if scores.dtype.kind not in "fiu" or scores.ndim != 2 or scores.shape[1] < 2:
        both = "np.stack([1 - p, p], 1)" if kind == "probs" else "np.stack([0 * z, z], 1)"
        what = f"{kind} are {str(scores.dtype)[:60]} of shape {scores.shape}"
        yield f"{what}: give numbers [examples, classes]; of two classes give both, {both}"
    if labels.shape != scores.shape[:1] or labels.dtype.kind not in "iu":
        hint = "labels[:, 0], or of one-hot rows labels.argmax(1)" if labels.ndim > 1 else "labels.astype(int)"
        what = f"labels are {str(labels.dtype)[:60]} of shape {labels.shape}, {kind} have shape {scores.shape}"
        yield f"{what}: give a class number for each row, {hint}"
    if group is not None and (group.shape != labels.shape or group.dtype.kind != "U"):
        yield f"group is {str(group.dtype)[:60]} of shape {group.shape}: give a name or number for each row of {kind}"
    if len(scores) < _FEWEST_EXAMPLES:
        mend = f"give {_FEWEST_EXAMPLES} at the very least, and some hundreds for a useful answer"
        yield f"it has {len(scores)} examples, too few to fit or to measure calibration: {mend}"
    yield from _faults_of_scores(scores, kind)
    classes, least, most = scores.shape[1], labels.min(), labels.max()
    if least < 0 or most >= classes:
        hint = {1: "; if they count from 1, give labels - 1", -1: "; if -1 stands for no label, leave these out"}
        what = f"labels run from {least} to {most}: with {classes} classes give labels from 0 to {classes - 1}"
        yield what + hint.get(int(least), "")
    if least == most:
        yield f"all labels are {least}, one class: calibration needs examples of two or more"
    for name in () if group is None else set(group.tolist()):
        if not (name.strip() and name.isprintable()):
            yield f"group {name!a} is no name on one line: name them all"


def _faults_of_scores(scores, kind):
    wrong = ~(np.abs(scores.astype(np.promote_types(scores.dtype, np.float64))) <= _LARGEST_LOGIT).all(axis=1)
    if wrong.any():
        what = f"{kind} of {wrong.sum()} examples are NaN, infinite or beyond {_LARGEST_LOGIT:g}"
        yield f"{what}, the first in row {np.argmax(wrong)}: remove or mend them"
    if kind == "probs":
        sums = scores.sum(axis=1, dtype=np.float64)
        wrong = (scores < -_NEGATIVE_ROUNDING).any(axis=1) | (np.abs(sums - 1) > _SUM_TOLERANCE)
        if wrong.any():
            row = np.argmax(wrong)
            what = f"{wrong.sum()} rows of probs are negative or do not sum to 1, the first is row {row}"
            yield f"{what} with {sums[row]:.6g}: if these are logits, say --logits-key"


def _as_float32(logits: np.ndarray) -> np.ndarray:
    """Logits as float32; of wider types each row less its maximum, if they are large, lest differences round away."""
    if logits.dtype.itemsize > 4:
        logits = logits.astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True) if np.abs(logits).max() > _LARGE_LOGIT else 0
    return logits.astype(np.float32)


def _open(path, where):
    """The arrays of a file by name, or the columns of a table; the end of its name says the format.

    Columns `name_0`, `name_1`, ... are one array `name` [rows, columns]; any other is an array [rows]. The array of an
    .npy file is named "".
    """
    read = FORMATS.get(Path(path.name.lower().removesuffix(".gz")).suffix)
    if read is None or not os.path.isfile(path):  # a pipe would be waited for
        mend = f"check the path, and give one of {', '.join(FORMATS)}, or logits=z.npy,labels=y.npy"
        raise InputError(f"{where}: there is no file {path} of a known format: {mend}")
    return read(path)


def _read_torch(path):
    import torch  # optional, and slow to import

    tensors = torch.load(path, map_location="cpu", weights_only=True)
    # NumPy has no bfloat16
    return {
        name: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()
        for name, tensor in tensors.items()
    }


def _read_text(path, *, mark):
    """Columns that are numbered hold numbers, all others text."""
    import pandas  # slow to import

    read = partial(pandas.read_csv, path, sep=mark, skipinitialspace=True, encoding="utf-8-sig", keep_default_na=False)
    names = [name.strip() for name in read(header=None, nrows=1, dtype=str).iloc[0]]
    texts = {name: str for name in names if not _NUMBERED.fullmatch(name)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the float_precision that newer versions have unasked
        warnings.simplefilter("error", pandas.errors.ParserWarning)  # rows longer than the header would lose their ends
        options = {"index_col": False, "float_precision": "round_trip", "low_memory": False}
        return _columns(read(header=0, names=names, dtype=texts, **options))


def _read_table(path, *, kind, **options):
    import pandas

    return _columns(getattr(pandas, f"read_{kind}")(path, **options))


def _columns(table: Any) -> dict[str, Any]:
    """Name of an array -> its columns of the pandas.DataFrame."""
    stems = [_NUMBERED.sub(r"\1", name) for name in table.columns]
    return {stem: table.loc[:, [other == stem for other in stems]] for stem in stems}


def _of_columns(table: Any) -> np.ndarray:
    import pandas

    stem, *_ = names = [*table.columns]
    if len(names) == 1 and not _NUMBERED.fullmatch(stem):
        values = np.array(table[stem].tolist())  # of text, of numbers, or of lists of them
        return np.char.strip(values) if values.dtype.kind == "U" else values
    table = table[[_NUMBERED.sub(rf"\1_{number}", stem) for number in range(len(names))]]  # in order, none missing
    return table.apply(pandas.to_numeric).to_numpy(np.float64)


FORMATS: dict[str, Callable[[Path], Mapping[str, Any]]] = {
    ".npz": lambda path: np.load(io.BytesIO(path.read_bytes()), allow_pickle=False),  # lazily, with nothing to close
    ".npy": lambda path: {"": np.load(path, allow_pickle=False)},
    ".safetensors": load_file,
    ".pt": _read_torch,
    ".pth": _read_torch,
    ".csv": partial(_read_text, mark=","),  # these also as .gz
    ".tsv": partial(_read_text, mark="\t"),
    ".jsonl": partial(_read_table, kind="json", lines=True, dtype=False, precise_float=True),
    ".parquet": partial(_read_table, kind="parquet"),
}
