"""Word vectors: rows of the file, drawn rows, compressed files, and everything that can be wrong with a line."""

import gzip
import zipfile

import numpy as np
import pytest

from focalgeo.data import read_embeddings
from focalgeo.types import InputError

VOCABULARY = ("", "<unk>", "the", "café", "gone", ".")
TEXT = "the 0.1 -2 3e-1\n. . . 9 9 9\ncafé 1 2 3.5\nother 7 7 7\nthe 5 5 5\n. 4 5 6\n"
FOUND = {2: (0.1, -2, 0.3), 3: (1, 2, 3.5), 5: (4, 5, 6)}


@pytest.fixture
def vectors(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def refused(path, vocabulary=VOCABULARY):
    with pytest.raises(InputError) as caught:
        read_embeddings(path, vocabulary)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_rows_are_those_of_the_file(vectors):
    table = read_embeddings(vectors, VOCABULARY)
    assert table.shape == (6, 3)
    assert table.dtype == np.float32
    assert not table[0].any()
    for row, values in FOUND.items():
        np.testing.assert_array_equal(table[row], np.array(values, np.float32))


def test_other_rows_have_the_files_deviation(vectors):
    table = read_embeddings(vectors, (*VOCABULARY, *(f"word{i}" for i in range(3000))))
    deviation = np.std(list(FOUND.values()))
    drawn = table[[1, 4, *range(6, len(table))]]
    assert abs(drawn.std() / deviation - 1) < 5 / np.sqrt(2 * drawn.size)
    assert abs(drawn.mean()) < 5 * deviation / np.sqrt(drawn.size)
    assert len(np.unique(drawn)) > 0.99 * drawn.size


def test_draws_follow_the_seed(vectors):
    one, again, two = (read_embeddings(vectors, VOCABULARY, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    drawn = [1, 4]
    assert (one[drawn] != two[drawn]).all()
    np.testing.assert_array_equal(np.delete(one, drawn, axis=0), np.delete(two, drawn, axis=0))


def test_compressed_files_give_the_same(vectors, tmp_path):
    expected = read_embeddings(vectors, VOCABULARY)
    with gzip.open(tmp_path / "vectors.txt.gz", "wb") as file:
        file.write(vectors.read_bytes())
    with zipfile.ZipFile(tmp_path / "one.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(vectors, "inner/vectors.txt")
    for path in ("vectors.txt.gz", "one.zip", "one.zip/inner/vectors.txt"):
        np.testing.assert_array_equal(read_embeddings(str(tmp_path / path), VOCABULARY), expected)
    with zipfile.ZipFile(tmp_path / "one.zip", "a") as archive:
        archive.writestr("other.txt", "x")
    np.testing.assert_array_equal(read_embeddings(tmp_path / "one.zip/inner/vectors.txt", VOCABULARY), expected)
    assert "one.zip/other.txt" in refused(tmp_path / "one.zip")
    assert "one.zip/other.txt" in refused(tmp_path / "one.zip" / "gone.txt")


def test_first_line_of_word2vec_is_skipped(vectors):
    expected = read_embeddings(vectors, VOCABULARY)
    vectors.write_text("6 3\n" + TEXT.replace("\n", " \r\n"), encoding="utf-8")
    np.testing.assert_array_equal(read_embeddings(vectors, VOCABULARY), expected)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("cat 1 2", ("line 7", "2 numbers where 3")),
        ("", ("line 7", "0 numbers where 3")),
        ("gone 1 2 x", ("line 7", "'x'")),
        ("gone 1 2 nan", ("line 7", "not finite")),
        ("gone 1 2 1e99", ("line 7", "not finite")),
    ],
)
def test_bad_lines_are_named(vectors, line, words):
    vectors.write_text(TEXT + line + "\nlast 1 2 3\n", encoding="utf-8")
    message = refused(vectors)
    assert all(word in message for word in (str(vectors), *words))


def test_files_that_are_none(tmp_path, vectors):
    assert "there is no file" in refused(tmp_path / "gone.txt")
    assert "none of the 1 words" in refused(vectors, ("", "unheard"))
    (tmp_path / "empty.txt").write_bytes(b"")
    assert "none of the 5 words" in refused(tmp_path / "empty.txt")
    for name in ("broken.zip", "broken.txt.gz"):
        (tmp_path / name).write_bytes(b"no archive")
        assert "damaged" in refused(tmp_path / name)
    whole = gzip.compress(TEXT.encode() * 100)
    (tmp_path / "cut.txt.gz").write_bytes(whole[:-20])
    assert "damaged" in refused(tmp_path / "cut.txt.gz")
