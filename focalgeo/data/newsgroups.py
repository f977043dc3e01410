"""20 Newsgroups: posts as sequences of words, from group folders, an archive or scikit-learn's download."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from focalgeo.data.archives import Tell, checksum, counter, one_line, read_files
from focalgeo.data.cache import one_at_a_time
from focalgeo.data.folders import file_errors, find_path, layout
from focalgeo.data.splits import RawDataset, Sizes
from focalgeo.data.vocabulary import number_words, pad_texts
from focalgeo.types import InputError, Split

SUFFIXES = frozenset({"", ".txt"})
# A word: letters and digits of any alphabet, with apostrophes inside it. All else parts words.
WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
# Both as in Keras's example of a convolutional network on these posts.
MAX_WORDS, MAX_LENGTH = 20_000, 1000
# Mukhoti et al. split 19,997 posts into 15,098, 900 and 3,999; "bydate" has 11,314 posts for train and val.
POSTS, TEST_POSTS, VAL_POSTS, BYDATE_POSTS = 19_997, 3_999, 900, 11_314


class Post(NamedTuple):
    """A post's relative path, <train or test>/<group>/<number> or <group>/<number>, and its words."""

    name: str
    words: Sequence[str]


def read_newsgroups(location: str, *, max_length: int | None = None, tell: Tell | None = None) -> RawDataset:
    """Posts as int32 [posts, length] of word numbers, labels by alphabetical order of the groups.

    Args:
        location: a folder or archive (see focalgeo.data.archives) of "bydate" kind, with a folder whose name ends in
            "train" and one whose name ends in "test", each with group folders; or of group folders alone, then test and
            val are split off. The posts are files without suffix or .txt, in latin-1.
        max_length: words kept from the start of each post, at least 1, by default 1000. Length is that of the longest
            post left.
        tell: gets a line of progress every few seconds.

    Raises:
        InputError: nothing there, no posts, one group, a corrupt archive, an unusable layout.

    Source:
        Mukhoti et al., arXiv 2002.09437, App. C: 15,098 posts for training, 900 for validation, 3,999 for test. Where
        there are more or fewer posts, the same shares; of "bydate", with its own test split, 900 of 11,314 for
        validation.
    """
    where = f"newsgroups:{location}"
    path = find_path(location, where=where, hint="newsgroups alone downloads the posts with scikit-learn")
    with file_errors(where):
        posts = _read_posts(read_files(path, SUFFIXES), counter(tell, where))
        return _dataset(posts, checksum(path), where, max_length)


def fetch_newsgroups(*, max_length: int | None = None, tell: Tell | None = None) -> RawDataset:
    """The "bydate" posts that scikit-learn downloads once and keeps: the same as `read_newsgroups` gives.

    Of several processes one downloads and the others wait. Reading takes the lock too: scikit-learn writes in place.

    Raises:
        InputError: the posts cannot be downloaded.
    """
    from sklearn.datasets import fetch_20newsgroups, get_data_home  # heavy, and only this data set needs them

    try:
        with one_at_a_time(Path(get_data_home(), "20news-bydate"), tell):
            bunches = {part: fetch_20newsgroups(subset=part, shuffle=False) for part in ("train", "test")}
    except OSError as error:
        raise InputError(
            f"newsgroups: scikit-learn cannot download the posts ({one_line(error)}): fetch 20news-bydate.tar.gz "
            "by hand and give newsgroups:<path of the folder or archive>"
        ) from error
    posts, digest = [], hashlib.sha256()
    for part, bunch in bunches.items():
        groups = [bunch.target_names[label] for label in bunch.target]
        for file, group, text in zip(bunch.filenames, groups, bunch.data, strict=True):
            name = f"{part}/{group}/{PurePosixPath(str(file)).name}"
            posts.append(Post(name, tokenise(text)))
            digest.update(f"{name}\0{len(text)}\0{text}".encode())
    return _dataset(posts, digest.hexdigest(), "newsgroups", max_length)


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


def _read_posts(files: Iterable[tuple[str, bytes]], count: Callable[[int], None]) -> Iterator[Post]:
    for number, (name, data) in enumerate(files):
        count(number)
        yield Post(_plain_name(name), tokenise(data.decode("latin-1")))


def _plain_name(name: str) -> str:
    """The path with a folder such as 20news-bydate-train above a group folder renamed to train, -test to test."""
    parts = PurePosixPath(name).parts
    for ending in ("train", "test"):
        if len(parts) > 2 and parts[-3].lower().endswith(ending):
            return "/".join((ending, *parts[-2:]))
    return name


def _dataset(posts: Iterable[Post], digest: str, where: str, max_length: int | None) -> RawDataset:
    limit = MAX_LENGTH if max_length is None else max_length
    names: list[str] = []

    def texts() -> Iterator[Sequence[str]]:
        for post in posts:
            names.append(post.name)
            yield post.words[:limit]

    vocabulary, ids = number_words(texts())
    if not names:
        raise InputError(f"{where} holds no posts: give group folders with files that have no suffix or .txt")
    plan = layout(names, where=where)
    if "test" not in plan.rows and any(name.startswith("train/") and name.count("/") == 2 for name in names):
        raise InputError(f"{where} has no test folder: give both halves, or the group folders alone to split test off")
    x = pad_texts(ids, where=where)
    for part, rows in plan.rows.items():
        if np.mean(x[rows, 0] == 1) > 0.5:
            raise InputError(f"{where}: most posts of {part} have no words behind an empty line: fetch the posts again")
    splits = {part: Split(x[rows], np.array(plan.labels[part], np.int32)) for part, rows in plan.rows.items()}
    return RawDataset(splits, plan.class_names, digest, vocabulary, _split_off(splits))


def _split_off(splits: dict[str, Split]) -> Sizes:
    n = len(splits["train"].y)
    if "test" in splits:
        return Sizes(val=max(1, n * VAL_POSTS // BYDATE_POSTS))
    return Sizes(val=max(1, n * VAL_POSTS // POSTS), test=max(1, n * TEST_POSTS // POSTS))
