"""Prepared TensorFlow Datasets, read without TensorFlow."""

import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from focalgeo.data import images, sources
from focalgeo.data.splits import RawDataset
from focalgeo.types import InputError, Split

PARTS = {"train": "train", "val": "validation", "test": "test"}


def read_tfds(name: str, *, image_size: int | None = None, tell: sources.Tell | None = None) -> RawDataset:
    """A data set that `tfds build` has prepared as array_record: its splits train, validation and test, as stored.

    Nothing is downloaded: preparing needs TensorFlow and a network, reading needs neither.

    Args:
        name: as tensorflow-datasets spells it, <name>, <name>/<config> or <name>:<version>; looked for under
            $TFDS_DATA_DIR, else ~/tensorflow_datasets.
        image_size: resize every image to this height and width; None asks that all have one size.
        tell: gets a line of progress every few seconds.

    Raises:
        InputError: the extra is not installed, the set is not prepared (the message says how), or holds no images with
            class labels.
    """
    where = f"tfds:{name}"
    data_dir = Path(os.path.expanduser(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"))
    mend = (
        "pip install 'focalgeo[tfds]', and once `pip install tensorflow && tfds build "
        f"{name} --file_format=array_record`; TFDS_DATA_DIR is {data_dir}; or name files as folder:PATH"
    )
    with sources.reading(where, mend):
        importlib.import_module("array_record")
        builders = importlib.import_module("tensorflow_datasets").core.read_only_builder
        builder = builders.builder_from_files(name, data_dir=data_dir, file_format="array_record")
        source = sources.Source(where, Path(builder.data_path), sources.checksum(Path(builder.data_path)))

    def build() -> RawDataset:
        features = dict(builder.info.features)
        image, label = builder.info.supervised_keys or ("image", "label")
        if image not in features or not hasattr(features.get(label), "names") or "train" not in builder.info.splits:
            holds = f"{', '.join(features)} in {', '.join(builder.info.splits)}"
            raise InputError(
                f"{where} has no images with a class label and a train split, only {holds}: choose another"
            )
        splits = {
            part: _read_split(builder.as_data_source(split=split), image, label, f"{where}: {part}", image_size, tell)
            for part, split in PARTS.items()
            if split in builder.info.splits
        }
        return RawDataset(splits, tuple(features[label].names), source.checksum)

    return sources.decoded(source, f"tfds-{image_size}", build)


def _read_split(
    examples: Any, image_key: str, label_key: str, where: str, image_size: int | None, tell: sources.Tell | None
) -> Split:
    rows, labels, count = [], [], sources.counted(tell, where)
    with sources.reading(where, "choose another data set, or prepare it again"):
        for example in examples:
            image = example[image_key]
            if not (isinstance(image, np.ndarray) and image.ndim == 3 and image.dtype == np.uint8):
                raise ValueError(f"example {len(rows)} is no image of 8 bits, uint8 [height, width, channels]")
            if image_size is not None:
                picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
                image = np.asarray(images.resize(picture, image_size)).reshape(image_size, image_size, -1)
            rows.append(image)
            labels.append(int(example[label_key]))
            count(len(rows))
        if len({image.shape for image in rows}) > 1:
            raise ValueError("images are of several sizes: set config.data.image_size")
        return Split(np.stack(rows), np.array(labels, np.int32))
