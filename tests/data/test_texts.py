"""20 Newsgroups, the Treebank, vocabularies, word vectors; the real archives where FOCALGEO_DATA names their folder."""

import gzip
import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from data.conftest import assert_same, write_archive, write_folder
from numpy.testing import assert_array_equal
from reference.tree_lstm import parse

from focalgeo.data import load_dataset, read_embeddings
from focalgeo.data.texts import MOST_LEAVES, _split_off, encode_dataset, number_words, pad_texts, parse_tree, tokenise
from focalgeo.types import Dataset, InputError, Split

HEADER = "From: someone@somewhere\nSubject: nothing\n\n"


def bydate(sizes=(("train", 30), ("test", 4))):
    """Path -> post; post i of a group says its group's word i + 1 times."""
    return {
        f"20news-bydate-{part}/{group}/{100 + i}": f"{HEADER}{part} {f'{group[4:]} ' * (i + 1)}".encode()
        for part, n in sizes
        for group in ("sci.space", "rec.autos")
        for i in range(n)
    }


@pytest.fixture
def posts():
    return write_folder("posts", bydate())


def words(data, split):
    return [[data.vocabulary[number] for number in row if number] for row in split.x]


@pytest.mark.parametrize(
    ("post", "expected"),
    [
        (HEADER + "It's GREAT, isn't it?\n\nYes: 3.5 e-mails_a", "it's great isn't it yes 3 5 e mails a"),
        (HEADER + "'quoted' na\xefve \xdcber--x", "quoted na\xefve \xfcber x"),
        (HEADER.replace("\n", "\r\n") + "one\r\n\r\ntwo", "one two"),
        (HEADER.replace("\n", "\t") + "one\ttwo\t\tthree\n", "one two three"),
        (HEADER + "a\t\tb", "a b"),
        ("", ""),
    ],
)
def test_words_of_a_post(post, expected):
    assert tokenise(post) == expected.split()


def test_bydate_posts_come_back(posts):
    data = load_dataset(f"newsgroups:{posts}")
    assert data.class_names == ("rec.autos", "sci.space")
    assert [len(split.y) for split in (data.train, data.val, data.test)] == [56, 4, 8]
    assert data.train.x.dtype == data.train.y.dtype == np.int32
    assert data.train.x.shape[1] == 31
    assert set(data.vocabulary) == {"", "<unk>", "train", "autos", "space"}
    # post 3 of each group, in the order of the paths; "test" is not a word of train
    groups = ("autos", "space")
    assert words(data, data.test) == [["<unk>", *[group] * n] for group in groups for n in range(1, 5)]
    assert data.test.y.tolist() == [0] * 4 + [1] * 4
    for split in (data.train, data.val):
        for label, text in zip(split.y, words(data, split), strict=True):
            assert set(text) == {"train", groups[label]}
    backwards = {f"outer/{name}": text for name, text in reversed(bydate().items())}
    assert_same(data, load_dataset(f"newsgroups:{write_archive('posts.tar.gz', backwards)}"))


def test_plain_groups_are_split_by_the_papers_shares():
    posts = {name.split("/", 1)[1]: text for name, text in bydate((("train", 100),)).items()}
    data = load_dataset(f"newsgroups:{write_folder('plain', posts)}")
    assert [len(split.y) for split in data[1:4]] == [200 - 39 - 9, 9, 39]


def test_sizes_of_the_papers():
    """The split of 19,997 posts into 15,098, 900 and 3,999, and 900 of bydate's 11,314 for validation."""

    def sizes(**numbers):
        return _split_off({part: Split(None, np.zeros(n)) for part, n in numbers.items()})

    assert sizes(train=19_997) == (None, 900, 3_999)
    assert sizes(train=11_314, test=7_532).val == sizes(train=11_315, test=7_532).val == 900
    assert sizes(train=4) == (None, 1, 1)


def test_vocabulary_follows_the_split_and_the_options(posts):
    data = load_dataset(f"newsgroups:{posts}", train_size=1, split_seed=3)
    assert set(data.vocabulary[2:]) == set(words(data, data.train)[0])
    short = load_dataset(f"newsgroups:{posts}", max_words=1, max_length=3)
    assert (short.train.x.max(), short.train.x.shape[1]) == (2, 3)


def test_posts_without_words(posts, refused):
    (posts / "20news-bydate-test/rec.autos/100").write_bytes(b"")
    data = load_dataset(f"newsgroups:{posts}")
    assert data.test.x[0].tolist() == [1] + [0] * (data.test.x.shape[1] - 1)
    for path in posts.glob("20news-bydate-train/*/*"):
        path.write_bytes(path.read_bytes().replace(b"\n\n", b"\n"))
    assert "most posts of train have no words" in refused(f"newsgroups:{posts}")


