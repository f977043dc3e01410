"""Rebuild figures and report.html of a workdir from its rows: python -m focalgeo.report WORKDIR."""

import argparse
import sys
from collections.abc import Sequence

from focalgeo.report.page import write_report
from focalgeo.types import InputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report of the workdir named on the command line; returns the exit code, 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m focalgeo.report", description="Rebuild a report from its rows.")
    parser.add_argument("workdir", help="folder with manifest.json and metrics.jsonl")
    try:
        print(write_report(parser.parse_args(arguments).workdir))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
