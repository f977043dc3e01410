"""Prepared array_record data, written here by hand without TensorFlow, read back through tensorflow-datasets."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from focalgeo.data import load_dataset, tfds
from focalgeo.types import InputError

SIZES = {"train": 30, "validation": 5, "test": 7}
CLASSES = ("zebra", "ant", "mole")  # label order, not alphabetical


def serialised(image_bytes, label, more):
    from tensorflow_datasets.proto import tf_example_pb2

    example = tf_example_pb2.Example()
    example.features.feature["image"].bytes_list.value.append(image_bytes)
    example.features.feature["label"].int64_list.value.append(label)
    if more:
        example.features.feature["coarse_label"].int64_list.value.append(1 - label // 2)
        example.features.feature["id"].bytes_list.value.append(b"train_1")
    return example.SerializeToString()


def write_info(folder, splits, shape, more):
    import tensorflow_datasets as tfds

    features = {"image": tfds.features.Image(shape=shape), "label": tfds.features.ClassLabel(names=CLASSES)}
    if more:
        features |= {"coarse_label": tfds.features.ClassLabel(names=("insect", "beast")), "id": tfds.features.Text()}
    tfds.features.FeaturesDict(features).save_config(folder)
    info = {
        "name": "tiny_shapes",
        "version": "1.0.0",
        "fileFormat": "array_record",
        "supervisedKeys": {"tuple": {"items": [{"featureKey": "image"}, {"featureKey": "label"}]}},
        "splits": [
            {
                "name": part,
                "shardLengths": [str(len(labels))],
                "numBytes": "1",
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            }
            for part, (_, labels) in splits.items()
        ],
    }
    (folder / "dataset_info.json").write_text(json.dumps(info))


def write_prepared(data_dir, splits, encode, shape=(4, 5, 3), more=False):
    from array_record.python.array_record_module import ArrayRecordWriter

    folder = data_dir / "tiny_shapes" / "1.0.0"
    folder.mkdir(parents=True)
    write_info(folder, splits, shape, more)
    for part, (images, labels) in splits.items():
        writer = ArrayRecordWriter(str(folder / f"tiny_shapes-{part}.array_record-00000-of-00001"), "group_size:1")
        for image, label in zip(images, labels, strict=True):
            writer.write(serialised(encode(image), int(label), more))
        writer.close()
    return folder


@pytest.fixture
def splits():
    rng = np.random.default_rng(0)
    return {
        part: (rng.integers(0, 256, (n, 4, 5, 3), dtype=np.uint8), rng.integers(0, 3, n)) for part, n in SIZES.items()
    }


@pytest.fixture
def prepared(tmp_path, monkeypatch, splits, images_on_disk):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    return write_prepared(tmp_path / "tfds", splits, images_on_disk.encoded)


def refused(name, **options):
    with pytest.raises(InputError) as caught:
        load_dataset(name, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize("name", ["tiny_shapes", "tiny_shapes:1.0.0"])
def test_images_and_labels_round_trip(splits, name):
    data = load_dataset(f"tfds:{name}")
    assert data.class_names == CLASSES
    for part, split in {"validation": data.val, "test": data.test}.items():
        np.testing.assert_array_equal(split.x, splits[part][0])
        np.testing.assert_array_equal(split.y, splits[part][1])
        assert split.x.dtype == np.uint8
        assert split.y.dtype == np.int32
    ours = sorted((x.tobytes(), int(y)) for x, y in zip(*data.train, strict=True))
    assert ours == sorted((x.tobytes(), int(y)) for x, y in zip(*splits["train"], strict=True))
    assert len(data.checksum) == 64


@pytest.mark.usefixtures("prepared")
def test_reading_imports_no_tensorflow():
    program = (
        "import sys; from focalgeo.data import load_dataset\n"
        "print(len(load_dataset('tfds:tiny_shapes').train.y), 'tensorflow' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["30", "False"]


@pytest.mark.usefixtures("prepared")
def test_image_size_resizes():
    assert load_dataset("tfds:tiny_shapes", image_size=3).train.x.shape == (30, 3, 3, 3)


def test_greyscale_keeps_its_one_channel(tmp_path, monkeypatch, splits, images_on_disk):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    grey = {part: (images[..., :1], labels) for part, (images, labels) in splits.items()}
    write_prepared(tmp_path, grey, lambda image: images_on_disk.encoded(image[..., 0]), (4, 5, 1))
    np.testing.assert_array_equal(load_dataset("tfds:tiny_shapes").test.x, grey["test"][0])
    assert load_dataset("tfds:tiny_shapes", image_size=3).test.x.shape == (7, 3, 3, 1)


def test_the_fine_label_of_cifar100_is_read(tmp_path, monkeypatch, splits, images_on_disk):
    """Its records hold an id and a coarse label besides; supervised keys name the fine one."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    folder = write_prepared(tmp_path, splits, images_on_disk.encoded, more=True)
    features = json.loads((folder / "features.json").read_text())
    assert set(features["featuresDict"]["features"]) == {"coarse_label", "id", "image", "label"}
    data = load_dataset("tfds:tiny_shapes")
    assert data.class_names == CLASSES
    np.testing.assert_array_equal(data.test.y, splits["test"][1])


