"""Classifier outputs with their labels, read from files of any framework: logits or probabilities, as the user says.

Nothing in a file is ever executed.
"""

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float32, Int32
from ml_dtypes import bfloat16  # makes the type known to NumPy too, which safetensors asks for it
from safetensors import safe_open

from focalgeo.data.sources import checksum, reading
from focalgeo.probabilities import floored_log, look_like_probabilities
from focalgeo.types import InputError, expanded

if TYPE_CHECKING:
    import pandas

Arrays = Mapping[str, Callable[[], np.ndarray]]  # name -> a function that reads the array

_LARGEST_LOGIT = 1e30  # sums of more would leave float32
_ROUNDED = 0.01  # share of the examples whose predicted class rounding alone may change
_LARGE_LOGIT = 1e6  # float32 rounds what is less by 0.03 at the most
_FEWEST_EXAMPLES = 30
_LARGEST_LABEL = 2**53  # up to which a float is a whole number for certain
_NEGATIVE_ROUNDING = 1e-6  # a probability this far below 0 counts as 0
_SUM_TOLERANCE = {2: 2e-2, 4: 1e-3, 8: 1e-3}  # by bytes of the type: what rounding leaves of a sum of 1
_ROLES = "logits|probs|labels|group"
_NUMBERED = re.compile(r"(.+)_[0-9]+")


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
    given: str  # "logits" or "probs"
    logits: Float32[np.ndarray, "examples classes"]  # finite
    labels: Int32[np.ndarray, " examples"]
    group: np.ndarray | None  # text [examples]
    saturated: int  # examples given with a probability of exactly 0 or 1
    looks_like_probs: bool  # given as logits, but every row is in [0, 1] and sums to 1


