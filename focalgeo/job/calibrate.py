"""The calibrate command's composition: outputs of a classifier compared, and everything written into --out.

Of the files and the fits it says what a reader should know before trusting the numbers, one sentence each.
"""

import hashlib
import math
import re
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from warnings import filterwarnings

import numpy as np
from scipy.special import gammaincc  # scipy.stats takes a second to import

from focalgeo import calibration, records, report
from focalgeo.calibration import Comparison, Fitted
from focalgeo.data.logits_files import Keys, Outputs, read_calibrated, read_outputs
from focalgeo.job import provenance, say
from focalgeo.rows import LEAST_EXAMPLES, Row, Seconds
from focalgeo.types import PROBABILITY_FLOOR, Array, InputError, ProbabilityWarning, shown

MOST_GROUPS = 100
COMPARED = ("criterion", "criteria", "metrics", "trained_gamma", "num_folds", "num_bins", "num_resamples", "seed")
PER_BIN = 50  # examples for each bin; with fewer, noise is a large part of an ECE
STANDARD_ERRORS = 3.0  # from which on a difference between val and test is named
LEVEL = 0.0027  # the two-sided p-value of 3 standard errors
FEWEST_EXPECTED = 5  # examples of a class for Pearson's test; what has fewer is pooled
REPEATED = 0.01  # share of the examples that repeat others, from which on it is named
ONE_LABEL = 0.99  # share of the repeated rows that have one label each; with less, rounding has made them equal
_LARGEST = 1e30  # of a statistic in the manifest: JSON has no infinity


class Inputs(NamedTuple):
    """Outputs of val, of test, and predictions from elsewhere, as read from files."""

    val: Outputs
    test: Outputs | None
    also: dict[str, tuple[np.ndarray, np.ndarray | None]]  # name -> log-probabilities of val and of test

    @property
    def splits(self) -> dict[str, Outputs]:
        """The outputs by the name of their split; methods are measured on the last."""
        return {"val": self.val} if self.test is None else {"val": self.val, "test": self.test}


def run_and_print(options: Namespace, *, command: list[str]) -> None:
    """Calibrate, and say on standard output what came out and where the report is."""
    rows, choice = run(options, command=command)
    out = Path(options.out)
    print(report.results_text(rows, records.read_manifest(out), "test" if options.test else "cross_fit"))
    numbers = {name: value for name, value in choice.parameters.items() if isinstance(value, float)}
    fitted = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
    title = choice.method.title.lower()
    print(f"to use: {title}{f' ({fitted})' if fitted else ''}\nreport: {out / 'report.html'}")


def run(options: Namespace, *, command: list[str]) -> tuple[list[Row], Fitted]:
    """Read the files, calibrate and write everything into --out; returns the rows and the method to use.

    options: the flags of focalgeo.calibrate, by their names.

    Raises:
        InputError: whatever is wrong with a file or with --out; then nothing is written. RunError: a metric is not
            finite.
    """
    filterwarnings("ignore", category=ProbabilityWarning)  # the command has its own line
    inputs, out = read_inputs(options), Path(options.out)
    config, settings = make_config(options, inputs), {name: getattr(options, name) for name in COMPARED}
    records.check_workdir(out, config)
    asked = {name: settings[name] for name in COMPARED[:4]}
    classes, methods = inputs.val.logits.shape[1], options.methods or None
    calibration.checked_methods(methods, num_classes=classes, also=inputs.also, **asked)
    with records.locked(out):
        began = time.perf_counter()
        say("fitting, cross-fitting and measuring")
        val, test = (split and calibration.Outputs(split.logits, split.labels, split.group) for split in inputs[:2])
        found = calibration.compare(val, test, methods, also=inputs.also, **settings)
        rows = [*found.rows, Seconds("seconds", "evaluate", time.perf_counter() - began)]
        fits = [fitted for fitted in found.fits if fitted.criterion]
        saved = calibration.calibrator_json(found.choice.fitted, inputs=config["inputs"], fits=fits)
        manifest = {
            "config": config,
            "data": {"name": inputs.val.source.rpartition("/")[2]},
            "calibration": _summary(options, inputs, found, saved),
            **provenance.of_program(command),
        }
        for warning in manifest["calibration"]["warnings"]:
            say(f"warning: {warning}")
        records.write_manifest(out, manifest)
        with records.writing(out):
            (out / records.METRICS_FILE).unlink(missing_ok=True)  # all its rows are made anew, whatever it holds
        records.append_rows(out, rows)
        if found.search:
            records.write_arrays(out, "search", found.search)
        _write_probabilities(out, inputs, found)
        records.write_json(out / "calibrator.json", saved)
        say("drawing the report")
        report.write_report(out)
    return rows, found.choice.fitted


