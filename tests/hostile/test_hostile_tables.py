"""The tables of bad input, in this process for speed, and a sample of them as real commands."""

import importlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hostile.cases import KINDS, ROOT, Call, Case, Outcome, check_call, check_case, run_here, tree

TABLES = sorted(path.stem for path in (Path(__file__).parent / "tables").glob("*.py"))
CASES = {table: importlib.import_module(f"hostile.tables.{table}").CASES for table in TABLES}
COMMANDS = [(table, case) for table, cases in CASES.items() for case in cases if isinstance(case, Case)]
CALLS = [(table, case) for table, cases in CASES.items() for case in cases if isinstance(case, Call)]
LINES = (  # of the commands and the library: what a case says is of it alone
    "focalgeo: cannot read val.npz: No such file or directory; check the path",
    "focalgeo: w/manifest.json is corrupt: it is not an object; restore it or choose another --workdir",
    "focalgeo: config.data.train_size is 5: it must be at most 10",
    "focalgeo: unknown argument 'x': fields are set as --config.loss.gamma=3",
    "labels have shape (5, 1), logits (5, 3): give one label for each row",
)
EVERY = 15  # one of so many commands is run as a person runs it too

pytestmark = pytest.mark.long


def named(cases):
    return [pytest.param(case, id=f"{table}: {case.name}") for table, case in cases]


@pytest.mark.parametrize("case", named(COMMANDS))
def test_command(case, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = case.make(tmp_path)
    before = tree(tmp_path)
    check_case(case, run_here(arguments, capfd.readouterr), before, tmp_path)


@pytest.mark.parametrize("case", named(CALLS))
def test_call(case):
    check_call(case)


@pytest.mark.parametrize("case", named(COMMANDS[::EVERY]))
def test_as_a_person_runs_it(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command, *rest = map(str, case.make(tmp_path))
    before, began = tree(tmp_path), time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, "-m", f"focalgeo.{command}", *rest],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=300,
    )
    starting = 30  # seconds that a process may take to start on a busy machine
    outcome = Outcome(found.returncode, found.stdout, found.stderr, time.perf_counter() - began - starting)
    check_case(case, outcome, before, tmp_path)


def test_what_a_case_says_is_not_said_of_everything():
    said = [(table, case.name, case.says) for table, case in COMMANDS + CALLS if case.says is not None]
    assert [each for each in said if re.search(each[2], "")] == []
    assert [each for each in said if sum(bool(re.search(each[2], line)) for line in LINES) > 1] == []


def test_the_tables_are_large_and_each_row_stands_once():
    names = [f"{table}: {case.name}" for table, case in COMMANDS + CALLS]
    assert len(names) >= 250
    assert len(set(names)) == len(names)
    assert {case.kind for _, case in COMMANDS + CALLS} == set(KINDS)
