"""A page is a list of sections, each of tables, figures and words; here they become one HTML file, and its figures.

Sentences stand in sentences.html, one macro each; `say` hands them numbers.
"""

import csv
import functools
import io
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from msgspec.structs import replace

from focalgeo import records
from focalgeo.report.selection import Run, has_interval
from focalgeo.report.style import COLOURS, FONT, fixed, interval, percent, plain, printable, short, significant, to_svg
from focalgeo.rows import Row, Seconds, Title, select
from focalgeo.types import InputError

_PHASES = ("prepare", "compile", "train", "fit", "evaluate")  # in the order of a job


class Cell(NamedTuple):
    """A text and what stands in smaller type beneath; `best` marks it; the numbers are those of the table's CSV."""

    text: str
    note: str = ""
    best: bool = False
    value: float | None = None
    low: float | None = None
    high: float | None = None


NOTHING = Cell("–")


class Line(NamedTuple):
    """A row of a table: its heading, what stands in small type beneath, its cells, and a word that marks it."""

    title: str
    note: str
    cells: Sequence[Cell]
    mark: str = ""


class Table(NamedTuple):
    """The corner's heading, headings (title, note) of the columns after it, and lines."""

    corner: str
    heads: Sequence[tuple[str, str]]
    lines: Sequence[Line]


class Panel(NamedTuple):
    """A figure: its file's name, its heading, and one of its axes."""

    name: str
    title: str
    axes: Axes


class Section(NamedTuple):
    """A section of a page, in the order in which its parts stand; one without any but notes is left out.

    layout: of its figures. "diagrams": the first two stand open; "beside": with the notes beside them; "scroll": each
    under its heading, wider than a phone.
    """

    title: str
    words: str = ""
    tables: Sequence[Table | None] = ()
    figures: Sequence[Panel] = ()
    notes: str = ""
    parts: "Sequence[Section]" = ()
    lists: Sequence[tuple[str, Sequence[tuple[str, str]]]] = ()
    layout: str = ""
    opening: str = ""  # of "diagrams": the title of the second that stands open
    folded: bool = False

    @property
    def has_content(self) -> bool:
        """Whether there is anything to show."""
        return bool(
            self.words or any(self.tables) or self.figures or self.lists or any(p.has_content for p in self.parts)
        )


def panels(*parts: tuple[str, str, Axes | None]) -> list[Panel]:
    """Return the figures that have axes."""
    return [Panel(*part) for part in parts if part[2] is not None]


def joined(*parts: str) -> str:
    """Return those of the texts that are not empty with commas between them."""
    return ", ".join(filter(None, parts))


def metric_cell(row: Any, title: Title, *, best: bool = False) -> Cell:
    """Return a metric in its unit, with its interval beneath; of no row NOTHING."""
    if row is None:
        return NOTHING
    text = fixed(title.scale * row.value, title.digits) + ("%" if title.unit == "%" else "")
    if not has_interval(row):
        return Cell(text, "", best, title.scale * row.value)
    numbers = [title.scale * number for number in (row.value, row.low, row.high)]
    return Cell(text, interval(*numbers[1:], digits=title.digits), best, *numbers)


def as_text(table: Table) -> str:
    """Return a table as a terminal shows it, without intervals."""
    lines = [[table.corner, *(title for title, _ in table.heads)]]
    lines += [[joined(line.title, line.note), *(cell.text for cell in line.cells)] for line in table.lines]
    first, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
    return "\n".join(
        f"{title:<{first}}" + "".join(f"  {text:>{width}}" for text, width in zip(texts, widths, strict=True))
        for title, *texts in lines
    )


def as_csv(table: Table) -> str:
    """Return a table as CSV: numbers to ten digits, percentages without their sign, an interval's ends in columns.

    A name that begins as a formula of a spreadsheet does gets an apostrophe before it.
    """
    columns = [
        [table.corner, *(_harmless(line.title) for line in table.lines)],
        ["", *(_harmless(line.note) for line in table.lines)],
    ]
    for number, (title, _) in enumerate(table.heads):
        cells = [line.cells[number] for line in table.lines]
        unit = ", %" if any(cell.text.endswith("%") for cell in cells) and not title.endswith("%") else ""
        columns.append([f"{title}{unit}", *(_number(cell.value, cell.text) for cell in cells)])
        for end in ("low", "high") if any(cell.low is not None for cell in cells) else ():
            columns.append([f"{title}, {end}", *(_number(getattr(cell, end)) for cell in cells)])
        if any(cell.note and cell.low is None for cell in cells):
            notes = ["" if cell.low is not None else _harmless(cell.note) for cell in cells]
            columns.append([f"{title}, note", *notes])
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(zip(*columns, strict=True))
    return text.getvalue()


def _number(value: float | None, text: str = "") -> str:
    return f"{value:.10g}" if value is not None else "" if text == NOTHING.text else _harmless(text)


def _harmless(text: str) -> str:
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text


