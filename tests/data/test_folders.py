"""Class folders and archives: layouts, pixels, order, and everything that can be wrong with them."""

import errno
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from focalgeo.data import folders, images, load_dataset
from focalgeo.data.archives import list_files
from focalgeo.data.images import FILES_PER_TASK
from focalgeo.types import InputError


def load(path, **options):
    return load_dataset(f"folder:{path}", **options)


def by_pixels(*splits):
    return sorted((x.tobytes(), int(y)) for split in splits for x, y in zip(*split, strict=True))


def assert_same(left, right):
    for one, other in zip(left[1:4], right[1:4], strict=True):
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.y, other.y)
    assert left.class_names == right.class_names


def assert_refused(path, *words, **options):
    with pytest.raises(InputError) as caught:
        load(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_pixels_and_labels_come_back(folder, pixels):
    data = load(folder)
    assert data.class_names == ("bee", "cat")
    assert [len(s.y) for s in (data.train, data.val, data.test)] == [18, 2, 6]
    assert data.train.x.dtype == np.uint8
    assert data.train.y.dtype == np.int32
    labels = {"bee": 0, "cat": 1}
    for part, splits in {"train": (data.train, data.val), "test": (data.test,)}.items():
        expected = [(x.tobytes(), labels[n.split("/")[1]]) for n, x in pixels.items() if n.startswith(part)]
        assert by_pixels(*splits) == sorted(expected)
    np.testing.assert_array_equal(data.test.x, [pixels[n] for n in sorted(pixels) if n.startswith("test")])


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tgz", "tar.bz2", "tar.xz"])
def test_archive_and_folder_give_the_same(folder, pixels, tmp_path, images_on_disk, ending):
    files = {f"./{name}": images_on_disk.encoded(pixels[name]) for name in sorted(pixels, reverse=True)}
    mode = {"tar": "w", "tar.gz": "w:gz", "tgz": "w:gz", "tar.bz2": "w:bz2", "tar.xz": "w:xz"}[ending]
    assert_same(load(folder), load(images_on_disk.tar(tmp_path / f"packed.{ending}", files, mode)))


def test_zip_archive_gives_the_same(folder, tmp_path):
    path = shutil.make_archive(str(tmp_path / "packed"), "zip", folder)
    assert_same(load(folder), load(path))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.97])
def test_truncated_zip_archives(folder, tmp_path, share):
    path = Path(shutil.make_archive(str(tmp_path / "packed"), "zip", folder))
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert_refused(path, str(path), "corrupt or cut short")


def test_damage_links_and_passwords_in_a_zip_archive(folder, tmp_path):
    path = Path(shutil.make_archive(str(tmp_path / "packed"), "zip", folder))
    whole = path.read_bytes()
    at = whole.index(b"00.png") + 40  # in the packed bytes of the first image
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert_refused(path, "corrupt or cut short")
    link = zipfile.ZipInfo("train/cat/linked.png")
    link.external_attr = 0o120777 << 16
    path.write_bytes(whole)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(link, "00.png")
    assert_refused(path, "train/cat/linked.png is a link")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train/cat/00.png", b"secret")
    locked = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        locked[locked.index(mark) + offset] |= 1
    path.write_bytes(locked)
    assert_refused(path, "train/cat/00.png is encrypted")


def test_packed_by_tar(folder, archive):
    assert_same(load(folder), load(archive))


def test_outer_folder_hidden_and_other_files_are_passed_over(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "outer" / "deeper")
    (tmp_path / "outer/deeper/train/cat/.DS_Store.png").write_bytes(b"no image")
    (tmp_path / "outer/deeper/README.txt").write_text("no image")
    (tmp_path / "outer/deeper/.git").mkdir()
    assert_same(load(folder), load(tmp_path / "outer"))


