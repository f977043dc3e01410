"""Rebuild the report of a workdir from its rows, list the runs of a folder, or merge several workdirs into a new one.

python -m focalgeo.report WORKDIR
python -m focalgeo.report RUNS                                    a folder of workdirs: index.html, which lists them
python -m focalgeo.report WORKDIR WORKDIR [...] --out=FOLDER      shards of a sweep, or runs to compare
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from focalgeo.records import MANIFEST
from focalgeo.report.merge import merge_workdirs
from focalgeo.report.page import write_report
from focalgeo.report.runs import workdirs_in, write_list
from focalgeo.report.style import printable, short
from focalgeo.types import InputError, RunError, expanded

_USAGE = "give one workdir, for example python -m focalgeo.report runs/digits, or several and --out="


def main(arguments: Sequence[str]) -> int:
    """Write the report of the workdirs named on the command line; returns the exit code, 2 for bad input."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    try:
        workdir = _workdir(arguments)
        write = write_list if _is_folder_of_runs(workdir) else write_report
        print(printable(str(write(workdir))))
    except InputError as error:
        merged = any(argument.startswith("--out=") for argument in arguments)
        line = str(error).replace("another --workdir", "another --out" if merged else "another workdir")
        print(f"focalgeo: {line}", file=sys.stderr)
        return error.exit_code
    except MemoryError:
        print("focalgeo: the report needs more memory than is free: give fewer workdirs", file=sys.stderr)
        return RunError.exit_code
    return 0


def _is_folder_of_runs(workdir: str) -> bool:
    """Whether this is no workdir itself, but holds some."""
    folder = Path(workdir)
    try:
        return folder.is_dir() and not (folder / MANIFEST).exists() and any(workdirs_in(folder))
    except (OSError, ValueError):
        return False  # write_report says why


def _workdir(arguments: Sequence[str]) -> str:
    """The one workdir named, or the new one with the rows of all that are named."""
    outs = [argument.removeprefix("--out=") for argument in arguments if argument.startswith("--out=")]
    folders = [argument for argument in arguments if not argument.startswith("-")]
    unknown = [argument for argument in arguments if argument.startswith("-") and not argument.startswith("--out=")]
    if unknown:
        raise InputError(f"{short(unknown[0])} is no argument: {_USAGE}")
    if len(outs) > 1:
        raise InputError("--out is given twice; name one folder for the merged report")
    if not folders:
        raise InputError(_USAGE)
    if not all(folders):
        raise InputError("the name of a workdir is empty; give its folder")
    if not outs and len(folders) > 1:
        raise InputError("several workdirs need a new folder for the report: --out=runs/together")
    folders = [expanded(folder) for folder in folders]
    return str(merge_workdirs(folders, expanded(outs[0]))) if outs else folders[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
