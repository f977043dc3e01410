"""The one line that says a file cannot be read as what its suffix says."""

import zipfile
import zlib
from pathlib import Path

from focalgeo.types import InputError

DAMAGE = (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error, UnicodeDecodeError)


def damaged(path: Path, why: object) -> InputError:
    """The error for a file that is damaged, cut short or of another format."""
    text = " ".join(str(why).split())
    return InputError(f"{path} is damaged, cut short or no {path.suffix} file ({text}): write it again")
