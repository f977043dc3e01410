"""Config as a user writes it: files, the words after their names, and fields on the command line."""

import ast
import contextlib
import difflib
import importlib.util
import re
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from focalgeo.config.fields import FIELDS, is_field, typed, unknown
from focalgeo.types import InputError


def load_config(file: str | Path, words: str = "") -> ConfigDict:
    """The config that a config file's `get_config` gives for `words`, which may also follow `file` after a colon.

    The file may import the others of its folder by the folder's name (`from configs import digits`), wherever the
    folder lies.

    Raises:
      InputError: there is no such file, it has no get_config, or its code raised, with the line.
    """
    file, _, after_colon = str(file).partition(":")
    words, path = words or after_colon, Path(file)
    if not path.is_file():
        raise InputError(f"no config file: No such file or directory: {file!r}")
    specification = importlib.util.spec_from_file_location(f"{path.resolve().parent.name}.{path.stem}", path)
    if specification is None:
        raise InputError(f"{file} is no config file: its name must end with .py")
    module = importlib.util.module_from_spec(specification)
    with _importable(path.resolve().parent.parent):
        try:
            specification.loader.exec_module(module)
            get_config = getattr(module, "get_config", None)
            config = get_config and (get_config(words) if words else get_config())
        except InputError:
            raise
        except Exception as error:
            frames, here = traceback.extract_tb(error.__traceback__), specification.origin
            lines = [frame.lineno for frame in frames if frame.filename == here]
            where = f"{file}, line {lines[-1]}" if lines else file
            message = str(error).strip().partition("\n")[0]
            raise InputError(f"{where}: {type(error).__name__}: {message}") from error
    if not isinstance(config, ConfigDict):
        raise InputError(f"{file} has no get_config that returns a config: begin with focalgeo.config.default_config()")
    return config


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def chosen(words: str, file: str, kinds: Mapping[str, Collection[str]]) -> dict[str, str]:
    """The word of each kind that `words` names, as in "quick,fl3"; a kind that is not named is left out.

    file: the config file's own __file__, for the message.

    Raises:
      InputError: a word of no kind, with the nearest one, or two words of one kind.
    """
    found, file = {}, "/".join(Path(file).parts[-2:])
    for word in filter(None, map(str.strip, words.split(","))):
        kind = next((kind for kind, names in kinds.items() if word in names), None)
        if kind is None:
            known = [name for names in kinds.values() for name in names]
            near = difflib.get_close_matches(word, known, n=1, cutoff=0.0)
            raise InputError(f"{file} knows no {word!r}{f': did you mean {near[0]!r}?' if near else ''}")
        if kind in found:
            raise InputError(f"{file} is given {found[kind]!r} and {word!r}: name one {kind} only")
        found[kind] = word
    return found


def split_arguments(arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The values that --config.NAME=VALUE gives to fields, by the fields' names, and the other arguments in order.

    A tuple is written as Python writes it or as its elements between commas; a field that is true or false may have
    no value, as --config.NAME or --noconfig.NAME.

    Raises:
      InputError: no field has that name, with the nearest; no value; or a value of another kind.
    """
    values, others, rest = {}, [], iter(arguments)
    for argument in rest:
        matched = re.fullmatch(r"--?(no)?config\.([^=]+)(=.*)?", argument, re.DOTALL)
        if matched is None:
            others.append(argument)
            continue
        negated, name, value = matched.groups()
        if not is_field(name):
            raise InputError(unknown(name))
        if value is None and name in FIELDS and FIELDS[name].range.kind is bool:
            values[name] = not negated
            continue
        text = next(rest, None) if value is None else value[1:]
        if text is None or negated:
            raise InputError(f"{argument}: a field is set as --config.{name}=VALUE")
        values[name] = _parsed(name, text)
    return values, others


_TRUTHS = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}


def _as_float(text: str) -> float | str:
    """The number, also inf and nan, which Python's literals lack; the text where it is none."""
    try:
        return float(text)
    except ValueError:
        return text


def _parsed(name: str, text: str) -> Any:
    range_ = FIELDS[name].range if name in FIELDS else None
    if range_ is not None and range_.kind is str and not range_.many:
        return None if range_.optional and text in ("None", "none") else text
    try:
        value = ast.literal_eval(text.capitalize() if text in ("true", "false", "none") else text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        value = text
    if range_ is None:
        return value
    if isinstance(value, str) and range_.kind is float and not range_.many:
        value = _as_float(value)
    if range_.kind is bool and text.lower() in _TRUTHS:
        value = _TRUTHS[text.lower()]
    if range_.many and not isinstance(value, tuple | list | dict | set):
        value = tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else (value,)
    return typed(name, value)
