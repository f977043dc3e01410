"""Tables of any tool as a pandas.DataFrame; nothing in a file is ever executed."""

import gzip
import json
import os
import warnings
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from focalgeo.data import sources
from focalgeo.types import InputError

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".feather")  # the first three also as .gz
_CONVERSIONS = {  # of what could run code, or holds more than a table
    ".xls": "pandas.read_excel({!r})",
    ".xlsx": "pandas.read_excel({!r})",
    ".h5": "pandas.read_hdf({!r})",
    ".hdf5": "pandas.read_hdf({!r})",
    ".pkl": "pandas.read_pickle({!r})",
    ".pickle": "pandas.read_pickle({!r})",
    ".mat": "pandas.DataFrame(scipy.io.loadmat({!r})[NAME])",
}


def read_table(path: str | Path, *, texts: Collection[str] = ()) -> Any:
    """Read a table as a pandas.DataFrame; the end of its name says the format, one of `SUFFIXES`.

    Columns of a csv, tsv or jsonl file hold numbers where every cell is one or empty (NaN), and text elsewhere. Their
    index, named "line", is the line of the file in which a row begins; of other formats it is "row" from 0.

    texts: names of columns whose cells stay as they are written, "01" as well.

    Raises:
        InputError: no such file, another format, or one that cannot be read, with the line where there is one.
    """
    import pandas  # slow to import

    path = Path(os.path.expanduser(path))
    suffix = suffix_of(path)
    if suffix not in SUFFIXES or not os.path.isfile(path):  # a pipe would be waited for
        known = _CONVERSIONS.get(suffix, "").format(path.name)
        mend = f"convert it by {known}.to_csv({path.stem + '.csv'!r}, index=False)"
        mend = (
            mend
            if known
            else f"check the path, and give one of {', '.join(SUFFIXES)}, or of outputs .npz, .npy, .safetensors or .pt"
        )
        raise InputError(f"there is no file {path} of a known format: {mend}")
    with sources.reading(path, "write it again; parquet and feather need pyarrow (pip install pyarrow)"):
        if suffix in (".parquet", ".feather"):
            return getattr(pandas, f"read_{suffix[1:]}")(path).reset_index(drop=True).rename_axis("row")
        if suffix == ".jsonl":
            return pandas.DataFrame(*_records(path))
        return _read_csv(path, "," if suffix == ".csv" else "\t", texts)


def suffix_of(path: Path) -> str:
    """The end of a name that says the format, in small letters and without .gz."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _open(path: Path) -> TextIO:
    return (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rt", encoding="utf-8-sig")


def _records(path):
    """The objects of a jsonl file and their index."""
    import pandas

    rows, lines = [], []
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                with sources.reading(f"{path}, line {number},"):
                    rows.append(dict(json.loads(line)))
                lines.append(number)
    return rows, pandas.Index(lines, name="line")


def _read_csv(path, mark, texts):
    import pandas

    read = partial(pandas.read_csv, path, sep=mark, skipinitialspace=True, encoding="utf-8-sig", keep_default_na=False)
    names = [name.strip() for name in read(header=None, nrows=1, dtype=str).iloc[0]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the float_precision that newer versions have unasked
        warnings.simplefilter("error", pandas.errors.ParserWarning)  # rows longer than the header would lose their ends
        options = {"index_col": False, "float_precision": "round_trip", "low_memory": False}
        options |= {"na_values": {name: "" for name in names if name not in texts}}
        table = read(header=0, names=names, dtype=dict.fromkeys({*names} & {*texts}, str), **options)
    _, *lines = _lines(path)
    return table.set_index(pandas.Index(lines, name="line")) if len(lines) == len(table) else table.rename_axis("row")


def _lines(path: Path) -> Iterator[int]:
    """The line in which each record of a csv file begins: within quotes a record goes on, and empty lines are none."""
    quotes = 0
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            if quotes % 2 == 0 and line.strip(" \r\n"):
                yield number
            quotes += line.count('"')
