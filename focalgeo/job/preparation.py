"""Preparation: from config fields to what a run needs before it writes anything.

Data and the pipeline of its batches, the network, the objective, the optimiser, the step that joins them, first states.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import FrozenConfigDict

from focalgeo import calibration, curvature, data, evaluation, losses, models, parallel
from focalgeo.config import Known, check, describe
from focalgeo.curvature.traces import MOST_XTRACE_SAMPLES
from focalgeo.job import say
from focalgeo.job.members import Member
from focalgeo.precision import at_precision
from focalgeo.training import best_epoch, loop, optimiser, penalties
from focalgeo.training.step import make_ascent, make_step, stack
from focalgeo.types import Array, Batch, Dataset, InputError, Model, PyTree, Split, TrainState

# names that config fields may hold; the table of fields itself imports no package that has them
KNOWN = Known(
    names={
        "data.augment": data.AUGMENTATIONS,
        "model.name": models.MODELS,
        "loss.name": losses.FUNCTIONS,
        "optimizer.name": optimiser.OPTIMISERS,
        "evaluation.methods": calibration.METHODS,
        "evaluation.criteria": calibration.CRITERIA,
        "evaluation.metrics": calibration.METRICS,
    },
    losses_with_gamma=[name for name, base in losses.FUNCTIONS.items() if "gamma" in losses.hyperparameters(base)],
    boundaries={name: schedule.boundaries for name, schedule in losses.SCHEDULES.items()},
)


def check_config(config) -> FrozenConfigDict:
    """The config as a job reads it: every value of its field's own kind.

    Raises:
        InputError: the first field, or option of the network, that does not exist or is out of its range.
    """
    config = check(config, KNOWN)
    models.check_options(config.model.name, config.model.options)
    measured, most = config.curvature, 2 * MOST_XTRACE_SAMPLES
    if measured.trace_method == "xtrace" and measured.num_probes > most:
        raise InputError(
            f"config.curvature.num_probes is {measured.num_probes}: xtrace takes at most {most:,}; lower it, or set "
            "config.curvature.trace_method to hutch++"
        )
    return config


def describe_config() -> str:
    """The table of all config fields, and the options of each network."""
    return describe(KNOWN.names, {name: models.options(name) for name in models.MODELS})


class Objective(NamedTuple):
    """The objective of a step: `loss` summed over a batch plus the penalties of `outputs`, divided by its examples.

    With config.optimizer.reduction "sum" it is not divided by the number of examples.
    """

    name: str  # of the loss without penalties, as rows of its curvature name it
    loss: Callable[[Array, Array, dict], Array]  # (logits, labels, loss_values) -> [examples]
    outputs: Callable  # of penalties.make_outputs
    loss_values: dict[str, PyTree]  # the traced values that both read, as training begins; a member has its own


class Prepared(NamedTuple):
    """Everything that a run needs before it writes anything."""

    dataset: Dataset
    model: Model
    plan: loop.Plan
    objective: Objective
    schedule: Callable
    tx: Any  # optax.GradientTransformation
    step: Callable  # (state, batch) -> (state, metrics), of one run


def prepare(config, dataset: Dataset | None = None) -> Prepared:
    """Load the data, where no other is given, and build the rest; config is checked and frozen.

    Raises:
        InputError: data, network or optimiser cannot be had as the config says.
    """
    dataset = _load(config) if dataset is None else dataset
    model = _model(config, dataset)
    plan = _plan(config, dataset)
    schedule = _schedule(config, plan)
    tx = _optimiser(config, schedule)
    objective = make_objective(config)
    _check_alpha(objective, dataset)
    return Prepared(dataset, model, plan, objective, schedule, tx, step_of(config, model, objective, tx))


def step_of(config, model: Model, objective: Objective, tx: Any) -> Callable:
    """The step of one run, to be compiled by `parallel`; the only thing that config.model.precision is for."""
    mean = config.optimizer.reduction == "mean"
    ascent = make_ascent(config.optimizer.sam_radius, adaptive=config.optimizer.sam_adaptive)
    own = {"outputs": objective.outputs, "mean": mean, "ascent": ascent}
    step = make_step(model.apply, objective.loss, tx, parallel.reduce_sum, **own)
    precision = config.model.precision
    return step if precision == "default" else at_precision(step, precision)  # jax's own default, as it may be set


def make_objective(config) -> Objective:
    """The objective that config.loss names.

    Raises:
        InputError: config.loss.trace_examples does not divide by the devices.
    """
    name = config.loss.name
    function = losses.FUNCTIONS[name]
    loss, penalty, trace = losses.make_loss(function), losses.PENALTIES.get(name), None
    shown, needed = name, [*losses.hyperparameters(function)]
    if penalty is not None:
        shown = function
        needed.append("penalty_weight")
    if config.loss.trace_penalty or any(config.sweep.trace_penalty):
        options = {"of": config.loss.trace_of, "form": config.loss.trace_form}
        estimator = partial(curvature.outputs_and_trace, **options)
        trace = penalties.make_trace(estimator, losses.cross_entropy, examples=_trace_examples(config))
        needed.append("trace_penalty")
    if config.loss.alpha:
        loss, shown = penalties.class_weighted(loss, losses.weighted_by_class), f"class_weighted_{shown}"
        needed.append("alpha")
    outputs = penalties.make_outputs(trace=trace, on_batch=penalty)
    return Objective(shown, loss, outputs, initial_values(config, needed))


def _trace_examples(config) -> int:
    examples, devices = config.loss.trace_examples, parallel.device_count()
    if examples % devices:
        raise InputError(f"config.loss.trace_examples is {examples}: it must be a multiple of the {devices} devices")
    return examples


def initial_values(config, names: Iterable[str]) -> dict[str, PyTree]:
    """The traced values of these names as training begins, as float32 arrays."""
    name = config.loss.name
    values = {**config.loss, "epoch": 0, "adafocal": losses.adafocal_state()}
    for table in (losses.POLICIES, losses.SCHEDULES):
        values |= table[name]._asdict() if name in table else {}
    return {each: jax.tree.map(_as_float32, values[each], is_leaf=_is_list) for each in names}


def _is_list(value) -> bool:
    return type(value) in (list, tuple)


def _as_float32(value) -> np.ndarray:
    return np.asarray(value, np.float32)


def trained_gamma(config) -> float | None:
    """Gamma of the focal loss of the training, where the focal calibration map undoes that loss; else None.

    Class weights or a penalty move what the loss is least at: then no map undoes it.
    """
    if config.loss.name != "focal_loss" or config.loss.gamma == 0 or config.loss.alpha or config.loss.trace_penalty:
        return None
    return config.loss.gamma


def _load(config) -> Dataset:
    names = ("train_size", "val_size", "test_size", "image_size", "max_words", "max_length")
    sizes = {name: config.data[name] for name in names}
    dataset = data.load_dataset(config.data.name, split_seed=config.data.split_seed, tell=say, **sizes)
    for gap in data.gaps(dataset):
        say(f"{config.data.name}: {gap}")
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
    plan = loop.Plan(config.optimizer.epochs, steps_per_epoch, config.log_every, config.checkpoint.every)
    if plan.steps > loop.MOST_STEPS:
        raise InputError(
            f"config.optimizer.epochs is {plan.epochs}: of {steps_per_epoch} steps each, where steps are counted up to "
            f"2^31 - 1; lower it to {loop.MOST_STEPS // steps_per_epoch} or less"
        )
    return plan


def _schedule(config, plan: loop.Plan):
    if config.optimizer.schedule == "cosine":
        return optimiser.cosine_schedule(plan.steps, config.optimizer.warmup_epochs * plan.steps_per_epoch)
    # beyond the last step none has an effect, and int32 would not hold it
    boundaries = [min(epoch * plan.steps_per_epoch, loop.MOST_STEPS) for epoch in config.optimizer.decay_epochs]
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
    weights, classes = objective.loss_values.get("alpha"), len(dataset.class_names)
    if weights is not None and weights.shape != (classes,):
        raise InputError(f"config.loss.alpha holds {weights.size} weights, {dataset.name} has {classes} classes")


def initial_state(prepared: Prepared, members: Sequence[Member]) -> TrainState:
    """The states of all members [members, ...] as training begins; each seed has a batch stream of its own.

    Raises:
        InputError: the network does not fit the data.
    """
    forecast(prepared, members[0])
    x, seeds = few_examples(prepared, members[0].config).x, stream_seeds(members)
    init, keys = jax.jit(prepared.model.init), {member.config.seed: member.keys["init"] for member in members}
    variables = {seed: init(key, x) for seed, key in keys.items()}  # once a seed
    return stack(
        _state(prepared, member, dict(variables[member.config.seed]), stream=seeds.index(member.config.seed))
        for member in members
    )


def few_examples(prepared: Prepared, config) -> Batch:
    """Two training examples as the network reads them."""
    train = prepared.dataset.train
    few = Split(train.x[:2], train.y[:2])
    return next(data.evaluation_batches(few, batch_size=2, normalise=normalisation(config, train)))


class Shapes(NamedTuple):
    """Shapes of what a run of one member holds, of which nothing is allocated."""

    params: PyTree
    state: PyTree  # params among it, and the leaves of a TrainState that are as large
    forward: evaluation.Forward  # of `few_examples`


def forecast(prepared: Prepared, member: Member) -> Shapes:
    """The shapes of a member's network and its training; allocates nothing.

    Raises:
        InputError: the network cannot read the data, or gives other logits; both are named.
    """
    config, dataset, example = member.config, prepared.dataset, few_examples(prepared, member.config)
    misfit = f"config.model.name: {config.model.name} does not fit {dataset.name}"
    try:
        variables = jax.jit(prepared.model.init).eval_shape(member.keys["init"], example.x)
        forward = evaluation.forecast_forward(prepared.model.apply, variables, example.x)
    except (ArithmeticError, IndexError, TypeError, ValueError) as error:  # InputError is a ValueError
        said = str(error).splitlines() or [type(error).__name__]
        raise InputError(f"{misfit}: {said[0]}") from error
    found, wanted = [*forward.logits.shape], [*example.y.shape, len(dataset.class_names)]
    if found != wanted:
        raise InputError(f"{misfit}: two examples give logits of shape {found}, not {wanted}")
    best = variables if config.optimizer.select == "best_val" else None
    opt_state = jax.eval_shape(prepared.tx.init, variables["params"])
    return Shapes(variables["params"], (variables, opt_state, best), forward)


def state_shapes(prepared: Prepared, member: Member) -> TrainState:
    """The shapes of a member's state as training begins; allocates nothing."""
    x = few_examples(prepared, member.config).x

    def state(key: Array) -> TrainState:
        return _state(prepared, member, dict(prepared.model.init(key, x)), stream=0)

    return jax.eval_shape(state, member.keys["init"])


