"""A classifier's outputs with their labels, read from files of any framework; what they are is said, never guessed."""

import difflib
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from focalgeo.data.archives import checksum
from focalgeo.data.logits_checks import check_group, check_probs, check_shapes, check_values, sums_to_1
from focalgeo.data.logits_formats import Arrays, open_arrays
from focalgeo.types import InputError

PROBABILITY_FLOOR = 1.1754944e-38  # the least that float32 holds to full precision
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
    logits: np.ndarray  # float32 [examples, classes], finite
    labels: np.ndarray  # int32 [examples]
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
    given, name = _scores_name(arrays, keys, where)
    scores, labels = arrays[name](), arrays[_named(arrays, keys, "labels", where)]()
    optional = keys.group is not None or "group" in arrays
    group = arrays[_named(arrays, keys, "group", where)]() if optional else None
    if scores.dtype.kind not in "fiu":
        raise InputError(f"{where}: {given} are of type {scores.dtype}: give numbers")
    labels = _whole_numbers(labels, where)
    check_shapes(scores, labels, group, given, where)
    check_values(scores, labels, given, where)
    if given == "probs":
        check_probs(scores, where)
    if group is not None:
        check_group(group, where)
    return Outputs(
        source=source,
        checksum=" ".join(f"sha256:{checksum(path)}" for path in files),
        given=given,
        logits=_log(scores) if given == "probs" else scores.astype(np.float32),
        labels=labels.astype(np.int32),
        group=None if group is None else group.astype(str),
        saturated=int(((scores <= 0) | (scores >= 1)).any(axis=1).sum()) if given == "probs" else 0,
        looks_like_probs=given == "logits" and sums_to_1(scores),
    )


def _open(source: str, where: str) -> tuple[list[Path], Arrays]:
    parts = dict(re.findall(rf"(?:^|,)({'|'.join(_ROLES)})=(.+?)(?=,(?:{'|'.join(_ROLES)})=|$)", source))
    _check_roles(source, parts, where)
    if not parts:
        path = Path(source)
        if path.suffix.lower() == ".npy":
            raise InputError(f"--{where}={source}: an .npy file has no names; give --{where}=logits=z.npy,labels=y.npy")
        return [path], open_arrays(path)
    paths = {role: Path(text) for role, text in parts.items()}
    for role, path in paths.items():
        if path.suffix.lower() != ".npy":
            raise InputError(f"--{where}: {role}={path} is no .npy file; give other formats as --{where}=PATH")
    return list(paths.values()), {role: open_arrays(path)[""] for role, path in paths.items()}


def _check_roles(source: str, parts: dict[str, str], where: str) -> None:
    """Refuses "logit=z.npy" and a list of .npy files without labels or without logits."""
    for name in re.findall(r"(?:^|,)(\w+)=", source):
        if name not in _ROLES and source.count(".npy") and not Path(source).exists():
            nearest = difflib.get_close_matches(name, _ROLES, n=1, cutoff=0.0)[0]
            raise InputError(f"--{where}={source}: {name}= is not known; did you mean {nearest}=?")
    if parts and "labels" not in parts:
        raise InputError(f"--{where}={source} has no labels: add ,labels=y.npy")
    if parts and not {"logits", "probs"} & set(parts):
        raise InputError(f"--{where}={source} has neither logits nor probs: begin with logits=z.npy or probs=p.npy")


def _scores_name(arrays: Arrays, keys: Keys, where: str) -> tuple[str, str]:
    """("logits" or "probs", name of the array)."""
    said = [(role, name) for role, name in (("logits", keys.logits), ("probs", keys.probs)) if name is not None]
    found = said or [(role, role) for role in ("logits", "probs") if role in arrays]
    if len(found) > 1:
        raise InputError(
            f"{where} has logits and probs: say which by --logits-key={found[0][1]} or --probs-key={found[1][1]}"
        )
    if not found or found[0][1] not in arrays:
        wanted = f"no array {found[0][1]!r}" if found else "neither logits nor probs"
        raise InputError(f"{where} has {wanted}, only {_names(arrays)}: name it by --logits-key or --probs-key")
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
    """Labels as integers; text, as a csv file holds it, is read as whole numbers and nothing else."""
    if labels.ndim == 2 and labels.shape[1] > 1:
        raise InputError(f"{where}: labels have shape {labels.shape}: give class numbers, labels.argmax(1) of one-hot")
    if labels.dtype.kind in "iu":
        return labels
    if labels.dtype.kind == "U":
        wrong = [i for i, text in enumerate(labels.flat) if not re.fullmatch(r"[+-]?\d{1,18}", text)]
        if not wrong:
            return labels.astype(np.int64)
        raise InputError(
            f"{where}: labels[{wrong[0]}] is {str(labels.flat[wrong[0]])!r}: give class numbers 0, 1, 2 ..."
        )
    raise InputError(f"{where}: labels are {labels.dtype}: give class numbers as integers, labels.astype(int)")


def _log(probs: np.ndarray) -> np.ndarray:
    """Log-probabilities, those below PROBABILITY_FLOOR (log: -87.3) as that, whatever the type: 0 has no logarithm."""
    return np.log(np.maximum(probs.astype(np.float64), PROBABILITY_FLOOR)).astype(np.float32)
