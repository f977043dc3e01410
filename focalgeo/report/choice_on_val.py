"""Choice among the values of a sweep on val, and its cost on test."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from focalgeo.report.axes import Quantity, Sweep, axis_symbol, by_member, line_title, mean, paired, value_text
from focalgeo.report.selection import (
    AS_TRAINED,
    CRITERION,
    OTHER_EXAMPLES,
    PLAIN,
    Column,
    Manifest,
    method_title,
    metric_entries,
)
from focalgeo.report.style import ends, significant
from focalgeo.report.tables import Cell, Line, Table
from focalgeo.rows import Metric, Row, Title
from focalgeo.types import Estimate

_COLUMNS = (AS_TRAINED, Column(PLAIN, CRITERION))
_METRICS = {"nll": _COLUMNS, "ece": _COLUMNS, "accuracy": (AS_TRAINED,)}  # temperature scaling keeps the accuracy

Candidate = tuple[tuple, Any]  # the line and the value of runs that differ in their seed alone
Seeds = Mapping[int, float]  # seed -> a metric


class Choice(NamedTuple):
    """The value with the best mean of a metric on val, and its cost on test."""

    metric: str
    column: Column
    chosen: Candidate  # the best mean over seeds on val
    votes: tuple[int, int]  # seeds that choose it by themselves, and seeds
    val: Estimate
    test: Estimate
    best: Candidate  # the best mean over seeds on test
    cost: Estimate  # of choosing on val: how much worse the chosen is on test than the best, paired over seeds
    left_out: int  # values that lack a seed which others have


def choices(rows: Sequence[Row], manifest: Manifest, sweep: Sweep) -> list[Choice]:
    """The choices by NLL, ECE and accuracy on val among all values and lines of a sweep, as far as there are rows.

    Values that lack a seed which others have, as where a run has stopped, are not candidates, nor are runs without a
    value on an axis. A sweep over seeds alone
    has nothing to choose, and runs that are measured on other examples cannot be compared.
    """
    if sweep.axis == "seed" or manifest.get(OTHER_EXAMPLES):
        return []
    entries = metric_entries(manifest)
    asked = [(name, column) for name, columns in _METRICS.items() if name in entries for column in columns]
    found = (_choice(rows, sweep, name, column, entries[name]) for name, column in asked)
    return [each for each in found if each is not None]


def _choice(rows: Sequence[Row], sweep: Sweep, name: str, column: Column, entry: Title) -> Choice | None:
    val, test = (_by_candidate(rows, sweep, name, column, split) for split in ("val", "test"))
    every = set().union(*val.values())
    of_val = {each: own for each, own in val.items() if own.keys() == test.get(each, {}).keys() == every}
    if len(of_val) < 2:
        return None
    chosen, best = _best(of_val, entry), _best({each: test[each] for each in of_val}, entry)
    votes = [_best({each: {seed: own[seed]} for each, own in of_val.items()}, entry) for seed in every]
    pair = (test[chosen], test[best]) if entry.best == "low" else (test[best], test[chosen])
    means = (mean(list(each[chosen].values())) for each in (of_val, test))
    shared = (votes.count(chosen), len(every))
    return Choice(name, column, chosen, shared, *means, best, paired(*pair), len(val) - len(of_val))


def _by_candidate(
    rows: Sequence[Row], sweep: Sweep, name: str, column: Column, split: str
) -> dict[Candidate, dict[int, float]]:
    fields = {"name": name, "split": split, "group": None, **column._asdict()}
    found = by_member(rows, sweep, Quantity(Metric, fields))
    return {(line, value): own for (line, value), own in found.items() if None not in (*line, value)}


def _best(found: Mapping[Candidate, Seeds], entry: Title) -> Candidate:
    """The candidate with the best mean over seeds, the first of those that are alike."""
    sign = 1 if entry.best == "low" else -1
    return min(found, key=lambda each: sign * mean(list(found[each].values())).value)


def choice_table(rows: Sequence[Row], manifest: Manifest, sweep: Sweep) -> Table | None:
    """A line for each criterion: what it chooses on val, and what that costs on test; None without any."""
    entries, found = metric_entries(manifest), choices(rows, manifest, sweep)
    heads = [("Chosen on val", ""), ("On val", ""), ("On test", ""), ("Best on test", ""), ("Cost on test", "")]
    lines = []
    for each in found:
        entry = entries[each.metric]
        title = ", ".join(filter(None, (_title(manifest, each, entry), entry.unit)))
        lines.append(Line(title, "", _cells(each, sweep, entry)))
    return Table(heads, lines) if lines else None


def _cells(choice: Choice, sweep: Sweep, entry: Title) -> list[Cell]:
    votes, seeds = choice.votes
    chosen = Cell(_named(sweep, choice.chosen), f"by {votes} of {seeds} seeds alone" if seeds > 1 else "")
    val, test = _cell(choice.val, entry), _cell(choice.test, entry)
    cost = Cell("0", numbers=(0.0,)) if choice.best == choice.chosen else _cell(choice.cost, entry, digits=2)
    return [chosen, val, test, Cell(_named(sweep, choice.best)), cost]


def _cell(each: Estimate, entry: Title, digits: int = 4) -> Cell:
    scale = entry.scale
    value = scale * each.value
    if each.low is None:
        return Cell(significant(value, digits), numbers=(value,))
    low, high = scale * each.low, scale * each.high
    within = ends(low, high, steps=50 if digits == 2 else 5)
    return Cell(significant(value, digits), within, numbers=(value, low, high))


def _title(manifest: Manifest, choice: Choice, entry: Title) -> str:
    if choice.column == AS_TRAINED:
        return f"{entry.title} as trained"
    return f"{entry.title} after {method_title(manifest, choice.column.method).lower()}"


def _named(sweep: Sweep, candidate: Candidate) -> str:
    line, value = candidate
    own = value_text(sweep, value) if sweep.axis == "run" else f"{axis_symbol(sweep)} = {value_text(sweep, value)}"
    return ", ".join(filter(None, (line_title(sweep, line), own)))


def choice_words(rows: Sequence[Row], manifest: Manifest, sweep: Sweep) -> str:
    """A sentence on the choice by NLL after temperature scaling, else by the first there is; "" without any."""
    found = choices(rows, manifest, sweep)
    if not found:
        return ""
    choice = next((each for each in found if each.metric == "nll" and each.column != AS_TRAINED), found[0])
    entry = metric_entries(manifest)[choice.metric]
    said = f"By {_title(manifest, choice, entry)} on val, {_named(sweep, choice.chosen)} is chosen"
    if choice.best == choice.chosen:
        said += ", which is best on test too"
    else:
        cost = _cell(choice.cost, entry, digits=2)
        costs = " ".join(filter(None, (cost.text, entry.unit, cost.note)))
        said += f"; on test that costs {costs} against {_named(sweep, choice.best)}, the best there"
    said += ", by one seed alone." if choice.votes[1] == 1 else "."
    return f"{said} {choice.left_out} that lack a seed took no part." if choice.left_out else said
