"""CalArena's door: our methods as its runner calls them, and all of them over its HDF5 files where they are.

The runner takes, in its custom_calibrators.py, a function without arguments that makes an object; for each experiment
it makes one, and calls fit(p_cal, y_cal) and predict_proba(p_test):

    from experiments.calarena import Calibrator
    CUSTOM_CALIBRATORS = {"focalgeo": lambda: Calibrator()}

Its files hold, in a group dataset/model, probas_cal, labels_cal, probas_test and labels_test: float32 [examples,
classes], of two classes P(1) [examples], and int32 [examples]. Source: Berta, Holzmueller, Bach & Jordan, arXiv
2605.30188.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from experiments.question import Parser, reported
from focalgeo import calibration, checks
from focalgeo.calibration.fits import focal as fits
from focalgeo.calibration.methods import Fitted, fitting
from focalgeo.calibration.study import comparison, metric_rows
from focalgeo.rows import Difference
from focalgeo.types import OFF_ONE, Array, InputError, floored_log

CHOICE, AS_GIVEN = "choice", "uncalibrated"
NAMES = (CHOICE, *calibration.usable(calibration.METHODS, {}, 2))  # those that need no gamma of the training
NUM_FOLDS, NUM_BINS = 5, 15
CLIP = 1e-7  # to which from 0 and 1 the benchmark's ECE takes probabilities
ARRAYS = ("probas_cal", "labels_cal", "probas_test", "labels_test")
KEYS = ["dataset", "model", "method"]  # of a row


class Calibrator:
    """A method of METHODS by its name, or what is chosen among the default ones, for CalArena's probabilities.

    p is float [examples, classes], or of two classes P(1) as [examples] or [examples, 1]. p = 0 is taken for the least
    float32 of full precision.
    """

    def __init__(self, method: str = CHOICE) -> None:
        checks.check_choice("method", method, NAMES)
        self.method = method

    def fit(self, p: Array, y: Array) -> "Calibrator":
        """Fit to held-out probabilities and int labels [examples] from 0 on; the labels may lack a class."""
        logits = scores(p)
        labels = np.asarray(checks.label_array(np.ravel(y), logits, "p")).astype(np.int32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fits at an end: the runner has many
            self.fitted = chosen(logits, labels) if self.method == CHOICE else self._fitted(logits, labels)
        return self

    def _fitted(self, logits, labels):
        return calibration.fit(self.method, logits, labels)

    def predict_proba(self, p: Array) -> np.ndarray:
        """Calibrated probabilities, float64 [examples, classes]; of two classes two columns."""
        with np.errstate(under="ignore"):
            probs = np.exp(np.asarray(self.fitted.predict_log_proba(scores(p)), np.float64))
        return probs / probs.sum(axis=1, keepdims=True)


def columns(p: Array) -> np.ndarray:
    """Probabilities of all classes, float64 [examples, classes]; of two classes P(1) may be given alone."""
    p = np.asarray(checks.array_of("p", p), np.float64)
    if p.ndim == 1 or p.shape[1:] == (1,):
        p = np.stack([1 - p.ravel(), p.ravel()], axis=1)
    checks.check_array("p", p, shape=(None, None))
    checks.check_distribution("p", p, off=OFF_ONE)
    return p


def scores(p: Array) -> np.ndarray:
    """Log-probabilities [examples, classes], float32."""
    return floored_log(columns(p))


def chosen(logits: Array, labels: Array) -> Fitted:
    """What `calibration.compare` chooses by default, with normal intervals in place of a bootstrap's."""
    methods = comparison.checked_methods(
        None, criterion="nll", criteria=(), metrics=(), trained_gamma=None, num_classes=logits.shape[1]
    )
    examples = checks.predicted_logits(logits, labels)
    settings = fitting.checked_settings({"criteria": ("nll",)})
    fold = fitting.folds(labels, min(NUM_FOLDS, len(labels)), 0)
    fitted, held_out = fitting.fit_and_cross_fit(methods, examples, settings, fold)
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
    """NLL in nats, Brier score, ECE and accuracy as the benchmark measures them, of probabilities [examples, classes].

    NLL -log p_y, p no less than the least float32 of full precision. Brier score sum_k (p_k - [k = y])^2, 0 to 2. ECE
    in 15 bins of equal width that are closed on the left: of two classes of P(1) as a prediction of label 1, of more
    that of the predicted class; a class that no label has is left out first. On an edge float32 may fall elsewhere.
    """
    n, true = len(labels), probs[np.arange(len(labels)), labels]
    kept, places = np.unique(labels, return_inverse=True)
    clipped = np.clip(probs[:, kept], CLIP, 1 - CLIP)
    clipped /= clipped.sum(axis=1, keepdims=True)
    two = len(kept) == 2
    p, event = (clipped[:, 1], places == 1) if two else (clipped.max(axis=1), clipped.argmax(axis=1) == places)
    bins = np.minimum((NUM_BINS * p).astype(int), NUM_BINS - 1)
    return {
        "nll": float(-np.log(np.maximum(true, np.finfo(np.float32).tiny)).mean()),
        "brier": float((np.square(probs).sum(axis=1) - 2 * true + 1).mean()),
        "ece": float(np.abs(np.bincount(bins, p - event)).sum() / n),
        "accuracy": float((probs.argmax(axis=1) == labels).mean()),
    }


