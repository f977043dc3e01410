"""Rows: the kinds of measurement, one NamedTuple each, to and from a line of metrics.jsonl.

A row is one number with its error. Its kind says which fields it has; what does not apply is None here and absent in
the file, never 0 or NaN. Every kind ends with `tags`: which run of a sweep the row is of, and when in training.
A program that reads the file itself finds all fields, tags included, side by side in one JSON object.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

from focalgeo.types import InputError, RunError

LEAST_EXAMPLES = 100  # with fewer, a bootstrap of a binned metric says little: nothing is compared or chosen by it
OUTCOMES = ("correct", "wrong")  # of the examples that a Diagnostic is a mean of
DENSITY_LINEAR_WIDTH = 1e-3  # of the largest eigenvalue: density bins are even below it, and in the logarithm beyond


class Tags(NamedTuple):
    """Tags of a row: its run of a sweep, by the values that may vary, and when in training it was measured."""

    gamma: float | None = None  # of the training loss, where it has one
    trace_penalty: float | None = None  # only where it is swept
    learning_rate: float | None = None
    seed: int | None = None
    step: int | None = None
    epoch: float | None = None  # of measurements in training; the final ones have none
    run: str | None = None  # the workdir's name, where rows of several stand together


class Metric(NamedTuple):
    """A calibration metric of one method's log-probabilities, with its 95% interval."""

    name: str  # that of METRICS in focalgeo.calibration; also "class1_ece", "group_ece" and "group_accuracy"
    value: float
    low: float | None = None
    high: float | None = None
    n: int | None = None  # examples
    split: str | None = None  # "train", "val", "test" or "cross_fit"
    method: str | None = None  # that of METHODS in focalgeo.calibration
    criterion: str | None = None  # by which the method was fitted; None where nothing is fitted
    group: str | None = None  # n is then that of the group
    tags: Tags = Tags()


class Title(NamedTuple):
    """A measurement's title, and how its numbers are shown."""

    title: str
    unit: str = ""  # of the number as shown, that is times `scale`
    note: str = ""  # beneath the title
    scale: float = 1.0
    digits: int = 4
    best: str = "low"  # or "high"


# by the names of rows; a calibration metric's is in METRICS of focalgeo.calibration, and in every manifest
TITLES = {
    "lambda_max": Title("Largest eigenvalue"),
    "trace": Title("Trace"),
    "scale_free_trace": Title("Scale-free trace"),
}


class ReliabilityBin(NamedTuple):
    """A bin of confidence that is not empty: value is its accuracy, with Wilson's 95% interval."""

    name: str  # "reliability", or "class1_reliability" for bins of the probability of class 1
    value: float
    low: float
    high: float
    bin: int
    lower: float  # the bin's edges
    upper: float
    confidence: float  # the mean in the bin
    n: int  # examples in the bin
    split: str | None = None
    method: str | None = None
    criterion: str | None = None
    share: float | None = None  # of all examples
    tags: Tags = Tags()


class Difference(NamedTuple):
    """A metric with one method less that with another, on the same examples, with its paired 95% interval."""

    name: str  # that of the metric and "_difference", as "ece_difference"
    value: float
    low: float
    high: float
    p_value: float  # two-sided, of no difference
    n: int
    split: str
    method: str
    against: str
    criterion: str | None = None
    against_criterion: str | None = None  # of the fit of `against`, where it is fitted by another
    tags: Tags = Tags()


class Fit(NamedTuple):
    """A fitted number of a method."""

    name: str  # "temperature", "calibration_gamma", ...
    value: float
    n: int  # examples it was fitted on
    split: str
    method: str
    criterion: str | None = None
    tags: Tags = Tags()


class Eigenvalue(NamedTuple):
    """The largest eigenvalue of a loss's Hessian."""

    name: str  # "lambda_max"
    value: float
    residual: float  # |H v - value v| for the unit vector v found: an eigenvalue lies within it
    products: int  # Hessian products taken
    converged: bool
    n: int  # examples of the loss
    split: str
    loss: str
    tags: Tags = Tags()


