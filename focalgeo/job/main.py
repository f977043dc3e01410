"""The main job, for one run or for all members of a sweep."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from focalgeo import files, parallel, records, report
from focalgeo.config import axes
from focalgeo.job import calibration, measurement, preparation, provenance, say, start, training
from focalgeo.job.members import (
    Extension,
    Member,
    belongs,
    by_member,
    make_members,
    next_extension,
    of_shard,
    read_extensions,
    unfinished,
)
from focalgeo.job.preparation import Prepared
from focalgeo.rows import Row, Scalar, Seconds, select, tagged
from focalgeo.training import loop
from focalgeo.training.checkpoint import DIGEST
from focalgeo.training.step import member_state
from focalgeo.types import Dataset, InputError, Predictions, RunError, Split, TrainState


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
    provenance.check_processes(config, shard)
    found = parallel.broadcast("workdir", lambda: provenance.check_workdir(workdir, config, members, shard))
    prepared = preparation.prepare(config)
    parallel.check_equal("data", prepared.dataset.checksum, mend="give every host the same data")
    measurement.check_memory(members, prepared)
    state = preparation.initial_state(prepared, members[:1])
    measurement.check_curvature(members[0], prepared, state)
    measurement.check_network(config, prepared, state)
    with records.locked(workdir):
        parallel.broadcast("begin", lambda: _begin(workdir, found, config, members, prepared, state, shard))
        predict = training.make_prediction(config, prepared.model)
        complete = True  # until something is found to train or to measure
        while (current := _next(workdir, members)) is not None:
            complete = False
            seconds = {"prepare": time.perf_counter() - began}
            outcome, current = training.train(config, workdir, prepared, current, predict)
            seconds |= {"compile": outcome.compile_seconds, "train": outcome.train_seconds}
            if outcome.compile_seconds:  # else nothing was left to train: what it took then stays in the rows
                _write_seconds(workdir, current, prepared.plan.steps, seconds)
            _evaluate(workdir, prepared, current, outcome.state, predict)
            began = time.perf_counter()
        if not files.is_first():  # what is left to do reads and writes files
            return []
        say(f"{workdir} is complete: drawing the report anew" if complete else "drawing the report")
        report.write_report(workdir)
    rows = records.read_rows(workdir)
    _say_lost(workdir, members, prepared.plan, rows)
    stopped = _stopped(rows, members)
    if len(stopped) == len(members):
        raise RunError(
            f"every member stopped and has no results ({_listed(stopped)}); lower config.optimizer.learning_rate "
            "or set config.optimizer.clip_norm, in a new --workdir"
        )
    return [row for row in rows if row.epoch is None]


def _begin(
    workdir: Path, found: str, config, members: list[Member], prepared: Prepared, state: TrainState, shard: str | None
) -> None:
    """Write the manifest of a workdir that was `found` "fresh", or bring one that goes on up to date."""
    if found == "fresh":
        begins_with = start.described(config, members)
        start.started(config, members[:1], state)  # refuses another network before anything is written
        records.write_manifest(workdir, provenance.make_manifest(config, prepared.dataset, state, shard, begins_with))
        return
    provenance.check_data(workdir, prepared.dataset)
    provenance.update_manifest(workdir, config)
    _forget_incomplete(workdir, members, prepared)


def _next(workdir: Path, members: list[Member]) -> Extension | None:
    """The extension to train next as process 0 finds it in the workdir, or None."""

    def find() -> dict[str, Any] | None:
        found = next_extension(workdir, members)
        return found and found._replace(members=[member.name for member in found.members])._asdict()

    found = parallel.broadcast("extension", find)
    by_name = {member.name: member for member in members}
    return found and Extension(**{**found, "members": [by_name[name] for name in found["members"]]})


def _forget_incomplete(workdir: Path, members: list[Member], prepared: Prepared) -> None:
    """Drop the evaluation of members of which a file or rows are gone, so that they are measured again."""
    left = {member.name for member in unfinished(workdir, members)}
    if len(left) == len(members):
        return
    of_each, again = by_member(records.read_rows(workdir), members), []
    for member in (each for each in members if each.name not in left):
        lost = _incomplete(folder_of(workdir, member), member, of_each[member.name], prepared.dataset)
        if lost:
            say(f"{lost}; it is measured again")
            again.append(member)
    if again:
        records.replace_rows(workdir, [], where=lambda row: any(_is_final(row, member) for member in again))


def _incomplete(folder: Path, member: Member, rows: list[Row], dataset: Dataset) -> str:
    """The file or rows that an evaluated member lacks, in words; "" for none. One that has stopped has no files."""
    measured = [row for row in rows if _is_final(row, member)]
    if any(row.rows not in (None, len(measured)) for row in select(measured, Seconds)):
        return f"rows of {member.name or 'the evaluation'} are gone from {records.METRICS_FILE}"
    if select(rows, Scalar, name="stopped"):
        return ""
    for split in ("val", "test"):
        if not _has_predictions(folder, split, getattr(dataset, split), len(dataset.class_names)):
            return f"{folder / 'predictions' / split}.npz is missing or corrupt"
    if calibration.searches(member.config) and not _has_search(folder):
        return f"{folder / 'search.npz'} is missing or corrupt"
    return ""


def _has_predictions(folder: Path, split: str, examples: Split, classes: int) -> bool:
    try:
        found = records.read_predictions(folder, split)
    except InputError:
        return False
    return found.logits.shape[1] == classes and np.array_equal(found.labels, examples.y[examples.y >= 0])


def _has_search(folder: Path) -> bool:
    try:
        found = records.read_arrays(folder, "search")
    except InputError:
        return False
    shape = tuple(found[name].size for name in ("gammas", "temperatures") if name in found)
    return all(name in found and found[name].shape == shape for name in ("ece", "nll"))


def _say_lost(workdir: Path, members: list[Member], plan: loop.Plan, rows: list[Row]) -> None:
    """Say what a finished run had and lacks now, which only training anew would give."""
    expected = -(-plan.steps // plan.log_every)
    stopped = _stopped(rows, members)
    of_each = by_member(select(rows, Scalar, name="loss", split="train"), members)
    lacking = [name for name in of_each if name not in stopped and len({r.step for r in of_each[name]}) < expected]
    if lacking:
        of = f" of {len(lacking)} members" if len(lacking) > 1 else ""
        say(f"{workdir / records.METRICS_FILE} lacks rows of training{of}: curves are drawn without them")
    for number in range(1, len(read_extensions(workdir)) + 1):
        folder = workdir / Extension(number, [], 0).checkpoints
        if not any(folder.glob(f"*/{DIGEST}")):
            say(f"{folder} holds no checkpoint any more: the results are whole, the trained network is gone")


def _stopped(rows: list[Row], members: list[Member]) -> dict[str, int]:
    """The step of each member of a sweep that has stopped, by its name."""
    found = by_member(select(rows, Scalar, name="stopped"), members)
    return {name: int(own[0].value) for name, own in found.items() if own}


def _listed(stopped: dict[str, int]) -> str:
    listed = [f"{name or 'the run'} at step {step}" for name, step in stopped.items()]
    return "; ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")


def _write_seconds(workdir: Path, current: Extension, step: int, seconds: dict[str, float]) -> None:
    """Write rows of the phases' seconds: of the member for a run alone, of the extension for a sweep."""
    only = len(current.members) == 1
    tags = current.members[0].tags if only else {}
    number = None if only else current.number
    rows = [Seconds("seconds", phase, value, extension=number) for phase, value in seconds.items()]

    def same(row: Row) -> bool:
        return (
            isinstance(row, Seconds)
            and row.phase in seconds
            and row.extension == number
            and all(getattr(row, name) == value for name, value in tags.items())
        )

    records.replace_rows(workdir, tagged(rows, step=step, **tags), where=same)


