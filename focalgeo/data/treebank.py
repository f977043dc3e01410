"""The Stanford Sentiment Treebank: binary trees whose every phrase has a sentiment."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from focalgeo import files
from focalgeo.data import sources
from focalgeo.data.splits import RawDataset
from focalgeo.data.texts import number_words
from focalgeo.types import InputError, Split

FILES = {"train.txt": "train", "dev.txt": "val", "test.txt": "test"}
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


def read_treebank(location: str, max_words: int | None = None) -> RawDataset:
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
        Socher et al., EMNLP 2013; the binary task and its sizes as in Mukhoti et al., arXiv 2002.09437, App. C.
    """
    source = sources.find("sst", location)
    folder, trees = sources.unpacked(source), {}
    names = sources.list_files(folder)
    for file, part in FILES.items():
        paths = [folder / name for name in names if f"/{name}".endswith(f"/{file}")]
        if len(paths) != 1:
            raise InputError(
                f"{source.where} has {len(paths)} files {file}: give a folder or archive with {', '.join(FILES)}"
            )
        trees[part] = list(_read_trees(paths[0], f"{source.where}: {file}"))
    vocabulary, ids = number_words([word.lower() for word in tree.words] for part in trees.values() for tree in part)
    num_leaves, splits = max(map(len, ids), default=1), {}
    for part, members in trees.items():
        words, ids = ids[: len(members)], ids[len(members) :]
        splits[part] = pack_trees(members, words, num_leaves=num_leaves, roots_only=part != "train")
    return RawDataset(splits, ("negative", "positive"), source.checksum, vocabulary, max_words=max_words)


def _read_trees(path: Path, where: str) -> Iterator[Tree]:
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if line.strip():
            with files.reading(f"{where}, line {number},", "mend or remove the line"):
                tree = parse_tree(line.decode())
            if (tree.inner_sentiments or tree.leaf_sentiments)[-1] != NEUTRAL:  # that of the whole sentence
                yield tree


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
