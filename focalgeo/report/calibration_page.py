"""The page of `python -m focalgeo.calibrate`: which method to use, how sure that is, and how to apply it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from focalgeo.report.panels import Panel, loss_implied_panels, reliability_panels, search_panels, template, tiles
from focalgeo.report.selection import (
    AS_TRAINED,
    FOCAL,
    PLAIN,
    UNCALIBRATED,
    Column,
    Manifest,
    as_number,
    column_of_each,
    latest,
    method_title,
    metric,
    setting,
)
from focalgeo.report.style import short
from focalgeo.report.tables import (
    NOTHING,
    Cell,
    Line,
    Table,
    command_words,
    config_settings,
    manifest_settings,
    metric_table,
    phases,
    share_cell,
)
from focalgeo.report.words import (
    SPLIT_WORDS,
    accuracy_words,
    choice_words,
    chosen_column,
    fitted_by,
    group_words,
    groups,
    interval_words,
    loss_implied_words,
)
from focalgeo.rows import Metric, Row, select

# Plain NumPy for the page to show: it applies a calibrator.json of these methods on a machine without focalgeo.
# Float64. 1 - q is summed over the other classes, so it keeps its digits where q rounds to 1.
# tests/test_calibrate.py runs these lines and compares them with calibration.focal_temperature_scaling.
SNIPPET_METHODS = (UNCALIBRATED, PLAIN, FOCAL)
MOST_GROUPS = 500  # in the table of groups, the worst calibrated first
SNIPPET = """\
import json, pathlib, numpy as np; c = json.loads(pathlib.Path("calibrator.json").read_text())["parameters"]
z = (logits - logits.max(-1, keepdims=True)).astype(float) / c.get("temperature", 1)  # logits: [examples, classes]
log_q = z - np.log(np.exp(z).sum(-1, keepdims=True)); q = np.exp(log_q)
r = np.maximum(q @ (1 - np.eye(q.shape[-1])), 1e-300); s = np.where(q > 0.5, np.log1p(-np.minimum(r, 0.5)), log_q)
g = c.get("gamma", 0); w = log_q - g * np.log(r) - np.log1p(-g * q * s / r)
probs = np.exp(w - w.max(-1, keepdims=True)); probs /= probs.sum(-1, keepdims=True)
"""


class _Calibration(NamedTuple):
    """Settings and results of the calibration, from the manifest; any of them may be missing there."""

    split: str  # "test", or "cross_fit" without a test file
    criterion: str
    choice: Mapping[str, Any]
    warnings: Sequence[str]
    trained_gamma: float | None


def _calibration(manifest: Manifest) -> _Calibration:
    found = manifest["calibration"]
    return _Calibration(
        split=found.get("split", "test"),
        criterion=found.get("criterion", "ece"),
        choice=found.get("choice", {}),
        warnings=found.get("warnings", ()),
        trained_gamma=found.get("trained_gamma"),
    )


def _shown(rows: Sequence[Row], manifest: Manifest) -> list[Column]:
    calibration = _calibration(manifest)
    return column_of_each(rows, manifest, calibration.split, criterion=calibration.criterion)


def calibration_panels(
    rows: Sequence[Row], manifest: Manifest, search: Mapping[str, np.ndarray] | None
) -> Iterator[Panel]:
    """Yield the page's figures; a figure without rows is left out."""
    split, columns = _calibration(manifest).split, _shown(rows, manifest)
    for name in ("reliability", "class1_reliability"):
        yield from reliability_panels(rows, manifest, columns, split=split, name=name)
    yield from loss_implied_panels(rows, manifest, split)
    yield from search_panels(rows, search)


