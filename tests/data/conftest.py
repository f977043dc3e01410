"""Small image folders, archives and caches of their own for the data tests."""

import io
import subprocess
import tarfile

import numpy as np
import pytest
from PIL import Image


def encoded(image, image_format="PNG"):
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, image_format)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "focalgeo"


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
def folder(tmp_path, pixels):
    """The images of `pixels` as a folder."""
    return write_folder(tmp_path / "images", {name: encoded(image) for name, image in pixels.items()})


@pytest.fixture
def archive(tmp_path, folder):
    """The same as an .tar.xz, packed by tar in an order of its own."""
    path = tmp_path / "images.tar.xz"
    subprocess.run(["tar", "-cJf", path, "-C", folder, "train", "test"], check=True)
    return path


def write_folder(path, files):
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def write_tar(path, files, mode="w"):
    with tarfile.open(path, mode) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


@pytest.fixture
def images_on_disk():
    """write(path, {name: bytes}) for folders, tar(path, {name: bytes}, mode) for archives, encoded(image, format)."""

    class Writers:
        write = staticmethod(write_folder)
        tar = staticmethod(write_tar)
        encoded = staticmethod(encoded)

    return Writers
