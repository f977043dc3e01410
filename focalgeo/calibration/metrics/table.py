"""METRICS: the table of all metrics, with their titles, units and ranges."""

import functools
import inspect
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax.numpy as jnp

from focalgeo import checks
from focalgeo.calibration.metrics import two_classes
from focalgeo.calibration.metrics.binning import Labels, LogProbs, Mask, Scalar, Summed, Weights, metric
from focalgeo.calibration.metrics.top_label import (
    accuracy,
    adaptive_ece,
    aurc,
    brier,
    brier_split,
    classwise_ece,
    confidence_auroc,
    debiased_ece,
    ece,
    high_confidence,
    mce,
    nll,
    overconfidence,
    smooth_ece,
    underconfidence,
)
from focalgeo.rows import Title
from focalgeo.types import DEFAULT_METRICS, Array


class MetricEntry(NamedTuple):
    """A metric of METRICS: its function, and how its numbers are shown and bounded."""

    function: Callable[
        ..., Array
    ]  # function(log_probs, labels, *, mask, weights) -> scalar; with num_bins where binned
    shown: Title  # its entry in a manifest
    largest: float = math.inf  # that it can be
    share: bool = False  # of examples: Wilson's interval holds, where a bootstrap's has no width at 0 and 1
    among: Callable[..., Array] | None = None  # among(log_probs, labels) -> the number of examples a share is of
    may_lack: bool = False  # NaN where it has no meaning, as the accuracy of no example: no fault of the numbers
    smallest: float = 0.0  # that it can be

    @property
    def binned(self) -> bool:
        """Whether it takes num_bins."""
        return "num_bins" in inspect.signature(self.function).parameters

    def options(self, num_bins: int) -> dict[str, int]:
        """Its keyword arguments: num_bins where it is binned."""
        return {"num_bins": num_bins} if self.binned else {}

    @property
    def summed(self) -> bool:
        """Whether it is a function of sums over the examples."""
        return hasattr(self.function, "of") and isinstance(self.function.of(), Summed)


def _part(name, whole, field):
    """One field of what a metric returns, as a metric."""

    @metric
    @functools.wraps(whole)
    def part(log_probs, labels, **options):
        sums, value, soft = whole.of(**options)
        return Summed(sums, lambda *totals: getattr(value(*totals), field), soft)

    part.__name__ = name
    return part


def _percent(function, title, note="", *, best="low", **fields: bool | Callable) -> MetricEntry:
    return MetricEntry(function, Title(title, "%", note, 100.0, 2, best), largest=1.0, **fields)


def _centred(function, title, note, **fields):
    """A number that is best in the middle of its range."""
    return MetricEntry(function, Title(title, note=note, best="middle"), may_lack=True, smallest=-math.inf, **fields)


_OF_ECE, _OF_BRIER, _SURE = "part of the ECE", "part of the Brier score", "confidence of 0.99 or more"


METRICS = {
    entry.function.__name__: entry
    for entry in (
        _percent(accuracy, "Accuracy", "higher is better", best="high", share=True),
        _percent(ece, "ECE", "equal-width bins"),
        _percent(adaptive_ece, "Adaptive ECE", "equal-mass bins"),
        MetricEntry(nll, Title("NLL", "nats")),
        MetricEntry(brier, Title("Brier score"), largest=2.0),
        _percent(mce, "MCE", "largest gap of a bin"),
        _percent(classwise_ece, "Class-wise ECE", "mean over classes"),
        _percent(debiased_ece, "Debiased ECE", "L2, equal-mass bins"),
        _percent(smooth_ece, "Smooth ECE", "no bins"),
        _percent(overconfidence, "Overconfidence", _OF_ECE),
        _percent(underconfidence, "Underconfidence", _OF_ECE),
        MetricEntry(
            _part("brier_calibration", brier_split, "calibration"),
            Title("Brier calibration", note=_OF_BRIER),
            largest=2.0,
        ),
        MetricEntry(
            _part("brier_refinement", brier_split, "refinement"),
            Title("Brier refinement", note=_OF_BRIER),
            largest=1.0,
        ),
        _percent(_part("high_confidence", high_confidence, "fraction"), "|S99|", _SURE, best="high", share=True),
        _percent(
            _part("high_confidence_accuracy", high_confidence, "accuracy"),
            "Accuracy of S99",
            _SURE,
            best="high",
            share=True,
            among=lambda *of: jnp.round(high_confidence(*of).fraction * len(of[1])),
            may_lack=True,
        ),
        _percent(confidence_auroc, "Confidence AUROC", "right from wrong by confidence", best="high", may_lack=True),
        _percent(aurc, "AURC", "area under risk-coverage"),
        _percent(two_classes.auroc, "AUROC", "of P(1)", best="high", may_lack=True),
        MetricEntry(two_classes.binary_brier, Title("Binary Brier score", note="of P(1)"), largest=1.0),
        _percent(two_classes.rms_calibration_error, "RMS calibration error", "of P(1)"),
        _percent(two_classes.adaptive_rms_calibration_error, "Adaptive RMS calibration error", "of P(1)"),
        _percent(two_classes.ici, "ICI", "of P(1), by loess"),
        _centred(two_classes.calibration_slope, "Calibration slope", "of P(1); 1 is calibrated"),
        _centred(two_classes.calibration_intercept, "Calibration intercept", "of P(1); 0 is calibrated"),
        _centred(two_classes.spiegelhalter_z, "Spiegelhalter's z", "of P(1); calibrated within 2 of 0"),
    )
}


def all_metrics(
    log_probs: LogProbs,
    labels: Labels,
    *,
    num_bins: int = 15,
    mask: Mask = None,
    weights: Weights = None,
    names: Iterable[str] = DEFAULT_METRICS,
) -> dict[str, Scalar]:
    """The metrics of METRICS with these names; with num_bins and names bound it is a metric for `bootstrap`.

    Example:
        >>> found = calibration.all_metrics(log_probs, labels, num_bins=3)
        >>> {name: round(float(value), 4) for name, value in found.items()}
        {'accuracy': 0.5, 'ece': 0.2391, 'adaptive_ece': 0.4065, 'nll': 0.8055, 'brier': 0.4991}
    """
    return {
        name: entry.function(log_probs, labels, mask=mask, weights=weights, **entry.options(num_bins))
        for name, entry in metric_entries(names).items()
    }


def metric_entries(names: Iterable[str]) -> dict[str, MetricEntry]:
    """The entries of METRICS with these names, each once, in the order given."""
    return {name: METRICS[name] for name in checks.names("metrics", names, METRICS)}
