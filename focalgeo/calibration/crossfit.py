"""Cross-fitted log-probabilities of calibration methods, and the choice between methods by them and a score test.

Cross-fitted: the examples are split into folds, and each fold is calibrated by a fit of the others. So a validation
split alone says how a method does on examples that its fit has not seen.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Integer

from focalgeo.calibration.fits import ScoreTest
from focalgeo.calibration.fitted import Calibrated, Fitted, Method
from focalgeo.calibration.methods import SHARED, fit_methods
from focalgeo.checks import array_of, check_choice, count, predicted_logits
from focalgeo.rows import LEAST_EXAMPLES, Difference, select
from focalgeo.types import CRITERIA, METRIC_OF, Array, InputError

LEVEL = 0.05  # of all comparisons of a method with others together
_MOST_FOLDS = 10_000  # fits are made for each
_WORDS = {"nll": "its NLL is", "brier": "its Brier score is", "accuracy": "its accuracy is"}


def folds(labels: Array, num_folds: int, seed: int) -> np.ndarray:
    """The fold of each example at random in `seed`, int32 [examples] from 0 to num_folds - 1; of one size but for 1.

    The labels give their number alone. Folds with equal shares of each class would flatter methods that fit the
    classes: each held-out part would have the very shares that they were fitted to. With 1,000 examples of 100 classes
    that made structured matrix scaling 0.03 nats too good.

    Raises:
        InputError: labels of another shape than [examples]; a number of folds below 2 or above 10,000, a negative seed.
    """
    labels = np.asarray(array_of("labels", labels))
    if labels.ndim != 1:
        raise InputError(f"labels have shape {labels.shape}: give one label for each example, [examples]")
    count("num_folds", num_folds, 2, _MOST_FOLDS)
    count("seed", seed, 0, 2**63 - 1)
    fold = np.empty(len(labels), np.int32)
    fold[np.random.default_rng(seed).permutation(len(labels))] = np.arange(len(labels)) % num_folds
    return fold


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
        settings: As of `fit_methods`; what is of all examples, as "searches", is not used.
        num_folds: 2 or more.
        seed: Of the folds.

    Raises:
        InputError: predictions that `check_predictions` refuses; fewer than 2 folds.
    """
    predicted_logits(logits, labels)
    fold = folds(labels, num_folds, seed)
    settings = {name: value for name, value in settings.items() if name not in SHARED}
    held_out: list[Calibrated] = []
    for index in range(num_folds):
        fits = fit_methods(methods, logits, labels, settings=settings, mask=fold != index)
        parts = [np.asarray(fitted.predict_log_proba(logits)) for fitted in fits]
        if not held_out:
            empty = map(np.empty_like, parts)
            held_out = [Calibrated(each.method, each.criterion, part) for each, part in zip(fits, empty, strict=True)]
        for each, part in zip(held_out, parts, strict=True):
            each.log_probs[fold == index] = part[fold == index]
    return held_out


def candidates(fits: Sequence[Fitted | Calibrated], criterion: str) -> list[int]:
    """Indices in `fits` of one fit of each fitted method: that by `criterion`, or else the first that there is.

    Raises:
        InputError: a criterion that is none.
    """
    check_choice("criterion", criterion, CRITERIA)
    found: dict[str, int] = {}
    for index, each in enumerate(fits):
        if each.criterion is not None and (each.method.name not in found or each.criterion == criterion):
            found[each.method.name] = index
    return sorted(found.values())


class Choice(NamedTuple):
    """The method to use, and how it was chosen."""

    fitted: Fitted
    level: float  # one-sided p-value below which a difference in the criterion counted
    refused: dict[str, str]  # method -> why it was not to be chosen, whatever its criterion
    beaten: dict[str, str]  # plainer method -> one that is better than it beyond noise
    test: ScoreTest | None = None  # by which temperature scaling was held against the outputs as given, where it was


