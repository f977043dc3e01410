"""Which rule should choose: ten on the same cross-fitted outputs, each measured on test.

A rule gives a weight to each method's probabilities, from how these do on val: a single method has weight 1. Where the
truth is known NLL, Brier score and accuracy are expected ones, without noise of labels.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_softmax, logsumexp
from scipy.stats import norm
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from experiments.posthoc import measured, two_classes
from experiments.posthoc.measured import PLAIN
from focalgeo import calibration, checks
from focalgeo.calibration.fits import focal as fits
from focalgeo.calibration.fits import stacking
from focalgeo.calibration.methods import fitting

AS_GIVEN, MATRIX = "uncalibrated", "structured_matrix_scaling"
KEPT = (AS_GIVEN, PLAIN, "focal_temperature_scaling")  # without numbers of each class
TRIO = (PLAIN, "focal_vector_scaling", MATRIX)
MEMBERS = (*KEPT, "focal_vector_scaling", MATRIX, "beta_calibration", "binary_isotonic")  # the last for two classes
NOW = (*MEMBERS, "platt_scaling")
WITHOUT = ("loss_implied_temperature_scaling", "loss_implied_map")  # they need the gamma of the training
SIZES = (200, 1000, 5000)
FLOOR = -1e4  # of log-probabilities, where a classifier is surer than float32
SMALL = ("breast cancer, naive Bayes", "digits, 3 or 8, forest")  # sets
TRAINED, TESTED = 297, 5000  # examples of digits that a classifier is trained on, and most of test
Z = 1.96


class HeldOut(NamedTuple):
    """How each method does on val, each fold by a fit of the others; arrays [methods, examples], plainest first."""

    names: tuple[str, ...]
    gain: np.ndarray  # log-probability of the label
    brier: np.ndarray
    right: np.ndarray
    admitted: np.ndarray  # bool [methods]: False for numbers of each class, where val lacks one
    converged: np.ndarray  # bool [methods]
    p_value: float  # of the score test of T = 1
    classes: int


def outputs(val: measured.Half, test: np.ndarray, seed: int) -> dict[str, Any]:
    """Every method's log-probabilities of val by folds, and of test by fits of all of val."""
    named = {name: calibration.METHODS[name] for name in calibration.DEFAULT_METHODS if name not in WITHOUT}
    methods = fitting.usable(named, {}, val[0].shape[1])
    examples, settings = checks.predicted_logits(*val), fitting.checked_settings({"criteria": ("nll",)})
    fitted = fitting.fit_all(methods, examples, settings)
    crossed = fitting.cross_fit(methods, examples, settings, calibration.folds(val[1], 5, seed))
    return {
        "names": [fit.method.name for fit in fitted],
        "converged": [fit.converged for fit in fitted],
        "held": np.stack([held.log_probs for held in crossed]),
        "test": np.stack([fit.predict_log_proba(test) for fit in fitted]),
        "labels": val[1],
        "p": fits.score_test(*examples).p_value,
    }


def held_out(found: Mapping[str, Any]) -> HeldOut:
    """What the rules ask of val, from `outputs`."""
    names, labels, log_probs = tuple(map(str, found["names"])), found["labels"], np.float64(found["held"])
    of_label = log_probs[:, np.arange(len(labels)), labels]
    lacks = len(np.unique(labels)) < log_probs.shape[2]
    return HeldOut(
        names,
        np.maximum(of_label, np.log(measured.CLIP)),
        np.square(np.exp(log_probs)).sum(2) - 2 * np.exp(of_label) + 1,
        (log_probs.argmax(2) == labels).astype(float),
        np.array([not lacks or name in KEPT for name in names]),
        np.array(found["converged"]),
        float(found["p"]),
        log_probs.shape[2],
    )


# ---- rules


def always(name: str, held: HeldOut) -> np.ndarray:
    """One method, whatever val says."""
    return np.eye(len(held.names))[held.names.index(name)]


def error(difference: np.ndarray) -> float:
    """The standard error of a mean."""
    return float(difference.std(ddof=1) / np.sqrt(len(difference)))


