"""20 Newsgroups: posts as sequences of words, from group folders, an archive or scikit-learn's download."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

import numpy as np

from focalgeo.data import images, sources
from focalgeo.data.splits import Options, RawDataset, Sizes
from focalgeo.data.vocabulary import number_words, pad_texts
from focalgeo.types import InputError, Split

SUFFIXES = frozenset({"", ".txt"})
# A word: letters and digits of any alphabet, with apostrophes inside it. All else parts words.
WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
# Both as in Keras's example of a convolutional network on these posts.
MAX_WORDS, MAX_LENGTH = 20_000, 1000
# Mukhoti et al. split 19,997 posts into 15,098, 900 and 3,999; "bydate" has 11,314 posts for train and val.
POSTS, TEST_POSTS, VAL_POSTS, BYDATE_POSTS = 19_997, 3_999, 900, 11_314


def read_newsgroups(location: str, options: Options) -> RawDataset:
    """Posts as int32 [posts, length] of word numbers, labels by alphabetical order of the groups.

    Args:
        location: a folder or archive of "bydate" kind, with a folder whose name ends in "train" and one whose name ends
            in "test", each with group folders; or of group folders alone, then test and val are split off. The posts
            are files without suffix or .txt, in latin-1. "" has scikit-learn download "bydate" and keep it.
        options: max_length words, by default 1000, are kept from the start of each post. Length is that of the longest
            post left.

    Raises:
        InputError: nothing there, no posts, one group, a corrupt archive, an unusable layout.

    Source:
        Mukhoti et al., arXiv 2002.09437, App. C: 15,098 posts for training, 900 for validation, 3,999 for test. Where
        there are more or fewer posts, the same shares; of "bydate", with its own test split, 900 of 11,314 for
        validation.
    """
    if not location:
        return _fetched(options)
    source = sources.find("newsgroups", location)
    folder = sources.unpacked(source)
    names = [name for name in sources.list_files(folder) if PurePosixPath(name).suffix.lower() in SUFFIXES]
    texts = ((folder / name).read_bytes().decode("latin-1") for name in names)
    return _dataset([_plain_name(name) for name in names], texts, source.checksum, source.where, options)


def _fetched(options: Options) -> RawDataset:
    from sklearn.datasets import fetch_20newsgroups  # heavy, and only this data set needs it

    names, texts, digest = [], [], hashlib.sha256()
    mend = "fetch 20news-bydate.tar.gz by hand and give newsgroups:<path of the folder or archive>"
    for part in ("train", "test"):
        with sources.reading("newsgroups", mend):
            bunch = fetch_20newsgroups(subset=part, shuffle=False)
        for file, label, text in zip(bunch.filenames, bunch.target, bunch.data, strict=True):
            names.append(f"{part}/{bunch.target_names[label]}/{PurePosixPath(str(file)).name}")
            texts.append(text)
            digest.update(f"{names[-1]}\0{len(text)}\0{text}".encode())
    return _dataset(names, texts, digest.hexdigest(), "newsgroups", options)


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


def _plain_name(name: str) -> str:
    """The path with a folder such as 20news-bydate-train above a group folder renamed to train, -test to test."""
    parts = PurePosixPath(name).parts
    for ending in ("train", "test"):
        if len(parts) > 2 and parts[-3].lower().endswith(ending):
            return "/".join((ending, *parts[-2:]))
    return name


def _dataset(names: Sequence[str], texts: Iterable[str], checksum: str, where: str, options: Options) -> RawDataset:
    class_names, members = images.layout(names, where=where)
    vocabulary, ids = number_words(tokenise(text)[: options.max_length or MAX_LENGTH] for text in texts)
    x, splits = pad_texts(ids), {}
    for part, (rows, labels) in members.items():
        splits[part] = split = Split(x[rows], labels)
        if np.mean(split.x[:, 0] == 1) > 0.5:
            raise InputError(f"{where}: most posts of {part} have no words behind an empty line: fetch the posts again")
    return RawDataset(splits, class_names, checksum, vocabulary, _split_off(splits), MAX_WORDS)


def _split_off(splits: dict) -> Sizes:
    n = len(splits["train"].y)
    if "test" in splits:
        return Sizes(val=max(1, n * VAL_POSTS // BYDATE_POSTS))
    return Sizes(val=max(1, n * VAL_POSTS // POSTS), test=max(1, n * TEST_POSTS // POSTS))