def _state(prepared: Prepared, member: Member, variables: dict, *, stream: int) -> TrainState:
    params, settings = variables.pop("params"), member.config.optimizer
    return TrainState(
        step=np.int32(0),
        params=params,
        model_state=variables,
        opt_state=jax.jit(prepared.tx.init)(params),
        key=member.keys["noise"],
        loss_values=initial_values(member.config, names=tuple(prepared.objective.loss_values)),
        learning_rate=np.float32(settings.learning_rate),
        best=best_epoch.before_training(params, variables) if settings.select == "best_val" else None,
        stream=np.int32(stream),
    )


def stream_seeds(members: Sequence[Member]) -> list[int]:
    """The seeds of the batch streams: those of the members, each once. Members of one seed see the same batches."""
    return list(dict.fromkeys(member.config.seed for member in members))


class Pipeline(NamedTuple):
    """The input pipeline of training: what stays on the devices, and the specs that batches are made from.

    specs(epoch, start): those of an epoch from number `start` on, leaves [streams, examples, ...], padded for all
    devices. fetch: some examples' specs -> what is sent of them. make_batch: (that, *resident) -> Batch, inside the
    compiled step.
    """

    specs: Callable[[int, int], Iterator[PyTree]]
    fetch: Callable[[PyTree], PyTree]
    make_batch: Callable[..., Batch]
    resident: tuple[Split, ...]


