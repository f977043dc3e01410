"""The calibrate command's composition: outputs of a classifier compared, and everything written into --out.

Of the files and the fits it says what a reader should know before trusting the numbers, one sentence each.
"""

import hashlib
import math
import re
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any
from warnings import filterwarnings

import numpy as np
from scipy import special  # scipy.stats takes a second to import

from focalgeo import calibration, files, records, report
from focalgeo.calibration import METHODS, Comparison, Fitted
from focalgeo.calibration.metrics.binning import inner_ends
from focalgeo.calibration.study import suspicions
from focalgeo.data.logits_files import Keys, Outputs, read_calibrated, read_outputs
from focalgeo.data.output_arrays import checksum, paths_of
from focalgeo.job import provenance, say
from focalgeo.rows import LEAST_EXAMPLES, Seconds
from focalgeo.types import (
    DEFAULT_METRICS,
    OFF_ONE,
    PROBABILITY_FLOOR,
    Array,
    DataWarning,
    InputError,
    ProbabilityWarning,
    look_like_probabilities,
    shown,
)

MOST_GROUPS = 100
MANY = 10**7  # numbers in the files, from which on it is said that they take long
READING = (*(f"{role}_key" for role in Keys._fields[:6]), "prefix", "positive", "ignore_label", "class_axis", "floor")
ASKED = ("criterion", "criteria", "metrics", "trained_gamma")  # of `checked_methods`
PER_BIN = 50  # examples for each bin; with fewer, noise is a large part of an ECE
STANDARD_ERRORS = 3.0  # from which on a difference between val and test is named
LEVEL = 0.0027  # the two-sided p-value of 3 standard errors
FEWEST_EXPECTED = 5  # examples of a class for Pearson's test; what has fewer is pooled
REPEATED = 0.01  # share of the examples that repeat others, from which on it is named
ONE_LABEL = 0.99  # share of the rows that are repeated with one label; with less, rounding has made them equal
_LARGEST = 1e30  # of a statistic in the manifest: JSON has no infinity

OF_DENSE = ("val", "test", "out", "class_axis", "ignore_label", "num_bins", "num_resamples", "seed")
USUAL = ("nll", "least", "multiclass", DEFAULT_METRICS, 5, "lac", "all")  # of the other flags
DECIDING = ("coverage", "error_at_most")  # flags that ask for decisions
HELD_BACK = 3  # one of so many examples of val, or clusters, for the thresholds of decisions

Splits = Mapping[str, Outputs]  # val, and test where it is given; methods are measured on the last
Also = Mapping[str, Sequence[np.ndarray]]  # name -> log-probabilities of each split by a method from elsewhere


