"""The Stanford Sentiment Treebank: binary trees whose every phrase has a sentiment."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from focalgeo.data import sources
from focalgeo.data.splits import RawDataset
from focalgeo.data.vocabulary import number_words
from focalgeo.types import InputError, Split

FILES = {"train.txt": "train", "dev.txt": "val", "test.txt": "test"}
# Words may hold a no-break space ("8 1\\/2"), so only ASCII's spaces part them.
TOKEN = re.compile(r"[()]|[^\s()]+", re.ASCII)
# Sentiments 0..4, very negative to very positive, as the two classes; neutral has none.
CLASS_OF_SENTIMENT = np.array([0, 0, -1, 1, 1], np.int32)
SENTIMENTS = ("0", "1", "2", "3", "4")
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

    @property
    def sentiment(self) -> int:
        """Sentiment of the root, the whole sentence."""
        return (self.inner_sentiments or self.leaf_sentiments)[-1]


def read_treebank(location: str) -> RawDataset:
    """The binary task: trees whose root is not neutral, phrases as negative (0) or positive (1).

    Args:
        location: a folder or archive with train.txt, dev.txt and test.txt, in UTF-8, one
            tree on a line: "(3 (2 It) (4 works))".

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
    source = sources.find("sst", location, hint="the Treebank's site has the trees as trainDevTestTrees_PTB.zip")
    folder, trees = sources.unpacked(source), {}
    paths = [folder / name for name in sources.list_files(folder)]
    for name, part in FILES.items():
        named = [path for path in paths if path.name == name]
        if len(named) != 1:
            raise InputError(
                f"{source.where} has {len(named)} files {name}: give a folder or archive with {', '.join(FILES)}"
            )
        trees[part] = _parse_file(named[0].read_bytes(), f"{source.where}: {name}")
    vocabulary, ids = number_words([word.lower() for word in tree.words] for part in trees.values() for tree in part)
    num_leaves = max(map(len, ids), default=1)
    splits, start = {}, 0
    for part, members in trees.items():
        x = pack_trees(members, ids[start : start + len(members)], num_leaves=num_leaves)
        splits[part] = Split(x, _classes(members, num_leaves, roots_only=part != "train"))
        start += len(members)
    return RawDataset(splits, ("negative", "positive"), source.checksum, vocabulary)


def _parse_file(data: bytes, where: str) -> list[Tree]:
    trees = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            with sources.reading(f"{where}, line {number},", "mend or remove the line"):
                trees.append(parse_tree(line.decode("utf-8")))
    return [tree for tree in trees if tree.sentiment != NEUTRAL]


def parse_tree(line: str) -> Tree:
    """The tree that a line such as "(3 (2 It) (4 works))" writes.

    Raises:
        ValueError: it is none, or one of more than `MOST_LEAVES` words.
    """
    tree = Tree([], [], [], [])
    open_nodes: list[list[str | int]] = [[]]  # sentiment, then a word or children, of every node not yet closed
    for token in TOKEN.findall(line):
        if token == "(":
            open_nodes.append([])
        elif token != ")":
            open_nodes[-1].append(token)
        elif len(open_nodes) > 1:
            node = _closed(open_nodes.pop(), tree)
            open_nodes[-1].append(node)
        else:
            raise ValueError("a bracket closes what none has opened")
    match open_nodes:
        case [[int()]] if len(tree.words) <= MOST_LEAVES:
            return tree
    raise ValueError(f"it is not one tree, as (3 (2 It) (4 works)), of at most {MOST_LEAVES} words")


def _closed(node: list[str | int], tree: Tree) -> int:
    """Adds a node to the tree and returns its number as a child."""
    match node:
        case [str() as sentiment, str() as word] if sentiment in SENTIMENTS:
            tree.words.append(word)
            tree.leaf_sentiments.append(int(sentiment))
            return len(tree.words) - 1
        case [str() as sentiment, int() as left, int() as right] if sentiment in SENTIMENTS:
            tree.children.append((left, right))
            tree.inner_sentiments.append(int(sentiment))
            return -len(tree.children)
    raise ValueError(f"a node has not a sentiment from 0 to 4 and one word or two children: {node}")


def pack_trees(
    trees: Sequence[Tree], ids: Sequence[Int32[np.ndarray, " _"]], *, num_leaves: int
) -> Int32[np.ndarray, "trees slots 3"]:
    """Trees as int32 [trees, 2L-1, 3] of (word, left, right), L = num_leaves, children before their parents.

    Slots 0..L-1 hold the leaves in the order of the sentence, (word, 0, 0); slots L..2L-2 the inner nodes in
    post-order, (0, left, right) with the slots of the children; (0, 0, 0) is an empty slot. The root is the last inner
    node, or slot 0 in a tree of one word.

    Args:
        trees: none with more than L leaves.
        ids: int32 [leaves] of each tree.
        num_leaves: L, at least 1.
    """
    x = np.zeros((len(trees), 2 * num_leaves - 1, 3), np.int32)
    for row, tree, words in zip(x, trees, ids, strict=True):
        row[: len(words), 0] = words
        if tree.children:
            children = np.array(tree.children, np.int32)
            row[num_leaves : num_leaves + len(children), 1:] = np.where(
                children < 0, num_leaves - 1 - children, children
            )
    return x


def _classes(trees: Sequence[Tree], num_leaves: int, *, roots_only: bool) -> np.ndarray:
    y = np.full((len(trees), 2 * num_leaves - 1), -1, np.int32)
    for row, tree in zip(y, trees, strict=True):
        inner = len(tree.inner_sentiments)
        if roots_only:
            row[num_leaves + inner - 1 if inner else 0] = CLASS_OF_SENTIMENT[tree.sentiment]
            continue
        row[: len(tree.words)] = CLASS_OF_SENTIMENT[tree.leaf_sentiments]
        row[num_leaves : num_leaves + inner] = CLASS_OF_SENTIMENT[np.array(tree.inner_sentiments, int)]
    return y
