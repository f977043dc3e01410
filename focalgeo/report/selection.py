"""Selection of rows for the report, by kind, method and metric, in the manifest's order.

The methods and metrics, their titles, order, units and scales are read from the manifest.
"""

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from focalgeo import records
from focalgeo.report.style import METHOD_COLOURS
from focalgeo.rows import Fit, Metric, Row, Title, select, value_of
from focalgeo.types import InputError

Manifest = Mapping[str, Any]

# The methods that sentences are about; any other is known by its entry in the manifest alone.
UNCALIBRATED, PLAIN, FOCAL = "uncalibrated", "temperature_scaling", "focal_temperature_scaling"
LOSS_IMPLIED = "loss_implied_map"


class Column(NamedTuple):
    """A column of the tables: a method, and the criterion it was fitted by (None: nothing fitted)."""

    method: str
    criterion: str | None = None


AS_TRAINED = Column(UNCALIBRATED)
_PARAMETERS = {"calibration_gamma": ("Calibration γ", "γ"), "temperature": ("Temperature T", "T")}
_KINDS = {"config": dict, "data": dict, "command": list, "calibration": dict, "methods": dict, "metrics": dict}
_ENTRY_KINDS = {
    "methods": {"title": str, "criteria": list},
    "metrics": {name: (int, float) if kind is float else kind for name, kind in Title.__annotations__.items()},
}
_WORDS = {dict: "an object", list: "a list", str: "a text", int: "a whole number", (int, float): "a number"}


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a workdir's manifest.

    Raises:
        InputError: it is missing, or a field that a report reads is of another kind (names the field).
    """
    manifest = records.read_manifest(folder)
    _check_kinds(folder, manifest, _KINDS, "")
    for part, kinds in _ENTRY_KINDS.items():
        entries = manifest.get(part, {})
        _check_kinds(folder, entries, dict.fromkeys(entries, dict), f"{part}.")
        for name, entry in entries.items():
            _check_kinds(folder, entry, kinds, f"{part}.{name}.")
    return manifest


def _check_kinds(folder: Path, found: Mapping[str, Any], kinds: Mapping[str, Any], prefix: str) -> None:
    for name, kind in kinds.items():
        if name in found and not isinstance(found[name], kind):
            where = f"{folder / records.MANIFEST} is corrupt: {prefix}{name}"
            raise InputError(f"{where} is not {_WORDS[kind]}; restore it or choose another workdir")


def setting(manifest: Manifest, name: str) -> Any:
    """Return a field of the config by its dotted name, such as "evaluation.num_bins"; None where there is none."""
    found: Any = manifest.get("config", {})
    for key in name.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def metric_entries(manifest: Manifest) -> dict[str, Title]:
    """Return the metrics in the order of tables."""
    named = {}
    for name, entry in manifest.get("metrics", {}).items():
        known = {field: entry[field] for field in Title._fields if field in entry}
        named[name] = Title(**{"title": name.replace("_", " "), **known})
    return named


def method_title(manifest: Manifest, method: str) -> str:
    """Return a method's title, such as "Temperature scaling"."""
    entry = manifest.get("methods", {}).get(method, {})
    return entry.get("title", method.replace("_", " ").capitalize())


def method_colour(manifest: Manifest, method: str) -> str:
    """Return the name of a method's colour: grey as trained, else by its position in the manifest."""
    if method == UNCALIBRATED:
        return "grey"
    names = [name for name in manifest.get("methods", {}) if name not in (UNCALIBRATED, LOSS_IMPLIED)]
    if method not in names:
        return "orange"  # the loss-implied map, which is in no figure with the others
    return METHOD_COLOURS[names.index(method) % len(METHOD_COLOURS)]


def columns_of(rows: Sequence[Row], manifest: Manifest, split: str) -> list[Column]:
    """Return every method by every criterion that has metrics on the split, in the manifest's order."""
    found = dict.fromkeys(Column(row.method, row.criterion) for row in select(rows, Metric, split=split, group=None))
    methods = manifest.get("methods", {})
    order = {name: number for number, name in enumerate(dict.fromkeys([*methods, *(each.method for each in found)]))}
    return sorted((each for each in found if each.method), key=lambda each: order[each.method])


