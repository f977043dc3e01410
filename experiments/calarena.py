"""CalArena's door: our methods as its runner calls them, and all of them over its HDF5 files where they are.

The runner takes, in its custom_calibrators.py, any object with fit(p, y) and predict_proba(p):

    from experiments.calarena import Calibrator
    CUSTOM_CALIBRATORS = {"focalgeo": lambda: Calibrator()}

Its files hold, in a group dataset/model, probas_cal, labels_cal, probas_test and labels_test. Source: Berta,
Holzmueller, Bach & Jordan, arXiv 2605.30188.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from experiments.question import Parser, reported
from focalgeo import calibration, checks
from focalgeo.calibration import comparison, fits, fitting, metric_rows
from focalgeo.calibration.methods import Fitted
from focalgeo.rows import Difference
from focalgeo.types import Array, InputError, floored_log

CHOICE, AS_GIVEN = "choice", "uncalibrated"
NUM_FOLDS, NUM_BINS = 5, 15
ARRAYS = ("probas_cal", "labels_cal", "probas_test", "labels_test")


class Calibrator:
    """A method of METHODS by its name, or what is chosen among the default ones, for CalArena's probabilities.

    p is float [examples, classes], or of two classes P(1) as [examples] or [examples, 1]. p = 0 is taken for the least
    float32 of full precision.
    """

    def __init__(self, method: str = CHOICE) -> None:
        checks.check_choice("method", method, (CHOICE, *calibration.METHODS))
        self.method = method

    def fit(self, p: Array, y: Array) -> "Calibrator":
        """Fit to held-out probabilities and int labels [examples] from 0 on."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fits at an end: the runner has many
            logits, labels = scores(p), np.asarray(y).ravel().astype(np.int32)
            self.fitted = (chosen if self.method == CHOICE else self._fitted)(logits, labels)
        return self

    def _fitted(self, logits, labels):
        return calibration.fit(self.method, logits, labels)

    def predict_proba(self, p: Array) -> np.ndarray:
        """Calibrated probabilities, float64 [examples, classes]; of two classes two columns."""
        probs = np.exp(np.asarray(self.fitted.predict_log_proba(scores(p)), np.float64))
        return probs / probs.sum(axis=1, keepdims=True)


def scores(p: Array) -> np.ndarray:
    """Log-probabilities [examples, classes], float32."""
    p = np.asarray(p, np.float64)
    if p.ndim == 1 or p.shape[1] == 1:
        p = np.stack([1 - p.ravel(), p.ravel()], axis=1)
    return floored_log(p).astype(np.float32)


def chosen(logits: Array, labels: Array) -> Fitted:
    """What `calibration.compare` chooses by default, with normal intervals in place of a bootstrap's."""
    methods = comparison.checked_methods(
        None, criterion="nll", criteria=(), metrics=(), trained_gamma=None, num_classes=logits.shape[1]
    )
    examples = checks.predicted_logits(logits, labels)
    settings = fitting.checked_settings({"criteria": ("nll",)})
    single = {name: method for name, method in methods.items() if name != "stacking"}
    fitted = fitting.fit_all(single, examples, settings)
    starts = {(fit.method.name, fit.criterion): fit.params for fit in fitted}
    fold = fitting.folds(labels, min(NUM_FOLDS, len(labels)), 0)
    held_out = fitting.cross_fit(methods, examples, settings | {"starts": starts}, fold)
    known = {"fitted": fitted, "held_out": fitting.of_members(held_out)}
    fitted += fitting.fit_all({"stacking": methods["stacking"]}, examples, settings | known)
    losses = [-held.log_probs[np.arange(len(labels)), labels].astype(np.float64) for held in held_out]
    rows = []
    for index, other in metric_rows.comparisons(held_out, "nll"):
        less, against = losses[index] - losses[other], held_out[other]
        error = max(less.std(ddof=1) / np.sqrt(len(less)), 1e-12)
        mean, half = less.mean(), stats.norm.ppf(0.975) * error
        numbers = mean, mean - half, mean + half, 2 * stats.norm.sf(abs(mean) / error), len(less)
        tags = "cross_fit", held_out[index].method.name, against.method.name, held_out[index].criterion
        by = None if against.criterion == held_out[index].criterion else against.criterion
        rows.append(Difference("nll_difference", *map(float, numbers[:4]), numbers[4], *tags, by))
    absent = len(np.unique(labels)) < logits.shape[1]
    return calibration.choose(fitted, rows, criterion="nll", test=fits.score_test(*examples), absent=absent).fitted