def test_scikit_learns_posts_are_the_same(posts, refused, monkeypatch):
    def fetch(*, subset, shuffle):
        members = [(name, text.decode()) for name, text in bydate().items() if f"-{subset}/" in name][::-1]
        return SimpleNamespace(
            data=[text for _, text in members],
            filenames=np.array([f"somewhere/{name}" for name, _ in members]),
            target=np.array(["rec.autos" in name for name, _ in members], int),
            target_names=["sci.space", "rec.autos"],
        )

    monkeypatch.setattr("sklearn.datasets.fetch_20newsgroups", fetch)
    data = load_dataset("newsgroups")
    assert_same(data, load_dataset(f"newsgroups:{posts}"))

    def fail(**options):
        raise OSError("no route\nto host")

    monkeypatch.setattr("sklearn.datasets.fetch_20newsgroups", fail)
    assert "no route to host" in refused("newsgroups")


@pytest.mark.long
def test_the_real_newsgroups(real_archive):
    data = load_dataset(f"newsgroups:{real_archive('20news-bydate.tar.xz')}")
    assert [split.x.shape for split in data[1:4]] == [(n, 1000) for n in (10_415, 900, 7_532)]
    assert (len(data.class_names), len(data.vocabulary), data.vocabulary[2:5]) == (20, 20_002, ("the", "to", "of"))


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


def trees(lines=LINES):
    return {f"trees/{name}": "\n".join(content).encode() for name, content in lines.items()}


def nested(tree, known, *, roots_only, is_root=True):
    """A tree as the reference parses it, with classes: (class, word) or (class, left, right)."""
    label = CLASS[tree[0]] if is_root or not roots_only else -1
    if len(tree) == 2:
        word = tree[1].lower()
        return label, word if word in known else "<unk>"
    return label, *(nested(child, known, roots_only=roots_only, is_root=False) for child in tree[1:])


def unpacked(x, y, vocabulary):
    """The tree in the slots."""
    slots = (len(x) + 1) // 2
    used = np.flatnonzero(x[slots:, 1:].any(axis=1))
    assert used.tolist() == list(range(len(used)))
    assert not x[:slots, 1:].any()
    assert not x[slots:, 0].any()

    def build(slot):
        word, left, right = x[slot]
        if slot < slots:
            return int(y[slot]), vocabulary[word]
        assert left < slot > right
        return int(y[slot]), build(left), build(right)

    return build(slots + len(used) - 1 if len(used) else 0)


def assert_trees(data, lines):
    """Every tree of val and test in order, and of train in any, is the one that its line writes."""
    for part, name in (("val", "dev.txt"), ("test", "test.txt"), ("train", "train.txt")):
        split, known = getattr(data, part), {*data.vocabulary}
        chosen = [line for line in lines[name] if line and line[1] != "2"]
        expected = [nested(parse(line), known, roots_only=part != "train") for line in chosen]
        found = [unpacked(x, y, data.vocabulary) for x, y in zip(split.x, split.y, strict=True)]
        assert sorted(map(str, found)) == sorted(map(str, expected)) if part == "train" else found == expected


def test_random_trees_come_back():
    rng = np.random.default_rng(0)

    def grown(leaves):
        if leaves == 1:
            return f"({rng.integers(5)} W{rng.integers(20)})"
        left = rng.integers(1, leaves)
        return f"({rng.integers(5)} {grown(left)} {grown(leaves - left)})"

    lines = {name: [grown(n) for n in (1, 1, 1, 2, 2, *range(3, 40))] for name in LINES}
    data = load_dataset(f"sst:{write_folder('f', trees(lines))}")
    assert_trees(data, lines)
    assert_same(data, load_dataset(f"sst:{write_archive('x.tar.xz', trees(lines))}"))


BAD_TREES = ["(3 (2 a) (4 b)", "(3 (2 a) (5 b))", "(3 (2 a) (2 b) (2 c))", "(3 (2 a) b)", "(3 a) (3 b)", "(2 \xff)"]
BAD_TREES += ["(1 (2 a) " * MOST_LEAVES + "(3 b)" + ")" * MOST_LEAVES, "(3 " * 10_000]


@pytest.mark.parametrize("line", BAD_TREES)
def test_bad_lines_are_named(refused, line):
    files = trees() | {"trees/dev.txt": "\n".join(["(3 fine)", "", line]).encode("latin-1")}
    assert "dev.txt, line 3, cannot be read" in refused(f"sst:{write_folder('.', files)}")


def test_a_no_break_space_is_part_of_its_word():
    assert parse_tree("(2 8\xa01\\/2)").words == ["8\xa01\\/2"]


def test_treebanks_with_something_missing_or_twice(refused):
    write_folder("again", write_folder(".", trees()) and trees())
    assert "has 2 files train.txt" in refused("sst:.")
    Path("trees/dev.txt").unlink()
    assert "has 0 files dev.txt" in refused("sst:trees")
    neutral = trees() | {"trees/test.txt": b"(2 neutral)"}
    assert "test: the split is empty" in refused(f"sst:{write_folder('n', neutral)}")


