"""Forest plots: differences between methods, and what each class is given too much or too little, with intervals."""

import statistics
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.transforms import blended_transform_factory

from focalgeo.report.selection import (
    AS_TRAINED,
    HELD_OUT,
    PLAIN,
    UNCALIBRATED,
    Column,
    Manifest,
    column_of_each,
    columns_of,
    criterion_title,
    difference,
    differences,
    fitted_title,
    is_better,
    is_worse,
    latest_by,
    method_title,
    metric_entries,
)
from focalgeo.report.style import COLOURS, plain, points, styled
from focalgeo.report.words import signed, signed_words
from focalgeo.rows import Difference, Metric, Row, Title, select

PANELS = ("nll", "ece")  # side by side: a proper score, and the error that calibration is about
MOST_CLASSES = 12  # of the figure of classes, the farthest off first
_FAR = 6.0  # times the median reach: a row farther out is an arrow, so that the others keep their detail
_Z95 = NormalDist().inv_cdf(0.975)


class Entry(NamedTuple):
    """A row of the plot of differences: its name, and the differences by (metric, split)."""

    title: str
    rows: Mapping[tuple[str, str], Difference]


def reference(rows: Sequence[Row], manifest: Manifest, split: str, criterion: str) -> Column | None:
    """Return the column that others are held against: temperature scaling, or else the plainest fitted method."""
    columns = [each for each in column_of_each(rows, manifest, split, criterion=criterion) if each.criterion]
    return next((each for each in columns if each.method == PLAIN), columns[0] if columns else None)


def difference_entries(rows: Sequence[Row], manifest: Manifest, split: str, criterion: str) -> list[Entry]:
    """Return each fit with its differences to the `reference`, on `split` and on held-out parts of val."""
    against = reference(rows, manifest, split, criterion)
    splits = dict.fromkeys((split, HELD_OUT))
    found = {(name, where): differences(rows, name, where) for name in PANELS for where in splits}
    entries = []
    for column in columns_of(rows, manifest, split) if against else ():
        own = {place: difference(each, column, against) for place, each in found.items()} if column != against else {}
        own = {place: row for place, row in own.items() if row is not None}
        if any(where == split for _, where in own):
            entries.append(Entry(_title(rows, manifest, column, split, criterion), own))
    return entries


def _title(rows: Sequence[Row], manifest: Manifest, column: Column, split: str, criterion: str) -> str:
    own = {each.method: each for each in column_of_each(rows, manifest, split, criterion=criterion)}
    by = f", by {criterion_title(column.criterion)}" if column.criterion not in (None, criterion) else ""
    return method_title(manifest, column.method) + (by if own.get(column.method) != column else "")


def differences_figure(rows: Sequence[Row], manifest: Manifest, split: str, *, criterion: str) -> Figure | None:
    """Draw NLL and ECE of each method less temperature scaling's with 95% intervals; None without such rows.

    Filled marks are of `split`, hollow ones of held-out parts of val. A row far beyond the others is an arrow.
    """
    entries = difference_entries(rows, manifest, split, criterion)
    if not entries:
        return None
    titles = {
        **{"nll": Title("NLL", "nats"), "ece": Title("ECE", "%", scale=100.0, digits=2)},
        **metric_entries(manifest),
    }
    with styled():
        figure = Figure(figsize=(4.3, 1.1 + 0.48 * len(entries)))
        both = figure.subplots(1, len(PANELS), sharey=True)
        for axes, name in zip(both, PANELS, strict=True):
            _draw_panel(axes, entries, name, titles[name], split)
        for level, entry in enumerate(reversed(entries)):
            _name_row(*both, level, entry.title)
        both[0].set(ylim=(-0.5, len(entries) - 0.3))
    figure.set_label("; ".join(_entry_words(entry, titles, split) for entry in entries))
    return figure


