"""A loss of some of its parameters, so that everything in this room acts on one layer's block of the Hessian."""

import difflib
from collections.abc import Callable
from fnmatch import fnmatchcase

import jax

from focalgeo.curvature.arguments import check_params
from focalgeo.types import Array, InputError, PyTree


def restrict(
    function: Callable[[PyTree], PyTree], params: PyTree, *patterns: str
) -> tuple[Callable[[dict[str, Array]], PyTree], dict[str, Array]]:
    """`function` of the leaves whose path matches a pattern alone, the others held, and those leaves.

    Hessian, Gauss-Newton and Fisher matrix of the restricted function are the principal blocks of the whole ones, so
    hvp, ggn_vp, trace, lambda_max and the rest serve a layer as they serve a network.

    Args:
        function: params -> a loss, or outputs.
        params: tree of floating-point arrays.
        patterns: globs of paths such as "Dense_0/kernel": "Dense_0/*", "*/bias"; "*" also crosses "/".

    Returns:
        (kept -> function(params with these leaves), kept), kept a dict from path to leaf.

    Raises:
        InputError: `params` is empty or holds integers; no pattern is given, or one matches nothing (the nearest path
        is named), or two leaves have the same path; the function is given a leaf that was not kept.

    Accuracy: equal to the blocks of a dense Hessian; tests/curvature/test_subsets.py.
    """
    check_params(params)
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    named = {_name(path): leaf for path, leaf in leaves}
    if len(named) < len(leaves):
        raise InputError(f'two leaves have one path, as "a/b" and a -> b have: {_repeated(leaves)}; rename one')
    if not patterns:
        raise InputError(f'no pattern of parameters is given; give one such as "{next(iter(named))}"')
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in named):
            nearest = difflib.get_close_matches(pattern, named, n=1, cutoff=0.0)[0]
            raise InputError(f'no parameter matches "{pattern}"; did you mean "{nearest}"?')
    kept = {name: leaf for name, leaf in named.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}

    def restricted(some: dict[str, Array]) -> PyTree:
        for name in some:
            if name not in kept:
                raise InputError(f'"{name}" is none of the leaves that were kept: {", ".join(kept)}')
        return function(structure.unflatten([some.get(name, leaf) for name, leaf in named.items()]))

    return restricted, kept


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _repeated(leaves: list) -> str:
    names = [_name(path) for path, _ in leaves]
    return next(name for name in names if names.count(name) > 1)
