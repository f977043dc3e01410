"""Rebuild the report of a workdir from its rows, or merge several workdirs into a new one.

python -m focalgeo.report WORKDIR
python -m focalgeo.report WORKDIR WORKDIR [...] --out=FOLDER      shards of a sweep, or runs to compare
"""

import sys
from collections.abc import Sequence

from focalgeo.report.merge import merge_workdirs
from focalgeo.report.page import write_report
from focalgeo.types import InputError


def main(arguments: Sequence[str]) -> int:
    """Write the report of the workdirs named on the command line; returns the exit code, 2 for bad input."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    try:
        print(write_report(_workdir(arguments)))
    except InputError as error:
        print(f"focalgeo: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _workdir(arguments: Sequence[str]) -> str:
    """The one workdir named, or the new one with the rows of all that are named."""
    outs = [argument.removeprefix("--out=") for argument in arguments if argument.startswith("--out=")]
    folders = [argument for argument in arguments if not argument.startswith("-")]
    if len(outs) + len(folders) < len(arguments) or len(outs) > 1 or not folders:
        raise InputError("give one workdir, for example python -m focalgeo.report runs/digits, or several and --out=")
    if not outs and len(folders) > 1:
        raise InputError("several workdirs need a new folder for the report: --out=runs/together")
    return str(merge_workdirs(folders, outs[0])) if outs else folders[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