def test_the_real_trees(real_archive):
    import tarfile

    archive = real_archive("sst-trees.tar.xz")
    data = load_dataset(f"sst:{archive}")
    assert [len(split.y) for split in data[1:4]] == [6_920, 872, 1_821]
    with tarfile.open(archive) as tar:
        lines = {name: tar.extractfile(f"trees/{name}").read().decode().split("\n") for name in LINES}
    assert_trees(data, lines)


@pytest.mark.parametrize("max_words", [None, 1, 20])
def test_vocabulary_is_that_of_train_alone(max_words):
    rng, names = np.random.default_rng(2), [f"w{i}" for i in range(30)]
    texts = [[*rng.choice(names, rng.integers(12), p=np.arange(1, 31) / 465)] for _ in range(50)]
    vocabulary, ids = number_words(iter([*texts, ["never", "w29", "<unk>"]]))
    assert [[vocabulary[number] for number in text] for text in ids[:50]] == [text or ["<unk>"] for text in texts]
    parts = [Split(x, None) for x in np.split(pad_texts(ids), [40, 45])]
    encoded = encode_dataset(Dataset("x", *parts, ("a", "b"), "", vocabulary), max_words=max_words)
    counts = Counter(word for text in texts[:40] for word in text)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:max_words]
    assert encoded.vocabulary == ("", "<unk>", *frequent)
    for before, after in zip(parts, encoded[1:4], strict=True):
        words = np.array(vocabulary)[before.x]
        known = np.where(np.isin(words, encoded.vocabulary), words, "<unk>")
        assert_array_equal(np.array(encoded.vocabulary)[after.x], known)


VOCABULARY = ("", "<unk>", "the", "café", "gone", ".")
TEXT = "the 0.1 -2 3e-1\n. . . 9 9 9\ncafé 1 2 3.5\nother 7 7 7\nthe 5 5 5\n. 4 5 6\n"
FOUND = {2: (0.1, -2, 0.3), 3: (1, 2, 3.5), 5: (4, 5, 6)}


@pytest.fixture
def vectors():
    path = Path("vectors.txt")
    path.write_text(TEXT, encoding="utf-8")
    return path


def refused_vectors(path, vocabulary=VOCABULARY):
    with pytest.raises(InputError) as caught:
        read_embeddings(path, vocabulary)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_rows_are_those_of_the_file_and_others_follow_the_seed(vectors):
    vocabulary = (*VOCABULARY, *(f"word{i}" for i in range(3000)))
    table, again, two = (read_embeddings(vectors, vocabulary, seed=seed) for seed in (0, 0, 1))
    assert (table.shape, table.dtype, table[0].any()) == ((3006, 3), np.float32, False)
    assert_array_equal(table[[*FOUND]], np.array([*FOUND.values()], np.float32))
    assert_array_equal(table, again)
    assert np.flatnonzero((table == two).all(axis=1)).tolist() == [0, *FOUND]
    deviation, sample = np.std([*FOUND.values()]), table[6:]
    assert abs(sample.std() / deviation - 1) < 5 / np.sqrt(2 * sample.size)
    assert abs(sample.mean()) < 5 * deviation / np.sqrt(sample.size)


def test_a_phrase_is_passed_over_though_its_first_word_is_known(vectors):
    expected = read_embeddings(vectors, (*VOCABULARY, "new"))
    vectors.write_text(f"{TEXT}new york 7 8 9\n", encoding="utf-8")
    assert_array_equal(read_embeddings(vectors, (*VOCABULARY, "new")), expected)


def test_packed_vectors_and_word2vecs_first_line_give_the_same(vectors):
    expected = read_embeddings(vectors, VOCABULARY)
    with gzip.open("vectors.txt.gz", "wb") as file:
        file.write(("6 3\n" + TEXT.replace("\n", " \r\n")).encode())
    assert_array_equal(read_embeddings("vectors.txt.gz", VOCABULARY), expected)


@pytest.mark.parametrize("line", ["gone 1 2", "gone 1 2 x", "gone 1 2 1e99"])
def test_bad_lines_of_vectors_are_named(vectors, line):
    vectors.write_text(f"{TEXT}{line}\nlast 1 2 3\n", encoding="utf-8")
    assert f"{vectors}, line 7," in refused_vectors(vectors)


def test_files_that_are_no_vectors(vectors):
    for name in ("gone.txt", "gone/\0.txt", "~nobody-of-this-name/x"):
        assert "there is no file" in refused_vectors(name)
    os.mkfifo("pipe")
    assert "there is no file" in refused_vectors("pipe")
    assert "none of the 1 words" in refused_vectors(vectors, ("", "unheard"))
    Path("cut.txt.gz").write_bytes(gzip.compress(TEXT.encode() * 100)[:-20])
    assert "cannot be read" in refused_vectors("cut.txt.gz")
