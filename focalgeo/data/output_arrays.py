"""A classifier's outputs as they stand in a file: arrays by name, or columns of a table; labels as class numbers.

Nothing in a file is ever executed.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
from jaxtyping import Float32, Int32
from ml_dtypes import bfloat16  # makes the type known to NumPy too, which safetensors asks for it
from safetensors.numpy import load_file

from focalgeo import files
from focalgeo.data import sources, tables
from focalgeo.types import InputError, is_one_hot, library, shown

# Up to 2^53 a float64 is a whole number for certain; a larger label may have been rounded on its way.
_LARGEST_LABEL = 2**53
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
_PAIRS = (("0", "1"), ("-1", "1"), ("False", "True"))  # labels of two classes
_NUMBERED = re.compile(r"^(.+)_[0-9]+$")
# Of lm-evaluation-harness, by --log_samples.
_SAMPLES = re.compile(r"samples_(.+)_[^_]+\.jsonl(?:\.gz)?")
_ASK_SAMPLES = "give samples of a multiple-choice task, whose target is the number of a choice"


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
    multilabel: bool = False  # labels [rows, labels] of 0, 1 and what is missing, and a score for each


class Outputs(NamedTuple):
    """One split's outputs as logits; from probabilities the logits are log p."""

    kind: str  # "logits" or "probs"; of `read_arrays` also "scores", which are either
    logits: Float32[np.ndarray, "examples classes"]  # finite, or -inf of a class that cannot be
    labels: Int32[np.ndarray, " examples"] | None = None  # None where test has none
    group: np.ndarray | None = None  # text [examples]
    cluster: np.ndarray | None = None  # text [examples]
    weight: np.ndarray | None = None  # float64 [examples], above 0
    checksum: str = ""  # SHA-256 of each file, in the order named
    unit: int = 0  # probabilities with zeros are multiples of 1/unit; 0 where they are not
    unread: tuple[str, ...] = ()  # names of arrays or columns that are not used
    looks_like_probs: bool = False  # given as logits, but every row is in [0, 1] and sums to 1
    classes: tuple[str, ...] | None = None  # the names of the columns
    left_out: int = 0  # rows whose label is ignored; of several labels a row those that are kept with the label -1
    is_column: bool = False  # the scores of class 1 of two
    index: Any = None  # a pandas.Index named "line", of the file, or "row"

    def place(self, row: int) -> str:
        """What a row is called in messages."""
        return f"{self.index.name} {self.index[row]}"


class _Columns(dict):
    """Name -> the places of its columns in a pandas.DataFrame: `name_0`, `name_1`, ... are those of `name`."""

    table: Any


def read_arrays(source: str, keys: Keys, where: str) -> Outputs:
    """Outputs as they stand in the files of a source, not yet checked: `logits` are the scores, perhaps one column.

    Raises:
        InputError: an array that is missing, a cell that is no number, a label that is none of the classes named.
    """
    paths = paths_of(source)
    files = {role: open_arrays(path, keys) for role, path in paths.items()}
    arrays = files[""] if "" in files else {role: file[""] for role, file in files.items()}
    outputs = _by_role(arrays, keys, where)._replace(checksum=checksum(paths.values()))
    if len(outputs.classes or ()) == 2 and outputs.classes[0] == keys.positive:
        outputs = outputs._replace(classes=outputs.classes[::-1], logits=outputs.logits[:, ::-1])
    if keys.multilabel:
        return _of_labels(outputs, keys.ignored, where)
    if np.shape(outputs.labels) == outputs.logits.shape and is_one_hot(outputs.labels):
        outputs = outputs._replace(labels=outputs.labels.argmax(axis=1))
    if np.shape(outputs.labels) == outputs.index.shape:
        if keys.ignored:
            kept = ~np.isin(outputs.labels.astype(str), keys.ignored)
            outputs = rows_of(outputs, kept)._replace(left_out=np.sum(~kept))
        outputs = outputs._replace(labels=_class_numbers(outputs, keys.positive, where))
    return outputs


