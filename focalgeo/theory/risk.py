"""Conditional risk of the focal loss, the prediction that minimises it, and the proper loss inside it."""

import jax.numpy as jnp

from focalgeo import checks
from focalgeo.calibration import inverse_focal_calibration
from focalgeo.checks import Batch, Numbers, Rows
from focalgeo.losses import focal_loss
from focalgeo.theory.gradient import power
from focalgeo.types import Array


def conditional_risk(p: Rows, q: Rows, gamma: Numbers) -> Batch:
    """Expected focal loss of predicting q where the classes have probabilities p: -sum_k p_k (1-q_k)^gamma log q_k.

    Args:
        p: True class probabilities, [..., classes], rows that sum to 1.
        q: Predicted probabilities, [..., classes], same shape or one row for all.
        gamma: Focal parameter, scalar or [...], 0 or more; 0 gives cross-entropy.

    Returns:
        [...] float32 nats, relative error 1e-5 for q that float32 can hold; tested in tests/theory/test_risk.py. A
        class with p_k = 0 adds nothing, one with q_k = 0 < p_k gives infinity.

    Raises:
        InputError: rows that are no probabilities, gamma below 0, where they are concrete.

    Source: Komisarenko & Kull, arXiv 2408.11598, section 3.2, where the binary risk is printed with L(1-q, 0) in
    place of L(q, 0) = l(1-q).

    Example:
        >>> true = np.float32([0.8, 0.2])
        >>> risks = [theory.conditional_risk(true, np.float32([q, 1 - q]), 2.0) for q in (0.5, 0.63, 0.8)]
        >>> [round(float(risk), 4) for risk in risks]  # not the true distribution has the least
        [0.1733, 0.1295, 0.2131]
    """
    p, q, gamma = _arguments(p, q, gamma)
    return _expected(p, -power(1 - q, gamma) * _log(q))


def focal_lower_bound(p: Rows, q: Rows, gamma: Numbers) -> Batch:
    """Lower bound of `conditional_risk`: CE(p, q) - gamma H(q), cross-entropy minus gamma entropies of the prediction.

    So focal loss favours predictions of high entropy: among models of equal cross-entropy the bound is lowest for the
    largest entropy. In nats it equals KL(p || q) + H(p) - gamma H(q).

    Args:
        p: True class probabilities, [..., classes], rows that sum to 1.
        q: Predicted probabilities, [..., classes], same shape or one row for all.
        gamma: Focal parameter, scalar or [...], 0 or more.

    Returns:
        [...] float32 nats, possibly negative; absolute error 1e-6 for values of order 1, tested in
        tests/theory/test_risk.py.

    Raises:
        InputError: rows that are no probabilities, gamma below 0, where they are concrete.

    Source: Kimura & Naganuma, arXiv 2405.00442, Lemma 1; Mukhoti et al., ICLR 2020 submission, Appendix H, whose first
    line prints a minus where + gamma sum_k p_k q_k log q_k is meant. Bernoulli's inequality needs gamma of at
    least 1; for gamma from 0 to 1 the bound still held in every numerical search, but that step of the proof does not.

    Example:
        >>> true, predicted = np.float32([0.8, 0.2]), np.float32([0.7, 0.3])
        >>> bound, risk = (f(true, predicted, 2.0) for f in (theory.focal_lower_bound, theory.conditional_risk))
        >>> round(float(bound), 4), round(float(risk), 4)
        (-0.6956, 0.1437)
    """
    p, q, gamma = _arguments(p, q, gamma)
    surprise = -_log(q)
    return _expected(p, surprise) - jnp.squeeze(gamma, -1) * _expected(q, surprise)