def column_of_each(
    rows: Sequence[Row], manifest: Manifest, split: str = "test", *, criterion: str | None = None
) -> list[Column]:
    """Return each method once, fitted by `criterion`, or by the first that has metrics where that one has none.

    The loss-implied map is left out: it has a section of its own.
    """
    chosen: dict[str, Column] = {}
    for column in columns_of(rows, manifest, split):
        if column.method != LOSS_IMPLIED and (column.method not in chosen or column.criterion == criterion):
            chosen[column.method] = column
    return list(chosen.values())


def latest(rows: Iterable[Row], kind: type, **fields: Any) -> Any:
    """Return the last row that `select` finds (a part of a job that ran twice writes twice); None if it finds none."""
    found = select(rows, kind, **fields)
    return found[-1] if found else None


def latest_by(rows: Iterable[Row], field: str) -> list[Any]:
    """Return the last row for each value of a field or tag, sorted by that value; rows without it are left out."""
    found = {value_of(row, field): row for row in rows if value_of(row, field) is not None}
    return [found[value] for value in sorted(found)]


def metric(rows: Iterable[Row], column: Column, name: str, split: str = "test") -> Metric | None:
    """Return the last row of one metric of one column."""
    return latest(rows, Metric, name=name, split=split, group=None, **column._asdict())


def fits(rows: Iterable[Row], column: Column) -> dict[str, float]:
    """Return a column's fitted numbers by name; the γ of temperature scaling, 0 by definition, is none."""
    found = {row.name: float(row.value) for row in select(rows, Fit, **column._asdict())}
    return {name: found[name] for name in found if (column.method, name) != (PLAIN, "calibration_gamma")}


def parameter_title(name: str) -> str:
    """Return a fitted number's title: "Temperature T"; that of an unknown one is its name."""
    words = name.replace("_", " ")
    return _PARAMETERS[name][0] if name in _PARAMETERS else words.capitalize() if len(name) > 1 else words


def symbols_of(fitted: Iterable[str]) -> dict[str, str]:
    """Return name -> symbol of fitted numbers, γ and T first; the symbol of an unknown one is its name."""
    fitted = list(fitted)
    known = {name: symbol for name, (_, symbol) in _PARAMETERS.items() if name in fitted}
    return known | {name: name.replace("_", " ") for name in fitted if name not in known}


def final(rows: Iterable[Row]) -> list[Row]:
    """Return the rows measured after training."""
    return [row for row in rows if row.tags.epoch is None]


def in_training(rows: Iterable[Row]) -> list[Row]:
    """Return the rows measured after an epoch."""
    return [row for row in rows if row.tags.epoch is not None]


def measured(rows: Iterable[Row], kind: type, name: str) -> list[Any]:
    """Return the last row of curvature `name` after training for each loss and split, in the order written."""
    return list({(row.loss, row.split): row for row in select(final(rows), kind, name=name)}.values())


def has_interval(row: Any) -> bool:
    """Whether a row has an interval with a width; one without width means that the resamples agree, not certainty."""
    return row.low is not None and row.high is not None and row.low < row.high


def batches_of_row(rows: Iterable[Row]) -> int:
    """Return the number of batches over which a training row is the mean: the usual distance between rows' steps."""
    steps = sorted({row.tags.step for row in rows})
    apart = [later - earlier for earlier, later in itertools.pairwise([0, *steps])]
    return int(statistics.mode(apart)) if apart else 0


def loss_title(loss: str) -> str:
    """Return a loss's name in words: "focal_loss" -> "focal loss", "flsd_53" -> "FLSD-53"."""
    if loss in ("mmce", "weighted_mmce"):
        return f"cross-entropy with {loss.replace('mmce', 'MMCE').replace('_', ' ')}"
    if loss.rpartition("_")[2].isdigit():
        return loss.replace("_", "-").upper()
    return loss.replace("cross_entropy", "cross-entropy").replace("_", " ")


def measured_title(row: Any) -> str:
    """Return the loss and the split of the Hessian that a row of curvature measures: "cross-entropy, val"."""
    return f"{loss_title(row.loss)}, {row.split}"
