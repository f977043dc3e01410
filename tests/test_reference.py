"""The papers' records that closed forms define are what their definitions give."""

import pytest
from reference import records


@pytest.mark.parametrize("key", records.RECOMPUTED)
def test_records_are_what_their_definitions_give(key):
    for record in records.stored()[key]:
        assert records.difference(key, record) < 1e-13, record


def test_a_wrong_record_is_found():
    record = records.stored()["g_samples"][0]
    assert records.difference("g_samples", {**record, "g": record["g"] * (1 + 1e-9)}) > 5e-10


def test_every_key_stands_once():
    keys = [key for file in records.FOLDER.glob("*.json") for key in records.json.loads(file.read_text())]
    assert len(keys) == len(set(keys)) == len(records.stored())
