"""The Treebank's trees: slots against a recursive reader, classes, and every bad line; real files by FOCALGEO_DATA."""

import time

import numpy as np
import pytest

from focalgeo.data import load_dataset
from focalgeo.data.treebank import parse_tree
from focalgeo.types import InputError

LINES = {
    "train.txt": [
        "(3 (2 It) (4 (3 (2 is) (4 Good)) (2 .)))",
        "(2 (2 neutral) (2 root))",
        "(0 Bad)",
        "(1 (2 so) (0 bad))",
    ],
    "dev.txt": ["(4 (2 it) (3 shines))", "(2 dull)"],
    "test.txt": ["(1 (2 (2 not) (2 it)) (4 good))", ""],
}
CLASS = {0: 0, 1: 0, 2: -1, 3: 1, 4: 1}


def nested(line):
    """A line by plain recursion: (sentiment, word) or (sentiment, left, right)."""

    def read(start):
        sentiment, at = int(line[start + 1]), start + 3
        if line[at] != "(":
            end = line.index(")", at)
            return (sentiment, line[at:end].lower()), end + 1
        left, at = read(at)
        right, at = read(at + 1)
        return (sentiment, left, right), at + 1

    return read(0)[0]


def unpacked(x, y, vocabulary):
    """The tree in the slots, with classes for sentiments."""
    slots = (len(x) + 1) // 2
    used = np.flatnonzero(x[slots:, 1:].any(axis=1))
    assert used.tolist() == list(range(len(used)))
    assert (x[:slots, 1:] == 0).all()
    assert (x[slots:, 0] == 0).all()

    def build(slot):
        word, left, right = x[slot]
        if slot < slots:
            return int(y[slot]), vocabulary[word]
        assert left < slot > right
        return int(y[slot]), build(left), build(right)

    return build(slots + len(used) - 1 if len(used) else 0)


def with_classes(tree, *, roots_only, is_root=True):
    label = CLASS[tree[0]] if is_root or not roots_only else -1
    if len(tree) == 2:
        return label, tree[1]
    return label, *(with_classes(child, roots_only=roots_only, is_root=False) for child in tree[1:])


def known_words(tree, vocabulary):
    if len(tree) == 2:
        return tree[0], tree[1] if tree[1] in vocabulary else "<unk>"
    return tree[0], *(known_words(child, vocabulary) for child in tree[1:])


def write(path, lines=LINES):
    for name, content in lines.items():
        (path / "trees").mkdir(parents=True, exist_ok=True)
        (path / "trees" / name).write_text("\n".join(content), encoding="utf-8")
    return path


