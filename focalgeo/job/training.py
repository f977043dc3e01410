"""Training: the members of a sweep, or a run alone, from the newest whole checkpoint or from the start."""

import functools
import math
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import evaluation, losses, parallel, records
from focalgeo.job import measurement, preparation, process, say, start
from focalgeo.job.preparation import Member, Pipeline, Prepared
from focalgeo.rows import Row, Scalar
from focalgeo.training import checkpoint, loop, penalties
from focalgeo.training.step import make_members_step
from focalgeo.types import InputError, Model, Predictions, Split, TrainState


def train(
    workdir: Path, prepared: Prepared, members: list[Member], states: TrainState, predict: Callable
) -> tuple[loop.Outcome, int]:
    """Train the members to the end of the plan, and say how many advance at once; the same call goes on after a stop.

    states: as training begins, where there is no checkpoint to go on from. predict: of `make_prediction`.
    """
    began, config, folder, begins_with = time.perf_counter(), prepared.config, workdir / "checkpoints", states

    def restore():
        nonlocal begins_with
        newest = checkpoint.restore_latest(folder, states) or checkpoint.Checkpoint(
            start.begun(config, workdir, members, states), {}
        )
        begins_with = newest.state
        return newest[1:]

    sums, at_once = parallel.broadcast("checkpoint", restore)
    begins_with = parallel.from_first(begins_with)
    first = np.max(begins_with.step)
    records.replace_rows(workdir, [], where=lambda row: (row.step or 0) > first)  # these are made again
    pipeline = preparation.make_pipeline(config, prepared.dataset, preparation.stream_seeds(members))
    program, at_once = choose_program(prepared, at_once, begins_with, pipeline)
    rates = np.array([member.config.optimizer.learning_rate for member in members])
    predict_val = functools.partial(predict, prepared.dataset.val)
    chosen_in = time.perf_counter() - began

    def save(made: checkpoint.Checkpoint):
        def write():
            if not (workdir / records.MANIFEST).exists():
                raise InputError(f"{workdir} was removed or moved while its run went on; choose another --workdir")
            checkpoint.save(folder, made._replace(at_once=at_once), keep=config.checkpoint.keep)

        parallel.broadcast("saved", write)

    with process.deferred_signals() as interrupted:
        outcome = loop.run(
            checkpoint.Checkpoint(begins_with, sums),
            program,
            prepared.plan,
            tags=[member.tags for member in members],
            sweep=members[0].name != "",
            batches=pipeline.specs,
            validate=make_validation(prepared, members, predict_val),
            adapt=make_adapt(predict_val, measurement.make_trace(prepared)),
            learning_rate=lambda index: rates * float(prepared.schedule(index)),
            write=functools.partial(records.append_rows, workdir),
            save=save,
            interrupted=interrupted,
        )
    if config.optimizer.select == "best_val":  # the last epoch may be the best
        groups, epochs = program.states(program.place(outcome.state)), config.optimizer.epochs
        groups = [
            program.put(loop.with_best(group._replace(best=loop.best_after_epoch(group, epochs, predict_val(group)))))
            for group in groups
        ]
        outcome = outcome._replace(state=program.gather(groups))
    compiled_in = outcome.compile_seconds and outcome.compile_seconds + chosen_in  # 0: nothing was left to train
    return outcome._replace(compile_seconds=compiled_in), at_once


def choose_program(
    prepared: Prepared, at_once: int, state: TrainState, pipeline: Pipeline
) -> tuple[parallel.Program, int]:
    """The compiled step, and how many members one call of it advances: `at_once`, or the fastest of some.

    Grouped convolutions, which vmap makes of a network's own, are slow on some devices and small networks alone are
    slow on others, so a few numbers that divide the members are timed, from one on until more take longer, and the
    times are said: four of a CNN together take 2.7 times as long as one after the other on a CPU. On a TPU the compiler
    counts the same operations for both, but 1.3 times the cycles for eight members at once, and ten times the temporary
    bytes, on the recipe of configs/cifar10_gamma.py (experiments/accelerators).

    at_once: 0 asks config.sweep.at_once, and where that is 0 too, the clock.
    """
    members, shared = len(state.step), parallel.replicated(pipeline.resident)  # once for all programs
    step, of_config = members_step(prepared, pipeline), prepared.config.sweep.at_once
    number = at_once or math.gcd(of_config, members) * bool(of_config)  # a shard may be smaller
    programs = {
        number: parallel.make_program(step, at_once=number, shared=shared, fetch=pipeline.fetch)
        for number in ([number] if number else candidates(members, parallel.device_count()))
    }
    if len(programs) == 1:
        ((number, program),) = programs.items()
        return program, number
    batch, seconds = next(pipeline.specs(0, 0)), {}
    for number, program in programs.items():
        try:
            groups = jax.block_until_ready(program.step(program.place(state), batch)[0])  # compiled by now
        except jax.errors.JaxRuntimeError:  # so many do not fit
            if number == 1:
                raise
            break
        # the first call compiled: it is not timed
        began = time.perf_counter()
        for _ in range(3):
            groups = program.step(groups, batch)[0]
        jax.block_until_ready(groups)
        took = (time.perf_counter() - began) / 3
        seconds[number] = parallel.broadcast("seconds of a step", lambda took=took: took)
        if seconds[number] > min(seconds.values()):
            break
    times = ", ".join(f"{number} at once {1e3 * took / members:.3g} ms" for number, took in seconds.items())
    best = min(seconds, key=seconds.get)
    say(f"a step of one of {members} members: {times}; taking {best}")
    return programs[best], best