def test_own_val_folder(folder):
    for name in ("cat", "bee"):
        (folder / "val" / name).mkdir(parents=True)
        (folder / "train" / name / "00.png").rename(folder / "val" / name / "00.png")
    data = load(folder)
    assert [len(s.y) for s in (data.train, data.val, data.test)] == [18, 2, 6]
    assert data.val.y.tolist() == [0, 1]


def test_single_level_splits_test_off(folder):
    data = load(folder / "train")
    assert [len(s.y) for s in (data.train, data.val, data.test)] == [12, 4, 4]
    assert len(set(by_pixels(*(data.train, data.val, data.test)))) == 20


def test_greyscale_palette_and_transparency_become_rgb(tmp_path):
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    picture = Image.fromarray(grey)
    for index, mode in enumerate(("L", "LA", "P", "RGBA", "1")):
        for name in ("a", "b"):
            (tmp_path / name).mkdir(exist_ok=True)
            options = {"transparency": bytes(range(256))} if mode == "P" else {}
            picture.convert(mode).save(tmp_path / name / f"{index}.png", **options)
    data = load(tmp_path, val_size=2, test_size=2)
    images = np.concatenate([s.x for s in (data.train, data.val, data.test)])
    assert images.shape == (10, 8, 8, 3)
    assert sum((image == grey[..., None]).all() for image in images) == 8


def test_image_size_resizes(folder, images_on_disk):
    odd = np.full((12, 9, 3), 77, np.uint8)
    images_on_disk.write(folder, {"test/cat/09.png": images_on_disk.encoded(odd)})
    assert_refused(folder, "test/cat/09.png is 12x9x3", "6x5x3", "image_size")
    data = load(folder, image_size=4)
    assert data.train.x.shape == (18, 4, 4, 3)
    assert (data.test.x[-1] == 77).all()


def test_different_sizes_far_apart_are_seen(tmp_path, images_on_disk):
    small, large = (images_on_disk.encoded(np.zeros((n, n, 3), np.uint8)) for n in (2, 3))
    files = {f"a/{i:03d}.png": small for i in range(FILES_PER_TASK)} | {f"b/{i}.png": large for i in range(5)}
    assert_refused(images_on_disk.write(tmp_path / "f", files), "a/000.png is 2x2x3", "b/0.png is 3x3x3")


def test_tilde_and_relative_paths(folder, monkeypatch):
    whole = load(folder)
    monkeypatch.setenv("HOME", str(folder.parent))
    assert_same(whole, load("~/images"))
    monkeypatch.chdir(folder.parent)
    assert_same(whole, load("images"))


def test_checksum_is_of_the_content(folder, archive, tmp_path, images_on_disk):
    first = load(folder).checksum
    shutil.copytree(folder, tmp_path / "copy")
    assert load(tmp_path / "copy").checksum == first == load(folder, val_size=3, image_size=4).checksum
    last = tmp_path / "copy/train/cat/09.png"
    last.rename(last.with_name("099.png"))  # the order of the files stays
    assert load(tmp_path / "copy").checksum != first
    assert len(load(archive).checksum) == 64


def test_missing(tmp_path):
    assert_refused(tmp_path / "nothing", "no such folder or archive")
    assert_refused("", "no such folder or archive")


def test_empty(tmp_path, images_on_disk):
    (tmp_path / "empty/train/cat").mkdir(parents=True)
    assert_refused(tmp_path / "empty", "holds no images")
    assert_refused(images_on_disk.tar(tmp_path / "empty.tar", {}), "holds no images")


def test_one_class(folder):
    shutil.rmtree(folder / "train/cat")
    shutil.rmtree(folder / "test/cat")
    assert_refused(folder, "one class, bee")
    assert_refused(folder / "train", "one class, bee")


