"""ECE and accuracy of every group of examples, with intervals."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import calibration
from focalgeo.calibration.binning import weights
from focalgeo.evaluation import Calibrator
from focalgeo.types import Array, Predictions

LEAST_EXAMPLES = 30  # a smaller group has no rows: its ECE would be noise


def group_rows(
    calibrators: Sequence[Calibrator],
    split: str,
    predictions: Predictions,
    group: np.ndarray,
    key: Array,
    *,
    num_bins: int,
    num_resamples: int,
) -> list[dict]:
    """Rows group_ece and group_accuracy of each group of 30 examples or more, for each calibrator.

    `n` is the number of all examples, which are resampled together, and `group_n` that of the group.
    """
    names = [name for name, count in zip(*np.unique(group, return_counts=True), strict=True) if count >= LEAST_EXAMPLES]
    if not names:
        return []
    member = np.stack([group == name for name in names]).astype(np.float32)
    metric = _make_metric(member, num_bins)
    apply = jax.jit(calibration.focal_temperature_scaling)
    rows = []
    for calibrator in calibrators:
        at = np.float32(calibrator.gamma), np.float32(calibrator.temperature)
        estimates = calibration.bootstrap(
            metric, apply(predictions.logits, *at), predictions.labels, key, num_resamples
        )
        for name, found in jax.device_get(estimates).items():
            for index, label in enumerate(names):
                value, _, low, high, n = found[index]
                ends = {"value": value, "low": low, "high": min(high, 1.0)}
                place = {"name": f"group_{name}", "split": split, **calibrator.place, "group": str(label)}
                counts = {"n": int(n), "group_n": int(member[index].sum())}
                rows.append({**place, **{end: float(value) for end, value in ends.items()}, **counts})
    return rows


def _make_metric(member: np.ndarray, num_bins: int) -> Callable[..., dict[str, list[Array]]]:
    """Metrics of every group, in their order, as one function: compiled once for all groups, whatever their sizes."""

    def metric(log_probs: Array, labels: Array, *, mask: Array | None = None) -> dict[str, list[Array]]:
        weight = weights(mask, log_probs[:, 0])

        def of_group(inside: Array) -> dict[str, Array]:
            return {
                "ece": calibration.ece(log_probs, labels, num_bins=num_bins, mask=weight * inside),
                "accuracy": calibration.accuracy(log_probs, labels, mask=weight * inside),
            }

        found = jax.lax.map(of_group, jnp.asarray(member))
        return {name: list(values) for name, values in found.items()}  # bootstrap takes a tree of scalars

    return metric
