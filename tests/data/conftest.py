"""Small image folders, archives and a cache of their own for the data tests."""

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from focalgeo.data import load_dataset
from focalgeo.types import InputError


def encoded(image, image_format="PNG"):
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, image_format)
    return stream.getvalue()


def write_folder(path, files):
    path = Path(path)
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def write_archive(path, files, **changes):
    """A tar or zip archive by its ending; the first member of a tar gets other header fields."""
    path = Path(path)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        return path
    mode = {".gz": "w:gz", ".bz2": "w:bz2", ".xz": "w:xz"}.get(path.suffix, "w")
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            for field, value in changes.items():
                setattr(member, field, value)
            if changes:  # a header alone, which `addfile` refuses from Python 3.14 on
                archive.offset += archive.fileobj.write(member.tobuf())
            else:
                archive.addfile(member, io.BytesIO(data))
            changes = {}
    return path


@pytest.fixture(autouse=True)
def private_cache(tmp_path, tmp_path_factory, monkeypatch):
    """An empty cache, and an empty folder in which the test runs."""
    monkeypatch.chdir(tmp_path)
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache / "focalgeo"


@pytest.fixture
def refused():
    """The one line that answers a data set."""

    def message(name, **options):
        with pytest.raises(InputError) as caught:
            load_dataset(name, **options)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return message


@pytest.fixture
def pixels():
    """Relative path -> image: train 2 classes of 10, test 2 of 3."""
    rng = np.random.default_rng(0)
    sizes = {"train": 10, "test": 3}
    return {
        f"{part}/{name}/{index:02d}.png": rng.integers(0, 256, (6, 5, 3), dtype=np.uint8)
        for part, size in sizes.items()
        for name in ("cat", "bee")
        for index in range(size)
    }


@pytest.fixture
def files(pixels):
    return {name: encoded(image) for name, image in pixels.items()}


@pytest.fixture
def folder(files):
    """The images of `pixels` as a folder."""
    return write_folder(Path("images"), files)


def assert_same(left, right):
    for one, other in zip(left[1:4], right[1:4], strict=True):
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.y, other.y)
    assert left.class_names == right.class_names
    assert left.vocabulary == right.vocabulary
