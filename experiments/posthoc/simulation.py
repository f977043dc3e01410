"""How often the choice is right where the truth is known: logits at random, and labels drawn from a map of them.

Four truths, each mended by one method and by nothing plainer. The excess NLL is that of true probabilities on 10,000
other rows, so it has no noise of labels: 0 is the truth itself.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import log_softmax

from experiments.posthoc.measured import missing, remember
from focalgeo import calibration

CLASSES = (3, 10, 100)
EXAMPLES = (300, 1000, 5000)
SPREAD = {3: 2.0, 10: 4.0, 100: 6.0}  # of the logits: a calibrated model then is right 70 to 75 times in 100
BLOCK = 10  # repetitions that are measured and remembered together
LONG = 15_000  # numbers in the logits, above which fewer repetitions are made
FRESH = 10_000
TEMPERATURE, GAMMA = 1.3, 2.0
SCALE_SPREAD, BIAS_SPREAD = 0.2, 0.5


Truth = Callable[[np.ndarray], np.ndarray]  # from logits [examples, classes] to true log-probabilities


class Kind(NamedTuple):
    """A kind of truth: the plainest method that mends a model with it, and how one is drawn."""

    right: str
    drawn: Callable[[int, np.random.Generator], Truth]


def _calibrated(classes: int, generator: np.random.Generator) -> Truth:
    return lambda logits: log_softmax(logits, axis=1)


def _hot(classes: int, generator: np.random.Generator) -> Truth:
    return lambda logits: log_softmax(logits / TEMPERATURE, axis=1)


def _by_class(classes: int, generator: np.random.Generator) -> Truth:
    scales = np.exp(SCALE_SPREAD * generator.standard_normal(classes))
    biases = BIAS_SPREAD * generator.standard_normal(classes)
    return lambda logits: log_softmax(scales * log_softmax(logits, axis=1) + biases, axis=1)


def _bent(classes: int, generator: np.random.Generator) -> Truth:
    """What a model minimises the focal loss to is q; its truth is the focal map of q."""
    return lambda logits: np.asarray(calibration.focal_calibration(log_softmax(logits, axis=1), GAMMA))


KINDS: dict[str, Kind] = {
    "calibrated": Kind("uncalibrated", _calibrated),
    "temperature": Kind("temperature_scaling", _hot),
    "focal map": Kind("focal_temperature_scaling", _bent),
    "classes": Kind("vector_scaling", _by_class),
}


def repetition(kind: Kind, classes: int, examples: int, seed: int) -> dict:
    """The method chosen on examples drawn in `seed`, and the excess NLL of each method's fit on fresh ones.

    "least" is the method of least NLL by fits of the other folds: the choice without a test.
    """
    generator = np.random.default_rng([seed, classes, examples])
    true = kind.drawn(classes, generator)
    logits, fresh = (SPREAD[classes] * generator.standard_normal((count, classes)) for count in (examples, FRESH))
    labels = (true(logits) + generator.gumbel(size=logits.shape)).argmax(1).astype(np.int32)
    found = calibration.compare((np.float32(logits), labels), criteria=("nll",), metrics=("nll",), seed=seed)
    log_probs = true(fresh).astype(np.float64)
    excess = {}
    for each in found.fits:
        predicted = np.asarray(each.predict_log_proba(np.float32(fresh)), np.float64)
        excess[each.method.name] = float((np.exp(log_probs) * (log_probs - predicted)).sum(1).mean())
    held_out = {each.method.name: float(calibration.nll(each.log_probs, labels)) for each in found.held_out}
    return {"chosen": found.choice.fitted.method.name, "least": min(held_out, key=held_out.get), "excess": excess}


def planned(repetitions: int) -> dict[tuple[int, int], int]:
    """Repetitions by (classes, examples), least work first: a part, but BLOCK at least, of long ones."""
    cells = sorted(((classes, examples) for classes in CLASSES for examples in EXAMPLES), key=np.prod)
    parts = {cell: min(1.0, LONG / (cell[0] * cell[1])) for cell in cells}
    return {cell: max(BLOCK, round(part * repetitions / BLOCK) * BLOCK) for cell, part in parts.items()}


def measure(path: Path, repetitions: dict[tuple[int, int], int]) -> None:
    """Measure what `path` does not have yet, BLOCK repetitions at a time; repetitions by (classes, examples)."""
    keys = [
        {"truth": name, "classes": classes, "examples": examples, "block": block}
        for block in range(max(repetitions.values()) // BLOCK)
        for (classes, examples), count in repetitions.items()
        if block < count // BLOCK
        for name in KINDS
    ]
    for key in missing(path, keys):
        seeds = range(BLOCK * key["block"], BLOCK * (key["block"] + 1))
        kind = KINDS[key["truth"]]
        rows = [repetition(kind, key["classes"], key["examples"], seed) for seed in seeds]
        remember(path, key, {"repetitions": rows})