def rows_of(outputs: Outputs, rows: np.ndarray) -> Outputs:
    """These rows of each array that has a value for each, by numbers or truth values."""
    of_rows = {
        name: value[rows]
        for name, value in outputs._asdict().items()
        if getattr(value, "shape", ())[:1] == outputs.index.shape
    }
    return outputs._replace(**of_rows)


def paths_of(source: str) -> dict[str, Path]:
    """The files that a source names, by role; "" of one that holds all."""
    parts = re.findall(rf"(?:^|, *)({_ROLES})=(.+?)(?=, *(?:{_ROLES})=|$)", source)
    if not parts or os.path.isfile(os.path.expanduser(source)):  # whatever its name looks like
        parts = [("", source)]
    return {role: Path(os.path.expanduser(text)) for role, text in parts}


def checksum(paths: Iterable[Path]) -> str:
    """SHA-256 of each file, in order."""
    return " ".join(f"sha256:{sources.checksum(each)}" for path in paths for each in _files(path))


def _by_role(arrays, keys, where):
    names = {
        role: getattr(keys, role) or next((name for name in own if _columns(arrays, name, role)), None)
        for role, own in _NAMES.items()
    }
    kind, *more = (
        [role for role in _SCORES if getattr(keys, role)] or [role for role in _SCORES if names[role]] or ["logits"]
    )
    if more:
        raise InputError(f"{where} has {kind} and {more[0]}: say which by --logits-key or --probs-key alone")
    names |= {role: names[role] or role for role in (kind, "labels")}
    if where != "val" and names["labels"] not in arrays:
        del names["labels"]
    used = [role for role in names if names[role] and (role == kind or role not in _SCORES)]
    values = {role: array_of(arrays, names[role], role, where) for role in used}
    columns, scores = _columns(arrays, names[kind], kind), values.pop(kind)
    if scores.shape[1:] == (1,) and not keys.multilabel:
        scores = scores[:, 0]
    return Outputs(
        kind=kind,
        logits=scores,
        **values,
        unread=tuple(other for other in arrays if other not in {*columns, *map(names.get, used)}),
        classes=tuple(name.removeprefix(_stem(names[kind])) for name in columns) if len(columns) > 1 else None,
        index=arrays.table.index if isinstance(arrays, _Columns) else pandas.RangeIndex(len(scores), name="row"),
    )


def _stem(name):
    return f"{name.removesuffix('_')}_"


def _columns(arrays, name, role):
    """What a name means in a file: itself; of scores also those of a list, or those of a table that begin with it."""
    names = [name] if name in arrays else [part.strip().removesuffix("_") for part in name.split(",")]
    if all(part in arrays for part in names):
        return names
    names = [other for other in arrays if other.startswith(_stem(name))]
    return names if isinstance(arrays, _Columns) and role in _SCORES and len(names) > 1 else []


def _class_numbers(outputs, positive, where):
    """Labels as numbers where they name the classes of columns, or stand beside one column; others as they are."""
    labels, classes, is_column = outputs.labels, outputs.classes, outputs.logits.ndim == 1
    texts = labels.astype(str)
    if is_column and not positive:
        texts = np.char.title(texts)  # programs write true, TRUE and True
        classes = max(_PAIRS, key=lambda pair: np.isin(texts, pair).sum())
    elif positive and not classes:
        classes = (*texts[texts != positive][:1], positive)
    numbers = pandas.Index(classes or ()).get_indexer(texts)
    if (numbers >= 0).all():
        return numbers
    row, mend = np.argmin(numbers), "fix it, or name class 1 of two by --positive=NAME"
    what = f"none of {', '.join((classes or ())[:8])}"
    wrong = pandas.to_numeric(pandas.Series(texts), errors="coerce").isna()
    if not (is_column or positive) and 0 < wrong.mean() < 0.5:  # numbers, but for some
        row, what, mend = np.argmax(wrong), "no class number", "fix it, or leave out the row"
    elif not classes or not (is_column or positive or labels.dtype.kind == "U"):
        return labels
    raise InputError(f"{where}, {outputs.place(row)}: label {shown(labels[row])!r} is {what}: {mend}")


