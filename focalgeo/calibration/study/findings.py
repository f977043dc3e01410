"""Findings about outputs and fits that a reader should know before trusting the numbers, a sentence each.

`suspicions` are of outputs before anything is fitted; these are of how many examples there are for what is asked of
them, of how val and test differ, and of fits that did not converge.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from scipy import special  # scipy.stats takes a second to import

from focalgeo.calibration.examples import Outputs
from focalgeo.calibration.methods import Fitted
from focalgeo.calibration.methods.zeros import are_zeros
from focalgeo.calibration.metrics import chance
from focalgeo.calibration.study import comparison, suspicions
from focalgeo.rows import LEAST_EXAMPLES
from focalgeo.types import Array

_PER_BIN = 50  # examples for each bin; with fewer, noise is a large part of an ECE
_STANDARD_ERRORS = 3.0  # from which on a difference between val and test is named
_LEVEL = 0.0027  # the two-sided p-value of 3 standard errors
_FEWEST_EXPECTED = 5  # examples of a class for Pearson's test; what has fewer is pooled
_REPEATED = 0.01  # share of the examples that repeat others, from which on it is named
_ONE_LABEL = 0.99  # share of the rows that are repeated with one label; with less, rounding has made them equal


def of_study(splits: Mapping[str, Outputs], fits: Sequence[Fitted], settings: comparison.Settings) -> Iterator[str]:
    """What is to be known of outputs with labels: val, test where it is measured, and others, which are added to these.

    `compare` has said itself what speaks against val and test.
    """
    val, measured = splits["val"], "test" if "test" in splits else "val"
    for name, (logits, labels, _, clusters, weights) in splits.items():
        if name in ("val", "test"):
            continue
        weights = np.ones(len(labels)) if weights is None else weights
        yield from suspicions.of_split(name, logits, labels, weights, clustered=clusters is not None)
        yield from suspicions.of_both(val[:2], (logits, labels), name)
    yield from _of_zeros(splits, fits[0].zeros)
    n, num_bins, num_folds = len(splits[measured].labels), settings.num_bins, settings.num_folds
    if n < _PER_BIN * num_bins:
        plainest = next((fitted for fitted in fits if fitted.criterion and fitted.converged), fits[0])
        log_probs = np.asarray(plainest.predict_log_proba(splits[measured].logits, splits[measured].group))
        of_one = log_probs.shape[1] == 2  # P(1), as elsewhere
        floor = chance.floor_of(chance.confidence_of(log_probs[:, of_one:]), num_bins=num_bins, num_draws=1000)
        yield (
            f"{n:,} examples of {measured} are few for {num_bins} bins: even a perfectly calibrated model would show an"
            f" ECE{' of P(1)' * of_one} of about {100 * floor.mean:.1f}%. Look at the intervals, give more examples, or"
            f" use --num-bins={max(n // _PER_BIN, 1)}."
        )
    # classes without an example, or that some fit of the other folds may not see where a method has their numbers
    counts = np.bincount(val.labels, minlength=val.logits.shape[1])
    missing, rare = np.flatnonzero(counts == 0), np.flatnonzero((counts > 0) & (counts < num_folds))
    by_class = any("biases" in fitted.params for fitted in fits)
    if missing.size:
        what = f"No example of val has label {listed(missing)}: what the methods do to such a class was never checked."
        barred = "Methods with numbers of each class are not chosen for that"
        yield f"{what} {barred}: if these classes cannot occur, leave their columns out." if by_class else what
    if rare.size and by_class:
        what = f"Fewer than {num_folds} examples of val, the number of folds, have label {listed(rare)}"
        yield f"{what}: what methods with numbers of each class do to them rests on next to nothing."
    if measured == "test":
        yield from _of_shift(val, splits["test"])
    group = splits[measured].group
    names, sizes = np.unique([] if group is None else group, return_counts=True)
    if small := names[sizes < LEAST_EXAMPLES].tolist():
        few = f"Groups with fewer than {LEAST_EXAMPLES} examples"
        yield f"{few} are left out of the table of groups: {listed(small)}."


def _of_zeros(splits, zeros):
    """What probabilities of 0 stand for, and how often the label has one."""
    found = {name: (are_zeros(split.logits), split.labels) for name, split in splits.items() if zeros}
    counts = [
        f"{zero.sum():,} of {zero.size:,} of {name} ({zero[np.arange(len(labels)), labels].sum():,} of the true class)"
        for name, (zero, labels) in found.items()
        if zero.any()
    ]
    if zeros:
        yield (
            f"Some probabilities are 0: {' and '.join(counts)}. In the NLL, and in fits by NLL, a 0 counts as"
            f" {zeros.meaning}: of a few candidates it predicts held-out parts of val best. Other metrics take it as 0."
            " --floor sets another value; logits keep more."
        )


def of_fits(fits: Sequence[Fitted], chosen: Fitted | None) -> Iterator[str]:
    """A sentence for each fit that did not converge, but that which is used."""
    for fitted in fits:
        if not fitted.converged and fitted is not chosen:
            where = " and ".join(f"{name} {value:.4g}" for name, value in fitted.searched.items())
            why = f"ended at {where}, an end of the range searched" if fitted.at_end else "did not converge"
            yield f"{fitted.method.title} by {fitted.criterion.replace('_', ' ').upper()} {why}: it is not chosen."


def repeated(name: str, logits: Array, labels: Array) -> Iterator[str]:
    """Rows that are in a split several times with one label; rows that rounding has made equal have several.

    Those whose confidence is exactly 1 count for nothing: they are equal where a model is sure.
    """
    unsure = suspicions.confidence(logits) < 1
    rows = suspicions.hashes(logits[unsure])
    times, labelled = Counter(rows), set(zip(rows, labels[unsure].tolist(), strict=True))
    copies, several = len(rows) - len(times), sum(number > 1 for number in times.values())
    if copies > _REPEATED * len(labels) and len(labelled) - len(times) <= (1 - _ONE_LABEL) * several:
        what = f"{copies:,} of {len(labels):,} rows of {name} repeat others in all logits and the label"
        yield f"{what}: if they are copies, leave them out: intervals and folds count them as independent."


def _of_shift(*splits):
    table = np.stack([np.bincount(labels, minlength=logits.shape[1]) for logits, labels, *_ in splits])
    if chi_square_p_value(table[:, table.any(axis=0)]) < _LEVEL:
        yield "Val and test differ significantly in their class shares: one fit may not suit both."
    quantities = {
        "accuracy": [logits.argmax(1) == labels for logits, labels, *_ in splits],
        "mean confidence": [suspicions.confidence(logits) for logits, *_ in splits],
    }
    for name, (first, second) in quantities.items():
        error = math.sqrt(first.var() / len(first) + second.var() / len(second))
        if abs(first.mean() - second.mean()) > _STANDARD_ERRORS * error:
            shares = f"{100 * first.mean():.1f}% on val, {100 * second.mean():.1f}% on test"
            yield f"Val and test differ significantly in {name} ({shares}): a fit on one may not suit both."


def chi_square_p_value(table: np.ndarray) -> float:
    """The p-value of Pearson's test that the rows of a table of counts [2, classes] have the same shares.

    Classes of which a row is expected to hold fewer than 5 are taken together, with the rarest of the others where they
    are too few together: of them the test is not valid.
    """
    table = table[:, np.argsort(table.sum(axis=0))]
    expected = table.sum(axis=1).min() / table.sum() * table.sum(axis=0)
    rare = max(np.count_nonzero(expected < _FEWEST_EXPECTED), np.searchsorted(expected.cumsum(), _FEWEST_EXPECTED) + 1)
    table = np.add.reduceat(table, [0, *range(rare, table.shape[1])], axis=1)
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    statistic = ((table - expected) ** 2 / expected).sum()
    return special.chdtrc(max(table.shape[1] - 1, 1), statistic)


def listed(values: Sequence) -> str:
    """The first eight, with commas."""
    return ", ".join(map(str, values[:8])) + (", ..." if len(values) > 8 else "")
