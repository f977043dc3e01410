"""The tables of bad input, in this process for speed."""

import importlib
from pathlib import Path

import pytest
from hostile.cases import Call, Case, check_call, check_case

pytestmark = pytest.mark.long
TABLES = sorted(path.stem for path in (Path(__file__).parent / "tables").glob("*.py"))
CASES = [
    pytest.param(case, id=f"{table}: {case.name}")
    for table in TABLES
    for case in importlib.import_module(f"hostile.tables.{table}").CASES
]


@pytest.mark.parametrize("case", [case for case in CASES if isinstance(case.values[0], Case)])
def test_command(case, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_case(case, tmp_path, capfd.readouterr)


@pytest.mark.parametrize("case", [case for case in CASES if isinstance(case.values[0], Call)])
def test_call(case):
    check_call(case)
