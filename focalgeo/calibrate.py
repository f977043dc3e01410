"""The calibrate command: python -m focalgeo.calibrate --val=val.npz --test=test.npz --out=runs/mine."""

import signal
import sys

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends at once; every file on disk is complete at any moment

import argparse
from collections.abc import Sequence
from typing import NoReturn

from focalgeo import processes
from focalgeo.files import UNUSABLE
from focalgeo.types import (
    CRITERIA,
    DEFAULT_CRITERIA,
    DEFAULT_METRICS,
    MOST_BINS,
    MOST_RESAMPLES,
    InputError,
    RunError,
    expanded,
    shown,
)

DESCRIPTION = """\
Fit calibration methods to a classifier's outputs and say, on other examples, which to use: calibrated probabilities,
calibrator.json and report.html.

Each split is one file with logits or probs [examples, classes], labels [examples] and perhaps group [examples]:
  .npz, .safetensors, .pt   named arrays (.pt is read with weights_only, and needs torch)
  .csv                      a header: labels,logits_0,logits_1,... (or probs_0,...), perhaps group
  two .npy files            --val=logits=z.npy,labels=y.npy (or probs=p.npy,labels=y.npy)

Compiled programs are kept in ~/.cache/focalgeo/xla; JAX_COMPILATION_CACHE_DIR names another folder, or empty none.
"""
EXAMPLE = "python -m focalgeo.calibrate --val=val.npz --test=test.npz --out=runs/mine"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message.replace('argument ', '', 1)}; see --help")


