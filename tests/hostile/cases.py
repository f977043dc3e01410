"""Cases of bad input: how each is made, what must be said, and the checks that every one of them must pass.

A Case runs a command, a Call a function of the library. tests/hostile/tables/*.py hold them in lists named CASES.
"""

import hashlib
import os
import re
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from focalgeo.types import InputError

KINDS = ("wrong result", "traceback", "no end", "hostile file", "unhelpful line")
ROOT = Path(__file__).parents[2]
SHOWN = (UserWarning, RuntimeWarning, SyntaxWarning, FutureWarning)  # Python shows these to whoever runs a command


class Case(NamedTuple):
    """A command on bad input.

    make(folder) makes the input in an empty folder and returns the arguments after `python -m focalgeo.`, as in
    ["calibrate", "--val=..."]. It runs in that folder, so that arguments may be relative.
    """

    kind: str  # one of KINDS
    name: str
    make: Callable[[Path], Sequence[str]]
    says: str  # regular expression, found in the one line; of code 0 in all that is printed
    code: int = 2
    seconds: float = 20.0  # time limit
    check: Callable[[Path], None] | None = None  # of the folder afterwards; for code 2 it is as it was, in any case
    progress: bool = False  # whether lines of progress may stand before the one line


class Call(NamedTuple):
    """A call of the library with bad arguments: an InputError of one line, or NaN where values are traced."""

    kind: str
    name: str
    call: Callable[[], object]
    says: str | None  # regular expression, found in the InputError, which names the argument; None: all results are NaN
    seconds: float = 20.0
    error: type[Exception] = InputError


class Outcome(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str
    seconds: float


def run_here(arguments: Sequence[str], capture: Callable[[], tuple[str, str]]) -> Outcome:
    """The outcome of a command run in this process; capture() gives what was printed since the last call."""
    from focalgeo import calibrate, run
    from focalgeo.report import __main__ as report

    command, *rest = map(str, arguments)
    mains = {"run": lambda: run.main(["focalgeo.run", *rest])}
    mains |= {"calibrate": lambda: calibrate.main(rest), "report": lambda: report.main(rest)}
    capture()
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        code = mains[command]()
    seconds = time.perf_counter() - began
    out, err = capture()
    shown = [str(warning.message) for warning in caught if issubclass(warning.category, SHOWN)]
    return Outcome(code, out, err + "".join(f"{text}\n" for text in shown), seconds)


def tree(folder: Path) -> dict[str, str]:
    """Every file and folder below `folder` with its content's checksum; the lock of a workdir counts for nothing."""
    found = {}
    for path, folders, files in os.walk(folder):
        for name in folders:
            found[os.path.relpath(os.path.join(path, name), folder)] = "folder"
        for name in set(files) - {".lock"}:
            file = os.path.join(path, name)
            if os.path.islink(file):
                content = f"link to {os.readlink(file)}"
            elif not os.path.isfile(file):
                content = "special"
            elif os.path.getsize(file) > 2**24:  # a sparse file, say
                content = f"{os.path.getsize(file)} bytes"
            else:
                content = hashlib.sha256(Path(file).read_bytes()).hexdigest()
            found[os.path.relpath(file, folder)] = content
    return found


def check_case(case: Case, outcome: Outcome, before: dict[str, str], folder: Path) -> None:
    """Assert what every command on bad input must keep."""
    said = f"exit code {outcome.code}\n{outcome.out[-2000:]}\n{outcome.err[-2000:]}"
    assert outcome.code == case.code, said
    assert "Traceback" not in outcome.err + outcome.out, said
    assert outcome.seconds < case.seconds, f"{outcome.seconds:.1f} s\n{said}"
    if case.code == 0:
        assert re.search(case.says, outcome.out + outcome.err), said
    else:
        lines = outcome.err.splitlines()
        errors = [line for line in lines if line.startswith("focalgeo: ")]
        assert len(errors) == 1, said
        assert lines[-1:] == errors, said
        assert case.progress or len(lines) == 1, said
        assert re.search(case.says, errors[0]), said
        assert len(errors[0]) < 600, said
    if case.code == 2:
        assert tree(folder) == before
    if case.check is not None:
        case.check(folder)


def check_call(call: Call) -> None:
    """Assert that a call of the library refuses its arguments in one line, or gives NaN."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if call.says is None:
            assert all_nan(call.call())
        else:
            try:
                result = call.call()
            except call.error as error:
                message = str(error)
            else:
                raise AssertionError(f"it returned {result}")
            assert "\n" not in message, message
            assert re.search(call.says, message), message
    assert time.perf_counter() - began < call.seconds


def all_nan(result: object) -> bool:
    """Whether every floating-point number of a result is NaN, and there is one."""
    import jax

    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(result)]
    numbers = [leaf for leaf in leaves if np.issubdtype(leaf.dtype, np.floating)]
    return bool(numbers) and all(np.isnan(leaf).all() for leaf in numbers)