def _entry_words(entry: Entry, titles: Mapping[str, Title], split: str) -> str:
    own = {name: row for (name, where), row in entry.rows.items() if where == split}
    return f"{entry.title}: {', '.join(signed_words(row, titles[name]) for name, row in own.items())}"


def _name_row(first: Any, last: Any, level: float, title: str) -> None:
    """A name above its row, over all panels, so that the figure keeps its width for the numbers."""
    where = blended_transform_factory(first.transAxes, first.transData)
    style = {"fontsize": 8.5, "va": "center", "fontweight": "bold", "clip_on": False, "in_layout": False}
    box = {"facecolor": COLOURS["paper"], "edgecolor": "none", "pad": 1}
    last.text(0, level + 0.36, title, transform=where, zorder=5, bbox=box, **style)


def _draw_panel(axes: Any, entries: Sequence[Entry], name: str, title: Title, split: str) -> None:
    found = [row for entry in entries for (metric, _), row in entry.rows.items() if metric == name]
    reach = _reach(found)
    places = [(split, 0.06, None)] + ([] if split == HELD_OUT else [(HELD_OUT, -0.2, COLOURS["paper"])])
    for level, entry in enumerate(reversed(entries)):
        for where, height, face in places:
            if (name, where) in entry.rows:
                _draw_row(axes, level + height, entry.rows[name, where], title, reach, face)
    axes.axvline(0, color=COLOURS["ink"], linewidth=1)
    axes.set(xlim=(-reach, reach))
    unit = {"%": "percentage points"}.get(title.unit, title.unit)
    axes.set_xlabel(f"{title.title}, {unit}" if unit else title.title)
    axes.set_title(
        "← better" if title.best == "low" else "better →", fontsize=8.5, fontweight="normal", color=COLOURS["muted"]
    )
    _format_axes(axes, title.scale)


def _reach(rows: Sequence[Difference]) -> float:
    """Half the width of a panel: to the farthest interval that is not far beyond the others."""
    ends = [max(abs(row.low), abs(row.high)) for row in rows if row.low or row.high] or [1.0]
    near = _FAR * statistics.median_low(ends)
    return 1.12 * max((end for end in ends if end <= near), default=0.0) or 1e-6


def _draw_row(axes: Any, level: float, row: Difference, title: Title, reach: float, face: str | None) -> None:
    colour = COLOURS["green" if is_better(row, title.best) else "orange" if is_worse(row, title.best) else "grey"]
    if max(abs(row.low), abs(row.high)) > reach:
        side = 1 if row.value > 0 else -1
        axes.plot(
            0.97 * side * reach, level, ">" if side > 0 else "<", color=colour, markersize=6, markerfacecolor=face
        )
        text = {"textcoords": "offset points", "ha": "right" if side > 0 else "left", "va": "center", "fontsize": 8}
        axes.annotate(signed(row, title), (0.97 * side * reach, level), (-7 * side, 0), **text)
        return
    axes.hlines(level, row.low, row.high, color=colour, linewidth=2 if face is None else 1.2)
    axes.plot(
        row.value, level, "o", color=colour, markersize=6 if face is None else 4.5, markerfacecolor=face or colour
    )


def _format_axes(axes: Any, scale: float) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(4, symmetric=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(round(scale * value, 10)) if value else "0"))
    axes.tick_params(axis="y", left=False, labelleft=False)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)


class ClassGaps(NamedTuple):
    """The gap of each class by method: rows "class_gap" as given, by the plainest fitted method, by the chosen one."""

    rows: Mapping[Column, Mapping[str, Metric]]

    @property
    def classes(self) -> list[str]:
        """The classes by how far off they are with any of the methods, in standard errors, the farthest first."""
        names = dict.fromkeys(name for own in self.rows.values() for name in own)
        return sorted(names, key=lambda name: -max(_errors_off(own[name]) for own in self.rows.values() if name in own))

    @property
    def threshold(self) -> float:
        """The number of standard errors beyond which 1 of all classes lies by chance 1 time in 20 (Bonferroni)."""
        return NormalDist().inv_cdf(1 - 0.025 / max(len(self.classes), 1))

    def off(self, column: Column) -> int:
        """The number of classes whose interval leaves out 0."""
        return sum(_errors_off(row) > _Z95 for row in self.rows[column].values())


