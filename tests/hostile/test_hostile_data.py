"""Random folders, trees, archives and arguments: data sets come back right, or with one line that says why not."""

import functools
import os
import re
import tempfile
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from hostile.cases import tree
from hostile.tables.data_sources import TREES, animation, archived, images, picture, tar, write
from hypothesis import given, settings
from hypothesis import strategies as st

from focalgeo.data import load_dataset, read_embeddings
from focalgeo.data.treebank import MOST_LEAVES
from focalgeo.types import Dataset, InputError

pytestmark = pytest.mark.long

FOLDERS = ("train", "val", "test", "Train", "dev", "test-images", "bee", "cat", "x y", "é", ".git", "__MACOSX")
KINDS = (
    "image",
    "image",
    "image",
    "jpeg",
    "text",
    "junk",
    "empty",
    "large",
    "animated",
    "pipe",
    "link",
    "folder",
    "heic",
)
ENDINGS = {"jpeg": "jpg", "text": "txt", "animated": "gif", "heic": "heic"}
ENTRY = st.tuples(st.lists(st.sampled_from(FOLDERS), max_size=4), st.sampled_from(KINDS))
# mostly whole layouts, so that some are read
LAYOUT = st.lists(
    st.sampled_from(["", "train", "test", "val", "x y/train", "Test"]), min_size=1, max_size=3, unique=True
)


def refused(error: InputError) -> None:
    assert len(str(error).splitlines()) == 1
    assert len(str(error)) < 600


def loaded(name: str, folder: Path, **options) -> Dataset | None:
    """The data set, or None where it is refused in one line; the input is as it was."""
    before = tree(folder)
    try:
        found = load_dataset(name, cache_dir=folder.parent / "cache", **options)
    except InputError as error:
        found = refused(error)
    assert tree(folder) == before
    return found


def put(path: Path, kind: str, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(("gone", "../..", path.parent)[value % 3])
    elif kind == "folder":
        path.mkdir()
    else:
        contents = {"junk": b"\x89PNG\r\n", "empty": b"", "large": picture(value, (5, 5)), "animated": animation("GIF")}
        image_format = "JPEG" if kind == "jpeg" else "PNG"
        whole = picture(value, image_format=image_format)
        path.write_bytes(contents.get(kind, whole))


def in_role(path: PurePosixPath) -> str:
    return next((part for part in reversed(path.parts[:-2]) if part in ("train", "val", "test")), "train")


@settings(max_examples=60, deadline=None)
@given(parents=LAYOUT, entries=st.lists(ENTRY, max_size=3))
def test_folders(parents, entries):
    with tempfile.TemporaryDirectory() as temporary:
        folder = write(Path(temporary, "source"), images(*parents))
        for number, (parts, kind) in enumerate(entries):
            path = folder.joinpath(*parts, f"new{number}.{ENDINGS.get(kind, 'png')}")
            try:
                put(path, kind, 200 + number)
            except (NotADirectoryError, FileExistsError):
                continue  # what should be a folder is a file already
        data = loaded(f"folder:{folder}", folder)
        if data is None:
            return
        files = [name for name, content in tree(folder).items() if content != "folder"]
        found = [PurePosixPath(name) for name in files if re.search(r"\.(png|jpg)$", name)]
        found = [path for path in found if not re.search(r"(^|/)(\.|__MACOSX)", str(path))]
        splits = (data.train, data.val, data.test)
        assert sum(len(split.y) for split in splits) == len(found)
        class_of = {picture_value(folder / path): (path.parts[-2], in_role(path)) for path in found}
        for part, split in zip(("train", "val", "test"), splits, strict=True):
            for x, y in zip(*split, strict=True):
                name, role = class_of[int(x[0, 0, 0])]
                assert data.class_names[y] == name
                assert role in ("train", part)


def picture_value(path: Path) -> int:
    from PIL import Image

    with Image.open(path) as image:
        return int(np.asarray(image)[0, 0, 0])


@settings(max_examples=80, deadline=None)
@given(text=st.text("()()()01234 5ab-\n\r\t\xa0\x00é", max_size=40), trees=st.lists(st.integers(1, 400), max_size=3))
def test_trees(text, trees):
    lines = [f"{'(1 (2 a) ' * (leaves - 1)}(3 b){')' * (leaves - 1)}" for leaves in trees]
    with tempfile.TemporaryDirectory() as temporary:
        dev = "\n".join([*lines, text]).encode() + b"\n" + TREES["dev.txt"]
        folder = write(Path(temporary, "source"), {**TREES, "dev.txt": dev})
        data = loaded(f"sst:{folder}", folder)
        if data is not None:
            assert max(trees, default=1) <= MOST_LEAVES
            assert data.val.x.shape[1] == data.train.x.shape[1]
            assert ((data.val.y >= 0).sum(axis=1) == 1).all()
            assert (data.val.x[..., 0] < len(data.vocabulary)).all()
            assert (data.val.x[..., 1:] < data.val.x.shape[1]).all()


@functools.cache
def whole() -> tuple[dict[str, bytes], Dataset]:
    """Ending -> an archive of the same images, and the data set that they make."""
    files = images("train", "test", each=2)
    modes = {"tar": "w", "tar.gz": "w:gz", "tar.bz2": "w:bz2", "tar.xz": "w:xz"}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        paths = {ending: tar(folder / f"x.{ending}", files, mode) for ending, mode in modes.items()}
        paths["zip"] = archived(folder / "x.zip", files, 8)
        data = load_dataset(f"folder:{paths['tar']}", cache_dir=folder / "cache")
        return {ending: path.read_bytes() for ending, path in paths.items()}, data


CHANGES = st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 255)), max_size=3)