def _of_labels(outputs, ignored, where):
    """Each pair of a row and a label as a row of one score: its group is the label, its cluster the row.

    A label that is missing, as NaN, an empty cell or -1, or ignored is -1.
    """
    scores, labels = outputs.logits, outputs.labels
    labels = np.zeros(scores.shape) if labels is None else labels
    if outputs.group is not None:
        raise InputError(f"{where} has groups: of several labels a row the labels are the groups, leave it out")
    if labels.dtype.kind in "iuf":
        labels = np.where(labels > -np.inf, labels, -1.0)
        labels[np.isin(labels.astype(int).astype(str), ignored)] = -1
    there = labels != -1
    if scores.ndim != 2 or labels.shape != scores.shape or not np.isin(labels[there], (0, 1)).all():
        what = f"labels have shape {np.shape(labels)}, scores {scores.shape}"
        raise InputError(
            f"{where}: {what}: of several labels a row give both [rows, labels], and labels of 0 and 1, NaN or -1 where"
            " there is none, or --ignore-label; of probabilities [labels, rows, 2] give probs[..., 1].T"
        )
    if where == "val" and not (judged := there.any(axis=0)).all():
        raise InputError(f"{where}: no row has label {np.argmin(judged)}, from 0: leave its column out")
    # Pairs of one row are not independent, so that each row is a cluster; each label is calibrated by itself.
    row, label = np.indices(scores.shape).reshape(2, -1)
    cluster = np.arange(len(scores)).astype(str) if outputs.cluster is None else outputs.cluster
    return rows_of(outputs._replace(cluster=cluster), row)._replace(
        logits=scores.ravel(),
        labels=None if outputs.labels is None else labels.ravel().astype(int),
        left_out=np.sum(~there),
        group=np.array(outputs.classes or range(scores.shape[1]), str)[label],
        classes=None,
    )


def array_of(arrays: Mapping[str, Any], name: str, role: str, where: str) -> np.ndarray:
    """The array of a role as NumPy's: of labels whole numbers, also where they are floats or text, of groups text."""
    names = _columns(arrays, name, role)
    if not names:
        there = ", ".join(map(repr, list(arrays)[:8])) or "none"
        mend = "scores by --logits-key or --probs-key" if role in _SCORES else f"{role} by --{role}-key"
        if parts := [other for other in arrays if role in _SCORES and other.startswith(name)]:
            mend += f"={','.join(parts)}"
        raise InputError(f"{where} has no array {name!r}, only {there}: name the {mend}")
    values = arrays[names[0]]
    if isinstance(arrays, _Columns):
        frame = arrays.table.iloc[:, [place for part in names for place in arrays[part]]]
        if role in _TEXTS and frame.shape[1] == 1:
            values = np.array(frame.iloc[:, 0].tolist())
        else:
            values = _numbers(frame, where, is_numbered=len(names) == 1 < frame.shape[1])
    # NumPy's own files hold bfloat16 as two bytes without a name.
    if values.dtype in (bfloat16, np.dtype("V2")):
        return values.view(bfloat16).astype(np.float32)
    if role == "labels" and values.dtype.kind in "fUO":
        try:
            numbers = values.astype(np.float64)
        except (ValueError, TypeError):
            return values
        whole = (np.abs(numbers) < _LARGEST_LABEL) & (numbers == np.round(numbers))
        return numbers.astype(np.int64) if whole.all() else numbers
    if role in ("group", "cluster") and values.dtype.kind in "USbiufM":
        return np.where(values != values, "", values.astype(str))  # NaN, which differs from itself, is no name
    return values


def open_arrays(path: Path, keys: Keys) -> Mapping[str, Any]:
    """The arrays of a file by name, or the columns of a table; the end of its name says the format.

    The array of an .npy file is named "".
    """
    suffix, (first, *more) = tables.suffix_of(path), _files(path)
    if suffix in _READERS and os.path.isfile(first):  # a pipe would be waited for
        if more:
            raise InputError(f"{path} stands for {1 + len(more)} files: name one, as only tables are joined")
        return _READERS[suffix](first)
    texts = [name for role in _TEXTS for name in (getattr(keys, role), *_NAMES[role])]
    table = pandas.concat([_of_samples(tables.read_table(each, texts=texts), each) for each in (first, *more)])
    table = table.copy()  # columns of one type in one array, which thousands of columns are read from at once
    asked = {part for key in keys[:7] for part in (key or "").split(",")}
    stems = {name: _NUMBERED.sub(r"\1", name) for name in table.columns if name not in asked}
    counts, columns = Counter(stems.values()), _Columns()
    for place, name in enumerate(table.columns):
        stem = stems.get(name, name)
        columns.setdefault(stem if counts[stem] > 1 else name, []).append(place)
    columns.table = table
    return columns


