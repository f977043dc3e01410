"""The calibrate command's composition: outputs of a classifier compared, and everything written into --out.

What a reader should know of the files before trusting the numbers is said here, one sentence each; what the numbers
themselves say is of calibration.study.
"""

import hashlib
import math
import re
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple
from warnings import filterwarnings

import numpy as np

from focalgeo import calibration, files, records, report
from focalgeo.calibration import METHODS, Comparison, Fitted
from focalgeo.calibration.study import comparison, findings
from focalgeo.calibration.study.comparison import Settings
from focalgeo.calibration.study.dense import class_count
from focalgeo.data.logits_files import Keys, Outputs, read_calibrated, read_outputs
from focalgeo.data.output_arrays import checksum, paths_of, rows_of
from focalgeo.job import provenance, say
from focalgeo.rows import Row, Seconds
from focalgeo.types import (
    OFF_ONE,
    DataWarning,
    InputError,
    ProbabilityWarning,
    look_like_probabilities,
    shown,
)

# Each group has rows of its own and a line in the page's table, which nobody reads beyond some dozens.
MOST_GROUPS = 100
READING = (
    *(f"{role}_key" for role in Keys._fields[:6]),
    *("prefix", "positive", "ignore_label", "class_axis", "floor", "prevalence"),
)
OF_DENSE = {"val", "test", "out", "class_axis", "ignore_label", "num_bins", "num_resamples", "seed"}
DECIDING = ("coverage", "error_at_most")  # flags that ask for decisions
HELD_BACK = 3  # one of so many examples of val, or clusters, for the thresholds of decisions
_LARGEST = 1e30  # of a statistic in the manifest: JSON has no infinity

Splits = Mapping[str, Outputs]  # val, and test where it is given; methods are measured on the last
Also = Mapping[str, Sequence[np.ndarray]]  # name -> log-probabilities of each split by a method from elsewhere


class Result(NamedTuple):
    """What the command finds out before it writes."""

    compared: Comparison
    rows: list[Row]
    decisions: dict[str, np.ndarray]
    warnings: list[str]
    measured_on: str  # "test", or "cross_fit" where test has no labels


def run_and_print(options: Namespace, *, command: list[str]) -> None:
    """Read the files, calibrate, write everything into --out, and say on standard output what came out.

    options: the flags of focalgeo.calibrate, by their names.

    Raises:
        InputError: whatever is wrong with a file or with --out; then nothing is written. RunError: a metric is not
            finite.
    """
    for category in (ProbabilityWarning, DataWarning, calibration.ConvergenceWarning):  # the command has its own lines
        filterwarnings("ignore", category=category)
    with files.waiting("reading the files"):
        splits, also = (read_inputs if options.class_axis is None else read_dense)(options)
    splits, held_back = _held_back(splits, options)
    usual = calibration.usual_resamples(*(len(split.logits) for split in splits.values()))
    options.num_resamples = options.num_resamples or usual
    config, out = make_config(options, splits, also), Path(options.out)
    records.check_workdir(out, config)
    if options.task == "multilabel" and not options.methods:
        options.methods = "temperature_scaling", "temperature_scaling_by_group", "focal_temperature_scaling"
    # what fits or `_attach` would refuse is refused before anything is fitted or written
    classes = splits["val"].logits.shape[-1]
    comparison.checked_methods(options.methods or None, Settings.of(vars(options)), classes, also)
    if options.attach is not None:
        _attach(options.attach, Fitted(METHODS["uncalibrated"], None, {}, classes))
    with records.locked(out):
        with files.waiting("fewer --methods, --folds or --num-resamples take less time", 20):
            result = _studied(options, splits, also, held_back)
        _write(options, splits, config, result, command)
        say("drawing the report")
        report.write_report(out)
        if options.attach is not None:
            _attach(options.attach, result.compared.choice.fitted, out)
    print(report.results_text(result.rows, records.read_manifest(out), result.measured_on))
    if not options.assess:
        print(f"to use: {out / 'calibrator.json'}, {result.compared.choice.fitted.method.title.lower()}")
    print(f"report: {out / 'report.html'}")


