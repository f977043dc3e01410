"""The page of `python -m focalgeo.calibrate`: which map to use, how sure that is, and how to apply it."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from focalgeo.report.calibration_words import (
    SPLIT_WORDS,
    choice_words,
    chosen_column,
    chosen_columns,
    group_words,
    groups,
)
from focalgeo.report.figures import reliability_figure
from focalgeo.report.formats import interval, percent
from focalgeo.report.panels import Panel, template, tiles
from focalgeo.report.selection import MAP_TITLES, UNCALIBRATED, Column, Row, has_interval, latest, matching, setting
from focalgeo.report.snippet import SNIPPET
from focalgeo.report.surface import surface_figure
from focalgeo.report.tables import Cell, Line, Table, config_settings, metric_table, phases, settings
from focalgeo.report.unfocalled import unfocalled_panels, unfocalled_words
from focalgeo.report.words import interval_words, metric_row


def calibration_panels(
    rows: Sequence[Row], manifest: Mapping[str, Any], search: Mapping[str, np.ndarray] | None
) -> Iterator[Panel]:
    """Yield the page's figures; a figure without rows is left out."""
    split, criterion = _split(manifest), _criterion(manifest)
    columns = chosen_columns(rows, criterion)
    for name, section in (("reliability", "reliability"), ("class1_reliability", "class1")):
        for column in columns:
            if matching(rows, {**column.where, "name": name, "split": split}):
                figure = reliability_figure(rows, column, split=split, name=name)
                yield Panel(section, f"{name}_{column.map}", MAP_TITLES[column.map], figure)
    yield from unfocalled_panels(rows, split)
    for surface in ("ece", "nll") if search is not None else ():
        title = f"{surface.upper()} over γ and T"
        yield Panel("search", f"search_{surface}", title, surface_figure(rows, search, surface))


def render_calibration(rows: Sequence[Row], manifest: Mapping[str, Any], sections: Mapping[str, Any]) -> str:
    """Return the page's HTML."""
    split, choice = _split(manifest), _choice(manifest)
    gamma, column = manifest["calibration"].get("trained_gamma"), chosen_column(choice)
    columns = chosen_columns(rows, _criterion(manifest))
    return template("calibration.html").render(
        title=f"Calibration of {manifest.get('data', {}).get('name', 'a classifier')}",
        verdict=" ".join(choice_words(rows, choice, split, _criterion(manifest))),
        warnings=manifest["calibration"].get("warnings", []),
        tiles=tiles(rows, columns, split=split),
        split_words=SPLIT_WORDS.get(split, ""),
        cross_fitted=split == "cross_fit",
        after=metric_table(rows, split),
        val=metric_table(rows, "val"),
        interval_words=interval_words(manifest),
        fitted_by=_criterion(manifest).upper(),
        num_bins=setting(manifest, "evaluation.num_bins"),
        class1=class1_table(rows, split, columns),
        unfocalled_words=" ".join(unfocalled_words(rows, gamma, split)) if gamma is not None else "",
        group_words=group_words(rows, column, split),
        groups=group_table(rows, split, column),
        sections=sections,
        calibrator=json.dumps({key: choice[key] for key in ("map", "gamma", "temperature") if key in choice}),
        snippet=SNIPPET,
        from_probs=any(value.get("given") == "probs" for value in _inputs(manifest)),
        command=shlex.join(str(word) for word in manifest.get("command", [])),
        config=config_settings(manifest),
        seconds=phases(rows),
        machine=settings({key: manifest[key] for key in ("created", "platform", "versions") if key in manifest}),
    )


def _split(manifest: Mapping[str, Any]) -> str:
    return manifest["calibration"].get("split", "test")


def _choice(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    return manifest["calibration"].get("choice", {})


def _criterion(manifest: Mapping[str, Any]) -> str:
    return manifest["calibration"].get("criterion", "ece")


def _inputs(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = setting(manifest, "inputs")
    return [value for value in found.values() if isinstance(value, Mapping)] if isinstance(found, Mapping) else []


def class1_table(rows: Sequence[Row], split: str, columns: Sequence[Column]) -> Table | None:
    """Return the two kinds of ECE of a two-class problem side by side; None with more classes."""
    if not matching(rows, {"name": "class1_ece", "split": split}):
        return None
    kinds = (
        ("ece", "Top-label ECE", "probability of the predicted class"),
        ("class1_ece", "Class-1 ECE", "probability of class 1, whatever is predicted"),
    )
    lines = [
        Line(title, note, [_share_cell(metric_row(rows, column, name, split)) for column in columns])
        for name, title, note in kinds
    ]
    return Table([(MAP_TITLES[column.map], "") for column in columns], lines)


def group_table(rows: Sequence[Row], split: str, column: Column) -> Table | None:
    """Return a line for each group, worst calibrated first: examples, accuracy, ECE as given and after the map."""
    found = groups(rows, column, split)
    columns = [UNCALIBRATED, *([column] if column != UNCALIBRATED else [])]
    heads = [("Examples", ""), ("Accuracy", ""), *((f"ECE, {MAP_TITLES[c.map].lower()}", "") for c in columns)]
    lines = []
    for row in found:
        where = {"group": row["group"], "split": split}
        accuracy = latest(rows, {**where, "name": "group_accuracy", **UNCALIBRATED.where})
        shares = [latest(rows, {**where, "name": "group_ece", **c.where}) for c in columns]
        cells = [Cell(f"{row['group_n']:,}"), *(_share_cell(share) for share in (accuracy, *shares))]
        lines.append(Line(str(row["group"]), "", cells))
    return Table(heads, lines) if lines else None


def _share_cell(row: Row | None) -> Cell:
    if row is None:
        return Cell("–")
    return Cell(percent(row["value"]), interval(row["low"], row["high"], scale=100) if has_interval(row) else "")
