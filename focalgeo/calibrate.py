"""The calibrate command: python -m focalgeo.calibrate --val=val.npz --test=test.npz --out=runs/mine."""

import signal
import sys

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends at once; every file on disk is complete at any moment

import argparse
import os
import re
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from focalgeo import files
from focalgeo.types import (
    CRITERIA,
    DEFAULT_METRICS,
    MOST_BINS,
    MOST_RESAMPLES,
    PROBABILITY_FLOOR,
    InputError,
    RunError,
    shown,
)

DESCRIPTION = """\
Fit calibration methods to a classifier's outputs and say, on other examples, which to use: calibrated probabilities,
calibrator.json and report.html.

Each split is one file with logits or probs [examples, classes], labels [examples] and perhaps group, cluster, weight:
  .npz, .safetensors, .pt   named arrays (.pt is read with weights_only, and needs torch)
  .csv, .tsv, .parquet,     a header: labels,logits_0,logits_1,... (or probs_0,...), or probs_cat,probs_dog with names
  .feather, .jsonl          as labels; of two classes also one column: y_true,y_prob
  samples_*.jsonl           of lm-evaluation-harness with --log_samples, multiple choice
  two .npy files            --val=logits=z.npy,labels=y.npy (or probs=p.npy,labels=y.npy)

Compiled programs are kept in ~/.cache/focalgeo/xla; JAX_COMPILATION_CACHE_DIR names another folder, or empty none.
"""
RANGES = {
    "trained_gamma": (0, 100),
    "floor": (PROBABILITY_FLOOR, 0.1),
    "folds": (2, 100),
    "num_bins": (1, MOST_BINS),
    "num_resamples": (100, MOST_RESAMPLES),
    "coverage": (0.01, 0.999),
    "error_at_most": (0.0001, 0.9),
    "seed": (0, 2**31 - 1),
    "prevalence": (0.000001, 0.999999),
}
ROLES = ("logits", "probs", "labels", "weight", "group", "cluster")  # of arrays
EXAMPLE = "--val=val.npz --test=test.npz --out=runs/mine"
RESERVED = {"val", "test", "cross_fit", "decisions"}  # names of what else is in probabilities/


def _threshold(text: str) -> float:
    """A probability, or that of the costs of a false alarm and of a miss, such as 1:9."""
    try:
        alarm, miss = map(float, text.split(":")) if ":" in text else (float(text), 1 - float(text))
        threshold = round(alarm / (alarm + miss), 9) if min(alarm, miss) > 0 else 0.0
    except (ValueError, ZeroDivisionError):
        threshold = 0.0
    if not 0.001 <= threshold <= 0.999:
        raise argparse.ArgumentTypeError(f"{shown(text)} is no probability from 0.001 to 0.999: give 0.1, or costs 1:9")
    return threshold


def _names(text: str) -> tuple[str, ...]:
    """Names with commas between them, each once."""
    return tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))


def _flag(metavar, text, kind=None, **options):
    return {"metavar": metavar, "help": text, "type": kind, **options}


