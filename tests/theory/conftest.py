"""Reference values of the papers, from the folder beside the data."""

import json
import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def papers():
    folder = os.environ.get("FOCALGEO_DATA")
    path = Path(os.environ.get("FOCALGEO_REFERENCE") or Path(folder or ".").parent / "reference")
    path = path if path.suffix == ".json" else path / "papers.json"
    if not path.is_file():
        pytest.skip(
            "no papers.json: set FOCALGEO_REFERENCE to it or to its folder, or FOCALGEO_DATA to the folder beside"
        )
    return json.loads(path.read_text())
