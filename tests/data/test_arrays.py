"""Data sets of one's own arrays: splits, classes, standardisation by train, and what is refused."""

import json

import numpy as np
import pytest
from data.conftest import assert_same
from sklearn.preprocessing import StandardScaler

from configs import digits
from focalgeo import job, records
from focalgeo.data import load_dataset
from focalgeo.rows import Metric, select
from focalgeo.types import InputError


@pytest.fixture
def saved(tmp_path):
    """Saves arrays, and gives the name of the data set."""

    def name(**arrays):
        np.savez(tmp_path / "own.npz", **arrays)
        return f"arrays:{tmp_path / 'own.npz'}"

    return name


def drawn(shape=(40, 3), classes=4):
    rng = np.random.default_rng(0)
    return rng.normal(5, 3, shape), rng.permutation(np.arange(shape[0]) % classes)


def test_features_are_standardised_by_train_as_scikit_learn_does(saved):
    x, y = drawn((100, 4))
    x[:, 1] = 0.1  # a mean of these rounds
    data = load_dataset(saved(x=x, y=y), train_size=50)
    rows = {row[0]: row for row in x}
    assert [len(split.y) for split in data[1:4]] == [50, 20, 20]
    mean, std = np.array([*data.features.values()]).T
    assert std[1] == 0
    divisor = np.where(std > 0, std, np.inf)
    original = [np.array([rows[min(rows, key=lambda key: abs((key - mean[0]) / std[0] - row[0]))] for row in split.x])
                for split in data[1:4]]  # fmt: skip
    scaler = StandardScaler().fit(original[0])
    for split, of_split in zip(data[1:4], original, strict=True):
        assert split.x.dtype == np.float32
        np.testing.assert_allclose(split.x, np.where(std > 0, scaler.transform(of_split), 0), atol=1e-6)
        np.testing.assert_allclose(split.x, (of_split - mean) / divisor, atol=1e-6)
        np.testing.assert_array_equal(split.y, [y[np.flatnonzero(x[:, 0] == row[0])[0]] for row in of_split])


def test_own_splits_stay_and_classes_are_train_s_names_in_order(saved):
    x, y = drawn()
    names = np.array(["bee", "ant", "cat", "dog"])[y]
    data = load_dataset(saved(x=x, y=names, x_val=x[:5], y_val=names[:5], x_test=x[5:9], y_test=names[5:9]))
    assert data.class_names == ("ant", "bee", "cat", "dog")
    assert [len(split.y) for split in data[1:4]] == [40, 5, 4]
    np.testing.assert_array_equal(np.array(data.class_names)[data.test.y], names[5:9])
    of_keras = load_dataset(saved(x_train=x, y_train=names, x_val=x[:5], y_val=names[:5], x_test=x[5:9],
                                  y_test=names[5:9]))  # fmt: skip
    assert_same(data, of_keras)


@pytest.mark.parametrize("labels", [10 * np.arange(4), 10.0 * np.arange(4), (10 * np.arange(4)).astype(np.uint8)])
def test_whole_numbers_are_classes_in_their_own_order(saved, labels):
    x, y = drawn()
    data = load_dataset(saved(x=x, y=labels[y], x_test=x, y_test=labels[y]))
    assert data.class_names == ("0", "10", "20", "30")
    np.testing.assert_array_equal(data.test.y, y)


