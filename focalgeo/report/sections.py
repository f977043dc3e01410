"""A page is a list of sections, each of tables, figures and words; here they become one HTML file, and its figures.

Sentences stand in sentences.html, one macro each; `say` hands them numbers.
"""

import csv
import io
import re
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from msgspec.structs import replace

from focalgeo import records
from focalgeo.config import flat
from focalgeo.report import selection, style
from focalgeo.report.style import printable, short
from focalgeo.rows import Row, Seconds, Title
from focalgeo.types import InputError


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
    """The corner's heading, headings (title, note) of the columns after it, and lines; one without is left out."""

    corner: str
    heads: Sequence[tuple[str, str]]
    lines: Sequence[Line]


class Panel(NamedTuple):
    """A figure: its file's name, its heading, and one of its axes; one without is left out."""

    name: str
    title: str
    axes: Axes | None


class Section(NamedTuple):
    """A section of a page, in the order in which its parts stand; one without any but notes is left out.

    layout: of its figures. "diagrams": the first two stand open; "beside": with the notes beside them.
    """

    title: str
    words: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[Panel] = ()
    notes: str = ""
    parts: "Sequence[Section]" = ()
    lists: Mapping[str, Mapping[str, str]] = {}
    layout: str = ""
    opening: str = ""  # of "diagrams": the title of the second that stands open
    folded: bool = False

    @property
    def panels(self) -> list[Panel]:
        """The figures that have axes."""
        return [panel for panel in self.figures if panel.axes]

    @property
    def has_content(self) -> bool:
        """Whether there is anything to show."""
        tables, parts = (table.lines for table in self.tables), (part.has_content for part in self.parts)
        return bool(self.words or any([*tables, *self.panels, *self.lists.values(), *parts]))


def joined(*parts: str) -> str:
    """Return those of the texts that are not empty with commas between them."""
    return ", ".join(filter(None, parts))


def metric_cell(row: Any, title: Title, *, best: bool = False) -> Cell:
    """Return a metric in its unit, with its interval beneath; of no row NOTHING."""
    if row is None:
        return NOTHING
    value = title.scale * row.value
    text = style.fixed(value, title.digits) + ("%" if title.unit == "%" else "")
    if not selection.has_interval(row):
        return Cell(text, "", best, value)
    ends = title.scale * row.low, title.scale * row.high
    return Cell(text, style.interval(*ends, title.digits), best, value, *ends)


def measurements(
    corner: str,
    titles: Mapping[str, Title],
    lines: Sequence[tuple],
    bold: Collection[Row] = (),
) -> Table:
    """Return a line for each (title, note, rows by name, perhaps its mark), and a column for each title that has rows.

    bold: the rows that are marked.
    """
    titles = {name: title for name, title in titles.items() if any(line[2].get(name) for line in lines)}
    table = []
    for title, note, rows, *mark in lines:
        cells = [metric_cell(rows.get(name), form, best=rows.get(name) in bold) for name, form in titles.items()]
        table.append(Line(title, note, cells, *mark))
    return Table(corner, [(title.title, title.note or title.unit) for title in titles.values()], table)


def as_text(table: Table) -> str:
    """Return a table as a terminal shows it, without intervals."""
    lines = [[table.corner, *(title for title, _ in table.heads)]]
    lines += [[short(joined(line.title, line.note), 80), *(cell.text for cell in line.cells)] for line in table.lines]
    first, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
    return "\n".join(
        f"{title:<{first}}" + "".join(f"  {text:>{width}}" for text, width in zip(texts, widths, strict=True))
        for title, *texts in lines
    )


def as_csv(table: Table) -> str:
    """Return a table as CSV: numbers to ten digits, percentages without their sign, an interval's ends in columns."""
    columns = [[table.corner, *(line.title for line in table.lines)], ["", *(line.note for line in table.lines)]]
    for (title, _), *cells in zip(table.heads, *(line.cells for line in table.lines), strict=True):
        unit = ", %" if any(cell.text.endswith("%") for cell in cells) else ""
        parts = {
            unit: [cell.text if cell.value is None else cell.value for cell in cells],
            ", low": [cell.low for cell in cells],
            ", high": [cell.high for cell in cells],
            ", note": [cell.note if cell.low is None else "" for cell in cells],
        }
        columns += [[title + part, *of] for part, of in parts.items() if {*of} - {None, ""}]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_csv_text, line) for line in zip(*columns, strict=True))
    return text.getvalue()


