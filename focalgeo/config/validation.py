"""The check of a config before a job begins, and the members that its sweep has."""

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict, FrozenConfigDict

from focalgeo.config.fields import (
    FIELDS,
    MOST_MEMBERS,
    is_field,
    nested,
    typed,
    unknown,
    values_of,
)
from focalgeo.types import MOST_PAIRS, InputError, shown

# what a sweep may sweep -> the field that it sets
SWEPT_FIELDS = {
    "gamma": "loss.gamma",
    "trace_penalty": "loss.trace_penalty",
    "learning_rate": "optimizer.learning_rate",
    "seed": "seed",
}


class Known(NamedTuple):
    """Names that some fields may hold, handed in by job: config imports no losses, networks or methods."""

    names: Mapping[str, Collection[str]]  # field -> names that it, or each of its elements, may hold
    losses_with_gamma: Collection[str]
    boundaries: Mapping[str, Sequence[float]]  # loss -> the epochs at which it changes gamma


def check(config: ConfigDict, known: Known) -> FrozenConfigDict:
    """Check a config and return it frozen, whole numbers of float fields as floats and lists as tuples.

    Raises:
      InputError: the first field that does not exist, is missing or is out of its range, with the range; or fields that
        contradict each other. Of a sweep each member is checked.
    """
    given = values_of(config)
    for name, value in given.items():
        if not is_field(name):
            inside = [f"{name}.{key}" for key in value] if isinstance(value, ConfigDict) else []
            raise InputError(unknown((inside or [name])[0]))
    missing = [name for name, field in FIELDS.items() if name not in given and field.range.kind is not dict]
    if missing:
        raise InputError(f"config.{missing[0]} is missing: start from focalgeo.config.default_config()")
    config = nested({name: typed(name, value) for name, value in given.items()})
    _check_values(config, known)
    _check_number(config)
    swept = axes(config)
    if "gamma" in swept and config.loss.name not in known.losses_with_gamma:
        raise InputError(
            f"config.sweep.gamma is given, but config.loss.name {config.loss.name} has no gamma: choose focal_loss"
        )
    members = combinations(config)
    for values in members if swept else ():
        try:
            _check_values(member_config(config, values), known)
        except InputError as error:
            raise InputError(f"config.sweep, member {member_name(values)}: {error}") from error
    if config.sweep.at_once and swept and len(members) % config.sweep.at_once:
        raise InputError(f"config.sweep.at_once is {config.sweep.at_once}: it must divide the {len(members)} members")
    return FrozenConfigDict(config)


def _check_number(config: ConfigDict) -> None:
    """Refuse a sweep of more members than end in a reasonable time."""
    members = math.prod(map(len, axes(config).values()))
    if members > MOST_MEMBERS:
        raise InputError(
            f"config.sweep has {members:,} members: it must have at most {MOST_MEMBERS:,}, as each is measured on its "
            "own; run several sweeps"
        )


def _check_values(config: ConfigDict, known: Known) -> None:
    values = values_of(config)
    for name, field in FIELDS.items():
        value = values.get(name)
        if value is not None and not field.range.holds(value):
            raise InputError(f"config.{name} is {shown(value)}: it must {field.range.words}")
    _check_pairs(config.evaluation)
    loss, optimizer = config.loss, config.optimizer
    if optimizer.schedule == "cosine" and optimizer.warmup_epochs >= optimizer.epochs:
        raise InputError("config.optimizer.warmup_epochs leaves no epoch to train: it must be below optimizer.epochs")
    for name, names in known.names.items():
        for each in values[name] if FIELDS[name].range.many else (values[name],):
            if each not in names:
                raise InputError.of_choice(f"config.{name}", each, names)
    if loss.trace_examples > optimizer.batch_size:
        raise InputError(
            f"config.loss.trace_examples is {loss.trace_examples}: it must be at most optimizer.batch_size, "
            f"{optimizer.batch_size}"
        )
    if loss.gamma < 0 and loss.name != "signed_focal_loss":
        raise InputError(f"config.loss.gamma is {loss.gamma}: it must be 0 or more (only signed_focal_loss goes below)")
    if optimizer.sam_adaptive and not optimizer.sam_radius:
        raise InputError("config.optimizer.sam_adaptive is true, sam_radius is 0: set a radius, as 0.5")
    start = config.start
    if start.run is None and (start.step is not None or start.modules or start.optimizer == "kept"):
        raise InputError("config.start.run is None: name the workdir that training starts from, or leave start out")
    if start.modules and start.optimizer == "kept":
        raise InputError("config.start.optimizer is kept: with start.modules set it must be fresh")
    limits = {"sample_dependent_focal_loss": "thresholds", "scheduled_focal_loss": "boundaries"}.get(loss.name)
    if limits and len(loss.gammas) != len(loss[limits]) + 1:
        raise InputError(
            f"config.loss.gammas must hold one value more than config.loss.{limits}, {len(loss[limits]) + 1}"
        )
    boundaries = ({"scheduled_focal_loss": loss.boundaries} | dict(known.boundaries)).get(loss.name)
    if boundaries and boundaries[0] >= optimizer.epochs:
        schedule = f"config.loss.name {loss.name} changes gamma at epochs {', '.join(map(str, boundaries))}"
        mend = "set loss.name=scheduled_focal_loss with boundaries and gammas of your own"
        raise InputError(f"{schedule}, optimizer.epochs is {optimizer.epochs}: train longer, or {mend}")


def _check_pairs(evaluation: ConfigDict) -> None:
    """Refuse a calibration grid that is not searched in a reasonable time."""
    temperatures = round(evaluation.max_temperature / evaluation.temperature_step)
    pairs = len(evaluation.gammas) * temperatures
    if pairs > MOST_PAIRS:
        raise InputError(
            f"config.evaluation asks for a grid of {pairs:,} pairs of gamma and temperature, which must be at most "
            f"{MOST_PAIRS:,}: raise temperature_step, or lower max_temperature"
        )


def with_values(config: ConfigDict, values: Mapping[str, Any]) -> ConfigDict:
    """A copy of the config with other values of these fields, by dotted name."""
    return nested({**values_of(config), **values})


def axes(config) -> dict[str, tuple]:
    """The axes that config.sweep names, in the order of SWEPT_FIELDS, with their values."""
    kinds = {name: int if name == "seed" else float for name in SWEPT_FIELDS}
    return {name: tuple(map(kinds[name], config.sweep[name])) for name in SWEPT_FIELDS if len(config.sweep[name])}


def combinations(config) -> list[dict[str, Any]]:
    """Each member's values on the axes, the last axis fastest; [{}] without axes."""
    swept = axes(config)
    return [dict(zip(swept, values, strict=True)) for values in itertools.product(*swept.values())]


def member_config(config, values: Mapping[str, Any]) -> ConfigDict:
    """The config of the member with these values on the axes, as a job without a sweep has it."""
    alone = {f"sweep.{axis}": () for axis in SWEPT_FIELDS}
    return with_values(config, alone | {SWEPT_FIELDS[axis]: value for axis, value in values.items()})


def member_name(values: Mapping[str, Any]) -> str:
    """A member's name by its values on the axes, as "gamma=0.5,seed=1"; "" without axes."""
    return ",".join(f"{axis}={repr(value).removesuffix('.0')}" for axis, value in values.items())