def measured(probs: Array, labels: Array) -> dict[str, float]:
    """NLL in nats, Brier score, ECE in 15 bins and accuracy."""
    n, confidence, right = len(labels), probs.max(axis=1), probs.argmax(axis=1) == labels
    true = probs[np.arange(n), labels]
    bins = np.minimum((NUM_BINS * confidence).astype(int), NUM_BINS - 1)
    return {
        "nll": float(-np.log(np.maximum(true, np.finfo(np.float32).tiny)).mean()),
        "brier": float((np.square(probs).sum(axis=1) - 2 * true + 1).mean()),
        "ece": float(np.abs(np.bincount(bins, confidence - right)).sum() / n),
        "accuracy": float(right.mean()),
    }


def run(path: Path, methods: list[str], out: Path) -> None:
    """Every method on every experiment of the file that the table `out` has not; written after each experiment."""
    try:
        import h5py
    except ImportError as error:
        raise InputError("CalArena's files need h5py: pip install h5py") from error
    done = pd.read_csv(out) if out.exists() else pd.DataFrame(columns=["dataset", "model", "method"])
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise InputError(f"cannot read {path} as HDF5: {error}; fetch it anew") from error
    with file:
        names = [f"{dataset}/{model}" for dataset, group in file.items() for model in group]
        for name in names:
            if missing := [array for array in ARRAYS if array not in file[name]]:
                raise InputError(f"{path}: {name} has no {missing[0]}: give a file of CalArena's")
            dataset, _, model = name.partition("/")
            here = done[(done.dataset.astype(str) == dataset) & (done.model.astype(str) == model)]
            rows, left = [], [method for method in methods if method not in set(here.method)]
            p_cal, y_cal, p_test, y_test = (file[name][array][:] for array in ARRAYS)
            for method in left:
                print(f"{name}, {method}", file=sys.stderr, flush=True)
                began = time.perf_counter()
                probs = Calibrator(method).fit(p_cal, y_cal).predict_proba(p_test)
                row = {"dataset": dataset, "model": model, "method": method, "examples": len(y_cal)}
                row |= {"classes": probs.shape[1], "seconds": time.perf_counter() - began}
                rows.append(row | measured(probs, y_test.ravel()))
            if rows:
                done = pd.concat([done, pd.DataFrame(rows)], ignore_index=True)
                part = out.with_name(out.name + ".part")
                done.to_csv(part, index=False)
                part.replace(out)


def main() -> None:
    """Run the methods asked for over a file, and print their mean scores."""
    parser = Parser("python -m experiments.calarena", description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help="of CalArena's, such as tabrepo-binary.h5")
    parser.add_argument("--methods", nargs="+", choices=(CHOICE, *calibration.METHODS), metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("runs/calarena.csv"), help="table that is added to")
    flags: argparse.Namespace = parser.parse_args()
    with reported():
        flags.out.parent.mkdir(parents=True, exist_ok=True)
        run(flags.file, flags.methods or [AS_GIVEN, "temperature_scaling", CHOICE], flags.out)
        print(pd.read_csv(flags.out).groupby("method")[["nll", "brier", "ece", "accuracy", "seconds"]].mean().round(4))


if __name__ == "__main__":
    main()