FLAGS = {  # by group
    "input": {
        "val": _flag("PATH", "outputs on which methods are fitted; never those of training data"),
        "test": _flag(
            "[NAME=]PATH",
            "other outputs, to test on (default: val is cross-fitted); give it again for further tests",
            action="append",
            default=[],
        ),
        "logits-key": _flag(
            "NAME", "array of another name; so too --probs-key, --labels-key, --weight-key, --group-key, --cluster-key"
        ),
        "prefix": _flag("NAME_", "how columns of scores begin; they are probabilities if all rows sum to 1"),
        "task": {
            "choices": ("multiclass", "multilabel"),
            "default": "multiclass",
            "help": "multilabel: labels [rows, labels] of 0 and 1 (NaN or -1: unknown), and a score for each",
        },
        "positive": _flag("NAME", "label of class 1 of two, if labels are names"),
        "prevalence": _flag(
            "SHARE", "share of class 1 of two in use, if the files are undersampled: examples are weighted", float
        ),
        "ignore-label": _flag(
            "LABEL", "labels whose rows are left out, for example -100", _names, action="extend", default=[]
        ),
        "class-axis": _flag(
            "AXIS", "axis of the classes in outputs for every pixel, for example 1: one temperature is fitted", int
        ),
        "floor": _flag("P", "what a probability of 0 counts as in the NLL (default: chosen on val)", float),
    },
    "method": {
        "methods": _flag("NAMES", "methods to compare, for example vector_scaling,isotonic", _names, default=()),
        "prefer": {
            "choices": ("least", "plain"),
            "default": "least",
            "help": "least expected NLL (default), often a mixture; plain: one map that keeps the predicted class, of"
            " two classes the ranking",
        },
        "criterion": _flag(
            "NAME",
            f"what fits, compares and chooses: {', '.join(CRITERIA)} (default nll)",
            choices=CRITERIA,
            default="nll",
        ),
        "criteria": _flag("NAMES", "further criteria to fit by, for example ece", _names, default=()),
        "trained-gamma": _flag("GAMMA", "gamma of the focal loss that trained the model", float),
        "also": _flag(
            "NAME=PATH",
            "probabilities of another method, to compare: arrays val (held out, fold by fold) and test",
            action="append",
            default=[],
        ),
        "assess": {"action": "store_true", "help": "measure the outputs as they are: nothing is fitted"},
        "folds": _flag("FOLDS", "folds of the cross-fit of val (default 5)", int, default=5),
    },
    "decisions": {
        "coverage": _flag(
            "SHARE", "sets of classes that contain the label with this probability, for example 0.9", float
        ),
        "sets": _flag(
            "KIND",
            "kind of set: lac (default), smallest; aps, larger on hard examples; raps, seldom large",
            choices=("lac", "aps", "raps"),
            default="lac",
        ),
        "sets-of": _flag(
            "WHAT",
            "what has that coverage: all (default), each class, class_cluster or group",
            choices=("all", "class", "class_cluster", "group"),
            default="all",
        ),
        "least-one": {"action": "store_true", "help": "every set contains the predicted class"},
        "error-at-most": _flag(
            "SHARE", "answers of which at most this share is wrong, for example 0.02; uses a third of val", float
        ),
        "threshold": _flag(
            "P",
            "P(1) of two classes from which one acts, for example 0.1, or costs of a false alarm and a miss,"
            " 1:9: net benefit",
            _threshold,
            action="append",
            default=[],
        ),
    },
    "output": {
        "out": _flag("FOLDER", "folder for all results: new, empty, or of the same command", os.path.expanduser),
        "metrics": _flag(
            "NAMES", f"metrics to report (default {','.join(DEFAULT_METRICS)})", _names, default=DEFAULT_METRICS
        ),
        "num-bins": _flag("BINS", "bins of both ECEs (default 15)", int, default=15),
        "num-resamples": _flag(
            "NUMBER", "resamples of the bootstrap (default 1000; fewer for more than 100,000 examples)", int
        ),
        "seed": _flag("SEED", "seed of the bootstrap and the folds (default 0)", int, default=0),
        "attach": _flag(
            "MODEL.onnx", "ONNX model of the classifier: writes calibrated.onnx, the model and its calibration"
        ),
    },
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message.replace('argument ', '', 1)}; see --help")


def make_parser() -> argparse.ArgumentParser:
    """The parser of all flags, in groups; it raises InputError where argparse would exit."""
    form = partial(argparse.RawDescriptionHelpFormatter, max_help_position=27, width=120)
    parser = _Parser(
        "python -m focalgeo.calibrate",
        f"python -m focalgeo.calibrate {EXAMPLE} [flags]",
        DESCRIPTION,
        formatter_class=form,
    )
    parser.allow_abbrev = False
    for title, flags in FLAGS.items():
        group = parser.add_argument_group(title)
        for name, options in flags.items():
            group.add_argument(f"--{name}", **options)
    for role in ROLES[1:]:
        parser.add_argument(f"--{role}-key", help=argparse.SUPPRESS)
    return parser


