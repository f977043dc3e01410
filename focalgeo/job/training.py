"""Training: the members of a sweep, or a run alone, from the newest valid checkpoint or from the start."""

import contextlib
import functools
import math
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import evaluation, files, losses, parallel, records
from focalgeo.job import interruption, measurement, preparation, say
from focalgeo.job.members import Extension, Member, belongs, write_extension
from focalgeo.job.preparation import Pipeline, Prepared
from focalgeo.job.start import begun
from focalgeo.rows import Row, Scalar, tagged
from focalgeo.training import best_epoch, checkpoint, loop
from focalgeo.training.step import make_members_step
from focalgeo.types import Array, InputError, Model, Predictions, PyTree, Split, TrainState

FLUSH_SECONDS = 60  # after which TensorBoard sees what was written


def train(
    config, workdir: Path, prepared: Prepared, current: Extension, predict: Callable
) -> tuple[loop.Outcome, Extension]:
    """Train the members to the end of the plan; what it writes on the way lets the same call go on.

    predict: of `make_prediction`. The extension that is returned says how many members it has trained at once.
    """
    members = current.members
    state = preparation.initial_state(prepared, members)
    anew = functools.partial(begun, config, workdir, members, state)
    start, save = _checkpoints(workdir / current.checkpoints, config.checkpoint.keep, state, anew)
    first = int(np.max(start.state.step))
    _forget_rows(workdir, members, after=first)
    pipeline = preparation.make_pipeline(config, prepared.dataset, preparation.stream_seeds(members))
    began = time.perf_counter()
    program, at_once = choose_program(config, prepared, current.at_once, start.state, pipeline)
    chosen_in = time.perf_counter() - began
    current = current._replace(at_once=at_once)
    write_extension(workdir, current)
    rates = np.array([member.config.optimizer.learning_rate for member in members])
    predict_val = functools.partial(predict, prepared.dataset.val)
    with tensorboard_writer(workdir, step=first) as tensorboard, interruption.deferred_signals() as interrupted:

        def write(rows: list[Row]) -> None:
            records.append_rows(workdir, rows)
            for row in rows:
                tensorboard(row, next((each.name for each in members if belongs(row, each)), ""))

        outcome = loop.run(
            start,
            program,
            prepared.plan,
            tags=[member.tags for member in members],
            sweep=members[0].name != "",
            batches=pipeline.specs,
            validate=make_validation(config, prepared, members, predict_val),
            adapt=make_adapt(predict_val),
            learning_rate=lambda index: rates * float(prepared.schedule(index)),
            write=write,
            save=save,
            interrupted=interrupted,
        )
    if config.optimizer.select == "best_val":
        outcome = outcome._replace(state=_best_states(program, outcome.state, config.optimizer.epochs, predict_val))
    compiled_in = outcome.compile_seconds and outcome.compile_seconds + chosen_in  # 0: nothing was left to train
    return outcome._replace(compile_seconds=compiled_in), current


def _checkpoints(
    folder: Path, keep: int, state: TrainState, anew: Callable[[], TrainState]
) -> tuple[checkpoint.Checkpoint, Callable]:
    """The checkpoint to begin with, the newest or else anew(), and a function that saves one; process 0 does both."""
    found = []

    def restore() -> dict | None:
        with records.writing(folder):
            manager = checkpoint.make_manager(folder, keep=keep)
        newest = checkpoint.restore_latest(manager, state)
        found.extend([manager, newest.state if newest else anew()])
        return newest and newest.sums

    sums = parallel.broadcast("sums of the checkpoint", restore)
    saved = found[1] if files.is_first() else state
    start = checkpoint.Checkpoint(parallel.from_first(saved), sums or {})
    return start, lambda made: parallel.broadcast("saved", lambda: checkpoint.save(found[0], made))


