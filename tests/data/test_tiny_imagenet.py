"""Tiny ImageNet's own layout on small copies of it; the real archive when FOCALGEO_DATA names its folder."""

import time
import zipfile

import numpy as np
import pytest

import focalgeo.data.tiny_imagenet as tiny_imagenet
from focalgeo.data import load_dataset
from focalgeo.types import InputError

WNIDS = ("n02", "n01", "n03")


@pytest.fixture
def pictures():
    """Path below the root -> image; one of train and one of val are greyscale."""
    rng = np.random.default_rng(0)
    names = [f"train/{wnid}/images/{wnid}_{index}.JPEG" for wnid in WNIDS for index in range(10)]
    names += [f"val/images/val_{index}.JPEG" for index in range(6)]
    # flat, so that JPEG keeps them
    images = {name: np.full((8, 8, 3), rng.integers(256), np.uint8) for name in names}
    for name in (names[3], names[-1]):
        images[name] = images[name][..., 0]
    return images


@pytest.fixture
def files(pictures, images_on_disk):
    texts = {
        "wnids.txt": "".join(f"{wnid}\n" for wnid in WNIDS),
        "words.txt": "n00\tentity\nn01\tgoldfish, Carassius auratus\nn02\tbull frog\n",
        "val/val_annotations.txt": "".join(f"val_{i}.JPEG\t{WNIDS[i % 3]}\t0\t32\t44\t62\n" for i in range(6)),
        "train/n01/n01_boxes.txt": "n01_0.JPEG\t0\t10\t63\t58\n",
        "test/images/test_0.JPEG": "not read",
    }
    encoded = {name: images_on_disk.encoded(image, "JPEG") for name, image in pictures.items()}
    return {f"tiny-imagenet-200/{name}": data for name, data in encoded.items()} | {
        f"tiny-imagenet-200/{name}": text.encode() for name, text in texts.items()
    }


@pytest.fixture
def root(tmp_path, files, images_on_disk):
    return images_on_disk.write(tmp_path / "tiny", files)


def load(path, **options):
    return load_dataset(f"tiny_imagenet:{path}", **options)


def refused(path, **options):
    with pytest.raises(InputError) as caught:
        load(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_same(left, right):
    for one, other in zip(left[1:4], right[1:4], strict=True):
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.y, other.y)
    assert left.class_names == right.class_names


def test_images_and_classes_come_back(root, pictures):
    data = load(root)
    assert data.class_names == ("goldfish", "bull frog", "n03")
    assert [len(split.y) for split in (data.train, data.val, data.test)] == [27, 3, 6]
    assert data.train.x.shape[1:] == (8, 8, 3)
    assert data.train.x.dtype == np.uint8
    assert data.test.y.tolist() == [1, 0, 2] * 2
    labels = {wnid: label for label, wnid in enumerate(sorted(WNIDS))}
    seen = sorted((int(x[0, 0, 0]), int(y)) for split in data[1:3] for x, y in zip(*split, strict=True))
    expected = sorted((int(image.flat[0]), labels[n.split("/")[1]]) for n, image in pictures.items() if n[0] == "t")
    assert seen == expected
    for x, index in zip(data.test.x, range(6), strict=True):
        assert (x == pictures[f"val/images/val_{index}.JPEG"].flat[0]).all()


def test_archives_give_the_same(root, files, tmp_path, images_on_disk):
    whole = load(root)
    backwards = dict(reversed(files.items()))
    assert_same(whole, load(images_on_disk.tar(tmp_path / "tiny.tar.gz", backwards, "w:gz")))
    with zipfile.ZipFile(tmp_path / "tiny.zip", "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    assert_same(whole, load(tmp_path / "tiny.zip"))
    assert_same(whole, load(root / "tiny-imagenet-200"))


def test_second_load_decodes_nothing(root, monkeypatch):
    first = load(root)
    monkeypatch.setattr(tiny_imagenet, "decode_files", None)
    assert_same(first, load(root))


def test_image_size_resizes(root):
    assert load(root, image_size=4).test.x.shape == (6, 4, 4, 3)


def test_missing_says_what_to_fetch(tmp_path):
    message = refused(tmp_path / "gone")
    assert "tiny-imagenet-200.zip" in message
    assert "CS231n" in message


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ("train", "no images in train/<wnid>/images"),
        ("val/images", "no images in val/images"),
        ("val/val_annotations", "val_0.JPEG has no class"),
        ("train/n02", "val_0.JPEG has the class n02, which train has not"),
    ],
)
def test_other_layouts(tmp_path, files, images_on_disk, removed, message):
    left = {name: data for name, data in files.items() if not name.startswith(f"tiny-imagenet-200/{removed}")}
    assert message in refused(images_on_disk.write(tmp_path / "less", left))


def test_the_val_folder_alone_holds_no_training_images(root):
    assert "no images in" in refused(root / "tiny-imagenet-200/val")


def test_broken_image_is_named(root):
    (root / "tiny-imagenet-200/val/images/val_2.JPEG").write_bytes(b"no image")
    assert "val_2.JPEG is not a readable image" in refused(root)


@pytest.mark.long
def test_the_real_archive(tmp_path, real_archive):
    archive = real_archive("tiny-imagenet-200.tar.xz")
    name = f"tiny_imagenet:{archive}"
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        data = load_dataset(name, cache_dir=tmp_path)
        seconds.append(time.perf_counter() - start)
    print(f"decoded in {seconds[0]:.2f} s, from the cache in {seconds[1]:.2f} s")
    assert [split.x.shape for split in (data.train, data.val, data.test)] == [
        (n, 64, 64, 3) for n in (36_000, 4_000, 10_000)
    ]
    assert len(data.class_names) == 200
    assert data.class_names[0] == "goldfish"
    np.testing.assert_array_equal(np.bincount(np.concatenate([data.train.y, data.val.y])), [200] * 200)
    np.testing.assert_array_equal(np.bincount(data.test.y), [50] * 200)
