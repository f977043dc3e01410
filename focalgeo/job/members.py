"""Members of a sweep: each is a run of its own config, and all train together."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict, FrozenConfigDict

from focalgeo import config as fields
from focalgeo import losses
from focalgeo.rows import Row, Scalar, Seconds, select
from focalgeo.types import InputError, shown


class Member(NamedTuple):
    """One run of a sweep, or the only one of a job without axes."""

    name: str  # "gamma=0.5,seed=1"; "" for the only one
    tags: dict[str, Any]  # those of its rows: the swept values, its seed, and gamma where its loss has one
    config: Any  # frozen, that of a job without sweep
    keys: dict[str, jax.Array]


def make_members(config) -> list[Member]:
    """All combinations of the values of config.sweep; members with one seed share initial weights and batches."""
    return [_member(config, values) for values in fields.combinations(config)]


def _member(config, values: dict[str, Any]) -> Member:
    own, names = fields.member_config(config, values), ("init", "noise", "probe", "bootstrap")
    keys = dict(zip(names, jax.random.split(jax.random.PRNGKey(own.seed), len(names)), strict=True))
    has_gamma = "gamma" in losses.hyperparameters(losses.FUNCTIONS[own.loss.name])
    tags = {**({"gamma": own.loss.gamma} if has_gamma else {}), **values, "seed": own.seed}
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


def unfinished(rows: Iterable[Row], members: Sequence[Member]) -> list[Member]:
    """The members that have no rows of their evaluation, of which the seconds are a part."""
    evaluated = select(rows, Seconds, phase="evaluate")
    return [member for member in members if not any(belongs(row, member) for row in evaluated)]


def stopped(rows: Iterable[Row], members: Sequence[Member]) -> dict[str, int]:
    """Name -> step of the members that have stopped, since a number was not finite."""
    stops = select(rows, Scalar, name="stopped")
    return {member.name: int(row.value) for member in members for row in stops if belongs(row, member)}