@contextlib.contextmanager
def tensorboard_writer(workdir: Path, *, step: int = 0) -> Iterator[Callable[..., None]]:
    """Open a file of TensorBoard; yields write(row, member=""), which writes a row with a step, unless it is a bin's.

    `member` is the name of a sweep's member, under which TensorBoard groups its rows. `step` is where a resumed run
    goes on: TensorBoard hides what an earlier run wrote from that step on. Nothing is written without tensorboardX. A
    disk that takes no more ends these files with a line, and the run goes on.
    """
    try:
        from tensorboardX import record_writer, summary  # optional, and slow to import
        from tensorboardX.proto.event_pb2 import Event, SessionLog
    except ImportError:
        record_writer = None
    if record_writer is None or not files.is_first():
        yield lambda row, member="": None
        return
    folder = (Path(workdir) / "tensorboard").absolute()
    name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{secrets.token_hex(8)}"
    opened, flushed = [], [time.monotonic()]

    def attempt(use: Callable[[], None]) -> None:
        try:
            with records.writing(folder / name):
                use()
        except InputError as error:
            say(f"no more TensorBoard events, the run goes on: {error}")
            while opened:
                with contextlib.suppress(OSError):  # of what was not written before
                    opened.pop().close()

    def add(event: Event) -> None:
        opened[0].write(event.SerializeToString())
        if time.monotonic() - flushed[0] > FLUSH_SECONDS:
            opened[0].flush()
            flushed[0] = time.monotonic()

    def begin() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        opened.append(record_writer.RecordWriter(str(folder / name)))
        add(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if step:
            add(Event(wall_time=time.time(), step=step, session_log=SessionLog(status=SessionLog.START)))

    def write(row: Row, member: str = "") -> None:
        if opened and row.step is not None and not hasattr(row, "bin"):
            fields = ("split", "name", "outcome", "method", "criterion", "loss")
            parts = [member, *(getattr(row, field, None) for field in fields)]
            value = summary.scalar("/".join(part for part in parts if part), float(row.value))
            attempt(lambda: add(Event(wall_time=time.time(), step=row.step, summary=value)))

    attempt(begin)
    try:
        yield write
    finally:
        attempt(lambda: [file.close() for file in opened])


def _forget_rows(workdir: Path, members: list[Member], *, after: int) -> None:
    """Drop the members' rows of later steps than that of the checkpoint, which are trained again."""
    if files.is_first() and (workdir / records.METRICS_FILE).exists():

        def later(row: Row) -> bool:
            return (row.step or 0) > after and any(belongs(row, member) for member in members)

        records.replace_rows(workdir, [], where=later)


def _best_states(program: parallel.Program, states: TrainState, epoch: int, predict: Callable) -> TrainState:
    """The states of all members at their best epoch, of which the last is one."""
    chosen = []
    for group in program.states(program.place(states)):
        best = best_epoch.after_epoch(group, epoch, predict(group))
        chosen.append(best_epoch.selected(group._replace(best=best)))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *jax.device_get(chosen))


def choose_program(
    config, prepared: Prepared, at_once: int, state: TrainState, pipeline: Pipeline
) -> tuple[parallel.Program, int]:
    """The compiled step, and how many members one call of it advances: given, or the fastest of those that fit.

    Grouped convolutions, which vmap makes of a network's own, are slow on some devices and small networks alone are
    slow on others, so a few numbers that divide the members are timed, and what was found is said. On a TPU the
    compiler counts the same operations for both, but 1.3 times the cycles for eight members at once, and ten times the
    temporary bytes, on the recipe of configs/cifar10_gamma.py (experiments/accelerators).
    """
    members = len(state.step)
    shared = parallel.replicated(pipeline.resident)  # once for all programs
    step = members_step(prepared, pipeline)
    make = functools.partial(parallel.make_program, step, shared=shared, fetch=pipeline.fetch)
    given = at_once or (config.sweep.at_once and math.gcd(config.sweep.at_once, members))  # a shard may be smaller
    numbers = [given] if given else candidates(members, parallel.device_count())
    if len(numbers) == 1:
        return make(at_once=numbers[0]), numbers[0]
    batch, alone = next(pipeline.specs(0, 0)), make(at_once=1)
    each = -parallel.all_min("bytes of a member's step", -alone.temporary(state, batch))
    fitting = _that_fit(numbers, state, each, parallel.free_memory())
    programs = {number: alone if number == 1 else make(at_once=number) for number in fitting}
    took = {number: _seconds(program, state, batch) for number, program in programs.items()}
    shown = ", ".join(f"{number} at once {1e3 * seconds / members:.3g} ms" for number, seconds in took.items())
    best = parallel.broadcast("members at once", lambda: min(took, key=took.get))
    say(f"a step of one of {members} members: {shown}; taking {best}")
    return programs[best], best


def members_step(prepared: Prepared, pipeline: Pipeline) -> Callable:
    """The step of all members that `parallel` compiles: it makes the batch, too, from a spec and what is resident."""

    def step(state: TrainState, spec: PyTree, *resident: Split, stop: Array | None = None) -> tuple[TrainState, dict]:
        return prepared.step(state, pipeline.make_batch(spec, *resident), stop)

    return make_members_step(step)


