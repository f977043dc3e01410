"""Cross-fitted log-probabilities of calibration methods, and the choice between methods by them.

Cross-fitted: the examples are split into folds, and each fold is calibrated by a fit of the others. So a validation
split alone says how a method does on examples that its fit has not seen.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Integer

from focalgeo.arguments import array_of, check_choice, count, predicted_logits, warns_of_probabilities
from focalgeo.calibration.methods import Calibrated, Fitted, Method, fit_methods
from focalgeo.rows import LEAST_EXAMPLES, Difference, select
from focalgeo.types import Array, InputError

_MOST_FOLDS = 10_000  # fits are made for each


def folds(labels: Array, num_folds: int, seed: int) -> np.ndarray:
    """The fold of each example, int32 [examples] from 0 to num_folds - 1, at random in `seed`.

    Stratified: folds differ by at most one in size, and by at most one in the number of examples of any class.

    Raises:
        InputError: labels of another shape than [examples]; a number of folds below 2 or above 10,000, a negative seed.
    """
    labels = np.asarray(array_of("labels", labels))
    if labels.ndim != 1:
        raise InputError(f"labels have shape {labels.shape}: give one label for each example, [examples]")
    count("num_folds", num_folds, 2, _MOST_FOLDS)
    count("seed", seed, 0, 2**63 - 1)
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    fold = np.empty(len(labels), np.int32)
    fold[by_label] = np.arange(len(labels)) % num_folds
    return fold


@warns_of_probabilities
def cross_fit(
    methods: Mapping[str, Method],
    logits: Float[Array, "examples classes"],
    labels: Integer[Array, " examples"],
    *,
    settings: Mapping[str, Any],
    num_folds: int = 5,
    seed: int = 0,
) -> list[Calibrated]:
    """Held-out log-probabilities [examples, classes] of each fit of `fit_methods`, in its order.

    Each example is calibrated by a fit of the other folds, which has not seen it.

    Args:
        methods: Some of METHODS, or others.
        logits: Float [examples, classes].
        labels: Int [examples].
        settings: As of `fit_methods`; a "search" of all examples is not used.
        num_folds: 2 or more.
        seed: Of the folds.

    Raises:
        InputError: predictions that `check_predictions` refuses; fewer than 2 folds.
    """
    predicted_logits(logits, labels)
    fold = folds(labels, num_folds, seed)
    settings = {name: value for name, value in settings.items() if name != "search"}
    held_out: list[Calibrated] = []
    for index in range(num_folds):
        fits = fit_methods(methods, logits, labels, settings=settings, mask=fold != index)
        parts = [np.asarray(fitted.log_probs(logits)) for fitted in fits]
        if not held_out:
            empty = map(np.empty_like, parts)
            held_out = [Calibrated(each.method, each.criterion, part) for each, part in zip(fits, empty, strict=True)]
        for each, part in zip(held_out, parts, strict=True):
            each.log_probs[fold == index] = part[fold == index]
    return held_out


def candidates(fits: Sequence[Fitted | Calibrated], criterion: str) -> list[int]:
    """Indices in `fits` of one fit of each fitted method: that by `criterion`, or else by its first criterion.

    Raises:
        InputError: a criterion that is none.
    """
    known = ("ece", "nll", *(name for each in fits for name in each.method.criteria))
    check_choice("criterion", criterion, tuple(dict.fromkeys(known)))

    def by(method: Method) -> str:
        return criterion if criterion in method.criteria else method.criteria[0]

    return [index for index, each in enumerate(fits) if each.criterion and each.criterion == by(each.method)]


def choose(fits: Sequence[Fitted], differences: Sequence[Difference], *, criterion: str) -> Fitted:
    """The method to use: the first fitted one, unless a later one beats it beyond noise; uncalibrated if neither helps.

    Beyond noise is a 95% interval of the paired difference of cross-fitted log-probabilities that leaves out 0, from
    100 examples on. Methods are compared in order by the criterion, each with the best so far. One that may change the
    predicted class must not lose accuracy beyond noise. A fit that ended at the end of its range is not compared: the
    range would decide. The best is used only where its ECE or its NLL is below that of the uncalibrated predictions
    beyond noise, or where there are fewer than 100 examples to tell; both are asked, as the test of the ECE alone is
    conservative.

    Args:
        fits: Of `fit_methods` on all examples, "uncalibrated" first.
        differences: Of `cross_fit` with the same methods, in ECE, NLL and, for methods that may change the predicted
            class, accuracy: of each of the `candidates` less each earlier one, and less the uncalibrated predictions.
        criterion: "ece" or "nll". A method that has no fit by it takes part with another of its fits.
    """
    uncalibrated = next(fitted for fitted in fits if fitted.criterion is None)
    compared = [fits[index] for index in candidates(fits, criterion)]
    if not compared:
        return uncalibrated
    best = compared[0]
    for later in compared[1:]:
        if best.converged and later.converged and _better(differences, later, best, criterion):
            best = later
    found = [_difference(differences, metric, best, uncalibrated) for metric in ("ece", "nll")]
    useless = all(row.n >= LEAST_EXAMPLES and row.high >= 0 for row in found)
    return uncalibrated if useless else best


def _better(differences: Sequence[Difference], later: Fitted, best: Fitted, criterion: str) -> bool:
    row = _difference(differences, criterion, later, best)
    if row.n < LEAST_EXAMPLES or row.high >= 0:
        return False
    return later.method.keeps_class or _difference(differences, "accuracy", later, best).high >= 0


def _difference(differences: Sequence[Difference], metric: str, fitted: Fitted, against: Fitted) -> Difference:
    other = against.criterion if against.criterion != fitted.criterion else None
    pair = {"method": fitted.method.name, "criterion": fitted.criterion, "against": against.method.name}
    return select(differences, Difference, name=f"{metric}_difference", **pair, against_criterion=other)[0]