def read_inputs(options: Namespace) -> Inputs:
    """Read val, test and others' predictions, as far as they are given; nothing is written.

    Raises:
        InputError: whatever is wrong with the files, or with the two together.
    """
    keys = Keys(options.logits_key, options.probs_key, options.labels_key, options.group_key)
    val = read_outputs(options.val, keys, where="val")
    test = read_outputs(options.test, keys, where="test") if options.test else None
    inputs = Inputs(val, test, {})
    shapes, also = {name: outputs.logits.shape for name, outputs in inputs.splits.items()}, inputs.also
    if len({classes for _, classes in shapes.values()}) > 1:
        counts = f"val has {shapes['val'][1]} classes and test {shapes['test'][1]}"
        raise InputError(f"{counts}: give two files of one classifier")
    for text in options.also:
        name, _, path = text.partition("=")
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", name) or not path or name in (*also, "val", "test"):
            says = "give NAME=PATH, a new name in letters, digits, - and _ that is no split's, and a file"
            raise InputError(f"--also={shown(text)}: {says}")
        arrays = read_calibrated(path, shapes, where=f"--also={name}")
        also[name] = (arrays["val"], arrays.get("test"))
    where, measured = [*inputs.splits.items()][-1]
    groups, n = 0 if measured.group is None else len(np.unique(measured.group)), len(val.labels)
    limits = [
        (f"group of {where} has {groups} different values", groups, MOST_GROUPS),
        (f"--folds is {options.num_folds} for {n} examples of val", options.num_folds, n),
    ]
    for name, (n, _) in shapes.items():
        limits.append((f"--num-bins is {options.num_bins} for {n} examples of {name}", options.num_bins, n))
    for what, number, most in limits:
        if number > most:
            raise InputError(f"{what}: give at most {most}")
    return inputs


def make_config(options: Namespace, inputs: Inputs) -> dict[str, Any]:
    """The settings and inputs that the results depend on, for the manifest."""
    described = {
        name: {
            "checksum": outputs.checksum,  # not its path, so that a file that has moved is still the same
            "given": outputs.given,
            "examples": len(outputs.labels),
            "classes": outputs.logits.shape[1],
        }
        for name, outputs in inputs.splits.items()
    }
    for name, arrays in inputs.also.items():
        held = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays if array is not None)
        described[name] = {"checksum": f"sha256:{hashlib.sha256(held).hexdigest()}"}
    names = ("num_bins", "num_resamples", "criterion", "criteria", "methods", "metrics")
    evaluation = {name: getattr(options, name) for name in names}
    settings = {"inputs": described, "evaluation": evaluation, "seed": options.seed, "folds": options.num_folds}
    return settings | _trained(options)


def _trained(options: Namespace) -> dict[str, float]:
    return {} if options.trained_gamma is None else {"trained_gamma": options.trained_gamma}


