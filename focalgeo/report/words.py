"""Sentences computed from rows; they claim no more than the intervals do."""

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from focalgeo.report.formats import interval, percent, plain, points
from focalgeo.report.selection import (
    MAP_TITLES,
    UNCALIBRATED,
    Column,
    Row,
    batches_of_row,
    calibrated_columns,
    fit,
    has_interval,
    latest,
    loss_title,
    measured,
    setting,
)

LEAST_EXAMPLES = 100  # below that a bootstrap of a binned metric says little
_WITH_GAMMA = ("focal_loss", "dual_focal_loss", "signed_focal_loss")  # the other focal losses choose their own
_EXAMPLES = {"test": "this test set does"}


def data_title(manifest: Mapping[str, Any], default: str) -> str:
    """Return the data set's name, of a path its last part alone: "newsgroups:/data/20news.tar.xz" is "20news"."""
    kind, _, place = str(manifest.get("data", {}).get("name", default)).partition(":")
    return PurePath(place).name.split(".")[0] if "/" in place else ":".join(filter(None, (kind, place)))


def training_loss(manifest: Mapping[str, Any]) -> str:
    """Return the training loss in words, such as "focal loss, γ = 3" (with spaces that do not break)."""
    name, gamma = setting(manifest, "loss.name"), setting(manifest, "loss.gamma")
    if not isinstance(name, str):
        return "an unnamed loss"
    numbers = {
        "γ": gamma if name in _WITH_GAMMA else None,
        "trace penalty": setting(manifest, "loss.trace_penalty") or None,
    }
    shown = [f"{what}\u00a0=\u00a0{plain(float(value))}" for what, value in numbers.items() if value is not None]
    return ", ".join([loss_title(name), *shown])


def metric_row(rows: Sequence[Row], column: Column, name: str, split: str = "test") -> Row | None:
    """Return the final row of one metric in one column; training rows, which name no map, do not count."""
    return latest(rows, {**column.where, "name": name, "split": split})


def verdict(rows: Sequence[Row], manifest: Mapping[str, Any]) -> list[str]:
    """Return the opening sentences: accuracy, ECE before and after, and which map is better, if either is."""
    sentences = [_accuracy_sentence(rows, manifest)]
    before = metric_row(rows, UNCALIBRATED, "ece")
    if before is not None:
        maps = {column.map: column for column in calibrated_columns(rows)}
        after = [after_words(rows, maps[name]) for name in list(MAP_TITLES)[1:] if name in maps]
        change = f"; after {', and after '.join(after)}" if after else ""
        sentences.append(f"Its expected calibration error is {with_interval(before)} as trained{change}.")
        sentences += comparison(rows, maps.get("focal_temperature_scaling"))
    return [sentence for sentence in sentences if sentence]


def with_interval(row: Row) -> str:
    """Return a share as a percentage with its interval, where it has one."""
    text = percent(row["value"])
    return f"{text} {interval(row['low'], row['high'], scale=100)}" if has_interval(row) else text


def _accuracy_sentence(rows: Sequence[Row], manifest: Mapping[str, Any]) -> str:
    row = metric_row(rows, UNCALIBRATED, "accuracy")
    if row is None:
        return "This workdir holds no final test rows yet."
    subject = f"Trained with {training_loss(manifest)}, the network"
    return f"{subject} classifies {with_interval(row)} of {row['n']:,} test examples correctly."


def map_words(rows: Sequence[Row], column: Column) -> str:
    """Return a map with what was fitted: "focal temperature scaling (γ = 1, T = 0.8)"."""
    temperature = fit(rows, column, "temperature")
    gamma = fit(rows, column, "calibration_gamma") if column.map == "focal_temperature_scaling" else None
    values = [
        f"{name}\u00a0=\u00a0{plain(value)}" for name, value in (("γ", gamma), ("T", temperature)) if value is not None
    ]
    return MAP_TITLES[column.map].lower() + (f" ({', '.join(values)})" if values else "")


def after_words(rows: Sequence[Row], column: Column, split: str = "test") -> str:
    """Return a map and the ECE after it."""
    row = metric_row(rows, column, "ece", split)
    return f"{map_words(rows, column)} it is {'not measured' if row is None else with_interval(row)}"


def difference(rows: Sequence[Row], column: Column, against: str, split: str = "test") -> Row | None:
    """Return the row of a column's ECE less that of another map, on the same examples; None without an interval."""
    row = latest(rows, {"name": "ece_difference", "split": split, "against": against, **column.where})
    return row if row is not None and {"low", "high", "n"} <= set(row) else None


def difference_words(row: Row) -> str:
    """Return a paired difference with its interval."""
    ends = interval(row["low"], row["high"], scale=100)
    return f"{points(row['value'])} percentage points, 95% interval {ends}"