def _worse(held, place, plainer):
    """Whether NLL, Brier score or accuracy is worse than a plainer method's: the 95% interval leaves out 0."""
    for score, sign in ((held.gain, -1), (held.brier, 1), (held.right, -1)):
        differences = [sign * (score[place] - score[other]) for other in plainer]
        if any(each.any() and each.mean() > Z * error(each) for each in differences):
            return True
    return False


def plainest(held: HeldOut) -> np.ndarray:
    """The rule before, by normal intervals: the plainest method that no other beats beyond noise."""
    places = np.flatnonzero(held.admitted)
    level, admitted = 0.05 / max(len(places) - 1, 1), []
    for place in places:
        admitted += [place] if held.converged[place] and not _worse(held, place, admitted) else []

    def beats(one, other, level, test):
        if test and {held.names[one], held.names[other]} == {AS_GIVEN, PLAIN}:
            return held.names[one] == PLAIN and held.p_value < level
        gain = held.gain[one] - held.gain[other]
        return bool(gain.mean() > 0) and norm.sf(gain.mean() / error(gain)) < level

    def unbeaten(among, test):
        return next(one for one in among if not any(beats(other, one, level, test) for other in among if other != one))

    chosen = unbeaten(admitted, held.names.index(PLAIN) in admitted)
    others = [place for place in places if place != chosen]
    if others and all(beats(other, chosen, 0.025, False) for other in others):
        chosen = unbeaten(others, False)
    return always(held.names[chosen], held)


def within(errors: float, held: HeldOut) -> np.ndarray:
    """The plainest method whose NLL is within so many standard errors of the least; 0: the least."""
    places = np.flatnonzero(held.admitted)
    least = places[held.gain[places].mean(1).argmax()]
    lost = [held.gain[least] - held.gain[place] for place in places]
    chosen = next(at for at, each in zip(places, lost, strict=True) if each.mean() <= errors * error(each))
    return always(held.names[chosen], held)


def stacked(held: HeldOut, names: Sequence[str] = MEMBERS, lacking: bool = False, prior: float = 0.0) -> np.ndarray:
    """A mixture of the probabilities of some methods; `lacking`: also of those that val lacks a class for."""
    places = [at for at, name in enumerate(held.names) if name in names and (lacking or held.admitted[at])]
    weights = np.zeros(len(held.names))
    gain = held.gain[places]
    weights[places] = stacking.mixture_shares(np.exp(gain - gain.max(0)), np.ones(gain.shape[1]), prior)
    return weights


def _gain(held, weights):
    """The log-probability of the label by a mixture."""
    return np.log(np.maximum(weights @ np.exp(held.gain), measured.CLIP))


def gated(held: HeldOut) -> np.ndarray:
    """As given where the score test has p of 0.05 or more and it is within half a standard error of the least NLL."""
    least, as_given = within(0, held), always(AS_GIVEN, held)
    lost = _gain(held, least) - _gain(held, as_given)
    kept = held.p_value >= 0.05 and lost.mean() <= error(lost) / 2
    return as_given if kept else stacked(held, TRIO, lacking=True)


def _first_near(held, rivals):
    """The first whose NLL is within half a standard error of the least."""
    gains = [_gain(held, weights) for weights in rivals]
    lost = [max(gains, key=np.mean) - gain for gain in gains]
    return next(rival for rival, each in zip(rivals, lost, strict=True) if each.mean() <= error(each) / 2)


def careful(held: HeldOut) -> np.ndarray:
    """The rule before: the first near the best of as given (p of 0.05 or more), a temperature and a mixture."""
    return _first_near(held, [*_as_given(held), always(PLAIN, held), stacked(held)])


def chosen(held: HeldOut) -> np.ndarray:
    """The rule of `calibration.choose`: as given (p of 0.05 or more) where it is near the mixture, else the mixture."""
    return _first_near(held, [*_as_given(held), stacked(held, NOW, prior=stacking.PRIOR / held.classes)])


