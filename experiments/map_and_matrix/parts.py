"""The NLL in two parts, right or wrong and which other class, and two errors, of every method on the same examples."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logsumexp
from sklearn.isotonic import IsotonicRegression

from experiments import cells
from experiments.writing import rounded
from focalgeo import calibration, records
from focalgeo.data.logits_files import Keys, read_outputs
from focalgeo.types import InputError

METHODS = {  # name here -> method
    "T": "temperature_scaling",
    "γ, T": "focal_temperature_scaling",
    "T, classes": "vector_scaling",
    "γ, T, classes": "focal_vector_scaling",
}
LOSSES = ("ce", "fl3")  # of the cells


def of_halves(path: Path, splits: int) -> list[dict[str, Any]]:
    """A run for each random half of a file of outputs: one half fits, the other tests."""
    outputs = read_outputs(str(path), Keys(), where=path.stem)
    logits, labels = outputs.logits, outputs.labels
    found = []
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(labels))
        val, test = ((logits[half], labels[half]) for half in np.array_split(order, 2))
        found.append({"set": path.stem, "kind": "halves", "seed": seed, "parts": measured(val, test)})
    return rounded(found, 5)


def of_cells(folder: Path) -> Iterator[dict[str, Any]]:
    """A run for each finished cell of LOSSES below the folder that `python -m experiments.cells` trained into.

    Raises:
        InputError: there is none.
    """
    every = (cell for task in cells.TASKS for cell in cells.cells([task], LOSSES, None))
    there = [cell for cell in every if (cell.workdir(folder) / "predictions" / "test.npz").exists()]
    if not there:
        raise InputError(
            f"{folder}: holds no cell of {', '.join(LOSSES)}: name the --out of python -m experiments.cells"
        )
    for cell in there:
        read = [records.read_predictions(cell.workdir(folder), split) for split in ("val", "test")]
        val, test = ((found.logits, found.labels) for found in read)
        name = f"{cells.TASKS[cell.task].title}, {cells.LOSSES[cell.loss]}"
        yield rounded({"set": name, "kind": "seeds", "seed": cell.seed, "parts": measured(val, test)}, 5)


def measured(val: tuple, test: tuple) -> dict[str, dict[str, float]]:
    """Method -> number -> value on test, after a fit on val by NLL."""
    top = np.asarray(test[0]).argmax(-1)  # of the outputs as given, whatever a method predicts
    found = {"as given": numbers(calibration.temperature_scaling(test[0], 1.0), test[1], top)}
    for name, method in METHODS.items():
        fitted = calibration.fit(method, *val)
        found[name] = numbers(fitted.predict_log_proba(test[0]), test[1], top)
    return found


def numbers(log_probs: Any, labels: np.ndarray, top: np.ndarray) -> dict[str, float]:
    """The parts of the NLL, in nats, and two errors.

    With c a fixed class of each example, -log q_y = [-log q_c if y = c, else -log(1 - q_c)] + [0 if y = c, else
    -log(q_y / (1 - q_c))]: whether c is right, and which class it is else. The sum is exact.

    confidence: how much of "right or wrong" the best increasing map of q_c would remove, fitted to these examples.
    class shares: sum over classes of f log(f / mean q), f the share of the labels: 0 where the mean probability of
    every class is its share.
    """
    log_probs = np.asarray(log_probs, np.float64)
    rows = np.arange(len(labels))
    others = log_probs.copy()
    others[rows, top] = -np.inf
    right, log_top, log_rest = labels == top, log_probs[rows, top], logsumexp(others, axis=-1)
    first = -np.where(right, log_top, log_rest)
    return {
        "nll": float(-log_probs[rows, labels].mean()),
        "right or wrong": float(first.mean()),
        "which else": float((-log_probs[rows, labels] - first).mean()),
        "confidence": float(first.mean() - _entropy(_best_map(log_top - log_rest, right))),
        "class shares": _divergence(np.bincount(labels, minlength=log_probs.shape[-1]) / len(labels), log_probs),
    }


def _best_map(log_odds: np.ndarray, right: np.ndarray) -> np.ndarray:
    return IsotonicRegression(y_min=0, y_max=1).fit_transform(log_odds, right.astype(float))


def _entropy(shares: np.ndarray) -> float:
    """Mean of -f log f - (1 - f) log(1 - f), which is the NLL of shares that an increasing map fits."""
    inside = shares[(shares > 0) & (shares < 1)]
    return float(-(inside * np.log(inside) + (1 - inside) * np.log1p(-inside)).sum() / len(shares))


def _divergence(shares: np.ndarray, log_probs: np.ndarray) -> float:
    there = shares > 0
    return float((shares[there] * np.log(shares[there] / np.exp(log_probs).mean(0)[there])).sum())
