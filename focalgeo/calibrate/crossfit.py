"""Every example measured with maps that were fitted without it."""

from collections.abc import Callable

import numpy as np

from focalgeo.calibrate.flags import Options
from focalgeo.data.logits_files import Outputs
from focalgeo.evaluation import Calibrator
from focalgeo.types import Array, Predictions


def cross_fit(val: Outputs, fit: Callable[[Predictions], list[Calibrator]], options: Options) -> list[Calibrator]:
    """Calibrators whose gamma and temperature are arrays [examples]: each example's were fitted on the other folds."""
    fold = folds(val.labels, options.folds, options.seed)
    gammas, temperatures, places = {}, {}, []
    for index in range(options.folds):
        fits = fit(Predictions(val.logits, val.labels, fold != index))
        places = [calibrator.place for calibrator in fits]
        for number, calibrator in enumerate(fits):
            gammas.setdefault(number, np.zeros(len(fold), np.float32))[fold == index] = calibrator.gamma
            temperatures.setdefault(number, np.ones(len(fold), np.float32))[fold == index] = calibrator.temperature
    return [Calibrator(place, gammas[number], temperatures[number]) for number, place in enumerate(places)]


def folds(labels: Array, num_folds: int, seed: int) -> np.ndarray:
    """The fold of each example, 0 to num_folds - 1, at random in `seed`.

    Stratified: folds differ by at most one in size, and by at most one in the number of examples of any class.
    """
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    fold = np.empty(len(labels), np.int32)
    fold[by_label] = np.arange(len(labels)) % num_folds
    return fold
