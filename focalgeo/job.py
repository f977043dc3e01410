"""The main job, composed: the only file that reads config fields.

check_config says what is wrong with a config before anything is loaded or written; run does the nine steps of a job.
"""

import datetime
import functools
import importlib.metadata
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict, FrozenConfigDict

from focalgeo import data, evaluation, losses, models, parallel, records, report, trees
from focalgeo.training import checkpoint, interruption, loop, optimiser
from focalgeo.training.step import make_step
from focalgeo.types import Dataset, InputError, Model, Predictions, Split, TrainState

# (field, what must hold, in words)
CHECKS = (
    ("seed", lambda v: 0 <= v < 2**31, "must be 0 or more and below 2^31"),
    ("data.split_seed", lambda v: 0 <= v < 2**31, "must be 0 or more and below 2^31"),
    ("data.scale", lambda v: v > 0, "must be greater than 0"),
    ("data.mean", lambda v: len(v) > 0 and np.isfinite(np.asarray(v, float)).all(), "must hold finite numbers"),
    (
        "data.std",
        lambda v: len(v) > 0 and all(0 < each < float("inf") for each in v),
        "must hold finite numbers above 0",
    ),
    ("model.dtype", lambda v: v in ("float32", "bfloat16"), "must be float32 or bfloat16"),
    ("loss.gamma", lambda v: 0 <= v < float("inf"), "must be a finite number, 0 or more"),
    ("model.hidden", lambda v: v is None or all(each >= 1 for each in v), "must hold widths of 1 or more"),
    ("model.widths", lambda v: v is None or all(each >= 1 for each in v), "must hold widths of 1 or more"),
    ("model.blocks", lambda v: v is None or all(each >= 1 for each in v), "must hold numbers of 1 or more"),
    ("optimizer.learning_rate", lambda v: 0 < v < float("inf"), "must be a finite number greater than 0"),
    ("optimizer.momentum", lambda v: 0 <= v < 1, "must be at least 0 and below 1"),
    ("optimizer.weight_decay", lambda v: v >= 0, "must be 0 or more"),
    ("optimizer.clip_norm", lambda v: v >= 0, "must be 0 (off) or more"),
    ("optimizer.batch_size", lambda v: v >= 1, "must be 1 or more"),
    ("optimizer.epochs", lambda v: v >= 1, "must be 1 or more"),
    ("optimizer.schedule", lambda v: v in ("steps", "cosine"), "must be steps or cosine"),
    ("optimizer.decay_factor", lambda v: 0 < v <= 1, "must be above 0 and at most 1"),
    ("optimizer.decay_epochs", lambda v: all(epoch > 0 for epoch in v), "must all be greater than 0"),
    ("optimizer.warmup_epochs", lambda v: v >= 0, "must be 0 or more"),
    ("log_every", lambda v: v >= 1, "must be 1 or more"),
    ("checkpoint.every", lambda v: v >= 1, "must be 1 or more"),
    ("checkpoint.keep", lambda v: v >= 2, "must be 2 or more, so that one is left when the newest is damaged"),
    ("evaluation.batch_size", lambda v: v >= 1, "must be 1 or more"),
    ("evaluation.num_bins", lambda v: v >= 1, "must be 1 or more"),
    ("evaluation.binning", lambda v: v in ("ece", "adaptive_ece"), "must be ece or adaptive_ece"),
    ("evaluation.num_resamples", lambda v: v >= 2, "must be 2 or more"),
    ("evaluation.gammas", lambda v: all(-1 < each <= 100 for each in v), "must hold numbers above -1, at most 100"),
    ("evaluation.gammas", lambda v: 0 in v, "must hold 0, the plain temperature scaling to compare with"),
    (
        "evaluation.temperature_step",
        lambda v: 0 < v <= 1 and abs(round(1 / v) * v - 1) < 1e-6,
        "must be 1/2, 1/100 ...",
    ),
    ("evaluation.max_temperature", lambda v: 1 <= v < float("inf"), "must be a finite number, 1 or more"),
    ("curvature.examples", lambda v: v >= 0, "must be 0 (no curvature) or more"),
    ("curvature.batch_size", lambda v: v >= 1, "must be 1 or more"),
    ("curvature.max_products", lambda v: v >= 2, "must be 2 or more"),
    ("curvature.tolerance", lambda v: v > 0, "must be greater than 0"),
    ("curvature.num_probes", lambda v: v >= 4, "must be 4 or more, to have a standard error"),
    ("curvature.trace_method", lambda v: v in ("hutchinson", "hutch++"), "must be hutchinson or hutch++"),
)


