"""config.sweep: which members a sweep has; each is a run of its own config, and all of them train together."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict, FrozenConfigDict

from focalgeo import losses
from focalgeo.job.objective import FUNCTIONS
from focalgeo.types import InputError

AXES = {
    "gamma": "loss.gamma",
    "trace_penalty": "loss.trace_penalty",
    "learning_rate": "optimizer.learning_rate",
    "seed": "seed",
}


class Member(NamedTuple):
    """One run of a sweep, or the only one of a job without axes."""

    name: str  # "gamma=0.5,seed=1"; "" for the only one
    place: dict[str, Any]  # the fields that its rows have
    config: Any  # frozen, that of a job without sweep
    keys: dict[str, jax.Array]


def axes(config) -> dict[str, tuple]:
    """The axes that are swept, in the order of AXES, with their values."""
    kinds = {name: int if name == "seed" else float for name in AXES}
    return {name: tuple(map(kinds[name], config.sweep[name])) for name in AXES if len(config.sweep[name])}


def make_members(config) -> list[Member]:
    """All combinations of the values of config.sweep; members with one seed share initial weights and batches."""
    swept = axes(config)
    combinations = [dict(zip(swept, values, strict=True)) for values in itertools.product(*swept.values())]
    return [_member(config, values) for values in combinations]


def _member(config, values: dict[str, Any]) -> Member:
    own = ConfigDict(config.to_dict())
    own.sweep.update(dict.fromkeys(AXES, ()))
    own.update_from_flattened_dict({AXES[name]: value for name, value in values.items()})
    names = ("init", "noise", "probe", "bootstrap")
    keys = dict(zip(names, jax.random.split(jax.random.PRNGKey(own.seed), len(names)), strict=True))
    name = ",".join(f"{axis}={value:g}" for axis, value in values.items())
    return Member(name, {**_gamma(own), **values, "seed": own.seed}, FrozenConfigDict(own), keys)


def _gamma(config) -> dict[str, float]:
    """Gamma is a field of every row if the loss has one."""
    return {"gamma": config.loss.gamma} if "gamma" in losses.hyperparameters(FUNCTIONS[config.loss.name]) else {}


def of_shard(members: Sequence[Member], shard: str | None) -> list[Member]:
    """The members of shard "i/n", every n-th from number i on; all of them for None.

    Raises:
        InputError: it is no such text, i is not below n, or there are fewer members than shards.
    """
    if shard is None:
        return list(members)
    index, slash, count = shard.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count) <= len(members)):
        raise InputError(f"--shard={shard}: give i/n with i from 0 to n - 1 and n at most {len(members)}, the members")
    return list(members[int(index) :: int(count)])


def belongs(row: dict, member: Member) -> bool:
    """Whether a row is one of the member's."""
    return all(row.get(field) == value for field, value in member.place.items())
