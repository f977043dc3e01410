"""The members of a round, trained together from the newest whole checkpoint or from the start."""

import functools
import math
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from focalgeo import evaluation, parallel, records
from focalgeo.job import curvature, diagnostics, objective, preparation, rounds
from focalgeo.job.feed import Feed, evaluation_batches, make_feed
from focalgeo.job.members import Member, belongs
from focalgeo.job.messages import say
from focalgeo.job.preparation import Prepared
from focalgeo.training import best_epoch, checkpoint, interruption, loop, sweep
from focalgeo.training.step import make_step
from focalgeo.types import Model, Predictions, PyTree, Split, TrainState


def train(config, workdir: Path, prepared: Prepared, current: rounds.Round, predict: Callable) -> loop.Outcome:
    """Train the round's members to the end of the plan; what it writes on the way lets the same call go on."""
    members = current.members
    state = preparation.initial_state(prepared, members)
    with records.writing(workdir / current.checkpoints):
        manager = checkpoint.make_manager(workdir / current.checkpoints, keep=config.checkpoint.keep)
    start = checkpoint.restore_latest(manager, state) or checkpoint.Checkpoint(state, {})
    first = int(np.max(start.state.step))
    if (workdir / records.METRICS).exists():
        later = lambda row: row.get("step", first) > first and any(belongs(row, member) for member in members)  # noqa: E731
        records.replace_rows(workdir, [], where=later)
    feed = make_feed(config, prepared.dataset, preparation.source_seeds(members))
    began = time.perf_counter()
    program, at_once = choose_program(config, prepared, current.at_once, start.state, feed)
    chosen_in = time.perf_counter() - began
    rounds.write_round(workdir, current._replace(at_once=at_once))
    rates = np.array([member.config.optimizer.learning_rate for member in members])
    predict_val = functools.partial(predict, prepared.dataset.val)
    with records.tensorboard_writer(workdir, step=first) as tensorboard, interruption.deferred_signals() as stopped:

        def write(rows: list[dict]) -> None:
            records.append_rows(workdir, rows)
            for row in rows:
                tensorboard({**row, "member": next((each.name for each in members if belongs(row, each)), "")})

        outcome = loop.run(
            start,
            program,
            prepared.plan,
            places=[member.place for member in members],
            alone=not members[0].name,
            batches=feed.draws,
            validate=make_validation(config, prepared, members, predict_val),
            adapt=objective.make_adapt(predict_val),
            learning_rate=lambda index: rates * float(prepared.schedule(index)),
            write=write,
            save=functools.partial(checkpoint.save, manager),
            stopped=stopped,
        )
    if config.optimizer.select == "best_val":
        ended = []
        for chunk in program.place(outcome.state):
            best = best_epoch.after_epoch(chunk, config.optimizer.epochs, predict_val(chunk))
            ended.append(best_epoch.selected(chunk._replace(best=best)))
        outcome = outcome._replace(state=program.whole(ended))
    compiled_in = outcome.compile_seconds and outcome.compile_seconds + chosen_in  # 0: nothing was left to train
    return outcome._replace(compile_seconds=compiled_in)


