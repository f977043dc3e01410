"""Inputs of the calibrate command: its options, the files that they name, and the folder that receives the results.

Nothing here needs jax, so that wrong input is answered at once.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from focalgeo import records
from focalgeo.data.logits_files import Keys, Outputs, read_calibrated, read_outputs
from focalgeo.files import free_memory
from focalgeo.types import InputError, shown

MOST_GROUPS = 100
_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
_BYTES_OF_BIN = 40  # for each example: a float32 in each of five methods, and as many while they are made
FILES = (  # what the command leaves in --out
    *(records.MANIFEST, records.METRICS_FILE, "search.npz", "calibrator.json", "report.html"),
    *("probabilities/val.npz", "probabilities/test.npz", "probabilities/cross_fit.npz"),
)


class Options(NamedTuple):
    """Options of the calibrate command, named as its flags."""

    val: str
    test: str | None
    out: str
    logits_key: str | None
    probs_key: str | None
    labels_key: str | None
    group_key: str | None
    methods: tuple[str, ...]  # () for the default
    criterion: str
    criteria: tuple[str, ...]
    metrics: tuple[str, ...]
    trained_gamma: float | None
    also: tuple[str, ...]  # NAME=PATH
    num_folds: int
    num_bins: int
    num_resamples: int
    seed: int


COMPARED = ("criterion", "criteria", "metrics", "trained_gamma", "num_folds", "num_bins", "num_resamples", "seed")


class Inputs(NamedTuple):
    """Outputs of val, of test, and predictions from elsewhere, as read from files."""

    val: Outputs
    test: Outputs | None
    also: dict[str, tuple[np.ndarray, np.ndarray | None]]  # name -> log-probabilities of val and of test


def read_inputs(options: Options) -> Inputs:
    """Read val, test and others' predictions, as far as they are given, and check what --out holds; nothing is written.

    Raises:
        InputError: whatever is wrong with the files, with the two together, or with --out.
    """
    keys = Keys(options.logits_key, options.probs_key, options.labels_key, options.group_key)
    val = read_outputs(options.val, keys, where="val")
    test = read_outputs(options.test, keys, where="test") if options.test else None
    if test is not None and test.logits.shape[1] != val.logits.shape[1]:
        classes = f"val has {val.logits.shape[1]} classes and test {test.logits.shape[1]}"
        raise InputError(f"{classes}: give two files of one classifier")
    _check_groups(val if test is None else test)
    if options.num_folds > len(val.labels):
        raise InputError(f"--folds is {options.num_folds}, but val has {len(val.labels)} examples: give fewer")
    _check_bins(options.num_bins, val, test)
    inputs = Inputs(val, test, _read_also(options.also, val, test))
    _check_out(options, inputs)
    return inputs


def _read_also(
    also: Sequence[str], val: Outputs, test: Outputs | None
) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    """Predictions of --also=NAME=PATH by name."""
    shapes = {"val": val.logits.shape} | ({} if test is None else {"test": test.logits.shape})
    found = {}
    for text in also:
        name, _, path = text.partition("=")
        if not _NAME.fullmatch(name) or not path:
            raise InputError(
                f"--also={shown(text)} is no NAME=PATH: give a name in letters, digits, - and _, and a file"
            )
        if name in found or name in ("val", "test"):
            what = "twice" if name in found else "as a method, the name of a split"
            raise InputError(f"--also names {name} {what}: give each method its own name")
        arrays = read_calibrated(path, shapes, where=f"--also={name}")
        found[name] = (arrays["val"], arrays.get("test"))
    return found


def _check_bins(num_bins: int, val: Outputs, test: Outputs | None) -> None:
    """Refuse more bins than examples, and bins that together with the examples are more than memory holds."""
    for name, outputs in (("val", val), ("test", test)):
        count = num_bins if outputs is None else len(outputs.labels)
        needed, free = _BYTES_OF_BIN * num_bins * count, free_memory()
        if num_bins > count:
            raise InputError(
                f"--num-bins is {num_bins}, but {name} has {count} examples: give fewer bins than examples"
            )
        if needed > free:
            what = f"--num-bins is {num_bins}, which with {count:,} examples of {name} needs {needed / 2**30:.1f} GiB"
            raise InputError(f"{what} of memory, and {free / 2**30:.1f} GiB are free: give fewer bins")


def _check_groups(measured: Outputs) -> None:
    count = 0 if measured.group is None else len(np.unique(measured.group))
    if count > MOST_GROUPS:
        raise InputError(f"group has {count} different values: give at most {MOST_GROUPS}")


def _check_out(options: Options, inputs: Inputs) -> None:
    """Refuse a folder that holds something else than results of the same settings."""
    path = Path(options.out)
    records.check_workdir(path, make_config(options, inputs))
    for name in FILES:
        if (path / name).is_dir() or (path / name).parent.is_file():
            raise InputError(f"{path / name} cannot be written, something else stands there: choose another --out")


def make_config(options: Options, inputs: Inputs) -> dict[str, Any]:
    """The settings and inputs that the results depend on, for the manifest."""
    given = {"val": inputs.val, "test": inputs.test}
    described = {name: _described(outputs) for name, outputs in given.items() if outputs is not None}
    names = ("num_bins", "num_resamples", "criterion", "criteria", "methods", "metrics")
    evaluation = {name: getattr(options, name) for name in names}
    described |= {name: {"checksum": _digest(arrays)} for name, arrays in inputs.also.items()}
    settings = {"inputs": described, "evaluation": evaluation, "seed": options.seed, "folds": options.num_folds}
    return settings | ({} if options.trained_gamma is None else {"trained_gamma": options.trained_gamma})


def _digest(arrays: tuple[np.ndarray | None, ...]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
    return f"sha256:{digest.hexdigest()}"


def _described(outputs: Outputs) -> dict[str, Any]:
    """The content of a file, for the manifest; not its path, so that a file that has moved is still the same."""
    return {
        "checksum": outputs.checksum,
        "given": outputs.given,
        "examples": len(outputs.labels),
        "classes": outputs.logits.shape[1],
    }
