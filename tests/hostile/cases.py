"""Cases of bad input: how each is made, what must be said, and the checks that every one of them must pass.

A Case runs a command. tests/hostile/tables/*.py hold them in lists named CASES.
"""

import hashlib
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from focalgeo import calibrate, run
from focalgeo.report import __main__ as report

ROOT = Path(__file__).parents[2]
MAINS = {"run": lambda flags: run.main(["focalgeo.run", *flags]), "calibrate": calibrate.main, "report": report.main}


class Case(NamedTuple):
    """A command on bad input; make(folder) makes the input in an empty folder, where the command then runs."""

    name: str
    make: Callable[[Path], Sequence[str]]  # returns the arguments after `python -m focalgeo.`
    says: str  # regular expression, found in the one line; of code 0 in all that is printed
    code: int = 2
    seconds: float = 20.0  # time limit
    check: Callable[[Path], None] | None = None  # of the folder afterwards; for code 2 it is as it was, in any case
    progress: bool = False  # whether lines of progress may stand before the one line


def tree(folder: Path) -> dict[str, str]:
    """Every path below `folder` with its content's checksum; the lock of a workdir counts for nothing."""

    def content(path: Path) -> str:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > 2**24:  # a sparse file, say
            return str(path.lstat().st_mode)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    return {str(path.relative_to(folder)): content(path) for path in folder.rglob("*") if path.name != ".lock"}


def check_case(case: Case, folder: Path, capture: Callable[[], tuple[str, str]]) -> None:
    """Assert what every command on bad input must keep; capture() gives what was printed since its last call."""
    command, *flags = map(str, case.make(folder))
    before, began, _ = tree(folder), time.perf_counter(), capture()
    code = MAINS[command](flags)
    out, err = capture()
    assert code == case.code, out + err
    assert time.perf_counter() - began < case.seconds
    assert re.search(case.says, err if code else out + err), out + err
    if code:
        lines = [line for line in err.splitlines() if line.startswith("focalgeo: ")]
        assert err.splitlines()[-1:] == lines, err
        assert case.progress or err.count("\n") == 1, err
        assert len(lines[0]) < 600
    if code == 2:
        assert tree(folder) == before
    if case.check is not None:
        case.check(folder)
