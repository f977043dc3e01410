"""Class folders of images, and finding, reading and caching of any data set that is given by a path."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from focalgeo.data.archives import checksum, one_line, read_files
from focalgeo.data.cache import cached_dataset
from focalgeo.data.images import decode_files
from focalgeo.data.splits import RawDataset
from focalgeo.types import InputError, Split

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})
SPLITS = ("train", "val", "test")
Decode = Callable[[Path, str, str, int | None], RawDataset]  # (path, where, checksum, image_size)


class Layout(NamedTuple):
    """The files of each split, as positions in the list and in the order of their paths, and their labels."""

    class_names: tuple[str, ...]
    rows: dict[str, list[int]]
    labels: dict[str, list[int]]


def read_folder(
    location: str, *, image_size: int | None = None, cache_dir: str | os.PathLike | None = None
) -> RawDataset:
    """Images as uint8 [examples, height, width, 3], labels by alphabetical order of the class folders.

    Args:
        location: a folder or .tar, .tar.gz, .tar.bz2, .tar.xz or .zip archive that holds
            {train,val,test}/<class>/<image>, val and test optional, or <class>/<image>; one folder around it all,
            hidden files and files that are no images are passed over. Relative to the working directory; ~ is the home
            folder.
        image_size: resize every image to this height and width; None asks that all have one size.
        cache_dir: where the decoded images are kept, see focalgeo.data.cache.

    Raises:
        InputError: nothing there, no images, one class, a corrupt archive or image, two sizes, an unusable layout.
    """
    return read_images(location, _decode, kind="folder", image_size=image_size, cache_dir=cache_dir)


def layout(names: Sequence[str], *, where: str) -> Layout:
    """Splits and labels from relative paths; class folders in alphabetical order are labels 0, 1, ...

    Raises:
        InputError: no images, one class, an image in no class folder, a name twice, a folder beside train, val and
            test, no train folder, or a class that train has not.
    """
    if not names:
        raise InputError(f"{where} holds no images: give class folders with files that end in {_suffixes()}")
    paths = _without_outer_folder([PurePosixPath(name).parts for name in names])
    has_splits = any(path[0] in SPLITS and len(path) > 2 for path in paths)
    members: dict[str, list[tuple[str, int]]] = {}
    for row in sorted(range(len(paths)), key=paths.__getitem__):
        part, class_name = _split_and_class(paths[row], names[row], has_splits=has_splits, where=where)
        members.setdefault(part, []).append((class_name, row))
    if len(set(paths)) < len(paths):
        twice = next(name for name, path in zip(names, paths, strict=True) if paths.count(path) > 1)
        raise InputError(f"{where} holds {twice} twice: pack it again")
    return _labelled(members, where)


def find_path(location: str, *, where: str, hint: str = "") -> Path:
    """The path of an existing folder or archive; `hint` ends the message where there is none.

    Raises:
        InputError: there is none.
    """
    path = Path(location).expanduser()
    if not location or not path.exists():
        hint = f"; {hint}" if hint else ""
        raise InputError(f"{where}: there is no such folder or archive: check the path, relative to {Path.cwd()}{hint}")
    return path


@contextmanager
def file_errors(where: str) -> Iterator[None]:
    """Turns errors of the file system into one line that names `where`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{where} cannot be read ({one_line(error)}): check its permissions") from error


def read_images(
    location: str,
    decode: Decode,
    *,
    kind: str,
    image_size: int | None,
    cache_dir: str | os.PathLike | None,
    hint: str = "",
) -> RawDataset:
    """The data set that `decode` makes of a folder or archive, cached by its checksum, `kind` and image size.

    Raises:
        InputError: nothing there, or it cannot be read; and what `decode` raises.
    """
    where = f"{kind}:{location}"
    path = find_path(location, where=where, hint=hint)
    size = "own-size" if image_size is None else f"{image_size}px"
    with file_errors(where):
        digest = checksum(path)
        return cached_dataset(
            f"{kind}-{digest}-{size}", lambda: decode(path, where, digest, image_size), cache_dir=cache_dir
        )


def _split_and_class(path: tuple[str, ...], name: str, *, has_splits: bool, where: str) -> tuple[str, str]:
    if has_splits and path[0] not in SPLITS:
        raise InputError(f"{where}: {name} stands beside train, val and test: move it into one of them or away")
    path = path if has_splits else ("train", *path)
    if len(path) < 3:
        raise InputError(f"{where}: {name} is in no class folder: move it into one")
    return path[0], path[1]


def _without_outer_folder(paths: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    while len({path[0] for path in paths}) == 1 and min(map(len, paths)) > 2:
        paths = [path[1:] for path in paths]
    return paths


def _labelled(members: dict[str, list[tuple[str, int]]], where: str) -> Layout:
    if "train" not in members:
        raise InputError(f"{where} has no train folder: expected train/<class>/, and if you like val/ and test/")
    class_names = tuple(sorted({class_name for class_name, _ in members["train"]}))
    if len(class_names) < 2:
        raise InputError(f"{where} has one class, {class_names[0]}: give at least two class folders")
    labels = {class_name: label for label, class_name in enumerate(class_names)}
    for part, pairs in members.items():
        strange = sorted({class_name for class_name, _ in pairs} - set(class_names))
        if strange:
            raise InputError(f"{where}: {part} has the class {strange[0]}, which train has not: use the same folders")
    return Layout(
        class_names,
        {part: [row for _, row in pairs] for part, pairs in members.items()},
        {part: [labels[class_name] for class_name, _ in pairs] for part, pairs in members.items()},
    )


def _decode(path: Path, where: str, digest: str, image_size: int | None) -> RawDataset:
    names, images = decode_files(read_files(path, SUFFIXES), where=where, image_size=image_size)
    plan = layout(names, where=where)
    splits = {part: Split(images[rows], np.array(plan.labels[part], np.int32)) for part, rows in plan.rows.items()}
    return RawDataset(splits, plan.class_names, digest)


def _suffixes() -> str:
    return ", ".join(sorted(SUFFIXES))
