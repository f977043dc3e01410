"""Images as uint8 arrays of one size: class folders of them, and Tiny ImageNet in its own layout."""

import io
import mimetypes
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from focalgeo.data import sources
from focalgeo.data.splits import RawDataset
from focalgeo.types import InputError, Split

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})
# What Pillow turns into RGB without loss of range; "I;16", "I" and "F" it would clip at 255.
EIGHT_BIT_MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"})
# Other formats are not tried, whatever the name says: Pillow runs Ghostscript on PostScript.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
SPLITS = ("train", "val", "test")
ANNOTATIONS = "val/val_annotations.txt"


class Layout(NamedTuple):
    """The files of each split, as positions in the list and in the order of their paths, and their labels."""

    class_names: tuple[str, ...]
    rows: dict[str, list[int]]
    labels: dict[str, np.ndarray]  # int32

    def splits(self, x: np.ndarray) -> dict[str, Split]:
        """The splits, where x holds the examples in the order of the list."""
        return {part: Split(x[rows], self.labels[part]) for part, rows in self.rows.items()}


def read_folder(location: str, *, image_size: int | None = None, tell: sources.Tell | None = None) -> RawDataset:
    """Images as uint8 [examples, height, width, 3], labels by alphabetical order of the class folders.

    Args:
        location: a folder or archive that holds {train,val,test}/<class>/<image>, val and test optional, or
            <class>/<image>; folders around it all, hidden files and other files are passed over. Relative to the
            working directory; ~ is the home folder.
        image_size: resize every image to this height and width; None asks that all have one size.
        tell: gets a line of progress every few seconds.

    Raises:
        InputError: nothing there, no images, one class, a corrupt archive or image, two sizes, an unusable layout.
    """
    source = sources.find("folder", location)

    def build() -> RawDataset:
        folder, where = sources.unpacked(source), source.where
        names = [name for name in sources.list_files(folder) if _is_image(name, where)]
        plan = layout(names, where=where)
        images = decode_files(folder, names, where=where, image_size=image_size, tell=tell)
        return RawDataset(plan.splits(images), plan.class_names, source.checksum)

    return sources.decoded(source, f"folder-{image_size}", build)


def _is_image(name: str, where: str) -> bool:
    known, guess = PurePosixPath(name).suffix.lower() in SUFFIXES, mimetypes.guess_type(name)[0]
    if not known and (guess or "").startswith("image/"):  # to pass it over would lose examples in silence
        raise InputError(f"{where}: {name} is of a format that is not read: convert it to one of {_endings()}")
    return known


def _endings() -> str:
    return ", ".join(sorted(SUFFIXES))


def layout(names: Sequence[str], *, where: str) -> Layout:
    """Splits and labels from relative paths of examples; class folders in alphabetical order are labels 0, 1, ...

    Raises:
        InputError: no examples, no train folder, one class, a class that train has not, or an example elsewhere than in
            <class>/ or {train,val,test}/<class>/.
    """
    if not names:
        raise InputError(f"{where} holds no examples: give class folders of images, {_endings()}, or of texts")
    paths = [PurePosixPath(name).parts for name in names]
    while len(outer := {path[0] for path in paths}) == 1 and not outer & {*SPLITS} and min(map(len, paths)) > 2:
        paths = [path[1:] for path in paths]
    if not any(path[0] in SPLITS and len(path) > 2 for path in paths):
        paths = [("train", *path) for path in paths]
    for name, path in zip(names, paths, strict=True):
        if len(path) != 3 or path[0] not in SPLITS:
            raise InputError(f"{where}: {name} lies elsewhere than in <class>/ or train, val or test/<class>/: move it")
    class_names = sorted({path[1] for path in paths if path[0] == "train"})
    if len(class_names) < 2:
        classes = "one class, " + class_names[0] if class_names else "no train folder"
        raise InputError(f"{where} has {classes}: give train/<class>/ of two classes or more")
    numbers = {name: label for label, name in enumerate(class_names)}
    if strange := {path[1] for path in paths} - {*class_names}:
        raise InputError(
            f"{where}: val or test has the class {min(strange)}, which train has not: use the same folders"
        )
    order = sorted(range(len(paths)), key=paths.__getitem__)
    rows = {part: [row for row in order if paths[row][0] == part] for part in SPLITS}
    rows = {part: members for part, members in rows.items() if members}
    labels = {part: np.array([numbers[paths[row][1]] for row in members], np.int32) for part, members in rows.items()}
    return Layout(tuple(class_names), rows, labels)


def decode_files(
    folder: Path,
    names: Sequence[str],
    *,
    where: str,
    image_size: int | None = None,
    tell: sources.Tell | None = None,
) -> UInt8[np.ndarray, "files height width 3"]:
    """The images of a folder's files, one or more, in their order; two threads decode.

    Raises:
        InputError: a broken image, or images of different sizes where `image_size` is None.
    """

    def decode(name: str) -> np.ndarray:
        return decode_image((folder / name).read_bytes(), where=f"{where}: {name}", image_size=image_size)

    count = sources.counted(tell, where)
    with warnings.catch_warnings(), ThreadPoolExecutor(2) as pool:
        warnings.simplefilter("ignore")  # of Pillow, about a file's metadata
        for row, image in enumerate(pool.map(decode, names)):
            if row == 0:
                images = np.empty((len(names), *image.shape), np.uint8)
            if image.shape != images.shape[1:]:
                sizes = f"{names[0]} is {images.shape[1:3]} and {names[row]} is {image.shape[:2]}"
                raise InputError(f"{where}: {sizes}: set config.data.image_size to resize them all")
            images[row] = image
            count(row + 1)
    return images


