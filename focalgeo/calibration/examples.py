"""Outputs of a classifier, clusters of examples that belong together, and several labels a row."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from scipy.special import stdtrit

from focalgeo import checks
from focalgeo.types import OFF_ONE, PROBABILITY_FLOOR, Array, InputError, floored_log, is_one_hot, shown

_LEAST_WORTH = 1.01  # of which Student's interval holds any number


class Clusters(NamedTuple):
    """Which examples are drawn together, and how wide an interval is that rests on so many clusters.

    Intervals are Student's of K - 1 degrees of freedom, with standard errors times sqrt(K / (K - 1)), where K = n^2 /
    sum of n_c^2 is the number of clusters of one size each that is worth as much: a few large ones decide. How often
    they cover is in experiments/posthoc.

    Source: Kish, Survey Sampling (1965), the effective number.
    """

    index: Int[Array, " examples"]  # from 0
    number: int  # of clusters
    worth: Array  # K
    quantile: Array  # Student's at 97.5%
    counts: Float[Array, " examples"]  # how often each example counts

    @classmethod
    def of(cls, clusters: object, labels: Array, weights: object = None) -> "Clusters | None":
        """Those named by numbers or names, one for each label; None stays None.

        With weights each example is a cluster, if none are named, as if its row were repeated.
        """
        if clusters is None and weights is None:
            return None
        array = np.arange(len(labels)) if clusters is None else np.asarray(clusters)
        checks.check_array(f"clusters for labels {labels.shape}", array, shape=labels.shape[:1])
        if array.dtype.kind not in "biufUSM" or (array != array).any():
            raise InputError(
                f"clusters are {array.dtype}: give a number or name for each example, and none that is NaN"
            )
        names, index = np.unique(array, return_inverse=True)
        if len(names) < 2:
            raise InputError("clusters are all one: resampling draws whole clusters, so give two at least")
        if weights is not None:
            checks.check_above("weights", weights, 0)
            weights = checks.weight_array(weights, labels.shape[:1])
        counts = np.asarray(np.ones(len(index)) if weights is None else weights, np.float32)
        sizes = np.bincount(index, counts)
        worth = max(sizes.sum() ** 2 / (sizes @ sizes), _LEAST_WORTH)
        quantile = stdtrit(worth - 1, 0.975)
        return cls(index.astype(np.int32), len(sizes), *np.float32([worth, quantile]), counts)

    @property
    def spread(self) -> Array:
        """By what a standard error is multiplied."""
        return (self.worth / (self.worth - 1)) ** 0.5


def log_probabilities(
    probs: Float[Array, "*batch classes"], *, floor: float = PROBABILITY_FLOOR
) -> Float[Array, "*batch classes"]:
    """Log max(p, floor) in float32, as logits or log-probabilities of probabilities that may hold 0.

    Rows [..., classes] sum to 1 within 0.01. `fit`, a fitted method, the estimators and `Outputs` (for `compare`) take
    probabilities as `probs=`, in place of logits, and apply this function: [examples, classes], or P(1) [examples] of
    two classes.

    The default floor, 1.2e-38, is the least number of full precision in float32: an NLL says no more than 87.3 of an
    example whose true class has probability 0. `fit` and `compare` know such entries for zeros, and choose on the
    validation split what they stand for. With another floor, such as half a vote, 0.5 / trees, rows are divided by
    their sums.

    Example:
        >>> votes = np.float32([[0, 50], [20, 30]])
        >>> print(np.asarray(calibration.log_probabilities(votes / 50, floor=0.01)).round(4))
        [[-4.6151 -0.01  ]
         [-0.9163 -0.5108]]
        >>> fitted = calibration.fit("temperature", probs=p, labels=outcomes)
        >>> print(fitted.predict_proba(probs=p[:1]).round(4))
        [[0.7933 0.2067]]
    """
    rows = checks.score_rows("probs", probs)
    checks.check_distribution("probs", rows, off=OFF_ONE)
    checks.check_interval("floor", floor, PROBABILITY_FLOOR, 0.5)
    if checks.is_traced(rows):
        floored = jnp.maximum(rows.astype(jnp.float32), floor)
        return jnp.log(floored / jnp.sum(floored, axis=-1, keepdims=True) if floor > PROBABILITY_FLOOR else floored)
    return jnp.asarray(floored_log(np.asarray(rows), floor))


def as_logits(logits: Array | None, probs: Array | None) -> Array:
    """The logits, or those of probs [examples, classes] or P(1) [examples], of which one is given."""
    if (logits is None) == (probs is None):
        raise InputError("give logits, or probabilities as probs=, one of the two; labels as labels=")
    if probs is None:
        return logits
    array = checks.number_array("probs", probs)
    if array.ndim == 1 or array.shape[1:] == (1,):
        checks.check_interval("P(1) (of log-odds s give jax.nn.log_softmax(np.c_[0 * s, s]))", array, 0, 1)
        array = (jnp if checks.is_traced(array) else np).stack([1 - array, array], axis=1).reshape(-1, 2)
    return log_probabilities(array)


class _Split(NamedTuple):
    logits: Array  # float [examples, classes]
    labels: Array  # int [examples]
    group: Array | None = None  # the name of each example's group
    clusters: Array | None = None  # the number or name of each example's cluster; None where all are independent
    weights: Array | None = None  # how often each example counts, above 0; None counts each once


class Outputs(_Split):
    """A classifier's outputs on one split, `probs=` in place of logits; a plain pair (logits, labels) will do."""

    def __new__(cls, logits=None, *others, probs=None, **named):
        """Those of `probs` as logits."""
        if not (others or "labels" in named):
            raise InputError("no labels: give each as (logits, labels), or Outputs(probs=probs, labels=labels)")
        return super().__new__(cls, as_logits(logits, probs), *others, **named)


