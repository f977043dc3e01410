"""From config fields to what a run needs before it writes anything: data, network, optimiser, first state."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import FrozenConfigDict

from focalgeo import data, evaluation, losses, models, parallel
from focalgeo.config import Known, check, describe
from focalgeo.job import feed, selection
from focalgeo.job.members import Member
from focalgeo.job.objective import FUNCTIONS, NAMES, Objective, hyper_of, make_objective
from focalgeo.training import loop, optimiser, sweep
from focalgeo.types import Batch, Dataset, InputError, Model, Split, TrainState

# what config fields may name; the table of fields itself imports no room that has the names
KNOWN = Known(
    names={"data.augment": data.AUGMENTATIONS, "model.name": models.MODELS, "loss.name": NAMES},
    losses_with_gamma=[name for name, function in FUNCTIONS.items() if "gamma" in losses.hyperparameters(function)],
    boundaries={name: schedule.boundaries for name, schedule in losses.SCHEDULES.items()},
)


def check_config(config) -> FrozenConfigDict:
    """The config as a job reads it: every value of its field's own kind.

    Raises:
      InputError: the first field, or option of the network, that does not exist or is out of its range.
    """
    config = check(config, KNOWN)
    models.check_options(config.model.name, config.model.options)
    return config


def describe_config() -> str:
    """The table of all config fields, and the options of each network."""
    return describe(KNOWN.names, {name: models.options(name) for name in models.MODELS})


class Prepared(NamedTuple):
    """Everything that a run needs before it writes anything."""

    dataset: Dataset
    model: Model
    plan: loop.Plan
    objective: Objective
    schedule: Callable
    tx: Any  # optax.GradientTransformation


def prepare(config) -> Prepared:
    """Load the data and build the rest; config is checked and frozen.

    Raises:
      InputError: data, network or optimiser cannot be had as the config says.
    """
    dataset = _load(config)
    model = _model(config, dataset)
    plan = _plan(config, dataset)
    schedule = _schedule(config, plan)
    tx = _optimiser(config, schedule)
    objective = make_objective(config)
    _check_alpha(objective, dataset)
    return Prepared(dataset, model, plan, objective, schedule, tx)


def _load(config) -> Dataset:
    names = ("train_size", "val_size", "test_size", "image_size", "max_words", "max_length")
    sizes = {name: config.data[name] for name in names}
    dataset = data.load_dataset(config.data.name, split_seed=config.data.split_seed, **sizes)
    if config.data.augment != "none" and dataset.train.x.ndim != 4:
        raise InputError(
            f"config.data.augment is {config.data.augment}, {config.data.name} holds no images: set it to none"
        )
    return dataset


def _model(config, dataset: Dataset) -> Model:
    options = {**config.model.options, "dtype": jnp.dtype(config.model.dtype), "axis_name": parallel.AXIS}
    options |= _word_vectors(config, dataset)
    if dataset.vocabulary:
        options["vocabulary_size"] = len(dataset.vocabulary)
    return models.build(config.model.name, len(dataset.class_names), **options)


def _word_vectors(config, dataset: Dataset) -> dict:
    """The options of a network whose word vectors begin as those of a file; none without one.

    Raises:
      InputError: the file's vectors have another size than config.model.options.embedding_size asks for.
    """
    path, size = config.data.embeddings, config.model.options.get("embedding_size")
    if path is None:
        return {}
    if not dataset.vocabulary:
        raise InputError(f"config.data.embeddings is {path}, {dataset.name} holds no words: leave it out")
    vectors = data.read_embeddings(path, dataset.vocabulary)
    if size is not None and vectors.shape[1] != size:
        raise InputError(
            f"{path} holds vectors of {vectors.shape[1]} numbers: set config.model.options.embedding_size to that"
        )
    return {"embedding_size": vectors.shape[1], "embedding_init": lambda key, shape, dtype: jnp.asarray(vectors, dtype)}


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


def initial_state(prepared: Prepared, members: Sequence[Member]) -> TrainState:
    """The states of all members [members, ...] as training begins; each seed is the source of its own batches.

    Raises:
      InputError: the network does not fit the data.
    """
    train, seeds = prepared.dataset.train, source_seeds(members)
    few = Split(train.x[:2], train.y[:2])
    example = next(data.evaluation_batches(few, batch_size=2, normalise=feed.normalisation(members[0].config, train)))
    init_keys = {member.config.seed: member.keys["init"] for member in members}
    variables = _initialised(members[0].config, prepared, init_keys, example)
    states = [_state(prepared, member, dict(variables[member.config.seed])) for member in members]
    return sweep.stack(states, [seeds.index(member.config.seed) for member in members])


def _initialised(config, prepared: Prepared, keys: dict[int, jax.Array], example: Batch) -> dict[int, dict]:
    """The network's variables for each seed; a network is refused that cannot read the data or gives other logits.

    Raises:
      InputError: network and data are named.
    """
    init, wanted = jax.jit(prepared.model.init), [*example.y.shape, len(prepared.dataset.class_names)]
    misfit = f"config.model.name: {config.model.name} does not fit {prepared.dataset.name}"
    try:
        variables = {seed: init(key, example.x) for seed, key in keys.items()}
        found = jax.eval_shape(prepared.model.apply, next(iter(variables.values())), example.x).shape
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(f"{misfit}: {str(error).splitlines()[0]}") from error
    if [*found] != wanted:
        raise InputError(f"{misfit}: two examples give logits of shape {[*found]}, not {wanted}")
    return variables


def _state(prepared: Prepared, member: Member, variables: dict) -> TrainState:
    params = variables.pop("params")
    hyper = hyper_of(member.config, prepared.objective.hyper)
    hyper["learning_rate"] = np.float32(member.config.optimizer.learning_rate)
    state = TrainState(np.int32(0), params, variables, prepared.tx.init(params), member.keys["noise"], hyper)
    return selection.with_best(state) if member.config.optimizer.select == "best_val" else state


def source_seeds(members: Sequence[Member]) -> list[int]:
    """The seeds of the members, each once: members of one seed see the same batches."""
    return list(dict.fromkeys(member.config.seed for member in members))


def unfocalled(config) -> list[evaluation.Calibrator]:
    """The map that undoes the focal loss of the training, its own gamma with nothing fitted; none for other losses.

    Class weights or a penalty move what the loss is least at: then no map undoes it.
    """
    if config.loss.name != "focal_loss" or config.loss.gamma == 0 or config.loss.alpha or config.loss.trace_penalty:
        return []
    return [evaluation.Calibrator({"map": "unfocalled"}, config.loss.gamma, 1.0)]