@pytest.mark.parametrize("shape", [(40, 6, 5), (40, 6, 5, 3)])
def test_images_of_8_bits_stay_and_others_are_standardised_by_channel(saved, shape):
    x, y = drawn(shape)
    pixels = (20 * x).clip(0, 255).astype(np.uint8)
    data = load_dataset(saved(x=pixels, y=y, x_test=pixels, y_test=y))
    np.testing.assert_array_equal(data.test.x, pixels.reshape(40, 6, 5, -1))
    assert data.test.x.dtype == np.uint8
    assert data.features is None
    of_floats = load_dataset(saved(x=x.astype(np.float32), y=y, x_test=x.astype(np.float32), y_test=y))
    assert of_floats.train.x.shape == (36, *data.test.x.shape[1:])
    np.testing.assert_allclose(of_floats.train.x.mean((0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(of_floats.train.x.std((0, 1, 2)), 1, atol=1e-5)


X, Y = drawn()
HOLED = np.where(np.arange(40)[:, None] == 17, np.nan, X)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"y": Y}, "has no array x, only y: give x and y"),
        ({"z": Y}, "has no array x, only z"),
        ({"x": X}, "has no array y, only x"),
        ({"x": X, "y": Y, "x_val": X}, "has no array y_val"),
        ({"x": X, "y": Y[:39]}, "train: y is int64 of shape (39,), x has shape (40, 3)"),
        ({"x": X, "y": np.eye(4)[Y]}, "train: y is int64 of shape (40, 4)"),
        ({"x": X, "y": Y / 2}, "train: y is float64 of shape (40,)"),
        ({"x": X, "y": np.arange(40)}, "40 different values in 40 examples"),
        ({"x": X, "y": 0 * Y}, "one class only"),
        ({"x": HOLED, "y": Y}, "x of 1 examples is NaN, infinite or beyond 1e+30, the first in row 17"),
        ({"x": X, "y": Y, "x_test": HOLED, "y_test": Y}, "test: x of 1 examples is NaN"),
        ({"x": X[:, 0], "y": Y}, "train: x is float64 of shape (40,)"),
        ({"x": X.astype(str), "y": Y}, "give numbers [examples, features]"),
        ({"x": X[:0], "y": Y[:0]}, "of shape (0, 3)"),
        ({"x": X, "y": Y, "x_test": X[:, :2], "y_test": Y}, "test: x is float64 of shape (40, 2), of train"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y + 1}, "y has 4, a class that train has not"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y.astype(str)}, "test: y is <U"),
        ({"x": X, "y": Y.astype(object)}, "it holds more than arrays, which could run code"),
    ],
)
def test_bad_arrays_are_one_line(saved, refused, arrays, says):
    assert says in refused(saved(**arrays))


def test_no_file_and_no_archive_of_arrays(refused, tmp_path):
    assert "there is no such" in refused("arrays:gone.npz")
    np.save(tmp_path / "x.npy", X)
    assert "numpy.savez(path, x=x, y=y)" in refused(f"arrays:{tmp_path / 'x.npy'}")
    assert "config.data.name is 'arrays'" in refused("arrays")


def quick(name):
    config = digits.get_config("quick")
    config.data.name = name
    config.curvature.examples = 0
    config.evaluation.methods = ("temperature_scaling",)
    return config


def digits_of(x):
    from sklearn.datasets import load_digits

    return {"x": x(load_digits().images), "y": load_digits().target}


def test_pixels_beyond_the_scale_are_told_which_fields_to_set(saved, tmp_path):
    config = quick(saved(**digits_of(lambda x: (15 * x).astype(np.uint8))))
    with pytest.raises(InputError, match=r'config.data.scale=255 --config.data.mean="\(0.28') as caught:
        job.run(config, tmp_path / "run")
    assert "pixels up to 240" in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_digits_from_a_file_are_the_digits_and_as_features_train_as_well(saved, tmp_path):
    runs = {"own": "digits", "images": saved(**digits_of(lambda x: x.astype(np.uint8)))}
    for workdir, name in runs.items():
        job.run(quick(name), tmp_path / workdir)
    own, images = (np.load(tmp_path / workdir / "predictions/test.npz")["logits"] for workdir in runs)
    np.testing.assert_array_equal(own, images)
    config = quick(saved(**digits_of(lambda x: x.reshape(len(x), -1))))
    config.optimizer.epochs = 6
    rows = job.run(config, tmp_path / "features")
    (accuracy,) = select(rows, Metric, name="accuracy", split="test", method="uncalibrated")
    assert accuracy.value > 0.8
    assert (tmp_path / "features/report.html").exists()
    features = records.read_manifest(tmp_path / "features")["features"]
    assert [*features] == [str(number) for number in range(64)]
    assert features["0"] == [0, 0]
    assert json.loads((tmp_path / "images/manifest.json").read_text())["features"] is None
