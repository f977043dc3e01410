"""Vocabularies and word vectors: token id 0 is padding, 1 an unknown word, from 2 on the words of the vocabulary."""

import gzip
import os
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from jaxtyping import Float32, Int, Int32

from focalgeo.data.archives import CORRUPT_FILE, check_declared, corrupt_file
from focalgeo.files import check_regular, free_memory
from focalgeo.types import Dataset, InputError, Split, shown

PADDING, UNKNOWN = "", "<unk>"
SPECIAL = (PADDING, UNKNOWN)
COPIES = 3  # of the padded texts: as positions in all words, as parts of splits, as token ids
LONGEST_LINE = 1 << 20  # bytes of a line of word vectors


class NumberedTexts(NamedTuple):
    """All words of some texts, the special ones first, then in alphabetical order; each text as positions in them."""

    vocabulary: tuple[str, ...]
    ids: list[Int32[np.ndarray, " words"]]


def number_words(texts: Iterable[Sequence[str]]) -> NumberedTexts:
    """Each text as int32 positions in the vocabulary of all words; a text without words is one unknown word.

    Args:
        texts: the words of each text; "<unk>" among them is the unknown word. Read once, so a generator will do.
    """
    met: defaultdict[str, int] = defaultdict()
    met.default_factory = met.__len__
    met[PADDING], met[UNKNOWN] = 0, 1
    ids = [np.array([met[word] for word in text] or [1], np.int32) for text in texts]
    vocabulary = (*SPECIAL, *sorted(met.keys() - set(SPECIAL)))
    positions = np.empty(len(vocabulary), np.int32)
    positions[[met[word] for word in vocabulary]] = np.arange(len(vocabulary), dtype=np.int32)
    return NumberedTexts(vocabulary, [positions[text] for text in ids])


def pad_texts(ids: Sequence[Int32[np.ndarray, " _"]], *, where: str = "the texts") -> Int32[np.ndarray, "texts length"]:
    """Texts as int32 [texts, length of the longest], with 0 behind the shorter ones.

    Raises:
        InputError: that is more than memory takes, several copies of it.
    """
    longest, free = max(map(len, ids), default=0), free_memory()
    column = COPIES * 4 * len(ids)  # bytes of one more word of every text
    if column * longest > free:
        raise InputError(
            f"{where}: {len(ids):,} texts of up to {longest:,} words are more than the {free / 2**30:.1f} GiB of memory"
            f" that are free: set config.data.max_length to at most {max(1, int(free / column))}"
        )
    x = np.zeros((len(ids), longest), np.int32)
    for row, text in zip(x, ids, strict=True):
        row[: len(text)] = text
    return x


def build_vocabulary(
    ids: Int[np.ndarray, "..."], words: Sequence[str], *, max_words: int | None = None
) -> tuple[str, ...]:
    """The most frequent words, by falling count, ties in the order of `words`, behind "" and "<unk>".

    Args:
        ids: integers of any shape, positions in `words`; 0 and 1 do not count.
        words: what the positions mean; the first two are "" and "<unk>".
        max_words: how many words at most, 1 or more, the two special ones not counted; None keeps all that occur.

    Accuracy:
        exact, held against collections.Counter by tests/data/test_vocabulary.py.
    """
    counts = np.bincount(ids.ravel(), minlength=len(words))
    counts[: len(SPECIAL)] = 0
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    return (*SPECIAL, *(words[position] for position in order[:max_words]))


def encode(
    ids: Int[np.ndarray, "*shape"], words: Sequence[str], vocabulary: Sequence[str]
) -> Int32[np.ndarray, "*shape"]:
    """Positions in `words` as positions in `vocabulary`, int32 of the same shape; 1 where the word is not in it."""
    known = {word: position for position, word in enumerate(vocabulary)}
    return np.array([known.get(word, 1) for word in words], np.int32)[ids]


def encode_dataset(data: Dataset, *, max_words: int | None = None) -> Dataset:
    """The data set with the vocabulary of its own train split; words that occur in val or test only become unknown.

    Args:
        data: words are positions in data.vocabulary. They are in x [examples, length], or in x[..., 0] of trees
            [examples, slots, 3].
        max_words: as in `build_vocabulary`.
    """
    vocabulary = build_vocabulary(_words(data.train.x), data.vocabulary, max_words=max_words)

    def encoded(split: Split) -> Split:
        x = split.x.copy()
        _words(x)[...] = encode(_words(x), data.vocabulary, vocabulary)
        return Split(x, split.y)

    return data._replace(
        train=encoded(data.train), val=encoded(data.val), test=encoded(data.test), vocabulary=vocabulary
    )


