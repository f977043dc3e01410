"""The main job, for one run or for all members of a sweep."""

import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from focalgeo import files, parallel, records, report
from focalgeo.job import measurement, preparation, say, start, training
from focalgeo.job.preparation import make_members, of_shard
from focalgeo.rows import Row, Scalar, Seconds, select, tagged
from focalgeo.training.step import member_state
from focalgeo.types import RunError


def run(config: ConfigDict, workdir: str | Path, *, shard: str | None = None) -> list[Row]:
    """Run the main job in `workdir`, or go on with it there; returns the rows of all evaluations.

    shard "i/n" takes the i-th of n parts of the sweep; the workdir is that shard's alone.

    Raises:
        InputError: config, data or workdir is not usable. RunError: training cannot go on. Interrupted: a signal came.
    """
    began = time.perf_counter()
    config, workdir = preparation.check_config(config), Path(workdir)
    members = of_shard(make_members(config), shard)
    parallel.connect()
    parallel.check_equal(
        "config", {**config.to_dict(), "shard": shard}, mend="give the same command and config on every host"
    )
    how = parallel.broadcast("workdir", lambda: start.check_workdir(workdir, config, shard))
    with files.waiting(f"preparing {config.data.name}"):
        prepared = preparation.prepare(config)
    measurement.check_examples(prepared.dataset)
    parallel.check_equal("data", prepared.dataset.checksum, mend="give every host the same data")
    states = preparation.initial_state(prepared, members)
    rows = []

    def begin():
        stack.enter_context(records.locked(workdir))
        start.begin(workdir, how, config, prepared.dataset, members, states, shard)

    def not_evaluated():
        before = records.read_rows(workdir) if (workdir / records.METRICS_FILE).exists() else []
        evaluated = select(before, Seconds, phase="evaluate")  # a part of the evaluation's one write
        return [i for i, member in enumerate(members) if not select(evaluated, Seconds, **member.tags)]

    def finish():
        say("drawing the report")
        report.write_report(workdir)
        rows.extend(records.read_rows(workdir))
        count, stops = _stops(rows, members)
        if count == len(members):
            raise RunError(
                f"every member stopped and has no results ({stops}); lower config.optimizer.learning_rate "
                "or set config.optimizer.clip_norm, in a new --workdir"
            )

    with contextlib.ExitStack() as stack:
        parallel.broadcast("begin", begin)
        if parallel.broadcast("members", not_evaluated):
            predict = training.make_prediction(config, prepared.model)
            seconds = {"prepare": time.perf_counter() - began}
            outcome, at_once = training.train(workdir, prepared, members, states, predict)
            seconds |= {"compile": outcome.compile_seconds, "train": outcome.train_seconds}
            # where nothing was left to train, the rows keep what it took then
            if outcome.compile_seconds:
                took = [Seconds("seconds", phase, value) for phase, value in seconds.items()]
                # those of a sweep are of all members together, and so of none
                tags = members[0].tags if len(members) == 1 else {}
                records.append_rows(workdir, tagged(took, step=prepared.plan.steps, **tags))
            # once more: a checkpoint that was damaged takes the rows after the one before it away
            left = parallel.broadcast("members left", not_evaluated)
            _evaluate(workdir, prepared, members, left, outcome.state, at_once, predict)
        parallel.broadcast("report", finish)
    return [row for row in rows if row.epoch is None]


def _stops(rows, members):
    """How many members have stopped, since a number was not finite, and where the first of them did."""
    stops = [
        f"{member.name or 'the run'} at step {row.value:.0f}"
        for member in members
        for row in select(rows, Scalar, name="stopped", **member.tags)
    ]
    return len(stops), "; ".join(stops[:3]) + (f" and {len(stops) - 3} more" if len(stops) > 3 else "")


def _evaluate(workdir, prepared, members, left, states, at_once, predict):
    """Predictions and calibration of all members that are left at once, then each one's rows in one atomic write.

    Members that are frozen have none but their seconds.
    """
    began, trained = time.perf_counter(), [index for index in left if not states.frozen[index]]
    say("predicting val and test")
    predictions = {index: {} for index in trained}
    # in the groups in which they trained: with others beside it a member's numbers are rounded otherwise
    for first in sorted({index - index % at_once for index in trained}):
        group = member_state(states, slice(first, first + at_once))
        for name in ("val", "test"):
            predicted = predict(getattr(prepared.dataset, name), group)
            for index, logits in enumerate(np.moveaxis(predicted.logits, 1, 0), first):
                if index in predictions:
                    predictions[index][name] = predicted._replace(logits=logits)
    say("calibrating")
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # a member's numbers are those that it has alone
        calibrated = {
            index: pool.submit(measurement.calibrate, members[index], predictions[index])
            for index in (trained if files.is_first() else ())
        }
    share = (time.perf_counter() - began) / len(left)
    for index in left:
        began, member, state, rows = time.perf_counter(), members[index], member_state(states, index), []
        if index in predictions:
            folder = workdir / "members" / member.name if member.name else workdir
            try:
                rows = measurement.evaluate(member, folder, prepared, state, predictions[index], calibrated.get(index))
            except RunError as error:
                if not member.name:
                    raise
                say(f"member {member.name} has no results, the others go on: {error}")
                rows = [Scalar("stopped", state.step)]
        took = share + time.perf_counter() - began
        rows = tagged([*rows, Seconds("seconds", "evaluate", took)], step=prepared.plan.steps, **member.tags)
        records.replace_rows(workdir, rows, where=lambda row: False)
        if member.name:
            say(f"measured {member.name} in {took:.1f} s")


def run_and_print(config: ConfigDict, workdir: str | Path, *, shard: str | None = None) -> None:
    """Run the main job and say on standard output what came out and where the report is."""
    rows = run(config, workdir, shard=shard)
    if not files.is_first():
        return
    manifest, members = records.read_manifest(workdir), of_shard(make_members(config), shard)
    print(report.sweep_text(rows, manifest) if members[0].name else report.results_text(rows, manifest, "test"))
    print(", ".join(f"{row.phase} {row.value:.1f} s" for row in select(rows, Seconds)))
    count, stops = _stops(records.read_rows(workdir), members)
    if count:
        print(f"{count} of {len(members)} members stopped and have no results: {stops}")
    print(f"report: {Path(workdir) / 'report.html'}")
