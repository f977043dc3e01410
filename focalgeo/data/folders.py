"""Class folders of images, and finding, reading and caching of any data set that is given by a path."""

import errno
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from focalgeo.data.archives import Tell, checksum, is_hidden, list_files, one_line, read_files
from focalgeo.data.cache import cached_dataset
from focalgeo.data.images import check_memory, decode_files
from focalgeo.data.splits import RawDataset
from focalgeo.files import check_regular
from focalgeo.types import InputError, Split, shown

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})
# Images too, as their endings say, but of formats that are not read: passing them over would lose examples in silence.
UNREAD = frozenset(
    {
        ".apng",
        ".arw",
        ".avif",
        ".cr2",
        ".dcm",
        ".dib",
        ".dng",
        ".eps",
        ".exr",
        ".hdr",
        ".heic",
        ".heif",
        ".ico",
        ".jfif",
    }
    | {".jp2", ".jpe", ".nef", ".pbm", ".pcx", ".pnm", ".psd", ".svg", ".tga"}
)
# No images, so that they may lie among them; any other file there is refused, lest it is an image by another name.
NOTES = frozenset(
    {".bib", ".csv", ".db", ".doc", ".docx", ".htm", ".html", ".info", ".ini", ".ipynb", ".json", ".jsonl", ".log"}
    | {".md", ".md5", ".pdf", ".py", ".rst", ".rtf", ".sh", ".sha256", ".toml", ".tsv", ".txt", ".url", ".xls"}
    | {".xlsx", ".xml", ".yaml", ".yml"}
)
_NOTES_BY_NAME = frozenset({"readme", "license", "licence", "copying", "notice", "authors", "changelog", "makefile"})
SPLITS = ("train", "val", "test")
TRAINING = frozenset({"train", "training"})
HELD_OUT = frozenset({"val", "valid", "validation", "dev", "test", "testing", "eval", "evaluation", "holdout"})
Decode = Callable[[Path, str, str, int | None, Tell | None], RawDataset]  # (path, where, checksum, image_size, tell)


class Layout(NamedTuple):
    """The files of each split, as positions in the list and in the order of their paths, and their labels."""

    class_names: tuple[str, ...]
    rows: dict[str, list[int]]
    labels: dict[str, list[int]]


def read_folder(
    location: str,
    *,
    image_size: int | None = None,
    cache_dir: str | os.PathLike | None = None,
    tell: Tell | None = None,
) -> RawDataset:
    """Images as uint8 [examples, height, width, 3], labels by alphabetical order of the class folders.

    Args:
        location: a folder or .tar, .tar.gz, .tar.bz2, .tar.xz or .zip archive that holds
            {train,val,test}/<class>/<image>, val and test optional, or <class>/<image>; folders around it all, hidden
            files and texts are passed over. Relative to the working directory; ~ is the home folder.
        image_size: resize every image to this height and width; None asks that all have one size.
        cache_dir: where the decoded images are kept, see focalgeo.data.cache.
        tell: gets a line of progress every few seconds.

    Raises:
        InputError: nothing there, no images, one class, a corrupt archive or image, two sizes, an unusable layout.
    """
    where = f"folder:{location}"
    path = find_path(location, where=where)
    if path.is_dir():
        with file_errors(where):
            _check_folder(path, where, image_size)
    return read_images(location, _decode, kind="folder", image_size=image_size, cache_dir=cache_dir, tell=tell)


def _check_folder(path: Path, where: str, image_size: int | None) -> None:
    """Refuse, before anything is decoded, an unusable layout, more than memory takes, and folders without images.

    Raises:
        InputError: the first of them.
    """
    files = list_files(path)
    names = [name for name in files if is_image(name, where)]
    layout(names, where=where, others=sorted({*files} - {*names}))
    check_memory(len(names), image_size, where=where)
    classes = {PurePosixPath(name).parent for name in names}
    splits = {folder.parent for folder in classes}
    for parent in sorted(splits | {folder.parent for folder in splits if folder.name in SPLITS}):
        for name in sorted(os.listdir(path / parent)):
            folder = parent / name
            if folder in classes | splits or is_hidden(name) or not (path / folder).is_dir():
                continue
            if {name, parent.name} & {*SPLITS} or not list_files(path / folder):  # else it holds notes on the images
                raise InputError(f"{where}: {folder} holds no images: fill or remove it")


