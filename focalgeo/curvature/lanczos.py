"""A Krylov basis by the Lanczos method with full reorthogonalisation.

`extreme_eigenvalues` looks at an end of the spectrum with it, `spectral_density` at all of the spectrum.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from focalgeo.checks import is_traced
from focalgeo.curvature.arguments import power_of_two
from focalgeo.precision import matmul
from focalgeo.types import Array, InputError

# In units of the machine epsilon times the matrix norm: what is shorter, of a new direction or a residual, is rounding
# error.
ROUNDING = 100.0
ASYMMETRY = 0.1  # of the matrix norm: far beyond what rounding in bfloat16 makes of a symmetric matrix


class Krylov(NamedTuple):
    """A Krylov basis that grows by one product at a time; arrays keep their shapes: jit compiles a step once.

    H stands in the unit of its first product, so that squares neither overflow nor vanish, whatever its scale.
    """

    basis: Array  # [steps + k, n]: the first `step` rows are expanded, the next k are waiting, the rest is zero
    unit: Array  # a power of two
    coupling: Array  # [steps, steps + k]: basis @ H @ basis' / unit for the expanded rows
    scale: Array  # the largest ||H q|| / unit so far, a lower bound of the matrix norm
    step: Array
    closed: Array  # the last product added no direction to the basis, which therefore did not grow
    finite: Array  # all products were


def krylov_start(block: Float[Array, "k size"], *, steps: int) -> Krylov:
    """The orthonormal rows of `block` and nothing expanded; room for `steps` products."""
    k, size = block.shape
    basis = jnp.zeros((steps + k, size), block.dtype).at[:k].set(block)
    coupling = jnp.zeros((steps, steps + k), block.dtype)
    zero, one = jnp.zeros((), block.dtype), jnp.ones((), block.dtype)
    return Krylov(basis, one, coupling, zero, jnp.int32(0), closed=jnp.bool_(False), finite=jnp.bool_(True))


@jax.jit
def next_row(krylov: Krylov) -> Float[Array, " size"]:
    """The basis vector to which the matvec is applied next."""
    return krylov.basis[krylov.step]


def expanded(krylov: Krylov, product: Float[Array, " size"]) -> Krylov:
    """The basis and its coupling after one more product, that of `next_row`; to be jitted by the caller.

    What is left of the product beside all rows is the new row, unless it is rounding error: then the row is zero.
    """
    steps, width = krylov.coupling.shape
    new = krylov.step + (width - steps)
    unit = jnp.where(krylov.step == 0, power_of_two(product), krylov.unit)
    finite = krylov.finite & jnp.isfinite(product).all()
    product = product / unit
    scale = jnp.maximum(krylov.scale, jnp.linalg.norm(product))
    rest, projection = orthogonalise(krylov.basis, product)
    length = jnp.linalg.norm(rest)
    # A length that is not a number is not above the limit either.
    is_new = (new < rest.shape[0]) & (length > ROUNDING * jnp.finfo(rest.dtype).eps * scale)
    length = jnp.where(is_new, length, 0)
    return Krylov(
        krylov.basis.at[new].set(jnp.where(is_new, rest / jnp.where(is_new, length, 1), 0)),
        unit,
        krylov.coupling.at[krylov.step].set(projection.at[new].set(length)),
        scale,
        krylov.step + 1,
        closed=~is_new,
        finite=finite,
    )


def orthogonalise(
    basis: Float[Array, "rows size"], vector: Float[Array, " size"]
) -> tuple[Float[Array, " size"], Float[Array, " rows"]]:
    """Gram-Schmidt twice: the part of `vector` orthogonal to `basis`, and its coefficients; zero rows do nothing."""
    first = matmul(basis, vector)
    vector = vector - matmul(first, basis)
    second = matmul(basis, vector)
    return vector - matmul(second, basis), first + second


def ritz(krylov: Krylov) -> tuple[Float[Array, " steps"], Float[Array, "steps steps"]]:
    """Eigenvalues of H / unit projected on the expanded rows, ascending, and their coefficients in these, in columns.

    The first `steps - step` of them belong to rows not yet reached: they lie below all others and mean nothing.
    """
    steps = krylov.coupling.shape[0]
    upper = jnp.triu(krylov.coupling[:, :steps])
    active = jnp.arange(steps, dtype=jnp.int32) < krylov.step
    matrix = jnp.where(active[:, None] & active[None, :], upper + jnp.triu(upper, 1).T, 0)
    size = jnp.linalg.norm(matrix)
    # Below all others, at a distance that costs no precision.
    below = jnp.where(size > 0, -2 * size, -1)
    return jnp.linalg.eigh(matrix + jnp.diag(jnp.where(active, 0, below)))


@jax.jit
def is_symmetric(krylov: Krylov) -> Array:
    """Whether the expanded rows couple to each other alike both ways, to `ASYMMETRY` of the matrix norm.

    The part above the diagonal alone is used, so what lies below it tells an asymmetric matvec at no cost.
    """
    steps = krylov.coupling.shape[0]
    active = jnp.arange(steps, dtype=jnp.int32) < krylov.step
    matrix = jnp.where(active[:, None] & active[None, :], krylov.coupling[:, :steps], 0)
    return jnp.max(jnp.abs(matrix - matrix.T)) <= ASYMMETRY * krylov.scale


def check_symmetric(krylov: Krylov) -> None:
    """Refuses a matvec that was seen to be asymmetric; does nothing while traced.

    Raises:
        InputError: it is.
    """
    if not is_traced(krylov) and krylov.finite and not is_symmetric(krylov):
        raise InputError("matvec is not symmetric: v' H w and w' H v differ; pass a Hessian's product, or (H + H') / 2")