def test_broken_images_are_named(folder):
    whole = (folder / "train/cat/03.png").read_bytes()
    for damaged in (b"", b"no image at all", whole[: len(whole) // 2], whole[:20] + b"\xff\xff\xff" + whole[23:]):
        (folder / "train/cat/03.png").write_bytes(damaged)
        assert_refused(folder, "train/cat/03.png is not a readable image")


def test_truncated_jpeg_is_named(folder, images_on_disk):
    noise = np.random.default_rng(0).integers(0, 256, (6, 5, 3), dtype=np.uint8)
    jpeg = images_on_disk.encoded(noise, "JPEG")
    (folder / "test/bee/07.jpg").write_bytes(jpeg[:-20])
    assert_refused(folder, "test/bee/07.jpg is not a readable image")


def test_sixteen_bits_are_refused(folder):
    Image.fromarray(np.full((6, 5), 4000, np.uint16)).save(folder / "train/cat/05.png")
    assert_refused(folder, "train/cat/05.png", "8 bits")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("valid/cat/00.png", ("valid/cat/00.png stands beside train, val and test",)),
        ("train/00.png", ("train/00.png is in no class folder",)),
        ("00.png", ("00.png stands beside",)),
        ("test/dog/00.png", ("test has the class dog, which train has not",)),
    ],
)
def test_unusable_layouts(folder, name, words):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(folder / "train/cat/00.png", folder / name)
    assert_refused(folder, *words)


def test_no_train_folder(folder):
    (folder / "train").rename(folder / "val")
    assert_refused(folder, "no train folder")


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tar.bz2", "tar.xz"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.97])
def test_truncated_archives(tmp_path, pixels, images_on_disk, ending, share):
    files = {name: images_on_disk.encoded(image) for name, image in pixels.items()}
    mode = "w:" + ending.removeprefix("tar").removeprefix(".")
    path = images_on_disk.tar(tmp_path / f"packed.{ending}", files, mode)
    whole = path.read_bytes().rstrip(b"\0") if ending == "tar" else path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    assert_refused(path, str(path), "corrupt or cut short")


def test_archive_cut_between_members_or_with_a_broken_header(tmp_path, pixels, images_on_disk):
    files = {name: images_on_disk.encoded(image).ljust(512, b"\0") for name, image in pixels.items()}
    path = images_on_disk.tar(tmp_path / "packed.tar", files)
    whole = path.read_bytes()
    path.write_bytes(whole[: 1024 * 24])
    assert_refused(path, "corrupt or cut short", "no end mark")
    path.write_bytes(whole[: 1024 * 24] + b"x" + whole[1024 * 24 + 1 :])
    assert_refused(path, "corrupt or cut short", "unreadable header")


def test_damage_inside_a_compressed_archive(archive):
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 1
    archive.write_bytes(data)
    assert_refused(archive, "corrupt or cut short")


def test_other_files_are_no_archives(tmp_path, images_on_disk):
    (tmp_path / "data.rar").write_bytes(b"Rar!")
    assert_refused(tmp_path / "data.rar", "neither a folder nor an archive", ".tar.xz", ".zip")
    (tmp_path / "data.tar.xz").write_bytes(b"not xz")
    assert_refused(tmp_path / "data.tar.xz", "corrupt")


def test_links_and_doubles_in_an_archive_are_refused(tmp_path, folder, images_on_disk):
    os.link(folder / "train/cat/00.png", folder / "train/cat/linked.png")
    shutil.make_archive(str(tmp_path / "linked"), "tar", folder)
    assert_refused(tmp_path / "linked.tar", "is a link")
    image = images_on_disk.encoded(np.zeros((2, 2, 3), np.uint8))
    files = {"a/1.png": image, "./a/1.png": image, "b/1.png": image}
    assert_refused(images_on_disk.tar(tmp_path / "double.tar", files), "a/1.png twice")


def test_folder_that_cannot_be_listed_is_not_taken_for_empty(tmp_path):
    with pytest.raises(FileNotFoundError):
        list_files(tmp_path / "gone")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_folder(folder):
    (folder / "train/cat").chmod(0)
    try:
        assert_refused(folder, "cannot be read")
    finally:
        (folder / "train/cat").chmod(0o700)


