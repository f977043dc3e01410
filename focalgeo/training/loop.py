"""The training loop: dispatches step n + 1 before it looks at the metrics of step n.

The epoch with the highest accuracy on val is kept, and a run ends with its parameters, if config.optimizer.select is
best_val.
"""

import functools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from focalgeo import files, parallel
from focalgeo.rows import Scalar, tagged
from focalgeo.training.checkpoint import Checkpoint
from focalgeo.training.step import FINITE
from focalgeo.types import BestEpoch, Interrupted, Predictions, RunError, TrainState

SUMMED = ("loss", "penalty", "correct", "count")


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
    batches: Callable,
    validate: Callable,
    adapt: Callable,
    learning_rate: Callable,
    write: Callable,
    save: Callable,
    interrupted: Callable,
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
        adapt: (states of a group, epoch) -> the states that the epoch begins with: a schedule of the loss changes
            `loss_values` there. A function of its arguments alone, as a resumed run calls it again.
        learning_rate: (number of a step) -> that of each member.
        write: appends rows.
        save: writes a checkpoint; all rows up to its step are written by then.
        interrupted: () -> the number of a signal that asks this process to stop, or None. Several processes tell each
            other at every row of training, epoch and checkpoint.

    Raises:
        RunError: loss or gradient of a run alone is not finite (the last checkpoint is from before), or devices
            disagree.
        Interrupted: a signal came; a checkpoint of the last complete step is saved.
    """
    first, several = int(np.max(start.state.step)), parallel.count() > 1

    def signalled():
        return max(parallel.exchange("signal", interrupted() or 0))

    if first < plan.steps:
        files.say(f"training: {plan.steps - first} steps, the first of which compiles")
    meter = Meter(start, plan, tags, write, sweep=sweep)
    groups = program.place(start.state)
    hidden = not (files.is_first() and sys.stderr.isatty())
    began, compile_seconds, done = time.perf_counter(), 0.0, first
    with tqdm(total=plan.steps, initial=first, unit="step", dynamic_ncols=True, disable=hidden) as bar:
        for index, batch in _from(first, plan, batches):
            if index % plan.steps_per_epoch == 0:
                with meter.paused():
                    epoch = index // plan.steps_per_epoch
                    groups = [program.put(adapt(states, epoch)) for states in program.states(groups)]
            groups, metrics, fingerprints = program.step(groups, batch)
            done = index + 1
            if index == first:
                parallel.check_replicas(fingerprints)  # waits for the first step
                compile_seconds = time.perf_counter() - began
                meter.restart_clock()
            meter.add(done, metrics)
            last, epoch = done == plan.steps, done / plan.steps_per_epoch
            periods = plan.log_every, plan.steps_per_epoch, plan.checkpoint_every
            is_row, is_epoch, is_saved = (done % period == 0 or last for period in periods)
            # Several processes stop at one step by telling each other, which costs too much to be done at every step.
            stop = (is_row or is_epoch or is_saved or not several) and signalled()
            if is_row:
                with meter.paused():
                    parallel.check_replicas(fingerprints)
                bar.set_postfix_str(text := meter.text(), refresh=False)
                if hidden and 10 * done // plan.steps > 10 * (done - plan.log_every) // plan.steps:
                    files.say(f"step {done}/{plan.steps}: {text}")  # one line per tenth of the steps
                write(tagged(meter.rows(learning_rate(index)), step=done, epoch=epoch))
            if is_epoch:
                with meter.paused():
                    write(tagged(validate(program.states(groups)), step=done, epoch=epoch))
            if is_saved or stop:
                with meter.paused():
                    save(Checkpoint(program.gather(groups), meter.sums))
            bar.update()
            if stop:
                break
    if signum := signalled():
        where = f"stopped at step {done} of {plan.steps} and saved"
        raise Interrupted(signum, f"{where}; the same command goes on from there")
    return Outcome(program.gather(groups), compile_seconds, time.perf_counter() - began - compile_seconds)


def _from(first, plan, batches):
    """Every (step index, batch) from `first` to the end of the plan."""
    while first < plan.steps:
        for batch in batches(*divmod(first, plan.steps_per_epoch)):
            yield first, batch
            first += 1


class Meter:
    """Sums of each member since its last row of training, which a checkpoint must keep, and the rate of examples."""

    def __init__(self, start: Checkpoint, plan: Plan, tags: Sequence[dict], write: Callable, *, sweep: bool):
        """A meter that goes on from a checkpoint; see `run`."""
        self.sums = {name: np.asarray(start.sums.get(name, np.zeros(len(tags)))) for name in (*SUMMED, "seen")}
        self._plan, self._tags, self._write, self._sweep = plan, tags, write, sweep
        self._running, self._pending = ~np.asarray(start.state.frozen), None
        self.restart_clock()

    def restart_clock(self) -> None:
        """Count the rate from now on, so that compilation is left out."""
        self._began, self._seen = time.perf_counter(), self.sums["seen"].sum()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Read all metrics, then stop the clock for the block: validating and saving are not training."""
        self._settle()
        entered = time.perf_counter()
        yield
        self._began += time.perf_counter() - entered

    def add(self, step: int, metrics: list[dict]) -> None:
        """Take the metrics of step number `step`, one dict per group, after those of the step before have been read.

        Raises:
            RunError: the loss, or the norm of the gradient or of the new parameters, of a run alone is not finite.
        """
        self._settle()
        self._pending = (step, metrics)

    def _settle(self):
        """Read the metrics that are still on the device; note the members that stop, or end a run alone."""
        if self._pending is None:
            return
        (step, groups), self._pending = jax.device_get(self._pending), None
        metrics = {
            name: np.concatenate([np.ravel(group[name]) for group in groups]).astype(float) for name in groups[0]
        }
        for name in FINITE:
            for index in np.flatnonzero(self._running & ~np.isfinite(metrics[name])):
                why = f"the {name.replace('_', ' ')} is {metrics[name][index]} at step {step}"
                if not self._sweep:
                    raise RunError(
                        f"{why}; what was saved before is kept. Lower config.optimizer.learning_rate or set "
                        "config.optimizer.clip_norm, in a new --workdir"
                    )
                self._running[index], tags = False, self._tags[index]
                member = ", ".join(f"{key} {value}" for key, value in tags.items())
                files.say(f"member {member} stops, the others go on: {why}")
                self._write([Scalar("stopped", step, **tags, step=step, epoch=step / self._plan.steps_per_epoch)])
        metrics["seen"] = metrics["count"]
        self.sums = {name: total + np.where(self._running, metrics[name], 0) for name, total in self.sums.items()}

    def text(self) -> str:
        """Mean loss, accuracy and rate since the last row, as text for the progress display."""
        if not self._running.any():
            return "all members have stopped"
        loss, correct, count = (self.sums[name][self._running].sum() for name in ("loss", "correct", "count"))
        return f"loss {loss / count:.4f}, accuracy {correct / count:.3f}, {self._rate():.0f} examples/s"

    def rows(self, learning_rate: np.ndarray) -> list[Scalar]:
        """The rows of the training split since the last ones, after which the sums start anew.

        learning_rate: of each member at this step.
        """
        rows, rate = [], self._rate() / max(self._running.sum(), 1)
        for index in np.flatnonzero(self.sums["count"]):
            loss, penalty, correct, count, seen = (total[index] for total in self.sums.values())
            measured = [("loss", loss / count, int(count)), ("accuracy", correct / count, int(count))]
            measured += [("penalty", penalty / count, int(count))] if penalty else []
            measured += [("learning_rate", learning_rate[index], None), ("examples_per_second", rate, None)]
            measured += [("examples_seen", seen, None)]
            rows += [Scalar(*row, "train", **self._tags[index]) for row in measured]
        self.sums |= {name: np.zeros(len(self._tags)) for name in SUMMED}
        self.restart_clock()
        return rows

    def _rate(self):
        return (self.sums["seen"].sum() - self._seen) / max(time.perf_counter() - self._began, 1e-9)


