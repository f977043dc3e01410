"""A sweep is trained in rounds: all members at first, and those that an extension adds in a round of their own."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from focalgeo import records
from focalgeo.job.members import Member, belongs

ROUNDS = "rounds.json"


class Round(NamedTuple):
    """Members that train together, the folder of their checkpoints, and how many advance at once (0: not yet chosen).

    `members` are those that the round began with, also where some of them are evaluated already.
    """

    number: int
    members: list[Member]
    at_once: int

    @property
    def checkpoints(self) -> str:
        """The folder's name in the workdir."""
        return "checkpoints" if self.number == 1 else f"checkpoints_{self.number}"


def unfinished(workdir: Path, members: Sequence[Member]) -> list[Member]:
    """The members that are not evaluated yet, which is the last thing that happens to a member."""
    rows = records.read_rows(workdir) if (workdir / records.METRICS).exists() else []
    evaluated = [row for row in rows if row.get("phase") == "evaluate"]
    return [member for member in members if not any(belongs(row, member) for row in evaluated)]


def next_round(workdir: Path, members: Sequence[Member]) -> Round | None:
    """The round that was begun and not finished, else a new one with all members that are left; None without any."""
    left = {member.name for member in unfinished(workdir, members)}
    begun = _read(workdir)
    if begun and left & set(begun[-1]["members"]):
        by_name = {member.name: member for member in members}
        return Round(len(begun), [by_name[name] for name in begun[-1]["members"]], begun[-1]["at_once"])
    return Round(len(begun) + 1, [member for member in members if member.name in left], 0) if left else None


def write_round(workdir: Path, current: Round) -> None:
    """Note that a round has begun, so that a run that goes on trains the same members in the same chunks."""
    note = {"members": [member.name for member in current.members], "at_once": current.at_once}
    records.write_json(workdir / ROUNDS, [*_read(workdir)[: current.number - 1], note])


def _read(workdir: Path) -> list[dict]:
    return records.read_json(workdir / ROUNDS) if (workdir / ROUNDS).exists() else []