def _studied(options, splits, also, held_back):
    """Methods compared, what is decided, and the rows of further tests."""
    began, measured, rows, decisions, found = time.perf_counter(), _labelled(splits), [], {}, []
    say("fitting, cross-fitting and measuring")
    if options.class_axis is not None:
        paths = (itemgetter("logits", "labels")(paths_of(getattr(options, name))) for name in splits)
        asked = {name: getattr(options, name) for name in ("class_axis", "num_bins", "num_resamples", "seed")}
        compared = calibration.dense(*paths, ignore_label=[*map(int, options.ignore_label)], **asked)
    else:
        pairs = {name: _pair(split, options.prevalence) for name, split in measured.items()}
        settings = Settings.of(vars(options))
        two = {name: pairs[name] for name in ("val", "test") if name in pairs}
        compared = comparison.study(two, options.methods or None, settings, also=also)
        if held_back:
            rows, decisions = _decided(options, compared, held_back, splits)
        of = {name: "test" if path == options.test else name for name, path in options.tests.items()}
        if others := {name: pairs[split] for name, split in of.items() if split in pairs}:
            say(f"asking whether the calibration holds on {', '.join(others)}")
            rows += calibration.on_tests(compared, pairs["val"], others, **settings._replace(criteria=())._asdict())
        found = [*input_warnings(options, splits), *findings.of_study(pairs, compared.fits, settings)]
    warnings = [*compared.suspicions, *found, *findings.of_fits(compared.fits, compared.choice.fitted)]
    if options.coverage:
        warnings += _of_sets(options, decisions["set_parts"][np.isinf(decisions["set_thresholds"])])
    rows = [*compared.rows, *rows, Seconds("seconds", "evaluate", time.perf_counter() - began)]
    return Result(compared, rows, decisions, warnings, "test" if "test" in measured else "cross_fit")


def _write(options, splits, config, result, command):
    """Write all but the page."""
    out, compared, choice, score_test = Path(options.out), result.compared, result.compared.choice, {}
    fits = [fitted for fitted in compared.fits if fitted.criterion]
    saved = calibration.calibrator_json(choice.fitted, inputs=config["inputs"], fits=fits)
    if choice.test is not None:
        statistic = float(np.clip(choice.test.statistic, -_LARGEST, _LARGEST))
        score_test["score_test"] = {"statistic": statistic, "p_value": choice.test.p_value}
    names = ("method", "criterion", "num_classes", "parameters", *(("zeros",) if choice.fitted.fills_zeros else ()))
    manifest = {
        "config": config,
        "data": {"name": options.val.rpartition("/")[2]},
        "calibration": {
            "trained_gamma": options.trained_gamma,
            **score_test,
            "criterion": options.criterion,
            "choice": {name: saved[name] for name in names},
            "plainest": {"method": choice.plainest.method.name, "criterion": choice.plainest.criterion},
            "refused": choice.refused,
            "tests": [*options.tests],
            "files": {"outputs": options.test or options.val, "folder": options.out, "keys": _keys_text(options)},
            "split": result.measured_on,
            "warnings": result.warnings,
        },
        **provenance.of_program(command),
    }
    for warning in result.warnings:
        say(f"warning: {warning}")
    records.write_manifest(out, manifest)
    with records.writing(out):
        (out / records.METRICS_FILE).unlink(missing_ok=True)  # all its rows are made anew, whatever it holds
    records.append_rows(out, result.rows)
    if compared.search:
        records.write_arrays(out, "search", compared.search)
    if result.decisions:
        records.write_arrays(out, "probabilities/decisions", result.decisions)
    if options.assess:
        return
    if options.class_axis is None:  # as large as the files are; calibrator.json makes them of any part
        _write_probabilities(out, splits, compared, options.task)
    records.write_json(out / "calibrator.json", saved)


def _pair(split, prevalence=None):
    weights = calibration.prevalence_weights(split.labels, prevalence, split.weight)
    return calibration.Outputs(split.logits, split.labels, split.group, split.cluster, weights)


