"""Names, splits and sizes; digits, clusters, and what tensorflow-datasets has prepared, written without TensorFlow."""

import json
import subprocess
import sys

import numpy as np
import pytest
from data.conftest import encoded
from numpy.testing import assert_array_equal

import focalgeo.data.registry as registry
from focalgeo.data import load_dataset
from focalgeo.data.splits import RawDataset, Sizes, check_labels, divide, gaps, split_indices
from focalgeo.types import InputError, Split

DIGITS_CHECKSUM = "fe61bc84cd6a594d5ed1b937b7d8f8f791d4091d2a9df91fe5d6066156a4db6e"


@pytest.mark.parametrize("name", ["digts", "digits:8", "sst", "\udcff\n"])
def test_unknown_names_are_one_line(refused, name):
    assert "config.data.name is" in refused(name)


def test_options_that_do_not_apply_or_are_out_of_range(refused):
    assert "label is kind for digits" in refused("digits", label="kind")
    assert "max_words is 0 for sst:x" in refused("sst:x", max_words=0)


def labelled(labels):
    return RawDataset({"train": Split(None, np.array(labels, np.int32))}, ("a", "b", "c"), "")


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([0, 1, 3], "the label of example 2 is none"),
        ([], "the split is empty"),
        ([[0, -1], [-1, 0]], "one class only"),
    ],
)
def test_labels_out_of_range_are_refused_on_loading(labels, says, monkeypatch, refused):
    for good in ([0, 2], [[-1, 2], [0, -1]]):
        check_labels(labelled(good), name="x")
    monkeypatch.setitem(registry.READERS, "digits", registry.Reader(lambda _: labelled(labels)))
    assert says in refused("digits")


