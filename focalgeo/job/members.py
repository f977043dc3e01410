"""config.sweep: which members a sweep has; each is a run of its own config, and all of them train together."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from ml_collections import FrozenConfigDict

from focalgeo import losses
from focalgeo.config import axes, combinations, member_config, member_name
from focalgeo.job.objective import FUNCTIONS
from focalgeo.types import InputError


class Member(NamedTuple):
    """One run of a sweep, or the only one of a job without axes."""

    name: str  # "gamma=0.5,seed=1"; "" for the only one
    place: dict[str, Any]  # the fields that its rows have
    config: Any  # frozen, that of a job without sweep
    keys: dict[str, jax.Array]
    diagonal: int  # the sum of its numbers on the axes


def make_members(config) -> list[Member]:
    """All combinations of the values of config.sweep; members with one seed share initial weights and batches."""
    return [_member(config, values) for values in combinations(config)]


def _member(config, values: dict[str, Any]) -> Member:
    own, swept = member_config(config, values), axes(config)
    names = ("init", "noise", "probe", "bootstrap")
    keys = dict(zip(names, jax.random.split(jax.random.PRNGKey(own.seed), len(names)), strict=True))
    place = {**_gamma(own), **values, "seed": own.seed}
    diagonal = sum(swept[axis].index(value) for axis, value in values.items())
    return Member(member_name(values), place, FrozenConfigDict(own), keys, diagonal)


def _gamma(config) -> dict[str, float]:
    """Gamma is a field of every row if the loss has one."""
    return {"gamma": config.loss.gamma} if "gamma" in losses.hyperparameters(FUNCTIONS[config.loss.name]) else {}


def of_shard(members: Sequence[Member], shard: str | None) -> list[Member]:
    """The members of shard "i/n", those whose numbers on the axes sum to i modulo n; all of them for None.

    A member stays in its shard when axes gain values at their ends.

    Raises:
        InputError: it is no such text, i is not below n, or there are too few members for n shards.
    """
    if shard is None:
        return list(members)
    most = max(member.diagonal for member in members) + 1
    index, slash, count = shard.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count) <= most):
        raise InputError(f"--shard={shard}: give i/n with i from 0 to n - 1, and n at most {most} for this sweep")
    return [member for member in members if member.diagonal % int(count) == int(index)]


def belongs(row: dict, member: Member) -> bool:
    """Whether a row is one of the member's."""
    return all(row.get(field) == value for field, value in member.place.items())
