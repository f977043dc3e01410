"""The papers' verified numbers, where they lie."""

import json
import os
from pathlib import Path

import numpy as np
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


@pytest.fixture(scope="session")
def dataset(papers):
    """The papers' 20 examples in 64ths: logits whose softmax is those probabilities (0 stands as 1e-30), and labels."""
    record = papers["metrics_dataset"]
    p = np.array(record["probs_times_64"]) / 64
    return record, np.log(np.maximum(p, 1e-30)).astype(np.float32), np.array(record["labels"], np.int32)