def refused(path, **options):
    with pytest.raises(InputError) as caught:
        load_dataset(f"sst:{path}", **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_trees(data, lines, *, max_trees=None):
    """Every tree of val and test in order, and of train in any, is the one that its line writes."""
    known = set(data.vocabulary)
    for part, name in (("val", "dev.txt"), ("test", "test.txt"), ("train", "train.txt")):
        split = getattr(data, part)
        trees = [tree for tree in map(nested, filter(None, lines[name])) if tree[0] != 2]
        trees = trees if part == "train" else trees[:max_trees]
        expected = [known_words(with_classes(tree, roots_only=part != "train"), known) for tree in trees]
        got = [unpacked(x, y, data.vocabulary) for x, y in zip(split.x[:max_trees], split.y, strict=False)]
        if part == "train":
            assert set(got) <= set(expected)
            assert max_trees is not None or sorted(map(str, got)) == sorted(map(str, expected))
        else:
            assert got == expected


def test_slots_of_one_tree(tmp_path):
    data = load_dataset(f"sst:{write(tmp_path)}")
    assert data.class_names == ("negative", "positive")
    assert data.train.x.shape == (3, 7, 3)
    assert data.train.y.shape == (3, 7)
    assert data.train.x.dtype == data.train.y.dtype == np.int32
    row = int(np.argmax((data.train.x[:, :, 0] > 0).sum(axis=1)))
    x, y = data.train.x[row], data.train.y[row]
    assert [data.vocabulary[word] for word in x[:4, 0]] == ["it", "is", "good", "."]
    assert x[4:].tolist() == [[0, 1, 2], [0, 4, 3], [0, 0, 5]]
    assert y.tolist() == [-1, -1, 1, -1, 1, 1, 1]
    assert data.val.y.tolist() == [[-1, -1, -1, -1, 1, -1, -1]]
    assert data.vocabulary[:3] == ("", "<unk>", "bad")
    assert data.val.x[0, 1, 0] == 1  # "shines" is not in train


def test_trees_come_back(tmp_path):
    assert_trees(load_dataset(f"sst:{write(tmp_path)}"), LINES)


def test_random_trees_come_back(tmp_path):
    rng = np.random.default_rng(0)

    def grown(leaves):
        if leaves == 1:
            return f"({rng.integers(5)} W{rng.integers(20)})"
        left = rng.integers(1, leaves)
        return f"({rng.integers(5)} {grown(left)} {grown(leaves - left)})"

    lines = {name: [grown(n) for n in (1, 1, 1, 2, 2, *range(3, 40))] for name in LINES}
    assert_trees(load_dataset(f"sst:{write(tmp_path, lines)}"), lines)


def test_archive_and_folder_give_the_same(tmp_path, images_on_disk):
    one = load_dataset(f"sst:{write(tmp_path / 'f')}")
    files = {f"trees/{name}": "\r\n".join(lines).encode() for name, lines in LINES.items()}
    files = {"trees/README.txt": b"no trees"} | files
    other = load_dataset(f"sst:{images_on_disk.tar(tmp_path / 'trees.tar.xz', files, 'w:xz')}")
    for left, right in zip(one[1:4], other[1:4], strict=True):
        np.testing.assert_array_equal(left.x, right.x)
        np.testing.assert_array_equal(left.y, right.y)
    direct = load_dataset(f"sst:{tmp_path / 'f' / 'trees'}")
    np.testing.assert_array_equal(direct.train.x, one.train.x)


def test_subsets_count_trees(tmp_path):
    data = load_dataset(f"sst:{write(tmp_path)}", train_size=2, max_words=3)
    assert [len(split.y) for split in (data.train, data.val, data.test)] == [2, 1, 1]
    assert len(data.vocabulary) <= 5
    assert "train has 3 examples" in refused(tmp_path, train_size=4)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("(3 (2 a) (4 b)", "1 brackets are not closed"),
        ("(3 (2 a) (4 b)))", "closes what none has opened"),
        ("(3 (2 a) (5 b))", "'5' is no sentiment"),
        ("(3 (-1 a) (4 b))", "'-1' is no sentiment"),
        ("((2 a) (4 b))", "a node has no sentiment"),
        ("()", "a node has no sentiment"),
        ("(3 (2 a))", "neither one word nor two children"),
        ("(3 (2 a) (2 b) (2 c))", "neither one word nor two children"),
        ("(3 a b)", "neither one word nor two children"),
        ("(3 (2 a) b)", "neither one word nor two children"),
        ("(3)", "neither one word nor two children"),
        ("(3 a) (3 b)", "one tree and nothing else"),
        ("word", "one tree and nothing else"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, message):
    write(tmp_path, LINES | {"dev.txt": ["(3 fine)", "", line]})
    text = refused(tmp_path)
    assert "dev.txt, line 3: " in text
    assert message in text


def test_a_no_break_space_is_part_of_its_word():
    assert parse_tree("(2 8\xa01\\/2)").words == ["8\xa01\\/2"]


def test_what_cannot_be_read(tmp_path):
    write(tmp_path / "a")
    (tmp_path / "a/trees/train.txt").write_bytes(b"(3 \xff)\n")
    assert "train.txt, line 1" in refused(tmp_path / "a")
    write(tmp_path / "b")
    write(tmp_path / "b" / "again")
    assert "two files" in refused(tmp_path / "b")
    write(tmp_path / "c", LINES | {"test.txt": ["(2 neutral)"]})
    assert "test is empty" in refused(tmp_path / "c")
    (tmp_path / "c/trees/dev.txt").unlink()
    assert "has no dev.txt" in refused(tmp_path / "c")
    assert "no such folder or archive" in refused(tmp_path / "gone")


@pytest.mark.parametrize("option", ["max_length", "image_size"])
def test_options_that_do_not_apply(tmp_path, option):
    assert f"{option} 5 does not apply" in refused(write(tmp_path), **{option: 5})


@pytest.mark.slow
def test_the_real_archive(real_archive):
    import tarfile

    archive = real_archive("sst-trees.tar.xz")
    start = time.perf_counter()
    data = load_dataset(f"sst:{archive}")
    print(f"read in {time.perf_counter() - start:.2f} s")
    assert [len(split.y) for split in (data.train, data.val, data.test)] == [6_920, 872, 1_821]
    with tarfile.open(archive) as tar:
        lines = {name: tar.extractfile(f"trees/{name}").read().decode().split("\n") for name in LINES}
    assert_trees(data, lines, max_trees=300)
    assert (data.val.y >= 0).sum() == 872
    assert (data.train.y >= 0).sum() > 6_920
