"""The training loop: dispatches step n + 1 before it looks at the metrics of step n."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from focalgeo import parallel
from focalgeo.training.checkpoint import Checkpoint
from focalgeo.training.meter import Meter
from focalgeo.training.progress import Progress
from focalgeo.types import Batch, Interrupted, TrainState


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
    """The trained states of all members in host memory, and the seconds that first step (compilation) and rest took."""

    state: TrainState
    compile_seconds: float
    train_seconds: float


def run(
    start: Checkpoint,
    program: parallel.Program,
    plan: Plan,
    *,
    places: Sequence[dict],
    alone: bool,
    batches: Callable[[int, int], Iterator[Batch]],
    validate: Callable[[list[TrainState]], list[dict]],
    adapt: Callable[[list[TrainState], int], list[TrainState]],
    learning_rate: Callable[[int], np.ndarray],
    write: Callable[[list[dict]], None],
    save: Callable[[Checkpoint], None],
    stopped: Callable[[], int | None],
) -> Outcome:
    """Train all members from `start` to the end of the plan; one run is a sweep of one member.

    start: states of all members, leaves [members, ...]. program: of training.sweep.make_members_step. places: the row
    fields that name each member. alone: the only member is no sweep's. batches(epoch, first): the epoch's batches
    [sources, examples, ...] from number `first` on. validate(chunks): rows after each epoch. adapt(chunks, epoch): the
    states that the epoch begins with, laid out as those it was given (a schedule changes `loss_values` there); a
    function of its arguments alone, as a resumed run calls it again. learning_rate(index): of each member. write:
    appends rows. save: writes a checkpoint; all rows up to its step are written by then. stopped: the number of a
    signal that asks to stop, or None.

    Raises:
      RunError: loss or gradient of a run alone is not finite (the last checkpoint is from before; a member of a sweep
        stands still instead), or devices disagree.
      Interrupted: a signal came; a checkpoint of the last whole step is saved.
    """
    first = int(np.max(start.state.step))
    meter = Meter(start.sums, places, start.state.frozen, alone=alone)
    chunks = program.place(start.state)
    progress = Progress(plan.steps, first)
    began, compile_seconds, signum, done = time.perf_counter(), 0.0, None, first
    try:
        for index, batch in _from(first, plan, batches):
            if index % plan.steps_per_epoch == 0:
                with meter.paused():
                    chunks = adapt(chunks, index // plan.steps_per_epoch)
            chunks, metrics, fingerprints = program.step(chunks, batch)
            done = index + 1
            if index == first:
                parallel.check_replicas(np.stack(jax.device_get(fingerprints)))  # waits for the first step
                compile_seconds = time.perf_counter() - began
                meter.restart_clock()
            meter.add(done, metrics)
            signum, last = stopped(), done == plan.steps
            place = {"step": done, "epoch": done / plan.steps_per_epoch}
            if done % plan.log_every == 0 or last:
                meter.settle()
                parallel.check_replicas(np.stack(jax.device_get(fingerprints)))
                progress.describe(meter.text())
                write(
                    meter.events(plan.steps_per_epoch) + meter.rows({**place, "split": "train"}, learning_rate(index))
                )
            if done % plan.steps_per_epoch == 0:
                with meter.paused():
                    write([{**place, **row} for row in validate(chunks)])
            if done % plan.checkpoint_every == 0 or last or signum is not None:
                with meter.paused():
                    write(meter.events(plan.steps_per_epoch))
                    save(Checkpoint(program.whole(chunks), meter.sums))
            progress.advance(done)
            if signum is not None and not last:
                break
    finally:
        progress.close()
    signum = signum or stopped()
    if signum is not None:
        where = f"stopped at step {done} of {plan.steps} and saved"
        raise Interrupted(signum, f"{where}; the same command goes on from there")
    return Outcome(program.whole(chunks), compile_seconds, time.perf_counter() - began - compile_seconds)


def _from(first: int, plan: Plan, batches: Callable) -> Iterator[tuple[int, Batch]]:
    """Every (step index, batch) from `first` to the end of the plan."""
    while first < plan.steps:
        for batch in batches(*divmod(first, plan.steps_per_epoch)):
            yield first, batch
            first += 1
