"""The nine steps of the main job."""

import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict, FrozenConfigDict

from focalgeo import evaluation, parallel, records, report
from focalgeo.job import curvature, objective, preparation, provenance
from focalgeo.job.checks import check_config
from focalgeo.job.preparation import Prepared
from focalgeo.training import checkpoint, interruption, loop
from focalgeo.training.step import make_step
from focalgeo.types import Model, Predictions, Split, TrainState


def run(config: ConfigDict, workdir: str | Path) -> list[dict]:
    """Run the main job in `workdir`, or go on with it there; returns the evaluation rows.

    Raises:
      InputError: config, data or workdir is not usable. RunError: training cannot go on. Interrupted: a signal came.
    """
    began = time.perf_counter()
    check_config(config)
    config, workdir = FrozenConfigDict(config), Path(workdir)
    fresh = records.check_workdir(workdir, config.to_dict()) == "fresh"
    prepared = preparation.prepare(config)
    curvature.check_memory(config, prepared)
    if not fresh:
        provenance.check_data(workdir, prepared.dataset)
    with records.locked(workdir):
        if fresh:
            records.write_manifest(workdir, provenance.make_manifest(config, prepared.dataset, prepared.state))
        seconds = {"prepare": time.perf_counter() - began}
        predict = _make_prediction(config, prepared.model)
        outcome = _train(config, workdir, prepared, predict)
        seconds |= {"compile": outcome.compile_seconds, "train": outcome.train_seconds}
        if not outcome.compile_seconds:
            seconds = {}  # nothing was left to train: what it took when it was trained stays in the rows
        began = time.perf_counter()
        rows = _evaluate(config, workdir, prepared, outcome.state, predict)
        seconds["evaluate"] = time.perf_counter() - began
        rows += [{"name": "seconds", "phase": phase, "value": value} for phase, value in seconds.items()]
        rows = [{"step": prepared.plan.steps, **preparation.place(config), **row} for row in rows]
        stale = lambda row: "epoch" not in row and row.get("phase", "evaluate") in seconds  # noqa: E731
        records.replace_rows(workdir, rows, where=stale)
        _say("drawing the report")
        report.write_report(workdir)
    return rows


def run_and_print(config: ConfigDict, workdir: str | Path) -> None:
    """Run the main job and say on standard output what came out and where the report is."""
    rows = run(config, workdir)
    on_test = [row for row in rows if row.get("split") == "test" and "map" in row and "bin" not in row]
    values = {(row["map"], row.get("criterion"), row["name"]): row["value"] for row in on_test}
    print("on test                            accuracy     NLL     ECE")
    for name, criterion in dict.fromkeys((row["map"], row.get("criterion")) for row in on_test):
        accuracy, nll, ece = (values[name, criterion, metric] for metric in ("accuracy", "nll", "ece"))
        label = name.replace("_", " ") + (f" by {criterion.upper()}" if criterion else "")
        print(f"{label:<34} {accuracy:8.4f} {nll:7.4f} {ece:7.4f}")
    phases = [f"{row['phase']} {row['value']:.1f} s" for row in rows if row["name"] == "seconds"]
    print(f"{', '.join(phases)}\nreport: {Path(workdir) / 'report.html'}")


def _train(config, workdir: Path, prepared: Prepared, predict: Callable) -> loop.Outcome:
    """Train from the newest whole checkpoint, or from the initial state."""
    dataset, model, state = prepared.dataset, prepared.model, prepared.state
    with records.writing(workdir / "checkpoints"):
        manager = checkpoint.make_manager(workdir / "checkpoints", keep=config.checkpoint.keep)
    start = checkpoint.restore_latest(manager, state) or checkpoint.Checkpoint(state, {})
    first = int(start.state.step)
    records.truncate_rows(workdir, first)
    place = preparation.place(config)
    loss, forward = prepared.objective.loss, prepared.objective.forward
    step = parallel.pmapped(make_step(model.apply, loss, prepared.tx, parallel.reduce_sum, forward=forward))
    predict_val = functools.partial(predict, dataset.val)
    with records.tensorboard_writer(workdir, step=first) as tensorboard, interruption.deferred_signals() as stopped:

        def write(rows: list[dict]) -> None:
            rows = [{**row, **place} for row in rows]
            records.append_rows(workdir, rows)
            for row in rows:
                tensorboard(row)

        return loop.run(
            start,
            step,
            prepared.plan,
            batches=functools.partial(preparation.training_batches, config, dataset),
            validate=_make_validation(loss, predict_val, curvature.make_curvature_of_epoch(config, prepared)),
            adapt=objective.make_adapt(predict_val),
            learning_rate=lambda index: config.optimizer.learning_rate * float(prepared.schedule(index)),
            write=write,
            save=functools.partial(checkpoint.save, manager),
            stopped=stopped,
        )