def test_what_is_not_prepared_says_how_to_prepare_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    for name in ("mnist", "no_such_set", "", "mnist/config:9.9.9", "a b"):
        message = refused(f"tfds:{name}")
        assert f"tfds build {name} --file_format=array_record" in message
        assert str(tmp_path) in message


@pytest.mark.parametrize("package", ["tensorflow_datasets", "array_record"])
def test_missing_extra_says_how_to_install_it(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert "pip install 'focalgeo[tfds]'" in refused("tfds:tiny_shapes")


def test_damaged_records(prepared):
    (path,) = prepared.glob("*train*")
    path.write_bytes(path.read_bytes()[:100])
    assert "train" in refused("tfds:tiny_shapes")
    path.unlink()
    assert refused("tfds:tiny_shapes")


def test_unreadable_image(tmp_path, monkeypatch, splits):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    write_prepared(tmp_path, splits, lambda image: b"no image")
    assert "example 0, cannot be read" in refused("tfds:tiny_shapes")


def test_label_out_of_range(tmp_path, monkeypatch, splits, images_on_disk):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    splits["test"] = (splits["test"][0], splits["test"][1] - 1)
    write_prepared(tmp_path, splits, images_on_disk.encoded)
    assert "label -1" in refused("tfds:tiny_shapes")


def stored(features, examples, *, keys=("image", "label"), splits=("train",)):
    """A builder in memory, as tensorflow-datasets' are used."""

    class Builder:
        info = SimpleNamespace(features=features, supervised_keys=keys, splits=dict.fromkeys(splits))

        def as_data_source(self, *, split):
            return examples

    return Builder()


CLASS = SimpleNamespace(names=("a", "b"))
PIXELS = np.zeros((4, 5, 3), np.uint8)


@pytest.mark.parametrize(
    ("image", "label", "message"),
    [
        (PIXELS.astype(np.float32), 0, r"train, example 1: float32 \[4, 5, 3\] is no image of 8 bits"),
        (PIXELS.astype(np.uint16), 0, "uint16"),
        (PIXELS[None], 0, r"uint8 \[1, 4, 5, 3\]"),
        (b"text", 0, "bytes is no image"),
        (PIXELS, [0, 1], r"labels of shape \[2\]"),
        (PIXELS[1:], 0, "example 0 is 4x5x3 and example 1 is 3x5x3"),
    ],
)
def test_other_kinds_of_examples(image, label, message):
    examples = [{"image": PIXELS, "label": 1}, {"image": image, "label": label}]
    builder = stored({"image": None, "label": CLASS}, examples)
    with pytest.raises(InputError, match=message):
        tfds._decode(builder, "tfds:x", "", None, None)


@pytest.mark.parametrize(
    ("features", "splits", "message"),
    [
        ({"text": None, "label": CLASS}, ("train",), "no image with a class label, only text, label"),
        ({"image": None, "label": None}, ("train",), "no image with a class label"),
        ({"image": None, "label": CLASS}, ("test", "extra"), "no train split, only test, extra"),
    ],
)
def test_other_features_and_splits(features, splits, message):
    with pytest.raises(InputError, match=message):
        tfds._decode(stored(features, [], splits=splits), "tfds:x", "", None, None)


def test_more_images_than_memory_takes_are_refused_before_one_is_read():
    builder = stored({"image": None, "label": CLASS}, [None] * 1000, keys=("image", ("label", "other")))
    with pytest.raises(InputError, match=r"set config.data.image_size to at most \d+"):
        tfds._decode(builder, "tfds:x", "", 10**6, None)
