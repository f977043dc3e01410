"""Texts as token ids: vocabularies, word vectors, and the posts of 20 Newsgroups.

Token id 0 is padding, 1 an unknown word, from 2 on come the words of the vocabulary.
"""

import gzip
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from jaxtyping import Float32, Int32

from focalgeo import files
from focalgeo.data import images, sources
from focalgeo.data.splits import RawDataset, Sizes
from focalgeo.types import Dataset, InputError, Split

UNKNOWN = "<unk>"
SPECIAL = ("", UNKNOWN)  # of padding, and of words that are not in the vocabulary
SUFFIXES = frozenset({"", ".txt"})
# A folder such as 20news-bydate-train above a group folder, and all before it.
PART = re.compile(r".*(train|test)(?=/[^/]+/[^/]+\Z)", re.IGNORECASE | re.DOTALL)
# A word: letters and digits of any alphabet, with apostrophes inside it. All else parts words.
WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
# Both as in Keras's example of a convolutional network on these posts.
MAX_WORDS, MAX_LENGTH = 20_000, 1000
# Mukhoti et al. split 19,997 posts into 15,098, 900 and 3,999; "bydate" has 11,314 posts for train and val.
POSTS, TEST_POSTS, VAL_POSTS, BYDATE_POSTS = 19_997, 3_999, 900, 11_314


def number_words(texts: Iterable[Sequence[str]]) -> tuple[tuple[str, ...], list[Int32[np.ndarray, " words"]]]:
    """The vocabulary, all words of the texts behind the special ones, in alphabetical order; each text as positions.

    A text without words is one unknown word.

    Args:
        texts: the words of each text; "<unk>" among them is the unknown word.
    """
    texts = [[sys.intern(str(word)) for word in text] or [UNKNOWN] for text in texts]
    vocabulary = (*SPECIAL, *sorted({word for text in texts for word in text} - {*SPECIAL}))
    positions = {word: position for position, word in enumerate(vocabulary)}
    return vocabulary, [np.array([positions[word] for word in text], np.int32) for text in texts]


def pad_texts(ids: Sequence[Int32[np.ndarray, " _"]]) -> Int32[np.ndarray, "texts length"]:
    """Texts as int32 [texts, length of the longest], with 0 behind the shorter ones."""
    x = np.zeros((len(ids), max(map(len, ids), default=0)), np.int32)
    for row, text in zip(x, ids, strict=True):
        row[: len(text)] = text
    return x


def encode_dataset(data: Dataset, *, max_words: int | None = None) -> Dataset:
    """The data set with the vocabulary of its own train split; words that occur in val or test only become unknown.

    The vocabulary holds the most frequent words, by falling count, ties in the order of data.vocabulary, behind "" and
    "<unk>".

    Args:
        data: words are positions in data.vocabulary. They are in x [examples, length], or in x[..., 0] of trees
            [examples, slots, 3].
        max_words: how many words at most, 1 or more, the two special ones not counted; None keeps all that occur.

    Accuracy:
        exact, held against collections.Counter by tests/data/test_texts.py.
    """
    counts = np.bincount(_words(data.train.x).ravel(), minlength=len(data.vocabulary))
    counts[: len(SPECIAL)] = 0
    frequent = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)][:max_words]
    kept = [0, 1, *frequent.tolist()]
    ids = np.ones(len(data.vocabulary), np.int32)
    ids[kept] = np.arange(len(kept))

    def encoded(split):
        x = split.x.copy()
        _words(x)[...] = ids[_words(x)]
        return Split(x, split.y)

    splits = {part: encoded(getattr(data, part)) for part in ("train", "val", "test")}
    return data._replace(vocabulary=tuple(data.vocabulary[position] for position in kept), **splits)


def _words(x):
    return x if x.ndim == 2 else x[..., 0]


