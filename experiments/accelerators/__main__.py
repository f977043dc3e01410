"""Compile the programs of the main job for TPUs, which takes no TPU, or run and time them on the device at hand.

python -m experiments.accelerators            compiles what results.json lacks, row by row
python -m experiments.accelerators --run      on a GPU or TPU: into timings.json
"""

import argparse
import json
import os
import sys
from datetime import date
from pathlib import Path
from typing import Any

from experiments.flags import Parser
from focalgeo.types import InputError, shown

HEAD = ("about", "claims")


def main(argv: list[str] | None = None) -> int:
    """Make the rows asked for; 2 where what they need is not there."""
    asked = parse(argv)
    if not (asked.run or asked.tables):
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        (time_all if asked.run else compile_all)(asked)
    except InputError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped; rows that are made are kept, and the same command goes on", file=sys.stderr)
        return 130
    return 0


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = Parser("accelerators", __doc__)
    add = parser.add_argument
    add("--run", action="store_true", help="run and time the programs on the GPU or TPU at hand")
    add("--tables", action="store_true", help="make nothing, write the tables of results.json into README.md")
    add("--only", default="", help="only programs with this text in 'kind: name, dtype'")
    add("--on", default="", help="only this topology, such as v5e:2x2")
    add("--out", type=Path, default=Path(__file__).parent, help="folder of the results, continued (default: here)")
    return parser.parse_args(argv)


def compile_all(asked: argparse.Namespace) -> None:
    """Compile every row that is not there yet, and write it as soon as it is."""
    from experiments.accelerators import compiling, tables
    from experiments.accelerators.cases import cases
    from experiments.accelerators.verdicts import head

    path = asked.out / "results.json"
    results = _read(path)
    if asked.tables:
        return tables.write(path, results, tables.tables)
    compiling.check_compiler()
    results |= compiling.machine()
    there = {tables.key(row) for row in results["rows"]}
    every = [(case, topology) for case in _chosen(cases(), asked.only) for topology in case.on]
    wanted = [(case, topology) for case, topology in every if asked.on in ("", topology)]
    if not wanted:
        known = ", ".join(dict.fromkeys(topology for _, topology in every))
        raise InputError(f"--on={shown(asked.on)} is none of these programs' topologies: {known}")
    lacking = [(case, topology) for case, topology in wanted if case.key(topology) not in there]
    for case, topology in lacking:
        row = compiling.row_of_child(case, topology)
        results["rows"].append(row)
        results = head(results, str(date.today())) | {name: part for name, part in results.items() if name not in HEAD}
        tables.write(path, results, tables.tables)
        print(_said(row), flush=True)
    if not lacking:
        print(f"{path} holds these rows already")
    return None


def time_all(asked: argparse.Namespace) -> None:
    """Run and time each program once for all topologies."""
    from experiments.accelerators import running, tables
    from experiments.accelerators.cases import cases

    running.check_accelerator()
    path = asked.out / "timings.json"
    results = _read(path) | running.device()
    there = {tables.key(row) for row in results["rows"]}
    for case in _chosen([case for case in cases() if not case.effort], asked.only):
        if case.key(None) not in there:
            row = running.timed_row(case)
            there.add(case.key(None))
            results["rows"].append(row)
            tables.write(path, results, lambda found: {"timings": tables.timed_table(found)})
            print(f"{case.label}: {1e3 * row['seconds']:.3g} ms", flush=True)


def _chosen(cases: list, text: str) -> list:
    found = [case for case in cases if text in case.label]
    if not found:
        raise InputError(f"--only={shown(text)} is in no name: give a part of one such as {cases[0].label!r}")
    return found


def _read(path: Path) -> dict[str, Any]:
    """The results of a folder, which is made; none where there are none yet."""
    from experiments.accelerators import tables

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": []}
        for row in found["rows"]:
            tables.key(row)
        return found
    except OSError as error:
        raise InputError(f"{shown(path, most=200)}: {error.strerror}: give another folder as --out") from None
    except (ValueError, TypeError, KeyError):
        raise InputError(f"{shown(path, most=200)} holds no results of this command: move it away") from None


def _said(row: dict[str, Any]) -> str:
    said = f"{row['kind']}: {row['program']}, {row['dtype']}, {row['topology']}"
    if not row["compiles"]:
        return f"{said}: {row['error']}"
    return f"{said}: {row['seconds']:.0f} s, {row['cpu_seconds']:.0f} s of CPU, {row['flops'] / 1e9:.3g} Gflop"


if __name__ == "__main__":
    sys.exit(main())
