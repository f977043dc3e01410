"""Prepared TensorFlow Datasets, read without TensorFlow."""

import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from focalgeo.data.archives import Tell, checksum, counter, one_line
from focalgeo.data.cache import cached_dataset
from focalgeo.data.images import check_memory, resize_image, stack_images
from focalgeo.data.splits import RawDataset
from focalgeo.types import InputError, Split

PARTS = {"train": "train", "val": "validation", "test": "test"}


def read_tfds(
    name: str,
    *,
    image_size: int | None = None,
    cache_dir: str | os.PathLike | None = None,
    tell: Tell | None = None,
) -> RawDataset:
    """A data set that `tfds build` has prepared as array_record: its splits train, validation and test, as stored.

    Nothing is downloaded: preparing needs TensorFlow and a network, reading needs neither.

    Args:
        name: as tensorflow-datasets spells it, <name>, <name>/<config> or <name>:<version>; looked for under
            $TFDS_DATA_DIR, else ~/tensorflow_datasets.
        image_size: resize every image to this height and width; None asks that all have one size.
        cache_dir: where the decoded images are kept, see focalgeo.data.cache.
        tell: gets a line of progress every few seconds.

    Raises:
        InputError: the extra is not installed, the set is not prepared (the message says how), or holds no images with
            class labels.
    """
    where = f"tfds:{name}"
    builder = _find_builder(name, where)
    size = "own-size" if image_size is None else f"{image_size}px"
    try:
        digest = checksum(Path(builder.data_path))
        return cached_dataset(
            f"tfds-{digest}-{size}",
            lambda: _decode(builder, where, digest, image_size, tell),
            cache_dir=cache_dir,
            tell=tell,
        )
    except OSError as error:
        raise InputError(f"{where} cannot be read ({one_line(error)}): prepare it again") from error


def _import_tfds(where: str) -> ModuleType:
    try:
        importlib.import_module("array_record")
        return importlib.import_module("tensorflow_datasets")
    except ImportError as error:
        words = "pip install 'focalgeo[tfds]', or name files as folder:PATH"
        raise InputError(f"{where} needs tensorflow-datasets: {words}") from error


def _find_builder(name: str, where: str) -> Any:
    read_only_builder = _import_tfds(where).core.read_only_builder
    data_dir = Path(os.path.expanduser(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"))
    try:
        return read_only_builder.builder_from_files(name, data_dir=data_dir, file_format="array_record")
    except Exception as error:  # tensorflow-datasets raises many types; to the user they all mean this
        raise InputError(
            f"{where} is not prepared as array_record under {data_dir}: run "
            f"`pip install tensorflow && tfds build {name} --file_format=array_record` once, or set TFDS_DATA_DIR"
        ) from error


def _decode(builder: Any, where: str, digest: str, image_size: int | None, tell: Tell | None) -> RawDataset:
    info = builder.info
    features, keys = dict(info.features), info.supervised_keys or ("image", "label")
    image_key, label_key = keys if len(keys) == 2 and all(isinstance(key, str) for key in keys) else ("image", "label")
    if image_key not in features or not hasattr(features.get(label_key), "names"):
        raise InputError(f"{where} has no image with a class label, only {', '.join(features)}: choose another")
    present = {part: split for part, split in PARTS.items() if split in info.splits}
    if "train" not in present:
        raise InputError(f"{where} has no train split, only {', '.join(info.splits)}: choose another")
    splits = {
        part: _read_split(builder, split, f"{where}: {part}", (image_key, label_key, image_size), tell)
        for part, split in present.items()
    }
    return RawDataset(splits, tuple(features[label_key].names), digest)


def _read_split(builder: Any, split: str, where: str, wanted: tuple[str, str, int | None], tell: Tell | None) -> Split:
    image_key, label_key, image_size = wanted
    images, labels, count = [], [], counter(tell, where)
    try:
        source = builder.as_data_source(split=split)
        check_memory(len(source), image_size, where=where)
        for example in source:
            images.append(_checked(example[image_key], example[label_key], f"{where}, example {len(labels)}"))
            labels.append(example[label_key])
            count(len(labels))
    except InputError:
        raise
    except Exception as error:  # a corrupt file surfaces as whatever the C++ reader, protobuf or Pillow raises
        raise InputError(
            f"{where}, example {len(labels)}, cannot be read ({one_line(error)}): prepare it again"
        ) from error
    if image_size is not None:
        images = [resize_image(image, image_size) for image in images]
    names = [f"example {index}" for index in range(len(images))]
    return Split(stack_images(names, images, where=where), np.array(labels, np.int32))


def _checked(image: Any, label: Any, where: str) -> np.ndarray:
    """The image, if it is one of 8 bits with one label."""
    if not (isinstance(image, np.ndarray) and image.ndim == 3 and image.dtype == np.uint8):
        found = f"{image.dtype} {[*image.shape]}" if isinstance(image, np.ndarray) else type(image).__name__
        raise InputError(f"{where}: {found} is no image of 8 bits, uint8 [height, width, channels]: choose another set")
    if np.ndim(label) != 0:
        raise InputError(f"{where} has labels of shape {[*np.shape(label)]}: choose a set with one label each")
    return image