def _as_given(held):
    return [always(AS_GIVEN, held)] if held.p_value >= 0.05 else []


RULES: dict[str, Callable[[HeldOut], np.ndarray]] = {
    "none beats": plainest,
    "least": partial(within, 0),
    "half an error": partial(within, 0.5),
    "matrix scaling": partial(always, MATRIX),
    "temperature": partial(always, PLAIN),
    "three": partial(stacked, names=TRIO, lacking=True),
    "three, gated": gated,
    "mixture": stacked,
    "mixture or plainer": careful,
    "as given or mixture": chosen,
}


def scores(log_probs: np.ndarray, labels: np.ndarray, truth: np.ndarray | None) -> tuple[np.ndarray, list[float]]:
    """NLL of each example, and Brier score, accuracy and ECE; expected ones where the truth is known."""
    shares = np.eye(log_probs.shape[1])[labels] if truth is None else np.exp(np.float64(truth))
    probs, top = np.exp(log_probs), log_probs.argmax(1)
    nll = -(shares * np.maximum(log_probs, np.log(measured.CLIP))).sum(1)
    brier = np.square(probs).sum(1) - 2 * (shares * probs).sum(1) + 1
    right = shares[np.arange(len(top)), top]
    bins = np.minimum((15 * probs.max(1)).astype(int), 14)
    ece = np.abs(np.bincount(bins, probs.max(1) - right)).sum() / len(top)
    return nll, [float(brier.mean()), float(right.mean()), float(ece)]


def of_rules(found: Mapping[str, Any], labels: np.ndarray, truth: np.ndarray | None = None) -> dict[str, Any]:
    """NLL on test of each method, and of each rule NLL, Brier score, accuracy, ECE and how it does against temperature.

    That is 1 where its NLL is worse beyond noise (1.96 standard errors of the paired difference), -1 where better.
    """
    held, log_probs = held_out(found), np.float64(found["test"])
    plain, rules = scores(log_probs[held.names.index(PLAIN)], labels, truth)[0], {}
    for name, rule in RULES.items():
        weights = rule(held)
        used = np.flatnonzero(weights)
        mixed = log_probs[used[0]]  # of one method to the bit, so that it differs from itself by 0
        if len(used) > 1:
            mixed = logsumexp(log_probs[used], axis=0, b=weights[used, None, None])
        nll, others = scores(mixed, labels, truth)
        beyond = np.sign((nll - plain).mean()) * (abs((nll - plain).mean()) > Z * error(nll - plain))
        rules[name] = [float(nll.mean()), *(round(other, 4) for other in others), int(beyond)]
    nll = [scores(each, labels, truth)[0].mean() for each in log_probs]
    return {"nll": dict(zip(held.names, map(float, nll), strict=True)), "rules": rules}


# ---- sets: a function of the examples of val and a seed -> val, test, true log-probabilities of test or None

Splits = Callable[[int, int], tuple[measured.Half, measured.Half, np.ndarray | None]]


def _parted(pool: Callable[[int], measured.Half], examples: int, seed: int):
    logits, labels = pool(seed)
    val, test, _ = np.split(
        np.random.default_rng([seed, examples]).permutation(len(labels)), [examples, examples + TESTED]
    )
    return (logits[val], labels[val]), (logits[test], labels[test]), None


def _log_proba(model, x):
    if hasattr(model, "estimators_"):
        return np.asarray(calibration.log_probabilities(model.predict_proba(x), floor=0.5 / len(model.estimators_)))
    return np.maximum(model.predict_log_proba(x).astype(np.float32), FLOOR)


def _digits(model: Callable[[int], Any], noise: float, eight: bool, seed: int) -> measured.Half:
    images, digits = load_digits(return_X_y=True)
    labels = (digits == 8 if eight else digits).astype(np.int32)
    images = images + noise * np.random.default_rng(seed).standard_normal(images.shape)
    train, rest = np.split(np.random.default_rng(seed).permutation(len(labels)), [TRAINED])
    fitted = model(seed).fit(images[train], labels[train])
    return _log_proba(fitted, images[rest]), labels[rest]


