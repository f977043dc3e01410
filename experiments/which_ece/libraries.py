"""The same question put to each library in its own words; a library that is not installed is None."""

import importlib.metadata
from collections.abc import Callable

import numpy as np

from experiments.which_ece.cases import Case, event


def focalgeo_ece(case: Case) -> float:
    """`ece` or `binary_ece` of the float32 logarithms of the probabilities."""
    from focalgeo import calibration

    with np.errstate(divide="ignore"):
        log_probs = np.log(case.probs.astype(np.float32))
    metric = calibration.binary_ece if case.kind == "class_one" else calibration.ece
    return float(metric(log_probs, case.labels, num_bins=case.num_bins))


def torchmetrics_ece(case: Case) -> float:
    """binary_calibration_error of P(class 1), multiclass_calibration_error of all columns."""
    import torch
    from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

    dtype = torch.float32 if case.probs.dtype == np.float32 else torch.bfloat16
    probs = torch.tensor(case.probs.astype(np.float32)).to(dtype)
    labels = torch.tensor(case.labels.astype(np.int64))
    if case.kind == "class_one":
        return float(binary_calibration_error(probs[:, 1], labels, n_bins=case.num_bins))
    return float(multiclass_calibration_error(probs, labels, num_classes=probs.shape[1], n_bins=case.num_bins))


def sklearn_curve(case: Case) -> float:
    """Mean |share - mean probability| over the points of calibration_curve, with the event handed in."""
    from sklearn.calibration import calibration_curve

    p, came_true = event(case)
    share, mean = calibration_curve(came_true.astype(int), p, n_bins=case.num_bins)
    return float(np.mean(np.abs(share - mean)))


def netcal_ece(case: Case) -> float:
    """ECE.measure of the whole array, or of P(class 1) where that is asked and the columns are not the question."""
    from netcal.metrics import ECE

    columns = case.kind == "top_label" or case.name.startswith("two columns")
    return float(ECE(bins=case.num_bins).measure(case.probs if columns else case.probs[:, 1], case.labels))


LIBRARIES: dict[str, Callable[[Case], float]] = {
    "focalgeo": focalgeo_ece,
    "torchmetrics": torchmetrics_ece,
    "scikit-learn": sklearn_curve,
    "netcal": netcal_ece,
}


def version(library: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def answer(library: str, case: Case) -> float | str:
    """The library's value, or "error: ..." with the first line of what it raised."""
    try:
        return LIBRARIES[library](case)
    except Exception as error:  # whatever a library raises is its answer
        first = str(error).strip().splitlines()
        return f"error: {type(error).__name__}{': ' + first[0] if first else ''}"
