"""The page: figures and tables of one workdir in one HTML file that opens without a network."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from focalgeo import records
from focalgeo.report.checks import check_manifest, check_rows, check_search
from focalgeo.report.curves import curve_figure
from focalgeo.report.figures import estimate_figure, reliability_figure
from focalgeo.report.selection import MAP_TITLES, Row, calibrated_columns, has_interval, matching, setting
from focalgeo.report.style import COLOURS, to_svg
from focalgeo.report.surface import surface_figure
from focalgeo.report.tables import config_settings, curvature_table, metric_table, phases, settings
from focalgeo.report.words import (
    curvature_words,
    interval_words,
    metric_row,
    trace_words,
    training_loss,
    training_words,
    verdict,
)


class Panel(NamedTuple):
    """A figure with the section it stands in, its file name, and a heading."""

    section: str
    name: str
    title: str
    figure: Figure


def write_report(workdir: records.Workdir) -> Path:
    """Write figures/*.svg and report.html from manifest.json, metrics.jsonl and search.npz; returns the page's path.

    A part whose rows are missing is left out. Deleting and rebuilding gives the same bytes.

    Raises:
        InputError: manifest or rows are missing or damaged, or the page cannot be written.
    """
    folder = Path(workdir)
    manifest, rows = records.read_manifest(folder), records.read_rows(folder)
    check_manifest(manifest, folder)
    check_rows(rows, folder)
    search = records.read_arrays(folder, "search") if (folder / "search.npz").exists() else None
    if search is not None:
        check_search(search, folder)
    sections: dict[str, list[dict[str, Any]]] = {}
    for panel in _panels(rows, search):
        svg = to_svg(panel.figure)
        records.write_text(folder / "figures" / f"{panel.name}.svg", svg)
        sections.setdefault(panel.section, []).append({"title": panel.title, "svg": _inline(svg, panel)})
    records.write_text(folder / "report.html", _render(rows, manifest, sections))
    return folder / "report.html"


def _panels(rows: Sequence[Row], search: Mapping[str, np.ndarray] | None) -> Iterator[Panel]:
    for column in calibrated_columns(rows):
        if matching(rows, {**column.where, "name": "reliability", "split": "test"}):
            title = MAP_TITLES[column.map]
            yield Panel("reliability", f"reliability_{column.map}", title, reliability_figure(rows, column))
    for name, title in (("loss", "Loss"), ("accuracy", "Accuracy"), ("learning_rate", "Learning rate")):
        drawn = [row for row in matching(rows, {"name": name, "map": None}) if row.get("split") in ("train", "val")]
        if any("step" in row for row in drawn):
            yield Panel("training", f"training_{name}", title, curve_figure(rows, name))
    for criterion in ("ece", "nll") if search is not None else ():
        title = f"{criterion.upper()} over γ and T"
        yield Panel("search", f"search_{criterion}", title, surface_figure(rows, search, criterion))
    for name, title in (("lambda_max", "Largest eigenvalue"), ("trace", "Trace")):
        if any(row.get("name") == name and "loss" in row for row in rows):
            yield Panel("curvature", f"curvature_{name}", title, estimate_figure(rows, name))


def _inline(svg: str, panel: Panel) -> Markup:
    """Make an SVG fit to stand in a page: ids of its own, colours that follow the theme, the page's font, a label."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{panel.name}-", body)
    body = re.sub(r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", r"<svg \1>", body, count=1)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"'DejaVu Sans', [^;\"]*", "var(--font)", body)
    for name, colour in COLOURS.items():
        body = body.replace(colour, f"var(--{name})")
    namespaces = 'xmlns:xlink="http://www.w3.org/1999/xlink" role="img"'
    return Markup(body.replace("<svg ", f'<svg {namespaces} aria-label="{panel.title}" ', 1))


def _render(rows: Sequence[Row], manifest: Mapping[str, Any], sections: Mapping[str, Any]) -> str:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    data = manifest.get("data", {})
    columns = calibrated_columns(rows)
    return environment.get_template("report.html").render(
        title=f"{data.get('name', 'A run')}: {training_loss(manifest)}",
        verdict=" ".join(verdict(rows, manifest)),
        tiles=_tiles(rows),
        test=metric_table(rows, "test"),
        val=metric_table(rows, "val"),
        fitted_by=next((column.criterion.upper() for column in columns if column.criterion), None),
        curvature=curvature_table(rows),
        curvature_words=curvature_words(rows),
        interval_words=interval_words(manifest),
        trace_words=trace_words(rows),
        training_words=training_words(rows),
        num_bins=setting(manifest, "evaluation.num_bins"),
        sections=sections,
        config=config_settings(manifest),
        about=settings({key: manifest[key] for key in ("data", "parameters", "created", "git") if key in manifest}),
        seconds=phases(rows),
        machine=settings({key: manifest[key] for key in ("platform", "devices", "versions") if key in manifest}),
        command=shlex.join(str(word) for word in manifest.get("command", [])),
    )


def _tiles(rows: Sequence[Row]) -> list[dict[str, str]]:
    tiles = []
    for column in calibrated_columns(rows):
        row = metric_row(rows, column, "ece")
        if row is not None:
            note = f"{100 * row['low']:.2f} to {100 * row['high']:.2f}" if has_interval(row) else ""
            tiles.append(
                {
                    "map": column.map,
                    "title": MAP_TITLES[column.map],
                    "value": f"{100 * row['value']:.2f}%",
                    "note": note,
                }
            )
    return tiles