def is_image(name: str, where: str) -> bool:
    """Whether a file is an image that is read, by its ending.

    Raises:
        InputError: it is an image of a format that is not read.
    """
    suffix = os.path.splitext(name)[1].lower()
    if suffix in UNREAD:
        raise InputError(
            f"{where}: {name} is of a format that is not read: convert it to .png or another of {_suffixes()}"
        )
    return suffix in SUFFIXES


def layout(names: Sequence[str], *, where: str, others: Sequence[str] = ()) -> Layout:
    """Splits and labels from relative paths of images; class folders in alphabetical order are labels 0, 1, ...

    `others` are the paths of all other files.

    Raises:
        InputError: no images, one class, an image in no class folder or deeper than one, a name twice, a folder beside
            train, val and test, no train folder, class folders named as splits, a class that train has not, or among
            the class folders a file that is neither an image nor a text.
    """
    if not names:
        raise InputError(f"{where} holds no images: give class folders with files that end in {_suffixes()}")
    outer, paths = _without_outer_folders([PurePosixPath(name).parts for name in names])
    has_splits = any(path[0] in SPLITS and len(path) > 2 for path in paths)
    members: dict[str, list[tuple[str, int]]] = {}
    for row in sorted(range(len(paths)), key=paths.__getitem__):
        part, class_name = _split_and_class(paths[row], names[row], has_splits=has_splits, where=where)
        members.setdefault(part, []).append((class_name, row))
    path, count = Counter(paths).most_common(1)[0]
    if count > 1:
        raise InputError(f"{where} holds {'/'.join((*outer, *path))} twice: pack it again")
    if not has_splits:
        _check_roles(outer, sorted({class_name for class_name, _ in members["train"]}), where)
    _check_others(others, outer, has_splits=has_splits, where=where)
    return _labelled(members, where)


def find_path(location: str, *, where: str, hint: str = "") -> Path:
    """The path of an existing folder or archive; `hint` ends the message where there is none.

    Raises:
        InputError: there is none, a link to nothing, something else than a folder or a file, or a name that the system
            refuses.
    """
    path = Path(location)
    try:
        path = path.expanduser()
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        if path.is_symlink():
            raise InputError(f"{where} is a link to {os.readlink(path)}, where nothing is: mend the link") from error
        raise _nothing_at(where, hint) from error
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: ~ of no user
        why = getattr(error, "strerror", None) or one_line(error)
        raise InputError(f"{shown(where, most=200)} cannot be read ({why}): check the path") from error
    if not location:
        raise _nothing_at(where, hint)
    if not stat.S_ISDIR(mode):
        check_regular(path)
    return path


def _nothing_at(where: str, hint: str) -> InputError:
    hint = f"; {hint}" if hint else ""
    path = f"check the path, relative to {Path.cwd()}"
    return InputError(f"{shown(where, most=200)}: there is no such folder or archive: {path}{hint}")


@contextmanager
def file_errors(where: str) -> Iterator[None]:
    """Turns errors of the file system into one line that names `where`."""
    try:
        yield
    except OSError as error:
        mend = _MENDS.get(error.errno, "check the disk")
        raise InputError(f"{where} cannot be read ({one_line(error)}): {mend}") from error


_MENDS = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "check its permissions"),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR), "it was moved meanwhile, start again"),
    errno.ELOOP: "a link leads to itself, remove it",
    errno.ENAMETOOLONG: "shorten the names",
}


def read_images(
    location: str,
    decode: Decode,
    *,
    kind: str,
    image_size: int | None,
    cache_dir: str | os.PathLike | None,
    hint: str = "",
    tell: Tell | None = None,
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
            f"{kind}-{digest}-{size}",
            lambda: decode(path, where, digest, image_size, tell),
            cache_dir=cache_dir,
            tell=tell,
        )


