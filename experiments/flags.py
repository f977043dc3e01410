"""The flags of the experiments' commands: those that several share, and one line for what is wrong."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Of `python -m experiments.<name>`; a mistake is one line, and exit code 2."""

    def __init__(self, name: str, doc: str):
        """name: after "experiments."; doc: the module's docstring, which is the help."""
        command = f"python -m experiments.{name}" if name else "python -m experiments"
        super().__init__(prog=command, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where the flags are, and exit with 2."""
        self.exit(2, f"{self.prog}: {message.removeprefix('argument ')} (--help lists the flags)\n")

    def add_out(self, default: str, what: str) -> None:
        """--out, made absolute: jobs run in the folder of the clone."""
        self.add_argument("--out", type=_absolute, default=default, help=f"{what} (default {default})")

    def add_store(self) -> None:
        """--store: the experiment's folder in place of --out."""
        self.add_argument("--store", action="store_true", help="write where the stored results are")

    def add_jobs(self, *, seeds: int, least: int) -> None:
        """--seeds, --again, --tables and --cost of a question that trains by jobs."""
        add = self.add_argument
        add("--seeds", type=at_least(least), default=seeds, help=f"0, 1, ... (default {seeds})")
        add("--again", action="store_true", help="what is stored too; jobs finished in --out are read, not trained")
        add("--tables", action="store_true", help="train nothing, write what is stored")
        add("--cost", action="store_true", help="print what is to be trained and its cost")

    def add_scale(self) -> None:
        """--scale: hours of two cores, or the papers' recipe."""
        self.add_argument("--scale", choices=("small", "paper"), default="small", help="paper: for a GPU or TPU")

    def add_cifar10(self, what: str) -> None:
        """--cifar10: where the images are."""
        words = f"config.data.name of {what}, as folder:cifar10.tar.xz (default: the config's own)"
        self.add_argument("--cifar10", metavar="NAME", help=words)


def at_least(least: int) -> Callable[[str], int]:
    """The type of a flag that is a whole number of `least` or more."""

    def number(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if found < least:
            raise argparse.ArgumentTypeError(f"{found} is fewer than {least}")
        return found

    return number


def _absolute(text: str) -> Path:
    return Path(text).absolute()
