"""Checkpoints: the TrainState and the loop's running sums, written by orbax, each with a digest of its files.

A checkpoint counts only once its digest is there, so one that is cut short or corrupt is recognised before it is read.
"""

import hashlib
import json
import logging
import math
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from focalgeo.types import InputError, TrainState

DIGEST = "digest.json"
_STEP = re.compile(r"0|[1-9][0-9]*")


class Checkpoint(NamedTuple):
    """The state that a run goes on from: members' states (NumPy leaves [members, ...]) and sums since the last row."""

    state: TrainState
    sums: dict[str, list[float]]


def make_manager(directory: Path, *, keep: int) -> ocp.CheckpointManager:
    """The orbax manager of `directory` (created if missing), which keeps the newest `keep` checkpoints.

    Of several processes process 0 alone makes one, saves and restores.

    Corrupt checkpoints newer than all valid ones are removed, so that the run can write these steps again; which, is
    said on standard error.

    Raises:
        InputError: orbax cannot read what else is in the folder.
    """
    directory = Path(directory).absolute()
    if directory.is_dir():
        _remove_corrupt(directory)
    directory.mkdir(parents=True, exist_ok=True)  # orbax would wait there for the other processes
    options = ocp.CheckpointManagerOptions(
        max_to_keep=keep, enable_async_checkpointing=False, create=False, multiprocessing_options=_alone()
    )
    try:
        with _silent_orbax():
            return ocp.CheckpointManager(directory, options=options)
    except OSError:
        raise
    except Exception as error:  # whatever orbax meets in files that it did not write
        raise InputError(f"{directory} holds no checkpoints that orbax can read; move it away") from error


def _alone() -> ocp.options.MultiprocessingOptions:
    """Process 0 alone reads and writes."""
    return ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0}, barrier_sync_key_prefix="focalgeo")


def _remove_corrupt(directory: Path) -> None:
    found = [path for path in directory.iterdir() if _STEP.fullmatch(path.name)]
    steps = sorted(found, key=lambda path: int(path.name))
    newest = True
    for path in reversed(steps):
        if _is_plain(path) and (not newest or _digest_agrees(path)):
            newest = False
        else:
            _remove(path, "starting anew" if path == steps[0] else "falling back to the one before")


def _remove(path: Path, instead: str) -> None:
    print(f"checkpoint {path} is corrupt or incomplete; {instead}", file=sys.stderr)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _is_plain(path: Path) -> bool:
    """Whether a checkpoint is a folder of folders and files: no links, which lead elsewhere, and no pipes."""
    if path.is_symlink() or not path.is_dir():
        return False
    modes = [each.lstat().st_mode for each in path.rglob("*")]
    return all(stat.S_ISREG(mode) or stat.S_ISDIR(mode) for mode in modes)


def save(manager: ocp.CheckpointManager, checkpoint: Checkpoint) -> None:
    """Write one checkpoint under its step; when this returns it is complete on disk.

    Raises:
        InputError: the disk is full or read-only.
    """
    state = jax.tree.map(np.asarray, jax.device_get(checkpoint.state))
    step = int(np.max(state.step))
    items = ocp.args.Composite(
        state=ocp.args.StandardSave(state._asdict()), sums=ocp.args.JsonSave(dict(checkpoint.sums))
    )
    directory = Path(manager.directory) / str(step)
    try:
        with _silent_orbax():
            manager.save(step, args=items, force=True)
        _write_digest(directory)
    except Exception as error:  # orbax and tensorstore raise many kinds for one cause: the file system refused
        number = re.search(r"(?:os_error_code='|\[Errno )(\d+)", str(error))
        if number is None:
            raise
        reason = os.strerror(int(number[1]))
        raise InputError(
            f"cannot write checkpoint {directory}: {reason}; free some space or choose another --workdir"
        ) from error