def prevalence_weights(labels: Array, prevalence: float | None, weights: Array | None = None) -> Array | None:
    """How often each example counts, so that class 1 has this prevalence: pi / r in class 1, else (1 - pi) / (1 - r).

    So outputs of a rebalanced data set, as by undersampling, are fitted and measured as in use. Temperature scaling
    keeps P(1) = 0.5 in its place; Platt scaling, beta calibration and `stacking` move it.

    Args:
        labels: Int [examples], 0 and 1, both of them.
        prevalence: pi, the share of class 1 in use, above 0 and below 1; None gives the weights as they are.
        weights: Float [examples], how often each counts besides; r is the share of class 1 by these. None counts once.

    Returns:
        Float64 [examples] with the sum of the weights, for `weights=` of metrics and fits.

    Source: Elkan, The Foundations of Cost-Sensitive Learning, IJCAI 2001; Saerens, Latinne & Decaestecker, Neural
    Computation 14 (2002), the ratio of priors.

    Example:
        >>> print(calibration.prevalence_weights(np.array([1, 1, 0, 0]), 0.02))
        [0.04 0.04 1.96 1.96]
    """
    if prevalence is None:
        return weights
    checks.check_interval("prevalence", prevalence, 1e-6, 1 - 1e-6)
    labels = np.asarray(labels)
    labels = labels.argmax(axis=1) if is_one_hot(labels) else labels
    weights = np.float64(np.ones(len(labels)) if weights is None else checks.weight_array(weights, labels.shape[:1]))
    if (classes := np.unique(labels[weights > 0]).tolist()) != [0, 1]:
        raise InputError(f"labels hold the classes {shown(classes)}: for a prevalence, that of class 1, give 0 and 1")
    share = weights @ labels.clip(0, 1) / weights.sum()
    return weights * np.where(labels == 1, prevalence / share, (1 - prevalence) / (1 - share))


def binary_outputs(
    scores: Array,
    labels: Array,
    names: Sequence[str] | None = None,
    *,
    clusters: Array | None = None,
    weights: Array | None = None,
) -> Outputs:
    """Make an example of two classes of each pair of a row and a label: class 1 where the row has the label.

    Args:
        scores: Float [rows, labels], logits s of P(label) = sigmoid(s); scores that may be probabilities are warned of.
        labels: [rows, labels] of 0 and 1, any number of ones in a row; NaN or -1 where a label is missing.
        names: Names of the labels; None names them 0, 1, ...
        clusters: [rows], which rows belong together; None takes each by itself.
        weights: Float [rows], how often each counts.

    Returns:
        Outputs of rows * labels examples, but for missing labels, row by row, with logits (0, s). Groups are the
        labels, so that "temperature_scaling_by_group" has a temperature for each and "macro_class1_ece" is the mean of
        their ECE; clusters are the rows, so that intervals draw whole rows.

    Example:
        >>> tags = calibration.binary_outputs(np.float32([[2, -1], [0, 1]]), [[1, 0], [1, 1]], ["cat", "dog"])
        >>> print(tags.labels, tags.group, tags.clusters)
        [1 0 1 1] ['cat' 'dog' 'cat' 'dog'] [0 0 1 1]
    """
    scores, labels = np.asarray(checks.score_rows("scores", scores, shape=(None, None))), np.asarray(labels)
    there = (labels == labels) & (labels != -1)  # NaN differs from itself
    if labels.shape != scores.shape or not np.isin(labels[there], (0, 1)).all():
        mend = "give a 0 or a 1 for each of these, NaN or -1 where it is missing"
        raise InputError(f"labels {labels.shape} for scores {scores.shape}: {mend}")
    checks.check_logits("scores", scores[..., None], stacklevel=3)
    count = scores.shape[1]
    names = np.array(range(count) if names is None else names, str)
    if len(set(names)) != count:
        raise InputError(f"names are {len(set(names))} for {count} labels: give each label one of its own")
    row, label = np.nonzero(there)
    logits = np.stack([np.zeros_like(scores), scores], axis=-1)[there]
    clusters = row if clusters is None else np.asarray(clusters)[row]
    weights = None if weights is None else np.asarray(weights)[row]
    return Outputs(logits, labels[there].astype(np.int32), names[label], clusters, weights)
