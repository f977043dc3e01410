"""Tables of any tool as a pandas.DataFrame, and arrays and tables of one's own as data sets.

Nothing in a file is ever executed. Features of a data set are standardised by train's mean and standard deviation.
"""

import csv
import io
import json
import os
import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from focalgeo import files
from focalgeo.data import sources
from focalgeo.data.splits import RawDataset
from focalgeo.types import Dataset, InputError, Split, shown

_BINARY = (".parquet", ".feather")  # read by pyarrow
SUFFIXES = (".csv", ".tsv", ".jsonl", *_BINARY)  # the first three also as .gz
_CONVERSIONS = {  # of what could run code, or holds more than a table
    ".xlsx": "pandas.read_excel(...)",
    ".h5": "pandas.read_hdf(...)",
    ".pkl": "pandas.read_pickle(...)",
    ".mat": "pandas.DataFrame(scipy.io.loadmat(...)[NAME])",
}
# The squares of larger features leave what float32 holds.
_LARGEST = 1e30
_DECIMAL_COMMA = re.compile(rb'(?m)(?:^|;)\s*"?-?\d*,\d+(?:[eE"; \r]|$)')  # a cell that is such a number
# Each word of a column becomes a feature; a column of more holds names or texts.
_MOST_WORDS = 50
_ALIKE = "give numbers [examples, ...], alike in all splits, and a class for each example, as a whole number or name"
_GIVE = "give x and y, and perhaps x_val, y_val, x_test, y_test, by numpy.savez(path, x=x, y=y)"


def read_table(path: str | Path, *, texts: Collection[str] = ()) -> Any:
    """Read a table as a pandas.DataFrame; the end of its name says the format, one of `SUFFIXES`.

    Columns of a csv, tsv or jsonl file hold numbers where every cell is one or empty (NaN), and text elsewhere. Their
    index, named "line", is the line of the file in which a row begins; of other formats it is "row" from 0.

    texts: names of columns whose cells stay as they are written, "01" as well.

    Raises:
        InputError: no such file, another format, or one that cannot be read, with the line where there is one.
    """
    path = Path(os.path.expanduser(path))
    suffix = suffix_of(path)
    if suffix not in SUFFIXES or not os.path.isfile(path):  # a pipe would be waited for
        mend = f"check the path, and give one of {', '.join(SUFFIXES)}, or of outputs .npz, .npy, .safetensors or .pt"
        if suffix in _CONVERSIONS:
            mend = f"convert it by {_CONVERSIONS[suffix]}.to_csv(..., index=False)"
        raise InputError(f"there is no file {path} of a known format: {mend}")
    mend = "pip install 'focalgeo[tables]'" if suffix in _BINARY else "give rows of as many cells as names"
    with files.reading(path, f"{mend}, or write it again"):
        table = _read(path, suffix, texts)
    if table.empty:
        raise InputError(f"{path} has no rows: give one for each example")
    for name in table.columns[[dtype.kind == "O" for dtype in table.dtypes]]:
        table[name] = table[name].map(lambda cell: cell.strip() if isinstance(cell, str) else cell)
    return table


def _read(path, suffix, texts):
    import pandas

    if suffix in _BINARY:
        return getattr(pandas, f"read_{suffix[1:]}")(path).reset_index(drop=True).rename_axis("row")
    content = sources.content_of(path)
    if suffix != ".jsonl":
        return _read_csv(content, "," if suffix == ".csv" else "\t", texts)
    rows = {}
    for number, line in _numbered(content):
        with files.reading(f"{path}, line {number},"):
            rows[number] = dict(json.loads(line))
    return pandas.DataFrame([*rows.values()], pandas.Index([*rows], name="line"))


