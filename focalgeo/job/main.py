"""The nine steps of the main job, for one run or for all members of a sweep."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
from ml_collections import ConfigDict

from focalgeo import records, report
from focalgeo.config import axes
from focalgeo.job import curvature, diagnostics, final, preparation, provenance, rounds, training
from focalgeo.job.members import Member, belongs, make_members, of_shard
from focalgeo.job.messages import say
from focalgeo.job.preparation import Prepared
from focalgeo.training import sweep
from focalgeo.types import RunError, TrainState


def run(config: ConfigDict, workdir: str | Path, *, shard: str | None = None) -> list[dict]:
    """Run the main job in `workdir`, or go on with it there; returns the rows of all evaluations.

    shard "i/n" takes the i-th of n parts of the sweep; the workdir is that shard's alone.

    Raises:
      InputError: config, data or workdir is not usable. RunError: training cannot go on. Interrupted: a signal came.
    """
    began = time.perf_counter()
    config, workdir = preparation.check_config(config), Path(workdir)
    members = of_shard(make_members(config), shard)
    fresh = provenance.check_workdir(workdir, config, members, shard) == "fresh"
    prepared = preparation.prepare(config)
    state = preparation.initial_state(prepared, members[:1])
    curvature.check_memory(members[0], prepared, state)
    diagnostics.check_network(config, prepared, state)
    if not fresh:
        provenance.check_data(workdir, prepared.dataset)
    with records.locked(workdir):
        if fresh:
            records.write_manifest(workdir, provenance.make_manifest(config, prepared.dataset, state, shard))
        else:
            provenance.update_manifest(workdir, config)
        predict = training.make_prediction(config, prepared.model)
        while (current := rounds.next_round(workdir, members)) is not None:
            seconds = {"prepare": time.perf_counter() - began}
            outcome = training.train(config, workdir, prepared, current, predict)
            seconds |= {"compile": outcome.compile_seconds, "train": outcome.train_seconds}
            if outcome.compile_seconds:  # else nothing was left to train: what it took then stays in the rows
                _write_seconds(workdir, current, prepared.plan.steps, seconds)
            _evaluate(workdir, prepared, current, outcome.state, predict)
            began = time.perf_counter()
        say("drawing the report")
        report.write_report(workdir)
    return [row for row in records.read_rows(workdir) if "epoch" not in row]


def _write_seconds(workdir: Path, current: rounds.Round, step: int, seconds: dict[str, float]) -> None:
    """How long the round took: rows of its only member, or of no member in particular."""
    place = current.members[0].place if len(current.members) == 1 else {"round": current.number}
    rows = [
        {"step": step, **place, "name": "seconds", "phase": phase, "value": value} for phase, value in seconds.items()
    ]
    mine = lambda row: row["name"] == "seconds" and row["phase"] in seconds and place.items() <= row.items()  # noqa: E731
    records.replace_rows(workdir, rows, where=mine)


def _evaluate(workdir: Path, prepared: Prepared, current: rounds.Round, states: TrainState, predict: Callable) -> None:
    """Evaluate the round's members one after the other, each to its rows in one write; those that stopped have none."""
    say("predicting val and test")
    splits = {"val": prepared.dataset.val, "test": prepared.dataset.test}
    left = {member.name for member in rounds.unfinished(workdir, current.members)}
    for index, member in enumerate(current.members):
        if member.name not in left:
            continue
        began = time.perf_counter()
        state = sweep.member(states, index)
        rows = []
        if not sweep.stopped(state):
            alone = jax.tree.map(lambda leaf: leaf[None], state)
            predictions = {name: _of_one(predict(split, alone)) for name, split in splits.items()}
            tell = say if index == 0 else None
            try:
                rows = final.evaluate(member, folder_of(workdir, member), prepared, state, predictions, tell)
            except RunError as error:
                if not member.name:
                    raise
                say(f"member {member.name} has no results, the others go on: {error}")
                rows = [{"name": "stopped", "value": int(state.step)}]
        took = time.perf_counter() - began
        rows.append({"name": "seconds", "phase": "evaluate", "value": took})
        rows = [{"step": int(prepared.plan.steps), **member.place, **row} for row in rows]
        records.replace_rows(workdir, rows, where=lambda row: _is_final(row, member))  # noqa: B023
        if len(current.members) > 1:
            say(f"measured {member.name} ({index + 1} of {len(current.members)}) in {took:.1f} s")


def _of_one(predictions):
    return predictions._replace(logits=predictions.logits[:, 0])


def _is_final(row: dict, member: Member) -> bool:
    return belongs(row, member) and "epoch" not in row and row.get("phase", "evaluate") == "evaluate"


def folder_of(workdir: Path, member: Member) -> Path:
    """Where a member's own files lie: the workdir itself for a run without sweep."""
    return workdir / "members" / member.name if member.name else workdir


def run_and_print(config: ConfigDict, workdir: str | Path, *, shard: str | None = None) -> None:
    """Run the main job and say on standard output what came out and where the report is."""
    rows = run(config, workdir, shard=shard)
    if axes(config):
        print(report.sweep_text(rows, records.read_manifest(workdir)))
    else:
        _print_maps(rows)
    phases = [f"{row['phase']} {row['value']:.1f} s" for row in rows if row["name"] == "seconds" and "round" in row]
    phases = phases or [f"{row['phase']} {row['value']:.1f} s" for row in rows if row["name"] == "seconds"]
    print(f"{', '.join(phases)}\nreport: {Path(workdir) / 'report.html'}")


def _print_maps(rows: Sequence[dict]) -> None:
    on_test = [row for row in rows if row.get("split") == "test" and "map" in row and "bin" not in row]
    values = {(row["map"], row.get("criterion"), row["name"]): row["value"] for row in on_test}
    print("on test                            accuracy     NLL     ECE")
    for name, criterion in dict.fromkeys((row["map"], row.get("criterion")) for row in on_test):
        accuracy, nll, ece = (values[name, criterion, metric] for metric in ("accuracy", "nll", "ece"))
        label = name.replace("_", " ") + (f" by {criterion.upper()}" if criterion else "")
        print(f"{label:<34} {accuracy:8.4f} {nll:7.4f} {ece:7.4f}")
