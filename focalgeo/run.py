"""Door 1: python -m focalgeo.run --config=configs/digits.py --workdir=runs/digits [--config.loss.gamma=3 ...]."""

import sys

from focalgeo.training import interruption

if __name__ == "__main__":
    interruption.stop_at_once()  # before the imports that take time
import re

from absl import flags
from ml_collections import config_flags

from focalgeo.types import InputError, Interrupted, RunError

CONFIG = config_flags.DEFINE_config_file("config", None, "The config file, e.g. configs/digits.py.", lock_config=True)
WORKDIR = flags.DEFINE_string("workdir", None, "The folder that receives everything; not empty: the run there goes on.")
SHARD = flags.DEFINE_string("shard", None, "i/n: the i-th of n parts of a sweep, in a workdir of its own.")


def parse(arguments: list[str]) -> None:
    """Read the flags; whatever is wrong with them is one InputError."""
    try:
        rest = flags.FLAGS(arguments)[1:]
        fields = CONFIG.value and CONFIG.value.keys()  # a file that could not be loaded raises here
    except (AttributeError, KeyError) as error:  # ml_collections names the field that is missing and the nearest one
        named, near = re.search(r"'(\w+)\\*'", str(error)), re.search(r'mean "(\w+)"', str(error))
        given = [argument for argument in arguments if named and f".{named[1]}" in argument] or ["?"]
        hint = f'did you mean "{near[1]}"?' if near else "see the config file for its fields"
        raise InputError(f"no such config field: {given[0]}; {hint}") from error
    except Exception as error:  # anything that a config file or a parser raised, wrapped; the last line says it
        lines = [line.strip() for line in str(error).replace("\\n", "\n").splitlines() if line.strip(" '\"")]
        raise InputError(re.sub(r"^\w+Error: ", "", lines[-1]) if lines else type(error).__name__) from error
    if rest:
        raise InputError(f"unknown argument {rest[0]!r}: fields are set as --config.loss.gamma=3")
    for given, example in ((fields, "--config=configs/digits.py"), (WORKDIR.value, "--workdir=runs/digits")):
        if not given:
            raise InputError(f"{example.split('=')[0]} is missing: for example {example}")


def main(arguments: list[str]) -> int:
    """Run the job; returns the exit code: 0, 2 (bad input), 3 (the run cannot go on) or 128 + signal."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    try:
        parse(arguments)
        from focalgeo import job  # after the flags, so that a typo is answered at once

        job.run_and_print(CONFIG.value, WORKDIR.value, shard=SHARD.value)
        return 0
    except (InputError, RunError, Interrupted) as error:
        print(f"focalgeo: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    interruption.end_at_once(main(sys.argv))
