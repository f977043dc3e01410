"""What folds of equal class shares do to the held-out NLL of methods that move classes: it comes out too good.

A fold that is stratified by label has the class shares of the examples that are fitted on, which fresh examples have
only by chance. Truth: softmax(logits / 1.3), so that temperature scaling is right and the others can only lose.
"""

from pathlib import Path

import numpy as np

from experiments.posthoc import simulation
from experiments.posthoc.measured import missing, remember
from focalgeo import calibration

METHODS = ("temperature_scaling", "vector_scaling", "structured_matrix_scaling")
CELLS = ((10, 1000), (100, 1000))  # classes, examples
NUM_FOLDS, REPETITIONS = 5, 10


def stratified(labels: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Folds that differ by at most one example of any class."""
    shuffled = generator.permutation(len(labels))
    fold = np.empty(len(labels), np.int64)
    fold[shuffled[np.argsort(labels[shuffled], kind="stable")]] = np.arange(len(labels)) % NUM_FOLDS
    return fold


def unstratified(labels: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Folds at random, whatever the labels."""
    return generator.permutation(len(labels)) % NUM_FOLDS


def held_out_nll(name: str, logits: np.ndarray, labels: np.ndarray, fold: np.ndarray) -> float:
    """Mean NLL of each fold by a fit of the others."""
    log_probs = np.empty_like(logits)
    for index in range(NUM_FOLDS):
        fitted = calibration.fit(name, logits, labels, mask=fold != index)
        log_probs[fold == index] = np.asarray(fitted.predict_log_proba(logits))[fold == index]
    return float(calibration.nll(log_probs, labels))


def measured(classes: int, examples: int, seed: int) -> dict:
    """Held-out NLL by both kinds of folds, and NLL of a fit of four fifths on fresh examples, of each method."""
    generator = np.random.default_rng([seed, classes, examples])
    true = simulation.KINDS["temperature"].drawn(classes, generator)
    counts = examples, simulation.FRESH
    logits, fresh = (simulation.SPREAD[classes] * generator.standard_normal((count, classes)) for count in counts)
    labels = (true(logits) + generator.gumbel(size=logits.shape)).argmax(1).astype(np.int32)
    logits, probs = np.float32(logits), np.exp(true(fresh))
    kinds = {kind.__name__: kind(labels, generator) for kind in (stratified, unstratified)}
    found = {kind: {name: held_out_nll(name, logits, labels, fold) for name in METHODS} for kind, fold in kinds.items()}
    fits = {name: calibration.fit(name, logits, labels, mask=kinds["unstratified"] != 0) for name in METHODS}
    log_probs = {name: np.asarray(fit.predict_log_proba(np.float32(fresh))) for name, fit in fits.items()}
    return found | {"fresh": {name: float(-(probs * each).sum(1).mean()) for name, each in log_probs.items()}}


def measure(path: Path) -> None:
    """Measure what `path` does not have yet."""
    keys = ({"classes": k, "examples": n, "seed": seed} for k, n in CELLS for seed in range(REPETITIONS))
    for key in missing(path, keys):
        remember(path, key, measured(**key))
