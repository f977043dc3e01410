"""Classifier outputs with their labels, read from files of any framework: logits or probabilities, as the user says."""

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32

from focalgeo.data.archives import checksum
from focalgeo.data.logits_formats import Arrays, open_arrays
from focalgeo.files import UNUSABLE
from focalgeo.types import InputError, expanded, floored_log, look_like_probabilities

_LARGEST_LOGIT = 1e30  # sums of more would leave float32
_ROUNDED = 0.01  # share of the examples whose predicted class rounding alone may change
_LARGE_LOGIT = 1e6  # float32 rounds what is less by 0.03 at the most
_FEWEST_EXAMPLES = 30
_LARGEST_LABEL = 2**53  # up to which a float is a whole number for certain
_NEGATIVE_ROUNDING = 1e-6  # a probability this far below 0 counts as 0
_SUM_TOLERANCE = {2: 2e-2, 4: 1e-3, 8: 1e-3}  # by bytes of the type: what rounding leaves of a sum of 1
_ROLES = ("logits", "probs", "labels", "group")


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
        source: A path (.npz, .csv, .safetensors, .pt), or "logits=z.npy,labels=y.npy[,group=g.npy]"; "probs=" likewise.
        keys: Names of the arrays in the file; "logits" or "probs", "labels" and "group" where None.
        where: The name of the split, for messages.

    Returns:
        Outputs. A probability below PROBABILITY_FLOOR, 0 too, counts as that floor.

    Raises:
        InputError: a file that cannot be read, pickled objects, an array that is missing or said twice, a wrong shape
        or type, numbers that are not finite, labels out of range, probabilities that are none, fewer than 30 examples.
    """
    files, arrays = _open(source, where)
    given, name = _scores_name(arrays, keys, where, of_columns=files[0].suffix.lower() == ".csv")
    scores, labels = arrays[name](), arrays[_named(arrays, keys, "labels", where)]()
    optional = keys.group is not None or "group" in arrays
    group = arrays[_named(arrays, keys, "group", where)]() if optional else None
    if scores.dtype.kind not in "fiu":
        raise InputError(f"{where}: {given} are of type {_type(scores)}: give numbers")
    _check_shapes(scores, labels, group, given, where)
    labels = _whole_numbers(labels, where)
    _check_values(scores, labels, given, where)
    if given == "probs":
        _check_probs(scores, where)
    group = None if group is None else _group_names(group, where)
    return Outputs(
        source=source,
        checksum=" ".join(f"sha256:{checksum(path)}" for path in files),
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
    arrays = open_arrays(Path(expanded(path)))
    found = {}
    for split, shape in shapes.items():
        if split not in arrays:
            raise InputError(f"{where} has no array {split!r}, only {_names(arrays)}: give probabilities of {split}")
        probs = arrays[split]()
        if probs.dtype.kind not in "fiu" or probs.shape != shape:
            what = f"{where}: {split} is {_type(probs)}{list(probs.shape)}"
            raise InputError(f"{what}: give probabilities {list(shape)}, as --{split} has examples and classes")
        if not np.isfinite(probs).all():
            raise InputError(f"{where}: {split} holds NaN or infinite numbers: remove or mend them")
        _check_probs(probs, f"{where}, {split}")
        found[split] = floored_log(probs)
    return found


def _open(source: str, where: str) -> tuple[list[Path], Arrays]:
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", source):
        raise InputError(f"--{where}={source} is an address: fetch the file and give its path")
    names = "|".join(_ROLES)
    is_file = os.path.isfile(expanded(source))  # whatever its name looks like
    found = [] if is_file else re.findall(rf"(?:^|, *)({names})=(.+?)(?=, *(?:{names})=|$)", source)
    parts = dict(found)
    if len(parts) < len(found):
        raise InputError(f"--{where}={source} says the same array twice: give one file of each")
    _check_roles(source, parts, where)
    if not parts:
        path = Path(expanded(source))
        if path.suffix.lower() == ".npy":
            raise InputError(f"--{where}={source}: an .npy file has no names; give --{where}=logits=z.npy,labels=y.npy")
        return [path], open_arrays(path)
    paths = {role: Path(expanded(text)) for role, text in parts.items()}
    for role, path in paths.items():
        if path.suffix.lower() != ".npy":
            raise InputError(f"--{where}: {role}={path} is no .npy file; give other formats as --{where}=PATH")
    return list(paths.values()), {role: open_arrays(path)[""] for role, path in paths.items()}


def _check_roles(source: str, parts: dict[str, str], where: str) -> None:
    """Refuses "logit=z.npy" and a list of .npy files without labels or without logits."""
    for name in re.findall(r"(?:^|[,;] *)(\w+)=", source):
        if name not in _ROLES and source.count(".npy") and not os.path.isfile(expanded(source)):
            nearest = difflib.get_close_matches(name.lower(), _ROLES, n=1, cutoff=0.0)[0]
            raise InputError(f"--{where}={source}: {name}= is not known; did you mean {nearest}=?")
    if parts and re.search(rf"; *({'|'.join(_ROLES)})=", source):
        raise InputError(f"--{where}={source}: put a comma between the files, as in logits=z.npy,labels=y.npy")
    if parts and "labels" not in parts:
        raise InputError(f"--{where}={source} has no labels: add ,labels=y.npy")
    if parts and not {"logits", "probs"} & set(parts):
        raise InputError(f"--{where}={source} has neither logits nor probs: begin with logits=z.npy or probs=p.npy")


def _scores_name(arrays: Arrays, keys: Keys, where: str, *, of_columns: bool) -> tuple[str, str]:
    """("logits" or "probs", name of the array)."""
    said = [(role, name) for role, name in (("logits", keys.logits), ("probs", keys.probs)) if name is not None]
    found = said or [(role, role) for role in ("logits", "probs") if role in arrays]
    if len(found) > 1:
        raise InputError(
            f"{where} has logits and probs: say which by --logits-key={found[0][1]} or --probs-key={found[1][1]}"
        )
    if not found or found[0][1] not in arrays:
        wanted = f"no array {found[0][1]!r}" if found else "neither logits nor probs"
        mended = "name it by --logits-key or --probs-key"
        if of_columns and not found:
            mended = "call its columns labels and, one a class, probs_0, probs_1, ... (or logits_0, ...)"
        raise InputError(f"{where} has {wanted}, only {_names(arrays)}: {mended}")
    return found[0]


def _named(arrays: Arrays, keys: Keys, role: str, where: str) -> str:
    name = getattr(keys, role) or role
    if name not in arrays:
        raise InputError(f"{where} has no array {name!r}, only {_names(arrays)}: name the {role} by --{role}-key")
    return name


def _names(arrays: Arrays) -> str:
    names = [repr(name) for name in list(arrays)[:8]]
    return ", ".join([*names, "..."] if len(arrays) > 8 else names) or "none at all"


def _whole_numbers(labels: np.ndarray, where: str) -> np.ndarray:
    """Labels as integers; text, as a csv file holds it, and floats are taken if they are whole, as 2 or 2.0."""
    if labels.dtype.kind in "iu":
        return labels
    if labels.dtype.kind == "f":
        labels = labels.astype(np.promote_types(labels.dtype, np.float64))
        strange = np.flatnonzero(~(np.abs(labels) < _LARGEST_LABEL) | (labels != np.round(labels)))
        if strange.size:
            first = strange[0]
            raise InputError(f"{where}: labels[{first}] is {labels[first]}, no class number: give 0, 1, 2 ...")
        return labels.astype(np.int64)
    if labels.dtype.kind == "U":
        texts = _texts(labels, "labels", where)
        wrong = next((i for i, text in enumerate(texts) if not re.fullmatch(r"[+-]?[0-9]{1,18}(\.0*)?", text)), None)
        if wrong is None:
            return np.array([int(text.partition(".")[0]) for text in texts], np.int64)
        raise InputError(f"{where}: labels[{wrong}] is {texts[wrong][:40]!r}: give class numbers 0, 1, 2 ...")
    raise InputError(f"{where}: labels are {_type(labels)}: give class numbers as integers, labels.astype(int)")


def _type(array: np.ndarray) -> str:
    return str(array.dtype)[:60]  # a structured type has any number of names


def _as_float32(logits: np.ndarray, where: str) -> np.ndarray:
    """Logits as float32; of wider types each row less its maximum, if they are large, lest differences round away.

    Refuses those of which float32 does not hold what class is predicted, as tiny ones.
    """
    found = logits.astype(np.float32)
    if logits.dtype.itemsize > 4 and np.abs(found).max() > _LARGE_LOGIT:
        top = logits.max(axis=1, keepdims=True)
        whole = logits.dtype.kind in "iu"  # differences modulo 2^64 are exact, with sign and without
        below = top.astype(np.uint64) - logits.astype(np.uint64) if whole else top - logits
        found = -below.astype(np.float32)
    lost = np.flatnonzero(logits.argmax(axis=1) != found.argmax(axis=1))
    if lost.size > _ROUNDED * len(logits):
        what = f"{where}: float32 does not hold which of the logits of {lost.size} examples is the largest"
        raise InputError(f"{what}, the first in row {lost[0]}: scale tiny ones up, subtract each row's largest")
    return found


def _check_shapes(scores: np.ndarray, labels: np.ndarray, group: np.ndarray | None, given: str, where: str) -> None:
    """Refuses what is not one row of two or more classes for each label, and fewer than 30 rows."""
    zeros = "1 - p, p" if given == "probs" else "0 * z, z"
    if scores.ndim != 2:
        hint = f"; of two classes give both, np.stack([{zeros}], 1)" if scores.ndim == 1 else ""
        raise InputError(f"{where}: {given} have shape {scores.shape}: give [examples, classes]{hint}")
    if scores.shape[1] < 2:
        hint = f"; of two classes give both, np.concatenate([{zeros}], 1)" if scores.shape[1] == 1 else ""
        count = f"{scores.shape[1]} class{'es' if scores.shape[1] != 1 else ''}"
        raise InputError(f"{where}: {given} have {count}: give two or more{hint}")
    if labels.ndim == 2:
        hint = "labels[:, 0]" if labels.shape[1] == 1 else "labels.argmax(1) of one-hot"
        raise InputError(f"{where}: labels have shape {labels.shape}: give class numbers, {hint}")
    if group is not None and group.shape == (len(scores), 1):
        raise InputError(f"{where}: group has shape {group.shape}: give group[:, 0]")
    for name, array, has in (("labels", labels, "have"), ("group", group, "has")):
        if array is not None and array.shape != scores.shape[:1]:
            shapes = f"{name} {has} shape {array.shape}, {given} {scores.shape}"
            raise InputError(f"{where}: {shapes}: give one for each row of {given}")
    if len(scores) < _FEWEST_EXAMPLES:
        few = f"{where} has {len(scores)} examples, too few to fit or to measure calibration"
        raise InputError(f"{few}: give {_FEWEST_EXAMPLES} at the very least, and some hundreds for a useful answer")


def _check_values(scores: np.ndarray, labels: np.ndarray, given: str, where: str) -> None:
    """Refuses numbers that are not finite or too large, and labels out of range or of one class."""
    bad = np.flatnonzero(~np.isfinite(scores).all(axis=1))
    if bad.size:
        what = f"{where}: {given} of {bad.size} examples are NaN or infinite"
        raise InputError(f"{what}, the first in row {bad[0]}: remove or mend them")
    largest = float(np.abs(scores).max())
    if largest > _LARGEST_LOGIT:
        raise InputError(
            f"{where}: {given} run up to {largest:.3g}, beyond {_LARGEST_LOGIT:g}: look for what made them"
        )
    outside = np.flatnonzero((labels < 0) | (labels >= scores.shape[1]))
    if outside.size:
        first, last = outside[0], scores.shape[1] - 1
        what = f"{where}: labels[{first}] is {labels[first]}"
        raise InputError(f"{what}: with {last + 1} classes give labels from 0 to {last}{_off_by_one(labels, last + 1)}")
    if labels.min() == labels.max():
        raise InputError(f"{where}: all labels are {labels[0]}, one class: calibration needs examples of two or more")


def _off_by_one(labels: np.ndarray, num_classes: int) -> str:
    """The mend for labels that are counted from 1, or with the -1 that stands for no label."""
    least, most = int(labels.min()), int(labels.max())
    if (least, most) == (1, num_classes):
        return f"; these run from 1 to {num_classes}: give labels - 1"
    if least == -1 and most < num_classes:
        return "; if -1 stands for no label, leave these examples out"
    return ""


def _check_probs(probs: np.ndarray, where: str) -> None:
    """Refuses negative numbers (beyond rounding) and rows that do not sum to 1."""
    negative = np.argwhere(probs < -_NEGATIVE_ROUNDING)
    if negative.size:
        row, column = negative[0]
        what = f"{where}: probs[{row}, {column}] is {probs[row, column]:.6g}, no probability"
        raise InputError(f"{what}: if these are logits, say --logits-key")
    off = np.abs(probs.sum(axis=1, dtype=np.float64) - 1)
    wrong = np.count_nonzero(off > _tolerance(probs))
    if wrong:
        worst = int(off.argmax())
        total = probs[worst].sum(dtype=np.float64)
        what = (
            f"{where}: {wrong} of {len(probs)} rows of probs do not sum to 1, the worst is row {worst} with {total:.6g}"
        )
        raise InputError(f"{what}: give probabilities of all classes, or say --logits-key if these are logits")


def _group_names(group: np.ndarray, where: str) -> np.ndarray:
    """Groups as text; refuses those that are NaN, empty or no text of one line."""
    if group.dtype.kind not in "USbiufM":
        raise InputError(f"{where}: group is of type {_type(group)}: give names or numbers")
    names = np.array(_texts(group, "group", where), str)
    missing = group != group if group.dtype.kind in "fM" else np.char.strip(names) == ""
    if missing.any():
        first = int(np.flatnonzero(missing)[0])
        raise InputError(f"{where}: group of {missing.sum()} examples is missing, the first in row {first}: name them")
    wrong = next(filter(UNUSABLE.search, np.unique(names).tolist()), None)
    if wrong is not None:
        raise InputError(f"{where}: group {ascii(wrong)[:60]} is no text of one line: give plain names")
    return names


def _texts(array: np.ndarray, name: str, where: str) -> list[str]:
    try:
        return array.astype(str).tolist()
    except (ValueError, SystemError) as error:  # bytes, or code points, that are no text
        raise InputError(f"{where}: {name} hold bytes that are no text: give numbers or plain names") from error


def _tolerance(probs: np.ndarray) -> float:
    """Deviation of a sum from 1 that rounding explains, by the digits in the numbers: bfloat16 may come as float32."""
    if probs.dtype.kind != "f":
        return 0.0
    if probs.dtype.itemsize == 4 and not np.any(np.ascontiguousarray(probs).view(np.uint32) & 0xFFFF):
        return _SUM_TOLERANCE[2]
    return _SUM_TOLERANCE.get(probs.dtype.itemsize, 1e-3)
