"""The calibrate command: python -m focalgeo.calibrate --val=val.npz --test=test.npz --out=runs/mine."""

import signal
import sys

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends at once; every file on disk is complete at any moment

import argparse
import os
import re
from collections.abc import Sequence
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
ROLES = {  # names of arrays, and what each does
    "logits": "holds logits",
    "probs": "holds probabilities",
    "labels": "holds labels",
    "weight": "weighs examples",
    "group": "names each example's group",
    "cluster": "names the examples that belong together",
}
RESERVED = {"val", "test", "cross_fit", "decisions"}  # names of what else is in probabilities/


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message.replace('argument ', '', 1)}; see --help")


def _names(text: str) -> tuple[str, ...]:
    """Names with commas between them, each once."""
    return tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))


def make_parser() -> argparse.ArgumentParser:
    """The parser of all flags; it raises InputError where argparse would exit."""
    parser = _Parser(
        "python -m focalgeo.calibrate",
        "python -m focalgeo.calibrate --val=val.npz --test=test.npz --out=runs/mine [flags]",
        DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--val", metavar="PATH", help="file of the outputs on which the methods are fitted")
    add(
        "--test",
        metavar="[NAME=]PATH",
        action="append",
        default=[],
        help="file of those on which they are measured, if it has labels; else val is cross-fitted. Of several that is"
        " the first, and of each is asked whether the calibration holds there",
    )
    add(
        "--out",
        metavar="FOLDER",
        type=os.path.expanduser,
        help="folder for all results: new, empty, or of the same command",
    )
    for key, what in ROLES.items():
        add(f"--{key}-key", metavar="NAME", help=f"the array that {what}, if its name is not {key}")
    add(
        "--task",
        choices=("multiclass", "multilabel"),
        default="multiclass",
        help="multiclass (default), or multilabel: labels [rows, labels] of 0 and 1 (NaN or -1: none), a score for"
        " each",
    )
    add("--prefix", metavar="NAME_", help="what columns of scores begin with; they are probs if all rows sum to 1")
    add(
        "--prevalence",
        type=float,
        metavar="SHARE",
        help="share of class 1 of two in use, if the files are rebalanced (undersampling): weights, as 0.02 / its"
        " share",
    )
    add("--positive", metavar="NAME", help="the label of class 1 of two, if labels are names")
    add(
        "--ignore-label",
        type=_names,
        action="extend",
        default=[],
        metavar="LABEL",
        help="labels whose rows are left out, such as -100",
    )
    add(
        "--class-axis",
        type=int,
        metavar="AXIS",
        help="axis of the classes in outputs for every pixel, two .npy files, as -1 or 1: a temperature, images as"
        " clusters",
    )
    add(
        "--floor", type=float, metavar="P", help="what a probability of 0 counts as in the NLL (default: chosen on val)"
    )
    add("--methods", type=_names, default=(), help="methods to compare, such as vector_scaling,isotonic")
    add(
        "--criterion",
        choices=CRITERIA,
        default="nll",
        help="by which methods are fitted, compared and chosen: nll (default), ece, ...",
    )
    add(
        "--prefer",
        choices=("least", "plain"),
        default="least",
        help="least (default): what costs least on new examples, mostly a mixture; plain: one map that keeps the class",
    )
    add(
        "--criteria", type=_names, default=(), help="by which methods are fitted besides, such as ece: a search by grid"
    )
    add("--metrics", type=_names, default=DEFAULT_METRICS, help=f"metrics (default {','.join(DEFAULT_METRICS)})")
    add("--trained-gamma", type=float, metavar="GAMMA", help="gamma of the focal loss that the model was trained with")
    add(
        "--also",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="probabilities by a method from elsewhere, to be compared: arrays val (held out, fold by fold) and test",
    )
    add(
        "--attach",
        metavar="MODEL.onnx",
        help="ONNX model of the classifier: calibrated.onnx goes on from its first output, the logits (extra onnx)",
    )
    for flag, default, what in (
        ("folds", 5, "folds of the cross-fit of val by which a method is chosen"),
        ("num-bins", 15, "bins of both ECEs"),
        ("seed", 0, "seed of the bootstrap and of the folds"),
    ):
        add(f"--{flag}", type=int, default=default, help=f"{what} (default {default})")
    add(
        "--coverage",
        type=float,
        metavar="SHARE",
        help="sets of classes that contain the label with this probability, for example 0.9",
    )
    add(
        "--sets",
        choices=("lac", "aps", "raps"),
        default="lac",
        help="sets' kind: lac (default), the smallest; aps, larger where it is harder; raps, seldom large",
    )
    add(
        "--sets-of",
        choices=("all", "class", "class_cluster", "group"),
        default="all",
        help="what has that coverage: all (default), each class, class_cluster or group",
    )
    add("--least-one", action="store_true", help="sets are never empty: the predicted class is always in them")
    add(
        "--error-at-most",
        type=float,
        metavar="SHARE",
        help="answers of which at most so many are wrong, as 0.02; a third of val is held back for it and for"
        " --coverage",
    )
    add(
        "--num-resamples",
        type=int,
        metavar="NUMBER",
        help="resamples of the bootstrap (default 1000, of more than 100,000 examples fewer)",
    )
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
        if name in given - {"test", "also", "ignore_label"}:
            raise InputError(f"--{name.replace('_', '-')} is given twice: give it once")
        given |= {name}
    return given - {None}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the flags and check their ranges.

    Raises:
        InputError: one line that names the flag.
    """
    given = _given(arguments)
    flags = make_parser().parse_args(arguments)
    flags.given = given
    if missing := [f"--{name}" for name in ("val", "out") if name not in given]:
        raise InputError(f"the following arguments are required: {', '.join(missing)}; see --help")
    for name, (least, most) in RANGES.items():
        value = getattr(flags, name)
        if value is not None and not least <= value <= most:
            raise InputError(f"--{name.replace('_', '-')} is {value}: give a number from {least} to {most}")
    if flags.coverage is None and flags.given & {"sets", "sets_of", "least_one"}:
        raise InputError("--sets, --sets-of and --least-one say which sets: give --coverage=0.9 with them")
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