def suffix_of(path: Path) -> str:
    """The end of a name that says the format, in small letters and without .gz."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _numbered(content: bytes) -> Iterator[tuple[int, str]]:
    """The lines of a text and their numbers, but for empty ones."""
    return ((number, line) for number, line in enumerate(_text_of(content), 1) if line.strip(" \r\n"))


def _text_of(content):
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig")


def _read_csv(content, mark, texts):
    import pandas

    head = content.partition(b"\n")[0].decode(errors="replace")
    if mark == "," and "," not in head:  # as spreadsheets of many countries write it, perhaps with decimal commas
        mark = ";" if ";" in head else "\t"
    decimal = "," if mark == ";" and _DECIMAL_COMMA.search(content) else "."
    head = csv.reader(_text_of(content), delimiter=mark, skipinitialspace=True)  # pandas takes as long as for all rows
    names = [name.strip() for name in next(filter(None, head), [])]
    with warnings.catch_warnings(action="ignore"):  # of the float_precision that newer versions have unasked
        warnings.simplefilter("error", pandas.errors.ParserWarning)  # rows longer than the header would lose their ends
        table = pandas.read_csv(
            io.BytesIO(content),
            sep=mark,
            decimal=decimal,
            skipinitialspace=True,
            encoding="utf-8-sig",
            keep_default_na=False,
            header=0,
            names=names,
            dtype=dict.fromkeys(texts, str),
            na_values={name: "" for name in names if name not in texts},
            index_col=False,
            float_precision="round_trip",
            low_memory=False,
        )
    quotes, lines = 0, []
    for number, line in _numbered(content):
        # Within quotes a row goes on over several lines.
        if quotes % 2 == 0:
            lines.append(number)
        quotes += line.count('"')
    index = pandas.Index(lines[1:], name="line")
    return table.set_index(index) if len(index) == len(table) else table.rename_axis("row")


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
    with files.reading(source.where, _GIVE):
        file = sources.open_npz(source.path)
        ends = {"train": "_train" if "x_train" in file else "", "val": "_val", "test": "_test"}
        for part, end in ends.items():
            x, y = f"x{end}", f"y{end}"
            if part == "train" or {x, y} & {*file}:
                splits[part] = Split(file[x], file[y])
    return _dataset(source, splits)


def read_columns(location: str, label: str | None) -> RawDataset:
    """The rows of a .csv, .tsv, .parquet, .feather or .jsonl, of which a column is the class.

    All are one split. The column `label` holds the classes, the others are features. A column of words becomes one of 0
    and 1 for each of them, at most `_MOST_WORDS`.

    Raises:
        InputError: as `read_arrays`; no such column, an empty cell, or a column of more words.
    """
    import pandas  # slow to import

    source = sources.find("table", location)
    table = read_table(source.path)
    if label not in table:
        raise InputError.of_choice("config.data.label", str(label), table.columns)
    for name, column in table.items():
        if re.fullmatch("(Unnamed: [0-9]+)?", name):
            raise InputError(f"{source.where}: a column has no name, as an index has none: name it, or leave it out")
        words = column.dtype.kind == "O" and name != label and column.nunique() > _MOST_WORDS
        wrong = pandas.to_numeric(column, errors="coerce").isna() if words else column.isna()
        if wrong.any():
            what = (
                f"{name} is {shown(column[wrong].iloc[0])!r}, among more than {_MOST_WORDS} words: fix it, or make all"
            )
            mend = f"{what} numbers" if words else f"{name} is empty: fill it in"
            where = f"{source.where}, {table.index.name} {wrong.idxmax()}"
            raise InputError(f"{where}: {mend}, or leave out the row or the column")
    x = pandas.get_dummies(table.drop(columns=label), dtype=float)
    if x.columns.has_duplicates:
        raise InputError(f"{source.where}: {x.columns[x.columns.duplicated()][0]} is two features: rename a column")
    y = table[label].to_numpy()
    train = Split(x.to_numpy(float), y.astype(str) if y.dtype.kind == "O" else y)
    return _dataset(source, {"train": train})._replace(features=tuple(x.columns))


def _dataset(source, splits):
    """The data set of these splits; features are named by their places along x's last axis."""
    like = splits["train"].x
    for part, (x, y) in splits.items():
        alike = x.dtype.kind in "fiub" and x.ndim > 1 and (x.dtype, x.shape[1:]) == (like.dtype, like.shape[1:])
        if not alike or y.dtype.kind not in "biuU" or y.shape != x.shape[:1]:
            what = f"{part} has x {x.dtype}{list(x.shape)} and y {y.dtype}{list(y.shape)}"
            raise InputError(f"{source.where}: {what}: {_ALIKE}")
        wrong = ~(np.abs(x) <= _LARGEST).all(axis=tuple(range(1, x.ndim)))
        if wrong.any():
            what = f"row {np.argmax(wrong)} of {part} holds NaN, infinity or more than {_LARGEST:g}"
            raise InputError(f"{source.where}: {what}: fix it or leave it out")
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
    # The deviation of a constant may round to more than 0, and would be divided by.
    mean, std = rows.mean(0), rows.std(0) * (np.ptp(rows, 0) > 0)
    divisor = np.where(std, std, np.inf)
    train, val, test = (Split(((x - mean) / divisor).astype(np.float32), y) for x, y in data[1:4])
    moments = dict(zip(features, np.stack([mean, std], 1).tolist(), strict=True))
    return data._replace(train=train, val=val, test=test, features=moments)