def best_after_epoch(states: TrainState, epoch: int, predicted: Predictions) -> BestEpoch:
    """The states with each member's best of the first `epoch` epochs, the earliest on ties, in `best`.

    Args:
        states: after that epoch, leaves [members, ...]; `states.best` is that of the epochs before.
        epoch: 1 or more.
        predicted: of val with these states; logits [examples, members, classes]. An example with NaN among its logits
            is not right.
    """
    chex.assert_rank(predicted.logits, 3)
    known = ~np.isnan(predicted.logits).any(-1)
    right = known & (predicted.logits.argmax(-1) == predicted.labels.reshape(-1, 1))  # [examples, members]
    accuracy = right.mean(0, dtype=np.float32)
    now = BestEpoch(accuracy, np.full_like(accuracy, epoch), states.params, states.model_state)
    return _where(accuracy > jax.device_get(states.best.accuracy), now, states.best)


@jax.jit
@jax.vmap
def _where(keep, new, old):
    """Leaves [members, ...] of the new where a member is chosen."""
    return jax.tree.map(functools.partial(jnp.where, keep), new, old)


def with_best(states: TrainState) -> TrainState:
    """The states with the parameters and the batch statistics of their best epochs."""
    return states._replace(params=states.best.params, model_state=states.best.model_state)
