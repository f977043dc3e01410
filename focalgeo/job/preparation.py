"""From config fields to what a run needs before it writes anything: data, network, optimiser, first state."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from focalgeo import data, evaluation, losses, models, parallel
from focalgeo.job.objective import FUNCTIONS, Objective, make_objective
from focalgeo.training import loop, optimiser
from focalgeo.types import Batch, Dataset, InputError, Model, Split, TrainState


class Prepared(NamedTuple):
    """Everything that a run needs before it writes anything."""

    dataset: Dataset
    model: Model
    keys: dict[str, jax.Array]
    plan: loop.Plan
    objective: Objective
    schedule: Callable
    tx: Any  # optax.GradientTransformation
    state: TrainState


def prepare(config) -> Prepared:
    """Load the data and build the rest; config is checked and frozen.

    Raises:
      InputError: data, network or optimiser cannot be had as the config says.
    """
    dataset = _load(config)
    model = _model(config, dataset)
    names = ("init", "noise", "probe", "bootstrap")
    keys = dict(zip(names, jax.random.split(jax.random.PRNGKey(config.seed), len(names)), strict=True))
    plan = _plan(config, dataset)
    schedule = _schedule(config, plan)
    tx = _optimiser(config, schedule)
    objective = make_objective(config)
    _check_alpha(objective, dataset)
    state = _initial_state(config, model, tx, dataset, keys, objective.hyper)
    return Prepared(dataset, model, keys, plan, objective, schedule, tx, state)


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


def _check_alpha(objective: Objective, dataset: Dataset) -> None:
    weights, classes = objective.hyper.get("alpha"), len(dataset.class_names)
    if weights is not None and weights.shape != (classes,):
        raise InputError(f"config.loss.alpha holds {weights.size} weights, {dataset.name} has {classes} classes")


def _initial_state(config, model: Model, tx, dataset: Dataset, keys: dict, hyper: dict) -> TrainState:
    few = Split(dataset.train.x[:2], dataset.train.y[:2])
    example = next(data.evaluation_batches(few, batch_size=2, normalise=normalisation(config)))
    variables = dict(jax.jit(model.init)(keys["init"], example.x))
    params = variables.pop("params")
    hyper = {**hyper, "learning_rate": jnp.float32(config.optimizer.learning_rate)}
    return TrainState(jnp.int32(0), params, variables, tx.init(params), keys["noise"], hyper)


def normalisation(config) -> data.Normalisation:
    """How pixels become the network's input."""
    return data.Normalisation(config.data.mean, config.data.std, config.data.scale)


def training_batches(config, dataset: Dataset, epoch: int, start: int) -> Iterator[Batch]:
    """The batches of one epoch from number `start` on, padded for all devices."""
    return data.epoch_batches(
        dataset.train,
        batch_size=config.optimizer.batch_size,
        seed=config.seed,
        epoch=epoch,
        start=start,
        augment=data.AUGMENTATIONS[config.data.augment],
        normalise=normalisation(config),
        multiple_of=parallel.device_count(),
    )


def evaluation_batches(config, split: Split) -> Iterator[Batch]:
    """All examples of a split in order, padded for all devices."""
    return data.evaluation_batches(
        split,
        batch_size=config.evaluation.batch_size,
        normalise=normalisation(config),
        multiple_of=parallel.device_count(),
    )


def curvature_batches(config, split: Split) -> list[Batch]:
    """The first examples of a split, as many as curvature is measured on, in batches of one shape."""
    few = Split(split.x[: config.curvature.examples], split.y[: config.curvature.examples])
    size = config.curvature.batch_size
    return list(data.evaluation_batches(few, batch_size=size, normalise=normalisation(config)))


def place(config) -> dict:
    """The fields that every row of the run has: its seed, and gamma if the loss has one."""
    gamma = {"gamma": config.loss.gamma} if "gamma" in losses.hyperparameters(FUNCTIONS[config.loss.name]) else {}
    return {**gamma, "seed": config.seed}


def unfocalled(config) -> list[evaluation.Calibrator]:
    """The map that undoes the focal loss of the training, its own gamma with nothing fitted; none for other losses.

    Class weights or a penalty move what the loss is least at: then no map undoes it.
    """
    if config.loss.name != "focal_loss" or config.loss.gamma == 0 or config.loss.alpha or config.loss.trace_penalty:
        return []
    return [evaluation.Calibrator({"map": "unfocalled"}, config.loss.gamma, 1.0)]