class Trace(NamedTuple):
    """The trace of a loss's Hessian, by random vectors."""

    name: str  # "trace", or "scale_free_trace"
    value: float
    low: float
    high: float
    stderr: float
    probes: int
    n: int
    split: str
    loss: str
    estimator: str | None = None  # "hutchinson", "hutch++" or "xtrace"
    tags: Tags = Tags()


class AttributionPart(NamedTuple):
    """A part of the trace or of lambda_max; the parts of a whole sum to it."""

    name: str  # "attribution"
    of: str  # "trace" or "lambda_max"
    part: str  # "gauss_newton", "residual", "whole", ...
    value: float
    n: int
    split: str
    loss: str
    low: float | None = None  # no interval at one vector, that of lambda_max
    high: float | None = None
    stderr: float | None = None
    probes: int | None = None
    tags: Tags = Tags()


class DensityBin(NamedTuple):
    """The share of a Hessian's eigenvalues between two edges."""

    name: str  # "spectral_density"
    value: float
    stderr: float
    bin: int
    lower: float
    upper: float
    probes: int
    products: int
    n: int
    split: str
    loss: str
    tags: Tags = Tags()


class Diagnostic(NamedTuple):
    """A number that helps to explain curvature and calibration: a mean, share, quantile or norm."""

    name: str  # "true_class_probability", "entropy", "gradient_norm", "weight_norm", "share_raised", ...
    value: float
    n: int | None = None
    split: str | None = None
    loss: str | None = None
    outcome: str | None = None  # "correct" or "wrong": a mean of those examples alone
    quantile: float | None = None
    tags: Tags = Tags()


class HistogramBin(NamedTuple):
    """The share of examples whose number lies between two edges."""

    name: str  # "gradient_norm_histogram"
    value: float
    bin: int
    lower: float
    upper: float
    n: int
    split: str
    tags: Tags = Tags()


class Scalar(NamedTuple):
    """A number of the training, such as its loss, accuracy or learning rate."""

    name: str  # "loss", "accuracy", "penalty", "learning_rate", "examples_per_second", "stopped", "selected_epoch", ...
    value: float
    n: int | None = None
    split: str | None = None
    tags: Tags = Tags()


class Seconds(NamedTuple):
    """Wall time of a phase in seconds."""

    name: str  # "seconds"
    phase: str  # "prepare", "compile", "train", "evaluate", "fit"
    value: float
    extension: int | None = None  # of a sweep's members that train together: 1 at first, more where axes gained values
    rows: int | None = None  # of a member's evaluation: how many rows it has, this one among them
    tags: Tags = Tags()


Row = (
    Metric
    | ReliabilityBin
    | Difference
    | Fit
    | Eigenvalue
    | Trace
    | AttributionPart
    | DensityBin
    | Diagnostic
    | HistogramBin
    | Scalar
    | Seconds
)

KINDS: dict[str, type] = {
    "metric": Metric,
    "reliability_bin": ReliabilityBin,
    "difference": Difference,
    "fit": Fit,
    "eigenvalue": Eigenvalue,
    "trace": Trace,
    "attribution": AttributionPart,
    "density_bin": DensityBin,
    "diagnostic": Diagnostic,
    "histogram_bin": HistogramBin,
    "scalar": Scalar,
    "seconds": Seconds,
}
_NAMES = {kind: name for name, kind in KINDS.items()}
_TYPES = {
    kind: {field: get_args(hint) or (hint,) for field, hint in get_type_hints(kind).items() if field != "tags"}
    for kind in (*KINDS.values(), Tags)
}
_LARGEST = 2**63 - 1  # arrays hold no larger whole number
_WORDS = {float: "finite number", int: "whole number from 0 to 2^63 - 1", str: "text", bool: "truth value"}


def _checks(types: tuple[type, ...]) -> dict[type, Callable[[Any], bool]]:
    """The check of a value by the type that JSON gives it; a whole number is a number too. A text may be anything."""
    of_type: dict[type, Callable[[Any], bool]] = {
        float: math.isfinite,
        int: lambda value: 0 <= value <= _LARGEST,
        **dict.fromkeys((str, bool, NoneType), lambda value: True),
    }
    of_number = {int: lambda value: -_LARGEST <= value <= _LARGEST} if float in types else {}
    return {each: of_type[each] for each in types} | of_number


