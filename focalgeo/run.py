"""The main job: python -m focalgeo.run --config=configs/digits.py --workdir=runs/digits [--config.loss.gamma=3 ...].

--shard=i/n runs the i-th of n parts of a sweep; --fields shows all fields of the config.
"""

import sys

from focalgeo.job import interruption

if __name__ == "__main__":
    interruption.stop_at_once()  # before the imports that take time

from absl import flags
from ml_collections import ConfigDict

from focalgeo.config import load_config, split_arguments, with_values
from focalgeo.types import InputError, Interrupted, RunError

CONFIG = flags.DEFINE_string("config", None, "The config file, e.g. configs/digits.py.")
WORKDIR = flags.DEFINE_string("workdir", None, "The folder for all results; if it holds a run, that run goes on.")
SHARD = flags.DEFINE_string("shard", None, "i/n: the i-th of n parts of a sweep, in a workdir of its own.")


def parse(arguments: list[str]) -> ConfigDict:
    """Read the flags and return the config; anything wrong is an InputError of one line."""
    values, others = split_arguments(arguments)
    try:
        rest = flags.FLAGS(others)[1:]
    except flags.Error as error:
        raise InputError(str(error).partition("\n")[0]) from error
    if rest:
        raise InputError(f"unknown argument {rest[0]!r}: fields are set as --config.loss.gamma=3")
    for given, example in ((CONFIG.value, "--config=configs/digits.py"), (WORKDIR.value, "--workdir=runs/digits")):
        if not given:
            raise InputError(f"{example.split('=')[0]} is missing: for example {example}")
    return with_values(load_config(CONFIG.value), values)


def main(arguments: list[str]) -> int:
    """Run the job; returns the exit code: 0, 2 (bad input), 3 (the run cannot go on) or 128 + signal."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    try:
        config = None if "--fields" in arguments else parse(arguments)
        from focalgeo import job  # after the flags, so that a typo is answered at once

        if config is None:
            print(job.describe_config())
        else:
            job.run_and_print(config, WORKDIR.value, shard=SHARD.value)
        return 0
    except (InputError, RunError, Interrupted) as error:
        print(f"focalgeo: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    interruption.end_at_once(main(sys.argv))
