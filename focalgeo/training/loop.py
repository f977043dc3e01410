"""The training loop: dispatches step n + 1 before it looks at the metrics of step n."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from focalgeo import parallel
from focalgeo.rows import Row, tagged
from focalgeo.training.checkpoint import Checkpoint
from focalgeo.training.meter import Meter, Progress
from focalgeo.types import Interrupted, PyTree, TrainState

MOST_STEPS = 2**31 - 1  # TrainState.step is int32


class Plan(NamedTuple):
    """Plan of the training: its length and the intervals between writes, all in steps but `epochs`."""

    epochs: int
    steps_per_epoch: int
    log_every: int
    checkpoint_every: int

    @property
    def steps(self) -> int:
        """Number of steps of all epochs."""
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
    tags: Sequence[dict],
    sweep: bool,
    batches: Callable[[int, int], Iterator[PyTree]],
    validate: Callable[[list[TrainState]], list[Row]],
    adapt: Callable[[list[TrainState], int], list[TrainState]],
    learning_rate: Callable[[int], np.ndarray],
    write: Callable[[list[Row]], None],
    save: Callable[[Checkpoint], None],
    interrupted: Callable[[], int | None],
) -> Outcome:
    """Train all members from `start` to the end of the plan; one run is a sweep of one member.

    Args:
        start: states of all members, leaves [members, ...], and the sums since their last rows.
        program: of `step.make_members_step`.
        plan: how long to train, when to write.
        tags: of each member's rows.
        sweep: whether a member whose numbers are not finite is frozen while the others go on. A run alone ends there.
        batches: (epoch, first) -> the epoch's batches [streams, examples, ...] from number `first` on.
        validate: (states) -> rows after each epoch. States come in groups, leaves [members of the group, ...].
        adapt: (states, epoch) -> the states that the epoch begins with, of the same groups: a schedule of the loss
            changes `loss_values` there. A function of its arguments alone, as a resumed run calls it again.
        learning_rate: (number of a step) -> that of each member.
        write: appends rows.
        save: writes a checkpoint; all rows up to its step are written by then.
        interrupted: () -> the number of a signal that asks this process to stop, or None. Of several processes each
            learns from the metrics of a step, which are read one step later, that any of them was asked to.

    Raises:
        RunError: loss or gradient of a run alone is not finite (the last checkpoint is from before), or devices
            disagree.
        Interrupted: a signal came; a checkpoint of the last complete step is saved.
    """
    first = int(np.max(start.state.step))
    meter = Meter(start.sums, tags, start.state.frozen, sweep=sweep)
    groups = program.place(start.state)
    progress = Progress(plan.steps, first)
    began, compile_seconds, signum, done = time.perf_counter(), 0.0, None, first
    several = parallel.count() > 1
    try:
        for index, batch in _from(first, plan, batches):
            if index % plan.steps_per_epoch == 0:
                with meter.paused():
                    groups = list(map(program.put, adapt(program.states(groups), index // plan.steps_per_epoch)))
            groups, metrics, fingerprints = program.step(groups, batch, stop=several and interrupted() is not None)
            done = index + 1
            if index == first:
                parallel.check_replicas(np.stack(jax.device_get(fingerprints)))  # waits for the first step
                compile_seconds = time.perf_counter() - began
                meter.restart_clock()
            meter.add(done, metrics)
            signum = None if several else interrupted()
            stop = meter.stop if several else signum is not None
            last, epoch = done == plan.steps, done / plan.steps_per_epoch
            if done % plan.log_every == 0 or last:
                meter.settle()
                parallel.check_replicas(np.stack(jax.device_get(fingerprints)))
                progress.describe(meter.text())
                write(meter.stops(plan.steps_per_epoch) + meter.rows(done, epoch, learning_rate(index)))
            if done % plan.steps_per_epoch == 0:
                with meter.paused():
                    write(tagged(validate(program.states(groups)), step=done, epoch=epoch))
            if done % plan.checkpoint_every == 0 or last or stop:
                with meter.paused():
                    write(meter.stops(plan.steps_per_epoch))
                    save(Checkpoint(program.gather(groups), meter.sums))
            progress.advance(done)
            if stop and not last:
                break
    finally:
        progress.bar.close()
    signum = -parallel.all_min("signal", -(signum or interrupted() or 0))
    if signum:
        where = f"stopped at step {done} of {plan.steps} and saved"
        raise Interrupted(signum, f"{where}; the same command goes on from there")
    return Outcome(program.gather(groups), compile_seconds, time.perf_counter() - began - compile_seconds)


def _from(first: int, plan: Plan, batches: Callable) -> Iterator[tuple[int, PyTree]]:
    """Every (step index, batch) from `first` to the end of the plan."""
    while first < plan.steps:
        for batch in batches(*divmod(first, plan.steps_per_epoch)):
            yield first, batch
            first += 1