def _evaluate(config, workdir: Path, prepared: Prepared, state: TrainState, predict: Callable) -> list[dict]:
    """Predictions saved once; calibration before and after both maps; curvature on a fixed subset of val."""
    _say("predicting val and test")
    predictions = {}
    for name, split in (("val", prepared.dataset.val), ("test", prepared.dataset.test)):
        predictions[name] = predict(split, state)
        records.write_predictions(workdir, name, predictions[name].logits, predictions[name].labels)
    _say("calibrating: temperature scaling, focal temperature scaling")
    rows, search = _calibrate(config, predictions, prepared.keys["bootstrap"])
    records.write_arrays(workdir, "search", search)
    return rows + curvature.curvature_rows(config, prepared, state, _say)


def _calibrate(config, predictions: dict[str, Predictions], key: jax.Array) -> tuple[list[dict], dict[str, np.ndarray]]:
    settings = config.evaluation
    gammas = np.asarray(settings.gammas, np.float32)
    count = round(settings.max_temperature / settings.temperature_step)
    temperatures = (np.arange(1, count + 1) * settings.temperature_step).astype(np.float32)
    val, size = predictions["val"], {"num_bins": settings.num_bins, "num_resamples": settings.num_resamples}
    calibrators, search = evaluation.fit_calibrators(
        val, gammas=gammas, temperatures=temperatures, num_bins=settings.num_bins, binning=settings.binning
    )
    rows = [row for calibrator in calibrators for row in evaluation.fit_rows(calibrator, len(val.labels))]
    for calibrator in (evaluation.UNCALIBRATED, *calibrators):
        for split, predicted in predictions.items():
            rows += evaluation.calibration_rows(calibrator, split, predicted, key, **size)
    on_test = {"split": "test", "predictions": predictions["test"], "key": key, **size}
    rows += evaluation.difference_rows(calibrators, **on_test)
    for calibrator in preparation.unfocalled(config):
        rows += evaluation.calibration_rows(calibrator, **on_test)
        rows += evaluation.paired_rows(calibrator, evaluation.UNCALIBRATED, **on_test)
    arrays = {
        "gammas": gammas,
        "temperatures": temperatures,
        "ece": np.asarray(search.ece),
        "nll": np.asarray(search.nll),
    }
    return rows, arrays


def _make_prediction(config, model: Model) -> Callable[[Split, TrainState], Predictions]:
    """Predictions on all examples of a split; compiled once for all splits, in training and after."""
    forward = parallel.pmapped_forward(model.apply)

    def predict(split: Split, state: TrainState) -> Predictions:
        variables = {"params": state.params, **state.model_state}
        return evaluation.predict(forward, variables, preparation.evaluation_batches(config, split))

    return predict


def _make_validation(loss, predict, curvature_of_epoch):
    """State -> rows of the mean loss (without penalty) and the accuracy on val, and of curvature where asked for."""
    loss = jax.jit(loss)

    def validate(state: TrainState) -> list[dict]:
        predicted = predict(state)
        per_example = np.asarray(loss(predicted.logits, predicted.labels, jax.device_get(state.hyper)))
        right = predicted.logits.argmax(-1) == predicted.labels
        place = {"split": "val", "n": len(right)}
        return [
            {"name": "loss", "value": float(per_example.mean()), **place},
            {"name": "accuracy", "value": float(right.mean()), **place},
            *curvature_of_epoch(state),
        ]

    return validate


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
