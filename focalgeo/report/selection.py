"""Manifest and rows as a report reads them, and selection of rows by kind, method and metric.

The methods and metrics, their titles, order, units and scales are read from the manifest. A workdir may be somebody
else's: numbers that no measurement gives are refused here, and names lose what cannot be shown.
"""

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import asdict, replace

from focalgeo import records
from focalgeo.config import SWEPT_FIELDS
from focalgeo.report.style import METHOD_COLOURS, short
from focalgeo.rows import (
    Difference,
    Fit,
    HistogramBin,
    Metric,
    ReliabilityBin,
    Row,
    Seconds,
    Title,
    Trace,
    select,
)
from focalgeo.types import InputError

Manifest = Mapping[str, Any]

# The methods that sentences are about; any other is known by its entry in the manifest alone.
UNCALIBRATED, PLAIN, FOCAL = "uncalibrated", "temperature_scaling", "focal_temperature_scaling"
LOSS_IMPLIED = "loss_implied_map"
HELD_OUT = "cross_fit"  # the split of rows of val by fits of the other folds
OTHER_EXAMPLES = "other_examples"  # in a manifest: its runs differ in val or test, so that none of them is the best
CRITERION = "nll"  # by which the methods shown are fitted where they can be: what it fits is steadier than by an ECE
_CRITERIA = {"nll": "NLL", "ece": "ECE", "adaptive_ece": "adaptive ECE", "line_search": "line search"}
_AT_GAMMA_0 = {FOCAL: PLAIN, "focal_vector_scaling": "vector_scaling"}  # what a method of the focal map is at gamma 0


class Column(NamedTuple):
    """A column of the tables: a method, and the criterion it was fitted by (None: nothing fitted)."""

    method: str
    criterion: str | None = None


AS_TRAINED = Column(UNCALIBRATED)
_PARAMETERS = {"calibration_gamma": ("Calibration γ", "γ"), "temperature": ("Temperature T", "T")}
# Each of these is a column, a line or a figure of its own, so more of them make no page that a person reads.
_MOST_NAMES = {"split": 12, "method": 20, "criterion": 8, "against": 20, "loss": 40, "phase": 40, "run": 400}
_MOST_ENTRIES = {"methods": 20, "metrics": 100, "runs": 400}
_MEND = "restore it or choose another workdir"
_MOST_MEMBERS = 2000  # combinations of the values of a sweep's axes
LARGEST = 3.4028235e38  # of float32, in which everything is measured
_COUNT, _SHARE, _FROM_0 = (0, 2**53), (-1e-3, 1 + 1e-3), (0, LARGEST)  # float32 rounds a share of all
_RANGES = {
    **dict.fromkeys(("n", "products", "probes", "bin", "step", "seed"), _COUNT),
    **dict.fromkeys(("residual", "stderr", "epoch"), _FROM_0),
    **dict.fromkeys(("p_value", "quantile", "confidence", "share"), _SHARE),
}
_RANGES_OF = {
    ReliabilityBin: {**dict.fromkeys(("low", "high", "lower", "upper"), _SHARE), "n": (1, 2**53)},
    HistogramBin: dict.fromkeys(("value", "lower", "upper"), _FROM_0),
    Seconds: {"value": _FROM_0},
}
_ENDS = (("low", "high"), ("lower", "upper"))


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a workdir's manifest.

    Raises:
        InputError: it is missing, or a field that a report reads is of another kind or beyond use (names the field).
    """
    check_folder(folder)
    manifest = records.read_manifest(folder)
    check_manifest(str(folder / records.MANIFEST), manifest)
    return manifest


def check_manifest(path: str, manifest: Manifest) -> None:
    """Raise an InputError that names the field if a manifest holds more than a page can show, or numbers beyond use.

    The types of its fields are those of `records.check_manifest`.
    """
    where = f"{path} is corrupt: "
    for part, most in _MOST_ENTRIES.items():
        if len(manifest.get(part, ())) > most:
            raise InputError(f"{where}{part} has more than {most} entries; {_MEND}")
    for name, entry in manifest.get("metrics", {}).items():
        _check_metric(f"{where}metrics.{short(name)}.", entry)
    gamma = manifest.get("calibration", {}).get("trained_gamma", 0)
    if as_number(gamma) is None:
        raise InputError(f"{where}calibration.trained_gamma is not a number within float32; {_MEND}")
    _check_sweep(where, manifest)


def check_folder(folder: Path) -> None:
    """Raise an InputError if a workdir's name is none that can be read, or it is a file; one that is missing passes."""
    name = short(str(folder), 200)
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{name} is a file, not a workdir; give the folder that holds {records.MANIFEST}")
        (folder / records.MANIFEST).exists()
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror}; give a workdir") from error
    except ValueError as error:
        raise InputError(f"cannot read {name}: {error}; give a workdir") from error


