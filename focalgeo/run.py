"""Train a classifier, calibrate it, measure the curvature of its loss, and show all of it on one page.

    python -m focalgeo.run --config=configs/digits.py --workdir=runs/digits [--config.loss.gamma=3 ...]

  --config=PATH              a config, or the name of one that is installed: `python -m focalgeo` lists them
  --workdir=FOLDER           for all results: new, empty, or that of the same command, which then goes on
  --config.FIELD=VALUE       another value of a field of the config
  --fields                   lists all fields with their defaults, meanings and ranges
  --shard=i/n                the i-th of n parts of a sweep
  --coordinator=HOST:PORT --processes=N --process=I [--join-timeout=300 --heartbeat=100, in seconds]
                             on several hosts; under SLURM, Open MPI 4, GKE and on TPU pods the same command is enough

Compiled programs are kept in ~/.cache/focalgeo/xla; JAX_COMPILATION_CACHE_DIR names another folder, or empty none.
"""

import signal
import sys

from focalgeo.job import process

if __name__ == "__main__":
    process.stop_at_once()  # before the imports that take time

import contextlib
from typing import Any

from ml_collections import ConfigDict

from focalgeo import config, files
from focalgeo.types import InputError, Interrupted, RunError, shown

FLAGS = {  # with an example of each
    "config": "configs/digits.py",
    "workdir": "runs/digits",
    "shard": "0/2",
    "coordinator": "10.0.0.1:1234",
    "processes": "2",
    "process": "0",
    "join-timeout": "300",
    "heartbeat": "100",
}
_CLUSTER = ("coordinator", "processes", "process")


def parse(arguments: list[str]) -> tuple[ConfigDict, str, str | None, dict[str, Any]]:
    """Read config, workdir, shard and arguments of parallel.join; anything wrong is an InputError of one line.

    arguments: those behind the command's name.
    """
    values, flags = config.parse_arguments(arguments, FLAGS)
    for name in ("config", "workdir", *(_CLUSTER if any(name in flags for name in _CLUSTER) else ())):
        if name not in flags:
            raise InputError(f"--{name} is missing: for example --{name}={FLAGS[name]}")
    cluster = {name: flags[name] for name in (*_CLUSTER, "join-timeout", "heartbeat") if name in flags}
    for name in cluster.keys() - {"coordinator"}:
        if not cluster[name].isdecimal():
            raise InputError(f"--{name} is {shown(cluster[name])}: it must be a whole number, as {FLAGS[name]}")
        cluster[name] = int(cluster[name])
    of_job = config.with_values(config.load_config(flags["config"]), values)
    return of_job, flags["workdir"], flags.get("shard"), cluster


def main(arguments: list[str]) -> int:
    """Run the job; returns the exit code: 0, 2 (bad input), 3 (the run cannot go on) or 128 + signal."""
    several, code, line = False, 0, ""
    try:
        if {"-h", "--help"} & set(arguments):
            print(__doc__, end="")
            return 0
        if "--fields" in arguments:
            from focalgeo.job import describe_config

            print(describe_config())
            return 0
        of_job, workdir, shard, cluster = parse(arguments[1:])
        from focalgeo import job, parallel  # jax after the flags, so that a typo is answered at once

        with process.handled(signal.SIG_DFL):  # it may wait in compiled code, in which Python heeds no signal
            parallel.join(**{name.replace("-", "_"): value for name, value in cluster.items()})
        process.check_jax()
        several = parallel.count() > 1
        process.keep_programs()
        # of several processes one that ended at once would leave the others waiting
        with process.deferred_signals() if several else contextlib.nullcontext(lambda: None) as signalled:
            parallel.interrupted = signalled
            job.run_and_print(of_job, workdir, shard=shard)
    except (InputError, RunError, Interrupted) as error:
        line, code = str(error), error.exit_code
    except MemoryError:
        line = "the run needs more memory than is free: free some, then give the same command again to go on"
        code = RunError.exit_code
    except Exception as error:
        if not several:
            raise
        sys.excepthook(type(error), error, error.__traceback__)
        line = f"{type(error).__name__}, as when another process is gone: the same command goes on from what is saved"
        code = RunError.exit_code
    if line:
        files.write_line(f"focalgeo: {line}")
    if several:
        parallel.leave(code)
    return code


if __name__ == "__main__":
    process.end_at_once(files.spoken(lambda: main(sys.argv)))
