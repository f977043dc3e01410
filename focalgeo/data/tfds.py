"""Prepared TensorFlow Datasets, read without TensorFlow."""

import importlib
import os
from pathlib import Path

import numpy as np
from PIL import Image

from focalgeo.data import images, sources
from focalgeo.data.splits import Options, RawDataset
from focalgeo.types import Split

PARTS = {"train": "train", "val": "validation", "test": "test"}


def read_tfds(name: str, options: Options) -> RawDataset:
    """A data set that `tfds build` has prepared as array_record: its splits train, validation and test, as stored.

    Nothing is downloaded: preparing needs TensorFlow and a network, reading needs neither.

    Args:
        name: as tensorflow-datasets spells it, <name>, <name>/<config> or <name>:<version>; looked for under
            $TFDS_DATA_DIR, else ~/tensorflow_datasets.
        options: image_size.

    Raises:
        InputError: the extra is not installed, the set is not prepared (the message says how), or holds no images with
            class labels.
    """
    where = f"tfds:{name}"
    data_dir = Path(os.path.expanduser(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"))
    prepare = f"pip install 'focalgeo[tfds]' tensorflow && tfds build {name} --file_format=array_record"
    with sources.reading(where, f"run `{prepare}` once, or name another folder than {data_dir} in TFDS_DATA_DIR"):
        importlib.import_module("array_record")
        builders = importlib.import_module("tensorflow_datasets").core.read_only_builder
        builder = builders.builder_from_files(name, data_dir=data_dir, file_format="array_record")
        source = sources.Source(where, Path(builder.data_path), sources.checksum(Path(builder.data_path)))

    def build() -> RawDataset:
        mend = "prepare it again, choose a set of images with class labels, or set config.data.image_size"
        with sources.reading(where, mend):
            image_key, label_key = builder.info.supervised_keys or ("image", "label")
            splits = {}
            for part, split in PARTS.items():
                if split in builder.info.splits:
                    examples = builder.as_data_source(split=split)
                    pairs = [(_pixels(example[image_key], options), int(example[label_key])) for example in examples]
                    x, y = zip(*pairs, strict=True)
                    splits[part] = Split(np.stack(x), np.array(y, np.int32))
            return RawDataset(splits, tuple(builder.info.features[label_key].names), source.checksum)

    return sources.decoded(source, f"tfds-{options.image_size}", build)


def _pixels(image: np.ndarray, options: Options) -> np.ndarray:
    if image.dtype != np.uint8:
        raise ValueError(f"it holds {image.dtype}, no images of 8 bits")
    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    row = images.resized(picture, options.image_size)
    return row.reshape(*row.shape[:2], -1)
