"""Maps with parameters for each class: vector, matrix and focal vector scaling.

All are one map in the log domain. With w the log-probabilities of focal temperature scaling, normalised, the scores
are scales * w + biases, or w @ weights.T + biases. A constant added to a row of logits therefore changes nothing.
"""

import jax.numpy as jnp
from jaxtyping import Float

from focalgeo.calibration.maps import Numbers, Rows, focal_temperature_scaling, normalised, top_class
from focalgeo.checks import check_finite, number_array
from focalgeo.precision import matmul
from focalgeo.types import Array

PerClass = Float[Array, " classes"]


def focal_vector_scaling(
    logits: Rows, gamma: Numbers, temperature: Numbers, scales: PerClass, biases: PerClass
) -> Rows:
    """Log-probabilities of softmax(scales * w + biases), with w of `focal_temperature_scaling`.

    Vector scaling is gamma = 0; scales of 1 and biases of 0 give focal temperature scaling. The two meet in
    temperature scaling alone: focal temperature scaling treats all classes alike, which vector scaling does only with
    equal scales and equal biases; and for two classes its log-odds are odd in s = log(q / (1 - q)), which
    scales[0] log q - scales[1] log(1 - q) + bias is only as a multiple of s, while those of gamma other than 0 have
    slope gamma + (1 + gamma (1 - log 2)) / (1 + gamma log 2) at 0 and 1 + gamma far out. So one bends all confidences
    by one curve, the other moves classes against each other, and both together do what neither does.

    Args:
        logits: Float [..., classes], finite; types narrower than float32 are computed in float32.
        gamma: Float scalar or [...], above -1.
        temperature: Float scalar or [...], above 0.
        scales: Float [classes], of any sign.
        biases: Float [classes].

    Returns:
        [..., classes] float32 log-probabilities, normalised. The predicted class may differ from that of the logits.
        NaN for traced gammas and temperatures out of range, and in rows that hold NaN.

    Raises:
        InputError: shapes and types that do not fit; concrete numbers out of range or not finite.

    Source: our own; of its parts Komisarenko & Kull, arXiv 2408.11598, section 4.2, and Guo et al., arXiv 1706.04599,
    section 4.2.
    """
    log_probs = focal_temperature_scaling(logits, gamma, temperature)
    scales = _numbers("scales", scales, log_probs.shape[-1:], log_probs)
    biases = _numbers("biases", biases, log_probs.shape[-1:], log_probs)
    return _log_softmax(jnp.broadcast_to(scales, log_probs.shape) * log_probs, biases)


def focal_matrix_scaling(
    logits: Rows, gamma: Numbers, temperature: Numbers, weights: Float[Array, "classes classes"], biases: PerClass
) -> Rows:
    """Log-probabilities of softmax(w @ weights.T + biases), with w of `focal_temperature_scaling`.

    Matrix scaling is gamma = 0. A diagonal of weights is `focal_vector_scaling`, whose arguments, result and errors it
    shares; row k of weights [classes, classes] makes the score of class k.

    Source: Guo et al., arXiv 1706.04599, section 4.2, for the matrix.
    """
    log_probs = focal_temperature_scaling(logits, gamma, temperature)
    classes = log_probs.shape[-1]
    weights = _numbers("weights", weights, (classes, classes), log_probs)
    biases = _numbers("biases", biases, (classes,), log_probs)
    return _log_softmax(matmul(log_probs, weights.T), biases)


def _numbers(name: str, value: Array, shape: tuple[int, ...], like: Array) -> Array:
    check_finite(name, value)
    return jnp.broadcast_to(jnp.asarray(number_array(name, value, shape), like.dtype), shape)


def _log_softmax(scores: Array, biases: Array) -> Array:
    scores = scores + jnp.broadcast_to(biases, scores.shape)
    return normalised(scores, top_class(scores))
