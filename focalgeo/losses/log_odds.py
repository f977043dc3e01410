"""The true class's log-odds, from which every loss here is computed: it keeps 1 - p where p rounds to 1.

Differences of logits are cut at the largest finite number, with the derivatives of those that are not cut. So losses
and their derivatives are right for all finite logits; a loss beyond float32's largest number, 3.4e38, is that number.
A logit of -inf is that of a class that cannot be: the losses and their derivatives are those without its column.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Float, Integer

from focalgeo import checks
from focalgeo.types import Array

Logits = Float[Array, "*batch classes"]
Labels = Integer[Array, "*batch"] | int
SoftLabels = Float[Array, "*batch classes"]
PerExample = Float[Array, "*batch"] | Float[Array, ""]  # a mean, with a mask
Numbers = Float[Array, "..."] | float


class Margins(NamedTuple):
    """Logits as differences from the strongest class but the true one, the rival."""

    gap: Array  # [...], z_y - z_rival
    lag: Array  # [..., classes], z_k - z_rival, with -inf at the true class
    rival: Array  # int [...]


def labelled_rows(logits: Array, labels: Array) -> tuple[Array, Array]:
    """The door of every loss: logits in float32 or float64, and labels as int32.

    Raises:
        InputError: shapes or types that do not fit; a concrete label that is no class. While the logits are traced, as
            in a gradient, -1 stands for no label and is let through: what comes of it is left out by a mask.
    """
    logits = checks.score_rows("logits", logits)
    labels = class_numbers(labels, logits, "logits", traced=checks.is_traced(logits))
    return checks.floats(logits)[0], labels


def class_numbers(labels: Array, rows: Array, name: str, *, traced: bool) -> Array:
    """The labels of the rows as int32; while these are traced, -1 is let through."""
    known = traced and not checks.is_traced(labels)
    labels = checks.label_array(labels, rows, name, counted=np.asarray(labels) != -1 if known else None)
    return jnp.asarray(labels).astype(jnp.int32)


def masked_mean(loss: Callable) -> Callable:
    """The loss with `mask`, truth values [...], and `weights` [...], how often each counts: its mean sum(w l) / sum(w).

    What has weight 0 counts for nothing in value and derivatives, whatever its logits and label hold. The mean is NaN
    where no example is left. With neither the loss is as it was, one for each example.
    """

    def masked(logits, labels, *values, mask=None, weights=None, **named):
        if mask is None and weights is None:
            return _of_classes(loss(logits, labels, *values, **named), logits, labels)
        logits, labels = checks.score_rows("logits", logits), checks.array_of("labels", labels)
        weights = checks.weighted_mask(mask, weights, logits.shape[:-1])
        counts = weights.astype(bool)
        if labels.shape in (logits.shape, counts.shape):  # others are refused by the loss
            safe = np.asarray(1 / logits.shape[-1]).astype(labels.dtype)  # 0 for a class number
            labels = jnp.where(counts if labels.ndim == counts.ndim else counts[..., None], labels, safe)
        losses = loss(jnp.where(counts[..., None], logits, 0), labels, *values, **named)
        losses = _of_classes(losses, logits, labels)
        return jnp.average(losses, weights=jnp.asarray(weights, losses.dtype))

    checks.take_counts(masked, loss)
    return masked


def _of_classes(losses, logits, labels):
    """The losses, NaN where a label is no class, which cannot be refused while it is traced."""
    if not checks.is_traced(logits, labels) or losses.shape != jnp.shape(labels):
        return losses
    labels = jnp.asarray(labels).astype(jnp.int32)  # 8 bits do not hold a number of classes above 255
    return jnp.where((labels >= 0) & (labels < jnp.shape(logits)[-1]), losses, jnp.nan)


def over_labels(loss: Callable, logits: Logits, labels: Labels | SoftLabels) -> PerExample:
    """The loss of the true class's log-odds, or its expectation under soft labels, sum_k q_k loss(r_k)."""
    logits, labels = checks.array_of("logits", logits), checks.array_of("labels", labels)
    if labels.shape != logits.shape or not jnp.issubdtype(labels.dtype, jnp.floating):
        return loss(true_class_log_odds(*labelled_rows(logits, labels)))
    checks.check_distribution("labels", labels)
    logits, labels = checks.floats(checks.score_rows("logits", logits), labels)
    # The log-odds of each class, at the price of one: only the largest outweighs all others. It is taken out of their
    # sums, as the rival in `true_class_log_odds`, and then each of them.
    top = jnp.argmax(logits, axis=-1)
    is_top = hot(top, logits)
    lag = logits - jnp.sum(jnp.where(is_top, logits, 0), axis=-1, keepdims=True)
    share = jnp.exp(jnp.where(is_top, -jnp.inf, lag))
    others = jnp.log1p(jnp.sum(share, axis=-1, keepdims=True) - share)
    log_odds = jnp.where(is_top, true_class_log_odds(logits, top)[..., None], lag - others)
    losses = jax.vmap(loss, -1, -1)(log_odds)
    return jnp.sum(jnp.where(labels != 0, labels * losses, 0), axis=-1)


def margins(logits: Logits, labels: Labels) -> Margins:
    """Differences between the logits and the strongest of the classes that are not the true one."""
    (logits,) = checks.floats(logits)
    is_true = hot(labels, logits)
    rival = jnp.argmax(jnp.where(is_true, -jnp.inf, logits), axis=-1)
    rival = jnp.where(is_true[..., 0] & (rival == 0), 1, rival)  # where no other class can be
    # of labels and logits sharded otherwise the sum is sharded as both
    true_and_rival = entries(logits, jnp.stack([jnp.asarray(labels, rival.dtype) + 0 * rival, rival], axis=-1))
    rival_logit = above_infinity(true_and_rival[..., 1])
    lag = jnp.where(is_true, -jnp.inf, logits - rival_logit[..., None])
    return Margins(difference(true_and_rival[..., 0], rival_logit), lag, rival)