def _split_and_class(path: tuple[str, ...], name: str, *, has_splits: bool, where: str) -> tuple[str, str]:
    if has_splits and path[0] not in SPLITS:
        mend = "move it into one of them or away, or rename its folder"
        raise InputError(f"{where}: {name} stands beside train, val and test: {mend}")
    path = path if has_splits else ("train", *path)
    if len(path) < 3:
        raise InputError(f"{where}: {name} is in no class folder: move it into one")
    if len(path) > 3:
        mend = "name the folders of the splits train, val and test, or give one folder to each class"
        raise InputError(f"{where}: {name} lies deeper than <class>/<image>: {mend}")
    return path[0], path[1]


def _without_outer_folders(paths: list[tuple[str, ...]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The folders around everything, and the paths below them."""
    outer: tuple[str, ...] = ()
    while len({path[0] for path in paths}) == 1 and min(map(len, paths)) > 2:
        outer, paths = (*outer, paths[0][0]), [path[1:] for path in paths]
    return outer, paths


def _role(name: str) -> str | None:
    """The split that a folder's name says it holds, by one of its words: train, held out, or None."""
    spaced = re.sub(r"([a-z])(?=[A-Z])", r"\1 ", name).lower()  # TestImages is of two words
    words = {word.removesuffix("s").removesuffix("set").removesuffix("data") for word in re.split(r"[^a-z]+", spaced)}
    held_out = words & HELD_OUT or "held_out" in name.lower()
    return "train" if words & TRAINING else "held out" if held_out else None


def _check_roles(outer: Sequence[str], class_names: Sequence[str], where: str) -> None:
    """Refuse class folders inside a folder that is held out, and folders without classes that are splits themselves."""
    said = [name for name in outer if _role(name)]
    if said and _role(said[-1]) == "held out":
        raise InputError(f"{where} has no train folder, only {said[-1]}: expected train/<class>/ too, {_OWN_CLASSES}")
    exact = [name for name in class_names if name.lower() in TRAINING | HELD_OUT]
    splits = class_names if all(map(_role, class_names)) else exact
    if len(splits) > 1:
        names = f"{splits[0]} and {splits[-1]}"
        raise InputError(f"{where}: {names} are names of splits and hold no class folders: give train/<class>/<image>")
    if len(class_names) > 1 and set(map(str.lower, class_names)) & HELD_OUT:
        held_out, classes = exact[0], [name for name in class_names if name not in exact]
        mend = "give train/<class>/<image>, or rename it if it is a class"
        raise InputError(f"{where}: {held_out} is the name of a split and stands beside the class {classes[0]}: {mend}")


def _check_others(others: Sequence[str], outer: Sequence[str], *, has_splits: bool, where: str) -> None:
    """Refuse a file in or beside the class folders that may be an image by another name, which would be lost."""
    depth = len(outer) + has_splits
    for name in others:
        path = PurePosixPath(name)
        inside = path.parts[: len(outer)] == tuple(outer) and len(path.parts) > depth + 1
        if not inside or (has_splits and path.parts[len(outer)] not in SPLITS):
            continue
        if path.suffix.lower() not in NOTES and path.name.lower() not in _NOTES_BY_NAME:
            mend = f"remove it, or if it is an image give it one of the endings {_suffixes()}"
            raise InputError(f"{where}: {name} has no ending that is known: {mend}")


_OWN_CLASSES = "or name the folder otherwise if it is what to train on"


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


def _decode(path: Path, where: str, digest: str, image_size: int | None, tell: Tell | None) -> RawDataset:
    others: list[str] = []
    found = read_files(path, SUFFIXES | UNREAD, others=others)
    files = ((name, data) for name, data in found if is_image(name, where))
    names, images = decode_files(files, where=where, image_size=image_size, tell=tell)
    plan = layout(names, where=where, others=others)
    splits = {part: Split(images[rows], np.array(plan.labels[part], np.int32)) for part, rows in plan.rows.items()}
    return RawDataset(splits, plan.class_names, digest)


def _suffixes() -> str:
    return ", ".join(sorted(SUFFIXES))
