"""Sentences computed from rows; they claim no more than the intervals do."""

from collections.abc import Mapping, Sequence
from typing import Any

from focalgeo.report.formats import interval, percent, plain, significant
from focalgeo.report.selection import (
    MAP_TITLES,
    UNCALIBRATED,
    Column,
    Row,
    calibrated_columns,
    fit,
    latest,
    loss_title,
    measured_losses,
)


def training_loss(manifest: Mapping[str, Any]) -> str:
    """Return the training loss in words, such as "focal loss, γ = 3" (with spaces that do not break)."""
    loss = manifest.get("config", {}).get("loss", {})
    if not isinstance(loss, dict) or "name" not in loss:
        return "an unnamed loss"
    name = loss_title(str(loss["name"]))
    return f"{name}, γ\u00a0=\u00a0{plain(float(loss['gamma']))}" if "focal" in name and "gamma" in loss else name


def metric_row(rows: Sequence[Row], column: Column, name: str, split: str = "test") -> Row | None:
    """Return the final row of one metric in one column; training rows, which name no map, do not count."""
    return latest(rows, {**column.where, "name": name, "split": split})


def verdict(rows: Sequence[Row], manifest: Mapping[str, Any]) -> list[str]:
    """Return the opening sentences: accuracy, ECE before and after, and which map is better, if either is."""
    sentences = [_accuracy_sentence(rows, manifest)]
    before = metric_row(rows, UNCALIBRATED, "ece")
    if before is not None:
        maps = {column.map: column for column in calibrated_columns(rows)}
        after = [_after(rows, maps[name]) for name in list(MAP_TITLES)[1:] if name in maps]
        change = f"; after {', and after '.join(after)}" if after else ""
        sentences.append(f"Its expected calibration error is {_with_interval(before)} as trained{change}.")
        sentences += _comparison(rows, maps)
    return [sentence for sentence in sentences if sentence]


def _with_interval(row: Row) -> str:
    text = percent(row["value"])
    return f"{text} {interval(row['low'], row['high'], scale=100)}" if "low" in row else text


def _accuracy_sentence(rows: Sequence[Row], manifest: Mapping[str, Any]) -> str:
    row = metric_row(rows, UNCALIBRATED, "accuracy")
    if row is None:
        return "This workdir holds no final test rows yet."
    subject = f"Trained with {training_loss(manifest)}, the network"
    return f"{subject} classifies {_with_interval(row)} of {row['n']:,} test examples correctly."


def _after(rows: Sequence[Row], column: Column) -> str:
    row, temperature = metric_row(rows, column, "ece"), fit(rows, column, "temperature")
    gamma = fit(rows, column, "calibration_gamma") if column.map == "focal_temperature_scaling" else None
    values = [
        f"{name}\u00a0=\u00a0{plain(value)}" for name, value in (("γ", gamma), ("T", temperature)) if value is not None
    ]
    fitted = f" ({', '.join(values)})" if values else ""
    return f"{MAP_TITLES[column.map].lower()}{fitted} it is {'not measured' if row is None else _with_interval(row)}"


def _comparison(rows: Sequence[Row], maps: Mapping[str, Column]) -> list[str]:
    names = ("temperature_scaling", "focal_temperature_scaling")
    plain_map, focal_map = (metric_row(rows, maps[name], "ece") if name in maps else None for name in names)
    if plain_map is None or focal_map is None or "low" not in plain_map or "low" not in focal_map:
        return []
    if fit(rows, maps["focal_temperature_scaling"], "calibration_gamma") == 0:
        return ["The fit chose γ = 0, so focal temperature scaling is temperature scaling here."]
    if focal_map["high"] < plain_map["low"]:
        return ["The two intervals do not overlap: focal temperature scaling is better calibrated here."]
    if plain_map["high"] < focal_map["low"]:
        return ["The two intervals do not overlap: focal temperature scaling is worse calibrated here."]
    order = "lower" if focal_map["value"] < plain_map["value"] else "not lower"
    shown = "does not show that focal temperature scaling beats temperature scaling"
    return [f"Focal temperature scaling's value is {order}, but the two intervals overlap: this test set {shown}."]


def curvature_words(rows: Sequence[Row]) -> str:
    """Return one sentence that compares the training loss's curvature with cross-entropy's; "" without both."""
    other = next((loss for loss in measured_losses(rows, "lambda_max") if loss != "cross_entropy"), "")
    parts = []
    for name, title in (("lambda_max", "largest eigenvalue"), ("trace", "trace")):
        cross, own = (latest(rows, {"name": name, "loss": loss}) for loss in ("cross_entropy", other))
        if cross is not None and own is not None and own["value"] > 0 and cross["value"] > 0:
            ratio = own["value"] / cross["value"]
            parts.append(f"{significant(ratio, 3)} times the {title}")
    return (
        f"At the trained parameters the {loss_title(other)} has {' and '.join(parts)} of cross-entropy."
        if parts
        else ""
    )
