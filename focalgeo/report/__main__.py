"""Rebuild figures and report.html of a workdir from its rows: python -m focalgeo.report WORKDIR."""

import sys
from collections.abc import Sequence

from focalgeo.report.page import write_report
from focalgeo.types import InputError


def main(arguments: Sequence[str]) -> int:
    """Write the report of the workdir named on the command line; returns the exit code, 2 for bad input."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    try:
        if len(arguments) != 1 or arguments[0].startswith("-"):
            raise InputError("give one workdir, for example python -m focalgeo.report runs/digits")
        print(write_report(arguments[0]))
    except InputError as error:
        print(f"focalgeo: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