@lru_cache(1)
def _posts(seed: int) -> measured.Half:
    counts, groups = two_classes.posts()
    rest, train = np.split(np.random.default_rng(0).permutation(len(groups)), [measured.MOST_EXAMPLES])
    model = MultinomialNB().fit(counts[train], groups[train])
    return log_softmax(_log_proba(model, counts[rest]), axis=1), groups[rest].astype(np.int32)


def _two(case: two_classes.Case, examples: int, seed: int):
    x, labels = case.table()
    train, rest = np.split(
        np.random.default_rng(seed).permutation(len(labels))[: two_classes.MOST],
        [min(len(labels), two_classes.MOST) // 3],
    )
    model = two_classes.fitted(case.model(), x[train], labels[train], seed)
    halves = np.split(rest, [examples])
    val, test = ((np.maximum(two_classes.logits_of(model, x[half]), FLOOR), labels[half]) for half in halves)
    return val, test, None


def _drawn(truth: str, classes: int, examples: int, seed: int):
    val, fresh, true = measured.drawn(truth, classes, examples, seed + 1000)
    fresh, true = (rows[: 2000 if classes == 100 else None] for rows in (fresh, true))
    return val, (fresh, true.argmax(1)), true


class Set(NamedTuple):
    """The sizes of val that are tried, and the splits."""

    sizes: tuple[int, ...]
    splits: Splits


def _classifiers():
    """scikit-learn's on noisy digits."""
    return {
        "naive Bayes": lambda seed: GaussianNB(),
        "forest": lambda seed: RandomForestClassifier(two_classes.TREES, random_state=seed),
        "logistic": lambda seed: make_pipeline(StandardScaler(), LogisticRegression(max_iter=300, C=10)),
        "MLP": lambda seed: make_pipeline(
            StandardScaler(), MLPClassifier(100, alpha=0, max_iter=300, random_state=seed)
        ),
    }


def sets(networks: Mapping[str, tuple[Path, ...]]) -> dict[tuple[str, str], Set]:
    """(kind, set) -> sizes of val and splits; networks are files of outputs by name."""
    made = {
        ("real", name): Set(SIZES, partial(_parted, lambda seed, at=at: measured.pooled(at)))
        for name, at in networks.items()
    }
    for name, model in _classifiers().items():
        made["real", f"digits, {name}"] = Set(
            SIZES[:2], partial(_parted, partial(_digits, model, two_classes.PIXEL_NOISE, False))
        )
    cases = {name: two_classes.CASES[name] for name in two_classes.cases()}
    if any("posts" in name for name in cases):
        made["posts", "posts, naive Bayes"] = Set(SIZES, partial(_parted, _posts))
    for truth in measured.TRUTHS:
        kind = "calibrated" if truth == "calibrated" else "truths"
        made |= {
            (kind, f"{truth}, {classes} classes"): Set(SIZES, partial(_drawn, truth, classes))
            for classes in measured.SPREAD
        }
    eight = partial(_digits, lambda seed: GaussianNB(), 0.0, True)
    made["two classes", "digits, 8 or not, naive Bayes"] = Set((200, 700), partial(_parted, eight))
    for name, case in cases.items():
        sizes = (100,) if name in SMALL else (100, 200, 700)
        made["two classes", name] = Set(sizes, partial(_two, case))
    for name in two_classes.cases(two_classes.CONFIRMING):
        sizes = (100,) if " or " in name and "digits" in name else (100, 200) if "cancer" in name else (100, 200, 700)
        made["confirming", name] = Set(sizes, partial(_two, two_classes.CONFIRMING[name]))
    return made


def of_set(kind: str, name: str, splits: Splits, examples: int, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Rows of random splits."""
    rows = []
    for seed in seeds:
        val, test, truth = splits(examples, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of outputs that look wrong, as a naive Bayes is
            found = of_rules(outputs(val, test[0], seed), test[1], truth)
        rows.append({"kind": kind, "set": name, "examples": examples, "seed": seed, **found})
    return rows