def numbered(n, offset=0):
    return Split(np.arange(offset, offset + n)[:, None].astype(np.int16), (np.arange(n) >= n // 2).astype(np.int32))


def made(sizes=(), *, seed=1, **parts):
    return divide(RawDataset(parts, ("a", "b"), "c"), Sizes(*sizes), name="made", seed=seed)


def test_cifar_split_is_the_papers():
    train, val = split_indices(50000, 5000, 1)
    assert val[:5].tolist() == [26247, 35067, 34590, 16668, 12196]
    assert val.sum() == 122592196
    assert_array_equal(np.sort(np.concatenate([train, val])), np.arange(50000))


@pytest.mark.parametrize(("n", "val_size", "seed"), [(5, 5, 1), (5, -1, 1), (5, 1, 2**32)])
def test_split_indices_out_of_range(n, val_size, seed):
    with pytest.raises(InputError):
        split_indices(n, val_size, seed)


def test_default_val_is_a_tenth_of_train_by_the_rule():
    data = made(train=numbered(50), test=numbered(20, 100))
    train, val = split_indices(50, 5, 1)
    assert_array_equal(data.val.x[:, 0], val)
    assert_array_equal(data.train.x[:, 0], train)
    assert_array_equal(data.test.x, numbered(20, 100).x)


def test_without_test_split_the_three_are_disjoint_and_complete():
    data = made(train=numbered(100))
    assert [len(s.y) for s in (data.train, data.val, data.test)] == [60, 20, 20]
    assert sorted(np.concatenate([s.x[:, 0] for s in data[1:4]])) == list(range(100))
    for split in data[1:4]:
        assert_array_equal(split.y, split.x[:, 0] >= 50)


@pytest.mark.parametrize("names", [("train", "test"), ("train", "val", "test")])
def test_subsets_are_mixed_and_those_of_own_splits_stay_in_order(names):
    parts = {part: numbered(100, 100 * i) for i, part in enumerate(names)}
    whole, small = made(**parts), made((20, None, 20), **parts)
    assert_array_equal(small.train.x, whole.train.x[:20])
    assert 4 <= small.train.y.sum() <= 16
    assert np.all(np.diff(small.test.x[:, 0].astype(int)) > 0)
    assert len(small.test.y) == 20
    assert 4 <= small.test.y.sum() <= 16
    if "val" in names:
        assert_array_equal(whole.val.x, parts["val"].x)
        assert sorted(whole.train.x[:, 0]) == list(range(100))


@pytest.mark.parametrize(
    ("sizes", "part", "most", "own"),
    [
        ((46, None, None), "train", 45, True),
        ((None, 10, 45), "val", 4, False),
        ((None, 0, None), "val", 39, False),
    ],
)
def test_sizes_out_of_range_are_told_what_works(sizes, part, most, own):
    parts = {"train": numbered(50)} | ({"test": numbered(20)} if own else {})
    with pytest.raises(InputError, match=rf"made: {part} can have {most} examples.*config.data.{part}_size from 1 to"):
        made(sizes, **parts)


def test_gaps_name_absent_classes_and_shared_examples():
    train, other = numbered(10), numbered(10, 100)
    shared = Split(np.concatenate([other.x[:9], train.x[:1]]), other.y)
    data = made(train=train, val=other, test=shared)
    assert list(gaps(data)) == ["train holds 1 of the 10 examples of test too: results there are too good"]
    one = data._replace(train=Split(train.x[5:], train.y[5:]), test=other)
    assert list(gaps(one)) == ["train has no example of 1 of 2 classes (a): they cannot be learnt"]
    assert list(gaps(data._replace(test=other))) == []
    many = numbered(100, 100)
    for count in (1, 2):  # of 100; one in a hundred is usual
        shared = Split(np.concatenate([many.x[count:], train.x[:count]]), many.y)
        assert bool(list(gaps(made(train=train, val=other, test=shared)))) == (count == 2)


def test_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    data, raw = load_dataset("digits"), load_digits()
    assert data.checksum == DIGITS_CHECKSUM
    assert [split.x.shape for split in data[1:4]] == [(n, 8, 8, 1) for n in (1079, 359, 359)]
    ours = sorted((x.tobytes(), int(y)) for split in data[1:4] for x, y in zip(*split, strict=True))
    theirs = zip(raw.images.astype(np.uint8)[..., None], raw.target, strict=True)
    assert ours == sorted((x.tobytes(), int(y)) for x, y in theirs)


def test_clusters_without_deviation_are_centres_and_a_tenth_is_flipped():
    data = load_dataset("clusters:0", train_size=400, val_size=40, test_size=80)
    assert data.class_names == ("negative", "positive")
    for split, n in zip(data[1:4], (400, 40, 80), strict=True):
        assert (split.x.shape, split.x.dtype, split.y.dtype) == ((n, 2), np.float32, np.int32)
        for centre in ((-1, -1), (-1, 1), (1, -1), (1, 1)):
            there = (split.x == np.array(centre, np.float32)).all(axis=1)
            assert there.sum() == n // 4
            assert (split.y[there] == (centre[0] > 0)).sum() == n // 4 - n // 40


def test_moments_of_clusters():
    x = load_dataset("clusters:0.3", train_size=40_000).train.x
    noise = x - np.sign(x)
    near = noise[np.abs(noise).max(axis=1) < 1]
    assert np.abs(near.mean(axis=0)).max() < 5 * 0.3 / np.sqrt(len(near))
    assert np.abs(near.std(axis=0) - 0.3).max() < 0.01
    assert abs(np.corrcoef(noise.T)[0, 1]) < 5 / np.sqrt(len(noise))


def test_clusters_follow_the_seed_in_mixed_order():
    one, again, two = (load_dataset("clusters:0.5", split_seed=seed) for seed in (1, 1, 2))
    for part in (1, 2, 3):
        assert_array_equal(one[part].x, again[part].x)
        assert (one[part].x != two[part].x).all()
        assert 20 < one[part].y[:80].sum() < 60
    assert one.checksum == two.checksum != load_dataset("clusters:0.6").checksum
    assert len(np.unique(np.concatenate([split.x for split in one[1:4]]), axis=0)) == 3000


@pytest.mark.parametrize("text", ["x", "-0.1", "nan"])
def test_no_deviation(refused, text):
    assert "standard deviation" in refused(f"clusters:{text}")


@pytest.mark.parametrize("options", [{"train_size": 41}, {"val_size": 0}])
def test_sizes_of_clusters_out_of_range(refused, options):
    assert "give a multiple of 40" in refused("clusters:0.5", **options)


SIZES = {"train": 30, "validation": 5, "test": 7}
CLASSES = ("zebra", "ant", "mole")  # label order, not alphabetical


def write_prepared(data_dir, splits, encode=encoded, shape=(4, 5, 3)):
    """A prepared set whose records hold, as CIFAR-100's, a coarse label besides; supervised keys name the fine one."""
    import tensorflow_datasets as tfds
    from array_record.python.array_record_module import ArrayRecordWriter
    from tensorflow_datasets.proto import tf_example_pb2

    folder = data_dir / "tiny_shapes" / "1.0.0"
    folder.mkdir(parents=True)
    label, coarse = tfds.features.ClassLabel(names=CLASSES), tfds.features.ClassLabel(names=("insect", "beast"))
    features = {"image": tfds.features.Image(shape=shape), "label": label, "coarse_label": coarse}
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
    for part, (images, labels) in splits.items():
        writer = ArrayRecordWriter(str(folder / f"tiny_shapes-{part}.array_record-00000-of-00001"), "group_size:1")
        for image, number in zip(images, labels, strict=True):
            example = tf_example_pb2.Example()
            example.features.feature["image"].bytes_list.value.append(encode(image))
            example.features.feature["label"].int64_list.value.append(int(number))
            example.features.feature["coarse_label"].int64_list.value.append(1 - int(number) // 2)
            writer.write(example.SerializeToString())
        writer.close()
    return folder


@pytest.fixture
def splits():
    rng = np.random.default_rng(0)
    return {
        part: (rng.integers(0, 256, (n, 4, 5, 3), dtype=np.uint8), rng.integers(0, 3, n)) for part, n in SIZES.items()
    }


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    return tmp_path


def test_prepared_images_and_labels_round_trip(data_dir, splits):
    write_prepared(data_dir, splits)
    for name in ("tiny_shapes", "tiny_shapes:1.0.0"):
        data = load_dataset(f"tfds:{name}")
        assert data.class_names == CLASSES
        for part, split in {"validation": data.val, "test": data.test}.items():
            assert_array_equal(split.x, splits[part][0])
            assert_array_equal(split.y, splits[part][1])
            assert (split.x.dtype, split.y.dtype) == (np.uint8, np.int32)
        ours = sorted((x.tobytes(), int(y)) for x, y in zip(*data.train, strict=True))
        assert ours == sorted((x.tobytes(), int(y)) for x, y in zip(*splits["train"], strict=True))
    assert load_dataset("tfds:tiny_shapes", image_size=3).train.x.shape == (30, 3, 3, 3)
    program = "import sys; from focalgeo.data import load_dataset; load_dataset('tfds:tiny_shapes', image_size=2)\n"
    subprocess.run([sys.executable, "-c", f"{program}assert 'tensorflow' not in sys.modules"], check=True)


def test_what_is_not_prepared_or_not_installed_says_what_to_do(data_dir, refused, monkeypatch):
    message = refused("tfds:mnist/config:9.9.9")
    assert "tfds build mnist/config:9.9.9 --file_format=array_record" in message
    assert str(data_dir) in message
    monkeypatch.setitem(sys.modules, "array_record", None)
    assert "pip install 'focalgeo[tfds]'" in refused("tfds:tiny_shapes")


def test_damaged_records_images_and_labels(data_dir, splits, refused):
    folder = write_prepared(data_dir, splits | {"test": (splits["test"][0], splits["test"][1] - 1)})
    assert "test: the label of example" in refused("tfds:tiny_shapes")
    (path,) = folder.glob("*train*")
    path.write_bytes(path.read_bytes()[:100])
    assert "prepare it again" in refused("tfds:tiny_shapes")


def test_images_of_two_sizes_or_of_one_channel(data_dir, splits, refused):
    sides = iter(range(100))
    grey = lambda image: encoded(image[next(sides) % 2 :, :, 0])  # noqa: E731
    write_prepared(data_dir, splits, grey, (None, 5, 1))
    assert "set config.data.image_size" in refused("tfds:tiny_shapes")
    assert load_dataset("tfds:tiny_shapes", image_size=3).test.x.shape == (7, 3, 3, 1)