def test_a_link_to_nothing_is_named(folder):
    (folder / "train/cat/00.png").unlink()
    (folder / "train/cat/00.png").symlink_to(folder / "gone.png")
    assert_refused(folder, "00.png is a link to", "gone.png, where nothing is")


def test_a_class_may_be_called_train(tmp_path, images_on_disk):
    files = {
        f"{name}/{i}.png": images_on_disk.encoded(np.full((2, 2, 3), i, np.uint8))
        for name in ("bus", "train")
        for i in range(4)
    }
    assert load(images_on_disk.write(tmp_path / "f", files)).class_names == ("bus", "train")


def test_only_train_is_split(folder):
    whole = load(folder / "train")
    shutil.rmtree(folder / "test")
    assert_same(load(folder), whole)


def test_links_to_folders_and_files_are_followed(folder, tmp_path):
    whole = load(folder)
    (folder / "train/cat").rename(tmp_path / "cats")
    (folder / "train/cat").symlink_to(tmp_path / "cats")
    (tmp_path / "outer").mkdir()
    (tmp_path / "outer/test").symlink_to(folder / "test")
    (tmp_path / "outer/train").symlink_to(folder / "train")
    assert_same(load(tmp_path / "outer"), whole)


def test_pipes_and_loops_in_hidden_folders_do_not_count(folder):
    (folder / ".git").mkdir()
    os.mkfifo(folder / ".git/pipe")
    (folder / ".git/loop").symlink_to(folder)
    load(folder)


def test_a_large_file_is_not_read(folder):
    with (folder / "notes.bin").open("wb") as file:
        file.truncate(1 << 40)
    assert_refused(folder, "notes.bin", "1,024.0 GiB")


def test_images_beyond_memory_are_refused_with_a_size_that_fits(folder, monkeypatch, tmp_path, images_on_disk):
    monkeypatch.setattr(images, "free_memory", lambda: 6 * 26 * 20**2)
    assert_refused(folder, "26 images", "set config.data.image_size to at most 20", image_size=21)
    load(folder, image_size=20)
    monkeypatch.setattr(images, "free_memory", lambda: 6 * 26 * 5**2)
    assert_refused(folder, "set config.data.image_size to at most 5")  # 6x5 of their own


def test_errors_of_the_system_say_what_to_mend(folder, monkeypatch):
    for number, mend in ((errno.EACCES, "check its permissions"), (errno.EIO, "check the disk")):

        def fail(path, number=number):
            raise OSError(number, os.strerror(number), str(path))

        monkeypatch.setattr(folders, "checksum", fail)
        assert_refused(folder, "cannot be read", os.strerror(number), mend)


def test_progress_is_told(folder, monkeypatch):
    monkeypatch.setattr("focalgeo.data.archives.SECONDS", 0)
    lines = []
    load(folder, tell=lines.append)
    assert lines == [f"read 26 examples of folder:{folder}"]


def test_metadata_that_pillow_warns_of_is_passed_over(folder):
    Image.fromarray(np.zeros((6, 5, 3), np.uint8)).save(folder / "train/cat/20.tif")
    whole = (folder / "train/cat/20.tif").read_bytes()
    (folder / "train/cat/20.tif").write_bytes(whole + b"trailing")
    load(folder)


def test_notes_may_lie_among_images_and_anything_above_or_beside_them(folder):
    plain = load(folder)
    for name in ("notes", "train/labels.mat", "train/bee/README", "train/bee/Thumbs.db", "train/bee/x.txt", "doc/a.b"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("words")
    assert_same(plain, load(folder))


def test_train_may_be_a_class(folder):
    for name in ("bee", "cat"):
        (folder / "train" / name).rename(folder / name)
    shutil.rmtree(folder / "test")
    shutil.rmtree(folder / "train")
    (folder / "cat").rename(folder / "train")
    assert load(folder).class_names == ("bee", "train")