def _evaluate(workdir: Path, prepared: Prepared, current: Extension, states: TrainState, predict: Callable) -> None:
    """Predictions and calibration of all members that are left at once, then each to its rows in one write.

    Members that are frozen have none.
    """
    began = time.perf_counter()
    names = parallel.broadcast("unfinished", lambda: [member.name for member in unfinished(workdir, current.members)])
    left = [index for index, member in enumerate(current.members) if member.name in names]
    trained = [index for index in left if not states.frozen[index]]
    splits = {"val": prepared.dataset.val, "test": prepared.dataset.test} if trained else {}
    say("predicting val and test")
    predictions = {name: _predict(split, states, predict, trained, current.at_once) for name, split in splits.items()}
    say("calibrating")
    found = _calibrate([current.members[index] for index in trained], predictions)
    each = (time.perf_counter() - began) / len(left)
    for index in left:
        began, member = time.perf_counter(), current.members[index]
        state = member_state(states, index)
        rows = []
        if index in trained:
            own = trained.index(index)
            predicted = {name: of_all._replace(logits=of_all.logits[:, own]) for name, of_all in predictions.items()}
            tell = say if index == 0 else None
            folder = folder_of(workdir, member)
            try:
                rows = measurement.evaluate(member, folder, prepared, state, predicted, found[own], tell)
            except RunError as error:
                if not member.name:
                    raise
                say(f"member {member.name} has no results, the others go on: {error}")
                rows = [Scalar("stopped", int(state.step))]
        took = each + time.perf_counter() - began
        rows.append(Seconds("seconds", "evaluate", took, rows=len(rows) + 1))
        rows = tagged(rows, step=int(prepared.plan.steps), **member.tags)
        records.replace_rows(workdir, rows, where=lambda row: _is_final(row, member))  # noqa: B023
        if len(current.members) > 1:
            say(f"measured {member.name} ({index + 1} of {len(current.members)}) in {took:.1f} s")


