"""Clusters of examples that belong together: pixels of an image, tokens of a text, visits of a patient."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import stdtrit

from focalgeo import checks
from focalgeo.types import Array, InputError

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
    weights: Float[Array, " examples"] | None = None  # how often each example counts; None counts each once

    @classmethod
    def of(cls, clusters: object, labels: Array, weights: object = None) -> "Clusters | None":
        """Those named by numbers or names, one for each label; None stays None.

        With weights each example is a cluster, if none are named, as if it stood there so often.
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
            weights = np.asarray(checks.mask_array(weights, labels.shape[:1], "weights"), np.float32)
        sizes = np.bincount(index, weights)
        worth = max(float(sizes.sum()) ** 2 / float(sizes @ sizes), _LEAST_WORTH)
        quantile = stdtrit(worth - 1, 0.975)
        return cls(index.astype(np.int32), len(sizes), *np.float32([worth, quantile]), weights)

    @property
    def counts(self) -> Array:
        """How often each example counts [examples]."""
        return np.ones(len(self.index), np.float32) if self.weights is None else self.weights

    @property
    def spread(self) -> Array:
        """By what a standard error is multiplied."""
        return (self.worth / (self.worth - 1)) ** 0.5
