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

from focalgeo import advice
from focalgeo.data import sources
from focalgeo.types import OFF_ONE, PROBABILITY_FLOOR, InputError, floored_log, look_like_probabilities

_LARGEST_LOGIT = 1e30  # sums of more would leave float32
_LARGE_LOGIT = 1e6  # float32 rounds what is less by 0.03 at the most
_FEWEST_EXAMPLES = 30
_LARGEST_LABEL = 2**53  # up to which a float is a whole number for certain
_NEGATIVE_ROUNDING = 1e-6  # a probability this far below 0 counts as 0
_MOST_VOTES = 1000  # 1/n of which probabilities are found to be multiples
_DECIMALS = (10**4, 10**5, 10**6)
_FINE = 10  # from this n on, sums are taken that rounding explains
_STORED = 2e-7  # by which float32 may miss a multiple
_ROLES = "logits|probs|labels|group|cluster"
_NUMBERED = re.compile(r"^(.+)_[0-9]+$")


class Keys(NamedTuple):
    """The names of arrays in a file; None is the role's own name, and for logits and probs "whichever is there"."""

    logits: str | None = None
    probs: str | None = None
    labels: str | None = None
    group: str | None = None
    cluster: str | None = None


class Outputs(NamedTuple):
    """One split's outputs as logits; from probabilities the logits are log p."""

    source: str  # as the user wrote it
    checksum: str  # SHA-256 of each file, in the order named
    kind: str  # "logits" or "probs"
    logits: Float32[np.ndarray, "examples classes"]  # finite
    labels: Int32[np.ndarray, " examples"]
    group: np.ndarray | None  # text [examples]
    cluster: np.ndarray | None  # text [examples]
    unit: int  # probabilities with zeros are multiples of 1/unit; 0 where they are not
    unread: tuple[str, ...]  # names of arrays or columns that are not used
    looks_like_probs: bool  # given as logits, but every row is in [0, 1] and sums to 1


def read_outputs(source: str, keys: Keys, *, where: str, floor: float | None = None) -> Outputs:
    """Read logits (or probabilities), labels and perhaps groups and clusters.

    Args:
        source: A path that ends as one of `FORMATS`, or "logits=z.npy,labels=y.npy[,group=g.npy]"; "probs=" likewise.
        keys: Names of the arrays in the file; their roles where None.
        where: The name of the split, for messages.
        floor: What smaller probabilities count as, before rows are divided by their sums; None for `rounded_floor`.

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
        named = {role: getattr(keys, role) or role for role in ("group", "cluster")}
        group, cluster = (
            _array(arrays, name, role, where) if getattr(keys, role) or name in arrays else None
            for role, name in named.items()
        )
    used = {getattr(keys, kind) or kind, keys.labels or "labels", *named.values()}
    for fault in _faults(scores, labels, {"group": group, "cluster": cluster}, kind):
        raise InputError(f"{where}: {fault}")
    unit = 0 if kind == "logits" else _unit(scores)
    return Outputs(
        source=source,
        checksum=" ".join(f"sha256:{sources.checksum(path)}" for path in paths),
        kind=kind,
        logits=_as_float32(scores) if kind == "logits" else floored_log(scores, floor or rounded_floor(scores, unit)),
        labels=labels.astype(np.int32),
        group=group,
        cluster=cluster,
        unit=unit,
        unread=tuple(name for name in arrays if name not in used),
        looks_like_probs=kind == "logits" and look_like_probabilities(scores, OFF_ONE),
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
    return {split: floored_log(array, rounded_floor(array, _unit(array))) for split, array in probs.items()}


def _unit(probs):
    """The least n of which all values are multiples of 1/n; 0 where there is none, and where no value is 0.

    Sought are n up to 1,000, of votes or two and three decimals, and four to six decimals.
    """
    values = np.unique(probs.astype(np.float64)) if (probs <= 0).any() else probs[:0]
    for n in (*range(max(values.size - 1, 2), _MOST_VOTES + 1), *_DECIMALS) if values.size > 2 else ():
        if (np.abs(values * n - np.round(values * n)) <= n * _STORED).all() and values[values > 0][0] * n > 0.5:
            return n
    return 0


def rounded_floor(probs: np.ndarray, unit: int) -> np.ndarray | float:
    """What a probability of 0 counts as, [examples, 1], where all are multiples of 1/unit.

    Of votes, whose rows sum to 1 exactly, half a vote. Of rounded numbers the zeros of a row share what its sum leaves
    of 1, each at most half a unit and at least a tenth of that: after temperature scaling the NLL of outputs with 3
    decimals, of 10 classes and too sure by 2, is then 0.6% more than that of exact ones, with half a unit each 1.3%
    (experiments/posthoc). Without a unit it is PROBABILITY_FLOOR.
    """
    if not unit:
        return PROBABILITY_FLOOR
    left = 1 - probs.sum(axis=1, keepdims=True, dtype=np.float64)
    if (np.abs(left) < 0.1 / unit).all():
        return 0.5 / unit
    return np.clip(left / np.maximum((probs <= 0).sum(axis=1, keepdims=True), 1), 0.05 / unit, 0.5 / unit)


def _array(arrays, name, role, where):
    """The array of a role as NumPy's: of labels whole numbers, also where they are floats or text, of groups text."""
    if name not in arrays:
        names = ", ".join(map(repr, list(arrays)[:8])) or "none"
        raise InputError(f"{where} has no array {name!r}, only {names}: name the {role} by --{role}-key")
    values = arrays[name] if isinstance(arrays[name], np.ndarray) else _of_columns(arrays[name])
    if values.dtype in (bfloat16, np.dtype("V2")):  # NumPy's own files do not name it
        return values.view(bfloat16).astype(np.float32)
    if role == "labels" and values.dtype.kind in "fU":
        try:
            numbers = values.astype(np.float64)
        except ValueError:
            return values
        whole = (np.abs(numbers) < _LARGEST_LABEL) & (numbers == np.round(numbers))
        return numbers.astype(np.int64) if whole.all() else numbers
    if role in ("group", "cluster") and values.dtype.kind in "USbiufM":
        return np.where(values != values, "", values.astype(str))  # NaN, which differs from itself, is no name
    return values


