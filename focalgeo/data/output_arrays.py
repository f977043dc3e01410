"""A classifier's outputs as they stand in a file: arrays by name, or columns of a table; labels as class numbers.

Nothing in a file is ever executed.
"""

import io
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_dtypes import bfloat16  # makes the type known to NumPy too, which safetensors asks for it
from safetensors.numpy import load_file

from focalgeo.data import lm_eval, tables
from focalgeo.types import OFF_ONE, InputError, look_like_probabilities, shown

_LARGEST_LABEL = 2**53  # up to which a float is a whole number for certain
_NAMES = {  # in a file
    "logits": ("logits",),
    "probs": ("probs", "prob", "y_prob"),
    "scores": ("scores", "y_score"),  # logits or probabilities, by their values
    "labels": ("labels", "label", "y_true"),
    "group": ("group",),
    "cluster": ("cluster",),
    "weight": ("weight",),
}
_ROLES = "|".join(_NAMES)
_SCORES = ("logits", "probs", "scores")
_TEXTS = ("labels", "group", "cluster")
_PAIRS = (("0", "1"), ("-1", "1"), ("False", "True"), ("false", "true"))  # labels of two classes
_NUMBERED = re.compile(r"^(.+)_[0-9]+$")


class Keys(NamedTuple):
    """The names of arrays in a file, None for a role's own ones; and how labels are read.

    Scores in a table are also named by what their columns begin with, up to _, or by a list of columns, "cat,dog".
    """

    logits: str | None = None
    probs: str | None = None
    labels: str | None = None
    group: str | None = None
    cluster: str | None = None
    weight: str | None = None
    scores: str | None = None
    positive: str | None = None  # the label of class 1 where scores are one column
    ignored: tuple[str, ...] = ()  # labels whose rows are left out


class Found(NamedTuple):
    """What a file holds, by role, not yet checked."""

    kind: str  # "logits" or "probs"
    scores: np.ndarray  # in a table NaN is an empty cell, or the end of a short list
    labels: np.ndarray | None
    group: np.ndarray | None
    cluster: np.ndarray | None
    weight: np.ndarray | None
    classes: tuple[str, ...] | None  # by whose names the columns were found
    unread: tuple[str, ...]  # names of arrays or columns that are not used
    index: np.ndarray  # the line of the file, or the row
    word: str | None  # "line" or "row", of a table; None elsewhere
    left_out: int = 0  # rows whose label is ignored

    def place(self, row: int) -> str:
        """What a row is called in messages."""
        return f"{self.word or 'row'} {self.index[row]}"


class _Columns(dict):
    """Name -> its columns of a pandas.DataFrame: `name_0`, `name_1`, ... are those of `name`."""


def read_arrays(source: str, keys: Keys, where: str) -> tuple[list[Path], Found]:
    """The paths of a source, and what they hold.

    Raises:
        InputError: an array that is missing, a cell that is no number, a label that is none of the classes named.
    """
    parts = re.findall(rf"(?:^|, *)({_ROLES})=(.+?)(?=, *(?:{_ROLES})=|$)", source)
    if not parts or os.path.isfile(os.path.expanduser(source)):  # whatever its name looks like
        parts = [("", source)]
    paths = [Path(os.path.expanduser(text)) for _, text in parts]
    files = {role: open_arrays(path, where, keys) for (role, _), path in zip(parts, paths, strict=True)}
    found = _by_role(files[""] if "" in files else {role: file[""] for role, file in files.items()}, keys, where)
    if found.labels is not None and found.labels.shape == found.index.shape:
        kept = ~np.isin(found.labels.astype(str), keys.ignored)
        arrays = {name: value for name, value in found._asdict().items() if isinstance(value, np.ndarray)}
        rest = {name: value[kept] for name, value in arrays.items() if len(value) == len(kept)} if keys.ignored else {}
        found = found._replace(**rest, left_out=int(np.sum(~kept)))
        found = found._replace(labels=_class_numbers(found, keys.positive, where))
    return paths, _of_two_classes(found)


def _by_role(arrays, keys, where):
    names = {role: getattr(keys, role) or _own_name(arrays, role) for role in _NAMES}
    asked = [role for role in _SCORES if getattr(keys, role)]
    kind, *more = asked or [role for role in _SCORES if names[role]] or ["logits"]
    if more:
        raise InputError(f"{where} has {kind} and {more[0]}: say which by --logits-key or --probs-key alone")
    names |= {role: names[role] or role for role in (kind, "labels")}
    if where == "test" and not _columns(arrays, names["labels"]):
        names["labels"] = None
    roles = [kind, *(role for role in names if names[role] and role not in _SCORES)]
    values = {role: array_of(arrays, names[role], role, where) for role in roles}
    used = {name for role in roles for name in _columns(arrays, names[role])}
    scores, columns = values.pop(kind), _columns(arrays, names[kind])
    index = next(iter(arrays.values())).index if isinstance(arrays, _Columns) else None
    return Found(
        kind=kind,
        scores=scores,
        **{role: values.get(role) for role in ("labels", "group", "cluster", "weight")},
        classes=tuple(name.removeprefix(_stem(names[kind])) for name in columns) if len(columns) > 1 else None,
        unread=tuple(name for name in arrays if name not in used),
        index=np.arange(len(scores) if scores.ndim else 0) if index is None else index.to_numpy(),
        word=None if index is None else index.name,
    )


def _own_name(arrays, role):
    return next((name for name in _NAMES[role] if _columns(arrays, name)), None)


def _stem(name):
    return f"{name.removesuffix('_')}_"


