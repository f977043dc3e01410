"""What is measured: methods and the choice, on random halves of predictions; examples of a known truth.

Truth: logits at random and labels drawn from a map of them, and 10,000 other rows with their true log-probabilities.
"""

import functools
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy.special import log_softmax

from experiments import peers, timing
from focalgeo import calibration
from focalgeo.data.logits_files import Keys, read_outputs

MOST_EXAMPLES = 10_000  # of each network, so that the halves of all are of one size
FILES = {"Wide ResNet": "logits/wide-resnet-16-4-cifar100.npz", "DenseNet": "logits/densenet-cifar100.npz"}
OWN = "small CNN"
PLAIN = peers.PLAIN
COMPARED = ("nll", "brier", "accuracy", "ece")
CLIP = float(np.finfo(np.float32).eps)  # below it scikit-learn's log_loss of float32 probabilities does not go
NUM_RESAMPLES, FRESH = 1000, 10_000
FEW = {"criteria": ("nll",), "metrics": ("nll", "accuracy"), "num_resamples": 200}  # of a comparison
SPREAD = {3: 2.0, 10: 4.0, 100: 6.0}  # of the logits, by classes: a calibrated model is right 70 to 75 times in 100
TEMPERATURE, GAMMA, SCALE_SPREAD, BIAS_SPREAD = 1.3, 2.0, 0.2, 0.5
TRUTHS = ("calibrated", "temperature", "focal map", "classes")  # what labels are drawn from
Half = tuple[np.ndarray, np.ndarray]  # logits [examples, classes] that are log-probabilities, and labels [examples]


def sources(predictions: Path | None, own: str = OWN) -> dict[str, tuple[Path, ...]]:
    """The files of each network that are there: in the folder FOCALGEO_DATA, and those of a run of the main job."""
    data = Path(os.environ.get("FOCALGEO_DATA") or "unset")
    files = {name: (data / path,) for name, path in FILES.items()}
    if predictions is not None:
        files[own] = (predictions / "val.npz", predictions / "test.npz")
    return {name: paths for name, paths in files.items() if all(path.exists() for path in paths)}


@functools.lru_cache(maxsize=4)
def pooled(paths: tuple[Path, ...]) -> Half:
    """All examples of some files."""
    parts = [read_outputs(str(path), Keys(), where=path.stem) for path in paths]
    log_probs = log_softmax(np.concatenate([part.logits for part in parts]).astype(np.float64), axis=1)
    return log_probs.astype(np.float32), np.concatenate([part.labels for part in parts])


def halves(paths: tuple[Path, ...], seed: int) -> list[Half]:
    """A split of at most MOST_EXAMPLES of the examples, to fit on and to measure on."""
    logits, labels = pooled(paths)
    order = np.random.default_rng(seed).permutation(len(labels))[:MOST_EXAMPLES]
    return [(logits[half], labels[half]) for half in np.array_split(order, 2)]


def scores(log_probs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """NLL in nats, ECE of 15 bins, Brier score and accuracy; and what share of the labels has a probability of 0.

    The NLL is of probabilities no less than CLIP: isotonic regression and histograms say 0 of labels that come.
    """
    log_probs = np.asarray(log_probs, np.float64)
    of_label = log_probs[np.arange(len(labels)), labels]
    return {
        "nll": float(-np.maximum(of_label, np.log(CLIP)).mean()),
        "ece": float(calibration.ece(log_probs.astype(np.float32), labels)),
        "brier": float((np.square(np.exp(log_probs)).sum(1) - 2 * np.exp(of_label) + 1).mean()),
        "accuracy": float((log_probs.argmax(1) == labels).mean()),
        "zeros": float(np.isneginf(of_label).mean()),
    }


def method_names() -> list[str]:
    """The methods that can be fitted without knowing how a network was trained, simplest first."""
    return list(calibration.usable(calibration.METHODS, {}, 100))


def fitted(name: str, val: Half) -> Callable:
    """A function from logits to log-probabilities: a peer's, or by the method here fitted by NLL."""
    if name in peers.PEERS:
        return peers.fitted(peers.PEERS[name], *val)
    fitted = calibration.fit(name, *val)
    jax.block_until_ready(fitted.params)
    return fitted.predict_log_proba


def of_splits(
    paths: tuple[Path, ...], seeds: Iterable[int], of: dict[str, str], measure: Callable[..., list[dict]]
) -> list[dict[str, Any]]:
    """What is measured of each split: rows of its halves and seed."""
    rows = []
    for seed in seeds:
        rows += [{**of, "seed": seed, **row} for row in measure(*halves(paths, seed), seed)]
    return rows


def of_method(method: str, val: Half, test: Half, seed: int) -> list[dict[str, Any]]:
    """Scores on the second half of a method fitted on the first, and the processor seconds of its fit."""
    row = {"version": timing.version(peers.PEERS[method].package)} if method in peers.PEERS else {}
    try:
        began = time.process_time()
        predict = fitted(method, val)
        row["processor_seconds"] = time.process_time() - began
        return [scores(predict(test[0]), test[1]) | row]
    except Exception as error:  # whatever a library raises is its answer
        if method not in peers.PEERS:
            raise
        return [{"error": f"{type(error).__name__}: {error}".splitlines()[0]} | row]


def less(log_probs: Any, against: Any, labels: np.ndarray, seed: int) -> dict[str, list[float]]:
    """Metrics of one method minus those of another, with their 95% intervals by the bootstrap."""
    metrics = functools.partial(calibration.all_metrics, names=COMPARED)
    pairs = calibration.paired_bootstrap(metrics, log_probs, against, labels, jax.random.key(seed), NUM_RESAMPLES)
    return {name: [float(pair.difference), float(pair.low), float(pair.high)] for name, pair in pairs.items()}


def choice(val: Half, test: Half, seed: int) -> list[dict[str, Any]]:
    """The method chosen on the first half, and its differences to the plain ones on the second."""
    compared = calibration.compare(val, criteria=("nll",), metrics=("nll",), seed=seed)
    of_test = {fit.method.name: fit.predict_log_proba(test[0]) for fit in compared.fits}
    chosen = compared.choice.fitted.method.name
    others = [name for name in ("uncalibrated", PLAIN) if name != chosen]
    against = {name: less(of_test[chosen], of_test[name], test[1], seed) for name in others}
    return [{"chosen": chosen, "against": against}]


# ---- where the truth is known


def drawn(truth: str, classes: int, examples: int, seed: int) -> tuple[Half, np.ndarray, np.ndarray]:
    """Examples, and fresh logits with their true log-probabilities."""
    generator = np.random.default_rng([seed, classes, examples])
    scales, biases = 1 / TEMPERATURE if truth == "temperature" else 1.0, 0.0
    if truth == "classes":
        scales = np.exp(SCALE_SPREAD * generator.standard_normal(classes))
        biases = BIAS_SPREAD * generator.standard_normal(classes)

    def true(logits):
        log_probs = log_softmax(logits, axis=1)
        if truth == "focal map":  # what a model minimises the focal loss to is q; its truth is the focal map of q
            return np.asarray(calibration.focal_calibration(log_probs, GAMMA), np.float64)
        return log_softmax(scales * log_probs + biases, axis=1)

    logits, fresh = (SPREAD[classes] * generator.standard_normal((count, classes)) for count in (examples, FRESH))
    labels = (true(logits) + generator.gumbel(size=logits.shape)).argmax(1).astype(np.int32)
    return (np.float32(logits), labels), np.float32(fresh), true(fresh)