def _check_metric(where: str, entry: Mapping[str, Any]) -> None:
    if not 0 <= entry.get("digits", 0) <= 12:
        raise InputError(f"{where}digits is not from 0 to 12; {_MEND}")
    if not 1e-12 <= entry.get("scale", 1) <= 1e12:
        raise InputError(f"{where}scale is not from 1e-12 to 1e12; {_MEND}")
    if entry.get("best", "low") not in ("low", "high"):
        raise InputError(f"{where}best is neither low nor high; {_MEND}")


def _check_sweep(where: str, manifest: Manifest) -> None:
    """Refuse axes of numbers beyond float32, or with too many combinations for one page."""
    swept = setting(manifest, "sweep") or {}
    members = max(len(manifest.get("runs", ())), 1)
    for axis in (name for name in SWEPT_FIELDS if swept.get(name)):
        if any(as_number(value) is None for value in swept[axis]):
            raise InputError(f"{where}config.sweep.{axis} holds a number beyond float32; {_MEND}")
        members *= len(swept[axis])
    if members > _MOST_MEMBERS:
        raise InputError(f"{where}config.sweep has more than {_MOST_MEMBERS:,} combinations; {_MEND}")


def as_number(value: Any) -> float | None:
    """Return a finite number within float32 as it is, None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and -LARGEST <= value <= LARGEST else None


def read_rows(folder: Path) -> list[Row]:
    """Return a workdir's rows.

    Raises:
        InputError: the file is missing or corrupt, a number is none that a measurement gives (names the line), or
            there are more methods, splits or losses than a page can hold.
    """
    rows = records.read_rows(folder)
    check_rows(str(folder / records.METRICS_FILE), rows)
    return rows


def check_rows(path: str, rows: Sequence[Row]) -> None:
    """Raise an InputError that names the line if a number is none that is measured, or there are too many names."""
    for line, row in enumerate(rows, 1):
        _check_numbers(f"{path}, line {line}", row)
    for field, most in _MOST_NAMES.items():
        if len(_names(rows, field)) > most:
            raise InputError(f"{path} has rows of more than {most} values of {field}; a report has no room for them")
    if len({row.name for row in select(rows, Fit)}) > _MOST_NAMES["method"]:
        raise InputError(f"{path} has more than {_MOST_NAMES['method']} fitted numbers; a report has no room for them")


def _names(rows: Iterable[Row], field: str) -> set[str]:
    found = {getattr(row, field, None) for row in rows}
    return found - {None}


def _check_numbers(where: str, row: Row) -> None:
    own = _RANGES_OF.get(type(row), {})
    for field, value in asdict(row).items():
        if type(value) is int or type(value) is float:
            low, high = own.get(field) or _RANGES.get(field) or (-LARGEST, LARGEST)
            if not low <= value <= high:
                words = f"{short(row.name)!r} has {field} {_shown(value)}, not from {low:.6g} to {high:.6g}"
                raise InputError(f"{where}: row {words}; delete that line")
    for first, last in _ENDS:
        low, high = getattr(row, first, None), getattr(row, last, None)
        if low is not None and high is not None and low > high and not isinstance(row, Trace):  # shown without them
            raise InputError(f"{where}: row {short(row.name)!r} has {first} above {last}; delete that line")


def _shown(value: float) -> str:
    """A number in a message, also one with thousands of digits."""
    return f"{value:.6g}" if isinstance(value, float) or abs(value) < 10**300 else "beyond 10^300"


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
    return entry.get("title") or method.replace("_", " ").capitalize()


def criterion_title(criterion: str) -> str:
    """Return a criterion's name in words: "NLL", "adaptive ECE"."""
    return _CRITERIA.get(criterion) or criterion.replace("_", " ").upper()