def _calibrate(members: list[Member], predictions: dict[str, Predictions]) -> list[calibration.Calibration | RunError]:
    """Calibration of the members by process 0, which writes it; the others learn of which members there is none."""
    found: list[calibration.Calibration | RunError] = []

    def errors() -> list[str | None]:
        found.extend(calibration.calibrate_members(members, predictions))
        return [str(each) if isinstance(each, RunError) else None for each in found]

    wrong = parallel.broadcast("calibrated", errors)
    return found or [RunError(each) if each else calibration.Calibration([], {}) for each in wrong]


def _predict(split: Split, states: TrainState, predict: Callable, chosen: list[int], at_once: int) -> Predictions:
    """Predictions of the chosen members, logits [examples, chosen, classes], in the groups in which they trained.

    What is left when a run goes on is so predicted by the same program, to the same bits.
    """
    parts = []
    for begin in range(0, len(states.step), at_once):
        inside = [index - begin for index in chosen if begin <= index < begin + at_once]
        if inside:
            group = jax.tree.map(lambda leaf: leaf[begin : begin + at_once], states)  # noqa: B023
            predicted = predict(split, group)
            parts.append(predicted._replace(logits=predicted.logits[:, inside]))
    return parts[0]._replace(logits=np.concatenate([part.logits for part in parts], axis=1))


def _is_final(row: Row, member: Member) -> bool:
    """Whether a row is of the member's evaluation after training."""
    of_training = isinstance(row, Seconds) and row.phase != "evaluate"
    return belongs(row, member) and row.epoch is None and not of_training


def folder_of(workdir: Path, member: Member) -> Path:
    """The folder of a member's own files: the workdir itself for a run without sweep."""
    return workdir / "members" / member.name if member.name else workdir


def run_and_print(config: ConfigDict, workdir: str | Path, *, shard: str | None = None) -> None:
    """Run the main job and say on standard output what came out and where the report is."""
    rows = run(config, workdir, shard=shard)
    if not files.is_first():
        return
    manifest = records.read_manifest(workdir)
    print(report.sweep_text(rows, manifest) if axes(config) else report.results_text(rows, manifest, "test"))
    seconds = select(rows, Seconds)
    if any(row.extension for row in seconds):
        seconds = [row for row in seconds if row.extension]
    print(", ".join(f"{row.phase} {row.value:.1f} s" for row in seconds))
    members = of_shard(make_members(config), shard)
    stopped = _stopped(records.read_rows(workdir), members)
    if stopped:
        print(f"{len(stopped)} of {len(members)} members stopped and have no results: {_listed(stopped)}")
    print(f"report: {Path(workdir) / 'report.html'}")
