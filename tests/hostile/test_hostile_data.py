"""Random trees, archives, vectors and arguments: data sets come back right, or with one line that says why not."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from data.conftest import assert_same, write_archive, write_folder
from hostile.tables.data_sources import TREES, images
from hypothesis import given, settings
from hypothesis import strategies as st

from focalgeo.data import load_dataset, read_embeddings
from focalgeo.data.texts import MOST_LEAVES
from focalgeo.types import InputError

pytestmark = pytest.mark.long
ENDINGS = ("tar", "tar.gz", "tar.bz2", "tar.xz", "zip")


@pytest.fixture(autouse=True, scope="module")
def private_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def attempted(read, *arguments, **options):
    """What is read, or None where it is refused in one line."""
    try:
        return read(*arguments, **options)
    except InputError as error:
        message = str(error)
    assert "\n" not in message
    assert len(message) < 600
    return None


@settings(max_examples=60, deadline=None)
@given(text=st.text("()()()01234 5ab-\n\r\t\xa0\x00é", max_size=40), trees=st.lists(st.integers(1, 400), max_size=3))
def test_trees(text, trees):
    lines = [f"{'(1 (2 a) ' * (leaves - 1)}(3 b){')' * (leaves - 1)}" for leaves in trees]
    with tempfile.TemporaryDirectory() as folder:
        dev = "\n".join([*lines, text]).encode() + b"\n" + TREES["dev.txt"]
        data = attempted(load_dataset, f"sst:{write_folder(Path(folder), TREES | {'dev.txt': dev})}")
    if data is not None:
        assert max(trees, default=1) <= MOST_LEAVES
        assert ((data.val.y >= 0).sum(axis=1) == 1).all()
        assert (data.val.x[..., 0] < len(data.vocabulary)).all()
        assert (data.val.x[..., 1:] < data.val.x.shape[1]).all()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Ending -> an archive of the same images, and the data set that they make."""
    folder, files = tmp_path_factory.mktemp("whole"), images("train", "test", each=2)
    paths = {ending: write_archive(folder / f"x.{ending}", files) for ending in ENDINGS}
    return {ending: path.read_bytes() for ending, path in paths.items()}, load_dataset(f"folder:{paths['tar']}")


@settings(max_examples=100, deadline=None)
@given(
    ending=st.sampled_from(ENDINGS),
    changes=st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 255)), max_size=3),
    kept=st.just(1.0) | st.floats(0, 1),
    more=st.binary(max_size=20),
)
def test_archives(whole, ending, changes, kept, more):
    contents, expected = whole
    data = bytearray(contents[ending])
    for position, change in changes:
        data[position % len(data)] ^= change
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder), {f"x.{ending}": bytes(data[: round(kept * len(data))] + more)})
        found = attempted(load_dataset, f"folder:{folder}/x.{ending}")
    if found is not None:
        assert_same(found, expected)


@settings(max_examples=60, deadline=None)
@given(st.text("beecat 0123.-enaif\n\r\t\x00é", max_size=60))
def test_vectors(text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "vectors.txt")
        path.write_text(text, encoding="utf-8", newline="")
        table = attempted(read_embeddings, path, ("", "<unk>", "bee", "cat"))
    assert table is None or (len(table) == 4 and np.isfinite(table).all())


SIZES = ("val_size", "test_size", "train_size", "image_size", "max_words", "max_length")


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["digits", "clusters:0.5"]) | st.text(":~/\x00\udcffabclusters0e9-.", max_size=20),
    options=st.dictionaries(st.sampled_from(SIZES), st.none() | st.integers(-2, 2000), max_size=3),
)
def test_arguments(name, options):
    data = attempted(load_dataset, name, **options)
    for part in ("train", "val", "test") if data else ():
        size = options.get(f"{part}_size")
        assert size is None or len(getattr(data, part).y) == size