def read(file: Any, name: str) -> list[np.ndarray]:
    """The arrays of an experiment dataset/model, checked: probabilities of all classes, and labels."""
    if missing := [array for array in ARRAYS if f"{name}/{array}" not in file]:
        raise InputError(f"it has no {missing[0]}: give a file of CalArena's")
    arrays = []
    for probas, labels in (ARRAYS[:2], ARRAYS[2:]):
        try:
            p, y = (file[f"{name}/{array}"][()] for array in (probas, labels))
        except (OSError, RuntimeError, TypeError, ValueError) as error:  # a damaged part; a group in place of an array
            raise InputError(f"cannot read {probas}, {labels}: {error}; fetch the file anew") from error
        try:
            p = columns(p)
            arrays += [p, checks.label_array(np.ravel(y), p)]
        except InputError as error:
            raise InputError(f"{probas}, {labels}: {error}") from error
    return arrays


def fitted_row(method: str, p_cal: Array, y_cal: Array, p_test: Array, y_test: Array) -> dict[str, Any]:
    """What is chosen, seconds of the fit, those of fit and prediction as the benchmark counts, and scores on test.

    The first fit of a shape compiles, and its seconds hold that.
    """
    began = time.perf_counter()
    calibrator = Calibrator(method).fit(p_cal, y_cal)
    fitted = time.perf_counter()
    probs = calibrator.predict_proba(p_test)
    ended = time.perf_counter()
    row = {"chosen": calibrator.fitted.method.name, "examples": len(y_cal), "classes": probs.shape[1]}
    return row | {"fit_seconds": fitted - began, "seconds": ended - began} | measured(probs, y_test)


def table(out: Path) -> pd.DataFrame:
    """The rows that `out` has; none where it is not there."""
    try:
        done = pd.read_csv(out, dtype=dict.fromkeys(KEYS, str), keep_default_na=False)
    except FileNotFoundError:
        return pd.DataFrame(columns=KEYS)
    except ValueError as error:
        raise InputError(f"{out} is no table of this command ({error}): move it away") from error
    if missing := [name for name in KEYS if name not in done]:
        raise InputError(f"{out} is no table of this command, it has no column {missing[0]}: move it away")
    return done


def run(path: Path, methods: list[str], out: Path) -> list[str]:
    """Every method on every experiment of the file that the table `out` has not; written after each experiment.

    What cannot be done is left out: the lines returned say why.
    """
    try:
        import h5py
    except ImportError as error:
        raise InputError("CalArena's files need h5py: pip install h5py") from error
    done, failed = table(out), []
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise InputError(f"cannot read {path} as HDF5: {error}; fetch it anew") from error
    with file:
        groups = {dataset: group for dataset, group in file.items() if isinstance(group, h5py.Group)}
        names = [(dataset, model) for dataset, group in groups.items() for model in group]
        if not names:
            raise InputError(f"{path} has no groups dataset/model: give a file of CalArena's")
        for dataset, model in names:
            there = set(done.method[(done.dataset == dataset) & (done.model == model)])
            left, rows, where = [method for method in methods if method not in there], [], f"{dataset}/{model}"
            if not left:
                continue
            try:
                arrays = read(file, where)
            except InputError as error:
                failed.append(f"{path}: {where}: {error}")
                continue
            before = {f"{name}_before": value for name, value in measured(*arrays[2:]).items()}
            for method in left:
                print(f"{where}, {method}", file=sys.stderr, flush=True)
                try:
                    row = fitted_row(method, *arrays)
                except InputError as error:
                    failed.append(f"{path}: {where}, {method}: {error}")
                else:
                    rows.append({"dataset": dataset, "model": model, "method": method} | row | before)
            if rows:
                done = pd.concat([done, pd.DataFrame(rows)], ignore_index=True)
                part = out.with_name(out.name + ".part")
                done.to_csv(part, index=False)
                part.replace(out)
    return failed


def main() -> None:
    """Run the methods asked for over a file, and print their mean scores; 2 where something could not be done."""
    parser = Parser("python -m experiments.calarena", description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help="of CalArena's, such as tabrepo-binary.h5")
    parser.add_argument("--methods", nargs="+", choices=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--out", type=Path, default=Path("runs/calarena.csv"), help="table that is added to")
    flags: argparse.Namespace = parser.parse_args()
    with reported():
        flags.out.parent.mkdir(parents=True, exist_ok=True)
        failed = run(flags.file, flags.methods or [AS_GIVEN, "temperature_scaling", CHOICE], flags.out)
        done = table(flags.out)
        if len(done):
            print(done.groupby("method")[["nll", "brier", "ece", "accuracy", "seconds"]].mean().round(4))
        for line in failed:
            print(line, file=sys.stderr)
        if failed:
            sys.exit(2)


if __name__ == "__main__":
    main()
