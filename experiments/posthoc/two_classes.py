"""Two classes: what `calibration.compare` chooses on val against scikit-learn's methods on the same val.

Eight sets, each with one of four classifiers; ten random splits of each into train, val and test of a third each.
"""

import functools
import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.frozen import FrozenEstimator
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from experiments.posthoc import measured
from focalgeo import calibration
from focalgeo.data import load_dataset

PEERS = ("sigmoid", "isotonic", "temperature")  # of CalibratedClassifierCV
MOST = 3000  # examples of a set
TREES, PIXEL_NOISE = 100, 6.0
Table = tuple[Any, np.ndarray]  # features [examples, ...], dense or sparse, and labels 0 and 1


def _digits(label: Callable[[np.ndarray], np.ndarray], kept: tuple[int, ...] = tuple(range(10))) -> Table:
    images, digits = load_digits(return_X_y=True)
    images = images + PIXEL_NOISE * np.random.default_rng(0).standard_normal(images.shape)
    rows = np.isin(digits, kept)
    return images[rows], label(digits[rows]).astype(np.int32)


@functools.cache
def _texts(name: str) -> Table:
    """How often each text holds each word, and labels."""
    data = load_dataset(name)
    parts = [getattr(data, split) for split in ("train", "val", "test")]
    if parts[0].x.ndim == 3:  # trees: a leaf is a token id and no child; the label is the root's
        texts = [[row[row[:, 0] > 0, 0] for row in part.x] for part in parts]
        labels = [[row[row >= 0][-1] for row in part.y] for part in parts]
    else:
        texts, labels = [[row[row > 1] for row in part.x] for part in parts], [part.y for part in parts]
    rows = [ids for part in texts for ids in part]
    ends = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    shape = len(rows), len(data.vocabulary)
    return csr_array((np.ones(ends[-1]), np.concatenate(rows), ends), shape=shape), np.concatenate(labels)


def posts() -> Table:
    """All of 20 Newsgroups, with labels 0 to 19."""
    return _texts(f"newsgroups:{_data()}/{_NEWS}")


def _newsgroups(*pair: int) -> Table:
    counts, groups = posts()
    rows = np.isin(groups, pair)
    return counts[rows], (groups[rows] == pair[1]).astype(np.int32)


def _sentences() -> Table:
    return _texts(f"sst:{_data()}/sst-trees.tar.xz")


def _data():
    return Path(os.environ.get("FOCALGEO_DATA") or "unset")


def _svm():
    return make_pipeline(TfidfTransformer(), LinearSVC())


class Case(NamedTuple):
    """A set with its classifier."""

    table: Callable[[], Table]
    model: Callable[[], Any]
    file: str = ""  # in FOCALGEO_DATA


_FOREST = functools.partial(RandomForestClassifier, TREES)
_NEWS, _TREES = "20news-bydate.tar.xz", "sst-trees.tar.xz"
CASES = {
    "breast cancer, naive Bayes": Case(lambda: load_breast_cancer(return_X_y=True), GaussianNB),
    "digits, odd or even, forest": Case(lambda: _digits(lambda digits: digits % 2), _FOREST),
    "digits, 5 or more, boosting": Case(lambda: _digits(lambda digits: digits >= 5), GradientBoostingClassifier),
    "digits, 3 or 8, forest": Case(lambda: _digits(lambda digits: digits == 8, (3, 8)), _FOREST),
    "posts on IBM or Mac, naive Bayes": Case(lambda: _newsgroups(3, 4), MultinomialNB, _NEWS),
    "posts on cars or motorcycles, SVM": Case(lambda: _newsgroups(7, 8), _svm, _NEWS),
    "sentences, naive Bayes": Case(_sentences, MultinomialNB, _TREES),
    "sentences, SVM": Case(_sentences, _svm, _TREES),
}


def cases() -> list[str]:
    """The sets whose data is there."""
    return [name for name, case in CASES.items() if not case.file or (_data() / case.file).exists()]


def fitted(model: Any, x: Any, labels: np.ndarray, seed: int) -> Any:
    """A classifier trained, by this seed where it has one."""
    if "random_state" in model.get_params():
        model.set_params(random_state=seed)
    return model.fit(x, labels)


def logits_of(model: Any, x: Any) -> np.ndarray:
    """A classifier's outputs as its user has them: a margin, votes or log-probabilities."""
    if hasattr(model, "decision_function"):
        margin = model.decision_function(x)
        return np.stack([0 * margin, margin], axis=1).astype(np.float32)
    if isinstance(model, RandomForestClassifier):
        return np.asarray(calibration.log_probabilities(model.predict_proba(x), floor=0.5 / TREES))
    return model.predict_log_proba(x).astype(np.float32)


def nll(log_probs: np.ndarray, labels: np.ndarray) -> float:
    """Of probabilities no less than `measured.CLIP`, in nats."""
    return measured.scores(np.asarray(log_probs), labels)["nll"]


def of_case(name: str, seeds: Iterable[int]) -> list[dict[str, Any]]:
    """NLL on test of the choice, of each method here and of scikit-learn's, all fitted on the same val."""
    case = CASES[name]
    (x, labels), rows = case.table(), []
    for seed in seeds:
        order = np.random.default_rng(seed).permutation(len(labels))[:MOST]
        train, val, test = (order[: len(order) // 3 * 3]).reshape(3, -1)
        model = fitted(case.model(), x[train], labels[train], seed)
        outputs = [(logits_of(model, x[half]), labels[half].astype(np.int32)) for half in (val, test)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of outputs that look wrong, as a naive Bayes is
            compared = calibration.compare(outputs[0], **measured.FEW, seed=seed)
            theirs = {
                f"scikit-learn {method}": CalibratedClassifierCV(FrozenEstimator(model), method=method)
                .fit(x[val], labels[val])
                .predict_proba(x[test])
                for method in PEERS
            }
        here = {fit.method.name: nll(fit.predict_log_proba(outputs[1][0]), outputs[1][1]) for fit in compared.fits}
        with np.errstate(divide="ignore"):
            here |= {method: nll(np.log(probs), outputs[1][1]) for method, probs in theirs.items()}
        held_out = {held.method.name: nll(held.log_probs, outputs[0][1]) for held in compared.held_out}
        least = min((fit.method.name for fit in compared.fits if fit.converged), key=held_out.get)
        of = {"set": name, "seed": seed, "examples": len(val), "chosen": compared.choice.fitted.method.name}
        rows.append(of | {"least": least, "nll": here})
    return rows