def hot(classes: Array, rows: Array) -> Array:
    """Where the class is, bool [..., classes], of a class [...] for each row."""
    return jax.nn.one_hot(classes, rows.shape[-1], dtype=bool)


def _taken(rows, places):
    return jnp.take_along_axis(rows, places, axis=-1, mode="promise_in_bounds")


def _entries_transposed(cotangent, rows, places):
    hot = (jax.nn.one_hot(places[..., index], rows.aval.shape[-1], dtype=bool) for index in range(places.shape[-1]))
    return sum(jnp.where(at, cotangent[..., index, None], 0) for index, at in enumerate(hot)), None


def _entries_batched(arguments, axes):
    size = next(leaf.shape[axis] for leaf, axis in zip(arguments, axes, strict=True) if axis is not None)
    moved = (batching.bdim_at_front(leaf, axis, size) for leaf, axis in zip(arguments, axes, strict=True))
    return entries_p.bind(*moved), 0


# A gather whose transpose is no scatter. A primitive of our own, as no form of public functions holds as little: in
# arrays [..., 50304] that the Gauss-Newton and Hessian products of cross-entropy and focal loss take (XLA's
# memory_analysis() on a CPU, jax 0.10.2, labels traced or constant) this is 2.0, take_along_axis 3.0 (its scatter), a
# sum of where(hot, rows, 0) 3.0, and take_along_axis with that sum as jax.custom_jvp 4.0. linear_call of
# jax.custom_derivatives, with this transpose, has no rule for vmap, by which members of a sweep train.
entries_p = Primitive("entries")
entries_p.def_impl(jax.jit(_taken))
entries_p.def_abstract_eval(lambda rows, places: rows.update(shape=places.shape))
ad.defjvp(entries_p, lambda tangent, rows, places: entries_p.bind(tangent, places), None)
ad.primitive_transposes[entries_p] = _entries_transposed
batching.primitive_batchers[entries_p] = _entries_batched
mlir.register_lowering(entries_p, mlir.lower_fun(_taken, multiple_results=False))


def entries(rows: Array, places: Array) -> Array:
    """The numbers of each row [..., classes] at its places [..., n]; a place outside is the nearest.

    In a shard_map rows that all devices share are cast to vary where the places do: cotangents vary as rows do.
    """
    rows_of, places_of = (jax.typeof(each).manual_axis_type.varying for each in (rows, places))
    if places_of - rows_of:
        rows = jax.lax.pcast(rows, tuple(places_of - rows_of), to="varying")
    return entries_p.bind(rows, jnp.clip(places, 0, rows.shape[-1] - 1))


def above_infinity(logits: Array) -> Array:
    """The logits with the lowest finite number in place of -inf."""
    return jnp.where(jnp.isneginf(logits), jnp.finfo(logits.dtype).min, logits)


@jax.custom_jvp
def difference(first: Array, second: Array) -> Array:
    """The difference first - second, cut at the largest finite number; its derivatives are those of one not cut.

    It is -inf where the first is.
    """
    largest = jnp.finfo(first.dtype).max
    return jnp.where(jnp.isneginf(first), first, jnp.clip(first - second, -largest, largest))


@difference.defjvp
def _difference_jvp(primals, tangents):
    return difference(*primals), tangents[0] - tangents[1]


def behind_rival(margin: Margins) -> Array:
    """Lags of the classes behind the rival, [..., classes]; -inf at the rival, whose derivative would only round."""
    return jnp.where(hot(margin.rival, margin.lag), -jnp.inf, margin.lag)


def log_rest(margin: Margins) -> Array:
    """The sum of all classes but the true one relative to the rival, log sum_{k != y} exp(z_k - z_rival), [...]."""
    return jnp.log1p(jnp.sum(jnp.exp(behind_rival(margin)), axis=-1))


def true_class_log_odds(logits: Logits, labels: Labels) -> PerExample:
    """Log-odds of the true class, r = z_y - logsumexp_{k != y} z_k, so that p_y = sigmoid(r).

    Args:
        logits: Float [..., classes], two classes or more. Types narrower than float32 are computed in float32.
        labels: Int [...], from 0 to classes - 1. They are not checked here, see `labelled_rows`.

    Returns:
        [...] in float32 (float64 for float64 logits), with derivatives of every order.

    The strongest rival o is taken out of the sum, r = (z_y - z_o) - log1p(sum_{k != y, o} exp(z_k - z_o)): only
    differences appear, so that second derivatives keep their relative accuracy where one class outweighs all others.
    """
    margin = margins(logits, labels)
    return margin.gap - log_rest(margin)


def true_class_probability(logits: Logits, labels: Labels) -> PerExample:
    """Softmax probability of the true class, [...], without its gradient, by which the adaptive losses choose gamma."""
    return jnp.exp(-softplus(-jax.lax.stop_gradient(true_class_log_odds(*labelled_rows(logits, labels)))))


def softplus(x: Array) -> Array:
    """The function log(1 + e^x), with derivatives that keep their relative accuracy at every order.

    jax.nn.softplus loses its second derivative for x > 17, as 1 minus a rounded sigmoid.
    """
    positive = x > 0
    return jnp.where(positive, x, 0) + jnp.log1p(jnp.exp(jnp.where(positive, -x, x)))
