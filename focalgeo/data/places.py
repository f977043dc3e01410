"""From the path that a user wrote to a source: found or refused in one line, images decoded once and kept."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from focalgeo.data.archives import checksum
from focalgeo.data.cache import cached_source
from focalgeo.data.checks import one_line
from focalgeo.data.splits import Source
from focalgeo.types import InputError

Decode = Callable[[Path, str, str, int | None], Source]  # (path, where, checksum, image_size)


def find_place(place: str, *, where: str, hint: str = "") -> Path:
    """The path of a folder or archive that is there; `hint` ends the message when it is not.

    Raises:
        InputError: there is none.
    """
    path = Path(place).expanduser()
    if not place or not path.exists():
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
    place: str,
    decode: Decode,
    *,
    kind: str,
    image_size: int | None,
    cache_dir: str | os.PathLike | None,
    hint: str = "",
) -> Source:
    """The source that `decode` makes of a folder or archive, kept by its checksum, `kind` and image size.

    Raises:
        InputError: nothing there, or it cannot be read; and what `decode` raises.
    """
    where = f"{kind}:{place}"
    path = find_place(place, where=where, hint=hint)
    size = "own-size" if image_size is None else f"{image_size}px"
    with file_errors(where):
        digest = checksum(path)
        return cached_source(
            f"{kind}-{digest}-{size}", lambda: decode(path, where, digest, image_size), cache_dir=cache_dir
        )
