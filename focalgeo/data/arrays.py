"""Arrays and tables of one's own as data sets; features are standardised by train's mean and standard deviation."""

from collections.abc import Iterator, Sequence

import numpy as np

from focalgeo.data import sources
from focalgeo.data.splits import Options, RawDataset
from focalgeo.types import Dataset, InputError, Split

LARGEST = 1e30  # of a feature: squares of more leave float64 before long, and float32 at once
GIVE = "give x and y, and perhaps x_val, y_val, x_test, y_test, as numpy.savez(path, x=x, y=y) writes them"


def read_arrays(location: str, options: Options) -> RawDataset:
    """The arrays x [examples, ...] and y [examples] of an .npz file, and perhaps x_val, y_val, x_test, y_test.

    x_train and y_train, as Keras names them, serve as well. uint8 [examples, height, width, channels] are images;
    without channels they have one. All other numbers are features, or images whose channels are the features, to be
    `standardised`. Classes are the sorted numbers or names in train's y.

    Raises:
        InputError: nothing there, no x or y, lengths or shapes that differ, numbers that are not finite, labels that
            are no classes of train.
    """
    source = sources.find("arrays", location)
    with sources.reading(source.where, GIVE), np.load(source.path, allow_pickle=False) as file:
        arrays = dict(file)
    splits = {}
    for part in ("train", "val", "test"):
        names = [f"{axis}_{part}" for axis in Split._fields]
        if part == "train":
            names = [name if name in arrays else name[0] for name in names]
        absent = [name for name in names if name not in arrays]
        if len(absent) == 1 or (absent and part == "train"):
            raise InputError(f"{source.where} has no array {absent[0]}, only {', '.join(arrays) or 'none'}: {GIVE}")
        if not absent:
            splits[part] = Split(*(arrays[name] for name in names))
    return _dataset(source, splits)


def _dataset(source: sources.Source, splits: dict[str, Split]) -> RawDataset:
    """The data set of these splits; its features are named by their places along x's last axis."""
    splits = {part: split._replace(y=_labels(split.y)) for part, split in splits.items()}
    train = splits["train"]
    for part, split in splits.items():
        for fault in _faults(split, train):
            raise InputError(f"{source.where}: {part}: {fault}")
    classes, unnamed = np.unique(train.y), train.x.ndim == 3
    for part, (x, y) in splits.items():
        splits[part] = Split(x[..., None] if unnamed else x, np.searchsorted(classes, y).astype(np.int32))
    x = splits["train"].x
    features = () if x.dtype == np.uint8 and x.ndim == 4 else tuple(map(str, range(x.shape[-1])))
    return RawDataset(splits, tuple(map(str, classes.tolist())), source.checksum, features=features)


def _labels(y: np.ndarray) -> np.ndarray:
    """Labels that are whole numbers as int64, also where they are floats; truth values and bytes as text."""
    if y.dtype.kind in "iu" or (y.dtype.kind == "f" and (np.abs(y) < 2**53).all() and (y == np.round(y)).all()):
        return y.astype(np.int64)
    return y.astype(str) if y.dtype.kind in "Sb" else y


def _faults(split: Split, train: Split) -> Iterator[str]:
    """What is wrong with a split, one line each; a line may be asked for only where those above it do not hold."""
    x, y = split
    if x.dtype.kind not in "fiub" or x.ndim < 2 or not x.size:
        yield f"x is {x.dtype} of shape {x.shape}: give numbers [examples, features], or images"
    if (x.dtype, x.shape[1:]) != (train.x.dtype, train.x.shape[1:]):
        yield f"x is {x.dtype} of shape {x.shape}, of train {train.x.dtype} of {train.x.shape}: give both alike"
    if y.shape != x.shape[:1] or y.dtype.kind not in "iU" or y.dtype.kind != train.y.dtype.kind:
        yield f"y is {y.dtype} of shape {y.shape}, x has shape {x.shape}: give each example a class, by number or name"
    wrong = ~(np.abs(x) <= LARGEST).reshape(len(x), -1).all(axis=1)
    if wrong.any():
        what = f"x of {wrong.sum()} examples is NaN, infinite or beyond {LARGEST:g}"
        yield f"{what}, the first in row {np.argmax(wrong)}: remove or mend them"
    classes = np.unique(train.y)
    if 2 * len(classes) > len(train.y):
        yield f"y has {len(classes)} different values in {len(train.y)} examples: give classes"
    strange = np.setdiff1d(y, classes)
    if strange.size:
        yield f"y has {strange[0]}, a class that train has not: give train examples of it"


def standardised(data: Dataset, features: Sequence[str]) -> Dataset:
    """The data set with x as float32 (x - mean) / std along its last axis, by train; 0 where train is constant.

    features: their names; the result holds mean and std by these, std 0 for a constant.
    """
    x = data.train.x
    axes = tuple(range(x.ndim - 1))
    mean, std = x.mean(axes, dtype=np.float64), x.std(axes, dtype=np.float64)
    std[x.max(axes) == x.min(axes)] = 0
    factor = np.divide(1, std, out=np.zeros_like(std), where=std > 0)
    splits = {part: getattr(data, part) for part in ("train", "val", "test")}
    splits = {part: Split(((x - mean) * factor).astype(np.float32), y) for part, (x, y) in splits.items()}
    moments = zip(mean.tolist(), std.tolist(), strict=True)
    return data._replace(features=dict(zip(features, moments, strict=True)), **splits)