def make_pipeline(config, dataset: Dataset, seeds: Sequence[int]) -> Pipeline:
    """All training examples on every device if they take at most half of its free memory, else sent batch by batch.

    seeds: one for each batch stream.
    """
    train, fits = dataset.train, resident_bytes(dataset) > 0
    augmentation = data.AUGMENTATIONS[config.data.augment]
    options = {"augmentation": augmentation, "normalise": normalisation(config, train)}

    def specs(epoch: int, start: int) -> Iterator[PyTree]:
        size, multiple_of = config.optimizer.batch_size, parallel.device_count()
        each = {"batch_size": size, "epoch": epoch, "start": start, "augmentation": augmentation}
        streams = [data.batch_specs(train, seed=seed, multiple_of=multiple_of, **each) for seed in seeds]
        for of_streams in zip(*streams, strict=True):
            yield jax.tree.map(lambda *leaves: np.stack(leaves), *of_streams)

    if fits:
        make_batch = partial(data.make_batch, shape=train.x.shape[1:], **options)
        return Pipeline(specs, lambda spec: spec, lambda spec, split: make_batch(split, spec), (data.in_rows(train),))
    return Pipeline(specs, partial(data.fetch, train), lambda fetched: data.make_batch(*fetched, **options), ())


def resident_bytes(dataset: Dataset) -> int:
    """Bytes of each device's memory that training examples take while they stay there; 0 if they are sent instead."""
    free, needed = parallel.free_memory(), dataset.train.x.nbytes + dataset.train.y.nbytes
    return needed if free is None or 2 * needed <= free else 0


def evaluation_batches(config, split: Split) -> Iterator[Batch]:
    """All examples of a split in order, padded for all devices."""
    return data.evaluation_batches(
        split,
        batch_size=config.evaluation.batch_size,
        normalise=normalisation(config, split),
        multiple_of=parallel.device_count(),
    )


def curvature_batches(config, split: Split) -> list[Batch]:
    """The first examples of a split, as many as curvature is measured on, in batches of one shape."""
    few = Split(split.x[: config.curvature.examples], split.y[: config.curvature.examples])
    size = config.curvature.batch_size
    options = {"normalise": normalisation(config, split), "multiple_of": parallel.device_count()}
    return list(data.evaluation_batches(few, batch_size=size, **options))


def normalisation(config, split: Split) -> data.Normalisation | None:
    """The Normalisation of a split's images, from config.data; None for data that are no images."""
    if split.x.dtype != np.uint8:
        return None
    return data.Normalisation(config.data.mean, config.data.std, config.data.scale)
