"""Checkpoints: the TrainState by orbax, the sums of the loop, and a digest of all files of each checkpoint.

The digest is written last, atomically: a checkpoint that is cut short or damaged has none that agrees with its files.
"""

import hashlib
import json
import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax
import numpy as np
import orbax.checkpoint as ocp

from focalgeo import files
from focalgeo.types import Array, InputError, TrainState, shown

DIGEST = "digest.json"
_SUMS = "sums.json"


class Checkpoint(NamedTuple):
    """The state that a run goes on from: members' states (NumPy leaves [members, ...]) and sums since the last row."""

    state: TrainState
    sums: dict[str, Array]  # [members] of each
    at_once: int = 0  # members that a call of the step advances, on which the bits depend; 0: not chosen yet


def save(directory: Path, checkpoint: Checkpoint, *, keep: int) -> None:
    """Write a checkpoint to the folder named as its step, complete on disk on return; the newest `keep` stay.

    Of several processes process 0 alone saves and restores.

    Raises:
        InputError: the disk is full or read-only.
    """
    state = jax.device_get(checkpoint.state)
    path = directory.absolute() / str(int(np.max(state.step)))
    with _orbax(f"cannot write checkpoint {path}", "free some space or choose another --workdir"):
        (path / DIGEST).unlink(missing_ok=True)
        path.mkdir(parents=True, exist_ok=True)
        with _plainly_named(path) as named:
            _checkpointer().save(named / "state", args=ocp.args.StandardSave(state._asdict()), force=True)
        (path / _SUMS).write_text(
            json.dumps({"sums": checkpoint.sums, "at_once": checkpoint.at_once}, default=np.ndarray.tolist)
        )
        text = json.dumps({"blake2b": digest(path)})
        files.replace(path / DIGEST, lambda file: file.write(text.encode()))
        for older in _newest_first(directory)[keep:]:
            shutil.rmtree(older)


def restore_latest(directory: Path, like: TrainState) -> Checkpoint | None:
    """The newest checkpoint that is whole, or None; damaged ones that are newer are removed, and named.

    Raises:
        InputError: it is of another network.
    """
    paths = _newest_first(directory)
    for path in paths:
        if _is_whole(path):
            state = TrainState(**read(path, jax.device_get(like)._asdict()))
            return Checkpoint(state, **json.loads((path / _SUMS).read_text()))
        instead = "starting anew" if path == paths[-1] else "falling back to the one before"
        print(f"checkpoint {path} is corrupt or incomplete; {instead}", file=sys.stderr)
        path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)
    return None


def find(directory: Path, step: int | None = None) -> Path:
    """The newest whole checkpoint below the folder of a run's checkpoints, or that of `step`; only reads.

    Raises:
        InputError: there is none.
    """
    paths = _newest_first(directory)
    for path in paths:
        if step in (None, int(path.name)) and _is_whole(path):
            return path
    there = ", ".join(path.name for path in reversed(paths)) or "none"
    what = "valid checkpoint" if step is None else f"valid checkpoint of step {step}"
    raise InputError(f"{directory} holds no {what} (steps there: {there})")


def read(path: Path, template: dict[str, Any] | None = None) -> dict[str, Any]:
    """The state that a checkpoint holds: the fields of a TrainState, NumPy leaves [members, ...], as dicts.

    Raises:
        InputError: orbax cannot read it, as what the template holds.
    """
    mend = "it was written by another version of the code; choose another --workdir"
    with _orbax(f"checkpoint {path} cannot be read or does not fit this network", mend):
        with _plainly_named(path.absolute()) as named:
            state = _checkpointer().restore(named / "state", args=ocp.args.StandardRestore(template))
        if template is not None:
            chex.assert_trees_all_equal_shapes_and_dtypes(state, template)
    return state


@contextmanager
def _plainly_named(path: Path) -> Iterator[Path]:
    """The folder, where its path holds [ ] or a backslash by a link: tensorstore takes these for patterns, or for /."""
    if set("[]\\").isdisjoint(path.as_posix()):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, path.name)
        link.symlink_to(path, target_is_directory=True)
        yield link


def _checkpointer() -> ocp.Checkpointer:
    alone = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0}, barrier_sync_key_prefix="focalgeo")
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=alone)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def _newest_first(directory):
    steps = [path for path in directory.glob("*") if path.name.isdecimal()]
    return sorted(steps, key=lambda path: int(path.name), reverse=True)


def _is_whole(path):
    try:
        return not path.is_symlink() and json.loads((path / DIGEST).read_text())["blake2b"] == digest(path)
    except Exception:  # whatever a damaged file raises
        return False


def digest(directory: Path) -> str:
    """Of all that a checkpoint holds, and of its step: a folder of another name has another."""
    total = hashlib.blake2b(directory.name.encode(), digest_size=16)
    for path in sorted(path for path in directory.rglob("*") if path.is_file() and DIGEST not in path.name):
        total.update(f"{path.relative_to(directory)}:{path.stat().st_size};".encode())
        total.update(path.read_bytes())
    return total.hexdigest()


@contextmanager
def _orbax(what: str, mend: str) -> Iterator[None]:
    """Orbax and tensorstore raise many kinds of error, here one line, and print them as well, here not."""
    logger, hook = logging.getLogger("absl"), sys.unraisablehook
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    sys.unraisablehook = lambda late: None if "Event loop is closed" in str(late.exc_value) else hook(late)
    try:
        yield
        sys.unraisablehook = hook  # kept after an error: tensorstore's other writes report to orbax's closed loop later
    except Exception as error:
        number = re.search(r"(?:os_error_code='|\[Errno )(\d+)", str(error))
        reason = os.strerror(int(number[1])) if number else shown(str(error).partition("\n")[0], most=100)
        raise InputError(f"{what}: {reason}; {mend}") from error
    finally:
        logger.setLevel(level)
