"""Config as a user writes it: files, the words after their names, and fields on the command line."""

import ast
import contextlib
import difflib
import importlib.util
import inspect
import os
import re
import stat
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from focalgeo.config.fields import FIELDS, is_field, named, typed, unknown
from focalgeo.types import InputError, expanded, shown


def load_config(file: str | Path, words: str = "") -> ConfigDict:
    """The config that a config file's `get_config` gives for `words`, which may also follow `file` after a colon.

    The file may import the others of its folder by the folder's name (`from configs import digits`), wherever the
    folder lies, and from a folder of another name focalgeo's own, as configs. Where there is no configs/digits.py, that
    of focalgeo is taken. Python's warnings about its code are not shown, and its bytecode is neither read nor written:
    a file that changes twice in a second would else be run as it was.

    Raises:
      InputError: there is no such file, it has no get_config, or its code raised, with the line.
    """
    file, _, after_colon = str(file).partition(":")
    words, path = words or after_colon, _own_or_given(Path(expanded(file)))
    _check_file(path)
    where = shown(file)
    specification = importlib.util.spec_from_file_location(f"{path.resolve().parent.name}.{path.stem}", path)
    module = importlib.util.module_from_spec(specification)
    with _importable(path.resolve().parent.parent):
        try:
            loader = specification.loader
            exec(loader.source_to_code(path.read_bytes(), specification.origin), module.__dict__)
            get_config = getattr(module, "get_config", None)
            if not callable(get_config):
                raise InputError(f"{where} has no get_config that returns a config: {BEGIN}")
            config = get_config(*_words_for(get_config, words, where))
        except InputError:
            raise
        except BaseException as error:  # SystemExit too: the file ends no job that has not begun
            raise InputError(f"{where}{_line(error, specification.origin)}: {named(error)}") from error
    if not isinstance(config, ConfigDict):
        raise InputError(f"the get_config of {where} returns a {type(config).__name__} and no config: {BEGIN}")
    return config


BEGIN = "begin with focalgeo.config.default_config()"


def config_folder() -> Path:
    """The folder of focalgeo's own configs: in a clone beside the package, in a wheel packed into it."""
    package = Path(__file__).resolve().parent.parent
    packed = package / "shipped" / "configs"
    return packed if packed.is_dir() else package.parent / "configs"


def own_configs() -> dict[str, str]:
    """File name -> first line of its docstring, of focalgeo's own configs."""
    files = sorted(path for path in config_folder().glob("*.py") if path.stem != "__init__")
    return {path.name: ast.get_docstring(ast.parse(path.read_bytes())).partition("\n")[0] for path in files}


def _own_or_given(path: Path) -> Path:
    """The path, or focalgeo's own file of that name where there is none."""
    own = config_folder().parent / path
    return own if path.parts[:1] == ("configs",) and not os.path.exists(path) and os.path.exists(own) else path


