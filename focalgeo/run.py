"""The main job: python -m focalgeo.run --config=configs/digits.py --workdir=runs/digits [--config.loss.gamma=3 ...].

--shard=i/n runs the i-th of n parts of a sweep; --fields shows all fields of the config.
"""

import sys

from focalgeo.job import interruption

if __name__ == "__main__":
    interruption.stop_at_once()  # before the imports that take time

from typing import NamedTuple

from ml_collections import ConfigDict

from focalgeo.config import load_config, split_arguments, split_flags, with_values
from focalgeo.types import InputError, Interrupted, RunError

FLAGS = {"config": "configs/digits.py", "workdir": "runs/digits", "shard": "0/2"}  # with an example of each


class Job(NamedTuple):
    """A job as the command line asks for it."""

    config: ConfigDict
    workdir: str
    shard: str | None


def parse(arguments: list[str]) -> Job:
    """Read the arguments behind the command's name; anything wrong is an InputError of one line."""
    values, others = split_arguments(arguments)
    given = split_flags(others, FLAGS)
    for name in ("config", "workdir"):
        if name not in given:
            raise InputError(f"--{name} is missing: for example --{name}={FLAGS[name]}")
    return Job(with_values(load_config(given["config"]), values), given["workdir"], given.get("shard"))


def main(arguments: list[str]) -> int:
    """Run the job; returns the exit code: 0, 2 (bad input), 3 (the run cannot go on) or 128 + signal."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    try:
        asked = None if "--fields" in arguments else parse(arguments[1:])
        from focalgeo import job  # after the flags, so that a typo is answered at once

        if asked is None:
            print(job.describe_config())
        else:
            job.run_and_print(asked.config, asked.workdir, shard=asked.shard)
        return 0
    except (InputError, RunError, Interrupted) as error:
        print(f"focalgeo: {error}", file=sys.stderr)
        return error.exit_code
    except MemoryError:
        line = "the run needs more memory than is free: free some, then give the same command again to go on"
        print(f"focalgeo: {line}", file=sys.stderr)
        return RunError.exit_code


if __name__ == "__main__":
    interruption.end_at_once(main(sys.argv))
