"""Members of a sweep: each is a run of its own config. All train together, and those that are added later likewise."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import FrozenConfigDict

from focalgeo import files, losses, records
from focalgeo.config import axes, combinations, member_config, member_name
from focalgeo.rows import Row, Seconds
from focalgeo.types import InputError, shown

EXTENSIONS = "extensions.json"


class Member(NamedTuple):
    """One run of a sweep, or the only one of a job without axes."""

    name: str  # "gamma=0.5,seed=1"; "" for the only one
    tags: dict[str, Any]  # those of its rows: the swept values, its seed, and gamma where its loss has one
    config: Any  # frozen, that of a job without sweep
    keys: dict[str, jax.Array]
    diagonal: int  # the sum of its indices on the axes, by which shards divide the members


def make_members(config) -> list[Member]:
    """All combinations of the values of config.sweep; members with one seed share initial weights and batches."""
    return [_member(config, values) for values in combinations(config)]


def _member(config, values: dict[str, Any]) -> Member:
    own, swept = member_config(config, values), axes(config)
    names = ("init", "noise", "probe", "bootstrap")
    keys = dict(zip(names, jax.random.split(jax.random.PRNGKey(own.seed), len(names)), strict=True))
    tags = {**_gamma(own), **values, "seed": own.seed}
    diagonal = sum(swept[axis].index(value) for axis, value in values.items())
    return Member(member_name(values), tags, FrozenConfigDict(own), keys, diagonal)


def _gamma(config) -> dict[str, float]:
    """The tag gamma of the member's rows, if its loss has a gamma."""
    named = losses.hyperparameters(losses.FUNCTIONS[config.loss.name])
    return {"gamma": config.loss.gamma} if "gamma" in named else {}


def of_shard(members: Sequence[Member], shard: str | None) -> list[Member]:
    """The members of shard "i/n", those whose indices on the axes sum to i modulo n; all of them for None.

    A member stays in its shard when axes gain values at their ends.

    Raises:
        InputError: it is no such text, i is not below n, or there are too few members for n shards.
    """
    if shard is None:
        return list(members)
    most = max(member.diagonal for member in members) + 1
    if not members[0].name:
        raise InputError(f"--shard={shown(shard)}: config.sweep has no values, so there are no parts; leave it out")
    matched = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", shard)
    index, count = map(int, matched.groups()) if matched else (0, 0)
    if not index < count <= most:
        raise InputError(
            f"--shard={shown(shard)}: give i/n with i from 0 to n - 1, and n at most {most} for this sweep"
        )
    return [member for member in members if member.diagonal % count == index]


def belongs(row: Row, member: Member) -> bool:
    """Whether a row has all tags of the member."""
    return all(getattr(row, name) == value for name, value in member.tags.items())


class Extension(NamedTuple):
    """Members that train together: those that a sweep began with, or that it gained since.

    `members` are all that began together, also where some of them are evaluated already.
    """

    number: int  # 1 at first
    members: list[Member]
    at_once: int  # how many advance in one call of the step; 0: not yet chosen

    @property
    def checkpoints(self) -> str:
        """Name of the folder of its checkpoints in the workdir."""
        return "checkpoints" if self.number == 1 else f"checkpoints_{self.number}"


def unfinished(workdir: Path, members: Sequence[Member]) -> list[Member]:
    """The members that have no rows of their evaluation, the last step of each."""
    rows = records.read_rows(workdir) if (workdir / records.METRICS_FILE).exists() else []
    evaluated = by_member([row for row in rows if isinstance(row, Seconds) and row.phase == "evaluate"], members)
    return [member for member in members if not evaluated[member.name]]


def by_member(rows: Iterable[Row], members: Sequence[Member]) -> dict[str, list[Row]]:
    """The rows that belong to each member, by its name."""
    tags = list(members[0].tags)
    names = {tuple(member.tags[tag] for tag in tags): member.name for member in members}
    found: dict[str, list[Row]] = {member.name: [] for member in members}
    for row in rows:
        name = names.get(tuple(getattr(row, tag) for tag in tags))
        if name is not None:
            found[name].append(row)
    return found


def next_extension(workdir: Path, members: Sequence[Member]) -> Extension | None:
    """The extension to train next: the one begun and unfinished, else a new one of all unfinished members, or None.

    Raises:
        InputError: extensions.json is corrupt, or names other members.
    """
    left = {member.name for member in unfinished(workdir, members)}
    begun, by_name = read_extensions(workdir), {member.name: member for member in members}
    if any(name not in by_name for each in begun for name in each["members"]):
        raise InputError(
            f"{workdir / EXTENSIONS} names members of another sweep; restore it or choose another --workdir"
        )
    for number, each in enumerate(begun, 1):
        if left & set(each["members"]):
            return Extension(number, [by_name[name] for name in each["members"]], each["at_once"])
    return Extension(len(begun) + 1, [member for member in members if member.name in left], 0) if left else None


def write_extension(workdir: Path, current: Extension) -> None:
    """Write the extension to extensions.json before it trains: a resumed run trains the same members and groups."""
    if not files.is_first():
        return
    note = {"members": [member.name for member in current.members], "at_once": current.at_once}
    begun = read_extensions(workdir)
    records.write_json(workdir / EXTENSIONS, [*begun[: current.number - 1], note, *begun[current.number :]])


def read_extensions(workdir: Path) -> list[dict]:
    """The extensions begun so far, each with its members' names and how many train at once.

    Raises:
        InputError: extensions.json is corrupt.
    """
    path = workdir / EXTENSIONS
    begun = records.read_json(path) if path.exists() else []
    if not isinstance(begun, list) or not all(map(_is_extension, begun)):
        raise InputError(f"{path} is corrupt; restore it or choose another --workdir")
    return begun


def _is_extension(found: Any) -> bool:
    if not isinstance(found, dict) or not isinstance(found.get("members"), list):
        return False
    names, at_once = found["members"], found.get("at_once")
    named = names and all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    return named and type(at_once) is int and 0 < at_once <= len(names) and len(names) % at_once == 0
