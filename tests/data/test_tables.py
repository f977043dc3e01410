"""Tables of every format come back as pandas wrote them, each row with the line of the file in which it stands."""

from pathlib import Path

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from focalgeo.data.tables import read_table
from focalgeo.types import InputError

TABLE = pandas.DataFrame({"name": ["é,", 'a "b"', "NA", "1"], "x": [1e-7, -2.5, 0.375, np.nan], "n": [3, -1, 0, 2**40]})
WRITERS = {
    "csv": lambda path: TABLE.to_csv(path, index=False),
    "csv.gz": lambda path: TABLE.to_csv(path, index=False),
    "tsv.gz": lambda path: TABLE.to_csv(path, index=False, sep="\t"),
    "jsonl": lambda path: TABLE.to_json(path, orient="records", lines=True, double_precision=15),
    "parquet": TABLE.to_parquet,
    "feather": TABLE.to_feather,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_format_gives_the_table_that_was_written(kind):
    if kind in ("parquet", "feather"):
        pytest.importorskip("pyarrow")
    WRITERS[kind](f"a.{kind}")
    found = read_table(f"a.{kind}")
    assert [*found.columns] == [*TABLE.columns]
    for name in TABLE:
        np.testing.assert_array_equal(found[name].to_numpy(), TABLE[name].to_numpy())
    index = {"csv": ("line", 2), "tsv": ("line", 2), "jso": ("line", 1)}.get(kind[:3], ("row", 0))
    assert (found.index.name, found.index[0]) == index


CELLS = st.text(st.sampled_from('ab", \n'), max_size=4)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(CELLS, st.integers(0, 3)), min_size=1, max_size=8))
def test_the_index_is_the_line_in_which_a_row_of_a_csv_file_begins(rows):
    path, text, begins = Path("a.csv"), "word,n\n", []
    for number, (cell, blank) in enumerate(rows):
        text += "\n" * blank
        begins.append(text.count("\n") + 1)
        text += f'"{cell.replace(chr(34), 2 * chr(34))}",{number}\n'
    path.write_text(text)
    found = read_table(path)
    assert found.index.tolist() == begins
    assert found.n.tolist() == [*range(len(rows))]


def test_words_have_no_spaces_around_them():
    Path("a.csv").write_text('x;y\n1,5 ; "Yes "\n2;Yes\n')
    found = read_table("a.csv")
    assert found.x.tolist() == [1.5, 2]
    assert found.y.tolist() == ["Yes", "Yes"]


def test_columns_are_text_where_asked_and_where_a_cell_is_no_number():
    Path("a.csv").write_text("id,x,y\n01,1,1\n02,,nan\n")
    found = read_table("a.csv", texts=("id", "z"))
    assert found.id.tolist() == ["01", "02"]
    assert found.x.dtype == np.float64
    assert np.isnan(found.x[3])
    assert found.y.tolist() == ["1", "nan"]
    assert read_table("a.csv").id.tolist() == [1, 2]


BAD = {
    "a.xlsx": (b"", r"pandas.read_excel\(...\).to_csv\(..., index=False\)"),
    "a.txt": (b"", "check the path, and give one of .csv, .tsv"),
    "a.csv": (b"x,y\n1,2\n1,2,3\n", "line 3"),
    "b.csv": (b"x,y\n", "b.csv has no rows"),
    "c.csv": (b"x,x\n1,2\n", "Duplicate names .*: give rows of as many cells as names, or write it again"),
    "a.jsonl": (b'{"x": 1}\n\n{"x": \n', "a.jsonl, line 3, cannot be read"),
    "b.jsonl": (b"3\n", "line 1"),
    "a.parquet": (b"x", "cannot be read"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_table_that_cannot_be_read_is_one_line(name):
    content, says = BAD[name]
    Path(name).write_bytes(content)
    with pytest.raises(InputError, match=says) as caught:
        read_table(name)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="there is no file"):
        read_table("nowhere.csv")


def test_a_missing_pyarrow_is_one_line(monkeypatch):
    def without(path):
        raise ImportError("pyarrow")

    Path("a.feather").touch()
    monkeypatch.setattr(pandas, "read_feather", without)
    with pytest.raises(InputError, match=r"pip install 'focalgeo\[tables\]'"):
        read_table("a.feather")
