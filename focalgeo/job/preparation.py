"""Preparation: from config fields to what a run needs before it writes anything.

Data and the pipeline of its batches, the members of a sweep (each a run of its own config; all train together), the
network, the objective, the optimiser, the step that joins them, first states.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import FrozenConfigDict

from focalgeo import calibration, curvature, data, losses, models, parallel, trees
from focalgeo import config as fields
from focalgeo.curvature.traces import MOST_XTRACE_SAMPLES
from focalgeo.job import say
from focalgeo.training import loop, optimiser, penalties
from focalgeo.training.step import make_ascent, make_step, stack
from focalgeo.types import Batch, BestEpoch, Dataset, InputError, Model, PyTree, Split, TrainState, shown

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
    members, names = [], ("init", "noise", "probe", "bootstrap")
    for values in fields.combinations(config):
        of_member = FrozenConfigDict(fields.member_config(config, values))
        keys = dict(zip(names, jax.random.split(jax.random.PRNGKey(of_member.seed), len(names)), strict=True))
        gamma = {"gamma": of_member.loss.gamma} if of_member.loss.name in KNOWN.losses_with_gamma else {}
        tags = gamma | values | {"seed": of_member.seed}
        members.append(Member(fields.member_name(values), tags, of_member, keys))
    return members


def of_shard(members: list, shard: str | None) -> list:
    """The i-th of n blocks of the members, as they follow each other, for shard "i/n"; all of them for None.

    So members that train at once in the whole sweep do so in a shard, where its size allows it: with others beside them
    a member's numbers are rounded otherwise.

    Raises:
        InputError: it is no such text, i is not below n, or there are fewer members than shards.
    """
    if shard is None:
        return members
    matched = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", shard)
    index, count = map(int, matched.groups()) if matched else (0, 0)
    if not index < count <= len(members):
        most = f"n at most {len(members)}, the members of config.sweep"
        raise InputError(f"--shard={shown(shard)}: give i/n with i from 0 to n - 1, and {most}")
    return members[index * len(members) // count : (index + 1) * len(members) // count]


class Objective(NamedTuple):
    """The objective of a step: `loss` summed over a batch plus the penalties of `outputs`, divided by its examples.

    With config.optimizer.reduction "sum" it is not divided by the number of examples.
    """

    name: str  # of the loss without penalties, as rows of its curvature name it
    loss: Callable  # (logits, labels, loss_values) -> [examples]
    outputs: Callable  # of penalties.make_outputs
    loss_values: dict[str, PyTree]  # the traced values that both read, as training begins; a member has its own


class Prepared(NamedTuple):
    """Everything that a run needs before it writes anything."""

    config: FrozenConfigDict
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
    if settings.schedule == "cosine":
        schedule = optimiser.cosine_schedule(plan.steps, settings.warmup_epochs * steps_per_epoch)
    else:
        # beyond the last step no boundary has an effect, and int32 may not hold it
        boundaries = [min(epoch * steps_per_epoch, plan.steps) for epoch in settings.decay_epochs]
        schedule = optimiser.step_schedule(boundaries, settings.decay_factor)
    tx = optimiser.make_optimiser(
        settings.name,
        schedule,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=max(settings.weight_decay, *config.sweep.weight_decay, 0.0),  # a member has its own
        clip_norm=settings.clip_norm,
    )
    model, objective = _model(config, dataset), make_objective(config)
    step = make_step(
        model.apply,
        objective.loss,
        tx,
        parallel.reduce_sum,
        outputs=objective.outputs,
        mean=settings.reduction == "mean",
        ascent=make_ascent(settings.sam_radius, adaptive=settings.sam_adaptive),
    )
    if config.model.precision != "default":  # jax's own default, as it may be set
        step = jax.default_matmul_precision(config.model.precision)(step)
    if len(config.loss.alpha) not in (0, classes):
        raise InputError(
            f"config.loss.alpha holds {len(config.loss.alpha)} weights, {dataset.name} has {classes} classes"
        )
    return Prepared(config, dataset, model, plan, objective, schedule, tx, step)


def make_objective(config) -> Objective:
    """The objective that config.loss names.

    Raises:
        InputError: config.loss.trace_examples does not divide by the devices.
    """
    settings, devices = config.loss, parallel.device_count()
    if settings.trace_examples % devices:
        raise InputError(
            f"config.loss.trace_examples is {settings.trace_examples}: it must be a multiple of the {devices} devices"
        )
    function, penalty, trace = losses.FUNCTIONS[settings.name], losses.PENALTIES.get(settings.name), None
    loss, title, needed = losses.make_loss(function), settings.name, [*losses.hyperparameters(function)]
    if penalty is not None:
        title = function
        needed.append("penalty_weight")
    targets = settings.trace_target or any(config.sweep.trace_target)
    if targets or settings.trace_penalty or any(config.sweep.trace_penalty):
        estimator = partial(curvature.outputs_and_trace, of=settings.trace_of, form=settings.trace_form)
        trace = penalties.make_trace(estimator, losses.cross_entropy, examples=settings.trace_examples)
        needed += ["trace_penalty", *(("trace_target", "trace_bound", "trace") if targets else ())]
    if settings.alpha:
        unweighted, title = loss, f"class_weighted_{title}"
        needed.append("alpha")

        def loss(logits, labels, loss_values):
            return losses.weighted_by_class(unweighted(logits, labels, loss_values), labels, loss_values["alpha"])

    return Objective(title, loss, penalties.make_outputs(trace=trace, on_batch=penalty), initial_values(config, needed))


def initial_values(config, names: Collection[str]) -> dict[str, PyTree]:
    """The traced values of these names as training begins, as float32 arrays."""
    by_name = {**config.loss, "epoch": 0, "trace": 0}
    for table in (losses.POLICIES, losses.SCHEDULES):
        by_name |= table[config.loss.name]._asdict() if config.loss.name in table else {}
    values = {name: np.asarray(by_name[name], np.float32) for name in names if name != "adafocal"}
    if "adafocal" in names:
        with jax.ensure_compile_time_eval():
            values["adafocal"] = jax.device_get(losses.adafocal_state())
    return values


def trained_gamma(config) -> float | None:
    """Gamma of the focal loss of the training, where the focal calibration map undoes that loss; else None.

    Class weights or a penalty move what the loss is least at: then no map undoes it.
    """
    loss = config.loss
    moved = loss.alpha or loss.trace_penalty or loss.trace_target
    return None if loss.name != "focal_loss" or loss.gamma == 0 or moved else loss.gamma


def _load(config) -> Dataset:
    names = data.load_dataset.__kwdefaults__
    dataset = data.load_dataset(config.data.name, **{name: config.data[name] for name in names})
    for gap in data.gaps(dataset):
        say(f"{config.data.name}: {gap}")
    if config.data.augment != "none" and dataset.train.x.ndim != 4:
        raise InputError(
            f"config.data.augment is {config.data.augment}, {config.data.name} holds no images: set it to none"
        )
    x = dataset.train.x
    if x.dtype == np.uint8 and x.max() > config.data.scale:
        raise InputError(
            f"config.data.scale is {config.data.scale:g}, {config.data.name} has pixels up to {x.max()}: set "
            "--config.data.scale=255, and mean and std after it, as --config.data.mean=0.5 --config.data.std=0.25"
        )
    return dataset


def _model(config, dataset: Dataset) -> Model:
    if (config.model.name == "gcn") != dataset.name.startswith(data.registry.GRAPH):
        raise InputError(
            f"config.model.name is {config.model.name}, config.data.name {dataset.name}: gcn and graph:NAME, such as "
            "graph:digits, go together"
        )
    options = {**config.model.options, "dtype": jnp.dtype(config.model.dtype), "axis_name": parallel.AXIS}
    path = config.data.embeddings
    if path is not None:
        if not dataset.vocabulary:
            raise InputError(f"config.data.embeddings is {path}, {dataset.name} holds no words: leave it out")
        vectors = data.read_embeddings(path, dataset.vocabulary)
        width = vectors.shape[1]
        if options.get("embedding_size") not in (None, width):
            raise InputError(
                f"{path} holds vectors of {width} numbers: set config.model.options.embedding_size to that"
            )
        options |= {"embedding_size": width, "embedding_init": lambda key, shape, dtype: jnp.asarray(vectors, dtype)}
    if dataset.vocabulary:
        options["vocabulary_size"] = len(dataset.vocabulary)
    return models.build(config.model.name, len(dataset.class_names), **options)


def initial_state(prepared: Prepared, members: Sequence[Member]) -> TrainState:
    """The states of all members [members, ...] as training begins; each seed has a batch stream of its own.

    Raises:
        InputError: the network does not fit the data, or memory does not hold the states twice, as a step does.
    """
    shapes, free = state_shapes(prepared, members[0]), parallel.free_memory()
    # a step holds the states before it and those after it at once
    needed = 2 * len(members) * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    if needed > free:
        raise InputError(
            f"{len(members):,} networks of {trees.size(shapes.params):,} parameters with their optimisers' states need "
            f"{needed / 1e9:,.2g} GB, {free / 1e9:,.2g} are free: sweep fewer values, or set smaller "
            "config.model.options"
        )
    x, seeds, init = _examples(prepared), stream_seeds(members), jax.jit(prepared.model.init)
    variables = {member.config.seed: member.keys["init"] for member in members}
    variables = {seed: init(key, x) for seed, key in variables.items()}  # once a seed
    return stack(
        _state(prepared, member, dict(variables[member.config.seed]), stream=seeds.index(member.config.seed))
        for member in members
    )


def _examples(prepared: Prepared):
    """Two training examples, or as many as there are devices, as the network reads them."""
    return next(evaluation_batches(prepared.config, prepared.dataset.train.at(slice(2)), batch_size=2)).x


def state_shapes(prepared: Prepared, member: Member) -> TrainState:
    """The shapes of a member's state as training begins; allocates nothing.

    Raises:
        InputError: the network cannot read the data.
    """
    variables = jax.eval_shape(prepared.model.init, member.keys["init"], _examples(prepared))
    return jax.eval_shape(partial(_state, prepared, member, stream=0), dict(variables))


def _state(prepared: Prepared, member: Member, variables: dict, *, stream: int) -> TrainState:
    params, settings = variables.pop("params"), member.config.optimizer
    return TrainState(
        step=np.int32(0),
        params=params,
        model_state=variables,
        opt_state=jax.jit(prepared.tx.init)(params),
        key=member.keys["noise"],
        loss_values=initial_values(member.config, names=prepared.objective.loss_values),
        learning_rate=np.float32(settings.learning_rate),
        weight_decay=np.float32(settings.weight_decay) if prepared.config.sweep.weight_decay else None,
        best=BestEpoch(np.float32(-1), np.float32(0), params, variables) if settings.select == "best_val" else None,
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

    specs: Callable
    fetch: Callable
    make_batch: Callable
    resident: tuple[Split, ...]


def make_pipeline(config, dataset: Dataset, seeds: Sequence[int]) -> Pipeline:
    """All training examples on every device if they take at most half of its free memory, else sent batch by batch.

    seeds: one for each batch stream.
    """
    train, free = dataset.train, parallel.free_memory()
    augmentation = data.AUGMENTATIONS[config.data.augment]
    make_batch = partial(data.make_batch, augmentation=augmentation, normalise=normalisation(config, train))

    def specs(epoch, start):
        streams = (
            data.batch_specs(
                train,
                batch_size=config.optimizer.batch_size,
                seed=seed,
                epoch=epoch,
                start=start,
                augmentation=augmentation,
                multiple_of=parallel.device_count(),
            )
            for seed in seeds
        )
        return map(stack, zip(*streams, strict=True))

    if 2 * (train.x.nbytes + train.y.nbytes) <= free:
        of_rows = partial(make_batch, shape=train.x.shape[1:])
        return Pipeline(specs, lambda spec: spec, lambda spec, split: of_rows(split, spec), (data.in_rows(train),))
    return Pipeline(specs, partial(data.fetch, train), lambda fetched: make_batch(*fetched), ())


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
    settings = config.data
    return data.Normalisation(settings.mean, settings.std, settings.scale) if split.x.dtype == np.uint8 else None