def _check_file(path: Path) -> None:
    """Refuse what is no Python file, with the nearest one; a pipe is not opened, which could take for ever."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise InputError(f"no config file: {said}: {shown(repr(str(path)))}{_nearest(path)}") from error
    if not stat.S_ISREG(mode):
        kind = "is a folder" if stat.S_ISDIR(mode) else "is no file"
        raise InputError(f"{shown(path)} {kind}: --config names a Python file, as configs/digits.py")
    if path.suffix != ".py":
        raise InputError(f"{shown(path)} is no config file: its name must end with .py")


def _nearest(path: Path) -> str:
    """The end of a message on a file that is missing: the nearest beside it, or the folder that is missing."""
    try:
        folder = config_folder() if path.parent == Path("configs") and not path.parent.exists() else path.parent
        files = sorted(each.name for each in folder.glob("*.py") if not each.name.startswith("__"))
        exists = folder.is_dir()
    except (OSError, ValueError):
        files, exists = [], True
    if not exists:
        return f"; there is no folder {shown(path.parent)}"
    near = difflib.get_close_matches(path.name, files, n=1, cutoff=0.0)
    return f"; did you mean {shown(path.parent / near[0])}?" if near else "; focalgeo's own are in its folder configs"


def _words_for(get_config: Callable, words: str, where: str) -> list[str]:
    """The arguments of get_config, none without words, if it takes them."""
    given = [words] if words else []
    try:
        inspect.signature(get_config).bind(*given)
    except TypeError as error:
        if words:
            raise InputError(f"the get_config of {where} takes no words, {shown(repr(words))} was given") from error
        raise InputError(f"the get_config of {where} needs words: give them as --config={where}:WORDS") from error
    except ValueError:
        pass  # of a built-in function, which says itself what it misses
    return given


def _line(error: BaseException, file: str) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f", line {lines[-1]}" if lines else ""


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Modules of the folder can be imported; afterwards the interpreter's settings are as they were."""
    path, entries, written = sys.path, [*sys.path], sys.dont_write_bytecode
    sys.path, sys.dont_write_bytecode = [str(folder), *entries, str(config_folder().parent)], True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.path, sys.dont_write_bytecode = path, written
        sys.path[:] = entries


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
      InputError: no field has that name, with the nearest; no value, or two; or a value of another kind.
    """
    values, others, rest = {}, [], iter(arguments)
    for argument in rest:
        matched = re.fullmatch(r"--?(no)?config\.([^=]*)(=.*)?", argument, re.DOTALL)
        if matched is None:
            others.append(argument)
            continue
        negated, name, value = matched.groups()
        if not is_field(name):
            raise InputError(unknown(name))
        if name in values:
            raise InputError(f"--config.{name} is given twice: give it once")
        if value is None and name in FIELDS and FIELDS[name].range.kind is bool:
            values[name] = not negated
            continue
        text = next(rest, None) if value is None else value[1:]
        if text is None or negated or (value is None and text.startswith("--")):
            raise InputError(f"{shown(argument)}: a field is set as --config.{name}=VALUE")
        values[name] = _parsed(name, text)
    return values, others


def split_flags(arguments: Sequence[str], examples: Mapping[str, str]) -> dict[str, str]:
    """The values of the flags that `examples` names, each given once at most, as --NAME=VALUE or --NAME VALUE.

    ~ at the beginning of a value is the home folder.

    Raises:
      InputError: an unknown flag or argument; a flag that is given twice, is empty or has no value, with its example.
    """
    values, rest = {}, iter(arguments)
    for argument in rest:
        matched = re.fullmatch(r"--?([^-=][^=]*)(=.*)?", argument, re.DOTALL)
        if matched is None:
            raise InputError(f"unknown argument {shown(repr(argument))}: fields are set as --config.loss.gamma=3")
        name, value = matched.groups()
        if name not in examples:
            near = difflib.get_close_matches(name, examples, n=1, cutoff=0.0)
            raise InputError(f"Unknown command line flag {shown(repr(name))}: did you mean --{near[0]}?")
        if name in values:
            raise InputError(f"--{name} is given twice: give it once")
        text = next(rest, "") if value is None else value[1:]
        if not text or (value is None and text.startswith("--")):
            raise InputError(f"--{name} is empty: for example --{name}={examples[name]}")
        values[name] = expanded(text)
    return values


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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an escape that Python does not know, say
            value = ast.literal_eval(text.capitalize() if text in ("true", "false", "none") else text)
    except (SyntaxError, TypeError, ValueError, MemoryError, RecursionError):
        value = text
    if range_ is None:
        return typed(name, value)
    if range_.kind is int and not range_.many and isinstance(value, int) and not re.fullmatch(r"[+-]?[0-9]+", text):
        value = text  # 1_000 and 0x10, which other programs read otherwise
    if isinstance(value, str) and range_.kind is float and not range_.many:
        value = _as_float(value)
    if range_.kind is bool and text.lower() in _TRUTHS:
        value = _TRUTHS[text.lower()]
    if range_.many and not isinstance(value, tuple | list | dict | set):
        value = (
            tuple(filter(None, map(str.strip, value.strip("()[]").split(",")))) if isinstance(value, str) else (value,)
        )
    return typed(name, value)
