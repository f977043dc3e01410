"""The main job: python -m focalgeo.run --config=configs/digits.py --workdir=runs/digits [--config.loss.gamma=3 ...].

--shard=i/n runs the i-th of n parts of a sweep; --fields shows all fields of the config.
On several hosts give the same command on each: under SLURM, Open MPI 4, GKE and on TPU pods without more flags,
elsewhere with --coordinator=HOST:PORT --processes=N --process=I [--join_timeout=300 --heartbeat=100, in seconds].
Compiled programs are kept in ~/.cache/focalgeo/xla; JAX_COMPILATION_CACHE_DIR names another folder, or empty none.
"""

import sys

from focalgeo.job import interruption

if __name__ == "__main__":
    interruption.stop_at_once()  # before the imports that take time

from typing import Any, NamedTuple

from ml_collections import ConfigDict

from focalgeo import processes
from focalgeo.config import load_config, split_arguments, split_flags, with_values
from focalgeo.types import InputError, Interrupted, RunError, shown

FLAGS = {"config": "configs/digits.py", "workdir": "runs/digits", "shard": "0/2", **processes.FLAGS}  # with examples


class Job(NamedTuple):
    """A job as the command line asks for it."""

    config: ConfigDict
    workdir: str
    shard: str | None
    cluster: dict[str, Any]  # what processes.join is given


def parse(arguments: list[str]) -> Job:
    """Read the arguments behind the command's name; anything wrong is an InputError of one line."""
    values, others = split_arguments(arguments)
    given = split_flags(others, FLAGS)
    for name in ("config", "workdir"):
        if name not in given:
            raise InputError(f"--{name} is missing: for example --{name}={FLAGS[name]}")
    cluster = processes.asked(given)
    return Job(with_values(load_config(given["config"]), values), given["workdir"], given.get("shard"), cluster)


def _parse_and_join(arguments: list[str]) -> Job:
    """`parse`, and join the others; an error of the arguments is raised once they are joined, and so ends them too."""
    job, trouble = None, None
    try:
        job = parse(arguments)
    except InputError as error:
        trouble = error
    try:
        cluster = job.cluster if job else _cluster_of(arguments)
        processes.join(**cluster, then=lambda: interruption.stop_at_once(processes.stop))
    except (InputError, RunError) as error:
        raise trouble or error from None
    if trouble:
        raise trouble
    return job


def _cluster_of(arguments: list[str]) -> dict[str, Any]:
    """What the flags of the cluster ask for, whatever is wrong with the other arguments."""
    found: dict[str, str] = {}
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        name, equals, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and name in processes.FLAGS:
            if name in found:
                raise InputError(f"--{name} is given twice: give it once")
            found[name] = value if equals else following
    return processes.asked(found)


def main(arguments: list[str]) -> int:
    """Run the job; returns the exit code: 0, 2 (bad input), 3 (the run cannot go on) or 128 + signal.

    Of several processes none returns: all end together, with one line and one code.
    """
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    line, code = "", 0
    try:
        asked = None if "--fields" in arguments else _parse_and_join(arguments[1:])
        from focalgeo import job  # after the flags, so that a typo is answered at once

        if asked is None:
            print(job.describe_config())
        else:
            from focalgeo.job import compilation

            compilation.collect_rarely()
            with compilation.programs_kept():
                job.run_and_print(asked.config, asked.workdir, shard=asked.shard)
    except (InputError, RunError, Interrupted) as error:
        line, code = _of(error, str(error), error.exit_code)
    except MemoryError as error:
        line = "the run needs more memory than is free: free some, then give the same command again to go on"
        line, code = _of(error, line, RunError.exit_code)
    except Exception as error:
        if processes.count() == 1:
            raise
        line, code = _of(error, f"{type(error).__name__}: {shown(error, most=200)}", 1)
        sys.excepthook(type(error), error, error.__traceback__)
    if processes.count() > 1:
        processes.end(line, code)
    if line:
        processes.write_line(f"focalgeo: {line}")
    return code


def _of(error: BaseException, line: str, code: int) -> tuple[str, int]:
    """The line and code; an error that is of another process' leaving ends all processes here."""
    if processes.lost(error):
        processes.end_lost(error)
    return line, code


if __name__ == "__main__":
    interruption.end_at_once(main(sys.argv))