def fitted_title(rows: Sequence[Row], manifest: Manifest, column: Column) -> str:
    """Return the title of what was fitted: that of temperature scaling where a focal map came to gamma 0."""
    plainer = _AT_GAMMA_0.get(column.method)
    is_plain = plainer is not None and fits(rows, column).get("calibration_gamma") == 0
    return method_title(manifest, plainer if is_plain else column.method)


def method_colour(manifest: Manifest, method: str) -> str:
    """Return the name of a method's colour: grey as trained, two that stay, and others by position in the manifest."""
    known = {UNCALIBRATED: "grey", PLAIN: METHOD_COLOURS[0], FOCAL: METHOD_COLOURS[1]}
    names = [name for name in manifest.get("methods", {}) if name not in (*known, LOSS_IMPLIED)]
    colours = METHOD_COLOURS[2:]
    if method in names:
        return colours[names.index(method) % len(colours)]
    others = {LOSS_IMPLIED: METHOD_COLOURS[1]}  # in no figure with the others
    return (known | others).get(method, METHOD_COLOURS[-1])


def columns_of(rows: Sequence[Row], manifest: Manifest, split: str) -> list[Column]:
    """Return every method by every criterion that has metrics on the split, in the manifest's order."""
    found = dict.fromkeys(Column(row.method, row.criterion) for row in select(rows, Metric, split=split, group=None))
    methods = manifest.get("methods", {})
    order = {name: number for number, name in enumerate(dict.fromkeys([*methods, *(each.method for each in found)]))}
    return sorted((each for each in found if each.method), key=lambda each: order[each.method])


def column_of_each(
    rows: Sequence[Row], manifest: Manifest, split: str = "test", *, criterion: str = CRITERION
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
    found = {getattr(row, field): row for row in rows if getattr(row, field) is not None}
    return [found[value] for value in sorted(found)]


def metric(rows: Iterable[Row], column: Column, name: str, split: str = "test") -> Metric | None:
    """Return the last row of one metric of one column."""
    return latest(rows, Metric, name=name, split=split, group=None, **column._asdict())


def differences(rows: Iterable[Row], name: str, split: str) -> list[Difference]:
    """Return the rows of a metric's differences between methods on one split, measured after training."""
    return select(rows, Difference, name=f"{name}_difference", split=split, epoch=None)


def difference(found: Iterable[Difference], column: Column, against: Column) -> Difference | None:
    """Return a metric with one method less that with another from the rows of `differences`, whichever stands first."""
    for row in reversed(list(found)):
        if _is_pair(row, column, against):
            return row
        if _is_pair(row, against, column):
            swapped = {"value": -row.value, "low": -row.high, "high": -row.low, "against": row.method}
            return replace(row, **swapped, **column._asdict(), against_criterion=against.criterion)
    return None


def _is_pair(row: Difference, column: Column, against: Column) -> bool:
    if (row.method, row.criterion, row.against) != (*column, against.method):
        return False
    same = row.criterion if against.criterion is not None else None
    return (row.against_criterion or same) == against.criterion


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
    return [row for row in rows if row.epoch is None]


def in_training(rows: Iterable[Row]) -> list[Row]:
    """Return the rows measured after an epoch."""
    return [row for row in rows if row.epoch is not None]


def measured(rows: Iterable[Row], kind: type, name: str) -> list[Any]:
    """Return the last row of curvature `name` after training for each loss and split, in the order written."""
    return list({(row.loss, row.split): row for row in select(final(rows), kind, name=name)}.values())


def is_better(row: Difference | None, best: str = "low") -> bool:
    """Whether a difference is a finding for its first method: its interval leaves out 0 on the metric's better side."""
    return row is not None and (row.high < 0 if best == "low" else row.low > 0)


def is_worse(row: Difference | None, best: str = "low") -> bool:
    """Whether a difference is a finding against its first method: its interval leaves out 0 on the other side."""
    return is_better(row, "high" if best == "low" else "low")


def has_interval(row: Any) -> bool:
    """Whether a row has an interval with a width; one without width means that the resamples agree, not certainty."""
    return row.low is not None and row.high is not None and row.low < row.high


def batches_of_row(rows: Iterable[Row]) -> int:
    """Return the number of batches over which a training row is the mean: the usual distance between rows' steps."""
    steps = sorted({row.step for row in rows})
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
