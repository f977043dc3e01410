"""20 Newsgroups: layouts, header, words, sizes; the real archive when FOCALGEO_DATA names its folder."""

import fcntl
import os
import time
from types import SimpleNamespace

import numpy as np
import pytest

from focalgeo.data import load_dataset
from focalgeo.data.newsgroups import _split_off, tokenise
from focalgeo.types import InputError, Split

HEADER = "From: someone@somewhere\nSubject: nothing\n\n"


def bydate(sizes=(("train", 30), ("test", 4))):
    """Path -> text; post i of a group says its group's word i + 1 times."""
    return {
        f"20news-bydate-{part}/{group}/{100 + index}": HEADER + f"{part} " + " ".join([group[4:]] * (index + 1))
        for part, n in sizes
        for group in ("sci.space", "rec.autos")
        for index in range(n)
    }


def encoded(posts):
    return {name: text.encode("latin-1") for name, text in posts.items()}


@pytest.fixture
def posts(tmp_path, images_on_disk):
    return images_on_disk.write(tmp_path / "posts", encoded(bydate()))


def words(data, split):
    return [[data.vocabulary[number] for number in row if number] for row in split.x]


def refused(name, **options):
    with pytest.raises(InputError) as caught:
        load_dataset(name, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_same(left, right):
    for one, other in zip(left[1:4], right[1:4], strict=True):
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.y, other.y)
    assert left.class_names == right.class_names
    assert left.vocabulary == right.vocabulary


@pytest.mark.parametrize(
    ("post", "expected"),
    [
        (HEADER + "It's GREAT, isn't it?\n\nYes: 3.5 e-mails_a", "it's great isn't it yes 3 5 e mails a"),
        (HEADER + "'quoted' na\xefve \xdcber--x", "quoted na\xefve \xfcber x"),
        (HEADER.replace("\n", "\r\n") + "one\r\n\r\ntwo", "one two"),
        (HEADER.replace("\n", "\t") + "one\ttwo\t\tthree\n", "one two three"),
        (HEADER + "a\t\tb", "a b"),
        ("no header\nat all", ""),
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
    assert data.vocabulary[:2] == ("", "<unk>")
    assert set(data.vocabulary[2:]) == {"train", "autos", "space"}
    # post 3 of each group, in the order of the paths; "test" is not a word of train
    assert words(data, data.test) == [["<unk>", *["autos"] * n] for n in range(1, 5)] + [
        ["<unk>", *["space"] * n] for n in range(1, 5)
    ]
    assert data.test.y.tolist() == [0] * 4 + [1] * 4
    for split in (data.train, data.val):
        for label, text in zip(split.y, words(data, split), strict=True):
            assert set(text) == {"train", ("autos", "space")[label]}


def test_archive_and_outer_folder_give_the_same(posts, tmp_path, images_on_disk):
    whole = load_dataset(f"newsgroups:{posts}")
    archive = images_on_disk.tar(tmp_path / "posts.tar.gz", encoded(dict(reversed(bydate().items()))), "w:gz")
    assert_same(whole, load_dataset(f"newsgroups:{archive}"))
    posts.rename(tmp_path / "moved")
    (tmp_path / "outer").mkdir()
    (tmp_path / "moved").rename(tmp_path / "outer" / "20news")
    assert_same(whole, load_dataset(f"newsgroups:{tmp_path / 'outer'}"))


def test_plain_groups_are_split_by_the_papers_shares(tmp_path, images_on_disk):
    posts = {name.split("/", 1)[1]: text for name, text in bydate((("train", 100),)).items()}
    path = images_on_disk.write(tmp_path / "plain", encoded(posts))
    data = load_dataset(f"newsgroups:{path}")
    assert [len(split.y) for split in (data.train, data.val, data.test)] == [200 - 39 - 9, 9, 39]
    assert (
        len({(*tuple(row), y) for split in (data.train, data.val, data.test) for row, y in zip(*split, strict=True)})
        == 200
    )


def test_sizes_of_the_papers():
    """The split of 19,997 posts into 15,098, 900 and 3,999, and 900 of bydate's 11,314 for validation."""

    def sizes(**numbers):
        return _split_off({part: Split(None, np.zeros(n)) for part, n in numbers.items()})

    assert sizes(train=19_997) == (None, 900, 3_999)
    assert sizes(train=11_314, test=7_532) == sizes(train=11_315, test=7_532) == (None, 900, None)
    assert sizes(train=4) == (None, 1, 1)


def test_vocabulary_follows_the_split(posts):
    data = load_dataset(f"newsgroups:{posts}", train_size=1, split_seed=3)
    assert len(data.train.y) == 1
    assert set(data.vocabulary[2:]) == set(words(data, data.train)[0])
    other = load_dataset(f"newsgroups:{posts}", max_words=1)
    assert len(other.vocabulary) == 3
    assert other.train.x.max() == 2


def test_max_length_keeps_the_start(posts):
    whole, short = (load_dataset(f"newsgroups:{posts}", max_length=n) for n in (None, 3))
    assert short.train.x.shape[1] == 3
    assert words(short, short.val) == [text[:3] for text in words(whole, whole.val)]


def test_empty_post_is_one_unknown_word(posts):
    (posts / "20news-bydate-test/rec.autos/100").write_bytes(b"")
    data = load_dataset(f"newsgroups:{posts}")
    assert data.test.x[0].tolist() == [1] + [0] * (data.test.x.shape[1] - 1)


def test_posts_without_empty_lines_are_refused(posts):
    for path in posts.glob("20news-bydate-train/*/*"):
        path.write_bytes(path.read_bytes().replace(b"\n\n", b"\n"))
    assert "most posts of train have no words" in refused(f"newsgroups:{posts}")


def test_what_cannot_be_read(tmp_path):
    assert "no such folder or archive" in refused(f"newsgroups:{tmp_path / 'gone'}")
    (tmp_path / "empty").mkdir()
    assert "holds no posts" in refused(f"newsgroups:{tmp_path / 'empty'}")
    (tmp_path / "broken.tar.gz").write_bytes(b"no archive")
    assert "corrupt" in refused(f"newsgroups:{tmp_path / 'broken.tar.gz'}")


def test_progress_is_told(posts, monkeypatch):
    monkeypatch.setattr("focalgeo.data.archives.SECONDS", 0)
    lines = []
    load_dataset(f"newsgroups:{posts}", tell=lines.append)
    assert lines[-1] == f"read 67 examples of newsgroups:{posts}"


def test_one_group_is_refused(tmp_path, images_on_disk):
    path = images_on_disk.write(tmp_path / "one", {f"sci.space/{i}": HEADER.encode() + b"a" for i in range(9)})
    assert "one class, sci.space" in refused(f"newsgroups:{path}")


@pytest.mark.parametrize("options", [{"max_words": 0}, {"max_length": 0}, {"image_size": 8}])
def test_options_out_of_range_or_place(posts, options):
    assert next(iter(options)) in refused(f"newsgroups:{posts}", **options)


@pytest.fixture
def downloads(tmp_path, monkeypatch):
    """The folder that scikit-learn downloads to."""
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "downloads"))
    return tmp_path / "downloads"


