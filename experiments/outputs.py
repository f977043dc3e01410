"""Outputs of a finished job's network on its training examples, and the best temperatures for outputs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from focalgeo import calibration, job
from focalgeo.config import default_config, with_values
from focalgeo.job import training
from focalgeo.job.members import make_members
from focalgeo.job.preparation import Prepared, initial_state, prepare
from focalgeo.records import read_manifest
from focalgeo.training import best_epoch, checkpoint
from focalgeo.types import InputError, Split, TrainState

TEMPERATURES = (0.01 * np.arange(1, 501)).astype(np.float32)


def train_outputs(workdir: Path, examples: int = 5000, *, split: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels of the first examples of a split, not augmented, by the parameters that the job kept.

    Training examples are in random order.

    Of trees, whose every labelled phrase is an example, those of the first twentieth as many trees.

    Raises:
        InputError: the workdir holds no finished job, or its data are not there any more.
    """
    config = job.check_config(with_values(default_config(), dict(_values(read_manifest(workdir)["config"]))))
    prepared = prepare(config)
    predict = training.make_prediction(config, prepared.model)
    state = _kept(workdir, config, prepared, predict)
    own = getattr(prepared.dataset, split)
    count = examples if np.ndim(own.y) == 1 else examples // 20
    first = Split(jax.tree.map(lambda leaf: leaf[:count], own.x), own.y[:count])
    found = predict(first, state)
    return found.logits[:examples, 0], found.labels[:examples]


def _kept(workdir: Path, config, prepared: Prepared, predict: Callable) -> TrainState:
    """The newest checkpoint's state; where the job ends with its best epoch, that one, of which the last is one."""
    newest = checkpoint.restore_latest(workdir / "checkpoints", initial_state(prepared, make_members(config)))
    if newest is None:
        raise InputError(f"{workdir} holds no checkpoint: train it again")
    state = newest.state
    if state.best is None:
        return state
    best = best_epoch.after_epoch(state, config.optimizer.epochs, predict(prepared.dataset.val, state))
    return best_epoch.selected(state._replace(best=best))


def _values(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and value of each field of a manifest's config; lists as tuples."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _values(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", tuple(value) if isinstance(value, list) else value


def temperatures(
    logits: np.ndarray,
    labels: np.ndarray,
    gammas: Sequence[float],
    criteria: Sequence[str] = ("nll", "ece", "adaptive_ece"),
) -> dict[str, list[float]]:
    """Criterion -> the temperature from 0.01 to 5 by 0.01 that is best for each gamma of the focal calibration map."""
    found = {}
    for criterion in criteria:
        search = calibration.grid_search(
            logits,
            labels,
            tuple(gammas),
            tuple(TEMPERATURES.tolist()),
            criterion="ece" if criterion == "nll" else criterion,
        )
        values = np.asarray(search.nll if criterion == "nll" else search.ece)
        found[criterion] = [float(TEMPERATURES[row.argmin()]) for row in values]
    return found
