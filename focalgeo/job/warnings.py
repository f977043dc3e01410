"""Warnings of the calibrate command: what a reader should know before trusting the numbers, one sentence each."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import gammaincc  # scipy.stats takes a second to import

from focalgeo.calibration import Fitted
from focalgeo.data.logits_files import Outputs
from focalgeo.job.inputs import Inputs, Options
from focalgeo.rows import LEAST_EXAMPLES
from focalgeo.types import PROBABILITY_FLOOR, Array

PER_BIN = 50  # examples for each bin; with fewer, noise is a large part of an ECE
STANDARD_ERRORS = 3.0  # from which on a difference between val and test is named
LEVEL = 0.0027  # the two-sided p-value of 3 standard errors
FEWEST_EXPECTED = 5  # examples of a class for Pearson's test; what has fewer is pooled
REPEATED = 0.01  # share of the examples that repeat others, from which on it is named
ONE_LABEL = 0.99  # share of the repeated rows that have one label each; with less, rounding has made them equal


def input_warnings(options: Options, inputs: Inputs, fits: Sequence[Fitted]) -> list[str]:
    """All warnings about the files and the fits; an empty list where there are none."""
    val, test, also = inputs
    splits = {"val": val} if test is None else {"val": val, "test": test}
    where, measured = list(splits.items())[-1]
    plainest = next((fitted for fitted in fits if fitted.criterion and fitted.converged), fits[0])
    found = [text for name, outputs in splits.items() for text in _of_file(name, outputs)]
    found += _of_bins(where, plainest.predict_log_proba(measured.logits), options.num_bins)
    found += _of_labels(val) + _of_rare_labels(val, options.num_folds, fits)
    found += [text for name, outputs in splits.items() for text in _of_copies(name, outputs)]
    found += [text for place, split in enumerate(splits.items()) for text in _of_order(also, place, *split)]
    found += [] if test is None else _of_shift(val, test)
    return found + _of_groups(measured) + _of_fits(fits)


def _of_file(name: str, outputs: Outputs) -> list[str]:
    found, n = [], len(outputs.labels)
    if outputs.looks_like_probs:
        found.append(
            f"The logits of {name} look like probabilities: every row is in [0, 1] and sums to 1. If they are, use"
            " --probs-key; everything here takes them for logits."
        )
    if outputs.saturated:
        found.append(
            f"{outputs.saturated:,} of {n:,} examples of {name} have a probability of exactly 0 or 1: rounding has"
            " taken how sure the model was there, and no method can give it back. Give logits if you can."
        )
    if outputs.given == "probs":
        at_floor = int((outputs.logits[np.arange(n), outputs.labels] <= np.float32(math.log(PROBABILITY_FLOOR))).sum())
        if at_floor:
            found.append(
                f"In {at_floor:,} examples of {name} the true class has probability 0, which is taken for"
                f" {PROBABILITY_FLOOR:.1e}: the NLL there says no more than that floor."
            )
    return found


def _of_bins(name: str, log_probs: Array, num_bins: int) -> list[str]:
    n = len(log_probs)
    if n >= PER_BIN * num_bins:
        return []
    advice = max(n // PER_BIN, 1)
    return [
        f"{n:,} examples of {name} are few for {num_bins} bins: even a perfectly calibrated model would show an ECE of"
        f" about {100 * noise_floor(log_probs, num_bins):.1f}%. Look at the intervals, give more examples, or use"
        f" --num-bins={advice}."
    ]


def noise_floor(log_probs: Array, num_bins: int) -> float:
    """The ECE that chance leaves if every confidence is true: the sum over bins of sqrt(2 n c (1 - c) / pi) / N."""
    confidence = _confidence(log_probs)
    index = np.clip(np.ceil(confidence * num_bins).astype(int) - 1, 0, num_bins - 1)
    variance = np.bincount(index, confidence * (1 - confidence), num_bins)
    return float(np.sqrt(2 * variance / math.pi).sum() / len(confidence))


def _of_labels(val: Outputs) -> list[str]:
    counts = np.bincount(val.labels, minlength=val.logits.shape[1])
    missing = np.flatnonzero(counts == 0)
    if not missing.size:
        return []
    classes = "this class" if missing.size == 1 else "these classes"
    return [f"No example of val has label {_listed(missing)}: what the methods do to {classes} was never checked."]


def _of_rare_labels(val: Outputs, num_folds: int, fits: Sequence[Fitted]) -> list[str]:
    """Classes that some fit of the other folds may not see, where a method fits numbers of each class."""
    counts = np.bincount(val.labels, minlength=val.logits.shape[1])
    rare = np.flatnonzero((counts > 0) & (counts < num_folds))
    if not rare.size or not any("biases" in fitted.params for fitted in fits):
        return []
    what = f"Fewer than {num_folds} examples of val, the number of folds, have label {_listed(rare)}"
    return [f"{what}: what methods with numbers of each class do to them rests on next to nothing."]


def _of_copies(name: str, outputs: Outputs) -> list[str]:
    """Rows that stand there several times with one label; rows that rounding has made equal have several.

    Rows whose confidence is exactly 1 count for nothing: they are equal where a model is sure.
    """
    n, unsure = len(outputs.labels), _confidence(outputs.logits) < 1
    logits, labels = np.ascontiguousarray(outputs.logits[unsure] + np.float32(0)), outputs.labels[unsure]  # -0 is 0
    rows = logits.view(np.dtype((np.void, logits.dtype.itemsize * logits.shape[1])))[:, 0]
    _, first, index, counts = np.unique(rows, return_index=True, return_inverse=True, return_counts=True)
    of_one_label = np.bincount(index, labels != labels[first[index]], len(counts)) == 0
    copies = int((counts - 1)[of_one_label].sum())
    if copies <= REPEATED * n or copies < ONE_LABEL * (counts - 1).sum():
        return []
    what = f"{copies:,} of {n:,} rows of {name} repeat others in all logits and the label"
    return [f"{what}: if they are copies, leave them out: intervals and folds count them as independent."]


def _of_order(
    also: Mapping[str, tuple[np.ndarray, np.ndarray | None]], split: int, name: str, outputs: Outputs
) -> list[str]:
    """Predictions from elsewhere that are as right as by chance, where the outputs as given are not."""
    n, right = len(outputs.labels), outputs.logits.argmax(1) == outputs.labels
    found = []
    for method, by_split in also.items():
        predicted = by_split[split].argmax(1)
        theirs = predicted == outputs.labels
        shares = [np.bincount(each, minlength=outputs.logits.shape[1]) / n for each in (predicted, outputs.labels)]
        chance = float(shares[0] @ shares[1])  # of the same predictions in any other order
        near = STANDARD_ERRORS * math.sqrt(chance * (1 - chance) / n)
        apart = right.astype(float) - theirs
        if theirs.mean() <= chance + near and apart.mean() > STANDARD_ERRORS * apart.std() / math.sqrt(n):
            what = f"--also={method} is right in {100 * theirs.mean():.1f}% of {name}, no more than by chance"
            given = f"the outputs as given in {100 * right.mean():.1f}%"
            found.append(f"{what}, and {given}: are its rows in the order of --{name}?")
    return found


def _listed(values: np.ndarray) -> str:
    return ", ".join(map(str, values[:8])) + (", ..." if len(values) > 8 else "")


def _of_shift(val: Outputs, test: Outputs) -> list[str]:
    if _alike(val, test):
        return [
            "Val and test hold the same examples: the methods are measured on what they were fitted on, which flatters "
            "them."
        ]
    found = []
    table = np.stack([np.bincount(each.labels, minlength=val.logits.shape[1]) for each in (val, test)])
    if _chi_square_p_value(table[:, table.any(axis=0)]) < LEVEL:
        found.append("Val and test differ in their class shares beyond noise: one fit may not suit both.")
    quantities = {
        "accuracy": [(each.logits.argmax(1) == each.labels).astype(float) for each in (val, test)],
        "mean confidence": [_confidence(each.logits) for each in (val, test)],
    }
    for name, (first, second) in quantities.items():
        error = math.sqrt(first.var() / len(first) + second.var() / len(second))
        if abs(first.mean() - second.mean()) > STANDARD_ERRORS * error:
            shares = f"{100 * first.mean():.1f}% on val, {100 * second.mean():.1f}% on test"
            found.append(f"Val and test differ in {name} beyond noise ({shares}): a fit on one may not suit both.")
    return found


def _chi_square_p_value(table: np.ndarray) -> float:
    """The p-value of Pearson's test that the rows of a table of counts [2, classes] have the same shares.

    Classes of which a row is expected to hold fewer than 5 are taken together: of them the test is not valid.
    """
    table = _pooled(table)
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0, keepdims=True) / table.sum()
    statistic = ((table - expected) ** 2 / expected).sum()
    return float(gammaincc((table.shape[1] - 1) / 2, statistic / 2)) if table.shape[1] > 1 else 1.0


def _pooled(table: np.ndarray) -> np.ndarray:
    """The table with its rare classes as one; with the rarest of the others, where they are too few together."""
    share = table.sum(axis=1).min() / table.sum()
    table = table[:, np.argsort(table.sum(axis=0))]
    expected = share * table.sum(axis=0)
    rare = max(np.count_nonzero(expected < FEWEST_EXPECTED), np.searchsorted(expected.cumsum(), FEWEST_EXPECTED) + 1)
    return np.concatenate([table[:, :rare].sum(axis=1, keepdims=True), table[:, rare:]], axis=1)


def _alike(val: Outputs, test: Outputs) -> bool:
    """Whether the two hold the same examples, perhaps in files of two formats."""
    return np.array_equal(val.labels, test.labels) and np.array_equal(val.logits, test.logits)


def _of_groups(outputs: Outputs) -> list[str]:
    if outputs.group is None:
        return []
    names, counts = np.unique(outputs.group, return_counts=True)
    small = names[counts < LEAST_EXAMPLES]
    if not small.size:
        return []
    return [f"Groups with fewer than {LEAST_EXAMPLES} examples are left out of the table of groups: {_listed(small)}."]


def _of_fits(fits: Sequence[Fitted]) -> list[str]:
    found = []
    for fitted in (each for each in fits if not each.converged):
        where = " and ".join(f"{name} {value:.4g}" for name, value in fitted.searched.items())
        which = f"{fitted.method.title} by {fitted.criterion.replace('_', ' ').upper()}"
        why = f"ended at {where}, an end of the range searched" if fitted.at_end else "did not converge"
        found.append(f"{which} {why}: it is not chosen.")
    return found


def _confidence(logits: Array) -> np.ndarray:
    shifted = np.asarray(logits, np.float64) - np.max(logits, axis=1, keepdims=True)
    return 1 / np.exp(shifted).sum(axis=1)
