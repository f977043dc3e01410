"""Tiny ImageNet in its own layout: 200 classes of 64x64 images."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from focalgeo.data.archives import Tell, read_files
from focalgeo.data.folders import SUFFIXES, read_images
from focalgeo.data.images import decode_files
from focalgeo.data.splits import RawDataset
from focalgeo.types import InputError, Split

ANNOTATIONS, WORDS = "val_annotations.txt", "words.txt"
_FOLDERS = "train/<wnid>/images, val/images and test/images"


def read_tiny_imagenet(
    location: str,
    *,
    image_size: int | None = None,
    cache_dir: str | os.PathLike | None = None,
    tell: Tell | None = None,
) -> RawDataset:
    """Images as uint8 [examples, height, width, 3]; the official val split is test, labels go by alphabetical wnid.

    Args:
        location: a folder or archive (see focalgeo.data.archives) with train/<wnid>/images/, val/images/,
            val/val_annotations.txt and words.txt; its test images have no labels and are passed over. A class is named
            by the first of its names in words.txt, or by its wnid where it is missing there.
        image_size: resize every image to this height and width; None keeps 64x64. Greyscale becomes RGB.
        cache_dir: where the decoded images are kept, see focalgeo.data.cache.
        tell: gets a line of progress every few seconds.

    Raises:
        InputError: nothing there (the message says what to fetch), another layout, an image elsewhere or twice, an
            image of val without a class or a class of val without its image, a corrupt archive or image.

    Source:
        Komisarenko & Kull, arXiv 2408.11598, 5.1: 90,000 and 10,000 split from train, the official val as test.
    """
    hint = "fetch the Tiny ImageNet archive tiny-imagenet-200.zip of Stanford's CS231n course by hand and give its path"
    options = {"image_size": image_size, "cache_dir": cache_dir, "hint": hint, "tell": tell}
    return read_images(location, _decode, kind="tiny_imagenet", **options)


def _decode(path: Path, where: str, digest: str, image_size: int | None, tell: Tell | None) -> RawDataset:
    texts: dict[str, str] = {}
    files = _labelled_images(read_files(path, SUFFIXES | {".txt"}), texts, where)
    names, images = decode_files(files, where=where, image_size=image_size, tell=tell)
    _check_one_copy(names, where)
    classes = _classes(names, texts.get(ANNOTATIONS, ""), where)
    wnids = sorted({wnid for part, wnid in classes if part == "train"})
    labels = {wnid: label for label, wnid in enumerate(wnids)}
    splits = {}
    for part in ("train", "test"):
        rows = sorted((row for row, (there, _) in enumerate(classes) if there == part), key=names.__getitem__)
        if not rows:
            raise InputError(f"{where}: no images in {_folder(part)}: give Tiny ImageNet's own layout, or use folder:")
        splits[part] = Split(images[rows], np.array([labels[classes[row][1]] for row in rows], np.int32))
    english = dict(line.split("\t", 1) for line in texts.get(WORDS, "").splitlines() if "\t" in line)
    return RawDataset(splits, tuple(english.get(wnid, wnid).split(",")[0].strip() for wnid in wnids), digest)


def _labelled_images(
    files: Iterable[tuple[str, bytes]], texts: dict[str, str], where: str
) -> Iterator[tuple[str, bytes]]:
    """The images of train and val in the archive's order; adds the two lists found among the files to `texts`."""
    for name, data in files:
        file = PurePosixPath(name)
        if file.name in (ANNOTATIONS, WORDS):
            if file.name in texts:
                raise InputError(f"{where} holds two copies of {file.name}: give the folder of one of them")
            texts[file.name] = data.decode("utf-8", "replace")
        elif file.suffix.lower() != ".txt" and file.parts[-3:-1] != ("test", "images"):
            if _split_of(name) is None:
                raise InputError(f"{where}: {name}: no images in folders other than {_FOLDERS} are read: move it away")
            yield name, data


def _split_of(name: str) -> str | None:
    parts = PurePosixPath(name).parts
    if parts[-2:-1] != ("images",):
        return None
    return "train" if parts[-4:-3] == ("train",) else "test" if parts[-3:-2] == ("val",) else None


def _check_one_copy(names: list[str], where: str) -> None:
    """Refuse two train or two val folders, of which the images of one would be those of the other."""
    depths = {"train": 4, "test": 3}
    roots = {PurePosixPath(name).parts[: -depths[_split_of(name)]] for name in names}
    if len(roots) > 1:
        first, second = sorted("/".join(each) or "." for each in roots)[:2]
        raise InputError(f"{where} holds two copies, in {first} and {second}: give one of them")


def _classes(names: list[str], annotations: str, where: str) -> list[tuple[str, str]]:
    """(split, wnid) of every image."""
    of_file = _annotated(annotations, where)
    classes = []
    for name in names:
        part, path = _split_of(name), PurePosixPath(name)
        classes.append((part, path.parts[-3] if part == "train" else of_file.get(path.name, "")))
    trained = {wnid for part, wnid in classes if part == "train"}
    for name, (part, wnid) in zip(names, classes, strict=True):
        if trained and part == "test" and wnid not in trained:
            says = f"the class {wnid}, which train has not" if wnid else "no class"
            raise InputError(f"{where}: {name} has {says}, by {ANNOTATIONS}: unpack or fetch the data again")
    absent = sorted(of_file.keys() - {PurePosixPath(name).name for name in names})
    if absent and any(part == "test" for part, _ in classes):
        raise InputError(
            f"{where}: {ANNOTATIONS} lists {absent[0]}, which is not there: unpack or fetch the data again"
        )
    return classes


def _annotated(annotations: str, where: str) -> dict[str, str]:
    """The wnid of every file that is listed."""
    of_file: dict[str, str] = {}
    for line in annotations.splitlines():
        file, tab, rest = line.partition("\t")
        if tab and file in of_file:
            raise InputError(f"{where}: {ANNOTATIONS} lists {file} twice: unpack or fetch the data again")
        if tab:
            of_file[file] = rest.partition("\t")[0]
    return of_file


def _folder(part: str) -> str:
    return "train/<wnid>/images" if part == "train" else "val/images"
