"""Diagnostics of right and wrong examples between epochs, by config.diagnostics."""

from collections.abc import Sequence

import jax
import numpy as np

from focalgeo import evaluation
from focalgeo.job import preparation
from focalgeo.job.members import Member
from focalgeo.job.preparation import Prepared
from focalgeo.rows import Diagnostic, Row, finite, tagged
from focalgeo.training import loop
from focalgeo.training.step import member_state
from focalgeo.types import Split, TrainState


def check_network(config, prepared: Prepared, states: TrainState) -> None:
    """Refuses, before training begins, diagnostics of a network that does not show its last layer.

    Raises:
        InputError: the network sows no last layer.
    """
    if not config.diagnostics.every:
        return
    state = member_state(states, 0)
    batch = next(iter(preparation.evaluation_batches(config, _first(prepared.dataset.train, 2))))
    evaluation.check_last_layer(prepared.model.apply, {"params": state.params, **state.model_state}, batch.x)


def rows_of_epoch(config, prepared: Prepared, members: Sequence[Member], groups: Sequence[TrainState]) -> list[Row]:
    """Rows of `evaluation.diagnosis_rows` for each member that still trains and each split, and its "weight_norm".

    After every config.diagnostics.every epochs and after the last; 0 asks for none. "weight_norm", that of the last
    layer's kernel, is of the network and so of no split. A member has no rows of a split on which its numbers are not
    finite.
    """
    rows, number = [], 0
    for group in groups if _is_due(config, prepared.plan, groups) else ():
        own = members[number : number + len(group.step)]
        rows += _group_rows(config, prepared, own, group)
        number += len(own)
    return rows


def _is_due(config, plan: loop.Plan, groups: Sequence[TrainState]) -> bool:
    step, every = max(int(np.max(group.step)) for group in groups), config.diagnostics.every
    return every > 0 and (step == plan.steps or step // plan.steps_per_epoch % every == 0)


def _group_rows(config, prepared: Prepared, members: Sequence[Member], group: TrainState) -> list[Row]:
    settings, rows = config.diagnostics, []
    training = np.flatnonzero(~np.asarray(group.frozen))
    for split in settings.splits if len(training) else ():
        examples = _first(getattr(prepared.dataset, split), settings.examples)
        batches = preparation.evaluation_batches(config, examples)
        found, norms = evaluation.diagnose(prepared.model.apply, prepared.objective.loss, group, batches=batches)
        for index in training:
            own = jax.tree.map(lambda leaf, index=index: leaf[index], found)
            if not all(np.isfinite(leaf).all() for leaf in (*own, norms[index])):
                continue
            measured = evaluation.diagnosis_rows(own, split=split, num_bins=settings.num_bins)
            if split == settings.splits[0]:
                measured.append(finite(Diagnostic("weight_norm", norms[index])))
            rows += tagged(measured, **members[index].tags)
    return rows


def _first(split: Split, examples: int) -> Split:
    """The first `examples` of a split, all of them for 0."""
    return Split(split.x[: examples or None], split.y[: examples or None])
