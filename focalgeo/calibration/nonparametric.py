"""Methods without a formula: histogram binning of the top label, and isotonic regression of all pairs pooled."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from focalgeo.calibration.binning import Labels, Logits, Mask
from focalgeo.calibration.fits import checked
from focalgeo.calibration.fitted import Params
from focalgeo.calibration.maps import Rows, normalised, temperature_scaling, top_class, top_log_odds
from focalgeo.checks import check_bins, check_finite, is_traced, marked, number_array
from focalgeo.types import Array, InputError

Ascending = Float[Array, " numbers"]

_ROUNDING = 64  # eps, by which log-odds that are equal may differ after two ways of computing them


def histogram_binning(logits: Rows, edges: Float[Array, " edges"], accuracies: Float[Array, " bins"]) -> Rows:
    """Log-probabilities with the accuracy of its bin for the top class; the others share the rest in proportion.

    Args:
        logits: Float [..., classes], finite.
        edges: Float [bins - 1], ascending: log-odds log(p / (1 - p)) of the top class at which the bins end, which
            belong to the bin below. Log-odds tell apart what probabilities round to 1.
        accuracies: Float [bins], above 0 and below 1.

    Returns:
        [..., classes] float32, normalised. The predicted class may differ from that of the logits where the accuracy
        of a bin is below 1/2.

    Raises:
        InputError: shapes and types that do not fit, concrete numbers that are not finite.

    Source: Zadrozny & Elkan, ICML 2001, applied to the top label as in Gupta & Ramdas, arXiv 2107.08353.
    """
    check_finite("edges", edges)
    check_finite("accuracies", accuracies)
    log_probs = temperature_scaling(logits, 1.0)
    top = top_class(log_probs)
    log_odds = top_log_odds(log_probs, top)
    index = jnp.searchsorted(jnp.asarray(edges, log_probs.dtype), log_odds[..., 0], side="left")
    accuracies = number_array("accuracies", accuracies, (len(edges) + 1,))
    accuracy = jnp.asarray(accuracies, log_probs.dtype)[index][..., None]
    rest = log_probs - jax.nn.log_sigmoid(-log_odds) + jnp.log1p(-accuracy)
    return jnp.where(jnp.isnan(log_odds), jnp.nan, jnp.where(top, jnp.log(accuracy), rest))


def fit_histogram_binning(logits: Logits, labels: Labels, mask: Mask = None, *, num_bins: int = 15) -> Params:
    """Bins of equal mass of the top class's log-odds, and (right + 1) / (count + 2) in each.

    The rule of succession keeps every accuracy inside (0, 1), so that no example has an infinite NLL.

    Args:
        logits: Float [examples, classes].
        labels: Int [examples].
        mask: Bool [examples], or how often each example counts; None counts each once.
        num_bins: 1 or more. Examples of equal confidence stay in one bin; a bin may stay empty, with accuracy 1/2.

    Returns:
        "edges" [num_bins - 1] and "accuracies" [num_bins] for `histogram_binning`. Each edge is midway between the
        last log-odds of its bin and the next larger one, so that rounding in the application moves no example to
        another bin. For use inside jit and vmap.

    Raises:
        InputError: predictions that `check_predictions` refuses, an unfit mask or number of bins; of traced values
            that are not valid, the numbers are NaN.

    Source: as `histogram_binning`; the bins of equal mass are Naeini, Cooper & Hauskrecht, AAAI 2015.
    """
    rows, labels, weight = checked(logits, labels, mask)
    check_bins(num_bins)
    return _fit_bins(rows, labels, weight, num_bins)


@partial(jax.jit, static_argnames="num_bins")
def _fit_bins(rows: Array, labels: Array, weight: Array, num_bins: int) -> Params:
    log_probs = temperature_scaling(rows, 1.0)  # as in the application
    log_odds = top_log_odds(log_probs, top_class(rows))[:, 0]
    right = (jnp.argmax(rows, axis=-1) == labels).astype(weight.dtype)
    edges = _equal_mass_edges(jnp.where(weight > 0, log_odds, jnp.inf), weight, num_bins)
    bins = jax.nn.one_hot(jnp.searchsorted(edges, log_odds, side="left"), num_bins, dtype=weight.dtype)
    count, correct = jnp.sum(weight[:, None] * bins, axis=0), jnp.sum((weight * right)[:, None] * bins, axis=0)
    return marked(~jnp.isnan(jnp.sum(weight)), {"edges": edges, "accuracies": (correct + 1) / (count + 2)})


def _equal_mass_edges(values: Array, weight: Array, num_bins: int) -> Array:
    """Edges [num_bins - 1] between values that differ by more than rounding, midway, so that no value is at an edge.

    Each is the first such place at or above its quantile, or else the last of all. There is one below all values too,
    for bins that stay empty; infinite values, those of weight 0, are beyond the last.
    """
    order = jnp.argsort(values)
    mass = jnp.cumsum(weight[order])
    quantiles = jnp.searchsorted(mass * num_bins, mass[-1] * jnp.arange(1, num_bins, dtype=mass.dtype))
    below = jnp.concatenate([jnp.finfo(values.dtype).min[None], values[order]])
    low, high = below[:-1], below[1:]
    apart = (high - low > _ROUNDING * jnp.finfo(values.dtype).eps * jnp.maximum(jnp.abs(low), 1)) & (high < jnp.inf)
    place = jnp.arange(len(values), dtype=quantiles.dtype)
    above = jax.lax.cummin(jnp.where(apart, place, len(values)), reverse=True)
    last = jnp.max(jnp.where(apart, place, 0))
    chosen = jnp.minimum(above[jnp.minimum(quantiles + 1, len(values) - 1)], last)
    return low[chosen] / 2 + high[chosen] / 2


def isotonic_calibration(logits: Rows, thresholds: Ascending, probabilities: Ascending) -> Rows:
    """Log-probabilities of f(p_k) / sum_j f(p_j), with f linear in log p between the thresholds.

    Args:
        logits: Float [..., classes], finite.
        thresholds: Float [numbers], ascending values of log p; beyond the ends, f is constant.
        probabilities: Float [numbers], ascending and above 0: f there.

    Returns:
        [..., classes] float32 log-probabilities, normalised, with the argmax of the logits.

    Raises:
        InputError: shapes and types that do not fit, concrete numbers that are not finite.

    Source: Zadrozny & Elkan, KDD 2002; pooled as IRM of Zhang, Kailkhura & Han, arXiv 2003.07329, section 3.2.
    """
    check_finite("thresholds", thresholds)
    check_finite("probabilities", probabilities)
    log_probs = temperature_scaling(logits, 1.0)
    points, values = (jnp.asarray(x, log_probs.dtype) for x in (thresholds, probabilities))
    return normalised(jnp.log(jnp.interp(log_probs, points, values)), top_class(log_probs))


def fit_isotonic(logits: Logits, labels: Labels, mask: Mask = None) -> Params:
    """Isotonic regression of "k is the label" on log p_k, over all pairs (example, k) together.

    Args:
        logits: Float [examples, classes], known values: the fit is scikit-learn's, not for use inside jit.
        labels: Int [examples].
        mask: Bool [examples], or how often each example counts; None counts each once.

    Returns:
        "thresholds" and "probabilities" for `isotonic_calibration`; none of these is below 1 / (pairs + 2), the rule
        of succession for pairs without a success, so that the NLL stays finite.

    Raises:
        InputError: predictions that `check_predictions` refuses, an unfit mask; traced values; no scikit-learn.

    Source: as `isotonic_calibration`.
    """
    if is_traced(logits, labels, mask):
        raise InputError("isotonic regression is fitted by scikit-learn: call it outside jit and vmap")
    try:
        from sklearn.isotonic import IsotonicRegression  # heavy, and only this method needs it
    except ImportError as error:
        raise InputError("isotonic regression needs scikit-learn: pip install scikit-learn") from error
    rows, labels, weight = map(np.asarray, checked(logits, labels, mask))
    log_probs, classes = np.asarray(_log_probs(rows)), rows.shape[1]
    is_label = labels[:, None] == np.arange(classes)
    model = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
    model.fit(log_probs.ravel(), is_label.ravel().astype(weight.dtype), np.repeat(weight, classes))
    floor = 1 / (weight.sum() * classes + 2)
    return {
        "thresholds": model.X_thresholds_.astype(weight.dtype),
        "probabilities": np.maximum(model.y_thresholds_, floor).astype(weight.dtype),
    }


@jax.jit
def _log_probs(rows: Array) -> Array:
    return temperature_scaling(rows, 1.0)