def check_config(config: ConfigDict) -> None:
    """Check the ranges of all fields.

    Raises:
      InputError: the first field that is out of its range, with the range.
    """
    for field, holds, range_in_words in CHECKS:
        value = functools.reduce(lambda part, name: part[name], field.split("."), config)
        try:
            right = holds(value)
        except (TypeError, ValueError):  # text where numbers belong
            right = False
        if not right:
            raise InputError(f"config.{field} is {value}: it {range_in_words}")
    if config.optimizer.schedule == "cosine" and config.optimizer.warmup_epochs >= config.optimizer.epochs:
        raise InputError("config.optimizer.warmup_epochs leaves no epoch to train: it must be below optimizer.epochs")
    _choose("loss.name", config.loss.name, losses.LOSSES)
    _choose("data.augment", config.data.augment, data.AUGMENTATIONS)


def run(config: ConfigDict, workdir: str | Path) -> list[dict]:
    """Run the main job in `workdir`, or go on with it there; returns the evaluation rows.

    Raises:
      InputError: config, data or workdir is not usable. RunError: training cannot go on. Interrupted: a signal came.
    """
    began = time.perf_counter()
    check_config(config)
    config, workdir = FrozenConfigDict(config), Path(workdir)
    fresh = records.check_workdir(workdir, config.to_dict()) == "fresh"
    prepared = _prepare(config)
    if not fresh:
        _check_data(workdir, prepared.dataset)
    with records.locked(workdir):
        if fresh:
            records.write_manifest(workdir, _manifest(config, prepared.dataset, prepared.state))
        seconds = {"prepare": time.perf_counter() - began}
        outcome = _train(config, workdir, prepared)
        seconds |= {"compile": outcome.compile_seconds, "train": outcome.train_seconds}
        if not outcome.compile_seconds:
            seconds = {}  # nothing was left to train: what it took when it was trained stays in the rows
        began = time.perf_counter()
        rows = _evaluate(config, workdir, prepared.model, prepared.dataset, outcome.state, prepared.keys)
        seconds["evaluate"] = time.perf_counter() - began
        rows += [{"name": "seconds", "phase": phase, "value": value} for phase, value in seconds.items()]
        rows = [{"step": prepared.plan.steps, **_place(config), **row} for row in rows]
        stale = lambda row: "epoch" not in row and row.get("phase", "evaluate") in seconds  # noqa: E731
        records.replace_rows(workdir, rows, where=stale)
        _say("drawing the report")
        report.write_report(workdir)
    return rows


class _Prepared(NamedTuple):
    """Everything that a run needs before it writes anything."""

    dataset: Dataset
    model: Model
    keys: dict[str, jax.Array]
    plan: loop.Plan
    schedule: Callable
    tx: Any  # optax.GradientTransformation
    state: TrainState


def _prepare(config) -> _Prepared:
    dataset = _load(config)
    model = _model(config, dataset)
    names = ("init", "noise", "probe", "bootstrap")
    keys = dict(zip(names, jax.random.split(jax.random.PRNGKey(config.seed), len(names)), strict=True))
    plan = _plan(config, dataset)
    schedule = _schedule(config, plan)
    tx = _optimiser(config, schedule)
    return _Prepared(dataset, model, keys, plan, schedule, tx, _initial_state(config, model, tx, dataset, keys))


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


def _train(config, workdir: Path, prepared: _Prepared) -> loop.Outcome:
    """Train from the newest whole checkpoint, or from the initial state."""
    dataset, model, state = prepared.dataset, prepared.model, prepared.state
    with records.writing(workdir / "checkpoints"):
        manager = checkpoint.make_manager(workdir / "checkpoints", keep=config.checkpoint.keep)
    start = checkpoint.restore_latest(manager, state) or checkpoint.Checkpoint(state, {})
    first = int(start.state.step)
    records.truncate_rows(workdir, first)
    tensorboard = records.tensorboard_writer(workdir, step=first)
    place = _place(config)

    def write(rows: list[dict]) -> None:
        rows = [{**row, **place} for row in rows]
        records.append_rows(workdir, rows)
        for row in rows:
            tensorboard(row)

    loss = losses.make_loss(config.loss.name)
    step = parallel.pmapped(make_step(model.apply, loss, prepared.tx, parallel.reduce_sum))
    with interruption.deferred_signals() as stopped:
        return loop.run(
            start,
            step,
            prepared.plan,
            batches=functools.partial(_training_batches, config, dataset),
            validate=_make_validation(config, model, dataset),
            learning_rate=lambda index: config.optimizer.learning_rate * float(prepared.schedule(index)),
            write=write,
            save=functools.partial(checkpoint.save, manager),
            stopped=stopped,
        )