@settings(max_examples=150, deadline=None)
@given(
    ending=st.sampled_from(["tar", "tar.gz", "tar.bz2", "tar.xz", "zip"]),
    changes=CHANGES,
    kept=st.one_of(st.just(1.0), st.floats(0, 1)),
    more=st.binary(max_size=20),
)
def test_archives(ending, changes, kept, more):
    contents, expected = whole()
    data = bytearray(contents[ending])
    for position, change in changes:
        data[position % len(data)] ^= change
    data = data[: round(kept * len(data))] + more
    with tempfile.TemporaryDirectory() as temporary:
        folder = write(Path(temporary, "source"), {f"x.{ending}": bytes(data)})
        found = loaded(f"folder:{folder / f'x.{ending}'}", folder)
    if found is not None:
        assert found.class_names == expected.class_names
        for one, other in zip(found[1:4], expected[1:4], strict=True):
            np.testing.assert_array_equal(one.x, other.x)
            np.testing.assert_array_equal(one.y, other.y)


@settings(max_examples=100, deadline=None)
@given(st.text("beecat 0123.-enaif\n\r\t\x00é", max_size=60))
def test_vectors(text):
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary, "vectors.txt")
        path.write_text(text, encoding="utf-8", newline="")
        try:
            table = read_embeddings(path, ("", "<unk>", "bee", "cat"))
        except InputError as error:
            refused(error)
        else:
            assert table.shape[0] == 4
            assert np.isfinite(table).all()


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.integers(-2, 2000), st.floats(), st.text(max_size=3))
OPTIONS = ("split_seed", "val_size", "test_size", "train_size", "image_size", "max_words", "max_length")


@settings(max_examples=60, deadline=None)
@given(
    name=st.one_of(
        st.sampled_from(["digits", "clusters:0.5"]), SCALARS, st.text(":~/\x00\udcffabclusters0e9-.", max_size=20)
    ),
    options=st.dictionaries(st.sampled_from(OPTIONS), SCALARS, max_size=3),
)
def test_arguments(name, options):
    try:
        data = load_dataset(name, **options)
    except InputError as error:
        refused(error)
    else:
        for part in ("train", "val", "test"):
            asked = options.get(f"{part}_size")
            assert asked is None or len(getattr(data, part).y) == asked
