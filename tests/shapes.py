"""Run-time check of the array shapes that signatures state, for every public function of focalgeo while tests run."""

import functools
import inspect
import sys
import types
import typing
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader

import jaxtyping
from beartype import BeartypeConf
from beartype.door import is_bearable

CONF = BeartypeConf(is_pep484_tower=True)  # an int is a float too
RESULT = "return"


class ShapeError(TypeError):
    """A function was called with an array, or returned one, that its signature does not allow."""


def checked(function: types.FunctionType) -> types.FunctionType:
    """The function, checked against those of its annotations that hold jaxtyping's; itself where none does.

    Arguments are checked once the function has returned, so that what it refuses by a message of its own stays so. The
    axes of one call share their names: "examples" is one number in all arguments and in the result.
    """
    hints = {name: hint for name, hint in typing.get_type_hints(function).items() if _has_shape(hint)}
    if not hints:
        return function
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args, **kwargs):
        result = function(*args, **kwargs)
        bound = signature.bind(*args, **kwargs).arguments | {RESULT: result}
        with jaxtyping.jaxtyped("context"):
            for name in filter(bound.__contains__, hints):
                if not is_bearable(bound[name], hints[name], conf=CONF):
                    raise ShapeError(f"{function.__qualname__}: {name} is no {hints[name]}: {_shapes(bound, hints)}")
        return result

    return call


def _has_shape(hint: object) -> bool:
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(_has_shape, typing.get_args(hint)))


def _shapes(bound: dict, hints: dict) -> str:
    def of(value: object) -> str:
        return f"{value.dtype}{list(value.shape)}" if hasattr(value, "shape") else type(value).__name__

    return ", ".join(f"{name}: {of(bound[name])}" for name in hints if name in bound)


class _Loader(SourceFileLoader):
    def exec_module(self, module: types.ModuleType) -> None:
        super().exec_module(module)
        for name, member in list(vars(module).items()):
            own = isinstance(member, types.FunctionType) and member.__module__ == module.__name__
            if own and not name.startswith("_"):
                setattr(module, name, checked(member))


class _Finder(MetaPathFinder):
    def __init__(self, package: str):
        self.package = package

    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] != self.package:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def install(package: str) -> None:
    """Check what is imported of the package from here on."""
    sys.meta_path.insert(0, _Finder(package))