def _evaluate(config, workdir: Path, model: Model, dataset: Dataset, state: TrainState, keys: dict) -> list[dict]:
    """Predictions saved once; calibration before and after both maps; curvature on a fixed subset of val."""
    _say("predicting val and test")
    forward = parallel.pmapped_forward(model.apply)
    variables = {"params": state.params, **state.model_state}
    predictions = {}
    for name, split in (("val", dataset.val), ("test", dataset.test)):
        predictions[name] = evaluation.predict(forward, variables, _evaluation_batches(config, split))
        records.write_predictions(workdir, name, predictions[name].logits, predictions[name].labels)
    _say("calibrating: temperature scaling, focal temperature scaling")
    rows, search = _calibrate(config, predictions, keys["bootstrap"])
    records.write_arrays(workdir, "search", search)
    return rows + _curvature(config, model, dataset, state, keys["probe"])


def _calibrate(config, predictions: dict[str, Predictions], key: jax.Array) -> tuple[list[dict], dict[str, np.ndarray]]:
    settings = config.evaluation
    gammas = np.asarray(settings.gammas, np.float32)
    count = round(settings.max_temperature / settings.temperature_step)
    temperatures = (np.arange(1, count + 1) * settings.temperature_step).astype(np.float32)
    calibrators, search = evaluation.fit_calibrators(
        predictions["val"],
        gammas=gammas,
        temperatures=temperatures,
        num_bins=settings.num_bins,
        binning=settings.binning,
    )
    rows = [
        row for calibrator in calibrators for row in evaluation.fit_rows(calibrator, len(predictions["val"].labels))
    ]
    for calibrator in (evaluation.UNCALIBRATED, *calibrators):
        for split, predicted in predictions.items():
            rows += evaluation.calibration_rows(
                calibrator, split, predicted, key, num_bins=settings.num_bins, num_resamples=settings.num_resamples
            )
    arrays = {
        "gammas": gammas,
        "temperatures": temperatures,
        "ece": np.asarray(search.ece),
        "nll": np.asarray(search.nll),
    }
    return rows, arrays


def _curvature(config, model: Model, dataset: Dataset, state: TrainState, key: jax.Array) -> list[dict]:
    settings = config.curvature
    if settings.examples == 0:
        return []
    subset = Split(dataset.val.x[: settings.examples], dataset.val.y[: settings.examples])
    _say("measuring the curvature of the loss on val")
    batches = list(data.evaluation_batches(subset, batch_size=settings.batch_size, normalise=_normalisation(config)))
    host_state = jax.device_get(state)
    chosen = {name: losses.make_loss(name) for name in dict.fromkeys(("cross_entropy", config.loss.name))}
    return evaluation.curvature_rows(
        model.apply,
        {name: functools.partial(_with_hyper, loss, host_state.hyper) for name, loss in chosen.items()},
        jax.tree.map(jnp.asarray, host_state.params),
        jax.tree.map(jnp.asarray, host_state.model_state),
        batches,
        key,
        max_products=settings.max_products,
        tolerance=settings.tolerance,
        num_probes=settings.num_probes,
        trace_method=settings.trace_method,
    )


def _with_hyper(loss, hyper, logits, labels):
    return loss(logits, labels, hyper)


def _make_validation(config, model: Model, dataset: Dataset):
    """State -> rows of the mean training loss and the accuracy on val."""
    forward = parallel.pmapped_forward(model.apply)
    loss = jax.jit(losses.make_loss(config.loss.name))

    def validate(state: TrainState) -> list[dict]:
        variables = {"params": state.params, **state.model_state}
        predicted = evaluation.predict(forward, variables, _evaluation_batches(config, dataset.val))
        per_example = np.asarray(loss(predicted.logits, predicted.labels, jax.device_get(state.hyper)))
        right = predicted.logits.argmax(-1) == predicted.labels
        place = {"split": "val", "n": len(right)}
        return [
            {"name": "loss", "value": float(per_example.mean()), **place},
            {"name": "accuracy", "value": float(right.mean()), **place},
        ]

    return validate


def _load(config) -> Dataset:
    sizes = {name: config.data[name] for name in ("train_size", "val_size", "test_size", "image_size")}
    return data.load_dataset(config.data.name, split_seed=config.data.split_seed, **sizes)


