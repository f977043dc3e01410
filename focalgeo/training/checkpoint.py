"""Checkpoints: the TrainState and the loop's running sums, written by orbax, each with a digest of its files.

A checkpoint counts only once its digest is there, so one that is cut short or corrupt is recognised before it is read.
"""

import hashlib
import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from focalgeo.types import InputError, TrainState

DIGEST = "digest.json"


class Checkpoint(NamedTuple):
    """The state that a run goes on from: members' states (NumPy leaves [members, ...]) and sums since the last row."""

    state: TrainState
    sums: dict[str, list[float]]


def make_manager(directory: Path, *, keep: int) -> ocp.CheckpointManager:
    """The orbax manager of `directory` (created if missing), which keeps the newest `keep` checkpoints."""
    options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=False)
    return ocp.CheckpointManager(Path(directory).absolute(), options=options)


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
    """The newest valid checkpoint, or None; says on standard error which corrupt ones it passed over.

    Corrupt checkpoints are removed, so that the run can write these steps again.
    """
    steps = sorted(manager.all_steps(), reverse=True)
    for step in steps:
        directory = Path(manager.directory) / str(step)
        if _digest_agrees(directory):
            return _restore(manager, step, like)
        instead = "starting anew" if step == steps[-1] else "falling back to the one before"
        print(f"checkpoint {directory} is corrupt or incomplete; {instead}", file=sys.stderr)
        manager.delete(step)
    return None


def _restore(manager: ocp.CheckpointManager, step: int, like: TrainState) -> Checkpoint:
    template = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)._asdict()
    items = ocp.args.Composite(state=ocp.args.StandardRestore(template), sums=ocp.args.JsonRestore())
    try:
        restored = manager.restore(step, args=items)
    except ValueError as error:
        raise InputError(
            f"checkpoint {Path(manager.directory) / str(step)} does not fit this network: it was written by another "
            "version of the code; choose another --workdir"
        ) from error
    return Checkpoint(TrainState(**restored["state"]), restored["sums"])


def _write_digest(directory: Path) -> None:
    temporary = directory / (DIGEST + ".tmp")
    temporary.write_text(json.dumps({"blake2b": _digest(directory)}))
    os.replace(temporary, directory / DIGEST)


def _digest_agrees(directory: Path) -> bool:
    try:
        return json.loads((directory / DIGEST).read_text())["blake2b"] == _digest(directory)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _digest(directory: Path) -> str:
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
