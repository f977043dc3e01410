"""Door 1: python -m focalgeo.run --config=configs/digits.py --workdir=runs/digits [--config.loss.gamma=3]."""

import re
import signal
import sys

from absl import flags
from ml_collections import config_flags

from focalgeo.types import InputError, Interrupted, RunError

CONFIG = config_flags.DEFINE_config_file("config", None, "The config file of the job, e.g. configs/digits.py.", lock_config=True)
WORKDIR = flags.DEFINE_string("workdir", None, "The folder that receives everything; not empty: the run there goes on.")


def parse(arguments: list[str]) -> None:
    """Read the flags; whatever is wrong with them is one InputError."""
    try:
        rest = flags.FLAGS(arguments)[1:]
        if rest:
            raise InputError(f"unknown argument {rest[0]!r}: fields are set as --config.loss.gamma=3")
        for flag, example in ((CONFIG, "configs/digits.py"), (WORKDIR, "runs/digits")):
            if flag.value is None:
                raise InputError(f"--{flag.name} is missing: for example --{flag.name}={example}")
        str(CONFIG.value.keys())  # a config file that could not be loaded raises here
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError, OSError, SyntaxError, ImportError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(" ".join(re.sub(r"['\"\\]*\n['\"\\]*", ": ", str(error).strip("'\"")).split())) from error


def main(arguments: list[str]) -> int:
    """Run the job; returns the exit code: 0, 2 (bad input), 3 (the run cannot go on) or 128 + signal."""

    def interrupt(signum, frame):
        raise Interrupted(signum, "stopped; the same command goes on from the last checkpoint")

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, interrupt)
    try:
        parse(arguments)
        from focalgeo import job  # after the flags, so that a typo is answered at once

        job.run_and_print(CONFIG.value, WORKDIR.value)
    except (InputError, RunError, Interrupted) as error:
        print(f"focalgeo: {error}", file=sys.stderr)
        return 128 + error.signum if isinstance(error, Interrupted) else 2 if isinstance(error, InputError) else 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