_CHECKS = {kind: [(field, _checks(types)) for field, types in _TYPES[kind].items()] for kind in _TYPES}
_NO_TAGS = Tags()


def finite(row: Row) -> Row:
    """The row with Python numbers in place of array scalars.

    Raises:
        RunError: one of its numbers is not finite: an error of the measurement, never a value of a row.
    """
    plain = {name: _plain(value) for name, value in row._asdict().items() if name != "tags"}
    for field, number in plain.items():
        if isinstance(number, float) and not math.isfinite(number):
            where = ", ".join(f"{name} {text}" for name, text in plain.items() if isinstance(text, str))
            raise RunError(
                f"{where} has {field} {number}: the numbers it comes from are too large for float32; "
                "if training has diverged, lower the learning rate, else look for outlying inputs"
            )
    return row._replace(**plain)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return value.item()  # of numpy and jax alike


def tagged(rows: Iterable[Row], **tags: float | str | None) -> list[Row]:
    """The rows with these fields of their tags set."""
    return [row._replace(tags=row.tags._replace(**tags)) for row in rows]


def select(rows: Iterable[Row], kind: type, **fields: Any) -> list[Row]:
    """The rows of one kind whose fields, or tags, have these values; a field given as None must be absent."""
    return [
        row for row in rows if isinstance(row, kind) and all(value_of(row, name) == fields[name] for name in fields)
    ]


def value_of(row: Row, field: str) -> Any:
    """The row's field, or the field of its tags, of that name."""
    return getattr(row.tags if field in Tags._fields else row, field)


def to_json(row: Row) -> dict[str, Any]:
    """The row as one flat object: its kind, its fields, its tags; without what is None."""
    fields = {"kind": _NAMES[type(row)], **row._asdict(), **row.tags._asdict()}
    return {name: value for name, value in fields.items() if value is not None and name != "tags"}


def from_json(found: Mapping[str, Any]) -> Row:
    """The row that `to_json` wrote; fields that no kind has are ignored.

    Raises:
        InputError: an unknown kind, a field that is missing or of another type, a number that is not finite, a whole
            number that is negative or above 2^63 - 1.
    """
    if not isinstance(found, Mapping) or "name" not in found:
        raise InputError("a row must be an object with a name")
    if "kind" not in found:
        raise InputError("a row has no kind: it was written by an older focalgeo; make the folder again with this one")
    name = found["kind"]
    if not isinstance(name, str) or name not in KINDS:
        raise InputError.of_choice("a row's kind", str(name)[:40], KINDS)
    tags = _read(Tags, found)
    return KINDS[name](*_read(KINDS[name], found), Tags._make(tags) if any(map(_is_given, tags)) else _NO_TAGS)


def _is_given(value: Any) -> bool:
    return value is not None


def _read(kind: type, found: Mapping[str, Any]) -> list[Any]:
    """The values of all fields but tags, in order, each as its annotation says."""
    values = []
    for field, checks in _CHECKS[kind]:
        value = found.get(field)
        check = checks.get(type(value))
        if check is None or not check(value):
            raise _misfit(found, field, value, _TYPES[kind][field])
        values.append(value)
    return values


def _misfit(found: Mapping[str, Any], field: str, value: Any, types: tuple[type, ...]) -> InputError:
    row = f"row {_shown(found['name'])}"
    if value is None:
        return InputError(f"{row} has no {field}")
    what = next(_WORDS[each] for each in types if each in _WORDS)
    return InputError(f"{row} has {field} {_shown(value)}, which is no {what}")


def _shown(value: Any) -> str:
    """The value as text of 40 characters at most."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, int) and abs(value) > _LARGEST:
        return f"{value:.3g}" if abs(value) < 10**300 else "a number of hundreds of digits"
    return repr(value[:37] + "..." if isinstance(value, str) and len(value) > 40 else value)