def _whole(text: str) -> int:
    """A whole number in ASCII digits; int() takes 1_000 and the digits of every script too."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise argparse.ArgumentTypeError(f"invalid int value: {text[:40]!r}, give a whole number")
    return int(text)


def _number(text: str) -> float:
    try:
        if text.isascii() and "_" not in text:
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"invalid float value: {text[:40]!r}, give a number such as 2.5")


def _names(text: str) -> tuple[str, ...]:
    """Names with commas between them, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def make_parser() -> argparse.ArgumentParser:
    """The parser of all flags; it raises InputError where argparse would exit."""
    parser = _Parser(
        prog="python -m focalgeo.calibrate",
        usage=f"{EXAMPLE} [flags]",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--val", metavar="PATH", help="file of the outputs on which the methods are fitted")
    add("--test", metavar="PATH", help="file of the outputs on which they are measured; without it val is cross-fitted")
    add("--out", metavar="FOLDER", help="folder for all results: new, empty, or of the same command")
    add("--logits-key", metavar="NAME", help="the array that holds logits, if its name is not logits")
    add("--probs-key", metavar="NAME", help="the array that holds probabilities, if its name is not probs")
    add("--labels-key", metavar="NAME", help="the array that holds labels, if its name is not labels")
    add("--group-key", metavar="NAME", help="the array that names each example's group, if its name is not group")
    add(
        "--methods",
        type=_names,
        default=(),
        metavar="NAMES",
        help="methods to compare, such as vector_scaling,isotonic",
    )
    add("--criterion", default="nll", help="by which methods are fitted, compared and chosen: nll (default), ece, ...")
    add("--criteria", type=_names, default=DEFAULT_CRITERIA, metavar="NAMES", help="fits shown (default nll,ece)")
    add(
        "--metrics",
        type=_names,
        default=DEFAULT_METRICS,
        metavar="NAMES",
        help=f"metrics (default {','.join(DEFAULT_METRICS)})",
    )
    add(
        "--trained-gamma", type=_number, metavar="GAMMA", help="gamma of the focal loss that the model was trained with"
    )
    add(
        "--also",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="probabilities by a method from elsewhere, to be compared: arrays val (held out, fold by fold) and test",
    )
    add(
        "--folds",
        dest="num_folds",
        type=_whole,
        default=5,
        help="folds of the cross-fit of val by which a method is chosen (default 5)",
    )
    add("--num-bins", type=_whole, default=15, help="bins of both ECEs (default 15)")
    add("--num-resamples", type=_whole, default=1000, help="resamples of the bootstrap (default 1000)")
    add("--seed", type=_whole, default=0, help="seed of the bootstrap and of the folds (default 0)")
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the flags and check their ranges.

    Raises:
        InputError: one line that names the flag.
    """
    _check_texts(arguments)
    parser = make_parser()
    found, rest = parser.parse_known_args(arguments)
    if rest:
        known = [name for action in parser._actions for name in action.option_strings]
        if rest[0].startswith("--"):
            raise InputError.of_choice("the flag", rest[0].partition("=")[0][:60], known)
        raise InputError(f"unknown argument {rest[0][:60]!r}: flags are given as in {EXAMPLE}")
    for name in ("val", "out"):
        if not getattr(found, name):
            raise InputError(f"--{name} is missing: for example {EXAMPLE}")
    found.out, found.also = expanded(found.out), tuple(found.also)
    _check(found)
    return found


def _check_texts(arguments: Sequence[str]) -> None:
    """Refuses a flag without a value or given twice, and text that neither a line nor a file in UTF-8 can hold."""
    for argument in filter(UNUSABLE.search, arguments):
        raise InputError(f"{shown(argument, most=100)} holds what is no UTF-8 text on one line: rename it")
    names = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    names = [name for name in names if name != "--also"]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{twice[:60]} is given {names.count(twice)} times: give it once")
    for name, equals, value in (argument.partition("=") for argument in arguments):
        if name.startswith("--") and equals and not value.strip():
            raise InputError(f"{name[:60]}= has no value: give one or leave the flag out")
    for argument in arguments:
        if not argument.strip():
            raise InputError(f"an argument is empty: flags are given as in {EXAMPLE}")


def _check(options: argparse.Namespace) -> None:
    for flag, names in (("criterion", (options.criterion,)), ("criteria", options.criteria)):
        for name in names:
            if name not in CRITERIA:
                raise InputError.of_choice(f"--{flag}", name, CRITERIA)
    if options.logits_key is not None and options.probs_key is not None:
        raise InputError("--logits-key and --probs-key are both given: a file is read as logits or as probs, give one")
    ranges = (
        ("num_folds", 2, 100),
        ("num_bins", 1, MOST_BINS),
        ("num_resamples", 100, MOST_RESAMPLES),
        ("seed", 0, 2**31 - 1),
    )
    for name, least, most in ranges:
        value = getattr(options, name)
        if not least <= value <= most:
            flag = name.removeprefix("num_") if name == "num_folds" else name.replace("_", "-")
            raise InputError(f"--{flag} is {value}: it must be from {least} to {most}")
    if options.trained_gamma is not None and not 0 <= options.trained_gamma <= 100:
        raise InputError(f"--trained-gamma is {options.trained_gamma}: it must be from 0 to 100")


def main(arguments: Sequence[str]) -> int:
    """Calibrate; returns the exit code: 0, 2 (bad input) or 3 (numbers beyond float32, or more than memory holds)."""
    if {"-h", "--help"} & set(arguments):
        print(make_parser().format_help())
        return 0
    try:
        options = parse(arguments)
        if processes.launched() > 1:
            raise InputError(f"{processes.launched()} processes are started and this command is one: start it alone")
        from focalgeo.job import calibrate, compilation  # jax after the flags, so that their errors come at once

        compilation.collect_rarely()
        with compilation.programs_kept():
            calibrate.run_and_print(options, command=["python", "-m", "focalgeo.calibrate", *arguments])
        return 0
    except (InputError, RunError) as error:
        print(f"focalgeo: {str(error).replace('--workdir', '--out')}", file=sys.stderr)
        return error.exit_code
    except MemoryError:
        print("focalgeo: the files need more memory than is free: give fewer examples", file=sys.stderr)
        return RunError.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