def _of_samples(table, path):
    """Columns logits (log-likelihoods), labels, group (the task) and cluster (the document) of a table of samples.

    A sample of a multiple-choice task, a line of samples_TASK_DATE.jsonl, holds `filtered_resps`, [log-likelihood, is
    greedy] of each choice, and `target`, the number of the right one; the numbers may be written as text. Another table
    is given back. Source: lm_eval/evaluator.py and lm_eval/loggers/evaluation_tracker.py of
    EleutherAI/lm-evaluation-harness.
    """
    if not {"doc_id", "target"} <= {*table} or {"resps", "filtered_resps"}.isdisjoint(table):
        return table
    logits, labels = [], []
    for line, sample in zip(table.index, table.to_dict("records"), strict=True):
        with files.reading(f"{path}, line {line},", _ASK_SAMPLES):
            pairs = sample["filtered_resps"] if "filtered_resps" in sample else [first for first, *_ in sample["resps"]]
            # With acc_mutual_info the log-likelihoods without the question follow those with it.
            kept = len(pairs) // 2 if "acc_mutual_info" in sample else None
            logits.append([float(value) for value, _ in pairs][:kept])
            labels.append(int(sample["target"]))
    group = table.get("task", pandas.Series(_SAMPLES.sub(r"\1", path.name), table.index))
    cluster = group + "/" + table["doc_id"].astype(str)
    return pandas.DataFrame({"logits": logits, "labels": labels, "group": group, "cluster": cluster}, table.index)


def _files(path):
    """The path, or the paths that a pattern with * stands for."""
    return sorted(path.parent.glob(path.name)) or [path] if "*" in path.name else [path]


def _numbers(frame, where, is_numbered):
    """Columns of numbers, or one of lists, as float64 [rows, columns], or [rows] of one that is not numbered."""
    index, first = frame.index, frame.columns[0]
    if isinstance(frame.iat[0, 0], (list, np.ndarray)):
        columns = zip_longest(*frame[first])
        frame = pandas.DataFrame({f"{first}[{number}]": column for number, column in enumerate(columns)}, index)
    # The columns may stand in any order, but none may be missing.
    elif is_numbered:
        names = [_NUMBERED.sub(rf"\1_{number}", first) for number in range(frame.shape[1])]
        if {*names} != {*frame}:
            raise InputError(
                f"{where} has columns {', '.join(frame.columns[:8])}: number them from 0 to {len(names) - 1}"
            )
        frame = frame[names]
    numbers = frame
    if any(dtype.kind not in "iufb" for dtype in frame.dtypes):
        numbers = frame.apply(pandas.to_numeric, errors="coerce")
        for row, column in np.argwhere((numbers.isna() & frame.notna()).to_numpy())[:1]:
            what = f"{frame.columns[column]} is {shown(frame.iat[row, column])!r}, no number"
            raise InputError(f"{where}, {index.name} {index[row]}: {what}")
    if len(numbers.columns) == 1:
        return numbers.iloc[:, 0].to_numpy(np.float64)
    values = numbers.to_numpy(np.float64)
    return np.where(np.isnan(values), -np.inf, values)


def _read_torch(path):
    torch = library("torch")
    with files.reading(path, 'run the model, and torch.save({"logits": tensor, "labels": tensor}, path)'):
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(tensors, Mapping):
        tensors = {"logits": tensors}
    # NumPy has no bfloat16
    return {
        name: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()
        for name, tensor in tensors.items()
    }


_READERS = {
    ".npz": sources.open_npz,
    ".npy": lambda path: {"": np.load(path, allow_pickle=False)},
    ".safetensors": load_file,
    ".pt": _read_torch,
    ".pth": _read_torch,
}
