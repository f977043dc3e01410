"""Arrays and tables of one's own as data sets; features are standardised by train's mean and standard deviation."""

from collections.abc import Sequence

import numpy as np

from focalgeo import files
from focalgeo.data import sources, tables
from focalgeo.data.splits import RawDataset
from focalgeo.types import Dataset, InputError, Split, shown

LARGEST = 1e30  # of a feature: squares of more leave what float32 holds
MOST_WORDS = 50  # of a column, each of which becomes a feature
ALIKE = "give numbers [examples, ...], alike in all splits, and a class for each example, as a whole number or name"
GIVE = "give x and y, and perhaps x_val, y_val, x_test, y_test, by numpy.savez(path, x=x, y=y)"


def read_arrays(location: str) -> RawDataset:
    """Arrays of your own: x and y, perhaps x_val, y_val, x_test, y_test.

    They are x [examples, ...] and y [examples] of an .npz file, the others alike.
    x_train and y_train, as Keras names them, serve as well. uint8 [examples, height, width, channels] are images;
    without channels they have one. All other numbers are features, or images whose channels are the features, to be
    `standardised`. Classes are the sorted numbers or names in y.

    Raises:
        InputError: nothing there, no x or y, lengths or shapes that differ, numbers that are not finite.
    """
    source, splits = sources.find("arrays", location), {}
    with files.reading(source.where, GIVE), np.load(source.path, allow_pickle=False) as file:
        ends = {"train": "_train" if "x_train" in file else "", "val": "_val", "test": "_test"}
        for part, end in ends.items():
            x, y = f"x{end}", f"y{end}"
            if part == "train" or {x, y} & {*file}:
                splits[part] = Split(file[x], file[y])
    return _dataset(source, splits)


def read_columns(location: str, label: str | None = None) -> RawDataset:
    """The rows of a .csv, .tsv, .parquet, .feather or .jsonl, of which a column is the class.

    All are one split. The column `label` holds the classes, the others are features. A column of words becomes one of 0
    and 1 for each of them, at most `MOST_WORDS`.

    Raises:
        InputError: as `read_arrays`; no such column, an empty cell, or a column of more words.
    """
    import pandas  # slow to import

    source = sources.find("table", location)
    table = tables.read_table(source.path)
    if label not in table:
        raise InputError.of_choice("config.data.label", str(label), table.columns)
    for name, column in table.items():
        if column.hasnans:
            where = f"{source.where}, {table.index.name} {column.isna().idxmax()}"
            raise InputError(f"{where}: {name} is empty: fill it in, or leave out the row or the column")
        if column.dtype.kind == "O" and name != label and column.nunique() > MOST_WORDS:
            what = f"column {name} holds more than {MOST_WORDS} words, such as {shown(column.iloc[-1])}"
            raise InputError(f"{source.where}: {what}: make them numbers, or leave the column out")
    x = pandas.get_dummies(table.drop(columns=label), dtype=float)
    if x.columns.has_duplicates:
        raise InputError(f"{source.where}: {x.columns[x.columns.duplicated()][0]} is two features: rename a column")
    y = table[label].to_numpy()
    train = Split(x.to_numpy(float), y.astype(str) if y.dtype.kind == "O" else y)
    return _dataset(source, {"train": train})._replace(features=tuple(x.columns))


def _dataset(source: sources.Source, splits: dict[str, Split]) -> RawDataset:
    """The data set of these splits; features are named by their places along x's last axis."""
    like = splits["train"].x
    for part, (x, y) in splits.items():
        alike = x.dtype.kind in "fiub" and x.ndim > 1 and (x.dtype, x.shape[1:]) == (like.dtype, like.shape[1:])
        if not alike or y.dtype.kind not in "biuU" or y.shape != x.shape[:1]:
            what = f"{part} has x {x.dtype}{list(x.shape)} and y {y.dtype}{list(y.shape)}"
            raise InputError(f"{source.where}: {what}: {ALIKE}")
        wrong = ~(np.abs(x) <= LARGEST).all(axis=tuple(range(1, x.ndim)))
        if wrong.any():
            what = f"row {np.argmax(wrong)} of {part} holds NaN, infinity or more than {LARGEST:g}"
            raise InputError(f"{source.where}: {what}: mend it or leave it out")
    classes = np.unique(np.concatenate([y for _, y in splits.values()]))
    for part, (x, y) in splits.items():
        x = x[..., None] if x.ndim == 3 else x
        splits[part] = Split(x, np.searchsorted(classes, y).astype(np.int32))
    features = () if x.dtype == np.uint8 and x.ndim == 4 else tuple(map(str, range(x.shape[-1])))
    return RawDataset(splits, tuple(map(str, classes.tolist())), source.checksum, features=features)


def standardised(data: Dataset, features: Sequence[str]) -> Dataset:
    """The data set with x as float32 (x - mean) / std along its last axis, by train; 0 where train is constant.

    features: their names; the result holds mean and std by these, std 0 for a constant.
    """
    rows = data.train.x.reshape(-1, len(features)).astype(float)
    mean, std = rows.mean(0), rows.std(0) * (np.ptp(rows, 0) > 0)  # of a constant it may round to more than 0
    divisor = np.where(std, std, np.inf)
    train, val, test = (Split(((x - mean) / divisor).astype(np.float32), y) for x, y in data[1:4])
    moments = dict(zip(features, np.stack([mean, std], 1).tolist(), strict=True))
    return data._replace(train=train, val=val, test=test, features=moments)
