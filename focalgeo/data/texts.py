"""Texts as token ids: vocabularies, word vectors, the posts of 20 Newsgroups, and the trees of the Sentiment Treebank.

Token id 0 is padding, 1 an unknown word, from 2 on come the words of the vocabulary.
"""

import gzip
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

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
    vectors, size = {}, 0  # by row of the table
    with files.reading(path), (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as file:
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
    if not vectors:
        raise InputError(
            f"{path} has none of the {len(wanted)} words of the vocabulary: give vectors of their language"
        )
    known = np.stack(list(vectors.values()))
    shape = len(vocabulary), known.shape[1]
    table = np.random.default_rng(seed).normal(0, known.std(dtype=np.float64), shape).astype(np.float32)
    table[list(vectors)] = known
    table[0] = 0
    return table


def read_newsgroups(location: str, max_words: int | None, max_length: int | None) -> RawDataset:
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
        Mukhoti et al., ICLR 2020 submission, App. C: 15,098 posts for training, 900 for validation, 3,999 for test.
        Where there are more or fewer posts, the same shares; of "bydate", with its own test split, 900 of 11,314 for
        validation.
    """
    if not location:
        from sklearn.datasets import fetch_20newsgroups  # heavy, and only this data set needs it

        where, names, posts, digest = "newsgroups", [], [], hashlib.sha256()
        mend = "fetch 20news-bydate.tar.gz by hand and give newsgroups:<path of the folder or archive>"
        for part in ("train", "test"):
            with files.reading(where, mend):
                bunch = fetch_20newsgroups(subset=part, shuffle=False)
            for file, label, post in zip(bunch.filenames, bunch.target, bunch.data, strict=True):
                names.append(f"{part}/{bunch.target_names[label]}/{PurePosixPath(str(file)).name}")
                posts.append(post)
                digest.update(f"{names[-1]}\0{len(post)}\0{post}".encode())
        checksum = digest.hexdigest()
    else:
        source = sources.find("newsgroups", location)
        folder, checksum, where = sources.unpacked(source), source.checksum, source.where
        paths = [name for name in sources.list_files(folder) if PurePosixPath(name).suffix.lower() in SUFFIXES]
        names = [PART.sub(lambda part: part[1].lower(), path) for path in paths]
        posts = ((folder / path).read_bytes().decode("latin-1") for path in paths)
    class_names, members = images.layout(names, where=where)
    vocabulary, ids = number_words(tokenise(post)[: max_length or MAX_LENGTH] for post in posts)
    x, splits = pad_texts(ids), {}
    for part, (rows, labels) in members.items():
        splits[part] = split = Split(x[rows], labels)
        if np.mean(split.x[:, 0] == 1) > 0.5:
            raise InputError(f"{where}: most posts of {part} have no words behind an empty line: fetch the posts again")
    return RawDataset(splits, class_names, checksum, vocabulary, _split_off(splits), max_words or MAX_WORDS)


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


TREE_FILES = {"train.txt": "train", "dev.txt": "val", "test.txt": "test"}
# Words may hold a no-break space ("8 1\\/2"), so only ASCII's spaces part them.
TOKEN = re.compile(r"[()]|[^\s()]+", re.ASCII)
# Sentiments 0..4, very negative to very positive, as the two classes; neutral has none.
CLASS_OF_SENTIMENT = np.array([0, 0, -1, 1, 1], np.int32)
NEUTRAL = 2
# The Treebank's longest has 56. The network's program has a step for each word of the longest sentence.
MOST_LEAVES = 200


class Tree(NamedTuple):
    """A binary tree with n leaves in the order of the sentence and n - 1 inner nodes in post-order.

    A child is written as i >= 0 for leaf i, and as -1 - j for inner node j.
    """

    words: list[str]
    leaf_sentiments: list[int]
    children: list[tuple[int, int]]
    inner_sentiments: list[int]


def read_treebank(location: str, max_words: int | None) -> RawDataset:
    """The Stanford Sentiment Treebank, two classes: trees whose root is not neutral.

    Phrases are negative (0) or positive (1).

    Args:
        location: a folder or archive with train.txt, dev.txt and test.txt, in UTF-8, one tree on a line:
            "(3 (2 It) (4 works))", as the Treebank's site has them in trainDevTestTrees_PTB.zip.
        max_words: in the vocabulary; None for all.

    Returns:
        x int32 [trees, 2L-1, 3] as `pack_trees` lays it out; y int32 [trees, 2L-1] is the class of each node, or -1
        where it must not count: at neutral phrases, at empty slots, and in val and test everywhere but at the root.
        Words are in lower case.

    Raises:
        InputError: nothing there, a file missing or twice, or a line that is no such tree or one of more than
            `MOST_LEAVES` words, named by file and line.

    Accuracy:
        6,920, 872 and 1,821 trees, tested in tests/data/test_texts.py.

    Source:
        Socher et al., EMNLP 2013; the binary task and its sizes as in Mukhoti et al., ICLR 2020 submission, App. C.
    """
    source = sources.find("sst", location)
    folder, trees = sources.unpacked(source), {}
    names = sources.list_files(folder)
    for file, part in TREE_FILES.items():
        paths = [folder / name for name in names if f"/{name}".endswith(f"/{file}")]
        if len(paths) != 1:
            raise InputError(
                f"{source.where} has {len(paths)} files {file}: give a folder or archive with {', '.join(TREE_FILES)}"
            )
        trees[part] = []
        for number, line in enumerate(paths[0].read_bytes().split(b"\n"), start=1):
            if line.strip():
                with files.reading(f"{source.where}: {file}, line {number},", "fix or remove the line"):
                    tree = parse_tree(line.decode())
                if (tree.inner_sentiments or tree.leaf_sentiments)[-1] != NEUTRAL:  # that of the whole sentence
                    trees[part].append(tree)
    vocabulary, ids = number_words([word.lower() for word in tree.words] for part in trees.values() for tree in part)
    num_leaves, splits = max(map(len, ids), default=1), {}
    for part, members in trees.items():
        words, ids = ids[: len(members)], ids[len(members) :]
        splits[part] = pack_trees(members, words, num_leaves=num_leaves, roots_only=part != "train")
    return RawDataset(splits, ("negative", "positive"), source.checksum, vocabulary, max_words=max_words)


def parse_tree(line: str) -> Tree:
    """The tree that a line such as "(3 (2 It) (4 works))" writes.

    Raises:
        ValueError, IndexError, RecursionError: it is none, or one of more than `MOST_LEAVES` words.
    """
    tree, tokens = Tree([], [], [], []), TOKEN.findall(line)[::-1]

    def read_node():
        """The next node, as a child is written."""
        opening, sentiment = tokens.pop(), int(tokens.pop())
        if tokens[-1] == "(":
            tree.children.append((read_node(), read_node()))
            tree.inner_sentiments.append(sentiment)
            child = -len(tree.children)
        else:
            child = len(tree.words)
            tree.words.append(tokens.pop())
            tree.leaf_sentiments.append(sentiment)
        if (opening, tokens.pop()) != ("(", ")") or not 0 <= sentiment <= 4:
            raise ValueError("a node is not (SENTIMENT WORD) or (SENTIMENT NODE NODE), sentiments from 0 to 4")
        return child

    read_node()
    if tokens or len(tree.words) > MOST_LEAVES:
        raise ValueError(f"it is not one tree of at most {MOST_LEAVES} words")
    return tree


def pack_trees(
    trees: Sequence[Tree], ids: Sequence[Int32[np.ndarray, " _"]], *, num_leaves: int, roots_only: bool
) -> Split:
    """Trees as int32 x [trees, 2L-1, 3] of (word, left, right), L = num_leaves, children before their parents.

    Slots 0..L-1 hold the leaves in the order of the sentence, (word, 0, 0); slots L..2L-2 the inner nodes in
    post-order, (0, left, right) with the slots of the children; (0, 0, 0) is an empty slot. The root is the last inner
    node, or slot 0 in a tree of one word. y int32 [trees, 2L-1] is the class of each node, -1 where it has none.

    Args:
        trees: none with more than L leaves.
        ids: int32 [leaves] of each tree.
        num_leaves: L, at least 1.
        roots_only: whether no node but the root has a class.
    """
    x = np.zeros((len(trees), 2 * num_leaves - 1, 3), np.int32)
    y = np.full(x.shape[:2], -1, np.int32)
    for nodes, classes, tree, words in zip(x, y, trees, ids, strict=True):
        n, end = len(words), num_leaves + len(words) - 1
        children = np.array(tree.children, np.int32).reshape(-1, 2)
        nodes[:n, 0] = words
        nodes[num_leaves:end, 1:] = np.where(children < 0, num_leaves - 1 - children, children)
        classes[:n] = CLASS_OF_SENTIMENT[tree.leaf_sentiments]
        classes[num_leaves:end] = CLASS_OF_SENTIMENT[np.array(tree.inner_sentiments, int)]
        if roots_only and n > 1:
            classes[: end - 1] = -1
    return Split(x, y)
