"""Data sets of one's own arrays: splits, classes, standardisation by train, and what is refused."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas
import pytest
from data.conftest import assert_same
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.preprocessing import StandardScaler

from configs import digits
from focalgeo import job, records, run
from focalgeo.config import parse_arguments, with_values
from focalgeo.data import load_dataset
from focalgeo.rows import Metric, select
from focalgeo.types import InputError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def saved():
    """Saves arrays, and gives the name of the data set."""

    def name(**arrays):
        np.savez("own.npz", **arrays)
        return "arrays:own.npz"

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
        assert_allclose(split.x, np.where(std > 0, scaler.transform(of_split), 0), atol=1e-6)
        assert_allclose(split.x, (of_split - mean) / divisor, atol=1e-6)
        assert_array_equal(split.y, [y[np.flatnonzero(x[:, 0] == row[0])[0]] for row in of_split])


def test_own_splits_stay_and_classes_are_train_s_names_in_order(saved):
    x, y = drawn()
    names = np.array(["bee", "ant", "cat", "dog"])[y]
    others = {"x_val": x[:5], "y_val": names[:5], "x_test": x[5:9], "y_test": names[5:9]}
    data = load_dataset(saved(x=x, y=names, **others))
    assert data.class_names == ("ant", "bee", "cat", "dog")
    assert [len(split.y) for split in data[1:4]] == [40, 5, 4]
    assert_array_equal(np.array(data.class_names)[data.test.y], names[5:9])
    assert_same(data, load_dataset(saved(x_train=x, y_train=names, **others)))


def test_whole_numbers_are_classes_in_their_own_order(saved):
    (x, y), labels = drawn(), (10 * np.arange(4)).astype(np.uint8)
    data = load_dataset(saved(x=x, y=labels[y], x_test=x, y_test=labels[y]))
    assert data.class_names == ("0", "10", "20", "30")
    assert_array_equal(data.test.y, y)


@pytest.mark.parametrize("shape", [(40, 6, 5), (40, 6, 5, 3)])
def test_images_of_8_bits_stay_and_others_are_standardised_by_channel(saved, shape):
    x, y = drawn(shape)
    pixels = (20 * x).clip(0, 255).astype(np.uint8)
    data = load_dataset(saved(x=pixels, y=y, x_test=pixels, y_test=y))
    assert_array_equal(data.test.x, pixels.reshape(40, 6, 5, -1))
    assert data.test.x.dtype == np.uint8
    assert data.features is None
    of_floats = load_dataset(saved(x=x.astype(np.float32), y=y, x_test=x.astype(np.float32), y_test=y))
    assert of_floats.train.x.shape == (36, *data.test.x.shape[1:])
    assert_allclose(of_floats.train.x.mean((0, 1, 2)), 0, atol=1e-5)
    assert_allclose(of_floats.train.x.std((0, 1, 2)), 1, atol=1e-5)


X, Y = drawn()
HOLED = np.where(np.arange(40)[:, None] == 17, np.nan, X)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": X, "y": Y, "x_val": X}, "y_val is not a file in the archive"),
        ({"x": X, "y": Y, "y_test": Y}, "give x and y, and perhaps x_val"),
        ({"x": X, "y": Y[:39]}, "train has x float64[40, 3] and y int64[39]: give"),
        ({"x": X, "y": Y, "x_test": HOLED, "y_test": Y}, "row 17 of test"),
        ({"x": np.where(np.isnan(HOLED), 1e31, X), "y": Y}, "row 17 of train"),
        ({"x": X, "y": Y, "x_test": X.astype(np.uint8), "y_test": Y}, "test has x uint8[40, 3]"),
    ],
)
def test_bad_arrays_are_one_line(saved, refused, arrays, says):
    assert says in refused(saved(**arrays))


def test_no_file_and_no_archive_of_arrays(refused):
    assert "there is no such" in refused("arrays:gone.npz")
    np.save("x.npy", X)
    assert "numpy.savez(path, x=x, y=y)" in refused("arrays:x.npy")


@pytest.fixture
def table():
    """Writes a csv file of 40 flowers, whose first lines may be others; gives the name of the data set."""

    def name(*lines, header="length,colour,kind,wild"):
        rows = [
            f"{row / 7},{('red', 'blue')[row % 2]},{('rose', 'lily')[row // 5 % 2]},{row % 3 == 0}" for row in range(40)
        ]
        Path("own.csv").write_text("\n".join([header, *lines, *rows[len(lines) :]]) + "\n")
        return "table:own.csv"

    return name


def test_columns_of_numbers_words_and_truth_values_are_features(table):
    data = load_dataset(table(), label="kind")
    assert data.class_names == ("lily", "rose")
    assert [*data.features] == ["length", "wild", "colour_blue", "colour_red"]
    mean, std = np.array([*data.features.values()]).T
    for split in data[1:4]:
        length, wild, blue, red = (split.x * std + mean).T
        row = np.round(7 * length)
        assert_allclose(7 * length, row, atol=1e-4)
        assert_allclose(wild, row % 3 == 0, atol=1e-6)
        assert_allclose(blue, row % 2, atol=1e-6)
        assert_allclose(red, 1 - row % 2, atol=1e-6)
        assert_array_equal(split.y, row // 5 % 2 == 0)


@pytest.mark.parametrize(
    ("lines", "label", "says"),
    [
        ((), None, "config.data.label is 'None': choose one of length, colour, kind, wild"),
        (("1,red,rose,True", ",red,lily,True"), "kind", "own.csv, line 3: length is empty: fill it in"),
        ((), "length", "y float64[40]"),
        (
            [f"{row},no{row},rose,True" for row in range(60)],
            "kind",
            "own.csv, line 2: colour is 'no0', among more than 50 words: fix it, or make all numbers",
        ),
        (
            [f"{row},{row / 8 if row != 9 else 'nan'},rose,True" for row in range(60)],
            "kind",
            "own.csv, line 11: colour is 'nan', among",
        ),
    ],
)
def test_bad_tables_are_one_line(table, refused, lines, label, says):
    assert says in refused(table(*lines), label=label)


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_an_index_is_no_feature(table, refused, name):
    assert "a column has no name, as an index has none" in refused(
        table(header=f"{name},colour,kind,wild"), label="kind"
    )


def quick(name):
    config = digits.get_config("quick")
    config.data.name = name
    config.curvature.examples = 0
    config.evaluation.methods = ("temperature_scaling",)
    return config


def test_pixels_beyond_the_scale_are_told_which_fields_to_set(saved):
    config = quick(saved(x=np.full((40, 8, 8), 240, np.uint8), y=Y))
    with pytest.raises(InputError, match=r"pixels up to 240: set --config.data.scale=255"):
        job.run(config, "run")
    assert not Path("run").exists()


@pytest.mark.long
def test_the_recipe_of_the_page_on_training_runs():
    text = (ROOT / "docs/training.md").read_text().partition("## Your own arrays and tables")[2]
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], {})
    with np.load("wine.npz") as wine:
        names = np.array(["barolo", "grignolino", "barbera"])[wine["y"]]
        pandas.DataFrame(wine["x"]).assign(species=names).to_csv("flowers.csv", index=False)
    for command in re.findall(r"^python -m focalgeo.run (.*arrays:.*|.*table:.*)$", text, re.MULTILINE):
        values, flags = parse_arguments(shlex.split(command), run.FLAGS)
        config = with_values(quick(None), {**values, "optimizer.epochs": 20})
        rows = job.run(config, flags["workdir"])
        (accuracy,) = select(rows, Metric, name="accuracy", split="test", method="uncalibrated")
        assert accuracy.value > 0.8
    manifest = records.read_manifest(flags["workdir"])
    assert manifest["data"]["classes"] == ["barbera", "barolo", "grignolino"]
    assert len(manifest["features"]) == 13
    arrays, table = (np.load(f"runs/{name}/predictions/val.npz")["labels"] for name in ("wine", "flowers"))
    assert_array_equal(np.array([1, 2, 0])[arrays], table)
