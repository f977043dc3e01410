"""The page of `python -m focalgeo.calibrate`: which method to use, how sure that is, and how to apply it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from focalgeo.report.choice import Calibration, calibration_of, elsewhere_words, refused_words, verdict_words
from focalgeo.report.forest import class_gap_figure, class_gap_words, class_gaps
from focalgeo.report.panels import (
    Panel,
    difference_panels,
    loss_implied_panels,
    reliability_panels,
    search_panels,
    template,
)
from focalgeo.report.selection import (
    AS_TRAINED,
    FOCAL,
    HELD_OUT,
    Column,
    Manifest,
    as_number,
    column_of_each,
    criterion_title,
    fitted_title,
    latest,
    method_colour,
    method_title,
    metric,
    setting,
)
from focalgeo.report.snippets import SNIPPETS
from focalgeo.report.style import rounded, short
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
    fitted_by,
    group_words,
    groups,
    interval_words,
    loss_implied_words,
)
from focalgeo.rows import Metric, Row, select

MOST_GROUPS = 500  # in the table of groups, the worst calibrated first


def _shown(rows: Sequence[Row], manifest: Manifest, calibration: Calibration) -> list[Column]:
    return column_of_each(rows, manifest, calibration.split, criterion=calibration.criterion)


def calibration_panels(
    rows: Sequence[Row], manifest: Manifest, search: Mapping[str, np.ndarray] | None
) -> Iterator[Panel]:
    """Yield the page's figures; a figure without rows is left out."""
    calibration = calibration_of(manifest)
    split, columns = calibration.split, _shown(rows, manifest, calibration)
    yield from difference_panels(rows, manifest, split, criterion=calibration.criterion)
    for name in ("reliability", "class1_reliability"):
        yield from reliability_panels(rows, manifest, columns, split=split, name=name)
    yield from _class_panels(rows, manifest, calibration)
    yield from loss_implied_panels(rows, manifest, split)
    if FOCAL in (column.method for column in columns):  # else nothing was chosen on that surface
        yield from search_panels(rows, search)


def _class_panels(rows: Sequence[Row], manifest: Manifest, calibration: Calibration) -> Iterator[Panel]:
    gaps = class_gaps(rows, manifest, calibration.split, calibration.chosen, calibration.criterion)
    if gaps.rows:
        colours = {column: method_colour(manifest, column.method) for column in gaps.rows}
        titles = {column: fitted_title(rows, manifest, column) for column in gaps.rows}
        yield Panel("classes", "classes", "Probability less share", class_gap_figure(gaps, colours, titles))


def render_calibration(rows: Sequence[Row], manifest: Manifest, sections: Mapping[str, Any]) -> str:
    """Return the page's HTML."""
    calibration = calibration_of(manifest)
    columns = _shown(rows, manifest, calibration)
    split, chosen, gamma = calibration.split, calibration.chosen, calibration.trained_gamma
    gaps = class_gaps(rows, manifest, split, chosen, calibration.criterion)
    snippet = SNIPPETS.get(chosen.method, "")
    return template("calibration.html").render(
        title=f"Calibration of {short(str(manifest.get('data', {}).get('name', 'a classifier')), 200)}",
        verdict=verdict_words(rows, manifest),
        warnings=[*elsewhere_words(rows, manifest), *calibration.warnings],
        refused=refused_words(rows, manifest),
        criterion=criterion_title(calibration.criterion),
        split_words=SPLIT_WORDS.get(split, ""),
        cross_fitted=split == HELD_OUT,
        chosen=method_title(manifest, chosen.method),
        after=metric_table(rows, manifest, split, criterion=calibration.criterion, chosen=chosen),
        interval_words=interval_words(manifest),
        accuracy_words=accuracy_words(rows, manifest, split),
        level_words=_level_words(manifest),
        fitted_by=fitted_by(manifest, columns),
        num_bins=as_number(setting(manifest, "evaluation.num_bins")),
        class1=class1_table(rows, manifest, columns, split),
        class_words=class_gap_words(rows, manifest, gaps),
        many_classes=len(gaps.classes),
        loss_implied_words="" if gamma is None else " ".join(loss_implied_words(rows, gamma, split)),
        group_words=group_words(rows, manifest, chosen, split),
        groups=group_table(rows, manifest, chosen, split),
        sections=sections,
        calibrator=_calibrator_text(calibration.choice),
        snippet=snippet,
        snippet_lines=len(snippet.strip().splitlines()),
        from_probs=any(value.get("given") == "probs" for value in _inputs(manifest)),
        command=command_words(manifest),
        config=config_settings(manifest),
        seconds=phases(rows),
        machine=manifest_settings(manifest, "created", "platform", "versions"),
    )


def _level_words(manifest: Manifest) -> str:
    """The level at which a method counted as better in the choice; "" in a manifest of before."""
    level = as_number(manifest["calibration"].get("level"))
    if level is None:
        return ""
    below = f"one-sided p\u00a0<\u00a0{rounded(level, 2)}, which is 0.05 / the number of other methods"
    return f" In the choice a method counts as better than another at {below}."


def _calibrator_text(choice: Mapping[str, Any]) -> str:
    """The method and its fitted numbers; of a list no more than how many it holds."""
    fitted = choice.get("parameters", {})
    shown = {name: f"{_count(value):,} numbers" if isinstance(value, list) else value for name, value in fitted.items()}
    saved = {**({"method": choice["method"]} if "method" in choice else {}), **({"parameters": shown} if shown else {})}
    return short(json.dumps(saved, ensure_ascii=False), 5000)


def _count(value: Any) -> int:
    return sum(map(_count, value)) if isinstance(value, list) else 1


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
        Line(
            fitted_title(rows, manifest, each), "", [share_cell(metric(rows, each, name, split)) for name, *_ in kinds]
        )
        for each in columns
    ]
    return Table([(title, note) for _, title, note in kinds], lines)


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
        cells = [
            NOTHING if row.n is None else Cell(f"{row.n:,}", numbers=(row.n,)),
            *map(share_cell, (accuracy, *shares)),
        ]
        lines.append(Line(str(row.group), "", cells))
    if len(shown) > MOST_GROUPS:
        left = f"{len(shown) - MOST_GROUPS:,} groups more, better calibrated: see metrics.jsonl"
        lines.append(Line("…", left, [NOTHING] * (2 + len(columns))))
    heads = [("Examples", ""), ("Accuracy", ""), *((title, "") for title in titles)]
    return Table(heads, lines) if lines else None