def read_embeddings(
    path: str | os.PathLike, vocabulary: Sequence[str], *, seed: int = 0
) -> Float32[np.ndarray, "words size"]:
    """The vectors of the words as float32 [len(vocabulary), size]; the row of padding is 0.

    Rows of words that the file lacks are sampled from N(0, s), s the standard deviation of all values found.

    Args:
        path: a text file with "word v1 v2 ..." on each line, in UTF-8, plain or .gz. The first line sets `size`; a
            longer line has a word with spaces in it, and is passed over, since no vocabulary has one. A first line of
            two integers (word2vec's) is skipped. Of a word given twice the first line counts.
        vocabulary: words by token id; the first is padding.
        seed: of the sampled rows. A row depends on it, s, and its position in the vocabulary only.

    Raises:
        InputError: no such file, a corrupt one, a line of too few numbers or with values that are not finite in float32
            (named by its number), or no word of the vocabulary in it.

    Accuracy:
        float32 of the decimal numbers, tested in tests/data/test_texts.py.

    Source:
        Pennington et al., EMNLP 2014 (the format); the sampled rows are our choice.
    """
    path = Path(os.path.expanduser(path))
    wanted = {word.encode(): row for row, word in enumerate(vocabulary) if row > 0}
    if not os.path.isfile(path):  # a pipe would be waited for
        raise InputError(f"there is no file {path}: check the path, relative to {Path.cwd()}")
    with files.reading(path), (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as file:
        vectors = _read_vectors(file, wanted, path)
    if not vectors:
        raise InputError(
            f"{path} has none of the {len(wanted)} words of the vocabulary: give vectors of their language"
        )
    known = np.stack(list(vectors.values()))
    sampled = np.random.default_rng(seed).normal(0, known.std(dtype=np.float64), (len(vocabulary), known.shape[1]))
    table = sampled.astype(np.float32)
    table[list(vectors)] = known
    table[0] = 0
    return table


def _read_vectors(file, wanted, path):
    """The vectors by row of the table."""
    vectors = {}
    size = 0
    for number, line in enumerate(file, start=1):
        word, _, rest = line.rstrip(b" \r\n").partition(b" ")
        if number == 1 and rest.isdigit():
            continue
        size = size or rest.count(b" ") + 1
        row = wanted.get(word)
        if row is None or row in vectors or rest.count(b" ") >= size:
            continue
        with files.reading(f"{path}, line {number},"):
            vector = np.array([float(value) for value in rest.split(b" ")])
            if len(vector) < size or not (np.abs(vector) <= np.finfo(np.float32).max).all():
                raise ValueError(f"it has no {size} numbers that are finite in float32")
        vectors[row] = vector.astype(np.float32)
    return vectors


def read_newsgroups(location: str, max_words: int | None = None, max_length: int | None = None) -> RawDataset:
    """20 Newsgroups as group folders, divided by date or not; without a path scikit-learn downloads it.

    Posts are int32 [posts, length] of word numbers, labels by alphabetical order of the groups.

    Args:
        location: a folder or archive of "bydate" kind, with a folder whose name ends in "train" and one whose name ends
            in "test", each with group folders; or of group folders alone, then test and val are split off. The posts
            are files without suffix or .txt, in latin-1. "" has scikit-learn download "bydate" and keep it.
        max_words: in the vocabulary, by default 20,000.
        max_length: words kept from the start of each post, by default 1000. Length is that of the longest post left.

    Raises:
        InputError: nothing there, no posts, one group, a corrupt archive, an unusable layout.

    Source:
        Mukhoti et al., arXiv 2002.09437, App. C: 15,098 posts for training, 900 for validation, 3,999 for test. Where
        there are more or fewer posts, the same shares; of "bydate", with its own test split, 900 of 11,314 for
        validation.
    """
    if location:
        source = sources.find("newsgroups", location)
        folder, checksum, where = sources.unpacked(source), source.checksum, source.where
        paths = [name for name in sources.list_files(folder) if PurePosixPath(name).suffix.lower() in SUFFIXES]
        names = [PART.sub(lambda part: part[1].lower(), path) for path in paths]
        posts = ((folder / path).read_bytes().decode("latin-1") for path in paths)
    else:
        where = "newsgroups"
        names, posts, checksum = _fetched()
    class_names, members = images.layout(names, where=where)
    vocabulary, ids = number_words(tokenise(post)[: max_length or MAX_LENGTH] for post in posts)
    x, splits = pad_texts(ids), {}
    for part, (rows, labels) in members.items():
        splits[part] = split = Split(x[rows], labels)
        if np.mean(split.x[:, 0] == 1) > 0.5:
            raise InputError(f"{where}: most posts of {part} have no words behind an empty line: fetch the posts again")
    return RawDataset(splits, class_names, checksum, vocabulary, _split_off(splits), max_words or MAX_WORDS)


def _fetched():
    from sklearn.datasets import fetch_20newsgroups  # heavy, and only this data set needs it

    names, posts, digest = [], [], hashlib.sha256()
    mend = "fetch 20news-bydate.tar.gz by hand and give newsgroups:<path of the folder or archive>"
    for part in ("train", "test"):
        with files.reading("newsgroups", mend):
            bunch = fetch_20newsgroups(subset=part, shuffle=False)
        for file, label, post in zip(bunch.filenames, bunch.target, bunch.data, strict=True):
            names.append(f"{part}/{bunch.target_names[label]}/{PurePosixPath(str(file)).name}")
            posts.append(post)
            digest.update(f"{names[-1]}\0{len(post)}\0{post}".encode())
    return names, posts, digest.hexdigest()


def tokenise(post: str) -> list[str]:
    """The words of a post in lower case, without its header, the lines up to the first empty one.

    A word is a run of letters and digits of any alphabet, with apostrophes inside it: `WORD`. A post without an empty
    line is all header and has no words. In a post on one line, tabs stand for its line breaks: some copies are so.
    """
    post = post.replace("\r\n", "\n").rstrip("\n")
    if "\n" not in post:
        post = post.replace("\t", "\n")
    _, _, body = post.partition("\n\n")
    return WORD.findall(body.lower())


def _split_off(splits):
    n, posts = len(splits["train"].y), BYDATE_POSTS if "test" in splits else POSTS
    return Sizes(val=max(1, n * VAL_POSTS // posts), test=max(1, n * TEST_POSTS // POSTS))