def optimal_prediction(p: Rows, gamma: Numbers) -> Array:
    """The prediction q that minimises `conditional_risk`(p, q, gamma): the inverse focal calibration map of p.

    Args:
        p: True class probabilities, [..., classes], rows that sum to 1, above 0.
        gamma: Focal parameter, scalar or [...], 0 or more; 0 gives p.

    Returns:
        [..., classes] float32 rows that sum to 1, in the order of p, flatter than p where max q >= 1/2: [0.8, 0.2]
        gives [0.6266, 0.3734] for gamma = 2. Absolute error 1e-5, tested in tests/theory/test_risk.py.

    Raises:
        InputError: rows that are no probabilities, gamma below 0, where they are concrete.

    Source: Komisarenko & Kull, arXiv 2408.11598, section 3 (their 80/20 example gives "around 0.62"; it is 0.6266). Two
    departures: the minimiser is not flatter than p in general. Their Proposition 5, that the map raises the top
    probability, is false for four or more classes: q = [0.32, 0.32, 0.32, 0.04] and gamma = 0.25 give a top of 0.31992,
    and for 100 classes and gamma = 1 even a top of 0.3 falls to 0.2934. It is true where max q >= 1/2, hence always for
    two classes; for three no exception was found on a lattice. A negative gamma reverses it for confident predictions
    only.

    Example:
        >>> print(np.asarray(theory.optimal_prediction(np.float32([0.8, 0.2]), 2.0)).round(4))
        [0.6266 0.3734]
    """
    checks.check_distribution("p", p)
    checks.check_interval("gamma", gamma, 0)
    p, gamma = checks.floats(p, gamma)
    return jnp.exp(inverse_focal_calibration(jnp.log(p), gamma))


def proper_focal_loss(logits: Rows, labels: Array | int, gamma: Numbers) -> Batch:
    """The proper loss inside the focal loss, L*(q, y) = l(p_hat^-1(q)_y): focal loss of the inverse focal map of q.

    With q = softmax(logits), focal loss is this proper loss behind the fixed map p_hat. Its conditional risk is
    smallest where the prediction is the true distribution. For two classes it lies below the focal loss for q_y < 1/2,
    above it for q_y > 1/2 and equals it at 1/2.

    Args:
        logits: Float [..., classes], two or more; log-probabilities do as well.
        labels: Int [...], or one for all, from 0 to classes - 1.
        gamma: Focal parameter, scalar or [...], 0 or more; 0 gives cross-entropy.

    Returns:
        [...] float32 nats, relative error 5e-5 plus 1e-6 absolute; tested in tests/theory/test_risk.py. Differentiable
        in the logits through the map's implicit derivative.

    Raises:
        InputError: logits that are not finite, gamma below 0, where they are concrete.

    Source: Komisarenko & Kull, arXiv 2408.11598, Propositions 2 and 4.

    Example:
        >>> print(np.asarray(theory.proper_focal_loss(logits, labels, 2.0)).round(4))
        [0.1498 0.0628 0.4924 0.5954]
    """
    logits = checks.score_rows("logits", logits)
    checks.check_finite("logits", logits)
    checks.check_interval("gamma", gamma, 0)
    labels = checks.array_of("labels", labels)
    labels = labels if labels.shape else jnp.broadcast_to(labels, logits.shape[:-1])
    return focal_loss(inverse_focal_calibration(logits, gamma), labels, gamma)


def _arguments(p, q, gamma):
    """Checked arrays, where gamma gets a class axis of one."""
    checks.check_distribution("p", p)
    checks.check_distribution("q", q)
    checks.check_interval("gamma", gamma, 0)
    p, q = checks.broadcast(p=p, q=q)
    (gamma,) = checks.floats(checks.number_array("gamma", gamma, p.shape[:-1]))
    return p, q, jnp.broadcast_to(gamma, p.shape[:-1])[..., None]


def _log(q):
    """Log q, minus infinity at 0 without a NaN in its gradient."""
    return jnp.where(q > 0, jnp.log(jnp.where(q > 0, q, 1)), -jnp.inf)


def _expected(weights, values):
    """Sum over classes of weight times value, where a weight of 0 makes any value 0, infinite ones too."""
    return jnp.sum(weights * jnp.where(weights > 0, values, 0), axis=-1)