def run_and_print(options: Namespace, *, command: list[str]) -> None:
    """Read the files, calibrate, write everything into --out, and say on standard output what came out.

    options: the flags of focalgeo.calibrate, by their names.

    Raises:
        InputError: whatever is wrong with a file or with --out; then nothing is written. RunError: a metric is not
            finite.
    """
    for category in (ProbabilityWarning, DataWarning, calibration.ConvergenceWarning):  # the command has its own lines
        filterwarnings("ignore", category=category)
    is_dense = options.class_axis is not None
    (splits, also), out, flags = (read_dense if is_dense else read_inputs)(options), Path(options.out), vars(options)
    splits, held_back = _held_back(splits, options)
    usual = calibration.usual_resamples(*(len(split.logits) for split in splits.values()))
    options.num_resamples = options.num_resamples or usual
    config, methods, measured = make_config(options, splits, also), options.methods or None, _labelled(splits)
    if is_dense:
        methods = ("temperature_scaling",)
    elif options.task == "multilabel" and methods is None:
        methods = ("temperature_scaling", "temperature_scaling_by_group", "focal_temperature_scaling")
    measured_on = "test" if "test" in measured else "cross_fit"
    records.check_workdir(out, config)
    settings = {name: flags[name] for name in ASKED}
    classes = splits["val"].logits.shape[-1]
    calibration.checked_methods(methods, num_classes=classes, also=also, **settings)
    settings |= {name: flags[name] for name in ("num_folds", "num_bins", "num_resamples", "seed", "prefer")}
    if options.attach is not None:  # before anything is fitted
        _attach(options.attach, Fitted(METHODS["uncalibrated"], None, {}, classes))
    with records.locked(out):
        began = time.perf_counter()
        say("fitting, cross-fitting and measuring")
        if (numbers := sum(split.logits.size for split in splits.values())) > MANY:
            say(f"of {numbers:,} numbers: it may take a minute; fewer --methods, --folds or --num-resamples shorten it")
        if is_dense:
            ignored, names = [*map(int, options.ignore_label)], ("class_axis", "num_bins", "num_resamples", "seed")
            paths = (itemgetter("logits", "labels")(paths_of(flags[name])) for name in splits)
            compared = calibration.dense(*paths, ignore_label=ignored, **{name: flags[name] for name in names})
        else:
            pairs = {name: _pair(split) for name, split in measured.items()}
            compared = calibration.compare(pairs["val"], pairs.get("test"), methods, also=also, **settings)
        decided, decisions = _decided(options, compared, held_back, splits) if held_back else ([], {})
        of = {name: "test" if path == options.test else name for name, path in options.tests.items()}
        if others := {name: pairs[split] for name, split in of.items() if split in pairs}:
            say(f"asking whether the calibration holds on {', '.join(others)}")
            decided += calibration.on_tests(compared, pairs["val"], others, **settings | {"criteria": ()})
        rows = [*compared.rows, *decided, Seconds("seconds", "evaluate", time.perf_counter() - began)]
        fits = [fitted for fitted in compared.fits if fitted.criterion]
        saved = calibration.calibrator_json(compared.choice.fitted, inputs=config["inputs"], fits=fits)
        warnings = [*compared.suspicions]
        if not is_dense:
            warnings += input_warnings(options, splits, compared.fits)
        warnings += fit_warnings(compared.fits, compared.choice.fitted)
        if options.coverage:
            warnings += _of_sets(options, decisions["set_parts"][np.isinf(decisions["set_thresholds"])])
        manifest = {
            "config": config,
            "data": {"name": options.val.rpartition("/")[2]},
            "calibration": _summary(options, compared, saved) | {"split": measured_on, "warnings": warnings},
            **provenance.of_program(command),
        }
        for warning in warnings:
            say(f"warning: {warning}")
        records.write_manifest(out, manifest)
        with records.writing(out):
            (out / records.METRICS_FILE).unlink(missing_ok=True)  # all its rows are made anew, whatever it holds
        records.append_rows(out, rows)
        if compared.search:
            records.write_arrays(out, "search", compared.search)
        if not is_dense:  # as large as the files are; calibrator.json makes them of any part
            _write_probabilities(out, splits, compared, options.task)
        if decisions:
            records.write_arrays(out, "probabilities/decisions", decisions)
        records.write_json(out / "calibrator.json", saved)
        say("drawing the report")
        report.write_report(out)
        if options.attach is not None:
            _attach(options.attach, compared.choice.fitted, out)
    print(report.results_text(rows, records.read_manifest(out), measured_on))
    numbers = compared.choice.fitted.parameters.items()
    alone = [
        (name, value) for name, value in numbers if isinstance(value, float) and not re.search("[.]|^share_", name)
    ]
    fitted = ", ".join(f"{name} {value:.4g}" for name, value in alone)
    title = compared.choice.fitted.method.title.lower()
    print(f"to use: {title}{f' ({fitted})' if fitted else ''}\nreport: {out / 'report.html'}")


def _pair(split):
    return calibration.Outputs(split.logits, split.labels, split.group, split.cluster, split.weight)


