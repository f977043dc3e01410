"""Word vectors from a text file in GloVe's format, as the rows of a vocabulary."""

import gzip
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from focalgeo.data.damage import DAMAGE, damaged
from focalgeo.types import InputError


def read_embeddings(path: str | os.PathLike, vocabulary: Sequence[str], *, seed: int = 0) -> np.ndarray:
    """The vectors of the words as float32 [len(vocabulary), size]; the row of padding is 0.

    Rows of words that the file has not are drawn from N(0, s), s the standard deviation of all values found.

    Args:
        path: a text file with "word v1 v2 ..." on each line, in UTF-8, plain or .gz; or a .zip that holds one, or
            <archive>.zip/<file> for one of several. The first line sets `size`; a longer line has a word with spaces in
            it, and is passed over, since no vocabulary has one. A first line of two integers (word2vec's) is skipped.
            Of a word that stands twice the first line counts.
        vocabulary: words by token id; the first is padding.
        seed: of the draws. A row depends on it, s, and its place in the vocabulary only.

    Raises:
        InputError: no such file, a damaged one, a line with too few columns or with values that are no finite numbers
            (named by its number), or no word of the vocabulary in it.

    Accuracy:
        float32 of the decimal numbers, held by tests/data/test_embeddings.py.

    Source:
        Pennington et al., EMNLP 2014 (the format); the draws are ours.
    """
    path = Path(path).expanduser()
    wanted = {word.encode(): row for row, word in enumerate(vocabulary) if row > 0}
    with _opened(path) as file:
        try:
            found = _read_vectors(file, wanted, path)
        except DAMAGE as error:
            if isinstance(error, InputError):
                raise
            raise damaged(path, error) from error
    if not found:
        raise InputError(
            f"{path} has none of the {len(wanted)} words of the vocabulary: give vectors of their language"
        )
    rows, vectors = list(found), np.stack(list(found.values()))
    drawn = np.random.default_rng(seed).normal(0, vectors.std(dtype=np.float64), (len(vocabulary), vectors.shape[1]))
    table = drawn.astype(np.float32)
    table[rows] = vectors
    table[0] = 0
    return table


def _read_vectors(file: BinaryIO, wanted: dict[bytes, int], path: Path) -> dict[int, np.ndarray]:
    found: dict[int, np.ndarray] = {}
    size = 0
    for number, line in enumerate(file, start=1):
        line = line.rstrip(b" \r\n")
        columns = line.count(b" ")
        if size == 0:
            if number == 1 and columns == 1 and line.replace(b" ", b"").isdigit():
                continue
            size = columns
        if columns < size or size == 0:
            raise InputError(
                f"{path}, line {number}: {columns} numbers where {size or 'some'} are expected: mend the file"
            )
        if columns > size:
            continue
        word, _, values = line.partition(b" ")
        row = wanted.get(word)
        if row is not None and row not in found:
            found[row] = _vector(values, f"{path}, line {number}")
    return found


def _vector(values: bytes, where: str) -> np.ndarray:
    try:
        vector = np.array([float(value) for value in values.split(b" ")])
    except ValueError as error:
        raise InputError(f"{where}: {error}: mend the file") from error
    if not (np.abs(vector) <= np.finfo(np.float32).max).all():
        raise InputError(f"{where}: a value is not finite in float32: mend the file")
    return vector.astype(np.float32)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    archive = next((p for p in (path, *path.parents) if p.suffix.lower() == ".zip" and p.is_file()), None)
    if archive is None and not path.is_file():
        raise InputError(f"there is no file {path}: check the path, relative to {Path.cwd()}")
    try:
        if archive is None:
            with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as file:
                yield file
            return
        with zipfile.ZipFile(archive) as members, members.open(_member(path, archive, members.namelist())) as file:
            yield file
    except DAMAGE as error:
        if isinstance(error, InputError):
            raise
        raise damaged(path, error) from error


def _member(path: Path, archive: Path, names: list[str]) -> str:
    asked = path.relative_to(archive).as_posix()
    files = (
        [name for name in names if not name.endswith("/")]
        if asked == "."
        else [name for name in names if name == asked]
    )
    if len(files) != 1:
        choices = ", ".join(f"{archive}/{name}" for name in names)
        raise InputError(f"{path} is not one file of vectors: name one of {choices or 'another archive, it is empty'}")
    return files[0]
