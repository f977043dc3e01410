"""Images as uint8 arrays of one size: class folders, Tiny ImageNet, and prepared TensorFlow Datasets."""

import fnmatch
import mimetypes
import os
import warnings
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path, PurePosixPath

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from tqdm import tqdm

from focalgeo import files
from focalgeo.data import sources
from focalgeo.data.splits import RawDataset
from focalgeo.types import InputError, Split

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})
# Other formats are not tried, whatever the name says: Pillow runs Ghostscript on PostScript.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
SPLITS = ("train", "val", "test")
ANNOTATIONS = "val/val_annotations.txt"
TFDS_SPLITS = {"train": "train", "val": "validation", "test": "test"}


Members = dict[str, tuple[np.ndarray, np.ndarray]]  # by split: positions of its files in a list, and int32 labels


def read_folder(location: str, image_size: int | None) -> RawDataset:
    """Class folders of images.

    They become uint8 [examples, height, width, 3], labels by alphabetical order of the class folders.

    Args:
        location: a folder or archive that holds {train,val,test}/<class>/<image>, val and test optional, or
            <class>/<image>; folders around it all, hidden files and other files are passed over. Relative to the
            working directory; ~ is the home folder.
        image_size: height and width that images are resized to; None: they must all have one size.

    Raises:
        InputError: nothing there, no images, one class, a corrupt archive or image, two sizes, an unusable layout.
    """
    source = sources.find("folder", location)

    def decode():
        folder, names = sources.unpacked(source), []
        for name in sources.list_files(folder):
            if PurePosixPath(name).suffix.lower() in SUFFIXES:
                names.append(name)
            elif (mimetypes.guess_type(name)[0] or "").startswith("image/"):  # passed over it would be lost in silence
                raise InputError(f"{source.where}: {name} is of a format that is not read: convert it to .png")
        class_names, members = layout(names, where=source.where)
        images = decode_files(folder, names, image_size, where=source.where)
        return {part: Split(images[rows], labels) for part, (rows, labels) in members.items()}, class_names

    return sources.decoded(source, image_size, decode)


def layout(names: Sequence[str], *, where: str) -> tuple[tuple[str, ...], Members]:
    """Class names and splits by relative paths of examples; class folders in alphabetical order are labels 0, 1, ...

    Raises:
        InputError: no examples, no train folder, one class, a class that train has not, or an example elsewhere than in
            <class>/ or {train,val,test}/<class>/.
    """
    if not names:
        raise InputError(f"{where} holds no examples: give class folders of images, as .jpg or .png, or of texts")
    paths = [PurePosixPath(name).parts for name in names]
    # Archives often have a folder or two around their parts, which say nothing.
    while len(outer := {path[0] for path in paths}) == 1 and not outer & {*SPLITS} and min(map(len, paths)) > 2:
        paths = [path[1:] for path in paths]
    if not any(path[0] in SPLITS and len(path) > 2 for path in paths):
        paths = [("train", *path) for path in paths]
    for name, path in zip(names, paths, strict=True):
        if len(path) != 3 or path[0] not in SPLITS:
            raise InputError(f"{where}: {name} lies elsewhere than in <class>/ or train, val or test/<class>/: move it")
    folders = sorted({path[:2] for path in paths})
    class_names = tuple(class_name for part, class_name in folders if part == "train")
    if len(class_names) < 2 or not {class_name for _, class_name in folders} <= {*class_names}:
        there = ", ".join(map("/".join, folders[:9]))
        raise InputError(f"{where} has {there}: give two classes or more in train, and none but them in val and test")
    members = defaultdict(list)
    for row in sorted(range(len(paths)), key=paths.__getitem__):
        part, class_name, _ = paths[row]
        members[part].append((row, class_names.index(class_name)))
    return class_names, {part: tuple(np.array(pairs, np.int32).T) for part, pairs in members.items()}


def decode_files(
    folder: Path, names: Sequence[str], image_size: int | None, *, where: str
) -> UInt8[np.ndarray, "files height width 3"]:
    """The images of a folder's files, one or more, in their order; two threads decode.

    Greyscale becomes RGB, transparency is dropped. Pixels are taken as they are stored: a camera's note of how it was
    held (EXIF) turns nothing.

    Raises:
        InputError: a broken image, or images of different sizes where image_size is None.
    """

    def decode(name):
        with files.reading(f"{where}: {name}"), Image.open(folder / name, formats=FORMATS) as image:
            # Pillow would clip 16 and 32 bits at 255; a camera's MPO holds a photo and smaller copies of it
            if image.mode[0] in "IF" or (image.format != "MPO" and getattr(image, "is_animated", False)):
                raise ValueError(f"mode {image.mode} or holds several images, not one of 8 bits per channel")
            return resized(image.convert("RGB"), image_size)

    # Pillow warns of a file's metadata. closing: an error ends the decoding of the files that are left
    ignoring = warnings.catch_warnings(action="ignore")
    with ignoring, ThreadPoolExecutor(2) as pool, closing(pool.map(decode, names)) as decoded:
        for row, image in enumerate(tqdm(decoded, where, len(names), unit=" images", disable=None)):
            if row == 0:
                images = np.empty((len(names), *image.shape), np.uint8)
            if image.shape != images.shape[1:]:
                sizes = f"{names[0]} is {images.shape[1:3]} and {names[row]} is {image.shape[:2]}"
                raise InputError(f"{where}: {sizes}: set config.data.image_size to resize them all")
            images[row] = image
    return images


