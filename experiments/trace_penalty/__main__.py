"""Train what the folder of --out lacks, measure the cost, and write results.json and tables.md from all that is there.

python -m experiments.trace_penalty --cifar10=folder:cifar10.tar.xz
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from experiments.trace_penalty import cost, runs
from experiments.trace_penalty.tables import all_tables
from experiments.writing import rounded
from focalgeo.types import InputError, RunError


def main() -> None:
    """Do the pieces asked for, and write what there is of all tasks; 2 where what they need is not there."""
    asked = parse()
    try:
        asked.out.mkdir(parents=True, exist_ok=True)
        _do(asked)
    except (InputError, RunError) as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    except subprocess.CalledProcessError as failed:  # a job, which has said why
        sys.exit(failed.returncode)
    except KeyboardInterrupt:
        print("stopped; what is trained and measured is kept, and the same command goes on", file=sys.stderr)
        sys.exit(130)
    except OSError as error:
        print(f"{error.filename}: {error.strerror}: give another folder as --out", file=sys.stderr)
        sys.exit(2)


def _do(asked: argparse.Namespace) -> None:
    for name in asked.tasks:
        data = asked.cifar10 if name == "cifar10" else None
        if "train" in asked.pieces:
            runs.train(asked.out, name, asked.seeds, data)
        if "cost" in asked.pieces:
            cost.measure(asked.out, name, asked.seeds, data=data, rounds=asked.rounds, probes=asked.probes)
    write(asked.out)


def parse() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(prog="python -m experiments.trace_penalty", description=__doc__)
    add = parser.add_argument
    add("--tasks", nargs="+", choices=runs.TASKS, default=list(runs.TASKS))
    add("--pieces", nargs="*", choices=("train", "cost"), default=["train", "cost"], help="none: write the tables only")
    add("--seeds", type=int, default=5, help="0, 1, ... of every form (default 5)")
    add("--cifar10", metavar="NAME", help="config.data.name of the images (default: the config's own)")
    add("--rounds", type=int, default=9, help="of timed steps (default 9)")
    add("--probes", type=int, default=200, help="random vectors by which noise is measured (default 200)")
    add("--out", type=Path, default=Path("runs/trace_penalty"), help="folder of the runs (default runs/trace_penalty)")
    asked = parser.parse_args()
    for name, least in {"seeds": 2, "rounds": 1, "probes": 2}.items():
        if getattr(asked, name) < least:
            parser.error(f"--{name}: {getattr(asked, name)} is fewer than {least}")
    asked.out = asked.out.absolute()  # the jobs run in the folder of the clone
    if asked.cifar10 and asked.cifar10.startswith("folder:"):
        asked.cifar10 = f"folder:{Path(asked.cifar10.removeprefix('folder:')).absolute()}"
    return asked


def write(out: Path) -> None:
    """Write results.json from the workdirs and what was measured, and from it alone the tables."""
    results = {}
    for name in runs.TASKS:
        found = {"runs": rounded(runs.measured(out, name))}
        path = out / "measured" / f"cost-{name}.json"
        if path.exists():
            found["cost"] = rounded(json.loads(path.read_text()))
        if found["runs"]:
            results[name] = found
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    text = "\n".join(f"## {name}\n\n{table}" for name, table in all_tables(results).items())
    (out / "tables.md").write_text(text, encoding="utf-8")
    print(f"{out}: results.json and tables.md")


if __name__ == "__main__":
    main()