def _summary(options: Namespace, inputs: Inputs, found: Comparison, saved: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest's entry on what was chosen, and how."""
    choice, summary = found.choice, _trained(options)
    if choice.test is not None:
        statistic = float(np.clip(choice.test.statistic, -_LARGEST, _LARGEST))
        summary["score_test"] = {"statistic": statistic, "p_value": choice.test.p_value}
    return summary | {
        "split": "cross_fit" if inputs.test is None else "test",
        "criterion": options.criterion,
        "choice": {name: saved[name] for name in ("method", "criterion", "num_classes", "parameters")},
        "level": choice.level,
        "refused": choice.refused,
        "beaten": choice.beaten,
        "warnings": input_warnings(options, inputs, found.fits),
    }


def _write_probabilities(out: Path, inputs: Inputs, found: Comparison) -> None:
    """Write probabilities/{val,test}.npz by the chosen method; without test cross_fit.npz, each fold by its own fit.

    Each holds probs and log_probs, float32 [examples, classes], and labels; log_probs keep what probs round to 0 or 1.
    """
    fitted, val, test = found.choice.fitted, inputs.val, inputs.test
    written = {"val": (fitted.predict_log_proba(val.logits), val)}
    if test is None:
        own = (fitted.method.name, fitted.criterion)
        held_out = next(out for out in found.held_out if (out.method.name, out.criterion) == own)
        written["cross_fit"] = (held_out.log_probs, val)
    else:
        written["test"] = (fitted.predict_log_proba(test.logits), test)
    for split, (log_probs, outputs) in written.items():
        log_probs = np.asarray(log_probs)
        arrays = {"probs": np.exp(log_probs), "log_probs": log_probs, "labels": outputs.labels}
        records.write_arrays(out, f"probabilities/{split}", arrays)


def input_warnings(options: Namespace, inputs: Inputs, fits: Sequence[Fitted]) -> list[str]:
    """All warnings about the files and the fits; an empty list where there are none."""
    splits = inputs.splits
    name, measured = [*splits.items()][-1]
    warnings = [text for split in splits.items() for text in _of_file(*split)]
    warnings += [*_of_bins(options, name, measured, fits), *_of_labels(options, inputs.val, fits)]
    warnings += [text for split in splits.items() for text in _of_copies(*split)]
    warnings += [text for place, split in enumerate(splits.items()) for text in _of_order(inputs.also, place, *split)]
    warnings += [] if inputs.test is None else _of_shift(inputs.val, inputs.test)
    group = measured.group
    names, counts = np.unique([] if group is None else group, return_counts=True)
    if (counts < LEAST_EXAMPLES).any():
        small = _listed(names[counts < LEAST_EXAMPLES])
        warnings.append(
            f"Groups with fewer than {LEAST_EXAMPLES} examples are left out of the table of groups: {small}."
        )
    for fitted in fits:
        if fitted.converged:
            continue
        where = " and ".join(f"{name} {value:.4g}" for name, value in fitted.searched.items())
        which = f"{fitted.method.title} by {fitted.criterion.replace('_', ' ').upper()}"
        why = f"ended at {where}, an end of the range searched" if fitted.at_end else "did not converge"
        warnings.append(f"{which} {why}: it is not chosen.")
    return warnings


def _of_file(name: str, outputs: Outputs) -> Iterator[str]:
    n = len(outputs.labels)
    if outputs.looks_like_probs:
        yield (
            f"The logits of {name} look like probabilities: every row is in [0, 1] and sums to 1. If they are, use"
            " --probs-key; everything here takes them for logits."
        )
    if outputs.saturated:
        yield (
            f"{outputs.saturated:,} of {n:,} examples of {name} have a probability of exactly 0 or 1: rounding has"
            " taken how sure the model was there, and no method can give it back. Give logits if you can."
        )
    of_true = outputs.logits[np.arange(n), outputs.labels]
    at_floor = int((of_true <= np.float32(math.log(PROBABILITY_FLOOR))).sum())
    if outputs.given == "probs" and at_floor:
        yield (
            f"In {at_floor:,} examples of {name} the true class has probability 0, which is taken for"
            f" {PROBABILITY_FLOOR:.1e}: the NLL there says no more than that floor."
        )


def _of_bins(options: Namespace, name: str, measured: Outputs, fits: Sequence[Fitted]) -> Iterator[str]:
    n, num_bins = len(measured.labels), options.num_bins
    if n < PER_BIN * num_bins:
        plainest = next((fitted for fitted in fits if fitted.criterion and fitted.converged), fits[0])
        floor = noise_floor(plainest.predict_log_proba(measured.logits), num_bins)
        yield (
            f"{n:,} examples of {name} are few for {num_bins} bins: even a perfectly calibrated model would show an ECE"
            f" of about {100 * floor:.1f}%. Look at the intervals, give more examples, or use"
            f" --num-bins={max(n // PER_BIN, 1)}."
        )


def noise_floor(log_probs: Array, num_bins: int) -> float:
    """The ECE that chance leaves if every confidence is true: the sum over bins of sqrt(2 n c (1 - c) / pi) / N."""
    confidence = _confidence(log_probs)
    index = np.clip(np.ceil(confidence * num_bins).astype(int) - 1, 0, num_bins - 1)
    variance = np.bincount(index, confidence * (1 - confidence), num_bins)
    return float(np.sqrt(2 * variance / math.pi).sum() / len(confidence))


def _of_labels(options: Namespace, val: Outputs, fits: Sequence[Fitted]) -> Iterator[str]:
    """Classes without an example, or that some fit of the other folds may not see where a method has their numbers."""
    counts = np.bincount(val.labels, minlength=val.logits.shape[1])
    missing, rare = np.flatnonzero(counts == 0), np.flatnonzero((counts > 0) & (counts < options.num_folds))
    if missing.size:
        yield f"No example of val has label {_listed(missing)}: what the methods do to such a class was never checked."
    if rare.size and any("biases" in fitted.params for fitted in fits):
        what = f"Fewer than {options.num_folds} examples of val, the number of folds, have label {_listed(rare)}"
        yield f"{what}: what methods with numbers of each class do to them rests on next to nothing."


def _of_copies(name: str, outputs: Outputs) -> Iterator[str]:
    """Rows that stand there several times with one label; rows that rounding has made equal have several.

    Rows whose confidence is exactly 1 count for nothing: they are equal where a model is sure.
    """
    n, unsure = len(outputs.labels), _confidence(outputs.logits) < 1
    logits, labels = np.ascontiguousarray(outputs.logits[unsure] + np.float32(0)), outputs.labels[unsure]  # -0 is 0
    rows = logits.view(np.dtype((np.void, logits.dtype.itemsize * logits.shape[1])))[:, 0]
    _, first, index, counts = np.unique(rows, return_index=True, return_inverse=True, return_counts=True)
    of_one_label = np.bincount(index, labels != labels[first[index]], len(counts)) == 0
    copies = int((counts - 1)[of_one_label].sum())
    if copies > REPEATED * n and copies >= ONE_LABEL * (counts - 1).sum():
        what = f"{copies:,} of {n:,} rows of {name} repeat others in all logits and the label"
        yield f"{what}: if they are copies, leave them out: intervals and folds count them as independent."


def _of_order(also: Mapping[str, Sequence[np.ndarray]], split: int, name: str, outputs: Outputs) -> Iterator[str]:
    """Predictions from elsewhere that are as right as by chance, where the outputs as given are not."""
    n, classes, right = len(outputs.labels), outputs.logits.shape[1], outputs.logits.argmax(1) == outputs.labels
    for method, by_split in also.items():
        predicted = by_split[split].argmax(1)
        theirs = predicted == outputs.labels
        shares = [np.bincount(labels, minlength=classes) / n for labels in (predicted, outputs.labels)]
        chance = float(shares[0] @ shares[1])  # of the same predictions in any other order
        near = STANDARD_ERRORS * math.sqrt(chance * (1 - chance) / n)
        apart = right.astype(float) - theirs
        if theirs.mean() <= chance + near and apart.mean() > STANDARD_ERRORS * apart.std() / math.sqrt(n):
            what = f"--also={method} is right in {100 * theirs.mean():.1f}% of {name}, no more than by chance"
            given = f"the outputs as given in {100 * right.mean():.1f}%"
            yield f"{what}, and {given}: are its rows in the order of --{name}?"


def _listed(values: np.ndarray) -> str:
    return ", ".join(map(str, values[:8])) + (", ..." if len(values) > 8 else "")


def _of_shift(val: Outputs, test: Outputs) -> Iterator[str]:
    if np.array_equal(val.labels, test.labels) and np.array_equal(val.logits, test.logits):
        yield "Val and test hold the same examples: the methods are measured on what they were fitted on."
        return
    table = np.stack([np.bincount(outputs.labels, minlength=val.logits.shape[1]) for outputs in (val, test)])
    if _chi_square_p_value(table[:, table.any(axis=0)]) < LEVEL:
        yield "Val and test differ in their class shares beyond noise: one fit may not suit both."
    quantities = {
        "accuracy": [(outputs.logits.argmax(1) == outputs.labels).astype(float) for outputs in (val, test)],
        "mean confidence": [_confidence(outputs.logits) for outputs in (val, test)],
    }
    for name, (first, second) in quantities.items():
        error = math.sqrt(first.var() / len(first) + second.var() / len(second))
        if abs(first.mean() - second.mean()) > STANDARD_ERRORS * error:
            shares = f"{100 * first.mean():.1f}% on val, {100 * second.mean():.1f}% on test"
            yield f"Val and test differ in {name} beyond noise ({shares}): a fit on one may not suit both."


def _chi_square_p_value(table: np.ndarray) -> float:
    """The p-value of Pearson's test that the rows of a table of counts [2, classes] have the same shares.

    Classes of which a row is expected to hold fewer than 5 are taken together, with the rarest of the others where they
    are too few together: of them the test is not valid.
    """
    share = table.sum(axis=1).min() / table.sum()
    table = table[:, np.argsort(table.sum(axis=0))]
    expected = share * table.sum(axis=0)
    rare = max(np.count_nonzero(expected < FEWEST_EXPECTED), np.searchsorted(expected.cumsum(), FEWEST_EXPECTED) + 1)
    table = np.concatenate([table[:, :rare].sum(axis=1, keepdims=True), table[:, rare:]], axis=1)
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0, keepdims=True) / table.sum()
    statistic = ((table - expected) ** 2 / expected).sum()
    return float(gammaincc((table.shape[1] - 1) / 2, statistic / 2)) if table.shape[1] > 1 else 1.0


def _confidence(logits: Array) -> np.ndarray:
    shifted = np.asarray(logits, np.float64) - np.max(logits, axis=1, keepdims=True)
    return 1 / np.exp(shifted).sum(axis=1)
