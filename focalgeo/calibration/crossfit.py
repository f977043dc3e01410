"""Cross-fitted log-probabilities of calibration methods, and the choice between methods by them.

Cross-fitted: the examples are split into folds, and each fold is calibrated by a fit of the others. So a validation
split alone says how a method does on examples that its fit has not seen.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from focalgeo.calibration.intervals import PairedDifference, paired_bootstrap
from focalgeo.calibration.methods import Fitted, Method, fit_methods
from focalgeo.calibration.metrics import accuracy, ece, nll
from focalgeo.types import Array

LEAST_EXAMPLES = 100  # with fewer a bootstrap of a binned metric says little, and no method is preferred by it


def folds(labels: Array, num_folds: int, seed: int) -> np.ndarray:
    """The fold of each example, int32 [examples] from 0 to num_folds - 1, at random in `seed`.

    Stratified: folds differ by at most one in size, and by at most one in the number of examples of any class.
    """
    labels = np.asarray(labels)
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    fold = np.empty(len(labels), np.int32)
    fold[by_label] = np.arange(len(labels)) % num_folds
    return fold


def cross_fit(
    methods: Mapping[str, Method],
    logits: Array,
    labels: Array,
    *,
    settings: Mapping[str, Any],
    num_folds: int = 5,
    seed: int = 0,
) -> list[np.ndarray]:
    """Log-probabilities [examples, classes] of each fit of `fit_methods`, in its order, each example's fit without it.

    Args:
        methods: Some of METHODS, or others.
        logits: Float [examples, classes].
        labels: Int [examples].
        settings: As of `fit_methods`; a "search" of all examples is not used.
        num_folds: 2 or more.
        seed: Of the folds.
    """
    fold = folds(labels, num_folds, seed)
    settings = {name: value for name, value in settings.items() if name != "search"}
    held_out: list[np.ndarray] = []
    for index in range(num_folds):
        fits = fit_methods(methods, logits, labels, settings=settings, mask=fold != index)
        parts = [np.asarray(fitted.log_probs(logits)) for fitted in fits]
        held_out = held_out or [np.empty_like(part) for part in parts]
        for every, part in zip(held_out, parts, strict=True):
            every[fold == index] = part[fold == index]
    return held_out


def metric_differences(
    first: Array, second: Array, labels: Array, *, key: Array, num_bins: int = 15, num_resamples: int = 1000
) -> dict[str, PairedDifference]:
    """Accuracy, ECE and NLL of the first log-probabilities less those of the second, on the same resamples.

    Args:
        first: Float [examples, classes].
        second: Float [examples, classes].
        labels: Int [examples].
        key: PRNG key; the resamples are those of `bootstrap` with this key.
        num_bins: Bins of equal width of the ECE.
        num_resamples: 2 or more.
    """
    return paired_bootstrap(_metric(num_bins), first, second, labels, key, num_resamples)


@cache  # `paired_bootstrap` compiles anew for every function object
def _metric(num_bins: int):
    def metric(log_probs: Array, labels: Array, *, mask: Array | None = None) -> dict[str, Array]:
        return {
            "accuracy": accuracy(log_probs, labels, mask=mask),
            "ece": ece(log_probs, labels, num_bins=num_bins, mask=mask),
            "nll": nll(log_probs, labels, mask=mask),
        }

    return metric


def choose(
    fits: Sequence[Fitted],
    held_out: Sequence[Array],
    labels: Array,
    *,
    criterion: str,
    key: Array,
    num_bins: int = 15,
    num_resamples: int = 1000,
) -> Fitted:
    """The method to use: the plainest fitted one, unless a later one beats it beyond noise, or none is of use.

    Beyond noise is a 95% interval of the paired difference of cross-fitted log-probabilities that leaves out 0, from
    100 examples on. Methods are compared in order by the criterion, each with the best so far. One that may change the
    predicted class must not lose accuracy beyond noise. A fit that ended at the end of its range is not compared: the
    range would decide. The best is used only where its ECE or its NLL is below that of the uncalibrated predictions
    beyond noise, or where there are fewer than 100 examples to tell; both are asked, as the ECE alone is a wary test.

    Args:
        fits: Of `fit_methods` on all examples, "uncalibrated" among them.
        held_out: Of `cross_fit` with the same methods.
        labels: Int [examples].
        criterion: "ece" or "nll". A method that has no fit by it takes part with another of its fits.
        key: PRNG key of the bootstrap.
        num_bins: Bins of equal width of the ECE.
        num_resamples: Of the bootstrap.
    """
    options = {"key": key, "num_bins": num_bins, "num_resamples": num_resamples}
    log_probs = {fitted.method.name: (fitted, held) for fitted, held in _candidates(fits, held_out, criterion)}
    uncalibrated = log_probs.pop("uncalibrated")
    candidates = list(log_probs.values())
    if not candidates:
        return uncalibrated[0]
    best, enough = candidates[0], len(labels) >= LEAST_EXAMPLES
    for candidate in candidates[1:] if enough else []:
        if best[0].converged and candidate[0].converged:
            found = metric_differences(candidate[1], best[1], labels, **options)
            less_accurate = not candidate[0].method.keeps_class and found["accuracy"].high < 0
            if found[criterion].high < 0 and not less_accurate:
                best = candidate
    if enough:
        found = metric_differences(best[1], uncalibrated[1], labels, **options)
        if found["ece"].high >= 0 and found["nll"].high >= 0:
            return uncalibrated[0]
    return best[0]


def _candidates(fits: Sequence[Fitted], held_out: Sequence[Array], criterion: str):
    """One fit of each fitted method, and the uncalibrated predictions."""
    for fitted, log_probs in zip(fits, held_out, strict=True):
        criteria = fitted.method.criteria
        if fitted.method.name == "uncalibrated" or (
            criteria and fitted.criterion == (criterion if criterion in criteria else criteria[0])
        ):
            yield fitted, log_probs
