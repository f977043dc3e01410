"""The tables of bad input, in this process for speed."""

import pytest
from hostile.cases import check_case
from hostile.tables import data_sources, output_files, workdirs

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    "case", [*data_sources.CASES, *output_files.CASES, *workdirs.CASES], ids=lambda case: case.name
)
def test_command(case, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_case(case, tmp_path, capfd.readouterr)
