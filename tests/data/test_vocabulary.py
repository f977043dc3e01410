"""Words and numbers: the vocabulary of train, padding, unknown words."""

from collections import Counter

import numpy as np
import pytest

from focalgeo.data.vocabulary import build_vocabulary, encode, encode_dataset, number_words, pad_texts
from focalgeo.types import Dataset, Split


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
