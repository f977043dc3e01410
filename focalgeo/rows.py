"""Rows: the kinds of measurement, one struct each, to and from a line of metrics.jsonl.

A row is one number with its error. Its kind says which fields it has; what does not apply is None here and absent in
the file, never 0 or NaN. Every kind ends with the fields of `Tagged`: which run of a sweep, and when in training.
"""

import math
from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import asdict, replace

from focalgeo.types import Array, RunError

LEAST_EXAMPLES = 100  # with fewer, a bootstrap of a binned metric says little: nothing is compared or chosen by it
OUTCOMES = ("correct", "wrong")  # of the examples that a Diagnostic is a mean of
DENSITY_LINEAR_WIDTH = 1e-3  # of the largest eigenvalue: density bins are even below it, and in the logarithm beyond
Z95 = 1.959963984540054  # the standard normal's 97.5% quantile
Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Tagged(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """Tags of a row: its run of a sweep, by the values that may vary, and when in training it was measured."""

    gamma: float | None = None  # of the training loss, where it has one
    trace_penalty: float | None = None  # only where it is swept
    trace_target: float | None = None  # likewise
    learning_rate: float | None = None
    weight_decay: float | None = None
    seed: Whole | None = None
    step: Whole | None = None
    epoch: float | None = None  # of measurements in training; the final ones have none
    run: str | None = None  # the workdir's name, where rows of several stand together


class Measured(Tagged):
    """A named number."""

    name: str
    value: float


class Metric(Measured, tag="metric"):
    """A calibration metric of one method's log-probabilities, with its 95% interval."""

    # name: that of METRICS in focalgeo.calibration; also "class1_ece", "group_ece", "events" and others
    low: float | None = None
    high: float | None = None
    n: Whole | None = None  # examples
    split: str | None = None  # "train", "val", "test" or "cross_fit"
    method: str | None = None  # that of METHODS in focalgeo.calibration
    criterion: str | None = None  # by which the method was fitted; None where nothing is fitted
    group: str | None = None  # n is then that of the group


class Title(NamedTuple):
    """A measurement's title, and how its numbers are shown."""

    title: str
    unit: str = ""  # of the number as shown, that is times `scale`
    note: str = ""  # beneath the title
    scale: float = 1.0
    digits: int = 4
    best: str = "low"  # or "high", or "middle"


# by the names of rows; a calibration metric's is in METRICS of focalgeo.calibration, and in every manifest
TITLES = {
    "lambda_max": "Largest eigenvalue",
    "trace": "Trace",
    "scale_free_trace": "Scale-free trace",
    "adaptive_sharpness": "Adaptive sharpness, ρ = 0.5",
    "average_sharpness": "Mean adaptive sharpness, ρ = 0.1",
    "fisher_rao_norm": "Fisher–Rao norm",
    "pac_bayes_sigma": "Noise that adds 0.1 nats",
    "relative_sigma": "Noise that adds a tenth",
}


class ReliabilityBin(Measured, tag="reliability_bin"):
    """A bin of confidence that is not empty: value is its accuracy, with Wilson's 95% interval."""

    # name: "reliability", or "class1_reliability" for bins of the probability of class 1
    low: float
    high: float
    bin: Whole
    lower: float  # the bin's edges
    upper: float
    confidence: float  # the mean in the bin
    n: Whole  # examples in the bin
    split: str | None = None
    method: str | None = None
    criterion: str | None = None
    share: float | None = None  # of all examples


class Difference(Measured, tag="difference"):
    """A metric of one method minus that of another, on the same examples, with its paired 95% interval."""

    # name: that of the metric and "_difference", as "ece_difference"
    low: float
    high: float
    p_value: float  # two-sided, of no difference
    n: Whole
    split: str
    method: str
    against: str
    criterion: str | None = None
    against_criterion: str | None = None  # of the fit of `against`, where it is fitted by another


class Fit(Measured, tag="fit"):
    """A fitted number of a method."""

    # name: "temperature", "calibration_gamma", ...
    n: Whole  # examples it was fitted on
    split: str
    method: str
    criterion: str | None = None


class Eigenvalue(Measured, tag="eigenvalue"):
    """The largest eigenvalue of a loss's Hessian."""

    # name: "lambda_max"
    residual: float  # |H v - value v| for the unit vector v found: an eigenvalue lies within it
    products: Whole  # Hessian products taken
    converged: bool
    n: Whole  # examples of the loss
    split: str
    loss: str


class Trace(Measured, tag="trace"):
    """The trace of a loss's Hessian, by random vectors."""

    # name: "trace", or "scale_free_trace"
    low: float
    high: float
    stderr: float
    probes: Whole
    n: Whole
    split: str
    loss: str
    estimator: str | None = None  # "hutchinson", "hutch++" or "xtrace"


class Sharpness(Measured, tag="sharpness"):
    """How far a loss rises around the trained weights, or how much noise raises it by a set amount."""

    # name: "adaptive_sharpness", "average_sharpness", "pac_bayes_sigma", "relative_sigma", "fisher_rao_norm"
    error: float  # a standard error; of adaptive_sharpness how far it may fall short
    loss: str
    n: Whole
    split: str


class AttributionPart(Tagged, tag="attribution"):
    """A part of the trace or of lambda_max; the parts of a whole sum to it."""

    name: str  # "attribution"
    of: str  # "trace" or "lambda_max"
    part: str  # "gauss_newton", "residual", "whole", ...
    value: float
    n: Whole
    split: str
    loss: str
    low: float | None = None  # no interval at one vector, that of lambda_max
    high: float | None = None
    stderr: float | None = None
    probes: Whole | None = None


class DensityBin(Measured, tag="density_bin"):
    """The share of a Hessian's eigenvalues between two edges."""

    # name: "spectral_density"
    stderr: float
    bin: Whole
    lower: float
    upper: float
    probes: Whole
    products: Whole
    n: Whole
    split: str
    loss: str


class Diagnostic(Measured, tag="diagnostic"):
    """A number that helps to explain curvature and calibration: a mean, share, quantile or norm."""

    # name: "true_class_probability", "entropy", "gradient_norm", "weight_norm", "share_raised", ...
    n: Whole | None = None
    split: str | None = None
    loss: str | None = None
    outcome: str | None = None  # "correct" or "wrong": a mean of those examples alone
    quantile: float | None = None


class HistogramBin(Measured, tag="histogram_bin"):
    """The share of examples whose number lies between two edges."""

    # name: "gradient_norm_histogram"
    bin: Whole
    lower: float
    upper: float
    n: Whole
    split: str


class Scalar(Measured, tag="scalar"):
    """A number of the training, such as its loss, accuracy or learning rate."""

    # name: "loss", "accuracy", "penalty", "learning_rate", "examples_per_second", "stopped", "selected_epoch", ...
    n: Whole | None = None
    split: str | None = None


class Seconds(Tagged, tag="seconds"):
    """Wall time of a phase in seconds."""

    name: str  # "seconds"
    phase: str  # "prepare", "compile", "train", "evaluate", "fit"
    value: float


Row = (
    Metric
    | ReliabilityBin
    | Difference
    | Fit
    | Eigenvalue
    | Trace
    | Sharpness
    | AttributionPart
    | DensityBin
    | Diagnostic
    | HistogramBin
    | Scalar
    | Seconds
)
# the row that `encode` wrote; fields that no kind has are ignored
DECODER = msgspec.json.Decoder(Row)


def finite(row: Row) -> Row:
    """The row with Python numbers in place of array scalars.

    Raises:
        RunError: one of its numbers is not finite: an error of the measurement, never a value of a row.

    Example:
        >>> rows.finite(rows.Metric(name="nll", value=np.float32(0.25), split="val")).value
        0.25
    """
    values = {name: value.item() if hasattr(value, "item") else value for name, value in asdict(row).items()}
    row = replace(row, **values)
    if not all(math.isfinite(value) for value in values.values() if isinstance(value, float)):
        raise RunError(
            f"a number is not finite in {msgspec.to_builtins(row)}: if training has diverged, lower the learning rate, "
            "else look for outlying inputs"
        )
    return row


def encode(row: Row) -> bytes:
    """The row as one flat JSON object: its kind, its fields, its tags; without what is None.

    Example:
        >>> rows.encode(rows.Metric(name="nll", value=0.25, split="val"))
        b'{"kind":"metric","name":"nll","value":0.25,"split":"val"}'
    """
    return msgspec.json.encode(finite(row))


def tagged(rows: Iterable[Row], **tags: float | str | None) -> list[Row]:
    """The rows with these fields set.

    Example:
        >>> rows.tagged([rows.Metric(name="nll", value=0.25)], seed=3)[0].seed
        3
    """
    return [replace(row, **tags) for row in rows]


def select(rows: Iterable[Row], kind: type, **fields: Any) -> list[Row]:
    """The rows of one kind whose fields have these values; a field given as None must be absent.

    Example:
        >>> made = [rows.Metric(name=name, value=0.3, split="val") for name in ("ece", "nll")]
        >>> [row.name for row in rows.select(made, rows.Metric, name="nll")]
        ['nll']
    """
    return [row for row in rows if isinstance(row, kind) and all(getattr(row, f) == fields[f] for f in fields)]


def wilson(successes: Array, n: Array) -> tuple[Array, Array]:
    """Return Wilson's 95% interval (low, high) for shares, from `successes` out of `n`; n = 0 gives (0, 1).

    Source: Wilson, JASA 22 (1927).

    Example:
        >>> low, high = rows.wilson(50, 50)
        >>> round(float(low), 4), float(high)
        (0.9287, 1.0)
    """
    # for n = 0 centre and half-width are both 1/2; the maximum only avoids 0 / 0
    denominator = n + Z95**2
    centre = (successes + Z95**2 / 2) / denominator
    spread = successes * (n - successes) / np.maximum(n, 1) + Z95**2 / 4
    half = Z95 * np.sqrt(spread) / denominator
    return np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1)


def series(row: Row) -> str:
    """The name of the series that a row is a point of, as "gamma_3.0/seed_0/val/nll/temperature_scaling", for trackers.

    It has all that tells measurements of one step apart, but the number of a bin.

    Example:
        >>> row = rows.Metric(name="nll", value=0.3, split="val", method="temperature_scaling", gamma=3.0, seed=0)
        >>> rows.series(row)
        'gamma_3.0/seed_0/val/nll/temperature_scaling'
    """
    return "/".join(
        part if isinstance(part, str) else f"{field}_{part}"
        for field in _TELLING
        if (part := getattr(row, field, None)) is not None
    )


_TELLING = (
    "run",
    "gamma",
    "trace_penalty",
    "trace_target",
    "learning_rate",
    "weight_decay",
    "seed",
    "split",
    "name",
    "phase",
    "group",
    "outcome",
    "quantile",
    "of",
    "part",
    "method",
    "criterion",
    "against",
    "against_criterion",
    "loss",
)