def resized(image: Image.Image, image_size: int | None) -> UInt8[np.ndarray, "height width *channels"]:
    """The image at image_size x image_size (bilinear, aspect not kept); None keeps the size."""
    return np.asarray(
        image if image_size is None else image.resize((image_size, image_size), Image.Resampling.BILINEAR)
    )


def read_tiny_imagenet(location: str, image_size: int | None) -> RawDataset:
    """Tiny ImageNet in its own layout; the official val split is test.

    Images become uint8 [examples, height, width, 3], labels go by alphabetical wnid.

    Args:
        location: a folder or archive with train/<wnid>/images/, val/images/, val/val_annotations.txt and words.txt, as
            tiny-imagenet-200.zip of Stanford's CS231n course; its test images have no labels and are passed over. A
            class is named by the first of its names in words.txt, or by its wnid where it is missing there.
        image_size: None keeps 64x64. Greyscale becomes RGB.

    Raises:
        InputError: nothing there, another layout, an image of val that is not there or has no class of train's, a
            corrupt archive or image.

    Source:
        Komisarenko & Kull, arXiv 2408.11598, 5.1: 90,000 and 10,000 split from train, the official val as test.
    """
    source = sources.find("tiny_imagenet", location)

    def decode():
        folder, where = sources.unpacked(source), source.where
        roots = [name.removesuffix(ANNOTATIONS) for name in sources.list_files(folder) if name.endswith(ANNOTATIONS)]
        if len(roots) != 1:
            raise InputError(f"{where} holds {len(roots)} files {ANNOTATIONS}: give Tiny ImageNet's own layout, once")
        folder = folder / roots[0]
        names = sources.list_files(folder)
        train, test = (fnmatch.filter(names, pattern) for pattern in ("train/*/images/*", "val/images/*"))
        wnid_of = {name: name.split("/")[1] for name in train}
        wnids = sorted({*wnid_of.values()})
        listed = {f"val/images/{file}": rest.split("\t")[0] for file, rest in _pairs(folder / ANNOTATIONS)}
        strange = {*test} ^ {name for name, wnid in listed.items() if wnid in wnids}
        if strange or not (train and test):
            name = min(strange, default="train/<wnid>/images")
            raise InputError(f"{where}: {name} is not there, or has no class of train's: unpack or fetch it again")
        wnid_of |= listed
        splits = {
            part: Split(
                decode_files(folder, members, image_size, where=where),
                np.array([wnids.index(wnid_of[name]) for name in members], np.int32),
            )
            for part, members in (("train", train), ("test", test))
        }
        english = dict(_pairs(folder / "words.txt"))
        return splits, [english.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]

    return sources.decoded(source, image_size, decode)


def _pairs(path):
    """What stands before and behind the first tab of each line; none where there is no such file."""
    lines = path.read_text("utf-8", "replace").splitlines() if path.exists() else []
    return [line.split("\t", 1) for line in lines if "\t" in line]


def read_tfds(name: str, image_size: int | None) -> RawDataset:
    """An image set that TensorFlow Datasets has prepared.

    `tfds build` has prepared it as array_record; its splits are train, validation and test, as stored.
    Nothing is downloaded: preparing needs TensorFlow and a network, reading needs neither.

    Args:
        name: as tensorflow-datasets spells it, <name>, <name>/<config> or <name>:<version>; looked for under
            $TFDS_DATA_DIR, else ~/tensorflow_datasets.
        image_size: height and width that images are resized to; None: they must all have one size.

    Raises:
        InputError: the extra is not installed, the set is not prepared (the message says how), or holds no images with
            class labels.
    """
    where = f"tfds:{name}"
    data_dir = Path(os.path.expanduser(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"))
    prepare = f"pip install 'focalgeo[tfds]' tensorflow && tfds build {name} --file_format=array_record"
    with files.reading(where, f"run `{prepare}` once, or name another folder than {data_dir} in TFDS_DATA_DIR"):
        import array_record  # noqa: F401 (by which it reads)
        from tensorflow_datasets.core import read_only_builder

        builder = read_only_builder.builder_from_files(name, data_dir=data_dir, file_format="array_record")
        source = sources.Source(where, Path(builder.data_path), sources.checksum(Path(builder.data_path)))

    def decode():
        splits, mend = {}, "prepare it again, choose a set of images with class labels, or set config.data.image_size"
        with files.reading(where, mend):
            image_key, label_key = builder.info.supervised_keys or ("image", "label")
            for part, split in TFDS_SPLITS.items():
                if split in builder.info.splits:
                    pairs = (
                        (_pixels(example[image_key], image_size), example[label_key])
                        for example in builder.as_data_source(split=split)
                    )
                    x, y = zip(*pairs, strict=True)
                    splits[part] = Split(np.stack(x), np.array(y, np.int32))
            return splits, builder.info.features[label_key].names

    return sources.decoded(source, image_size, decode)


def _pixels(image, image_size):
    if image.dtype != np.uint8:
        raise ValueError(f"it holds {image.dtype}, no images of 8 bits")
    row = resized(Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image), image_size)
    return row.reshape(*row.shape[:2], -1)
