"""Methods of focalgeo in CalArena (arXiv 2605.30188), by the object that its runner calls, and over a file of it.

Copied beside its custom_calibrators.py: CUSTOM_CALIBRATORS = {"focalgeo": lambda: Calibrator()}. Or, with h5py:
python examples/calarena.py tabrepo-binary.h5
"""

import sys

import numpy as np

from focalgeo import calibration


class Calibrator:
    """A method of METHODS by name, or what is chosen among the default ones; p: [n, classes], of two classes P(1)."""

    def __init__(self, method="choice"):
        self.method = method

    def fit(self, p, y):
        logits, labels = log_probs(p), np.ravel(y).astype(np.int32)
        if self.method == "choice":
            compared = calibration.compare((logits, labels), metrics=("nll",), num_resamples=200)
            self.fitted = compared.choice.fitted
        else:
            self.fitted = calibration.fit(self.method, logits, labels)
        return self

    def predict_proba(self, p):
        return np.exp(np.float64(self.fitted.predict_log_proba(log_probs(p))))


def log_probs(p):
    p = np.float64(p)
    if p.ndim == 1 or p.shape[1] == 1:
        p = np.stack([1 - p.ravel(), p.ravel()], axis=1)
    return np.asarray(calibration.log_probabilities(p))


if __name__ == "__main__":
    import h5py

    with h5py.File(sys.argv[1]) as file:
        for name in (f"{dataset}/{model}" for dataset, models in file.items() for model in models):
            p, y, test, labels = (
                file[f"{name}/{array}"][()] for array in ("probas_cal", "labels_cal", "probas_test", "labels_test")
            )
            calibrator = Calibrator().fit(p, y)
            after = log_probs(calibrator.predict_proba(test))
            nll = [float(calibration.nll(rows, labels)) for rows in (log_probs(test), after)]
            print(f"{name}: {calibrator.fitted.method.name}, NLL {nll[0]:.4f} -> {nll[1]:.4f}", flush=True)