def members_step(prepared: Prepared, pipeline: Pipeline) -> Callable:
    """The step of all members that `parallel` compiles: it makes the batch, too, from a spec and what is resident."""

    def step(state, spec, *resident):
        return prepared.step(state, pipeline.make_batch(spec, *resident))

    return make_members_step(step)


def candidates(members: int, devices: int = 1) -> list[int]:
    """Numbers of members worth trying at once, each a divisor: all, one, and a middle.

    The middle is one on each device where that divides them: then no convolution is grouped and no sum is over devices.
    Else it is the number nearest to the root of all.
    """
    divisors = (number for number in range(1, members + 1) if members % number == 0)
    nearest = min(divisors, key=lambda number: abs(number - members**0.5))
    return sorted({1, nearest if devices == 1 or members % devices else devices, members})


def make_prediction(config, model: Model) -> Callable:
    """Predictions of some members on all examples of a split, logits [examples, members, classes].

    Of a tree each labelled node is an example. Compiled once for all splits, in training and after.
    """
    forward = parallel.pmapped_forward(jax.vmap(model.apply, in_axes=(0, None), out_axes=-2))

    def predict(split: Split, states: TrainState) -> Predictions:
        variables = {"params": states.params, **states.model_state}
        return evaluation.predict(forward, variables, preparation.evaluation_batches(config, split))

    return predict


def make_adapt(predict: Callable, trace: Callable) -> Callable:
    """The change of some members' states as an epoch begins; predict(states) gives val's predictions.

    A schedule of the loss learns the epoch's number. From the second epoch on AdaFocal moves its gammas by the
    calibration on val, the weight of a trace penalty with a target follows trace(states, epoch), and the epoch before
    is kept if it is the best on val so far and the best is asked for.
    """

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, 1, None))
    def moved(adafocal, logits, labels):
        confidence = jnp.max(jax.nn.softmax(logits), axis=-1)
        return losses.adafocal_update(adafocal, confidence, jnp.argmax(logits, axis=-1) == labels)

    def adapted(states: TrainState, epoch: int) -> TrainState:
        before, best = states.loss_values, states.best
        values = dict(before)
        if "epoch" in values:
            values["epoch"] = np.full_like(values["epoch"], epoch)
        if "trace" in values:
            values["trace"] = trace(states, epoch)
            if epoch > 0:
                values["trace_penalty"] = penalties.steered_weight(values, before=before["trace"])
        if epoch > 0 and ("adafocal" in values or best is not None):
            predicted = predict(states)
            if "adafocal" in values:
                values["adafocal"] = moved(jax.device_get(before["adafocal"]), predicted.logits, predicted.labels)
            best = best and loop.best_after_epoch(states, epoch, predicted)
        return states._replace(loss_values=values, best=best)

    return adapted


def make_validation(prepared: Prepared, members: list[Member], predict: Callable) -> Callable:
    """Rows of mean loss (without penalty) and accuracy on val, and of diagnostics and curvature where asked for.

    Of a steered penalty "trace_penalty", its weight in the epoch, and "penalised_trace", that on train as it began.
    """
    loss = jax.jit(jax.vmap(prepared.objective.loss, in_axes=(1, None, 0)))

    def validate(groups: list[TrainState]) -> list[Row]:
        rows, rest = [], iter(members)
        for states in groups:
            predicted = predict(states)
            values = jax.device_get(states.loss_values)
            per_example = np.asarray(loss(predicted.logits, predicted.labels, values))
            right = predicted.logits.argmax(-1) == predicted.labels[:, None]
            mean, of_val = per_example.mean(1), {"n": len(right), "split": "val"}
            measured = [("loss", mean, of_val), ("accuracy", right.mean(0), of_val)]
            if "trace" in values:
                measured += [("trace_penalty", values["trace_penalty"], {}), ("penalised_trace", values["trace"], {})]
            for index, (frozen, member) in enumerate(zip(np.asarray(states.frozen), rest)):  # noqa: B905
                if math.isfinite(mean[index]) and not frozen:
                    rows += [Scalar(name, of[index], **where, **member.tags) for name, of, where in measured]
        rows += measurement.diagnostics_of_epoch(prepared, members, groups)
        return rows + measurement.curvature_of_epoch(prepared, members, groups)

    return validate