def class_gaps(rows: Sequence[Row], manifest: Manifest, split: str, chosen: Column, criterion: str) -> ClassGaps:
    """Return the classes' gaps as given, by temperature scaling, and by the chosen method, as far as there are rows."""
    shown = dict.fromkeys((AS_TRAINED, reference(rows, manifest, split, criterion), chosen))
    found = {each: select(rows, Metric, name="class_gap", split=split, **each._asdict()) for each in shown if each}
    found = {each: [row for row in own if row.low is not None and row.high is not None] for each, own in found.items()}
    return ClassGaps({each: {row.group: row for row in latest_by(own, "group")} for each, own in found.items() if own})


def _errors_off(row: Metric) -> float:
    """How many standard errors the gap is from 0; 0 where it has no width."""
    half = (row.high - row.low) / 2
    return _Z95 * abs(row.value) / half if half > 0 else 0.0


def class_gap_words(rows: Sequence[Row], manifest: Manifest, gaps: ClassGaps) -> str:
    """Return a sentence on how many classes are off by each method, and how many would be by chance."""
    total = len(gaps.classes)
    if not total:
        return ""
    parts = []
    for column in gaps.rows:
        name = "as given" if column.method == UNCALIBRATED else f"after {fitted_title(rows, manifest, column).lower()}"
        parts.append(f"{gaps.off(column)} {name}")
    chance = plain(round(0.05 * total, 2))
    return f"Of {total} classes, so many have an interval that leaves out 0: {', '.join(parts)}; by chance {chance}."


def class_gap_figure(gaps: ClassGaps, colours: Mapping[Column, str], titles: Mapping[Column, str]) -> Figure:
    """Draw each class's mean probability less its share with 95% intervals; filled where Bonferroni leaves it off."""
    classes = gaps.classes[:MOST_CLASSES]
    step = 0.78 / max(len(gaps.rows), 1)
    with styled():
        figure = Figure(figsize=(4.3, 1.3 + (0.12 + 0.14 * len(gaps.rows)) * len(classes)))
        axes = figure.subplots()
        for number, (column, own) in enumerate(gaps.rows.items()):
            levels = [-place + 0.39 - step * (number + 0.5) for place, name in enumerate(classes) if name in own]
            shown = [own[name] for name in classes if name in own]
            _draw_gaps(axes, levels, shown, COLOURS[colours[column]], titles[column], gaps.threshold)
        axes.axvline(0, color=COLOURS["ink"], linewidth=1)
        axes.set_yticks([-place for place in range(len(classes))], [f"class {name}" for name in classes])
        axes.tick_params(axis="y", length=0, labelcolor=COLOURS["ink"])
        axes.set(ylim=(0.55 - len(classes), 0.55), xlabel="mean probability less share, percentage points")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(round(100 * value, 8)) if value else "0"))
        axes.grid(visible=False, axis="y")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=1, fontsize=8)
    said = (
        f"{titles[column]}: {', '.join(f'class {name} {points(own[name].value)}' for name in classes if name in own)}"
        for column, own in gaps.rows.items()
    )
    figure.set_label(f"percentage points, {'; '.join(said)}")
    return figure


def _draw_gaps(
    axes: Any, levels: Sequence[float], rows: Sequence[Metric], colour: str, label: str, threshold: float
) -> None:
    axes.hlines(levels, [row.low for row in rows], [row.high for row in rows], color=colour, linewidth=1.4)
    for level, row in zip(levels, rows, strict=True):
        face = colour if _errors_off(row) > threshold else COLOURS["paper"]
        axes.plot(row.value, level, "o", color=colour, markersize=4.5, markerfacecolor=face)
    axes.plot([], [], "o-", color=colour, markersize=4.5, label=label)