def _held_back(splits: Splits, options: Namespace) -> tuple[Splits, Outputs | None]:
    """The splits, and what of val is held back for the thresholds of decisions: fits and choice do not see it."""
    asked = [name for name in DECIDING if vars(options)[name]]
    if not asked:
        return splits, None
    flag, val = f"--{asked[0].replace('_', '-')}", splits["val"]
    if "test" not in splits:
        raise InputError(f"{flag} is for other examples than those of val: give --test, with labels or without")
    if options.task == "multilabel" or val.weight is not None or options.prevalence or options.also:
        raise InputError(f"{flag} does not go with multilabel, weights, --prevalence or --also: leave one out")
    if options.error_at_most and val.cluster is not None:
        raise InputError("--error-at-most takes examples for independent: give them without clusters")
    for name in ("val", "test") if options.sets_of == "group" else ():
        if splits[name].group is None:
            raise InputError(f"--sets-of=group asks for the group of each example: give --{name} an array group")
    names = np.arange(len(val.logits)) if val.cluster is None else val.cluster
    order = np.random.default_rng([options.seed, HELD_BACK]).permutation(np.unique(names))
    back = np.isin(names, order[: len(order) // HELD_BACK])
    return {**splits, "val": rows_of(val, ~back)}, rows_of(val, back)


def _decided(options, compared, held_back, splits):
    """Rows and arrays of what is decided, as given and by the chosen method."""
    as_given, chosen = compared.fits[0], compared.choice.fitted
    return calibration.decided(
        [as_given] if chosen is as_given else [as_given, chosen],
        _pair(held_back),
        _pair(splits["test"]),
        coverage=options.coverage,
        error_at_most=options.error_at_most,
        kind=options.sets,
        part=options.sets_of,
        least_one=options.least_one,
        seed=options.seed,
    )


def read_inputs(options: Namespace) -> tuple[Splits, Also]:
    """Read val, test and others' predictions, as far as they are given; nothing is written.

    Raises:
        InputError: whatever is wrong with the files, or with the two together.
    """
    keys, multilabel = _keys(options), options.task == "multilabel"
    paths = {"val": options.val} | ({"test": options.test} if options.test else {})
    paths |= dict([*options.tests.items()][1:])
    splits = {name: read_outputs(path, keys, where=name, floor=options.floor) for name, path in paths.items()}
    _check_alike(splits, multilabel)
    if options.prevalence and (multilabel or splits["val"].logits.shape[1] > 2):
        raise InputError("--prevalence is the share of class 1 of two classes: leave it out")
    labelled, also = _labelled(splits), {}
    shapes = {name: labelled[name].logits.shape for name in ("val", "test") if name in labelled}
    for text in options.also:
        name, _, path = text.partition("=")
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", name) or not path or name in (*also, "val", "test"):
            says = "give NAME=PATH, a new name in letters, digits, - and _ that is no split's, and a file"
            raise InputError(f"--also={shown(text)}: {says}")
        arrays = read_calibrated(path, shapes, where=f"--also={name}")
        also[name] = (arrays["val"], arrays.get("test"))
    _check_counts(options, labelled)
    measured = [*labelled][-1]
    groups = 0 if splits[measured].group is None else len({*splits[measured].group})
    if groups > MOST_GROUPS and not multilabel:
        raise InputError(f"group of {measured} has {groups} different values: give at most {MOST_GROUPS}")
    return splits, also


def _keys(options):
    names = (getattr(options, f"{role}_key") for role in Keys._fields[:6])
    return Keys(*names, options.prefix, options.positive, options.ignore_label, options.task == "multilabel")


def _keys_text(options):
    """How the files are read, as code; "" of outputs for every pixel."""
    if options.class_axis is not None:
        return ""
    return f"Keys({', '.join(f'{name}={value!r}' for name, value in _keys(options)._asdict().items() if value)})"


def _check_alike(splits, multilabel):
    """Refuse splits that are not of one classifier, or not given in one way."""

    def differ(key):
        return len({key(outputs) for outputs in splits.values()} - {None}) > 1

    names = " and ".join(splits)
    if differ(lambda outputs: outputs.logits.shape[1]):
        counts = (f"{name} has {outputs.logits.shape[1]} classes" for name, outputs in splits.items())
        raise InputError(f"{' and '.join(counts)}: give files of one classifier")
    if differ(lambda outputs: outputs.kind):
        kinds = (f"{name} holds {outputs.kind}" for name, outputs in splits.items())
        raise InputError(f"{' and '.join(kinds)}: give all as one")
    if multilabel and differ(lambda outputs: tuple(dict.fromkeys(outputs.group))):
        raise InputError(f"{names} have not the same labels in one order: give all the same")
    if differ(lambda outputs: outputs.classes):
        raise InputError(f"the columns of {names} are named for different classes: give one order")


def _check_counts(options, labelled):
    """Refuse more folds than there are examples or clusters, or more bins than examples."""
    for flag, number, names in (
        ("--folds", options.num_folds, labelled if options.tests else ["val"]),
        ("--num-bins", options.num_bins, labelled),
    ):
        for name in names:
            cluster = labelled[name].cluster
            n, what = len(labelled[name].labels), "examples"
            if flag == "--folds" and cluster is not None:
                n, what = len({*cluster}), "clusters"
            if number > n:
                mend = f"give at most {n}" if n > 1 else f"give {what} of which there are two or more"
                raise InputError(f"{flag} is {number} for {n} {what} of {name}: {mend}")


def read_dense(options: Namespace) -> tuple[Splits, Also]:
    """Open the files of outputs for every pixel, of which nothing is read; the classes are the last axis here.

    Raises:
        InputError: not two files with logits and labels, or a flag that they do not serve.
    """
    for name in vars(options):
        if name in options.given - OF_DENSE:
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
            class_count(name, logits.shape, labels.shape, options.class_axis)
            logits = np.moveaxis(logits, options.class_axis, -1)
            if look_like_probabilities(logits[0].reshape(-1, logits.shape[-1]), OFF_ONE):
                raise InputError(f"--{name}: logits of the first image look like probabilities: give their logarithms")
        splits[name] = Outputs(
            "logits", logits, labels, cluster=np.arange(len(logits)), checksum=checksum(paths.values())
        )
    return splits, {}


def _labelled(splits):
    """The splits with labels; of several labels a row the pairs that have one."""
    return {
        name: rows_of(split, split.labels >= 0) if split.left_out else split
        for name, split in splits.items()
        if split.labels is not None
    }


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
    if options.coverage or options.error_at_most:
        names = (*names, *DECIDING, "sets", "sets_of", *["least_one"] * options.least_one)
    names = (*names, *[name for name in ("assess", "thresholds") if getattr(options, name)])
    evaluation = {name: getattr(options, name) for name in names}
    more = {} if options.trained_gamma is None else {"trained_gamma": options.trained_gamma}
    if reading := {name: value for name in READING if (value := getattr(options, name))}:
        more["reading"] = reading
    return {"inputs": inputs, "evaluation": evaluation, "seed": options.seed, "folds": options.num_folds, **more}


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
        written["cross_fit"] = np.full_like(splits["val"].logits, np.nan)
        written["cross_fit"][splits["val"].labels >= 0] = compared.held_out_choice.log_probs
    # several labels a row were read as rows of two classes each, in groups named by label
    shape = (-1, len({*splits["val"].group})) if task == "multilabel" else -1
    for name, log_probs in written.items():
        log_probs, labels = np.asarray(log_probs), splits.get(name, splits["val"]).labels
        if task == "multilabel":
            log_probs = log_probs[:, 1].reshape(shape)
        arrays = {"probs": np.exp(log_probs), "log_probs": log_probs}
        if labels is not None:
            arrays["labels"] = labels.reshape(shape)
        records.write_arrays(out, f"probabilities/{name}", arrays)


def input_warnings(options: Namespace, splits: Splits) -> Iterator[str]:
    """What the files alone show: rows left out, arrays that are not read, rounding, copies."""
    if options.prevalence:
        yield f"Examples are weighted by --prevalence: all numbers are for {options.prevalence:g} of class 1 in use."
    for name, outputs in splits.items():
        if options.task == "multilabel" and outputs.left_out:
            what = "are missing, -1 or of --ignore-label"
            yield f"{outputs.left_out:,} labels of {name} {what}: each label is judged on the rows that have it."
        elif options.ignore_label:
            yield f"{outputs.left_out:,} rows of {name} have a label of --ignore-label and are left out."
        if masked := np.isneginf(outputs.logits).sum():
            yield f"{masked:,} scores of {name} are empty or -inf, of classes that cannot be in their rows."
        if outputs.looks_like_probs:
            yield (
                f"The logits of {name} look like probabilities: all are in [0, 1]. If they are, use --probs-key;"
                " everything here takes them for logits."
            )
        if outputs.unread:
            unread = [other or "one without a name" for other in outputs.unread]
            yield f"Arrays of {name} that are not used: {findings.listed(unread)}."
        if outputs.weight is not None and not options.weight_key:
            least, most = outputs.weight.min(), outputs.weight.max()
            yield f"Examples of {name} count by its array weight, {least:g} to {most:g}: rename it if it is no weight."
        if outputs.labels is None:
            yield f"No labels are in {name}: its calibrated probabilities are written, and nothing is measured on it."
            continue
        if not outputs.unit:  # else rounding has made them equal
            yield from findings.repeated(name, outputs.logits, outputs.labels)


def _of_sets(options, few):
    """The groups or classes that have too few examples for a threshold."""
    if names := ", ".join(few):
        # with n held back the threshold is the ceil((n + 1) coverage)-th score, which is one of theirs from this n on
        least = math.ceil(options.coverage / (1 - options.coverage) - 1e-9)
        what = {
            "group": "Sets hold all classes in groups",
            "class": "--sets-of=class_cluster may serve better: every set holds the classes",
        }.get(options.sets_of, "Every set holds the classes")
        few = f"fewer than {least} examples are held back"
        of = f"{what} of which {few}, {len(names.split(', '))} in all: {shown(names)}."
        yield f"Every set holds all classes: {few}." if options.sets_of == "all" else of
