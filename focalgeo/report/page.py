"""The page: figures and tables of one workdir in one HTML file that opens without a network."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from focalgeo import records
from focalgeo.report.attribution import attribution_tables, attribution_words
from focalgeo.report.calibration_page import calibration_panels, render_calibration
from focalgeo.report.checks import check_manifest, check_rows, check_search
from focalgeo.report.curves import curvature_curve_figure, curve_figure
from focalgeo.report.density import density_figure, density_splits
from focalgeo.report.diagnostics import diagnostic_panels
from focalgeo.report.figures import estimate_figure, reliability_figure
from focalgeo.report.members import is_sweep
from focalgeo.report.panels import Panel, draw_panels, template, tiles
from focalgeo.report.selection import MAP_TITLES, Row, calibrated_columns, matching, measured, setting
from focalgeo.report.surface import surface_figure
from focalgeo.report.sweep_page import render_sweep, sweep_panels
from focalgeo.report.tables import config_settings, curvature_table, metric_table, phases, settings
from focalgeo.report.unfocalled import unfocalled_panels, unfocalled_words
from focalgeo.report.words import (
    curvature_words,
    data_title,
    density_words,
    interval_words,
    trace_words,
    training_loss,
    training_words,
    verdict,
)


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
    if "calibration" in manifest:  # of python -m focalgeo.calibrate
        panels, render = calibration_panels(rows, manifest, search), render_calibration
    elif is_sweep(manifest):
        panels, render = sweep_panels(rows, manifest), render_sweep
    else:
        panels, render = _panels(rows, search), _render
    sections = draw_panels(folder, panels)
    records.write_text(folder / "report.html", render(rows, manifest, sections))
    return folder / "report.html"


def _panels(rows: Sequence[Row], search: Mapping[str, np.ndarray] | None) -> Iterator[Panel]:
    for column in calibrated_columns(rows):
        if matching(rows, {**column.where, "name": "reliability", "split": "test"}):
            title = MAP_TITLES[column.map]
            yield Panel("reliability", f"reliability_{column.map}", title, reliability_figure(rows, column))
    yield from unfocalled_panels(rows, "test")
    for name, title in (("loss", "Loss"), ("accuracy", "Accuracy"), ("learning_rate", "Learning rate")):
        drawn = [row for row in matching(rows, {"name": name, "map": None}) if row.get("split") in ("train", "val")]
        if any("step" in row for row in drawn):
            yield Panel("training", f"training_{name}", title, curve_figure(rows, name))
    yield from diagnostic_panels(rows)
    for criterion in ("ece", "nll") if search is not None else ():
        title = f"{criterion.upper()} over γ and T"
        yield Panel("search", f"search_{criterion}", title, surface_figure(rows, search, criterion))
    for name, title in (("lambda_max", "Largest eigenvalue"), ("trace", "Trace")):
        if measured(rows, name):
            yield Panel("curvature", f"curvature_{name}", title, estimate_figure(rows, name))
        if any(row.get("name") == name and "loss" in row and "epoch" in row for row in rows):
            figure = curvature_curve_figure(rows, name)
            yield Panel("curvature", f"training_{name}", f"{title} while training", figure)
    for split in density_splits(rows):
        figure = density_figure(rows, split)
        yield Panel("density", f"spectral_density_{split}", f"Eigenvalues on {split}", figure)


def _render(rows: Sequence[Row], manifest: Mapping[str, Any], sections: Mapping[str, Any]) -> str:
    columns = calibrated_columns(rows)
    return template("report.html").render(
        title=f"{data_title(manifest, 'A run')}: {training_loss(manifest)}",
        verdict=" ".join(verdict(rows, manifest)),
        tiles=tiles(rows, columns),
        test=metric_table(rows, "test"),
        val=metric_table(rows, "val"),
        fitted_by=next((column.criterion.upper() for column in columns if column.criterion), None),
        attribution=attribution_tables(rows),
        attribution_words=" ".join(attribution_words(rows)),
        curvature=curvature_table(rows),
        curvature_words=curvature_words(rows),
        density_words=density_words(rows),
        interval_words=interval_words(manifest),
        unfocalled_words=" ".join(unfocalled_words(rows, setting(manifest, "loss.gamma"), "test")),
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