def _csv_text(entry):
    if not isinstance(entry, str):
        return "" if entry is None else f"{entry:.10g}"
    # a spreadsheet would run a name that begins so as a formula
    return "" if entry == NOTHING.text else f"'{entry}" if entry.startswith(("=", "+", "-", "@", "\t")) else entry


_TEMPLATES = jinja2.Environment(  # into which every text is put escaped
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {
    "address": lambda table: f"data:text/csv;charset=utf-8,{quote(as_csv(table))}",
    "count": "{:,}".format,
    "percent": "{:.1%}".format,
    "difference": selection.difference_text,
    "finding": selection.finding,
    "fixed": style.fixed,
    "loss": selection.loss_title,
    "plain": style.rounded,
    "probability": style.probability,
    "share": lambda row: " ".join(filter(None, metric_cell(row, selection.ECE)[:2])),
    "significant": style.significant,
    "slug": lambda text: re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-"),
}


def say(sentence: str, **numbers: Any) -> Markup:
    """Return a sentence of sentences.html about these numbers, in one line; "" where it has nothing to say."""
    macro = getattr(_TEMPLATES.get_template("sentences.html").module, sentence)
    return Markup(re.sub(r"[ \n]+", " ", macro(**numbers)).strip(" "))


def write_page(path: Path, title: str, sections: Sequence[Section], **head: Any) -> Path:
    """Write a page and figures/*.svg beside it; returns the page's path. Nothing is written before all is drawn.

    head: what stands above the sections: lead or verdict, warnings, tiles (title, cell, colour, note); contents=False:
    no links to the sections.

    Raises:
        InputError: a file cannot be written, or the folder of the figures is a link to another.
    """
    figures = {}

    def svg(panel):
        name = re.sub(r"[^A-Za-z0-9,=_-]+", "_", panel.name)[:80]  # it may hold names of rows
        name = name if name not in figures else f"{name}-{len(figures)}"
        figures[name] = text = style.to_svg(panel.axes.figure, name)
        label = (
            f"{panel.title}: {' against '.join(filter(None, (panel.axes.get_ylabel(), panel.axes.get_xlabel())))}. "
            f"{panel.axes.get_label()}"
        )
        # on the page no ids but those referred to, its font, and colours that follow the theme
        body = re.sub(r'<g id="[^"]*"', "<g", text[text.index("<svg") :]).replace(style.FONT, "var(--font)")
        for colour, value in style.COLOURS.items():
            body = body.replace(value, f"var(--{colour})")
        return Markup(body.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1))

    sections = [section for section in sections if section.has_content]
    page = _TEMPLATES.get_template("page.html").render(title=title, sections=sections, svg=svg, **head)
    folder = path.parent / "figures"
    if folder.is_symlink():
        raise InputError(f"{folder} is a link: put what it points to in its place")
    for name, text in figures.items():
        records.write_text(folder / f"{name}.svg", text)
    records.write_text(path, printable(page, but="\n"))
    return path


def settings(tree: Mapping[str, Any], none: str = "none") -> dict[str, str]:
    """Return a nested dict as dotted names and texts, in the order written.

    none: what stands for a value that is None or empty.
    """
    texts = {}
    for name, value in flat(tree):
        text = ", ".join(map(str, value)) if isinstance(value, list) else value
        texts[short(name, 100)] = none if text in (None, "") else short(str(text), 1000)
    return texts


def record(run: selection.Run, title: str, **notes: Any) -> Section:
    """Return the last section: the command to type again, and lists of what the manifest says, by their headings."""

    def entries(*names):
        return settings({name: run.manifest[name] for name in names if name in run.manifest})

    seconds = Counter()  # of each phase, of all members
    for row in {replace(row, value=0.0, step=None): row for row in run.select(Seconds)}.values():  # some ran twice
        seconds[row.phase] += row.value
    if len(seconds) > 1:
        seconds["total"] = seconds.total()
    lists = {
        "": entries("data", "parameters", "created", "git"),
        "Wall time": {phase: f"{value:.1f} s" for phase, value in seconds.items()},
        "Config": settings(run.manifest.get("config", {}), none="default"),
        "Versions and devices": entries("platform", "devices", "versions"),
    }
    command = short(shlex.join(map(str, run.manifest.get("command", ()))), 10_000)
    words = say("command", text=command)
    kept = Section("Settings, seconds, versions and checksums", lists=lists, folded=True)
    return Section(f"{title}, and how to repeat it", words, parts=[kept], notes=say("record", **notes))