def _columns(arrays, name):
    """The names in a file that a name means: itself, those of a list, or those of a table that begin with it and _."""
    for names in ([name], [_stem(name)[:-1]], [part.strip() for part in name.split(",")]):
        if all(part in arrays for part in names):
            return names
    return [other for other in arrays if isinstance(arrays, _Columns) and other.startswith(_stem(name))]


def _class_numbers(found, positive, where):
    """Labels as numbers where they name the classes of columns, or stand beside one column; others as they are."""
    texts, classes = found.labels.astype(str), found.classes
    if classes is None and (positive or found.scores.ndim == 1):
        held = Counter(texts.tolist())
        classes = max(_PAIRS, key=lambda pair: held[pair[0]] + held[pair[1]])
        if positive:
            del held[positive]
            classes = (*[label for label, _ in held.most_common(1)], positive)
    wrong = ~np.isin(texts, classes or ())
    if classes and not wrong.any():
        return np.array([*map({name: number for number, name in enumerate(classes)}.get, texts)])
    if classes and (found.scores.ndim == 1 or positive or texts.dtype == found.labels.dtype):
        row, names = np.argmax(wrong), ", ".join(classes[:8])
        mend = "mend it, or name class 1 of two by --positive=NAME"
        raise InputError(f"{where}, {found.place(row)}: label {shown(texts[row])!r} is none of {names}: {mend}")
    return found.labels


def _of_two_classes(found):
    """Scores of one column are class 1's: [1 - p, p], or [0, s]. Whether they are p or s may be for them to say."""
    scores, kind, is_column = found.scores, found.kind, found.scores.ndim == 1 and found.scores.dtype.kind in "fiu"
    if is_column:
        scores = np.stack([1 - scores.astype(np.float64), scores], axis=1)
    if kind == "scores":
        kind = "probs" if look_like_probabilities(np.where(scores == scores, scores, 0), OFF_ONE) else "logits"
    if is_column and kind == "logits":
        scores[np.isfinite(scores[:, 1]), 0] = 0
    return found._replace(scores=scores, kind=kind)


def array_of(arrays: Mapping[str, Any], name: str, role: str, where: str) -> np.ndarray:
    """The array of a role as NumPy's: of labels whole numbers, also where they are floats or text, of groups text."""
    names = _columns(arrays, name)
    if not names:
        there = ", ".join(map(repr, list(arrays)[:8])) or "none"
        raise InputError(f"{where} has no array {name!r}, only {there}: name the {role} by --{role}-key")
    if isinstance(arrays, _Columns):
        values = _of_columns([arrays[part] for part in names], where, is_text=role in _TEXTS)
    else:
        values = arrays[names[0]]
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


def open_arrays(path: Path, where: str, keys: Keys) -> Mapping[str, Any]:
    """The arrays of a file by name, or the columns of a table; the end of its name says the format.

    The array of an .npy file is named "".
    """
    suffix = tables.suffix_of(path)
    if suffix in _READERS and os.path.isfile(path):  # a pipe would be waited for
        return _READERS[suffix](path)
    if suffix not in tables.SUFFIXES or not os.path.isfile(path):
        known = (
            f"check the path, and give one of {', '.join((*_READERS, *tables.SUFFIXES))}, or logits=z.npy,labels=y.npy"
        )
        raise InputError(f"{where}: there is no file {path} of a known format: {tables.mend_of(path) or known}")
    table = tables.read_table(path, texts=[name for role in _TEXTS for name in (getattr(keys, role), *_NAMES[role])])
    table = lm_eval.outputs(table, path) if lm_eval.is_samples(table) else table
    stems = [_NUMBERED.sub(r"\1", name) for name in table.columns]
    return _Columns({stem: table.loc[:, [other == stem for other in stems]] for stem in stems})


def _of_columns(frames, where, *, is_text):
    """Columns of text, of numbers, or of lists, as one array."""
    import pandas

    frame = pandas.concat(frames, axis=1)
    (first, *more), index = frame.columns, frame.index
    is_column = not more and not _NUMBERED.fullmatch(first)
    if is_column and is_text:
        column = frame[first]
        column = column.astype(object).where(column.notna(), "") if column.dtype.kind == "O" else column
        values = np.array(column.tolist())
        return np.char.strip(values) if values.dtype.kind == "U" else values
    if is_column and isinstance(frame.iat[0, 0], (list, np.ndarray)):
        frame = pandas.DataFrame(dict(enumerate(zip_longest(*frame[first]))), index)
        is_column = False
    elif len(frames) == 1 and not is_column:
        frame = frame[
            [_NUMBERED.sub(rf"\1_{number}", first) for number in range(len(more) + 1)]
        ]  # in order, none missing
    numbers = frame.apply(pandas.to_numeric, errors="coerce")
    wrong = np.argwhere((numbers.isna() & frame.notna()).to_numpy())
    for row, column in wrong[:1]:
        what = f"{first if more else frame.columns[column]} is {shown(frame.iat[row, column])!r}, no number"
        raise InputError(f"{where}, {index.name} {index[row]}: {what}")
    values = numbers.to_numpy(np.float64)
    return values[:, 0] if is_column else values


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


_READERS: dict[str, Callable[[Path], Mapping[str, Any]]] = {
    ".npz": lambda path: np.load(io.BytesIO(path.read_bytes()), allow_pickle=False),  # lazily, with nothing to close
    ".npy": lambda path: {"": np.load(path, allow_pickle=False)},
    ".safetensors": load_file,
    ".pt": _read_torch,
    ".pth": _read_torch,
}