def test_scikit_learns_posts_are_the_same(posts, downloads, monkeypatch):
    def fetch(*, subset, shuffle):
        assert not shuffle
        members = [(name, text) for name, text in bydate().items() if f"-{subset}/" in name][::-1]
        return SimpleNamespace(
            data=[text for _, text in members],
            filenames=np.array([f"somewhere/{name}" for name, _ in members]),
            target=np.array(["rec.autos" in name for name, _ in members], int),
            target_names=["sci.space", "rec.autos"],
        )

    monkeypatch.setattr("sklearn.datasets.fetch_20newsgroups", fetch)
    assert_same(load_dataset("newsgroups"), load_dataset(f"newsgroups:{posts}"))
    assert len(load_dataset("newsgroups").checksum) == 64
    assert load_dataset("newsgroups", max_length=2).train.x.shape[1] == 2


def test_processes_download_one_at_a_time(downloads, monkeypatch):
    downloads.mkdir()
    holder = os.open(downloads / ".20news-bydate.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(holder, fcntl.LOCK_EX)
    monkeypatch.setattr("focalgeo.data.cache.PATIENCE", 0)
    lines = []

    def tell(line):
        lines.append(line)
        os.close(holder)

    def fail(**options):
        assert lines == [f"another process is making {downloads}/20news-bydate: waiting for it"]
        raise OSError("no route to host")

    monkeypatch.setattr("sklearn.datasets.fetch_20newsgroups", fail)
    assert "no route to host" in refused("newsgroups", tell=tell)


def test_no_network_says_how_to_give_a_folder(downloads, monkeypatch):
    def fail(**options):
        raise OSError("no route\nto host")

    monkeypatch.setattr("sklearn.datasets.fetch_20newsgroups", fail)
    message = refused("newsgroups")
    assert "no route to host" in message
    assert "newsgroups:<path of the folder or archive>" in message


@pytest.mark.slow
def test_the_real_archive(real_archive):
    archive = real_archive("20news-bydate.tar.xz")
    start = time.perf_counter()
    data = load_dataset(f"newsgroups:{archive}")
    print(f"read in {time.perf_counter() - start:.2f} s")
    assert [split.x.shape for split in (data.train, data.val, data.test)] == [(n, 1000) for n in (10_415, 900, 7_532)]
    assert len(data.class_names) == 20
    assert len(data.vocabulary) == 20_002
    assert data.vocabulary[2:5] == ("the", "to", "of")
    counts = np.bincount(data.train.x.ravel(), minlength=20_002)
    assert (np.diff(counts[2:]) <= 0).all()
    assert counts[-1] >= 2
    for split in (data.train, data.val, data.test):
        assert (split.x[:, 0] > 0).all()
        lengths = (split.x > 0).sum(axis=1)
        assert 80 < np.median(lengths) < 220
        assert (np.diff((split.x > 0).astype(int), axis=1) <= 0).all()  # padding at the end only
        assert (split.x == 1).sum() < 0.12 * lengths.sum()