def _held_back(splits: Splits, options: Namespace) -> tuple[Splits, Outputs | None]:
    """The splits, and what of val is held back for the thresholds of decisions: fits and choice do not see it."""
    asked = [name for name in DECIDING if vars(options)[name]]
    if not asked:
        return splits, None
    flag, val = f"--{asked[0].replace('_', '-')}", splits["val"]
    if "test" not in splits:
        raise InputError(f"{flag} is for other examples than those of val: give --test, with labels or without")
    if options.task == "multilabel" or val.weight is not None or options.also:
        raise InputError(f"{flag} does not go with multilabel, weights or --also: leave one of them out")
    if options.error_at_most and val.cluster is not None:
        raise InputError("--error-at-most takes examples for independent: give them without clusters")
    for name in ("val", "test") if options.sets_of == "group" else ():
        if splits[name].group is None:
            raise InputError(f"--sets-of=group asks for the group of each example: give --{name} an array group")
    names = np.arange(len(val.logits)) if val.cluster is None else val.cluster
    order = np.random.default_rng([options.seed, HELD_BACK]).permutation(np.unique(names))
    back = np.isin(names, order[: len(order) // HELD_BACK])
    return {**splits, "val": _rows_of(val, ~back)}, _rows_of(val, back)


def _decided(options, compared, held_back, splits):
    """Rows and arrays of what is decided, as given and by the chosen method."""
    as_given, chosen = compared.fits[0], compared.choice.fitted
    fits = [as_given] if chosen is as_given else [as_given, chosen]
    asked = {name: getattr(options, name) for name in (*DECIDING, "seed")}
    pairs = _pair(held_back), _pair(splits["test"])
    return calibration.decided(fits, *pairs, kind=options.sets, part=options.sets_of, **asked)


def _rows_of(split, rows):
    parts = {name: getattr(split, name) for name in ("logits", "labels", "group", "cluster")}
    return split._replace(**{name: part[rows] for name, part in parts.items() if part is not None})


def read_inputs(options: Namespace) -> tuple[Splits, Also]:
    """Read val, test and others' predictions, as far as they are given; nothing is written.

    Raises:
        InputError: whatever is wrong with the files, or with the two together.
    """
    names = (getattr(options, f"{role}_key") for role in Keys._fields[:6])
    multilabel = options.task == "multilabel"
    keys = Keys(*names, options.prefix, options.positive, options.ignore_label, multilabel)
    paths = {"val": options.val} | ({"test": options.test} if options.test else {})
    paths |= dict([*options.tests.items()][1:])
    splits = {name: read_outputs(path, keys, where=name, floor=options.floor) for name, path in paths.items()}
    also = {}
    shapes = {name: outputs.logits.shape for name, outputs in splits.items()}
    if len({classes for _, classes in shapes.values()}) > 1:
        counts = " and ".join(f"{name} has {classes} classes" for name, (_, classes) in shapes.items())
        raise InputError(f"{counts}: give files of one classifier")
    if len({outputs.kind for outputs in splits.values()}) > 1:
        raise InputError(
            f"{' and '.join(f'{name} holds {split.kind}' for name, split in splits.items())}: give all as one"
        )
    if multilabel and len({tuple(dict.fromkeys(outputs.group)) for outputs in splits.values()}) > 1:
        raise InputError(f"{' and '.join(splits)} have not the same labels in one order: give all the same")
    if len({outputs.classes for outputs in splits.values()} - {None}) > 1:
        raise InputError(f"the columns of {' and '.join(splits)} are named for different classes: give one order")
    labelled = _labelled(splits)
    shapes = {name: shapes[name] for name in ("val", "test") if name in labelled}
    for text in options.also:
        name, _, path = text.partition("=")
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", name) or not path or name in (*also, "val", "test"):
            says = "give NAME=PATH, a new name in letters, digits, - and _ that is no split's, and a file"
            raise InputError(f"--also={shown(text)}: {says}")
        arrays = read_calibrated(path, shapes, where=f"--also={name}")
        also[name] = (arrays["val"], arrays.get("test"))
    for flag, number, name in (
        *(("--folds", options.num_folds, name) for name in (labelled if options.tests else ["val"])),
        *(("--num-bins", options.num_bins, name) for name in labelled),
    ):
        by_cluster = flag == "--folds" and splits[name].cluster is not None
        n, what = (len(set(splits[name].cluster)), "clusters") if by_cluster else (len(splits[name].labels), "examples")
        if number > n:
            raise InputError(f"{flag} is {number} for {n} {what} of {name}: give at most {n}")
    groups = len(_group_sizes(splits[name])[0])
    if groups > MOST_GROUPS and not multilabel:
        raise InputError(f"group of {name} has {groups} different values: give at most {MOST_GROUPS}")
    return splits, also


def read_dense(options: Namespace) -> tuple[Splits, Also]:
    """Open the files of outputs for every pixel, of which nothing is read; the classes are the last axis here.

    Raises:
        InputError: not two files with logits and labels, or a flag that they do not serve.
    """
    for name, value in vars(options).items():
        if name not in OF_DENSE and value and value not in USUAL:
            raise InputError(f"--{name.replace('_', '-')} does not go with --class-axis: leave one of them out")
    if not all(re.fullmatch("-?[0-9]+", label) for label in options.ignore_label):
        raise InputError(f"--ignore-label is {','.join(options.ignore_label)}: of every pixel give whole numbers")
    splits = {}
    for name in ("val", "test"):
        source, ask = getattr(options, name), "of outputs for every pixel give logits=z.npy,labels=y.npy"
        paths = paths_of(source or "")
        if paths.keys() != {"logits", "labels"}:
            raise InputError(f"--{name}={source}: {ask}")
        with files.reading(f"--{name}={source}", ask):
            logits, labels = (np.load(paths[role], mmap_mode="r") for role in ("logits", "labels"))
            logits = np.moveaxis(logits, options.class_axis, -1)
            if look_like_probabilities(logits[0].reshape(-1, logits.shape[-1]), OFF_ONE):
                raise InputError(f"--{name}: logits of the first image look like probabilities: give their logarithms")
        splits[name] = Outputs(
            "logits", logits, labels, cluster=np.arange(len(logits)), checksum=checksum(paths.values())
        )
    return splits, {}


def _labelled(splits):
    return {name: outputs for name, outputs in splits.items() if outputs.labels is not None}


def _group_sizes(outputs):
    return np.unique([] if outputs.group is None else outputs.group, return_counts=True)


def make_config(options: Namespace, splits: Splits, also: Also) -> dict[str, Any]:
    """The settings and inputs that the results depend on, for the manifest."""
    inputs = {}
    for name, outputs in splits.items():
        some = {
            "checksum": outputs.checksum,  # not its path, so that a file that has moved is still the same
            "given": outputs.kind,
            "examples": len(outputs.logits),
            "classes": outputs.logits.shape[-1],
            "clusters": 0 if outputs.cluster is None else len(set(outputs.cluster)),
            "column": outputs.is_column,
            "unit": outputs.unit,
        }
        inputs[name] = {key: value for key, value in some.items() if value}
    for name, arrays in also.items():
        content = b"".join(array.tobytes() for array in arrays if array is not None)
        inputs[name] = {"checksum": f"sha256:{hashlib.sha256(content).hexdigest()}"}
    names = ("num_bins", "num_resamples", "criterion", "prefer", "criteria", "methods", "metrics", "task")
    evaluation = {name: getattr(options, name) for name in names}
    evaluation |= {
        name: getattr(options, name)
        for name in (*DECIDING, "sets", "sets_of")
        if any(vars(options)[each] for each in DECIDING)
    }
    more = {} if options.trained_gamma is None else {"trained_gamma": options.trained_gamma}
    if reading := {name: value for name in READING if (value := getattr(options, name))}:
        more["reading"] = reading
    return {"inputs": inputs, "evaluation": evaluation, "seed": options.seed, "folds": options.num_folds, **more}


def _summary(options, compared, saved):
    """The manifest's entry on what was chosen, and how."""
    choice, summary = compared.choice, {"trained_gamma": options.trained_gamma}
    if choice.test is not None:
        statistic = float(np.clip(choice.test.statistic, -_LARGEST, _LARGEST))
        summary["score_test"] = {"statistic": statistic, "p_value": choice.test.p_value}
    return summary | {
        "criterion": options.criterion,
        "choice": {name: saved[name] for name in ("method", "criterion", "num_classes", "parameters")},
        "plainest": {"method": choice.plainest.method.name, "criterion": choice.plainest.criterion},
        "refused": choice.refused,
        "tests": [*options.tests],
    }


def _attach(path, fitted, out=None):
    """Write calibrated.onnx, a classifier's model that goes on to calibrated probabilities; without out, try it."""
    model = fitted.to_onnx(path)
    if out:
        with records.writing(out):
            files.replace(out / "calibrated.onnx", lambda file: file.write(model.SerializeToString()))


def _write_probabilities(out: Path, splits: Splits, compared: Comparison, task: str) -> None:
    """Write probabilities/{val,test}.npz by the chosen method, and what is measured on val, each fold by its own fit.

    That is cross_fit.npz, where test is not measured. Each holds probs and log_probs, float32 [examples, classes], and
    labels if there are any; log_probs keep what probs round to 0 or 1. Of several labels a row all are [rows, labels].
    """
    fitted = compared.choice.fitted
    written = {name: fitted.predict_log_proba(outputs.logits, outputs.group) for name, outputs in splits.items()}
    if "test" not in _labelled(splits):
        written["cross_fit"] = compared.held_out_choice.log_probs
    for name, log_probs in written.items():
        log_probs, labels = np.asarray(log_probs), splits.get(name, splits["val"]).labels
        if task == "multilabel":
            count = len(set(splits["val"].group))
            log_probs, labels = (
                log_probs[:, 1].reshape(-1, count),
                None if labels is None else labels.reshape(-1, count),
            )
        arrays = {"probs": np.exp(log_probs), "log_probs": log_probs} | ({} if labels is None else {"labels": labels})
        records.write_arrays(out, f"probabilities/{name}", arrays)


def input_warnings(options: Namespace, splits: Splits, fits: Sequence[Fitted]) -> Iterator[str]:
    """All warnings about the files."""
    for name, outputs in splits.items():
        if options.ignore_label:
            yield f"{outputs.left_out:,} rows of {name} have a label of --ignore-label and are left out."
        yield from _of_file(name, outputs)
    splits = _labelled(splits)
    for name, outputs in splits.items():
        if name not in ("val", "test"):  # of these two `compare` says so
            weights = np.ones(len(outputs.labels)) if outputs.weight is None else outputs.weight
            clustered = outputs.cluster is not None
            yield from suspicions.of_split(name, outputs.logits, outputs.labels, weights, clustered=clustered)
            pairs = (each[:2] for each in map(_pair, (splits["val"], outputs)))
            yield from suspicions.of_both(*pairs, name)
    name = "test" if "test" in splits else "val"
    outputs = splits[name]
    yield from _of_bins(options.num_bins, name, outputs, fits)
    yield from _of_labels(options.num_folds, splits["val"], fits)
    if "test" in splits:
        yield from _of_shift(splits["val"], splits["test"])
    groups, sizes = _group_sizes(outputs)
    if (sizes < LEAST_EXAMPLES).any():
        small = _listed(groups[sizes < LEAST_EXAMPLES])
        yield f"Groups with fewer than {LEAST_EXAMPLES} examples are left out of the table of groups: {small}."


def fit_warnings(fits: Sequence[Fitted], chosen: Fitted | None) -> Iterator[str]:
    """A sentence for each fit that did not converge, but that which is used."""
    for fitted in fits:
        if not fitted.converged and fitted is not chosen:
            where = " and ".join(f"{name} {value:.4g}" for name, value in fitted.searched.items())
            why = f"ended at {where}, an end of the range searched" if fitted.at_end else "did not converge"
            yield f"{fitted.method.title} by {fitted.criterion.replace('_', ' ').upper()} {why}: it is not chosen."


def _of_sets(options, few):
    """The groups or classes that have too few examples for a threshold."""
    if names := ", ".join(few):
        least = math.ceil(options.coverage / (1 - options.coverage) - 1e-9)
        what = {
            "group": "Sets hold all classes in groups",
            "class": "--sets-of=class_cluster may serve better: every set holds the classes",
        }.get(options.sets_of, "Every set holds the classes")
        count = len(names.split(", "))
        yield f"{what} of which fewer than {least} examples are held back, {count} in all: {shown(names)}."


def _of_file(name: str, outputs: Outputs) -> Iterator[str]:
    n, masked = len(outputs.logits), np.isneginf(outputs.logits).sum()
    if masked:
        yield f"{masked:,} scores of {name} are empty or -inf, of classes that cannot be in their rows."
    if outputs.looks_like_probs:
        yield (
            f"The logits of {name} look like probabilities: every row is in [0, 1] and sums to 1. If they are, use"
            " --probs-key; everything here takes them for logits."
        )
    if outputs.unread:
        yield f"Arrays of {name} that are not used: {_listed(outputs.unread)}."
    if outputs.unit:
        yield (
            f"The probabilities of {name} are multiples of 1/{outputs.unit:,}, rounded or votes. Of votes a zero counts"
            " as half a vote; of rounded numbers the zeros of a row share what its sum leaves of 1, half a unit each at"
            " most. --floor sets another value; logits keep more."
        )
    if outputs.labels is None:
        yield f"No labels are in {name}: its calibrated probabilities are written, and nothing is measured on it."
        return
    of_true = outputs.logits[np.arange(n), outputs.labels]
    at_floor = (of_true <= np.float32(math.log(PROBABILITY_FLOOR))).sum()
    if outputs.kind == "probs" and at_floor:
        yield (
            f"In {at_floor:,} examples of {name} the true class has probability 0, which is taken for"
            f" {PROBABILITY_FLOOR:.1e}: the NLL there says no more than that floor. Give logits, or another --floor."
        )
    # Rows that stand there several times with one label; rows that rounding has made equal have several. Those whose
    # confidence is exactly 1 count for nothing: they are equal where a model is sure.
    unsure = suspicions.confidence(outputs.logits) < 1
    rows = suspicions.hashes(outputs.logits[unsure])
    times, labelled = Counter(rows), set(zip(rows, outputs.labels[unsure].tolist(), strict=True))
    copies, repeated = len(rows) - len(times), sum(number > 1 for number in times.values())
    if not outputs.unit and copies > REPEATED * n and len(labelled) - len(times) <= (1 - ONE_LABEL) * repeated:
        what = f"{copies:,} of {n:,} rows of {name} repeat others in all logits and the label"
        yield f"{what}: if they are copies, leave them out: intervals and folds count them as independent."


def _of_bins(num_bins, name, outputs, fits):
    n = len(outputs.labels)
    if n < PER_BIN * num_bins:
        plainest = next((fitted for fitted in fits if fitted.criterion and fitted.converged), fits[0])
        floor = noise_floor(plainest.predict_log_proba(outputs.logits, outputs.group), num_bins)
        yield (
            f"{n:,} examples of {name} are few for {num_bins} bins: even a perfectly calibrated model would show an ECE"
            f" of about {100 * floor:.1f}%. Look at the intervals, give more examples, or use"
            f" --num-bins={max(n // PER_BIN, 1)}."
        )


def noise_floor(log_probs: Array, num_bins: int) -> float:
    """The ECE that chance leaves if every confidence is true: the sum over bins of sqrt(2 n c (1 - c) / pi) / N."""
    confidence = suspicions.confidence(log_probs)
    index = np.searchsorted(inner_ends(num_bins, np.float64), confidence)
    variance = np.bincount(index, confidence * (1 - confidence), num_bins)
    return np.sqrt(2 * variance / math.pi).sum() / len(confidence)


def _of_labels(num_folds, val, fits):
    """Classes without an example, or that some fit of the other folds may not see where a method has their numbers."""
    counts = np.bincount(val.labels, minlength=val.logits.shape[1])
    missing, rare = np.flatnonzero(counts == 0), np.flatnonzero((counts > 0) & (counts < num_folds))
    if missing.size:
        yield f"No example of val has label {_listed(missing)}: what the methods do to such a class was never checked."
    if rare.size and any("biases" in fitted.params for fitted in fits):
        what = f"Fewer than {num_folds} examples of val, the number of folds, have label {_listed(rare)}"
        yield f"{what}: what methods with numbers of each class do to them rests on next to nothing."


def _listed(values: Sequence) -> str:
    return ", ".join(map(str, values[:8])) + (", ..." if len(values) > 8 else "")


def _of_shift(*splits: Outputs) -> Iterator[str]:
    table = np.stack([np.bincount(outputs.labels, minlength=outputs.logits.shape[1]) for outputs in splits])
    if _chi_square_p_value(table[:, table.any(axis=0)]) < LEVEL:
        yield "Val and test differ in their class shares beyond noise: one fit may not suit both."
    quantities = {
        "accuracy": [outputs.logits.argmax(1) == outputs.labels for outputs in splits],
        "mean confidence": [suspicions.confidence(outputs.logits) for outputs in splits],
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
    table = table[:, np.argsort(table.sum(axis=0))]
    expected = table.sum(axis=1).min() / table.sum() * table.sum(axis=0)
    rare = max(np.count_nonzero(expected < FEWEST_EXPECTED), np.searchsorted(expected.cumsum(), FEWEST_EXPECTED) + 1)
    table = np.add.reduceat(table, [0, *range(rare, table.shape[1])], axis=1)
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    statistic = ((table - expected) ** 2 / expected).sum()
    return special.chdtrc(max(table.shape[1] - 1, 1), statistic)
