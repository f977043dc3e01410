"""A network's last layer, as its module shows it to who asks for intermediates."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from focalgeo.types import Array, InputError, PyTree

INTERMEDIATES = "intermediates"  # flax's name of the collection


def find_last_layer(sown: Mapping) -> tuple[Array, Array]:
    """The last layer's input and kernel, wherever in the sown collections they stand.

    Raises:
        InputError: there is none, or more than one.
    """
    found = [_sown_in(sown, name) for name in ("features", "kernel")]
    if [len(each) for each in found] != [1, 1]:
        counts = " and ".join(f"{len(each)} {name}" for each, name in zip(found, ("features", "kernel"), strict=True))
        raise InputError(
            f"config.diagnostics: the network sows {counts} of a last layer, one of each is needed; "
            "set diagnostics.every=0, or let its last layer sow them"
        )
    return found[0][0], found[1][0]


def _sown_in(tree: Mapping, name: str) -> list[Array]:
    found = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found += _sown_in(value, name)
        elif key == name:
            found += list(value)
    return found


def check_last_layer(apply: Callable, variables: PyTree, x: Array) -> None:
    """Refuses a network that sows no last layer, from shapes alone, before it is trained.

    Raises:
        InputError: as `find_last_layer`.
    """
    jax.eval_shape(lambda variables, x: find_last_layer(apply(variables, x, mutable=[INTERMEDIATES])[1]), variables, x)


@jax.jit
def weight_norms(apply: Partial, variables: PyTree, x: Array) -> Array:
    """Frobenius norms |W| [members] of the last layers' kernels, for variables with leaves [members, ...].

    The compiler leaves out all of the network that this does not need.
    """

    def of_member(variables: PyTree) -> Array:
        return jnp.linalg.norm(find_last_layer(apply(variables, x, mutable=[INTERMEDIATES])[1])[1])

    return jax.vmap(of_member)(variables)