def choose_program(
    config, prepared: Prepared, at_once: int, state: TrainState, feed: Feed
) -> tuple[parallel.Program, int]:
    """The compiled step, and how many members one call of it advances: given, or the fastest of those that fit.

    Grouped convolutions, which vmap makes of a network's own, are slow on some devices and small networks alone are
    slow on others, so a few numbers that divide the members are timed, and what was found is said.
    """
    members = len(state.step)
    step = make_step(
        prepared.model.apply,
        prepared.objective.loss,
        prepared.tx,
        parallel.reduce_sum,
        forward=prepared.objective.forward,
        mean=config.optimizer.reduction == "mean",
    )

    def drawn_step(state: TrainState, draw: PyTree, *resident: Split) -> tuple[TrainState, dict]:
        return step(state, feed.make_batch(draw, *resident))

    resident = parallel.replicated(feed.resident)  # once for all programs
    make = functools.partial(parallel.make_program, sweep.make_members_step(drawn_step), shared=resident)
    given = at_once or (config.sweep.at_once and math.gcd(config.sweep.at_once, members))  # a shard may be smaller
    candidates = [given] if given else sweep.candidates(members)
    if len(candidates) == 1:
        return make(at_once=candidates[0]), candidates[0]
    batch, alone = next(feed.draws(0, 0)), make(at_once=1)
    fitting = _that_fit(candidates, state, alone.temporary(state, batch), parallel.free_memory())
    programs = {number: alone if number == 1 else make(at_once=number) for number in fitting}
    took = {number: _seconds(program, state, batch) for number, program in programs.items()}
    shown = ", ".join(f"{number} at once {1e3 * seconds / members:.3g} ms" for number, seconds in took.items())
    best = min(took, key=took.get)
    say(f"a step of one of {members} members: {shown}; taking {best}")
    return programs[best], best


def _that_fit(candidates: list[int], state: TrainState, each: int, free: int | None) -> list[int]:
    """The candidates whose memory is there: twice all states, and a member's temporary bytes for each one at once."""
    states = 2 * sum(leaf.nbytes for leaf in jax.tree.leaves(state))  # what a step takes, and what it gives
    fitting = [number for number in candidates if number == 1 or free is None or states + number * each <= free]
    for number in candidates:
        if number not in fitting:
            needed = f"{(states + number * each) / 1e9:.2g} GB"
            say(f"{number} members at once need about {needed}, {free / 1e9:.2g} are free")
    return fitting


def _seconds(program: parallel.Program, state: TrainState, batch) -> float:
    """Seconds of one step of all members, after compilation."""
    chunks = program.step(program.place(state), batch)[0]
    jax.block_until_ready(chunks)
    began = time.perf_counter()
    for _ in range(3):
        chunks = program.step(chunks, batch)[0]
    jax.block_until_ready(chunks)
    return (time.perf_counter() - began) / 3


def make_prediction(config, model: Model) -> Callable[[Split, TrainState], Predictions]:
    """Predictions of a chunk's members on all examples of a split, logits [examples, members, classes].

    Of a tree each labelled node is an example. Compiled once for all splits, in training and after.
    """
    forward = parallel.pmapped_forward(jax.vmap(model.apply, in_axes=(0, None), out_axes=-2))

    def predict(split: Split, chunk: TrainState) -> Predictions:
        variables = {"params": chunk.params, **chunk.model_state}
        return evaluation.predict(forward, variables, evaluation_batches(config, split))

    return predict


def make_validation(config, prepared: Prepared, members: list[Member], predict: Callable) -> Callable:
    """Chunks -> rows of mean loss (without penalty) and accuracy on val, and of curvature where asked for."""
    loss = jax.jit(jax.vmap(prepared.objective.loss, in_axes=(1, None, 0)))

    def validate(chunks: list[TrainState]) -> list[dict]:
        rows, number = [], 0
        for chunk in chunks:
            predicted = predict(chunk)
            per_example = np.asarray(loss(predicted.logits, predicted.labels, jax.device_get(chunk.loss_values)))
            right = predicted.logits.argmax(-1) == predicted.labels[:, None]
            frozen = np.asarray(chunk.frozen)
            for index in np.flatnonzero(~frozen & np.isfinite(per_example.mean(-1))):
                own = {**members[number + index].place, "split": "val", "n": len(right)}
                rows.append({**own, "name": "loss", "value": float(per_example[index].mean())})
                rows.append({**own, "name": "accuracy", "value": float(right[:, index].mean())})
            number += len(frozen)
        rows += diagnostics.rows_of_epoch(config, prepared, members, chunks)
        return rows + curvature.rows_of_epoch(config, prepared, members, chunks)

    return validate
