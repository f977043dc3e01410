"""What a rule of choice costs: that of `calibration.compare`, two single methods, and a candidate, on the same sets.

A candidate is a function of `HeldOut` that gives a weight to each method's probabilities, from how these do on val: a
single method has weight 1. Where the truth is known NLL, Brier score and accuracy are expected ones, without noise of
labels.
"""

import argparse
import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_softmax, logsumexp
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from experiments.posthoc import measured, two_classes
from experiments.posthoc.measured import PLAIN
from focalgeo import calibration

RULE = "as given or mixture"  # that of `calibration.compare`
SIZES = (200, 1000, 5000)
FLOOR = -1e4  # of log-probabilities, where a classifier is surer than float32
SMALL = ("breast cancer, naive Bayes", "digits, 3 or 8, forest")  # sets
TRAINED, TESTED = 297, 5000  # examples of digits that a classifier is trained on, and most of test
Z = 1.96


class HeldOut(NamedTuple):
    """How each method does on val, each fold by a fit of the others; simplest method first."""

    names: tuple[str, ...]
    gain: np.ndarray  # log-probability of the label [methods, examples]
    admitted: np.ndarray  # bool [methods]: False for a fit that did not converge, or lacks examples of a class
    p_value: float  # of the score test of T = 1
    classes: int


Rule = Callable[[HeldOut], np.ndarray]


def alone(name: str, held: HeldOut) -> np.ndarray:
    """One method, whatever val says."""
    return np.eye(len(held.names))[held.names.index(name)]


RULES: dict[str, Rule] = {
    "matrix scaling": partial(alone, "structured_matrix_scaling"),
    "temperature": partial(alone, PLAIN),
}


def named(text: str) -> Rule:
    """The rule that a flag names as module:function."""
    module, _, name = text.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}: name it as module:function") from None


def held_out(compared: calibration.Comparison, names: Sequence[str], labels: np.ndarray) -> HeldOut:
    """What a rule may know of val."""
    log_probs = {held.method.name: np.float64(held.log_probs) for held in compared.held_out}
    of_label = np.array([log_probs[name][np.arange(len(labels)), labels] for name in names])
    admitted = np.array([name not in compared.choice.refused for name in names])
    gain, classes = np.maximum(of_label, np.log(measured.CLIP)), log_probs[PLAIN].shape[1]
    return HeldOut(tuple(names), gain, admitted, compared.choice.test.p_value, classes)


def error(difference: np.ndarray) -> float:
    """The standard error of a mean."""
    return float(difference.std(ddof=1) / np.sqrt(len(difference)))


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


def of_rules(
    val: measured.Half, test: measured.Half, truth: np.ndarray | None, rules: Mapping[str, Rule], seed: int
) -> dict[str, Any]:
    """NLL on test of each method, and of each rule NLL, Brier score, accuracy, ECE and how it does against temperature.

    That is 1 where its NLL is significantly worse (1.96 standard errors of the paired difference), -1 where better.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of outputs that look wrong, as a naive Bayes is
        compared = calibration.compare(val, **measured.FEW, seed=seed)
    log_probs = {fit.method.name: np.float64(fit.predict_log_proba(test[0])) for fit in compared.fits}
    predicted = {RULE: log_probs[compared.choice.fitted.method.name]}
    log_probs.pop("stacking")  # the mixture is a rule, and no method
    held, every = held_out(compared, [*log_probs], val[1]), np.array([*log_probs.values()])
    for name, rule in rules.items():
        weights = rule(held)
        used = weights > 0
        predicted[name] = logsumexp(every[used], axis=0, b=weights[used, None, None])
    plain, numbers = scores(log_probs[PLAIN], test[1], truth)[0], {}
    for name, each in predicted.items():
        nll, others = scores(each, test[1], truth)
        less = nll - plain
        beyond = np.sign(less.mean()) * (abs(less.mean()) > Z * error(less))
        numbers[name] = [float(nll.mean()), *(round(other, 4) for other in others), int(beyond)]
    nll = {name: float(scores(each, test[1], truth)[0].mean()) for name, each in log_probs.items()}
    return {"nll": nll, "rules": numbers}


# ---- sets: a function of the examples of val and a seed -> val, test, true log-probabilities of test or None

Splits = Callable[[int, int], tuple[measured.Half, measured.Half, np.ndarray | None]]


def _parted(pool: Callable[[int], measured.Half], examples: int, seed: int):
    logits, labels = pool(seed)
    order = np.random.default_rng([seed, examples]).permutation(len(labels))
    val, test, _ = np.split(order, [examples, examples + TESTED])
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
    order = np.random.default_rng(seed).permutation(len(labels))[: two_classes.MOST]
    train, rest = np.split(order, [len(order) // 3])
    model = two_classes.fitted(case.model(), x[train], labels[train], seed)
    halves = np.split(rest, [examples])
    val, test = ((np.maximum(two_classes.logits_of(model, x[half]), FLOOR), labels[half]) for half in halves)
    return val, test, None


def _drawn(truth: str, classes: int, examples: int, seed: int):
    val, fresh, true = measured.drawn(truth, classes, examples, seed + 1000)
    fresh, true = (rows[: 2000 if classes == 100 else None] for rows in (fresh, true))
    return val, (fresh, true.argmax(1)), true


CLASSIFIERS: dict[str, Callable[[int], Any]] = {  # scikit-learn's, of noisy digits
    "naive Bayes": lambda seed: GaussianNB(),
    "forest": lambda seed: RandomForestClassifier(two_classes.TREES, random_state=seed),
    "logistic": lambda seed: make_pipeline(StandardScaler(), LogisticRegression(max_iter=300, C=10)),
    "MLP": lambda seed: make_pipeline(StandardScaler(), MLPClassifier(100, alpha=0, max_iter=300, random_state=seed)),
}


def sets(networks: Mapping[str, tuple[Path, ...]]) -> dict[tuple[str, str], tuple[Sequence[int], Splits]]:
    """(kind, set) -> the sizes of val that are tried, and splits; networks are files of outputs by name."""
    made = {
        ("real", name): (SIZES, partial(_parted, lambda seed, at=at: measured.pooled(at)))
        for name, at in networks.items()
    }
    for name, model in CLASSIFIERS.items():
        pool = partial(_digits, model, two_classes.PIXEL_NOISE, False)
        made["real", f"digits, {name}"] = (SIZES[:2], partial(_parted, pool))
    cases = two_classes.cases()
    if any("posts" in name for name in cases):
        made["posts", "posts, naive Bayes"] = (SIZES, partial(_parted, _posts))
    for truth in measured.TRUTHS:
        kind = "calibrated" if truth == "calibrated" else "truths"
        for classes in measured.SPREAD:
            made[kind, f"{truth}, {classes} classes"] = (SIZES, partial(_drawn, truth, classes))
    eight = partial(_digits, CLASSIFIERS["naive Bayes"], 0.0, True)
    made["two classes", "digits, 8 or not, naive Bayes"] = ((200, 700), partial(_parted, eight))
    for name in cases:
        sizes = (100,) if name in SMALL else (100, 200, 700)
        made["two classes", name] = (sizes, partial(_two, two_classes.CASES[name]))
    return made


def of_set(
    of: Mapping[str, Any], splits: Splits, seeds: Sequence[int], rules: Mapping[str, Rule] = RULES
) -> list[dict[str, Any]]:
    """Rows of random splits."""
    return [{**of, "seed": seed, **of_rules(*splits(of["examples"], seed), rules=rules, seed=seed)} for seed in seeds]
