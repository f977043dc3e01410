"""The commands: python -m focalgeo lists them, and python -m focalgeo run ... is python -m focalgeo.run ..."""

import runpy
import sys

from focalgeo import __version__, files
from focalgeo.types import InputError, shown

COMMANDS = {  # name -> what it does, an example
    "run": (
        "train a classifier, measure its calibration and its curvature, and show both on one page",
        "--config=configs/digits.py --workdir=runs/digits",
    ),
    "calibrate": (
        "calibrate the outputs of any classifier, and say which method to use",
        "--val=val.npz --test=test.npz --out=runs/mine",
    ),
    "report": ("make the page of a run again, or one page of several runs", "runs/digits"),
}


def main() -> int:
    """Answer the command line, and say where the answer cannot be written."""
    return files.spoken(_answer)


def _answer():
    """Hand the arguments on to a command, or list the commands and the configs that `run` knows by name."""
    name, *rest = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help", "--version"):
        print(f"focalgeo {__version__}" if name == "--version" else listing())
    elif name in COMMANDS:
        sys.argv = [f"focalgeo {name}", *rest]
        runpy.run_module(f"focalgeo.{name}", run_name="__main__")
    else:
        print(f"focalgeo: {InputError.of_choice('the command', shown(name), COMMANDS)}", file=sys.stderr)
        return InputError.exit_code
    return 0


def listing() -> str:
    """The commands, each with an example, and the configs, each with its first line."""
    from focalgeo.config import own_configs  # what `run` imports, once it heeds Ctrl-C

    lines = [f"focalgeo {__version__}: focal loss, calibration and the curvature of the loss surface", ""]
    for name, (what, example) in COMMANDS.items():
        lines += [f"  {name:11}{what}", f"{'':13}python -m focalgeo.{name} {example}"]
    lines += ["", "`focalgeo NAME` and `python -m focalgeo.NAME` are the same; --help after either says more.", ""]
    lines += ["Configs of run, from any folder:", ""]
    lines += [f"  {f'configs/{file}':32}{first}" for file, first in own_configs().items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