def choose(
    fits: Sequence[Fitted], differences: Sequence[Difference], *, criterion: str, test: ScoreTest | None = None
) -> Choice:
    """The plainest method that no other beats beyond noise on held-out parts of the validation split.

    Compared are the uncalibrated predictions and a fit of each fitted method, the `candidates`, in the order of
    `fits`, plainest first. One is refused where its fit did not converge, as one that ended at the end of its range
    (the range would decide), and where its NLL, its Brier score or its accuracy is worse than that of a plainer one:
    the 95% interval of the difference leaves out 0. Of the others, the first is chosen that none beats in the
    criterion: one-sided p < 0.05 / the number of other methods. Many methods are many chances, and so divided
    (Bonferroni) the chance that any of them passes for better than one that is as good is 5% at most. With fewer than
    100 examples the first method whose fit converged is taken.

    By NLL the score test of T = 1 stands in the place of one of the comparisons, of temperature scaling with the
    outputs as given, which it holds at T = 1: with few examples it finds what the difference of NLL does not. Its
    two-sided p-value counts below the same level, so the chance of 5% holds.

    Args:
        fits: Of `fit_methods` on all examples, "uncalibrated" among them.
        differences: Of `cross_fit` with the same methods: those of each of the `candidates` less each earlier one, and
            less the uncalibrated predictions, in the criterion, NLL, Brier score and accuracy.
        criterion: "nll", or the ECE that the methods are fitted by. A method that has no fit by it takes part with
            another of its fits.
        test: `temperature_score_test` of the outputs as given on all examples. It is used where the metric is NLL and
            temperature scaling is not refused; None leaves that pair to its difference.
    """
    uncalibrated = next(fitted for fitted in fits if fitted.criterion is None)
    compared = [uncalibrated, *(fits[index] for index in candidates(fits, criterion))]
    if len(compared) == 1:
        return Choice(uncalibrated, LEVEL, {}, {})
    level = LEVEL / (len(compared) - 1)
    if _difference(differences, "nll", compared[1], uncalibrated).n < LEAST_EXAMPLES:
        refused = {each.method.name: each.why_not_converged for each in compared if not each.converged}
        first = next((each for each in compared[1:] if each.converged), uncalibrated)
        return Choice(first, level, refused, {})
    refused: dict[str, str] = {}
    admitted: list[Fitted] = []
    for each in compared:
        why = _why_refused(each, admitted, differences)
        refused |= {each.method.name: why} if why else {}
        admitted += [] if why else [each]
    metric = METRIC_OF.get(criterion, criterion)
    test = test if metric == "nll" and any(map(_is_plain, admitted)) else None
    beaten: dict[str, str] = {}
    for index, each in enumerate(admitted):
        better = _better_than(index, admitted, differences, metric, level, test)
        if better is None:
            return Choice(each, level, refused, beaten, test)
        beaten[each.method.name] = better.method.name
    raise AssertionError("of several methods one has the least criterion, and none beats it")


def _why_refused(fitted: Fitted, plainer: Sequence[Fitted], differences: Sequence[Difference]) -> str:
    """Why a method is not to be chosen, in words; "" where it may be."""
    if not fitted.converged:
        return fitted.why_not_converged
    for against in plainer:
        for metric, sign in (("nll", 1), ("brier", 1), ("accuracy", -1)):
            row = _difference(differences, metric, fitted, against)
            if row is not None and min(sign * row.low, sign * row.high) > 0:
                return f"{_WORDS[metric]} worse than {against.method.title.lower()}'s beyond noise"
    return ""


def _better_than(
    index: int,
    admitted: Sequence[Fitted],
    differences: Sequence[Difference],
    metric: str,
    level: float,
    test: ScoreTest | None,
) -> Fitted | None:
    """The plainest of the admitted methods that is better than the one at `index` beyond noise."""
    for other, each in enumerate(admitted):
        later, earlier = max(other, index), min(other, index)
        if test is not None and admitted[earlier].criterion is None and _is_plain(admitted[later]):
            if other > index and test.p_value < level:
                return each
            continue
        row = _difference(differences, metric, admitted[later], admitted[earlier]) if other != index else None
        if row is not None and row.p_value / 2 < level and (row.value < 0) == (other > index):
            return each
    return None


def _is_plain(fitted: Fitted) -> bool:
    """Whether it is temperature scaling, which holds the outputs as given at T = 1."""
    return fitted.method.name == "temperature_scaling"


def _difference(differences: Sequence[Difference], metric: str, fitted: Fitted, against: Fitted) -> Difference | None:
    """The row of one method less another; None for the accuracy of two that keep the class."""
    other = against.criterion if against.criterion != fitted.criterion else None
    pair = {"method": fitted.method.name, "criterion": fitted.criterion, "against": against.method.name}
    found = select(differences, Difference, name=f"{metric}_difference", **pair, against_criterion=other)
    if not found and not (metric == "accuracy" and fitted.method.keeps_class and against.method.keeps_class):
        raise InputError(f"differences have no {metric} of {fitted.method.name} less {against.method.name}: give it")
    return found[0] if found else None
