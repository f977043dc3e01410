"""The vocabulary of train, padding, unknown words; word vectors: found rows, sampled rows, corrupt files."""

import gzip
import zipfile
from collections import Counter

import numpy as np
import pytest

from focalgeo.data import read_embeddings
from focalgeo.data.vocabulary import build_vocabulary, encode, encode_dataset, number_words, pad_texts
from focalgeo.types import Dataset, InputError, Split


def made_texts(seed, n=40):
    rng = np.random.default_rng(seed)
    words = [f"w{i}" for i in range(30)]
    return [list(rng.choice(words, rng.integers(0, 12), p=np.arange(1, 31) / 465)) for _ in range(n)]


def most_common(texts, max_words):
    counts = Counter(word for text in texts for word in text)
    return ("", "<unk>", *sorted(counts, key=lambda word: (-counts[word], word))[:max_words])


def test_texts_come_back_from_their_numbers():
    texts = made_texts(0)
    vocabulary, ids = number_words(iter(texts))
    assert vocabulary == ("", "<unk>", *sorted({word for text in texts for word in text}))
    for text, numbers in zip(texts, ids, strict=True):
        assert [vocabulary[number] for number in numbers] == (text or ["<unk>"])
        assert numbers.dtype == np.int32


def test_the_unknown_word_is_known():
    vocabulary, ids = number_words([["b", "<unk>", "a"]])
    assert vocabulary == ("", "<unk>", "a", "b")
    assert ids[0].tolist() == [3, 1, 2]


@pytest.mark.parametrize("max_words", [None, 1, 7, 1000])
def test_vocabulary_against_a_counter(max_words):
    texts = made_texts(1)
    words, ids = number_words(texts)
    assert build_vocabulary(pad_texts(ids), words, max_words=max_words) == most_common(texts, max_words)


def test_encoding_keeps_known_words_and_padding():
    vocabulary = ("", "<unk>", "c", "a")
    got = encode(np.array([[2, 3, 4], [1, 0, 0]], np.int32), ("", "<unk>", "a", "b", "c"), vocabulary)
    assert got.tolist() == [[3, 1, 2], [1, 0, 0]]
    assert got.dtype == np.int32


def dataset(texts, shape):
    words, ids = number_words([text for part in texts for text in part])
    x = pad_texts(ids)
    if shape == "trees":
        x = np.stack([x, np.full_like(x, 5), np.full_like(x, 6)], axis=-1)
    parts = np.split(x, np.cumsum([len(part) for part in texts])[:-1])
    splits = [Split(part, np.zeros(len(part), np.int32)) for part in parts]
    return Dataset("made", *splits, ("a", "b"), "", words)


@pytest.mark.parametrize("shape", ["texts", "trees"])
def test_vocabulary_is_that_of_train_alone(shape):
    texts = made_texts(2), made_texts(3, 9), [["never", "w29"], []]
    data = dataset(texts, shape)
    before = data.test.x.copy()
    encoded = encode_dataset(data, max_words=20)
    assert encoded.vocabulary == most_common(texts[0], 20)
    for part, split in zip(texts, encoded[1:4], strict=True):
        words = split.x if shape == "texts" else split.x[..., 0]
        for text, row in zip(part, words, strict=True):
            expected = [word if word in encoded.vocabulary else "<unk>" for word in text] or ["<unk>"]
            assert [encoded.vocabulary[number] for number in row] == expected + [""] * (len(row) - len(expected))
    np.testing.assert_array_equal(data.test.x, before)
    if shape == "trees":
        np.testing.assert_array_equal(encoded.val.x[..., 1:], data.val.x[..., 1:])


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
        assert "corrupt" in refused(tmp_path / name)
    whole = gzip.compress(TEXT.encode() * 100)
    (tmp_path / "cut.txt.gz").write_bytes(whole[:-20])
    assert "corrupt" in refused(tmp_path / "cut.txt.gz")


def test_texts_beyond_memory_are_refused_with_a_length_that_fits(monkeypatch):
    monkeypatch.setattr("focalgeo.data.vocabulary.free_memory", lambda: 2 * 12 * 7)
    ids = [np.ones(8, np.int32), np.ones(2, np.int32)]
    with pytest.raises(InputError, match=r"2 texts of up to 8 words.* config.data.max_length to at most 7$"):
        pad_texts(ids)
    assert pad_texts([text[:7] for text in ids]).shape == (2, 7)


def test_vectors_beyond_memory_are_refused(tmp_path, monkeypatch):
    (tmp_path / "v.txt").write_text(TEXT, encoding="utf-8")
    monkeypatch.setattr("focalgeo.data.archives.free_memory", lambda: 100)
    assert "a table of its vectors needs" in refused(tmp_path / "v.txt")


@pytest.mark.parametrize("name", ["gone/\0.txt", "a" * 5000, "gone.zip/" + "b" * 300, "~nobody-of-this-name/x"])
def test_names_that_the_system_refuses(tmp_path, name):
    assert "there is no file" in refused(name)


def test_a_link_to_nothing_is_named(tmp_path):
    (tmp_path / "v.txt").symlink_to("gone")
    assert "is a link to gone, where nothing is" in refused(tmp_path / "v.txt")
