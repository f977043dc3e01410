"""Stacking: the mixture of the calibrated probabilities of several methods, with the shares of least NLL."""

from collections.abc import Sequence
from functools import reduce

import numpy as np
from jaxtyping import Float

from focalgeo.calibration import maps
from focalgeo.trees import namespace
from focalgeo.types import Array

MOST_STEPS, _GAIN = 200, 1e-9  # of EM; nats
PRIOR = 0.2  # over the number of classes: examples that each member has beforehand
_LEAST = 1e-6  # share, below which a member is left out
_MOST_EXAMPLES = 100_000  # so few numbers are settled by them


@np.errstate(under="ignore")
def mixture_shares(
    likelihoods: Float[Array, "members examples"],
    weight: Float[Array, " examples"],
    prior: float = 0.0,
    most_steps: int = MOST_STEPS,
) -> Float[Array, " members"]:
    """The shares s, which sum to 1, with the least sum of -log sum_m s_m p_m less prior sum_m log s_m.

    By expectation maximisation: the sum is convex in the shares and falls with each step, from equal ones on, until a
    step gains less than 1e-9 nats an example or `most_steps` are made. After 200 members that are much alike may still
    be nearer to equal shares than at the least, which does other examples no harm. Of more than 100,000 examples so
    many are taken at random. For use on the host, in float64.

    Args:
        likelihoods: Float [members, examples], the probability that each member gives to the label, or that times any
            number above 0 of the example.
        weight: Float [examples], how often each example counts.
        prior: Examples that each member has beforehand: of few examples the shares stay nearer to equal ones. 0 asks
            for the least NLL.
        most_steps: Of the EM.

    Source: Dempster, Laird & Rubin, JRSS B 39 (1977); as stacking, Smyth & Wolpert, Machine Learning 36 (1999).
    """
    weight = np.asarray(weight, np.float64)
    # so few numbers are settled long before: more examples cost time alone
    if len(weight) > _MOST_EXAMPLES:
        some = np.random.default_rng(0).permutation(np.flatnonzero(weight))[:_MOST_EXAMPLES]
        likelihoods, weight = likelihoods[:, some], weight[some]
    prior, weight = prior / weight.sum(), weight / weight.sum()
    shares, last = np.full(len(likelihoods), 1 / len(likelihoods)), np.inf
    for _ in range(most_steps):
        mixed = np.maximum(shares @ likelihoods, np.finfo(np.float64).tiny)
        loss = -(weight @ np.log(mixed)) - prior * np.log(np.maximum(shares, _LEAST)).sum()
        if last - loss < _GAIN:
            break
        shares, last = shares * (likelihoods @ (weight / mixed)) + prior, loss
        shares = shares / shares.sum()
    # a member with next to no share would still be applied to every example
    shares = np.where(shares < _LEAST, 0, shares)
    return shares / shares.sum()


@np.errstate(under="ignore")
def likelihoods(log_probs: Sequence[Array], labels: Array, weight: Array) -> tuple[np.ndarray, np.ndarray]:
    """What each member gives to the labels, [members, examples], over the largest of the members, and the weights.

    Of soft labels each class of an example is one.
    """
    if labels.ndim == 1:
        given = [np.take_along_axis(member, labels[:, None], axis=1)[:, 0] for member in log_probs]
    else:
        given, weight = [np.ravel(member) for member in log_probs], (weight[:, None] * labels).ravel()
    given = np.array(given, np.float64)
    return np.exp(given - given.max(axis=0).clip(-1e300)), weight


@maps.quiet
def mixed(log_probs: Sequence[Float[Array, "*batch classes"]], shares: Array) -> Float[Array, "*batch classes"]:
    """Log-probabilities of sum_m shares_m p_m, normalised, from those of each member."""
    shares = np.asarray(shares, log_probs[0].dtype)
    parts = [member + np.log(share) for member, share in zip(log_probs, shares, strict=True) if share > 0]
    space = namespace(parts[0])
    largest = reduce(space.maximum, parts)
    # a class that no member holds possible: -inf less -inf would be NaN
    largest = space.where(largest > -np.inf, largest, 0)
    scores = largest + space.log(sum(space.exp(part - largest) for part in parts))
    return maps.normalised_possible(scores, log_probs[0])
