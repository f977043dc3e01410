"""The Stanford Sentiment Treebank: binary trees whose every phrase has a sentiment."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from focalgeo.data.archives import checksum, read_files
from focalgeo.data.folders import file_errors, find_path
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
        location: a folder or archive (see focalgeo.data.archives) with train.txt, dev.txt and test.txt, in UTF-8, one
            tree on a line: "(3 (2 It) (4 works))".

    Returns:
        x int32 [trees, 2L-1, 3] as `pack_trees` lays it out; y int32 [trees, 2L-1] is the class of each node, or -1
        where it must not count: at neutral phrases, at empty slots, and in val and test everywhere but at the root.
        Words are in lower case.

    Raises:
        InputError: nothing there, a file missing or twice, or a line that is no such tree or one of more than
            `MOST_LEAVES` words, named by file and line.

    Accuracy:
        6,920, 872 and 1,821 trees, tested in tests/data/test_treebank.py.

    Source:
        Socher et al., EMNLP 2013; the binary task and its sizes as in Mukhoti et al., arXiv 2002.09437, App. C.
    """
    where = f"sst:{location}"
    path = find_path(location, where=where, hint="the Treebank's site has the trees as trainDevTestTrees_PTB.zip")
    with file_errors(where):
        digest = checksum(path)
        trees = _read_trees(path, where)
    everything = [tree for part in trees.values() for tree in part]
    vocabulary, ids = number_words([word.lower() for word in tree.words] for tree in everything)
    num_leaves = max(map(len, ids), default=1)
    splits, start = {}, 0
    for part, members in trees.items():
        x = pack_trees(members, ids[start : start + len(members)], num_leaves=num_leaves)
        splits[part] = Split(x, _classes(members, num_leaves, roots_only=part != "train"))
        start += len(members)
    return RawDataset(splits, ("negative", "positive"), digest, vocabulary)


def parse_tree(line: str) -> Tree:
    """The tree that a line such as "(3 (2 It) (4 works))" writes.

    Raises:
        ValueError: what is wrong with the line, in a few words.
    """
    tree = Tree([], [], [], [])
    open_nodes: list[list] = [
        []
    ]  # label, then children or a word, of every node not yet closed; the first holds the root
    for token in TOKEN.findall(line):
        if token == "(":
            open_nodes.append([])
        elif token != ")":
            open_nodes[-1].append(token)
        elif len(open_nodes) == 1:
            raise ValueError("a bracket closes what none has opened")
        else:
            node = _close(open_nodes.pop(), tree)
            open_nodes[-1].append(node)
    if len(open_nodes) > 1:
        raise ValueError(f"{len(open_nodes) - 1} brackets are not closed")
    if len(open_nodes[0]) != 1 or isinstance(open_nodes[0][0], str):
        raise ValueError("a line must hold one tree and nothing else")
    if len(tree.words) > MOST_LEAVES:
        raise ValueError(f"a tree of {len(tree.words)} words, which may have {MOST_LEAVES}")
    return tree


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


def _close(content: list, tree: Tree) -> int:
    """Adds a node to the tree and returns its number as a child."""
    sentiment, *members = content or [None]
    if not isinstance(sentiment, str):
        raise ValueError("a node has no sentiment")
    if sentiment not in SENTIMENTS:
        raise ValueError(f"{sentiment[:20]!r} is no sentiment: they are {', '.join(SENTIMENTS)}")
    if len(members) == 1 and isinstance(members[0], str):
        tree.words.append(members[0])
        tree.leaf_sentiments.append(int(sentiment))
        return len(tree.words) - 1
    if len(members) != 2 or any(isinstance(member, str) for member in members):
        raise ValueError("a node has neither one word nor two children")
    tree.children.append((members[0], members[1]))
    tree.inner_sentiments.append(int(sentiment))
    return -len(tree.children)


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


def _read_trees(path: Path, where: str) -> dict[str, list[Tree]]:
    files: dict[str, bytes] = {}
    for name, data in read_files(path, frozenset({".txt"})):
        part = FILES.get(PurePosixPath(name).name)
        if part in files:
            raise InputError(f"{where} holds two files {PurePosixPath(name).name}: give the folder of one of them")
        if part is not None:
            files[part] = data
    missing = [file for file, part in FILES.items() if part not in files]
    if missing:
        raise InputError(f"{where} has no {missing[0]}: give a folder or archive with {', '.join(FILES)}")
    return {part: _parse_file(files[part], f"{where}: {file}") for file, part in FILES.items()}


def _parse_file(data: bytes, where: str) -> list[Tree]:
    trees = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            tree = parse_tree(line.decode("utf-8"))
        except ValueError as error:
            raise InputError(f"{where}, line {number}: {error}: mend or remove the line") from error
        if tree.sentiment != NEUTRAL:
            trees.append(tree)
    return trees
