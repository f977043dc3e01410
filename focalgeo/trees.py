"""Vector algebra on pytrees of float arrays: every function takes and returns trees of one structure."""

import jax
import jax.numpy as jnp

from focalgeo.types import Array, InputError, PyTree


def dot(left: PyTree, right: PyTree) -> Array:
    """Inner product, the sum over leaves of sum(left * right), in full float32 on accelerators too.

    Raises:
        InputError: the trees have not the same structure and shapes.
    """
    _check_alike(left, right)
    return sum(
        jnp.vdot(a, b, precision="highest") for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    )


def _check_alike(left: PyTree, right: PyTree) -> None:
    """Refuse trees that differ in structure or in the shape of a leaf, which would broadcast; at trace time alone."""
    shapes = [[jnp.shape(leaf) for leaf in jax.tree.leaves(tree)] for tree in (left, right)]
    if jax.tree.structure(left) != jax.tree.structure(right):
        raise InputError("left and right are trees of different structures; they must be the same")
    if shapes[0] != shapes[1]:
        first, second = next(pair for pair in zip(*shapes, strict=True) if pair[0] != pair[1])
        raise InputError(f"left holds a leaf of shape {list(first)}, right {list(second)}; they must be the same")


def norm(tree: PyTree) -> Array:
    """Euclidean norm over all leaves."""
    return jnp.sqrt(dot(tree, tree))


def scale(tree: PyTree, factor: Array) -> PyTree:
    """Each leaf times the scalar `factor`."""
    return jax.tree.map(lambda leaf: leaf * jnp.asarray(factor, leaf.dtype), tree)


def add(left: PyTree, right: PyTree) -> PyTree:
    """Leaf-wise sum; raises as `dot`."""
    _check_alike(left, right)
    return jax.tree.map(jnp.add, left, right)


def axpy(factor: Array, left: PyTree, right: PyTree) -> PyTree:
    """Return factor * left + right; raises as `dot`."""
    _check_alike(left, right)
    return jax.tree.map(lambda a, b: jnp.asarray(factor, a.dtype) * a + b, left, right)


def size(tree: PyTree) -> int:
    """Number of scalars in the tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def rademacher(key: Array, like: PyTree) -> PyTree:
    """A tree of independent random signs with the shapes and dtypes of `like`."""
    leaves, treedef = jax.tree.flatten(like)
    keys = jax.random.split(key, len(leaves))
    return treedef.unflatten(
        [jax.random.rademacher(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]
    )


def gaussian(key: Array, like: PyTree) -> PyTree:
    """A tree of independent standard normal values with the shapes and dtypes of `like`."""
    leaves, treedef = jax.tree.flatten(like)
    keys = jax.random.split(key, len(leaves))
    return treedef.unflatten(
        [jax.random.normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]
    )
