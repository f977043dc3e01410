"""Parts of every page: figures with their sections, tiles, and the templates."""

import itertools
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from focalgeo import records
from focalgeo.report.alternatives import figure_text
from focalgeo.report.figures import reliability_figure, small_reliability_figure, surface_figure
from focalgeo.report.forest import differences_figure, reference
from focalgeo.report.selection import (
    AS_TRAINED,
    LOSS_IMPLIED,
    Column,
    Manifest,
    columns_of,
    fitted_title,
    has_interval,
    method_colour,
    method_title,
    metric,
)
from focalgeo.report.style import COLOURS, drawing, percent, points, printable, to_svg
from focalgeo.report.tables import csv_address
from focalgeo.rows import ReliabilityBin, Row, select

MOST_LARGE = 3  # reliability diagrams that stand beside each other in full size
_VARIABLES = {colour: f"var(--{name})" for name, colour in COLOURS.items()}


class Panel(NamedTuple):
    """A figure with its section of the page, its file name, and a heading."""

    section: str
    name: str
    title: str
    figure: Figure


def draw_panels(panels: Iterable[Panel]) -> tuple[dict[str, str], dict[str, list[dict[str, Any]]]]:
    """Return SVGs by file name, and by section the title and the inline SVG of each panel."""
    figures: dict[str, str] = {}
    sections: dict[str, list[dict[str, Any]]] = {}
    with drawing():
        for panel in panels:
            panel = panel._replace(name=_file_name(panel.name, figures))
            figures[panel.name] = svg = to_svg(panel.figure)
            sections.setdefault(panel.section, []).append({"title": panel.title, "svg": _inline(svg, panel)})
    return figures, sections


def _file_name(name: str, taken: Container[str]) -> str:
    """A figure's name in letters, digits and , = - _ alone, 80 of them, as yet not taken; it may hold names of rows."""
    plain = re.sub(r"[^A-Za-z0-9,=_-]+", "_", name)[:80]
    others = (f"{plain}-{number}" for number in itertools.count(2))
    return next(each for each in itertools.chain([plain], others) if each not in taken)


def write_panels(folder: Path, figures: Mapping[str, str]) -> None:
    """Write figures/*.svg.

    Raises:
        InputError: a figure cannot be written, or the folder is a link to another.
    """
    for name, svg in figures.items():
        records.write_text(folder / "figures" / f"{name}.svg", svg)


def _inline(svg: str, panel: Panel) -> Markup:
    """Make an SVG fit for a page: ids of its own, colours that follow the theme, the page's font, a label.

    Only what stands inside tags changes; texts between them stay as they are.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<[^>]*>", lambda tag: _inline_tag(tag.group(), panel.name), body)
    body = re.sub(r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", r"<svg \1>", body, count=1)
    namespaces = 'xmlns:xlink="http://www.w3.org/1999/xlink" role="img"'
    label = escape(printable(figure_text(panel.title, panel.figure)))
    return Markup(body.replace("<svg ", f'<svg {namespaces} aria-label="{label}" ', 1))


def _inline_tag(tag: str, name: str) -> str:
    tag = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", tag)
    tag = re.sub(r"'DejaVu Sans', [^;\"]*", "var(--font)", tag)
    return re.sub("|".join(_VARIABLES), lambda colour: _VARIABLES[colour.group()], tag)


def template(name: str) -> jinja2.Template:
    """Return a page's template; every text put into it is escaped, and loses the characters that no page may hold."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, finalize=_page_text
    )
    environment.filters["csv_address"] = csv_address
    return environment.get_template(name)


def with_contents(page: str) -> str:
    """Return a page with an id for each section, by its heading, and links to the sections above the first."""
    headings: dict[str, str] = {}

    def named(section: re.Match) -> str:
        heading = section[1]
        name = re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")
        headings[name] = heading
        return f'<section id="{name}">\n<h2>{heading}</h2>'

    page = re.sub(r"<section>\n<h2>([^<]*)</h2>", named, page)
    links = " ".join(f'<a href="#{name}">{heading}</a>' for name, heading in headings.items())
    return page.replace("<section ", f'<nav aria-label="On this page">{links}</nav>\n<section ', 1)


def _page_text(value: Any) -> Any:
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "\n".join(printable(line) for line in value.split("\n"))


def tiles(
    rows: Sequence[Row], manifest: Manifest, columns: Sequence[Column], *, split: str = "test"
) -> list[dict[str, str]]:
    """Return the ECE on `split` in each column, for the tiles at the top of a page."""
    found = []
    for column in columns:
        row = metric(rows, column, "ece", split)
        if row is not None:
            note = f"{points(row.low)} to {points(row.high)}" if has_interval(row) else ""
            shown = {"title": method_title(manifest, column.method), "value": percent(row.value), "note": note}
            found.append({**shown, "colour": method_colour(manifest, column.method)})
    return found


def reliability_panels(
    rows: Sequence[Row],
    manifest: Manifest,
    columns: Sequence[Column],
    *,
    split: str = "test",
    name: str = "reliability",
    section: str | None = None,
) -> Iterator[Panel]:
    """Yield a reliability diagram for each column that has bins `name`, in the section of that name or `section`.

    More than MOST_LARGE are drawn small.
    """
    drawn = [each for each in columns if select(rows, ReliabilityBin, name=name, split=split, **each._asdict())]
    draw = reliability_figure if len(drawn) <= MOST_LARGE else small_reliability_figure
    for column in drawn:
        colour = method_colour(manifest, column.method)
        figure = draw(rows, column, colour=colour, split=split, name=name)
        title = method_title(manifest, column.method)
        yield Panel(section or name, f"{section or name}_{column.method}", title, figure)


def difference_panels(rows: Sequence[Row], manifest: Manifest, split: str, *, criterion: str) -> Iterator[Panel]:
    """Yield the plot of differences to temperature scaling; none without such rows."""
    against = reference(rows, manifest, split, criterion)
    figure = differences_figure(rows, manifest, split, criterion=criterion)
    if figure is not None:
        title = f"Each method less {fitted_title(rows, manifest, against).lower()}"
        yield Panel("differences", "differences", title, figure)


def loss_implied_panels(rows: Sequence[Row], manifest: Manifest, split: str) -> Iterator[Panel]:
    """Yield the reliability diagrams before and after the loss-implied map; none without its rows."""
    columns = (AS_TRAINED, Column(LOSS_IMPLIED)) if Column(LOSS_IMPLIED) in columns_of(rows, manifest, split) else ()
    yield from reliability_panels(rows, manifest, columns, split=split, section="loss_implied")


def search_panels(rows: Sequence[Row], search: Mapping[str, np.ndarray] | None) -> Iterator[Panel]:
    """Yield the surface of each criterion over (gamma, T); none without a search, nor where all of it is 0."""
    for criterion in ("ece", "nll") if search is not None else ():
        if not (np.isfinite(search[criterion]) & (search[criterion] > 0)).any():
            continue  # nothing to see, and no logarithm
        figure = surface_figure(rows, search, criterion)
        yield Panel("search", f"search_{criterion}", f"{criterion.upper()} over γ and T", figure)
