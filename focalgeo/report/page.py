"""The page: figures and tables of one workdir in one HTML file that opens without a network.

Names in rows and manifest may be anything: they are made short and printable here, escaped by the templates, and
figures' file names are made of letters and digits by panels.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import asdict, replace

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
    difference_panels,
    draw_panels,
    loss_implied_panels,
    reliability_panels,
    search_panels,
    template,
    tiles,
    with_contents,
    write_panels,
)
from focalgeo.report.selection import (
    CRITERION,
    LARGEST,
    Manifest,
    as_number,
    column_of_each,
    criterion_title,
    read_manifest,
    read_rows,
    setting,
)
from focalgeo.report.style import short
from focalgeo.report.sweep_page import render_sweep, sweep_panels
from focalgeo.report.tables import command_words, config_settings, manifest_settings, metric_table, phases
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

    A part whose rows are missing is left out. Deleting and rebuilding gives the same bytes. Nothing is written before
    everything is drawn.

    Raises:
        InputError: manifest, rows or search are missing or corrupt, or the page cannot be written.
    """
    folder = Path(workdir)
    (manifest, rows), search = read_run(folder), _read_search(folder)
    if "calibration" in manifest:  # of python -m focalgeo.calibrate
        panels, render = calibration_panels(rows, manifest, search), render_calibration
    elif is_sweep(manifest):
        panels, render = sweep_panels(rows, manifest), render_sweep
    else:
        panels, render = _panels(rows, manifest, search), _render
    figures, sections = draw_panels(panels)
    page = with_contents(render(rows, manifest, sections))
    write_panels(folder, figures)
    records.write_text(folder / "report.html", page)
    return folder / "report.html"


def read_run(folder: Path, *, begun: bool = False) -> tuple[Manifest, list[Row]]:
    """Return a workdir's manifest and rows, their names such as a page can show.

    begun: a run that has no file of rows yet has none; else that is an error.

    Raises:
        InputError: they are missing or corrupt.
    """
    manifest = _readable_manifest(read_manifest(folder))
    if begun and not (folder / records.METRICS_FILE).exists():
        return manifest, []
    return manifest, _readable_rows(read_rows(folder))


def _readable_rows(rows: Sequence[Row]) -> list[Row]:
    """Return rows whose names can be shown: short, and with escapes for what has no shape of its own."""
    texts = {value for row in rows for value in asdict(row).values() if type(value) is str}
    changed = {text: short(text) for text in texts if short(text) != text}
    return [_renamed(row, changed) for row in rows] if changed else list(rows)


def _renamed(row: Row, changed: Mapping[str, str]) -> Row:
    return replace(row, **{field: changed[text] for field, text in asdict(row).items() if _is_in(text, changed)})


def _is_in(value: Any, texts: Mapping[str, str]) -> bool:
    return type(value) is str and value in texts


def _readable_manifest(manifest: Manifest) -> dict[str, Any]:
    """Return a manifest whose names of methods, metrics and runs are shown as those of the rows."""
    own = {
        part: {short(name): _short_texts(entry) for name, entry in manifest[part].items()}
        for part in ("methods", "metrics")
        if part in manifest
    }
    if "runs" in manifest:
        own["runs"] = [short(name) for name in manifest["runs"]]
    if "calibration" in manifest:
        found = _short_texts(manifest["calibration"])
        own["calibration"] = {
            **found,
            **({"choice": _short_texts(found["choice"])} if "choice" in found else {}),
            "warnings": [short(str(text), 1000) for text in found.get("warnings", ())[:100]],
        }
    return {**manifest, **own}


def _short_texts(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: short(value) if isinstance(value, str) else value for name, value in entry.items()}


def _read_search(folder: Path) -> dict[str, np.ndarray] | None:
    """The search over (gamma, T), None where the workdir has none."""
    if not (folder / "search.npz").exists():
        return None
    search = records.read_arrays(folder, "search")
    if not _is_search(search):
        raise InputError(
            f"{folder / 'search.npz'} does not hold gammas, temperatures, ece and nll [gammas, temperatures];"
            " restore it or choose another workdir"
        )
    return search


def _is_search(search: Mapping[str, np.ndarray]) -> bool:
    """Whether arrays are a search: numbers in the order of both axes, T above 0, and a number on each surface."""
    found = [search.get(name) for name in ("gammas", "temperatures", "ece", "nll")]
    if any(each is None or each.dtype.kind not in "fiu" for each in found):
        return False
    gammas, temperatures, *surfaces = found
    if gammas.ndim != 1 or temperatures.ndim != 1 or any(s.shape != (gammas.size, temperatures.size) for s in surfaces):
        return False
    ordered = all(np.isfinite(axis).all() and (axis[1:] > axis[:-1]).all() for axis in (gammas, temperatures))
    filled = all(((each >= 0) & (each < LARGEST)).any() for each in surfaces)
    return ordered and filled and 0 < surfaces[0].size <= _MOST_PAIRS and bool(temperatures[0] > 0)


_MOST_TILES = 4
_MOST_PAIRS = 1_000_000  # of gamma and T in a surface that is drawn


def _panels(rows: Sequence[Row], manifest: Manifest, search: Mapping[str, np.ndarray] | None) -> Iterator[Panel]:
    yield from difference_panels(rows, manifest, "test", criterion=CRITERION)
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
        tiles=tiles(rows, manifest, columns[:_MOST_TILES]),
        test=metric_table(rows, manifest, "test"),
        val=metric_table(rows, manifest, "val"),
        criterion=criterion_title(CRITERION),
        fitted_by=fitted_by(manifest, columns),
        attribution=attribution_tables(rows),
        attribution_words=" ".join(attribution_words(rows)),
        curvature=curvature_table(rows),
        curvature_words=curvature_words(rows),
        density_words=density_words(rows),
        interval_words=interval_words(manifest),
        accuracy_words=accuracy_words(rows, manifest, "test"),
        loss_implied_words=" ".join(loss_implied_words(rows, as_number(setting(manifest, "loss.gamma")), "test")),
        trace_words=trace_words(rows),
        training_words=training_words(rows),
        num_bins=as_number(setting(manifest, "evaluation.num_bins")),
        sections=sections,
        config=config_settings(manifest),
        about=manifest_settings(manifest, "data", "parameters", "created", "git"),
        seconds=phases(rows),
        machine=manifest_settings(manifest, "platform", "devices", "versions"),
        command=command_words(manifest),
    )
