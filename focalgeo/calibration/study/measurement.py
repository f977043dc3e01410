"""Samples: log-probabilities of one split by one method or more, and all their metrics on the same resamples."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax

from focalgeo import checks
from focalgeo.calibration import metrics
from focalgeo.calibration.examples import Clusters
from focalgeo.calibration.methods import Calibrated
from focalgeo.calibration.metrics import resampling, two_classes
from focalgeo.calibration.metrics.binning import Reliability
from focalgeo.types import OF_CLASS_ONE, Array

CLASS1_METRICS = {"class1_ece": metrics.METRICS["ece"]._replace(function=two_classes.binary_ece)} | {
    name: metrics.METRICS[name] for name in OF_CLASS_ONE
}


class Sample(NamedTuple):
    """Examples of one split with their log-probabilities by one method or more, and how they are measured."""

    split: str
    labels: Array  # int [examples]
    calibrated: Sequence[Calibrated]  # simplest method first; log_probs [examples, classes] each
    key: Array  # PRNG key of the resamples
    num_bins: int  # of binned metrics and of reliability bins
    num_resamples: int  # of the bootstrap, 2 or more
    clusters: Clusters | None = None  # the clusters that are drawn; None where examples are independent


class Measured(NamedTuple):
    """Metrics by one method on some examples and on resamples of them."""

    values: dict[str, Array]  # by name, scalars, or [groups]
    draws: dict[str, Array]  # [resamples], or [resamples, groups]
    bins: Reliability | None
    bin_draws: Reliability | None  # [resamples, bins], where there are clusters


class _Program(NamedTuple):
    """What `measure` computes of a table, as one metric; equal ones are compiled once."""

    entries: tuple[tuple[str, metrics.MetricEntry], ...]
    num_bins: int
    bins: Callable[..., Reliability] | None

    def __call__(self, log_probs, labels, inside=None, *, weights):
        def of(weights):
            return {
                name: entry.function(log_probs, labels, weights=weights, **entry.options(self.num_bins))
                for name, entry in self.entries
            }

        values = of(weights) if inside is None else jax.lax.map(lambda members: of(members * weights), inside)
        return values, self.bins and self.bins(log_probs, labels, num_bins=self.num_bins, weights=weights)


def measure(
    sample: Sample,
    entries: Mapping[str, metrics.MetricEntry],
    *,
    bins: Callable[..., Reliability] | None = None,
    inside: Array | None = None,
) -> list[Measured]:
    """The metrics of these entries, and reliability bins, by each method of a sample: one program serves them all.

    With `inside` [groups, examples] the metrics are [groups], of each group.
    """
    key = checks.prng_key(sample.key)
    for method in sample.calibrated:
        checks.check_array(f"log_probs of {method.method.name}", method.log_probs, shape=(len(sample.labels), None))
    tables = [method.log_probs for method in sample.calibrated]
    of_all = _Program((*entries.items(),), sample.num_bins, bins)
    programs = of_all, of_all if sample.clusters is not None else of_all._replace(bins=None)
    others, name = () if inside is None else (inside,), f"resamples of {sample.split}"
    how = sample.labels, key, sample.clusters, sample.num_resamples, others, name
    found = resampling.drawn(programs, tables, *how)
    filled = [index for index, method in enumerate(sample.calibrated) if method.filled is not None and "nll" in entries]
    if filled:  # the NLL alone needs a number for a probability of 0
        of_nll = _Program((("nll", entries["nll"]),), sample.num_bins, None)
        again = resampling.drawn((of_nll, of_nll), [sample.calibrated[index].filled for index in filled], *how)
        for index, ((values, _), (draws, _)) in zip(filled, again, strict=True):
            found[index][0][0].update(values)
            found[index][1][0].update(draws)
    return [Measured(values, draws, of_bins, bin_draws) for (values, of_bins), (draws, bin_draws) in found]