def _model(config, dataset: Dataset) -> Model:
    given = {name: config.model[name] for name in ("hidden", "widths", "blocks")}
    options = {name: value for name, value in given.items() if value is not None}
    options |= {"dtype": jnp.dtype(config.model.dtype), "axis_name": parallel.AXIS}
    return models.build(config.model.name, len(dataset.class_names), **options)


def _plan(config, dataset: Dataset) -> loop.Plan:
    steps_per_epoch = data.num_batches(dataset.train, config.optimizer.batch_size)
    return loop.Plan(config.optimizer.epochs, steps_per_epoch, config.log_every, config.checkpoint.every)


def _schedule(config, plan: loop.Plan):
    if config.optimizer.schedule == "cosine":
        return optimiser.cosine_schedule(plan.steps, config.optimizer.warmup_epochs * plan.steps_per_epoch)
    boundaries = [epoch * plan.steps_per_epoch for epoch in config.optimizer.decay_epochs]
    return optimiser.step_schedule(boundaries, config.optimizer.decay_factor)


def _optimiser(config, schedule):
    settings = config.optimizer
    return optimiser.make_optimiser(
        settings.name,
        schedule,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=settings.weight_decay,
        clip_norm=settings.clip_norm,
    )


def _initial_state(config, model: Model, tx, dataset: Dataset, keys: dict) -> TrainState:
    few = Split(dataset.train.x[:2], dataset.train.y[:2])
    example = next(data.evaluation_batches(few, batch_size=2, normalise=_normalisation(config)))
    variables = dict(jax.jit(model.init)(keys["init"], example.x))
    params = variables.pop("params")
    hyper = {name: config.loss[name] for name in losses.hyperparameters(config.loss.name)}
    hyper["learning_rate"] = config.optimizer.learning_rate
    hyper = {name: jnp.float32(value) for name, value in hyper.items()}
    return TrainState(jnp.int32(0), params, variables, tx.init(params), keys["noise"], hyper)


def _place(config) -> dict:
    """The fields that every row of the run has: its seed, and gamma if the loss has one."""
    gamma = {"gamma": config.loss.gamma} if "gamma" in losses.hyperparameters(config.loss.name) else {}
    return {**gamma, "seed": config.seed}


def _check_data(workdir: Path, dataset: Dataset) -> None:
    """Refuse to go on with other data than the run began with."""
    began_with = records.read_manifest(workdir).get("data", {}).get("checksum")
    if began_with != dataset.checksum:
        raise InputError(
            f"{dataset.name} has changed since the run in {workdir} began (checksum {str(began_with)[:12]} there, "
            f"{dataset.checksum[:12]} now); restore the data or choose another --workdir"
        )


def _normalisation(config) -> data.Normalisation:
    return data.Normalisation(config.data.mean, config.data.std, config.data.scale)


def _training_batches(config, dataset: Dataset, epoch: int, start: int):
    return data.epoch_batches(
        dataset.train,
        batch_size=config.optimizer.batch_size,
        seed=config.seed,
        epoch=epoch,
        start=start,
        augment=data.AUGMENTATIONS[config.data.augment],
        normalise=_normalisation(config),
        multiple_of=parallel.device_count(),
    )


def _evaluation_batches(config, split: Split):
    return data.evaluation_batches(
        split,
        batch_size=config.evaluation.batch_size,
        normalise=_normalisation(config),
        multiple_of=parallel.device_count(),
    )


def _manifest(config, dataset: Dataset, state: TrainState) -> dict[str, Any]:
    """What is needed to know and repeat a run."""
    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "focalgeo")
    splits = {name: len(getattr(dataset, name).y) for name in ("train", "val", "test")}
    return {
        "config": config.to_dict(),
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in packages},
        },
        "git": _git_commit(),
        "devices": [str(device.device_kind) for device in jax.devices()],
        "platform": f"{platform.system()} {platform.machine()}, {jax.default_backend()}",
        "data": {"name": dataset.name, "checksum": dataset.checksum, "classes": list(dataset.class_names), **splits},
        "command": ["python", "-m", "focalgeo.run", *sys.argv[1:]],
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "parameters": trees.size(state.params),
    }


def _git_commit() -> str:
    """The commit of the source tree, with a + where it has changes; "unknown" for an installed package."""
    describe = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty=+",
        "--abbrev=12",
        "--exclude=*",
    ]
    try:
        return subprocess.run(describe, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _choose(field: str, name: str, choices) -> None:
    if name not in choices:
        raise InputError.of_choice(f"config.{field}", name, choices)