def comparison(rows: Sequence[Row], column: Column | None, split: str = "test") -> list[str]:
    """Return what the paired difference on the same examples says of focal against plain temperature scaling."""
    row = column and difference(rows, column, "temperature_scaling", split)
    if row is None:
        return []
    if fit(rows, column, "calibration_gamma") == 0:
        return ["The fit chose γ = 0, so focal temperature scaling is temperature scaling here."]
    if row["n"] < LEAST_EXAMPLES or not has_interval(row):
        return [f"There are too few examples here ({row['n']:,}) to compare the two maps."]
    if row["high"] < 0:
        finding = "focal temperature scaling is better calibrated here"
    elif row["low"] > 0:
        finding = "focal temperature scaling is worse calibrated here"
    else:
        finding = f"{_EXAMPLES.get(split, 'these examples do')} not tell the two maps apart"
    shown = difference_words(row)
    return [f"On the same examples, focal minus plain temperature scaling's ECE is {shown}: {finding}."]


def interval_words(manifest: Mapping[str, Any]) -> str:
    """Return how the intervals of metrics were made, with the run's numbers of resamples and bins where it has them."""
    resamples, bins = (setting(manifest, f"evaluation.{name}") for name in ("num_resamples", "num_bins"))
    count = f" from {resamples:,} resamples of the examples" if isinstance(resamples, int) else ""
    binned = f" Both ECEs have {bins} bins." if isinstance(bins, int) else ""
    return (
        f"In brackets, bias-corrected bootstrap 95% intervals{count}: (2 × value − mean of the resamples)"
        " ±\u00a01.96 standard deviations of the resamples, or, where a metric that cannot be negative is too near"
        " 0 for that, from 0 to the root of what the squares give. Resampling biases ECE upwards, so its value lies in"
        f" the upper part of its interval. Accuracy has Wilson's interval.{binned}"
    )


def training_words(rows: Sequence[Row]) -> str:
    """Return what a training row is, from the distance between their steps."""
    batches = batches_of_row(
        [row for row in rows if row["name"] == "loss" and row.get("split") == "train" and "step" in row]
    )
    if not batches:
        return ""
    what = f"the mean of {batches} batches" if batches > 1 else "a single batch"
    epochs = [row["value"] for row in rows if row["name"] == "selected_epoch"]
    kept = f" The parameters kept are those after epoch {epochs[0]:.0f}, the best on val." if epochs else ""
    return f"A training row is {what}, taken as the parameters move; a moving mean, where drawn, is of such rows.{kept}"


def trace_words(rows: Sequence[Row]) -> str:
    """Return how the traces were estimated, as their rows' method says."""
    methods = {row.get("method") for row in rows if row["name"] == "trace"}
    if methods == {"hutch++"}:
        return (
            "estimated by Hutch++: two thirds of the Hessian products build a part that is exact, and a third are"
            " random samples of the rest, from which standard error and 95% interval come"
        )
    if methods == {"xtrace"}:
        return (
            "estimated by XTrace: each random vector samples what all the others leave, and standard error and 95%"
            " interval come from the spread of these samples"
        )
    return "estimated from random samples, with the standard error and 95% interval of their mean"


def density_words(rows: Sequence[Row]) -> str:
    """Return how the distribution of eigenvalues was found, as its rows say."""
    row = latest(rows, {"name": "spectral_density"})
    if row is None or not {"probes", "products"} <= set(row):
        return ""
    return (
        f"By stochastic Lanczos quadrature from {row['probes']} random vectors, {row['products']:,} Hessian products"
        " for each loss; the band is one standard error over them. Bins are even in the eigenvalue near 0 and in its"
        " logarithm beyond. Eigenvalues far out are told apart, and one alone has the share 1 / number of parameters;"
        " close together near 0 they fall on the method's own points, and a gap between these says nothing."
    )


def curvature_words(rows: Sequence[Row]) -> str:
    """Return one sentence that compares the training loss's trace on val with cross-entropy's; "" without both."""
    on_val = {row["loss"]: row for row in measured(rows, "trace") if row.get("split", "val") == "val"}
    other = next((loss for loss in on_val if loss != "cross_entropy"), "")
    own, cross = on_val.get(other), on_val.get("cross_entropy")
    if own is None or cross is None or min(own.get("stderr", 0), cross.get("stderr", 0)) <= 0:
        return ""
    if min(own["value"], cross["value"]) <= 0:
        return ""
    ratio = own["value"] / cross["value"]
    half = 1.96 * ratio * math.hypot(own["stderr"] / own["value"], cross["stderr"] / cross["value"])
    digits = max(2, 1 - math.floor(math.log10(half)))
    ends = interval(ratio - half, ratio + half, digits=digits)
    return (
        f"At the trained parameters the {loss_title(other)}'s trace is {ratio:.{digits}f} times that of cross-entropy"
        f" (approximate 95% interval {ends}, from the two standard errors)."
    )
