"""Rebuild the report of a workdir from its rows, list the runs of a folder, or merge the shards of a sweep.

python -m focalgeo.report WORKDIR
python -m focalgeo.report RUNS                                    a folder of workdirs: index.html, which lists them
python -m focalgeo.report WORKDIR WORKDIR [...] --out=FOLDER      shards of a sweep
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from focalgeo import files
from focalgeo.records import MANIFEST
from focalgeo.report.page import write_report
from focalgeo.report.runs import merge_workdirs, workdirs_in, write_list
from focalgeo.report.style import printable, short
from focalgeo.types import InputError

_USAGE = "give one workdir, for example python -m focalgeo.report runs/digits, or several and --out="


def main(arguments: Sequence[str]) -> int:
    """Write the report of the workdirs named on the command line; returns the exit code, 2 for bad input."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    try:
        outs = [os.path.expanduser(text.removeprefix("--out=")) for text in arguments if text.startswith("--out=")]
        folders = [os.path.expanduser(text) for text in arguments if not text.startswith("--out=")]
        is_clear = all(text and not text.startswith("-") for text in [*folders, *outs])
        if not folders or len(outs) > 1 or len(folders) > 1 > len(outs) or not is_clear:
            raise InputError(f"{short(' '.join(arguments))} is not clear: {_USAGE}")
        if outs:
            folders = [merge_workdirs(folders, outs[0])]
        folder = Path(folders[0])
        is_list = not (folder / MANIFEST).exists() and any(workdirs_in(folder))
        print(printable(str((write_list if is_list else write_report)(folder))))
    except (InputError, OSError, ValueError) as error:
        print(f"focalgeo: {short(str(error), 500)}", file=sys.stderr)
        return InputError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(files.spoken(lambda: main(sys.argv[1:])))
