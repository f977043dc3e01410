"""Named arrays in a csv file with a header."""

import csv
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from focalgeo.data.damage import DAMAGE, damaged
from focalgeo.types import InputError


def open_csv(path: Path) -> dict[str, Callable[[], np.ndarray]]:
    """Columns `name_0`, `name_1`, ... are one float array `name` [rows, columns], any other column an array of text.

    Raises:
        InputError: no header, columns not separated by commas or out of order; when an array is read, a cell that is no
        number, by its line (counted from 1, the header included) and column.
    """
    header = _header(path)
    columns: dict[str, list[int]] = {}
    for index, name in enumerate(header):
        stem, _, number = name.rpartition("_")
        columns.setdefault(stem if number.isdecimal() else name, []).append(index)
    for stem, indices in columns.items():
        if len(indices) > 1 and [header[i] for i in indices] != [f"{stem}_{k}" for k in range(len(indices))]:
            raise InputError(f"{path}: columns of {stem!r} must be {stem}_0, {stem}_1, ... once each and in order")
    numeric = {stem for stem, indices in columns.items() if header[indices[0]] != stem}
    return {stem: partial(_array, path, stem in numeric, indices) for stem, indices in columns.items()}


def _header(path: Path) -> list[str]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header = [name.strip() for name in next(csv.reader(file), [])]
    except (UnicodeDecodeError, csv.Error) as error:
        raise damaged(path, error) from error
    if len(header) == 1:
        for mark, name in ((";", "semicolons"), ("\t", "tabs")):
            if mark in header[0]:
                raise InputError(f"{path}: columns are separated by {name}: write it with commas")
    if header and all(_is_number(name) for name in header):
        raise InputError(f"{path} has no header: begin it with a line such as labels,logits_0,logits_1")
    return header


def _array(path: Path, numeric: bool, columns: list[int]) -> np.ndarray:
    style = {"delimiter": ",", "comments": None, "quotechar": '"', "skiprows": 1, "encoding": "utf-8-sig"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a file without rows, which is refused for having too few
            if not numeric:
                return np.char.strip(np.loadtxt(path, dtype=str, usecols=columns[0], ndmin=1, **style))
            return np.loadtxt(path, dtype=np.float64, usecols=columns, ndmin=2, **style)
    except DAMAGE as error:
        raise _first_bad_cell(path, numeric, columns) or damaged(path, error) from error


def _first_bad_cell(path: Path, numeric: bool, columns: list[int]) -> InputError | None:
    """The error that names the cell at which reading ended; None where the file itself cannot be read."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            header = next(rows)
            for row in filter(None, rows):
                where = f"{path}, line {rows.line_num}"
                if len(row) <= max(columns):
                    return InputError(f"{where} has {len(row)} cells, the header {len(header)}: complete or remove it")
                for column in columns if numeric else ():
                    if not _is_number(row[column]):
                        what = f"{where}, column {header[column].strip()!r} is {row[column]!r}"
                        return InputError(f"{what}, no number: mend the cell or remove the line")
    except (*DAMAGE, csv.Error):
        return None
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
