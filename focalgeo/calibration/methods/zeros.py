"""Probabilities of 0: which number they stand for where the NLL needs one.

Deployed classifiers give probabilities that are cut, rounded, or shares of votes. A zero among them is not impossible,
and the NLL of an example whose class has one is infinite. What a zero stands for is chosen on validation data, among a
few `candidates`. It serves the NLL and fits by NLL alone: accuracy, ECE and Brier score are those of the outputs.

`log_probabilities` writes log 1.2e-38 for a zero, which no probability of a classifier is by chance: so logits say
which of their entries are zeros.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
import numpy as np

from focalgeo.calibration import maps
from focalgeo.calibration.fits import focal
from focalgeo.trees import namespace
from focalgeo.types import LOG_FLOOR, NEAR_FLOOR, PROBABILITY_FLOOR, Array

_OFF_ONE = 0.5  # by which rows of rounded probabilities may miss 1
_MOST_NUMBERS = 2**21  # of the logits on which the candidates are compared: each is fitted a few times
_NUM_FOLDS = 5
_LOG_2 = math.log(2)
_MEANINGS = {
    "half_least": "{:.2g}, half of the smallest probability above 0",
    "tenth_least": "{:.2g}, a tenth of the smallest probability above 0",
    "half_usual": "{:.2g}, half of the smallest probability of a usual row",
    "tenth_usual": "{:.2g}, a tenth of the smallest probability of a usual row",
    "row_share": "an equal share of what its row's sum lacks to 1, {:.2g} at most",
    "none": "{:.2g}, the smallest number that float32 holds",
}


class Zeros(msgspec.Struct, frozen=True):
    """What probabilities of 0 stand for."""

    name: Literal[tuple(_MEANINGS)]  # type: ignore[valid-type]  # of a candidate
    value: Annotated[float, msgspec.Meta(gt=0, le=0.5)]  # or the largest one where it depends on the row

    @property
    def meaning(self) -> str:
        """In words."""
        return _MEANINGS[self.name].format(self.value)

    @maps.quiet
    def filled(self, log_probs: Array) -> Array:
        """Log-probabilities [..., classes] with the logarithm of that number in place of each zero, as logits.

        At most half of the least probability above 0 of its row, so that the classes of a row keep their order, and no
        less than float32 holds.
        """
        space, zero = namespace(log_probs), are_zeros(log_probs)
        least = space.min(space.where(zero | space.isinf(log_probs), 0, log_probs), axis=-1, keepdims=True)
        share = self.value
        if self.name == "row_share":
            left = 1 - space.sum(space.where(zero, 0, space.exp(space.minimum(log_probs, 0))), axis=-1, keepdims=True)
            count = space.sum(space.where(zero, 1.0, 0.0), axis=-1, keepdims=True)
            share = space.minimum(space.maximum(left / space.maximum(count, 1), 0.1 * share), share)
        filled = space.maximum(space.minimum(space.log(share), least - _LOG_2), LOG_FLOOR)
        return space.where(zero, filled, log_probs).astype(log_probs.dtype)


@maps.quiet
def are_zeros(log_probs: Array) -> Array:
    """Which entries [..., classes] are probabilities of 0, as `log_probabilities` writes them; none of logits."""
    space = namespace(log_probs)
    total = space.sum(space.exp(space.minimum(log_probs, 1)), axis=-1, keepdims=True)
    return (space.abs(log_probs - LOG_FLOOR) < NEAR_FLOOR) & (space.abs(total - 1) < _OFF_ONE)


def candidates(probs: Array) -> Iterator[Zeros]:
    """What zeros of these probabilities [examples, classes] may stand for.

    - "half_least": half of the least probability above 0: half a vote, or half of what outputs are cut at.
    - "tenth_least": a tenth of it, as of many classes that share what is cut.
    - "half_usual", "tenth_usual": the same of the least probability of a usual row with a zero, as of votes among which
      a few leaves are impure.
    - "row_share": the zeros of a row share what it lacks to 1, each half of the least probability at most and a tenth
      of that at least, as of rounded outputs.
    - "none": 1.2e-38, as of probabilities that a formula makes so small.
    """
    zero = probs <= PROBABILITY_FLOOR
    of_rows = np.where(zero, 1, probs).min(axis=1)
    least, usual = np.minimum([of_rows.min(), np.median(of_rows[zero.any(axis=1)])], 1 / probs.shape[1]).tolist()
    yield Zeros("half_least", least / 2)
    yield Zeros("tenth_least", least / 10)
    if usual > 2 * least:
        yield Zeros("half_usual", usual / 2)
        yield Zeros("tenth_usual", usual / 10)
    yield Zeros("row_share", least / 2)
    yield Zeros("none", PROBABILITY_FLOOR)


def half_filled(log_probs: Array) -> Array | None:
    """By half of the least probability, where nothing is fitted; None without zeros."""
    zero = are_zeros(log_probs)
    return next(candidates(_probs(log_probs, zero))).filled(log_probs) if zero.any() else None


@maps.quiet
def _probs(log_probs, zero):
    return np.where(zero, 0, np.exp(np.minimum(log_probs, 0)))


def chosen(logits: Array, labels: Array, weight: Array) -> Zeros | None:
    """The candidate of the least NLL of temperature scaling on held-out folds; None where there are no zeros.

    Labels are classes [examples], or soft ones. Of many examples some are taken.
    """
    if np.min(logits) > LOG_FLOOR + NEAR_FLOOR or not (zero := are_zeros(logits)).any():
        return None
    every, first = max(1, np.size(logits) // _MOST_NUMBERS), zero.any(axis=1).argmax()
    some = np.union1d(np.arange(0, len(labels), every), first)  # with a zero among them
    zero, logits, labels, weight = (array[some] for array in (zero, logits, labels, weight))
    fold = np.random.default_rng(0).permutation(len(labels)) % _NUM_FOLDS

    def loss(candidate):
        filled = candidate.filled(logits)
        # One more example, whose label is a zero: where few are, val may have none, and the next example be one.
        temperature = focal.temperature_fit(filled, labels, weight).temperature
        scores = maps.temperature_scaling(filled, temperature)
        total = -float(scores[zero].mean(dtype=np.float64))
        for index in range(min(_NUM_FOLDS, len(labels)) if len(labels) > 1 else 0):
            inside = fold == index
            others, held_out = ((filled[rows], labels[rows], weight[rows]) for rows in (~inside, inside))
            log_temperature = math.log(focal.temperature_fit(*others).temperature)
            total += focal.temperature_sums(log_temperature, *held_out)[2]
        return total

    return min(candidates(_probs(logits, zero)), key=loss)