def _given(arguments):
    """The names of the flags that are given, each with a value, and once if it takes one."""
    given = set()
    for argument in arguments:
        if files.UNUSABLE.search(argument):
            raise InputError(f"{shown(argument, most=100)} holds what is no UTF-8 text on one line: rename it")
        if re.fullmatch("(--[^=]*=)?", argument):
            raise InputError(f"{argument or 'a flag'} has nothing behind it: give a value, or leave the flag out")
        name = argument[2:].partition("=")[0].replace("-", "_") if argument.startswith("--") else None
        if name in given - {"test", "also", "ignore_label", "threshold"}:
            raise InputError(f"--{name.replace('_', '-')} is given twice: give it once")
        given |= {name}
    return given - {None}


def _assess(given, flags):
    """Check the flags of --assess, which measures one file by either name, and say that nothing is fitted."""
    if len(flags.test) > 1:
        raise InputError("--assess fits nothing, as several tests ask for: give one --test")
    for name in ("attach", *FLAGS["method"]):
        if name.replace("-", "_") in given - {"assess"}:
            raise InputError(f"--assess fits nothing: leave out --{name}")
    flags.methods, flags.folds = ("uncalibrated",), 2  # folds that are not made
    if flags.test:
        given.add("val")  # which it is, where it is the only one


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the flags and check their ranges.

    Raises:
        InputError: one line that names the flag.
    """
    given = _given(arguments)
    flags = make_parser().parse_args(arguments)
    flags.given = given
    if flags.assess:
        _assess(given, flags)
    if missing := [f"--{name}" for name in ("val", "out") if name not in given]:
        raise InputError(f"the following arguments are required: {', '.join(missing)}; see --help")
    for name, (least, most) in RANGES.items():
        value = getattr(flags, name)
        if value is not None and not least <= value <= most:
            raise InputError(f"--{name.replace('_', '-')} is {value}: give a number from {least} to {most}")
    if flags.coverage is None and flags.given & {"sets", "sets_of", "least_one"}:
        raise InputError("--sets, --sets-of and --least-one say which sets: give --coverage=0.9 with them")
    flags.thresholds = flags.threshold
    for name in flags.criteria:
        if name not in CRITERIA:
            raise InputError.of_choice("--criteria", name, CRITERIA)
    flags.num_folds = flags.folds
    named = {}
    for text in flags.test:
        name, _, path = text.partition("=")
        is_name = name and f"_{name.replace('-', '_')}".isidentifier() and name not in ROLES
        if not path or not is_name or os.path.exists(text):
            name, path = "test", text  # such as logits=z.npy,labels=y.npy
        if name in named or (named and name in RESERVED):
            raise InputError(
                f"--test={shown(text)}: give each but the first as NAME=PATH, a new name in letters, digits, - and _"
            )
        named[name] = path
    flags.test, flags.tests = next(iter(named.values()), None), named if len(named) > 1 else {}
    flags.val, flags.test = (flags.val, flags.test) if flags.val else (flags.test, None)
    if flags.tests and flags.class_axis is not None:
        raise InputError("--class-axis goes with one --test: leave the others out")
    return flags


def main(arguments: Sequence[str]) -> int:
    """Calibrate; returns the exit code: 0, 2 (bad input) or 3 (numbers beyond float32, or more than memory holds)."""
    if {"-h", "--help"} & set(arguments):
        print(make_parser().format_help())
        return 0
    try:
        options = parse(arguments)
        from focalgeo.job import calibrate, process  # jax after the flags, so that their errors come at once

        process.check_jax()
        process.keep_programs()
        calibrate.run_and_print(options, command=["python", "-m", "focalgeo.calibrate", *arguments])
        return 0
    except (InputError, RunError) as error:
        refusal = error
    except MemoryError:
        refusal = RunError("the files need more memory than is free: give fewer examples")
    files.write_line(f"focalgeo: {refusal}")
    return refusal.exit_code


if __name__ == "__main__":
    sys.exit(files.spoken(lambda: main(sys.argv[1:])))
