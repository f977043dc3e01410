"""Images from folders and archives, decoded once: pixels, order, layouts, and what cannot be read."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from data.conftest import assert_same, encoded, write_archive, write_folder
from PIL import Image

from focalgeo.data import images, load_dataset, sources


def load(path, **options):
    return load_dataset(f"folder:{path}", **options)


def by_pixels(*splits):
    return sorted((x.tobytes(), int(y)) for split in splits for x, y in zip(*split, strict=True))


def test_pixels_and_labels_come_back(folder, pixels):
    data = load(folder)
    assert data.class_names == ("bee", "cat")
    assert [len(s.y) for s in (data.train, data.val, data.test)] == [18, 2, 6]
    assert (data.train.x.dtype, data.train.y.dtype) == (np.uint8, np.int32)
    labels = {"bee": 0, "cat": 1}
    for part, splits in {"train": (data.train, data.val), "test": (data.test,)}.items():
        expected = [(x.tobytes(), labels[n.split("/")[1]]) for n, x in pixels.items() if n.startswith(part)]
        assert by_pixels(*splits) == sorted(expected)
    np.testing.assert_array_equal(data.test.x, [pixels[n] for n in sorted(pixels) if n.startswith("test")])


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tar.bz2", "tar.xz", "zip"])
def test_archive_and_folder_give_the_same(folder, files, private_cache, ending):
    backwards = {f"outer/{name}": files[name] for name in sorted(files, reverse=True)} | {"outer/.DS_Store": b""}
    path = write_archive(f"packed.{ending}", backwards)
    assert_same(load(folder), load(path))
    assert len(list(private_cache.glob("unpacked-*"))) == 1
    assert_same(load(folder), load(path))


def test_a_checksum_is_that_of_the_content(folder, files):
    first = load(folder).checksum
    whole = b"".join(f"{name}\0{len(data)}\0".encode() + data for name, data in sorted(files.items()))
    assert first == hashlib.sha256(whole).hexdigest()
    shutil.copytree(folder, "copy")
    Path("copy/.hidden").write_text("x")
    assert load("copy").checksum == first == load(folder, val_size=3, image_size=4).checksum
    last = Path("copy/train/cat/09.png")
    last.rename(last.with_name("099.png"))  # the order of the files stays
    assert load("copy").checksum != first


def test_a_second_load_decodes_nothing_and_changed_content_is_decoded(folder, monkeypatch):
    first = load(folder)
    with monkeypatch.context() as patched:
        patched.setattr(images, "decode_files", None)
        assert_same(first, load(folder))
    shutil.copy(folder / "train/cat/00.png", folder / "train/cat/01.png")
    assert (load(folder).train.x != first.train.x).any()


def test_processes_that_start_at_once_unpack_and_decode_once(files, private_cache):
    path = write_archive("x.tar", files)
    program = (
        "import sys, time\nfrom focalgeo.data import images, load_dataset\n"
        "decode = images.decode_files\n"
        "images.decode_files = lambda *a, **k: print('decoded') or time.sleep(1) or decode(*a, **k)\n"
        f"print(load_dataset('folder:{path}').train.x.sum())"
    )
    command = [sys.executable, "-c", program]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    lines = sorted(line for process in running for line in process.communicate()[0].split())
    assert lines.count("decoded") == 1
    assert len({*lines}) == 2
    assert sorted(name for name in os.listdir(private_cache) if name[0] != ".") == sorted(
        name[1:].removesuffix(".lock") for name in os.listdir(private_cache) if name[0] == "."
    )


def test_own_val_folder_and_no_test_folder(folder):
    whole = load(folder / "train")
    assert [len(s.y) for s in whole[1:4]] == [12, 4, 4]
    assert len(set(by_pixels(*whole[1:4]))) == 20
    (folder / "test").rename(folder / "val")
    assert [len(s.y) for s in load(folder)[1:4]] == [16, 6, 4]


def test_a_class_may_be_called_train():
    files = {f"{name}/{i}.png": encoded(np.full((2, 2, 3), i, np.uint8)) for name in ("bus", "train") for i in range(4)}
    assert load(write_folder("f", files)).class_names == ("bus", "train")


def test_greyscale_palette_and_transparency_become_rgb():
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    for index, mode in enumerate(("L", "LA", "P", "RGBA")):
        for name in "ab":
            Path(name).mkdir(exist_ok=True)
            options = {"transparency": bytes(range(256))} if mode == "P" else {}
            Image.fromarray(grey).convert(mode).save(f"{name}/{index}.png", **options)
    for split in load(".")[1:4]:
        np.testing.assert_array_equal(split.x, np.broadcast_to(grey[..., None], (len(split.x), 8, 8, 3)))


def test_image_size_resizes(folder, refused):
    odd = np.full((12, 9, 3), 77, np.uint8)
    write_folder(folder, {"test/cat/09.png": encoded(odd)})
    message = refused(f"folder:{folder}")
    assert "test/cat/09.png is (12, 9)" in message
    assert "image_size" in message
    data = load(folder, image_size=4)
    assert data.train.x.shape == (18, 4, 4, 3)
    assert (data.test.x[-1] == 77).all()


LAYOUTS = {  # what is added, or moved -> what is said
    "no train": ("train", "val", "give two classes or more in train"),
    "beside the splits": ("train/cat/00.png", "valid/cat/00.png", "valid/cat/00.png lies elsewhere"),
    "a class of test alone": ("test/cat", "test/dog", "test/dog, train/bee, train/cat: give two classes"),
    "another format": ("train/cat/00.png", "train/cat/00.ico", "of a format that is not read"),
}


@pytest.mark.parametrize(("old", "new", "says"), LAYOUTS.values(), ids=LAYOUTS)
def test_layouts_that_would_lose_examples_are_refused(folder, refused, old, new, says):
    (folder / new).parent.mkdir(parents=True, exist_ok=True)
    (folder / old).rename(folder / new)
    assert says in refused(f"folder:{folder}")


def test_what_is_not_there_or_holds_too_little(folder, refused):
    for name in ("nothing", "", "a" * 5000, "x\0"):
        assert "relative to" in refused(f"folder:{name}")
    Path("empty/train/cat").mkdir(parents=True)
    assert "holds no examples" in refused("folder:empty")
    shutil.rmtree(folder / "train/cat")
    assert "has train/bee: give two classes" in refused(f"folder:{folder}/train")


def test_what_is_no_file_is_not_waited_for(folder, refused):
    path = folder / "train/cat/00.png"
    path.unlink()
    for make in (os.mkfifo, lambda path: path.symlink_to("gone")):
        make(path)
        assert "00.png" in refused(f"folder:{folder}")
        path.unlink()
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert "no file of at most 1 GiB" in refused(f"folder:{folder}")
    path.unlink()
    (folder / "train/cat/loop").symlink_to(folder.absolute())
    assert "reached twice through links" in refused(f"folder:{folder}")


def test_broken_images_and_those_of_16_bits_are_named(folder, refused):
    path = folder / "train/cat/03.png"
    path.write_bytes(path.read_bytes()[:60])
    assert "train/cat/03.png cannot be read" in refused(f"folder:{folder}")
    Image.fromarray(np.full((6, 5), 4000, np.uint16)).save(path)
    assert "train/cat/03.png cannot be read" in refused(f"folder:{folder}")


def test_a_tar_cut_between_two_members_or_with_a_broken_header_is_refused(files, refused):
    path = write_archive("x.tar", {name: data.ljust(512, b"\0") for name, data in files.items()})
    whole = path.read_bytes()
    for damaged in (whole[: 1024 * 24], whole[: 1024 * 24] + b"x" + whole[1024 * 24 + 1 :]):
        path.write_bytes(damaged)
        assert "it is cut short, or has an unreadable header" in refused(f"folder:{path}")


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("train/../../../0.png", {}, "cannot be read"),
        ("train/cat/0.png", {"type": b"2", "linkname": "/etc/passwd", "size": 0}, "link or a device"),
        ("train/cat/0.png", {"size": 1 << 40}, "unpacks to more than 200 times its own size"),
    ],
)
def test_nothing_is_written_outside_the_cache(files, refused, private_cache, name, changes, says):
    path = write_archive("x.tar", {name: b""} | files, **changes)
    assert says in refused(f"folder:{path}")
    assert not list(private_cache.glob("unpacked*"))


def test_a_zip_bomb_and_a_zip_with_a_password_are_refused(files, refused):
    path = write_archive("x.zip", files)
    whole = bytearray(path.read_bytes())
    at = whole.index(b"PK\x01\x02")
    path.write_bytes(whole[: at + 24] + b"\xfe\xff\xff\xff" + whole[at + 28 :])
    assert "unpacks to more than" in refused(f"folder:{path}")
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        whole[whole.index(mark) + offset] |= 1
    path.write_bytes(whole)
    assert "encrypted" in refused(f"folder:{path}")


def test_a_cache_that_cannot_be_written_is_one_line(folder, monkeypatch, refused, private_cache):
    Path("file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", os.path.abspath("file"))
    assert "XDG_CACHE_HOME" in refused(f"folder:{folder}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(private_cache.parent))

    def full(path, **arrays):
        path.write_bytes(b"part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sources.np, "savez", full)
    assert "No space left" in refused(f"folder:{folder}")
    assert not [name for name in os.listdir(private_cache) if not name.endswith(".lock")]


WNIDS = ("n02", "n01", "n03")


@pytest.fixture
def tiny():
    """Path below tiny-imagenet-200 -> content; images are flat, so that JPEG keeps them, and two are greyscale."""
    names = [f"train/{wnid}/images/{wnid}_{index}.JPEG" for wnid in WNIDS for index in range(10)]
    names += [f"val/images/val_{index}.JPEG" for index in range(6)]
    shapes = {3: (8, 8), 35: (8, 8)}
    files = {
        name: encoded(np.full(shapes.get(at, (8, 8, 3)), 5 * at, np.uint8), "JPEG") for at, name in enumerate(names)
    }
    texts = {
        "words.txt": "n00\tentity\nn01\tgoldfish, Carassius auratus\nn02\tbull frog\n",
        "val/val_annotations.txt": "".join(f"val_{i}.JPEG\t{WNIDS[i % 3]}\t0\t32\t44\t62\n" for i in range(6)),
        "train/n01/n01_boxes.txt": "n01_0.JPEG\t0\t10\t63\t58\n",
        "test/images/test_0.JPEG": "not read",
    }
    return files | {name: text.encode() for name, text in texts.items()}


def test_tiny_imagenet(tiny):
    root = write_folder("outer/tiny-imagenet-200", tiny)
    data = load_dataset("tiny_imagenet:outer")
    assert data.class_names == ("goldfish", "bull frog", "n03")
    assert [split.x.shape for split in (data.train, data.val, data.test)] == [(n, 8, 8, 3) for n in (27, 3, 6)]
    assert data.test.y.tolist() == [1, 0, 2] * 2
    assert [int(x.max()) for x in data.test.x] == [5 * at for at in range(30, 36)]
    seen = sorted((int(x[0, 0, 0]), int(y)) for split in data[1:3] for x, y in zip(*split, strict=True))
    assert seen == [(5 * at, (1, 0, 2)[at // 10]) for at in range(30)]
    for source in (root, write_archive("x.zip", tiny)):
        assert_same(data, load_dataset(f"tiny_imagenet:{source}"))
    assert load_dataset(f"tiny_imagenet:{root}", image_size=4).test.x.shape == (6, 4, 4, 3)


@pytest.mark.parametrize(
    ("removed", "says"),
    [
        ("train/", "is not there, or has no class of train's"),
        ("val/images/val_3", "val_3.JPEG is not there"),
        ("val/val_annotations", "holds 0 files val/val_annotations.txt"),
    ],
)
def test_tiny_imagenet_with_something_missing(tiny, refused, removed, says):
    rest = {name: data for name, data in tiny.items() if not name.startswith(removed)}
    assert says in refused(f"tiny_imagenet:{write_folder('less', rest)}")


@pytest.mark.long
def test_the_real_cifar10(real_archive):
    data = load(real_archive("cifar10-jpeg.tar.xz"))
    assert [split.x.shape for split in data[1:4]] == [(n, 32, 32, 3) for n in (45_000, 5_000, 10_000)]
    assert np.bincount(data.test.y).tolist() == [1000] * 10
    # sorted by class, 5000 each: the papers' first validation indices fall into these
    assert data.val.y[:5].tolist() == [index // 5000 for index in (26247, 35067, 34590, 16668, 12196)]
