"""Words and their numbers: 0 is padding, 1 an unknown word, 2 and on the words of the vocabulary."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from focalgeo.types import Dataset, Split

PADDING, UNKNOWN = "", "<unk>"
SPECIAL = (PADDING, UNKNOWN)


class NumberedTexts(NamedTuple):
    """All words of some texts in alphabetical order behind the special ones, and each text as positions in them."""

    vocabulary: tuple[str, ...]
    ids: list[np.ndarray]  # int32 [words of the text]


def number_words(texts: Iterable[Sequence[str]]) -> NumberedTexts:
    """Each text as int32 positions in the vocabulary of all words; a text without words is one unknown word.

    Args:
        texts: the words of each text; "<unk>" among them is the unknown word. Read once, so a generator will do.
    """
    met: defaultdict[str, int] = defaultdict()
    met.default_factory = met.__len__
    met[PADDING], met[UNKNOWN] = 0, 1
    ids = [np.array([met[word] for word in text] or [1], np.int32) for text in texts]
    vocabulary = (*SPECIAL, *sorted(met.keys() - set(SPECIAL)))
    positions = np.empty(len(vocabulary), np.int32)
    positions[[met[word] for word in vocabulary]] = np.arange(len(vocabulary), dtype=np.int32)
    return NumberedTexts(vocabulary, [positions[text] for text in ids])


def pad_texts(ids: Sequence[np.ndarray]) -> np.ndarray:
    """Texts as int32 [texts, length of the longest], with 0 behind the shorter ones."""
    x = np.zeros((len(ids), max(map(len, ids), default=0)), np.int32)
    for row, text in zip(x, ids, strict=True):
        row[: len(text)] = text
    return x


def build_vocabulary(ids: np.ndarray, words: Sequence[str], *, max_words: int | None = None) -> tuple[str, ...]:
    """The most frequent words, by falling count, ties in the order of `words`, behind "" and "<unk>".

    Args:
        ids: integers of any shape, positions in `words`; 0 and 1 do not count.
        words: what the positions mean; the first two are "" and "<unk>".
        max_words: how many words at most, 1 or more, the two special ones not counted; None keeps all that occur.

    Accuracy:
        exact, held against collections.Counter by tests/data/test_vocabulary.py.
    """
    counts = np.bincount(ids.ravel(), minlength=len(words))
    counts[: len(SPECIAL)] = 0
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    return (*SPECIAL, *(words[position] for position in order[:max_words]))


def encode(ids: np.ndarray, words: Sequence[str], vocabulary: Sequence[str]) -> np.ndarray:
    """Positions in `words` as positions in `vocabulary`, int32 of the same shape; 1 where the word is not in it."""
    known = {word: position for position, word in enumerate(vocabulary)}
    return np.array([known.get(word, 1) for word in words], np.int32)[ids]


def encode_dataset(data: Dataset, *, max_words: int | None = None) -> Dataset:
    """The data set with the vocabulary of its own train split; what is known from val and test alone is unknown.

    Args:
        data: words are positions in data.vocabulary. They stand in x [examples, length], or in x[..., 0] of trees
            [examples, slots, 3].
        max_words: as in `build_vocabulary`.
    """
    vocabulary = build_vocabulary(_words(data.train.x), data.vocabulary, max_words=max_words)

    def encoded(split: Split) -> Split:
        x = split.x.copy()
        _words(x)[...] = encode(_words(x), data.vocabulary, vocabulary)
        return Split(x, split.y)

    train, val, test = map(encoded, data[1:4])
    return data._replace(train=train, val=val, test=test, vocabulary=vocabulary)


def _words(x: np.ndarray) -> np.ndarray:
    return x if x.ndim == 2 else x[..., 0]