def _faults(scores, labels, names, kind):
    """What is wrong with the arrays, one line each; a line may be asked for only where those above it do not hold."""
    if scores.dtype.kind not in "fiu" or scores.ndim != 2 or scores.shape[1] < 2:
        both = "np.stack([1 - p, p], 1)" if kind == "probs" else "np.stack([0 * z, z], 1)"
        what = f"{kind} are {str(scores.dtype)[:60]} of shape {scores.shape}"
        yield f"{what}: give numbers [examples, classes]; of two classes give both, {both}"
    if labels.shape != scores.shape[:1] or labels.dtype.kind not in "iu":
        what = f"labels are {str(labels.dtype)[:60]} of shape {labels.shape}, {kind} have shape {scores.shape}"
        yield f"{what}: {advice.of_labels(labels, scores.shape)}"
    for role, values in names.items():
        if values is not None and (values.shape != labels.shape or values.dtype.kind != "U"):
            what = f"{role} is {str(values.dtype)[:60]} of shape {values.shape}"
            yield f"{what}: give a name or number for each row of {kind}"
    if len(scores) < _FEWEST_EXAMPLES:
        mend = f"give {_FEWEST_EXAMPLES} at the very least, and some hundreds for a useful answer"
        yield f"it has {len(scores)} examples, too few to fit or to measure calibration: {mend}"
    classes, least, most = scores.shape[1], labels.min(), labels.max()
    if least < 0 or most >= classes:
        what = f"labels run from {least} to {most}: with {classes} classes give labels from 0 to {classes - 1}"
        yield f"{what}; {advice.of_labels(labels, scores.shape)}"
    yield from _faults_of_scores(scores, kind)
    if least == most:
        yield f"all labels are {least}, one class: calibration needs examples of two or more"
    for role, values in names.items():
        for name in () if values is None else set(values.tolist()):
            if not (name.strip() and name.isprintable()):
                yield f"{role} {name!a} is no name on one line: name them all"


def _faults_of_scores(scores, kind):
    wrong = ~(np.abs(scores.astype(np.promote_types(scores.dtype, np.float64))) <= _LARGEST_LOGIT).all(axis=1)
    if wrong.any():
        what = f"{kind} of {wrong.sum()} examples are NaN, infinite or beyond {_LARGEST_LOGIT:g}"
        yield f"{what}, the first in row {np.argmax(wrong)}: remove or mend them"
    if kind == "probs":
        sums = scores.sum(axis=1, dtype=np.float64)
        unit = _unit(scores) if (np.abs(sums - 1) > OFF_ONE).any() else 0
        off = max(OFF_ONE, scores.shape[1] / (2 * unit) if unit >= _FINE else 0)  # what rounding may leave
        wrong = (scores < -_NEGATIVE_ROUNDING).any(axis=1) | (np.abs(sums - 1) > off)
        if wrong.any():
            row = np.argmax(wrong)
            what = f"{wrong.sum()} rows of probs are negative or do not sum to 1, the first is row {row}"
            yield f"{what} with {sums[row]:.6g}: {advice.of_probabilities(scores)}"


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

    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        what = f"{path} holds more than tensors, as NumPy's arrays or a whole model, or is damaged"
        mend = 'run the model, and torch.save({"logits": tensor, "labels": tensor}, path)'
        raise InputError(f"{what}; nothing in it is executed: {mend}") from error
    if not isinstance(tensors, Mapping):
        tensors = {"logits": tensors}
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
