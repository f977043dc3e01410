"""Preparation: from config fields to what a run needs before it writes anything.

Data and the pipeline of its batches, the members of a sweep (each a run of its own config; all train together), the
network, the objective, the optimiser, the step that joins them, first states.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict, FrozenConfigDict

from focalgeo import calibration, curvature, data, losses, models, parallel, trees
from focalgeo import config as fields
from focalgeo.curvature.traces import MOST_XTRACE_SAMPLES
from focalgeo.job import say
from focalgeo.rows import Row, Scalar, select
from focalgeo.training import loop, optimiser, penalties
from focalgeo.training.step import make_ascent, make_step, stack
from focalgeo.types import Array, Batch, Dataset, InputError, Model, PyTree, Split, TrainState, shown

# names that config fields may hold; the table of fields itself imports no package that has them
KNOWN = fields.Known(
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
    config = fields.check(config, KNOWN)
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
    return fields.describe(KNOWN.names, {name: models.options(name) for name in models.MODELS})


class Member(NamedTuple):
    """One run of a sweep, or the only one of a job without axes."""

    name: str  # "gamma=0.5,seed=1"; "" for the only one
    tags: dict[str, Any]  # those of its rows: the swept values, its seed, and gamma where its loss has one
    config: FrozenConfigDict  # frozen, that of a job without sweep
    keys: dict[str, jax.Array]


def make_members(config) -> list[Member]:
    """All combinations of the values of config.sweep; members with one seed share initial weights and batches."""
    return [_member(config, values) for values in fields.combinations(config)]


def _member(config, values: dict[str, Any]) -> Member:
    own, names = fields.member_config(config, values), ("init", "noise", "probe", "bootstrap")
    keys = dict(zip(names, jax.random.split(jax.random.PRNGKey(own.seed), len(names)), strict=True))
    gamma = {"gamma": own.loss.gamma} if own.loss.name in KNOWN.losses_with_gamma else {}
    tags = gamma | values | {"seed": own.seed}
    return Member(fields.member_name(values), tags, FrozenConfigDict(own), keys)


def of_shard(members: Sequence, shard: str | None) -> list:
    """Every n-th of the members from the i-th on, for shard "i/n"; all of them for None.

    Raises:
        InputError: it is no such text, i is not below n, or there are fewer members than shards.
    """
    if shard is None:
        return list(members)
    matched = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", shard)
    index, count = map(int, matched.groups()) if matched else (0, 0)
    if not index < count <= len(members):
        most = f"n at most {len(members)}, the members of config.sweep"
        raise InputError(f"--shard={shown(shard)}: give i/n with i from 0 to n - 1, and {most}")
    return list(members[index::count])


def names_in(manifest: Mapping[str, Any]) -> list[str]:
    """The names of the members that a workdir holds, in the order in which its checkpoints hold them."""
    sweep = {**dict.fromkeys(fields.SWEPT_FIELDS, ()), **manifest["config"].get("sweep", {})}
    names = [fields.member_name(values) for values in fields.combinations(ConfigDict({"sweep": sweep}))]
    return of_shard(names, manifest.get("shard"))


def belongs(row: Row, member: Member) -> bool:
    """Whether a row has all tags of the member."""
    return all(getattr(row, name) == value for name, value in member.tags.items())


def stopped(rows: Iterable[Row], members: Sequence[Member]) -> dict[str, int]:
    """Name -> step of the members that have stopped, since a number was not finite."""
    stops = select(rows, Scalar, name="stopped")
    return {member.name: int(row.value) for member in members for row in stops if belongs(row, member)}


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
    settings, classes = config.optimizer, len(dataset.class_names)
    steps_per_epoch = data.num_batches(dataset.train, settings.batch_size)
    plan = loop.Plan(settings.epochs, steps_per_epoch, config.log_every, config.checkpoint.every)
    if plan.steps > loop.MOST_STEPS:
        most = loop.MOST_STEPS // steps_per_epoch
        raise InputError(f"config.optimizer.epochs is {plan.epochs}: lower it to {most} or less, 2^31 - 1 steps in all")
    if settings.schedule == "cosine":
        schedule = optimiser.cosine_schedule(plan.steps, settings.warmup_epochs * steps_per_epoch)
    else:  # beyond the last step no boundary has an effect, and int32 would not hold it
        boundaries = [min(epoch * steps_per_epoch, loop.MOST_STEPS) for epoch in settings.decay_epochs]
        schedule = optimiser.step_schedule(boundaries, settings.decay_factor)
    names = ("momentum", "nesterov", "weight_decay", "clip_norm")
    tx = optimiser.make_optimiser(settings.name, schedule, **{name: settings[name] for name in names})
    model, objective = _model(config, dataset), make_objective(config)
    if len(config.loss.alpha) not in (0, classes):
        raise InputError(
            f"config.loss.alpha holds {len(config.loss.alpha)} weights, {dataset.name} has {classes} classes"
        )
    return Prepared(dataset, model, plan, objective, schedule, tx, step_of(config, model, objective, tx))


def step_of(config, model: Model, objective: Objective, tx: Any) -> Callable:
    """The step of one run, to be compiled by `parallel`; the only thing that config.model.precision is for."""
    mean = config.optimizer.reduction == "mean"
    ascent = make_ascent(config.optimizer.sam_radius, adaptive=config.optimizer.sam_adaptive)
    options = {"outputs": objective.outputs, "mean": mean, "ascent": ascent}
    step = make_step(model.apply, objective.loss, tx, parallel.reduce_sum, **options)
    precision = config.model.precision
    return (
        step if precision == "default" else jax.default_matmul_precision(precision)(step)
    )  # jax's own default, as it may be set


def make_objective(config) -> Objective:
    """The objective that config.loss names.

    Raises:
        InputError: config.loss.trace_examples does not divide by the devices.
    """
    name, examples, devices = config.loss.name, config.loss.trace_examples, parallel.device_count()
    if examples % devices:
        raise InputError(f"config.loss.trace_examples is {examples}: it must be a multiple of the {devices} devices")
    function, penalty, trace = losses.FUNCTIONS[name], losses.PENALTIES.get(name), None
    loss, title, needed = losses.make_loss(function), name, [*losses.hyperparameters(function)]
    if penalty is not None:
        title = function
        needed.append("penalty_weight")
    if config.loss.trace_penalty or any(config.sweep.trace_penalty):
        options = {"of": config.loss.trace_of, "form": config.loss.trace_form}
        estimator = partial(curvature.outputs_and_trace, **options)
        trace = penalties.make_trace(estimator, losses.cross_entropy, examples=examples)
        needed.append("trace_penalty")
    if config.loss.alpha:
        loss, title = penalties.class_weighted(loss, losses.weighted_by_class), f"class_weighted_{title}"
        needed.append("alpha")
    outputs = penalties.make_outputs(trace=trace, on_batch=penalty)
    return Objective(title, loss, outputs, initial_values(config, needed))


def initial_values(config, names: Iterable[str]) -> dict[str, PyTree]:
    """The traced values of these names as training begins, as float32 arrays."""
    with jax.ensure_compile_time_eval():
        values = {**config.loss, "epoch": 0, "adafocal": losses.adafocal_state()}
    for table in (losses.POLICIES, losses.SCHEDULES):
        values |= table[config.loss.name]._asdict() if config.loss.name in table else {}

    def is_list(value) -> bool:
        return type(value) in (list, tuple)

    return {name: jax.tree.map(lambda v: np.asarray(v, np.float32), values[name], is_leaf=is_list) for name in names}


def trained_gamma(config) -> float | None:
    """Gamma of the focal loss of the training, where the focal calibration map undoes that loss; else None.

    Class weights or a penalty move what the loss is least at: then no map undoes it.
    """
    if config.loss.name != "focal_loss" or config.loss.gamma == 0 or config.loss.alpha or config.loss.trace_penalty:
        return None
    return config.loss.gamma


def _load(config) -> Dataset:
    names = ("split_seed", "train_size", "val_size", "test_size", "image_size", "max_words", "max_length")
    dataset = data.load_dataset(config.data.name, **{name: config.data[name] for name in names})
    for gap in data.gaps(dataset):
        say(f"{config.data.name}: {gap}")
    if config.data.augment != "none" and dataset.train.x.ndim != 4:
        raise InputError(
            f"config.data.augment is {config.data.augment}, {config.data.name} holds no images: set it to none"
        )
    return dataset


def _model(config, dataset: Dataset) -> Model:
    options = {**config.model.options, "dtype": jnp.dtype(config.model.dtype), "axis_name": parallel.AXIS}
    path, size = config.data.embeddings, options.get("embedding_size")
    if path is not None:
        if not dataset.vocabulary:
            raise InputError(f"config.data.embeddings is {path}, {dataset.name} holds no words: leave it out")
        vectors = data.read_embeddings(path, dataset.vocabulary)
        width = vectors.shape[1]
        if size not in (None, width):
            raise InputError(
                f"{path} holds vectors of {width} numbers: set config.model.options.embedding_size to that"
            )
        options["embedding_size"] = width
        options["embedding_init"] = lambda key, shape, dtype: jnp.asarray(vectors, dtype)
    if dataset.vocabulary:
        options["vocabulary_size"] = len(dataset.vocabulary)
    return models.build(config.model.name, len(dataset.class_names), **options)


def initial_state(prepared: Prepared, members: Sequence[Member]) -> TrainState:
    """The states of all members [members, ...] as training begins; each seed has a batch stream of its own.

    Raises:
        InputError: the network does not fit the data, or the states memory.
    """
    check_memory(prepared, members)
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


def state_shapes(prepared: Prepared, member: Member) -> TrainState:
    """The shapes of a member's state as training begins; allocates nothing.

    Raises:
        InputError: the network cannot read the data, or gives other logits; both are named.
    """
    config, dataset, (x, y, _) = member.config, prepared.dataset, few_examples(prepared, member.config)
    misfit = f"config.model.name: {config.model.name} does not fit {dataset.name}"

    def state(key: Array) -> tuple[TrainState, Array]:
        variables = prepared.model.init(key, x)
        return _state(prepared, member, dict(variables), stream=0), prepared.model.apply(variables, x)

    try:
        shapes, logits = jax.eval_shape(state, member.keys["init"])
    except (ArithmeticError, IndexError, TypeError, ValueError) as error:  # InputError is a ValueError
        raise InputError(f"{misfit}: {str(error).partition(chr(10))[0] or type(error).__name__}") from error
    wanted = (*y.shape, len(dataset.class_names))
    if logits.shape != wanted:
        raise InputError(f"{misfit}: two examples give logits of shape {logits.shape}, not {wanted}")
    return shapes


def check_memory(prepared: Prepared, members: Sequence[Member]) -> None:
    """Refuses, before anything is allocated or written, states that memory will not hold twice, as a step does.

    Raises:
        InputError: what is needed, what there is, and the field to lower.
    """
    shapes, free = state_shapes(prepared, members[0]), parallel.free_memory()
    needed = 2 * len(members) * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    if free is not None and needed > free:
        raise InputError(
            f"{len(members):,} networks of {trees.size(shapes.params):,} parameters with their optimisers' states need "
            f"{needed / 1e9:,.2g} GB, {free / 1e9:,.2g} are free: sweep fewer values, or set smaller "
            "config.model.options"
        )


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
        best=loop.best_before_training(params, variables) if settings.select == "best_val" else None,
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
    train, free = dataset.train, parallel.free_memory()
    augmentation = data.AUGMENTATIONS[config.data.augment]
    options = {"augmentation": augmentation, "normalise": normalisation(config, train)}

    def specs(epoch: int, start: int) -> Iterator[PyTree]:
        size, multiple_of = config.optimizer.batch_size, parallel.device_count()
        each = {"batch_size": size, "epoch": epoch, "start": start, "augmentation": augmentation}
        streams = [data.batch_specs(train, seed=seed, multiple_of=multiple_of, **each) for seed in seeds]
        for of_streams in zip(*streams, strict=True):
            yield jax.tree.map(lambda *leaves: np.stack(leaves), *of_streams)

    if free is None or 2 * (train.x.nbytes + train.y.nbytes) <= free:
        make_batch = partial(data.make_batch, shape=train.x.shape[1:], **options)
        return Pipeline(specs, lambda spec: spec, lambda spec, split: make_batch(split, spec), (data.in_rows(train),))
    return Pipeline(specs, partial(data.fetch, train), lambda fetched: data.make_batch(*fetched, **options), ())


def evaluation_batches(config, split: Split, *, batch_size: int | None = None) -> Iterator[Batch]:
    """All examples of a split in order, padded for all devices; batch_size: another than config.evaluation's."""
    return data.evaluation_batches(
        split,
        batch_size=batch_size or config.evaluation.batch_size,
        normalise=normalisation(config, split),
        multiple_of=parallel.device_count(),
    )


def normalisation(config, split: Split) -> data.Normalisation | None:
    """The Normalisation of a split's images, from config.data; None for data that are no images."""
    if split.x.dtype != np.uint8:
        return None
    return data.Normalisation(config.data.mean, config.data.std, config.data.scale)