def read_outputs(source: str, keys: Keys, *, where: str) -> Outputs:
    """Read logits (or probabilities), labels and perhaps groups.

    Args:
        source: A path of one of `FORMATS`, or "logits=z.npy,labels=y.npy[,group=g.npy]"; "probs=" likewise.
        keys: Names of the arrays in the file; "logits" or "probs", "labels" and "group" where None.
        where: The name of the split, for messages.

    Returns:
        Outputs. A probability below PROBABILITY_FLOOR, 0 too, counts as that floor.

    Raises:
        InputError: a file that cannot be read, pickled objects, an array that is missing, a wrong shape or type,
        numbers that are not finite, labels out of range, probabilities that are none, fewer than 30 examples.
    """
    is_list = re.match(rf"({_ROLES})=", source) and not os.path.isfile(expanded(source))
    named = dict(re.findall(rf"({_ROLES})=(.+?)(?=, *(?:{_ROLES})=|$)", source)) if is_list else {"": source}
    paths = {role: Path(expanded(path)) for role, path in named.items()}
    files = {role: _open(path, where) for role, path in paths.items()}
    arrays = {role: array[""] for role, array in files.items() if "" in array} if is_list else files[""]
    given = "probs" if keys.probs or not (keys.logits or "logits" in arrays) else "logits"
    if (keys.logits and keys.probs) or (not (keys.logits or keys.probs) and {"logits", "probs"} <= arrays.keys()):
        raise InputError(f"{where} has logits and probs: say which by --logits-key or --probs-key alone")
    wanted = {"scores": getattr(keys, given) or given, "labels": keys.labels or "labels"}
    if keys.group or "group" in arrays:
        wanted["group"] = keys.group or "group"
    if missing := [name for name in wanted.values() if name not in arrays]:
        names = ", ".join(map(repr, list(arrays)[:8])) or "none"
        mend = "name them by --logits-key or --probs-key, --labels-key, --group-key"
        raise InputError(f"{where} has no array {' and no '.join(map(repr, missing))}, only {names}: {mend}")
    with reading(f"--{where}={source}"):
        values = {role: arrays[name]() for role, name in wanted.items()}
        scores, labels, group = values["scores"], _numbers(values["labels"]), _names(values.get("group"))
    for fault in _faults(scores, labels, group, given):
        raise InputError(f"{where}: {fault}")
    return Outputs(
        source=source,
        checksum=" ".join(f"sha256:{checksum(path)}" for path in paths.values()),
        given=given,
        logits=floored_log(scores) if given == "probs" else _as_float32(scores, where),
        labels=labels.astype(np.int32),
        group=group,
        saturated=int(((scores <= 0) | (scores >= 1)).any(axis=1).sum()) if given == "probs" else 0,
        looks_like_probs=given == "logits" and look_like_probabilities(scores, _tolerance(scores)),
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
    arrays, log_probs = _open(Path(expanded(path)), where), {}
    for split, shape in shapes.items():
        if split not in arrays:
            raise InputError(f"{where} has no array {split!r}, only {', '.join(arrays)}: give probabilities of {split}")
        with reading(path):
            probs = arrays[split]()
        if probs.dtype.kind not in "fiu" or probs.shape != shape:
            what = f"{where}: {split} is {probs.dtype}{list(probs.shape)}"
            raise InputError(f"{what}: give probabilities {list(shape)}, as --{split} has examples and classes")
        for fault in _faults_of_scores(probs, "probs"):
            raise InputError(f"{where}, {split}: {fault}")
        log_probs[split] = floored_log(probs)
    return log_probs


def _faults(scores: np.ndarray, labels: np.ndarray, group: np.ndarray | None, given: str) -> Iterator[str]:
    """What is wrong with the arrays: each line may be asked for only where those above it do not hold."""
    rows, both = scores.shape[:1], "np.stack([1 - p, p], 1)" if given == "probs" else "np.stack([0 * z, z], 1)"
    if scores.dtype.kind not in "fiu":
        yield f"{given} are of type {str(scores.dtype)[:60]}: give numbers"
    if scores.ndim != 2 or scores.shape[1] < 2:
        yield f"{given} have shape {scores.shape}: give [examples, classes]; of two classes give both, {both}"
    if labels.shape != rows or labels.dtype.kind not in "iu":
        hint = (
            f", {'labels[:, 0]' if labels.shape[1] == 1 else 'labels.argmax(1) of one-hot'}" if labels.ndim == 2 else ""
        )
        what = f"labels are {labels.dtype} of shape {labels.shape}, {given} have shape {scores.shape}"
        yield f"{what}: give class numbers as integers, one for each row{hint}"
    if group is not None and (group.shape != rows or group.dtype.kind != "U"):
        yield f"group is {str(group.dtype)[:60]} of shape {group.shape}: give one name or number for each row of {given}"
    if len(scores) < _FEWEST_EXAMPLES:
        mend = f"give {_FEWEST_EXAMPLES} at the very least, and some hundreds for a useful answer"
        yield f"it has {len(scores)} examples, too few to fit or to measure calibration: {mend}"
    yield from _faults_of_scores(scores, given)
    classes, least, most = scores.shape[1], labels.min(), labels.max()
    if least < 0 or most >= classes:
        first = int(np.argmax((labels < 0) | (labels >= classes)))
        hints = {
            (1, classes): "; these run from 1: give labels - 1",
            -1: "; if -1 stands for no label, leave these out",
        }
        hint = hints.get((least, most), hints.get(least, ""))
        yield f"labels[{first}] is {labels[first]}: with {classes} classes give labels from 0 to {classes - 1}{hint}"
    if least == most:
        yield f"all labels are {least}, one class: calibration needs examples of two or more"
    wrong = (
        [] if group is None else np.flatnonzero([not (name.strip() and name.isprintable()) for name in group.tolist()])
    )
    if len(wrong):
        yield f"group of {len(wrong)} examples is no name of one line, the first in row {wrong[0]}: name them"


def _faults_of_scores(scores: np.ndarray, given: str) -> Iterator[str]:
    finite = np.isfinite(scores).all(axis=1)
    if not finite.all():
        first = int(np.argmin(finite))
        yield f"{given} of {(~finite).sum()} examples are NaN or infinite, the first in row {first}: remove or mend them"
    largest = np.abs(scores).max()
    if largest > _LARGEST_LOGIT:
        yield f"{given} run up to {largest:.3g}, beyond {_LARGEST_LOGIT:g}: look for what made them"
    if given == "probs":
        off = np.abs(scores.sum(axis=1, dtype=np.float64) - 1)
        wrong = (scores < -_NEGATIVE_ROUNDING).any(axis=1) | (off > _tolerance(scores))
        if wrong.any():
            row = int(np.argmax(wrong))
            what = f"{wrong.sum()} rows of probs are negative or do not sum to 1, the first is row {row}"
            yield f"{what} of sum {scores[row].sum(dtype=np.float64):.6g}: if these are logits, say --logits-key"


def _tolerance(probs: np.ndarray) -> float:
    """Deviation of a sum from 1 that rounding explains, by the digits in the numbers: bfloat16 may come as float32."""
    if probs.dtype.kind != "f":
        return 0.0
    if probs.dtype.itemsize == 4 and not np.any(np.ascontiguousarray(probs).view(np.uint32) & 0xFFFF):
        return _SUM_TOLERANCE[2]
    return _SUM_TOLERANCE.get(probs.dtype.itemsize, 1e-3)


def _numbers(labels: np.ndarray) -> np.ndarray:
    """Labels as integers: text and floats are taken if they are whole, as 2 or 2.0; what is no number stays."""
    if labels.dtype.kind not in "fU":
        return labels
    numbers = labels.astype(np.promote_types(labels.dtype, np.float64) if labels.dtype.kind == "f" else np.float64)
    wrong = ~(np.abs(numbers) < _LARGEST_LABEL) | (numbers != np.round(numbers))
    if wrong.any():
        first = tuple(np.argwhere(wrong)[0].tolist())
        raise ValueError(f"labels{list(first)} is {labels[first]}, no class number 0, 1, 2 ...")
    return numbers.astype(np.int64)


def _names(group: np.ndarray | None) -> np.ndarray | None:
    """Groups as text, "" where they are missing; what is neither text nor numbers stays."""
    if group is None or group.dtype.kind not in "USbiufM":
        return group
    return np.where(group != group, "", group.astype(str))  # NaN differs from itself


def _as_float32(logits: np.ndarray, where: str) -> np.ndarray:
    """Logits as float32; of wider types each row less its maximum, if they are large, lest differences round away.

    Refuses those of which float32 does not hold what class is predicted, as tiny ones.
    """
    narrow = logits.astype(np.float32)
    if logits.dtype.itemsize > 4 and np.abs(narrow).max() > _LARGE_LOGIT:
        top = logits.max(axis=1, keepdims=True)
        whole = logits.dtype.kind in "iu"  # differences modulo 2^64 are exact, with sign and without
        below = top.astype(np.uint64) - logits.astype(np.uint64) if whole else top - logits
        narrow = -below.astype(np.float32)
    lost = np.flatnonzero(logits.argmax(axis=1) != narrow.argmax(axis=1))
    if lost.size > _ROUNDED * len(logits):
        what = f"{where}: float32 does not hold which of the logits of {lost.size} examples is the largest"
        raise InputError(f"{what}, the first in row {lost[0]}: scale tiny ones up, subtract each row's largest")
    return narrow


def _open(path: Path, where: str) -> Arrays:
    """The arrays of a file by name, each read when its function is called; the suffix names the format.

    .npz, .safetensors, .pt and .pth: their own names, of .npy "". Tables: columns `name_0`, `name_1`, ... are one array
    `name` [rows, columns], any other column is an array, in .csv and .tsv one of text.
    """
    ending = next((ending for ending in FORMATS if path.name.lower().endswith(ending)), None)
    if ending is None or not os.path.isfile(path):  # a pipe would be waited for
        mend = f"check the path, and give one of {', '.join(FORMATS)}, or logits=z.npy,labels=y.npy"
        raise InputError(f"{where}: there is no file {path} of a known format: {mend}")
    with reading(path):
        return FORMATS[ending](path)


def _open_npz(path: Path) -> Arrays:
    def read(name: str) -> np.ndarray:
        with np.load(path, allow_pickle=False) as archive:
            return archive[name]

    with np.load(path, allow_pickle=False) as archive:
        return {name: partial(read, name) for name in archive.files}


def _open_npy(path: Path) -> Arrays:
    return {"": partial(np.load, path, allow_pickle=False)}


def _open_safetensors(path: Path) -> Arrays:
    def read(name: str) -> np.ndarray:
        with safe_open(path, framework="numpy") as file:
            values = file.get_tensor(name)
        return values.astype(np.float32) if values.dtype == bfloat16 else values

    with safe_open(path, framework="numpy") as file:
        return {name: partial(read, name) for name in file.keys()}  # noqa: SIM118 (no mapping)


def _open_torch(path: Path) -> Arrays:
    import torch  # optional, and slow to import

    def read(tensor: torch.Tensor) -> np.ndarray:
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    return {str(name): partial(read, tensor) for name, tensor in tensors.items()}


def _open_text(path: Path, *, mark: str) -> Arrays:
    """A table of text: columns `name_0`, `name_1`, ... hold numbers, all others text."""
    import pandas  # slow to import

    read = partial(pandas.read_csv, path, sep=mark, skipinitialspace=True, encoding="utf-8-sig", keep_default_na=False)
    names = [name.strip() for name in read(header=None, nrows=1, dtype=str).iloc[0]]
    texts = {name: str for name in names if not _NUMBERED.fullmatch(name)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of rows that are longer than the header, whose ends would be lost
        exact = {"float_precision": "round_trip", "low_memory": False}
        return _open_columns(read(header=0, names=names, index_col=False, dtype=texts, **exact))


def _open_table(path: Path, *, kind: str, **options: bool) -> Arrays:
    import pandas

    return _open_columns(getattr(pandas, f"read_{kind}")(path, **options))


def _open_columns(table: "pandas.DataFrame") -> Arrays:
    members: dict[str, list[str]] = {}
    for name in map(str, table.columns):
        numbered = _NUMBERED.fullmatch(name)
        members.setdefault(numbered[1] if numbered else name, []).append(name)
    return {stem: partial(_column, table, stem, names) for stem, names in members.items()}


def _column(table: "pandas.DataFrame", stem: str, names: list[str]) -> np.ndarray:
    if names == [stem]:
        values = np.array(table[stem].tolist())
        return np.char.strip(values) if values.dtype.kind == "U" else values
    wanted = [f"{stem}_{number}" for number in range(len(names))]
    if {*names} != {*wanted}:
        raise ValueError(f"columns of {stem} must be {stem}_0, {stem}_1, ..., and are {', '.join(names[:8])}")
    for name in wanted:
        for row, value in enumerate(table[name] if table[name].dtype.kind not in "fiu" else ()):
            try:
                float(value)
            except ValueError as error:
                raise ValueError(f"row {row} of column {name} is {value!r}, no number") from error
    return table[wanted].to_numpy(np.float64)


# By the end of a file's name.
FORMATS = MappingProxyType(
    {
        ".npz": _open_npz,
        ".npy": _open_npy,
        ".safetensors": _open_safetensors,
        ".pt": _open_torch,
        ".pth": _open_torch,
        **{f".csv{packed}": partial(_open_text, mark=",") for packed in ("", ".gz")},
        **{f".tsv{packed}": partial(_open_text, mark="\t") for packed in ("", ".gz")},
        **{f".jsonl{packed}": partial(_open_table, kind="json", lines=True) for packed in ("", ".gz")},
        ".parquet": partial(_open_table, kind="parquet"),
    }
)
