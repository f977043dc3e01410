"""The page: figures and tables of one workdir in one HTML file that opens without a network."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from focalgeo import records
from focalgeo.report.axes import is_sweep
from focalgeo.report.calibration_page import calibration_panels, render_calibration
from focalgeo.report.curves import diagnostic_panels, training_panels
from focalgeo.report.hessian import (
    attribution_tables,
    attribution_words,
    curvature_panels,
    curvature_table,
    curvature_words,
    density_words,
    trace_words,
)
from focalgeo.report.panels import (
    Panel,
    draw_panels,
    loss_implied_panels,
    reliability_panels,
    search_panels,
    template,
    tiles,
)
from focalgeo.report.selection import Manifest, column_of_each, read_manifest, setting
from focalgeo.report.sweep_page import render_sweep, sweep_panels
from focalgeo.report.tables import config_settings, manifest_settings, metric_table, phases
from focalgeo.report.words import (
    accuracy_words,
    data_title,
    fitted_by,
    interval_words,
    loss_implied_words,
    training_loss,
    training_words,
    verdict,
)
from focalgeo.rows import Row
from focalgeo.types import InputError


def write_report(workdir: records.Workdir) -> Path:
    """Write figures/*.svg and report.html from manifest.json, metrics.jsonl and search.npz; returns the page's path.

    A part whose rows are missing is left out. Deleting and rebuilding gives the same bytes.

    Raises:
        InputError: manifest, rows or search are missing or corrupt, or the page cannot be written.
    """
    folder = Path(workdir)
    manifest, rows, search = read_manifest(folder), records.read_rows(folder), _read_search(folder)
    if "calibration" in manifest:  # of python -m focalgeo.calibrate
        panels, render = calibration_panels(rows, manifest, search), render_calibration
    elif is_sweep(manifest):
        panels, render = sweep_panels(rows, manifest), render_sweep
    else:
        panels, render = _panels(rows, manifest, search), _render
    sections = draw_panels(folder, panels)
    records.write_text(folder / "report.html", render(rows, manifest, sections))
    return folder / "report.html"


def _read_search(folder: Path) -> dict[str, np.ndarray] | None:
    """The search over (gamma, T), None where the workdir has none."""
    if not (folder / "search.npz").exists():
        return None
    search = records.read_arrays(folder, "search")
    axes = [search.get(name) for name in ("gammas", "temperatures")]
    sizes = tuple(axis.size for axis in axes if axis is not None and axis.ndim == 1)
    if len(sizes) < 2 or any(name not in search or search[name].shape != sizes for name in ("ece", "nll")):
        raise InputError(
            f"{folder / 'search.npz'} does not hold gammas, temperatures, ece and nll [gammas, temperatures];"
            " restore it or choose another workdir"
        )
    return search


def _panels(rows: Sequence[Row], manifest: Manifest, search: Mapping[str, np.ndarray] | None) -> Iterator[Panel]:
    yield from reliability_panels(rows, manifest, column_of_each(rows, manifest))
    yield from loss_implied_panels(rows, manifest, "test")
    yield from training_panels(rows)
    yield from diagnostic_panels(rows)
    yield from search_panels(rows, search)
    yield from curvature_panels(rows)


def _render(rows: Sequence[Row], manifest: Manifest, sections: Mapping[str, Any]) -> str:
    columns = column_of_each(rows, manifest)
    return template("report.html").render(
        title=f"{data_title(manifest, 'A run')}: {training_loss(manifest)}",
        verdict=" ".join(verdict(rows, manifest)),
        tiles=tiles(rows, manifest, columns),
        test=metric_table(rows, manifest, "test"),
        val=metric_table(rows, manifest, "val"),
        fitted_by=fitted_by(manifest, columns),
        attribution=attribution_tables(rows),
        attribution_words=" ".join(attribution_words(rows)),
        curvature=curvature_table(rows),
        curvature_words=curvature_words(rows),
        density_words=density_words(rows),
        interval_words=interval_words(manifest),
        accuracy_words=accuracy_words(rows, manifest, "test"),
        loss_implied_words=" ".join(loss_implied_words(rows, setting(manifest, "loss.gamma"), "test")),
        trace_words=trace_words(rows),
        training_words=training_words(rows),
        num_bins=setting(manifest, "evaluation.num_bins"),
        sections=sections,
        config=config_settings(manifest),
        about=manifest_settings(manifest, "data", "parameters", "created", "git"),
        seconds=phases(rows),
        machine=manifest_settings(manifest, "platform", "devices", "versions"),
        command=shlex.join(str(word) for word in manifest.get("command", [])),
    )