def candidates(members: int, devices: int = 1) -> list[int]:
    """Numbers of members worth trying at once, each a divisor: all, one, and a middle.

    The middle is one on each device where that divides them: then no convolution is grouped and no sum is over devices.
    Else it is the number nearest to the root of all.
    """
    divisors = [number for number in range(1, members + 1) if members % number == 0]
    middle = min(divisors, key=lambda number: abs(number - members**0.5))
    middle = devices if devices > 1 and members % devices == 0 else middle
    return sorted({1, middle, members}, reverse=True)


def _that_fit(numbers: list[int], state: TrainState, each: int, free: int | None) -> list[int]:
    """The numbers whose memory is there: twice all states, and a member's temporary bytes for each one at once."""
    states = 2 * sum(leaf.nbytes for leaf in jax.tree.leaves(state))  # what a step takes, and what it gives
    fitting = [number for number in numbers if number == 1 or free is None or states + number * each <= free]
    for number in numbers:
        if number not in fitting:
            needed = f"{(states + number * each) / 1e9:.2g} GB"
            say(f"{number} members at once need about {needed}, {free / 1e9:.2g} are free")
    return fitting


def _seconds(program: parallel.Program, state: TrainState, batch) -> float:
    """Seconds of one step of all members, after compilation."""
    groups = program.step(program.place(state), batch)[0]
    jax.block_until_ready(groups)
    began = time.perf_counter()
    for _ in range(3):
        groups = program.step(groups, batch)[0]
    jax.block_until_ready(groups)
    return (time.perf_counter() - began) / 3


def make_prediction(config, model: Model) -> Callable[[Split, TrainState], Predictions]:
    """Predictions of some members on all examples of a split, logits [examples, members, classes].

    Of a tree each labelled node is an example. Compiled once for all splits, in training and after.
    """
    forward = parallel.pmapped_forward(jax.vmap(model.apply, in_axes=(0, None), out_axes=-2))

    def predict(split: Split, states: TrainState) -> Predictions:
        variables = {"params": states.params, **states.model_state}
        return evaluation.predict(forward, variables, preparation.evaluation_batches(config, split))

    return predict


def make_adapt(
    predict: Callable[[TrainState], Predictions],
) -> Callable[[list[TrainState], int], list[TrainState]]:
    """The change of all states as an epoch begins, as `loop.run` takes it; predict(states) gives val's predictions.

    A schedule of the loss learns the epoch's number. From the second epoch on AdaFocal moves its gammas by the
    calibration on val, and the epoch before is kept if it is the best on val so far and the best is asked for.
    """
    update = jax.jit(jax.vmap(_adafocal_after, (0, 1, None)))

    def adapted(states: TrainState, epoch: int) -> TrainState:
        values, best = states.loss_values, states.best
        if "epoch" in values:
            values = {**values, "epoch": np.full_like(values["epoch"], epoch)}
        if epoch > 0 and ("adafocal" in values or best is not None):
            predicted = predict(states)
            if "adafocal" in values:
                moved = update(jax.device_get(values["adafocal"]), predicted.logits, predicted.labels)
                values = {**values, "adafocal": moved}
            if best is not None:
                best = best_epoch.after_epoch(states, epoch, predicted)
        return states._replace(loss_values=values, best=best)

    return lambda groups, epoch: [adapted(states, epoch) for states in groups]


def _adafocal_after(adafocal: losses.AdaFocalState, logits: Array, labels: Array) -> losses.AdaFocalState:
    confidence = jnp.max(jax.nn.softmax(logits), axis=-1)
    return losses.adafocal_update(adafocal, confidence, jnp.argmax(logits, axis=-1) == labels)


def make_validation(
    config, prepared: Prepared, members: list[Member], predict: Callable
) -> Callable[[list[TrainState]], list[Row]]:
    """Rows of mean loss (without penalty) and accuracy on val, and of diagnostics and curvature where asked for."""
    loss = jax.jit(jax.vmap(prepared.objective.loss, in_axes=(1, None, 0)))

    def validate(groups: list[TrainState]) -> list[Row]:
        rows, number = [], 0
        for states in groups:
            predicted = predict(states)
            per_example = np.asarray(loss(predicted.logits, predicted.labels, jax.device_get(states.loss_values)))
            right = predicted.logits.argmax(-1) == predicted.labels[:, None]
            frozen = np.asarray(states.frozen)
            for index in np.flatnonzero(~frozen & np.isfinite(per_example.mean(-1))):
                own = [
                    Scalar("loss", float(per_example[index].mean()), len(right), "val"),
                    Scalar("accuracy", float(right[:, index].mean()), len(right), "val"),
                ]
                rows += tagged(own, **members[number + index].tags)
            number += len(frozen)
        rows += measurement.diagnostics_of_epoch(config, prepared, members, groups)
        return rows + measurement.curvature_of_epoch(config, prepared, members, groups)

    return validate