def restore_latest(manager: ocp.CheckpointManager, like: TrainState) -> Checkpoint | None:
    """The newest checkpoint of a manager just made, or None.

    Raises:
        InputError: it is of another network.
    """
    step = manager.latest_step()
    return None if step is None else _restore(manager, step, like)


def _restore(manager: ocp.CheckpointManager, step: int, like: TrainState) -> Checkpoint:
    template = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)._asdict()
    items = ocp.args.Composite(state=ocp.args.StandardRestore(template), sums=ocp.args.JsonRestore())
    try:
        with _silent_orbax():
            restored = manager.restore(step, args=items)
        state, sums = TrainState(**restored["state"]), restored["sums"]
        if int(np.max(state.step)) != step or not _are_sums(sums, len(state.step)):
            raise ValueError("what is saved is of another step, or has other sums")
    except Exception as error:  # orbax raises many kinds for what it did not write like this
        raise InputError(
            f"checkpoint {Path(manager.directory) / str(step)} does not fit this network: it was written by another "
            "version of the code; choose another --workdir"
        ) from error
    return Checkpoint(state, sums)


def find(directory: Path, step: int | None = None) -> Path:
    """The newest valid checkpoint below the folder of a run's checkpoints, or that of `step`; only reads.

    Raises:
        InputError: there is none.
    """
    directory = Path(directory)
    found = [path for path in directory.iterdir() if _STEP.fullmatch(path.name)] if directory.is_dir() else []
    for path in sorted(found, key=lambda path: int(path.name), reverse=True):
        if step in (None, int(path.name)) and _is_plain(path) and _digest_agrees(path):
            return path
    there = ", ".join(sorted((path.name for path in found), key=int)) or "none"
    what = "valid checkpoint" if step is None else f"valid checkpoint of step {step}"
    raise InputError(f"{directory} holds no {what} (steps there: {there})")


def read(path: Path) -> dict[str, Any]:
    """The state that a valid checkpoint holds: the fields of a TrainState, NumPy leaves [members, ...], as dicts.

    Raises:
        InputError: orbax cannot read it.
    """
    try:
        with _silent_orbax():
            return ocp.Checkpointer(ocp.StandardCheckpointHandler(multiprocessing_options=_alone())).restore(
                path.absolute() / "state"
            )
    except Exception as error:  # orbax raises many kinds
        raise InputError(f"checkpoint {path} cannot be read: it was written by another version") from error


def _are_sums(sums: Any, members: int) -> bool:
    """Whether these are sums by name, one finite number for each member."""
    numbers = sums.values() if isinstance(sums, dict) else [None]
    return all(isinstance(each, list) and len(each) == members and all(map(_is_finite, each)) for each in numbers)


def _is_finite(number: Any) -> bool:
    return isinstance(number, int | float) and math.isfinite(number)


def _write_digest(directory: Path) -> None:
    temporary = directory / (DIGEST + ".tmp")
    temporary.write_text(json.dumps({"blake2b": digest(directory)}))
    os.replace(temporary, directory / DIGEST)


def _digest_agrees(directory: Path) -> bool:
    try:
        return json.loads((directory / DIGEST).read_text())["blake2b"] == digest(directory)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def digest(directory: Path) -> str:
    """Of all that a checkpoint holds."""
    total = hashlib.blake2b(digest_size=16)
    files = sorted(path for path in directory.rglob("*") if path.is_file() and not path.name.startswith(DIGEST))
    for path in files:
        total.update(f"{path.relative_to(directory)}:{path.stat().st_size};".encode())
        total.update(path.read_bytes())
    return total.hexdigest()


@contextmanager
def _silent_orbax() -> Iterator[None]:
    """Keep what orbax prints of its own errors off the screen: it raises them as well."""
    logger, hook = logging.getLogger("absl"), sys.unraisablehook
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    sys.unraisablehook = lambda late: None if "Event loop is closed" in str(late.exc_value) else hook(late)
    try:
        yield
        sys.unraisablehook = hook  # kept after an error: tensorstore's other writes report to orbax's closed loop later
    finally:
        logger.setLevel(level)
