"""Prepared TensorFlow Datasets, read without TensorFlow."""

import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from focalgeo.data.archives import checksum, one_line
from focalgeo.data.cache import cached_dataset
from focalgeo.data.images import resize_image, stack_images
from focalgeo.data.splits import RawDataset
from focalgeo.types import InputError, Split

PARTS = {"train": "train", "val": "validation", "test": "test"}


def read_tfds(name: str, *, image_size: int | None = None, cache_dir: str | os.PathLike | None = None) -> RawDataset:
    """A data set that `tfds build` has prepared as array_record: its splits train, validation and test, as stored.

    Nothing is downloaded: preparing needs TensorFlow and a network, reading needs neither.

    Args:
        name: as tensorflow-datasets spells it, <name>, <name>/<config> or <name>:<version>; looked for under
            $TFDS_DATA_DIR, else ~/tensorflow_datasets.
        image_size: resize every image to this height and width; None asks that all have one size.
        cache_dir: where the decoded images are kept, see focalgeo.data.cache.

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
            f"tfds-{digest}-{size}", lambda: _decode(builder, where, digest, image_size), cache_dir=cache_dir
        )
    except OSError as error:
        raise InputError(f"{where} cannot be read ({one_line(error)}): prepare it again") from error


def _import_tfds(where: str) -> ModuleType:
    try:
        importlib.import_module("array_record")
        return importlib.import_module("tensorflow_datasets")
    except ImportError as error:
        raise InputError(f"{where} needs tensorflow-datasets: pip install 'focalgeo[tfds]'") from error


def _find_builder(name: str, where: str) -> Any:
    read_only_builder = _import_tfds(where).core.read_only_builder
    data_dir = Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()
    try:
        return read_only_builder.builder_from_files(name, data_dir=data_dir, file_format="array_record")
    except Exception as error:  # tensorflow-datasets raises many types; to the user they all mean this
        raise InputError(
            f"{where} is not prepared as array_record under {data_dir}: run "
            f"`pip install tensorflow && tfds build {name} --file_format=array_record` once, or set TFDS_DATA_DIR"
        ) from error


def _decode(builder: Any, where: str, digest: str, image_size: int | None) -> RawDataset:
    info = builder.info
    image_key, label_key = info.supervised_keys or ("image", "label")
    features = dict(info.features)
    if image_key not in features or not hasattr(features.get(label_key), "names"):
        raise InputError(f"{where} has no image with a class label, only {', '.join(features)}: choose another")
    present = {part: split for part, split in PARTS.items() if split in info.splits}
    if "train" not in present:
        raise InputError(f"{where} has no train split, only {', '.join(info.splits)}: choose another")
    splits = {
        part: _read_split(builder, split, f"{where}: {part}", (image_key, label_key, image_size))
        for part, split in present.items()
    }
    return RawDataset(splits, tuple(features[label_key].names), digest)


def _read_split(builder: Any, split: str, where: str, wanted: tuple[str, str, int | None]) -> Split:
    image_key, label_key, image_size = wanted
    images, labels = [], []
    try:
        for example in builder.as_data_source(split=split):
            images.append(example[image_key])
            labels.append(example[label_key])
    except Exception as error:  # a corrupt file surfaces as whatever the C++ reader, protobuf or Pillow raises
        raise InputError(
            f"{where}, example {len(labels)}, cannot be read ({one_line(error)}): prepare it again"
        ) from error
    if image_size is not None:
        images = [resize_image(image, image_size) for image in images]
    names = [f"example {index}" for index in range(len(images))]
    return Split(stack_images(names, images, where=where), np.array(labels, np.int32))