def _words(x: np.ndarray) -> np.ndarray:
    return x if x.ndim == 2 else x[..., 0]


def read_embeddings(
    path: str | os.PathLike, vocabulary: Sequence[str], *, seed: int = 0
) -> Float32[np.ndarray, "words size"]:
    """The vectors of the words as float32 [len(vocabulary), size]; the row of padding is 0.

    Rows of words that the file lacks are sampled from N(0, s), s the standard deviation of all values found.

    Args:
        path: a text file with "word v1 v2 ..." on each line, in UTF-8, plain or .gz; or a .zip that holds one, or
            <archive>.zip/<file> for one of several. The first line sets `size`; a longer line has a word with spaces in
            it, and is passed over, since no vocabulary has one; what follows the first word must not be numbers alone.
            A first line of two integers (word2vec's) is skipped.
            Of a word given twice the first line counts.
        vocabulary: words by token id; the first is padding.
        seed: of the sampled rows. A row depends on it, s, and its position in the vocabulary only.

    Raises:
        InputError: no such file, a corrupt one, a line with too few columns, too many numbers or with values that are
            no finite numbers (named by its number), no word of the vocabulary in it, or vectors beyond memory.

    Accuracy:
        float32 of the decimal numbers, tested in tests/data/test_vocabulary.py.

    Source:
        Pennington et al., EMNLP 2014 (the format); the sampled rows are our choice.
    """
    path = Path(os.path.expanduser(path))
    wanted = {word.encode(): row for row, word in enumerate(vocabulary) if row > 0}
    with _opened(path) as file:
        try:
            found = _read_vectors(file, wanted, path)
        except CORRUPT_FILE as error:
            raise corrupt_file(path, error) from error
    if not found:
        raise InputError(
            f"{path} has none of the {len(wanted)} words of the vocabulary: give vectors of their language"
        )
    rows, vectors = list(found), np.stack(list(found.values()))
    sampled = np.random.default_rng(seed).normal(0, vectors.std(dtype=np.float64), (len(vocabulary), vectors.shape[1]))
    table = sampled.astype(np.float32)
    table[rows] = vectors
    table[0] = 0
    return table


def _read_vectors(file: BinaryIO, wanted: dict[bytes, int], path: Path) -> dict[int, np.ndarray]:
    found: dict[int, np.ndarray] = {}
    size = 0
    for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), start=1):
        if len(line) > LONGEST_LINE:
            raise InputError(
                f"{path}, line {number}, is longer than {LONGEST_LINE:,} bytes: give a file of word vectors"
            )
        line = line.rstrip(b" \r\n")
        columns = line.count(b" ")
        if size == 0:
            if number == 1 and columns == 1 and line.replace(b" ", b"").isdigit():
                continue
            size = columns
            check_declared(path, "a table of its vectors", COPIES * 8 * size * (len(wanted) + 1))
        if columns < size or size == 0:
            raise InputError(
                f"{path}, line {number}: {columns} numbers where {size or 'some'} are expected: mend the file"
            )
        if columns > size:
            _check_word(line, size, f"{path}, line {number}")
            continue
        word, _, values = line.partition(b" ")
        row = wanted.get(word)
        if row is not None and row not in found:
            found[row] = _vector(values, f"{path}, line {number}")
    return found


def _check_word(line: bytes, size: int, where: str) -> None:
    """Refuse a line of more numbers than the first has; a word with spaces is none but its last columns."""
    columns = line.split(b" ")
    if all(_is_number(column) for column in columns[1:-size]):
        raise InputError(f"{where}: {len(columns) - 1} numbers where {size} are expected: mend the file")


def _is_number(column: bytes) -> bool:
    try:
        float(column)
    except ValueError:
        return False
    return True


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
    archive = next((p for p in (path, *path.parents) if p.suffix.lower() == ".zip" and os.path.isfile(p)), None)
    if archive is None and not os.path.lexists(path):
        raise InputError(f"there is no file {shown(path, most=200)}: check the path, relative to {Path.cwd()}")
    if archive is None:
        check_regular(path)
    try:
        if archive is None:
            with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as file:
                yield file
            return
        with zipfile.ZipFile(archive) as members, members.open(_member(path, archive, members.namelist())) as file:
            yield file
    except CORRUPT_FILE as error:
        raise corrupt_file(path, error) from error


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
