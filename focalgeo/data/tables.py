"""Tables of any tool as a pandas.DataFrame; nothing in a file is ever executed."""

import gzip
import json
import os
import warnings
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from focalgeo import files
from focalgeo.types import InputError

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".feather")  # the first three also as .gz
_CONVERSIONS = {  # of what could run code, or holds more than a table
    ".xlsx": "pandas.read_excel(...)",
    ".h5": "pandas.read_hdf(...)",
    ".pkl": "pandas.read_pickle(...)",
    ".mat": "pandas.DataFrame(scipy.io.loadmat(...)[NAME])",
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
        mend = f"check the path, and give one of {', '.join(SUFFIXES)}, or of outputs .npz, .npy, .safetensors or .pt"
        if suffix in _CONVERSIONS:
            mend = f"convert it by {_CONVERSIONS[suffix]}.to_csv(..., index=False)"
        raise InputError(f"there is no file {path} of a known format: {mend}")
    with files.reading(path, "write it again; parquet and feather need pyarrow: pip install 'focalgeo[tables]'"):
        if suffix in (".parquet", ".feather"):
            return getattr(pandas, f"read_{suffix[1:]}")(path).reset_index(drop=True).rename_axis("row")
        if suffix == ".jsonl":
            return _read_jsonl(path)
        return _read_csv(path, "," if suffix == ".csv" else "\t", texts)


def suffix_of(path: Path) -> str:
    """The end of a name that says the format, in small letters and without .gz."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _numbered(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text and their numbers, but for empty ones."""
    with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
        yield from ((number, line) for number, line in enumerate(file, 1) if line.strip(" \r\n"))


def _read_jsonl(path):
    import pandas

    rows = {}
    for number, line in _numbered(path):
        with files.reading(f"{path}, line {number},"):
            rows[number] = dict(json.loads(line))
    return pandas.DataFrame([*rows.values()], pandas.Index([*rows], name="line"))


def _read_csv(path, mark, texts):
    import pandas

    read = partial(pandas.read_csv, path, sep=mark, skipinitialspace=True, encoding="utf-8-sig", keep_default_na=False)
    names = [name.strip() for name in read(header=None, nrows=1, dtype=str).iloc[0]]
    with warnings.catch_warnings(action="ignore"):  # of the float_precision that newer versions have unasked
        warnings.simplefilter("error", pandas.errors.ParserWarning)  # rows longer than the header would lose their ends
        table = read(
            header=0,
            names=names,
            dtype=dict.fromkeys(texts, str),
            na_values={name: "" for name in names if name not in texts},
            index_col=False,
            float_precision="round_trip",
            low_memory=False,
        )
    quotes, lines = 0, []
    for number, line in _numbered(path):
        if quotes % 2 == 0:  # within quotes a row goes on
            lines.append(number)
        quotes += line.count('"')
    index = pandas.Index(lines[1:], name="line")
    return table.set_index(index) if len(index) == len(table) else table.rename_axis("row")