def render_calibration(rows: Sequence[Row], manifest: Manifest, sections: Mapping[str, Any]) -> str:
    """Return the page's HTML."""
    calibration, columns = _calibration(manifest), _shown(rows, manifest)
    split, choice, gamma = calibration.split, calibration.choice, calibration.trained_gamma
    chosen = chosen_column(choice)
    saved = {name: choice[name] for name in ("method", "parameters") if name in choice}
    return template("calibration.html").render(
        title=f"Calibration of {short(str(manifest.get('data', {}).get('name', 'a classifier')), 200)}",
        verdict=" ".join(choice_words(rows, manifest, choice, split=split, criterion=calibration.criterion)),
        warnings=calibration.warnings,
        tiles=tiles(rows, manifest, columns, split=split),
        split_words=SPLIT_WORDS.get(split, ""),
        cross_fitted=split == "cross_fit",
        after=metric_table(rows, manifest, split),
        val=metric_table(rows, manifest, "val"),
        interval_words=interval_words(manifest),
        accuracy_words=accuracy_words(rows, manifest, split),
        fitted_by=fitted_by(manifest, columns),
        num_bins=as_number(setting(manifest, "evaluation.num_bins")),
        class1=class1_table(rows, manifest, columns, split),
        loss_implied_words="" if gamma is None else " ".join(loss_implied_words(rows, gamma, split)),
        group_words=group_words(rows, manifest, chosen, split),
        groups=group_table(rows, manifest, chosen, split),
        sections=sections,
        calibrator=short(json.dumps(saved, ensure_ascii=False), 100_000),
        snippet=SNIPPET if chosen.method in SNIPPET_METHODS else "",
        from_probs=any(value.get("given") == "probs" for value in _inputs(manifest)),
        command=command_words(manifest),
        config=config_settings(manifest),
        seconds=phases(rows),
        machine=manifest_settings(manifest, "created", "platform", "versions"),
    )


def _inputs(manifest: Manifest) -> list[Mapping[str, Any]]:
    return list((setting(manifest, "inputs") or {}).values())


def class1_table(rows: Sequence[Row], manifest: Manifest, columns: Sequence[Column], split: str) -> Table | None:
    """Return the two kinds of ECE of a two-class problem side by side; None with more classes."""
    if not select(rows, Metric, name="class1_ece", split=split):
        return None
    kinds = (
        ("ece", "Top-label ECE", "probability of the predicted class"),
        ("class1_ece", "Class-1 ECE", "probability of class 1, whatever is predicted"),
    )
    lines = [
        Line(title, note, [share_cell(metric(rows, column, name, split)) for column in columns])
        for name, title, note in kinds
    ]
    return Table([(method_title(manifest, column.method), "") for column in columns], lines)


def group_table(rows: Sequence[Row], manifest: Manifest, column: Column, split: str) -> Table | None:
    """Return a line for each group, worst calibrated first: examples, accuracy, ECE as given and after the method."""
    columns = list(dict.fromkeys([AS_TRAINED, column]))
    titles = [f"ECE, {method_title(manifest, each.method).lower()}" for each in columns]
    of_group: dict[str | None, list[Metric]] = {}
    for row in select(rows, Metric, split=split):
        of_group.setdefault(row.group, []).append(row)
    lines, shown = [], groups(rows, column, split)
    for row in shown[:MOST_GROUPS]:
        own = of_group[row.group]
        accuracy = latest(own, Metric, name="group_accuracy", **AS_TRAINED._asdict())
        shares = [latest(own, Metric, name="group_ece", **each._asdict()) for each in columns]
        cells = [NOTHING if row.n is None else Cell(f"{row.n:,}"), *map(share_cell, (accuracy, *shares))]
        lines.append(Line(str(row.group), "", cells))
    if len(shown) > MOST_GROUPS:
        left = f"{len(shown) - MOST_GROUPS:,} groups more, better calibrated: see metrics.jsonl"
        lines.append(Line("…", left, [NOTHING] * (2 + len(columns))))
    heads = [("Examples", ""), ("Accuracy", ""), *((title, "") for title in titles)]
    return Table(heads, lines) if lines else None
