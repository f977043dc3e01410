"""The training loop: dispatches step n + 1 before it looks at the metrics of step n."""

import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax

from focalgeo import parallel
from focalgeo.training.checkpoint import Checkpoint
from focalgeo.training.progress import Progress
from focalgeo.types import Batch, Interrupted, RunError, TrainState

EMPTY_SUMS = {"loss": 0.0, "correct": 0.0, "count": 0.0, "seen": 0.0}


class Plan(NamedTuple):
    """How long to train and when to write; all in steps but `epochs`."""

    epochs: int
    steps_per_epoch: int
    log_every: int
    checkpoint_every: int

    @property
    def steps(self) -> int:
        """Number of steps of the whole run."""
        return self.epochs * self.steps_per_epoch


class Outcome(NamedTuple):
    """The trained state and the seconds that its first step (compilation) and the rest took."""

    state: TrainState
    compile_seconds: float
    train_seconds: float


def run(
    start: Checkpoint,
    step: Callable,
    plan: Plan,
    *,
    batches: Callable[[int, int], Iterator[Batch]],
    validate: Callable[[TrainState], list[dict]],
    learning_rate: Callable[[int], float],
    write: Callable[[list[dict]], None],
    save: Callable[[Checkpoint], None],
    stopped: Callable[[], int | None],
) -> Outcome:
    """Train from `start` to the end of the plan.

    step: compiled by parallel.pmapped. batches(epoch, first): the epoch's batches from number `first` on. validate: rows
    after each epoch. write: appends rows. save: writes a checkpoint; everything up to its step is in the rows by then.
    stopped: the number of a signal that asks to stop, or None.

    Raises:
      RunError: loss or gradient is not finite (the last checkpoint is from before), or devices disagree.
      Interrupted: a signal came; a checkpoint of the last whole step is saved.
    """
    state, sums = start.state, {**EMPTY_SUMS, **start.sums}
    first = int(state.step)
    progress = Progress(plan.steps, first)
    began = row_began = time.perf_counter()
    compile_seconds, pending, text = 0.0, None, ""
    try:
        for index, batch in _from(first, plan, batches):
            state, metrics, fingerprints = step(state, parallel.shard(batch))
            if index == first:
                parallel.check_replicas(fingerprints)
                compile_seconds = time.perf_counter() - began
                row_began = time.perf_counter()
            sums = _settle(sums, pending)
            pending = (index + 1, metrics)

            done = index + 1
            epoch = done // plan.steps_per_epoch
            signum = stopped()
            epoch_ends = done % plan.steps_per_epoch == 0
            row_due = done % plan.log_every == 0 or done == plan.steps
            save_due = done % plan.checkpoint_every == 0 or done == plan.steps or signum is not None
            if row_due or save_due or epoch_ends:
                sums, pending = _settle(sums, pending), None
            if row_due:
                now = time.perf_counter()
                rate = sums["count"] / max(now - row_began, 1e-9)
                row_began = now
                text = f"loss {sums['loss'] / sums['count']:.4f}, accuracy {sums['correct'] / sums['count']:.3f}, {rate:.0f} images/s"
                place = {"step": done, "epoch": done / plan.steps_per_epoch, "split": "train"}
                write(_training_rows(place, sums, learning_rate(index), rate))
                sums = {**EMPTY_SUMS, "seen": sums["seen"]}
            if epoch_ends:
                write([{"step": done, "epoch": float(epoch), **row} for row in validate(state)])
            if save_due:
                save(Checkpoint(state, sums))
            progress.advance(done, text)
            if signum is not None:
                raise Interrupted(signum, f"stopped at step {done} of {plan.steps} and saved; the same command goes on from there")
    finally:
        progress.close()
    return Outcome(state, compile_seconds, time.perf_counter() - began - compile_seconds)


def _from(first: int, plan: Plan, batches: Callable) -> Iterator[tuple[int, Batch]]:
    """Every (step index, batch) from `first` to the end of the plan."""
    while first < plan.steps:
        epoch, offset = divmod(first, plan.steps_per_epoch)
        for batch in batches(epoch, offset):
            yield first, batch
            first += 1


def _settle(sums: dict, pending: tuple | None) -> dict:
    """Add the metrics of one step to the sums; this waits for the device."""
    if pending is None:
        return sums
    step, metrics = pending[0], {name: float(value) for name, value in jax.device_get(pending[1]).items()}
    for name in ("loss", "gradient_norm"):
        if not math.isfinite(metrics[name]):
            raise RunError(
                f"the {name.replace('_', ' ')} is not finite at step {step}; the last good checkpoint is kept. "
                "Lower config.optimizer.learning_rate or set config.optimizer.clip_norm, and use a new --workdir"
            )
    added = {name: sums[name] + metrics[name] for name in ("loss", "correct", "count")}
    return {**added, "seen": sums["seen"] + metrics["count"]}


def _training_rows(place: dict, sums: dict, learning_rate: float, rate: float) -> list[dict]:
    count = sums["count"]
    return [
        {**place, "name": "loss", "value": sums["loss"] / count, "n": int(count)},
        {**place, "name": "accuracy", "value": sums["correct"] / count, "n": int(count)},
        {**place, "name": "learning_rate", "value": learning_rate},
        {**place, "name": "examples_per_second", "value": rate},
        {**place, "name": "examples_seen", "value": sums["seen"]},
    ]
