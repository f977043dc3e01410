"""The softmax focal loss that docs/upstream.md offers to optax, in optax's style, and its errors in float32.

python tests/losses/upstream.py prints the table of docs/upstream.md.
"""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import optax

MARGINS = (0, 5, 10, 15, 20, 25, -10, -40)  # how far the true class is ahead of the next one, or behind the last


def softmax_focal_loss_with_integer_labels(logits, labels, *, gamma=2.0, axis=-1):
    r"""Focal loss of mutually exclusive classes, :math:`-(1 - p_y)^\gamma \log p_y` with p the softmax of the logits.

    Args:
        logits: Floating-point array of unnormalised log probabilities, with the classes along ``axis``.
        labels: Integers from 0 to the number of classes less one, of the shape of the logits without ``axis``.
        gamma: Exponent, zero or more: a number, or an array that broadcasts against the labels, as of losses whose
            gamma depends on the example. Zero gives the cross-entropy.
        axis: Axis of the classes.

    Returns:
        The losses, of the shape of the labels.

    1 - p_y is never formed, as it rounds to zero where the prediction is right and sure: p_y is the sigmoid of the
    true class's log-odds against all others, and the rest is the loss of two classes.
    """
    is_true = jax.nn.one_hot(labels, logits.shape[axis], axis=axis, dtype=bool)
    others = jax.nn.logsumexp(jnp.where(is_true, -jnp.inf, logits), axis=axis)
    log_odds = jnp.take_along_axis(logits, jnp.expand_dims(labels, axis), axis=axis).squeeze(axis) - others
    return optax.sigmoid_focal_loss(log_odds, jnp.ones_like(log_odds), gamma=gamma)


def by_probability(logits, labels, gamma):
    """What users of optax write today."""
    cross_entropy = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return (1 - jnp.exp(-cross_entropy)) ** gamma * cross_entropy


def by_log_probability(logits, labels, gamma):
    """The same with the weight in logarithms."""
    log_p = -optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return jnp.exp(gamma * jnp.log1p(-jnp.exp(log_p))) * -log_p


def offered(logits, labels, gamma):
    return softmax_focal_loss_with_integer_labels(logits, labels, gamma=gamma)


def rows(margin, *, examples=10, classes=10):
    """Normal logits whose true class is `margin` ahead of the next class or, below 0, behind the last."""
    generator = np.random.default_rng(abs(margin))
    logits = generator.normal(size=(examples, classes)).astype(np.float32)
    labels = generator.integers(0, classes, examples)
    logits[np.arange(examples), labels] = logits.max(1) + margin if margin >= 0 else logits.min(1) + margin
    return logits, labels


def exact(logits, label, gamma):
    """Loss and gradient of one example with 60 digits."""
    with mpmath.workdps(60):
        weights = [mpmath.exp(mpmath.mpf(float(logit))) for logit in logits]
        rest = mpmath.fsum(weights) - weights[label]
        p, q = (part / mpmath.fsum(weights) for part in (weights[label], rest))
        gamma, nats = mpmath.mpf(gamma), -mpmath.log(p)
        slope = -(q**gamma) * (q + gamma * p * nats)  # in the log-odds, of which q has the slope -p q
        return q**gamma * nats, [slope * (1 if k == label else -weight / rest) for k, weight in enumerate(weights)]


def errors(loss, margin, gamma):
    """The largest relative errors of float32 over the rows: of the loss, and of the gradient in the largest norm."""
    logits, labels = rows(margin)
    losses = jax.jit(loss)(logits, labels, gamma)
    gradients = jax.jit(jax.grad(lambda z: jnp.sum(loss(z, labels, gamma))))(logits)
    of_loss, of_gradient = [], []
    for row, label, value, slopes in zip(logits, labels, losses, gradients, strict=True):
        true_value, true_slopes = exact(row, int(label), gamma)
        largest = max(abs(slope) for slope in true_slopes)
        of_loss.append(float(abs(mpmath.mpf(float(value)) - true_value) / true_value))
        differences = [mpmath.mpf(float(a)) - b for a, b in zip(slopes, true_slopes, strict=True)]
        of_gradient.append(float(max(map(abs, differences)) / largest) if np.isfinite(slopes).all() else np.nan)
    return max(of_loss), float(np.max(of_gradient))  # NaN if any is


if __name__ == "__main__":
    for gamma in (0.5, 2.0):
        for margin in MARGINS:
            numbers = (errors(loss, margin, gamma) for loss in (by_probability, by_log_probability, offered))
            print(f"| {gamma} | {margin} | " + " | ".join(f"{a:.0e}, {b:.0e}" for a, b in numbers) + " |", flush=True)
