"""Vector algebra on pytrees of float arrays: every function takes and returns trees of one structure.

And its precision: full float32 in all that is measured, whatever an accelerator does by default. By default a TPU
multiplies float32 matrices in one bfloat16 pass, of 8 bits, and a GPU may in TF32, of 11: two to three decimal digits,
with no word said. Elementwise operations and sums are float32 everywhere. On a CPU nothing changes.
"""

from collections.abc import Callable
from functools import partial
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo.types import Array, PyTree

# A decorator: products and convolutions that name no precision are in float32, in what is traced or run while the
# function runs, its derivatives taken there included; a function that is returned is not covered.
at_highest = jax.default_matmul_precision("highest")


def namespace(array: Array) -> ModuleType:
    """NumPy for an array on the host, where nothing is compiled, else jax.numpy: a formula is written once for both."""
    return np if isinstance(array, np.ndarray) else jnp


def matmul(left: Array, right: Array) -> Array:
    """The matrix product at full precision."""
    return jnp.matmul(left, right, precision="highest")


def dot(left: PyTree, right: PyTree) -> Array:
    """Inner product, the sum over leaves of sum(left * right), in full float32 on accelerators too."""
    return sum(jax.tree.leaves(jax.tree.map(lambda a, b: jnp.vdot(a, b, precision="highest"), left, right)))


def norm(tree: PyTree) -> Array:
    """Euclidean norm over all leaves."""
    return jnp.sqrt(dot(tree, tree))


def size(tree: PyTree) -> int:
    """Number of scalars in the tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def random(draw: Callable, key: Array, like: PyTree) -> PyTree:
    """A tree of independent values, of draw(key, shape, dtype), with the shapes and dtypes of `like`."""
    leaves, treedef = jax.tree.flatten(like)
    keys = jax.random.split(key, len(leaves))
    drawn = [draw(key, leaf.shape, leaf.dtype) for key, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(treedef, drawn)


rademacher = partial(random, jax.random.rademacher)  # random signs
gaussian = partial(random, jax.random.normal)  # standard normal values


def power_of_two(values: Array) -> Array:
    """The power of two next below the largest absolute value, a scalar of the same dtype; 1 where there is none.

    Divided by it, numbers keep all their digits, and their squares neither overflow nor vanish.
    """
    library = namespace(values)
    largest = library.max(library.abs(values), initial=0)
    limits = jnp.finfo(largest.dtype)
    exponent = library.clip(library.frexp(largest)[1] - 1, int(limits.minexp), int(limits.maxexp) - 1)
    unit = library.ldexp(library.ones_like(largest), exponent)
    return library.where((largest > 0) & library.isfinite(largest), unit, library.ones_like(unit))