@functools.cache
def _environment() -> jinja2.Environment:
    """Templates into which every text is put escaped."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "address": lambda table: f"data:text/csv;charset=utf-8,{quote(as_csv(table))}",
        "count": lambda number: f"{number:,}",
        "percent": percent,
        "plain": plain,
        "share": lambda row: " ".join(filter(None, metric_cell(row, Title("", "%", scale=100.0, digits=2))[:2])),
        "significant": significant,
        "slug": lambda text: re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-"),
    }
    return environment


def say(sentence: str, **numbers: Any) -> Markup:
    """Return a sentence of sentences.html about these numbers, in one line; "" where it has nothing to say."""
    text = getattr(_environment().get_template("sentences.html").module, sentence)(**numbers)
    return Markup(re.sub(r"[ \n]+", " ", text).strip(" "))


def write_page(path: Path, title: str, sections: Sequence[Section], **head: Any) -> Path:
    """Write a page and figures/*.svg beside it; returns the page's path. Nothing is written before all is drawn.

    head: verdict, warnings, tiles, and whether it has contents, as page.html takes them.

    Raises:
        InputError: a file cannot be written, or the folder of the figures is a link to another.
    """
    figures: dict[str, str] = {}

    def svg(panel: Panel) -> Markup:
        name = re.sub(r"[^A-Za-z0-9,=_-]+", "_", panel.name)[:80]  # it may hold names of rows
        name = name if name not in figures else f"{name}-{len(figures)}"
        figures[name] = to_svg(panel.axes.figure, name)
        return _inline(figures[name], panel)

    head = {"verdict": "", "warnings": (), "tiles": (), "contents": True, **head}
    shown = [section for section in sections if section.has_content]
    page = _environment().get_template("page.html").render(title=title, sections=shown, svg=svg, **head)
    if (path.parent / "figures").is_symlink():
        raise InputError(f"{path.parent / 'figures'} is a link: put what it points to in its place")
    for name, text in figures.items():
        records.write_text(path.parent / "figures" / f"{name}.svg", text)
    records.write_text(path, "\n".join(map(printable, page.split("\n"))))
    return path


def _inline(svg: str, panel: Panel) -> Markup:
    """An SVG fit for a page: no ids but those referred to, colours that follow the theme, the page's font, a label."""
    axes = panel.axes
    label = f"{panel.title}: {' against '.join(filter(None, (axes.get_ylabel(), axes.get_xlabel())))}"
    body = re.sub(r'<g id="[^"]*"', "<g", svg[svg.index("<svg") :]).replace(FONT, "var(--font)")
    for name, colour in COLOURS.items():
        body = body.replace(colour, f"var(--{name})")
    return Markup(body.replace("<svg", f'<svg role="img" aria-label="{escape(label.rstrip(": "))}"', 1))


def leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted names and values of a nested dict, in the order in which it was written."""
    if isinstance(tree, Mapping) and (tree or not prefix):
        for key, value in tree.items():
            yield from leaves(value, f"{prefix}.{key}".strip("."))
    else:
        yield prefix, tree


def setting_text(value: Any) -> str:
    """Return a config's value as a page shows it; of a long list the first twelve."""
    if isinstance(value, list | tuple):
        more = f" … ({len(value)} in all)" if len(value) > 12 else ""
        return short(", ".join(str(item) for item in value[:12]) + more or "none", 1000)
    return "none" if value is None or value == {} else short(str(value), 1000)


def settings(tree: Any) -> list[tuple[str, str]]:
    """Return a nested dict as dotted names and values, in the order in which it was written."""
    return [(short(name, 100), setting_text(value)) for name, value in leaves(tree)]


def config_settings(run: Run) -> list[tuple[str, str]]:
    """Return the config's settings; of one left to its default the value it came to, where the manifest has that."""
    data, config = run.manifest.get("data", {}), run.manifest.get("config", {})
    sizes = {f"data.{split}_size": f"{data[split]} (default)" for split in ("train", "val", "test") if split in data}
    defaults = {name: sizes.get(name, "default") for name, value in leaves(config) if value is None}
    defaults |= {} if run.setting("evaluation.methods") else {"evaluation.methods": "all"}
    return [(name, defaults.get(name, value)) for name, value in settings(config)]


def phases(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return the wall time of each phase, of all members, in the order of a job, and the total."""
    last = {replace(row, value=0.0, step=None): row for row in select(rows, Seconds)}  # a part may have run twice
    seconds: Counter[str] = Counter()
    for row in last.values():
        seconds[row.phase] += row.value
    names = sorted(seconds, key=lambda name: _PHASES.index(name) if name in _PHASES else len(_PHASES))
    total = [("total", f"{seconds.total():.1f} s")] if len(seconds) > 1 else []
    return [(name, f"{seconds[name]:.1f} s") for name in names] + total


def manifest_settings(run: Run, *names: str) -> list[tuple[str, str]]:
    """Return names and values of these entries of the manifest, as far as it has them."""
    return settings({name: run.manifest[name] for name in names if name in run.manifest})


def record(run: Run, title: str, lists: Mapping[str, Sequence[tuple[str, str]]] | None = None, **notes: Any) -> Section:
    """Return the last section: the command to type again, and lists of what the manifest says, by their headings."""
    lists = lists or {
        "": manifest_settings(run, "data", "parameters", "created", "git"),
        "Wall time": phases(run.rows),
        "Config": config_settings(run),
        "Versions and devices": manifest_settings(run, "platform", "devices", "versions"),
    }
    return Section(
        f"{title}, and how to repeat it",
        words=say("command", text=short(shlex.join(map(str, run.manifest.get("command", ()))), 10_000)),
        lists=[(heading, pairs) for heading, pairs in lists.items() if pairs],
        notes=say("record", **notes),
    )