def decode_image(data: bytes, *, where: str, image_size: int | None = None) -> UInt8[np.ndarray, "height width 3"]:
    """One encoded image as uint8 [height, width, 3]; greyscale becomes RGB, transparency is dropped.

    Pixels are taken as they are stored: a camera's note of how it was held (EXIF) turns nothing.

    Args:
        data: the bytes of the file, in one of `FORMATS`.
        where: what the message calls the file.
        image_size: resize to this height and width (bilinear, aspect not kept); None keeps the size.

    Raises:
        InputError: the bytes are no image, are cut short, hold several images, or more than 8 bits per channel.
    """
    with sources.reading(where), Image.open(io.BytesIO(data), formats=FORMATS) as image:
        # a camera's MPO holds a photo and smaller copies of it
        is_animated = image.format != "MPO" and getattr(image, "is_animated", False)
        if image.mode not in EIGHT_BIT_MODES or is_animated:
            what = "several images" if is_animated else f"mode {image.mode}"
            raise InputError(f"{where} is of {what}: give one image of 8 bits per channel")
        image = image.convert("RGB")
        return np.asarray(image if image_size is None else resize(image, image_size))


def resize(image: Image.Image, image_size: int) -> Image.Image:
    """The image at image_size x image_size (bilinear, aspect not kept)."""
    return image.resize((image_size, image_size), Image.Resampling.BILINEAR)


def read_tiny_imagenet(location: str, *, image_size: int | None = None, tell: sources.Tell | None = None) -> RawDataset:
    """Images as uint8 [examples, height, width, 3]; the official val split is test, labels go by alphabetical wnid.

    Args:
        location: a folder or archive with train/<wnid>/images/, val/images/, val/val_annotations.txt and words.txt; its
            test images have no labels and are passed over. A class is named by the first of its names in words.txt, or
            by its wnid where it is missing there.
        image_size: resize every image to this height and width; None keeps 64x64. Greyscale becomes RGB.
        tell: gets a line of progress every few seconds.

    Raises:
        InputError: nothing there (the message says what to fetch), another layout, an image of val that is not there or
            has no class of train's, a corrupt archive or image.

    Source:
        Komisarenko & Kull, arXiv 2408.11598, 5.1: 90,000 and 10,000 split from train, the official val as test.
    """
    hint = "fetch the Tiny ImageNet archive tiny-imagenet-200.zip of Stanford's CS231n course by hand and give its path"
    source = sources.find("tiny_imagenet", location, hint=hint)
    build = partial(_build_tiny_imagenet, source, image_size, tell)
    return sources.decoded(source, f"tiny_imagenet-{image_size}", build)


def _build_tiny_imagenet(source: sources.Source, image_size: int | None, tell: sources.Tell | None) -> RawDataset:
    folder, where = sources.unpacked(source), source.where
    names = sources.list_files(folder)
    roots = [name.removesuffix(ANNOTATIONS) for name in names if f"/{name}".endswith(f"/{ANNOTATIONS}")]
    if len(roots) != 1:
        raise InputError(f"{where} holds {len(roots)} files {ANNOTATIONS}: give Tiny ImageNet in its own layout, once")
    folder = folder / roots[0]
    paths = [PurePosixPath(name).relative_to(roots[0]) for name in names if name.startswith(roots[0])]
    trained = {path: path.parts[1] for path in paths if path.match("train/*/images/*")}  # the wnid of each
    wnids = sorted({*trained.values()})
    listed = {PurePosixPath("val/images", file): rest.split("\t")[0] for file, rest in _pairs(folder / ANNOTATIONS)}
    held_out = {path for path in paths if path.match("val/images/*")}
    if strange := (held_out ^ listed.keys()) | {path for path, wnid in listed.items() if wnid not in wnids}:
        raise InputError(f"{where}: {min(strange)} is not there, or has no class of train's: unpack or fetch it again")
    parts = [sorted(members, key=str) for members in (trained, held_out)]
    if not all(parts):
        raise InputError(f"{where} has no train/<wnid>/images or no val/images: give Tiny ImageNet in its own layout")
    images = decode_files(folder, [str(path) for path in sum(parts, [])], where=where, image_size=image_size, tell=tell)
    wnid_of, english = trained | listed, dict(_pairs(folder / "words.txt"))
    labels = [np.array([wnids.index(wnid_of[path]) for path in members], np.int32) for members in parts]
    splits = map(Split, np.split(images, [len(parts[0])]), labels)
    class_names = tuple(english.get(wnid, wnid).split(",")[0].strip() for wnid in wnids)
    return RawDataset(dict(zip(("train", "test"), splits, strict=True)), class_names, source.checksum)


def _pairs(path: Path) -> list[list[str]]:
    """What stands before and behind the first tab of each line; none where there is no such file."""
    lines = path.read_text("utf-8", "replace").splitlines() if path.exists() else []
    return [line.split("\t", 1) for line in lines if "\t" in line]
