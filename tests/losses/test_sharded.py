"""Losses of logits and labels that devices share otherwise: the values and gradients of one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from focalgeo import losses

LOGITS = jax.random.normal(jax.random.key(0), (4, 4))
LABELS = jnp.array([0, 2, 1, 1])
ALL, ROWS, CLASSES = PartitionSpec(), PartitionSpec("d"), PartitionSpec(None, "d")


def total(logits, labels):
    return jnp.sum(losses.focal_loss(logits, labels, 2.0))


@pytest.mark.parametrize(("of_logits", "of_labels"), [(ALL, ROWS), (ROWS, ROWS), (ROWS, ALL), (ALL, ALL)])
def test_in_a_shard_map(of_logits, of_labels):
    """A replicated argument is cut to two rows by hand: each device has others of the sharded one."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))

    def part(logits, labels):
        return jax.lax.psum(total(logits[:2], labels[:2]), "d")

    def whole(logits, labels):
        rows = [(2 * place if spec == ROWS else 0) for place in range(2) for spec in (of_logits, of_labels)]
        return sum(total(logits[a : a + 2], labels[b : b + 2]) for a, b in zip(rows[::2], rows[1::2], strict=True))

    mapped = jax.shard_map(part, mesh=mesh, in_specs=(of_logits, of_labels), out_specs=ALL)
    for transform in (lambda f: f, jax.grad, jax.hessian):
        here, there = (jax.jit(transform(function))(LOGITS, LABELS) for function in (mapped, whole))
        np.testing.assert_allclose(here, there, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "of_logits", "of_labels"),
    [(kind, *specs) for kind in (AxisType.Auto, AxisType.Explicit) for specs in ((ROWS, ALL), (ROWS, ROWS))]
    + [(AxisType.Auto, ALL, ROWS), (AxisType.Auto, CLASSES, ALL)],  # the first JAX's own gather refuses if explicit
)
def test_in_a_mesh(kind, of_logits, of_labels):
    mesh = jax.make_mesh((2,), ("d",), devices=jax.devices()[:2], axis_types=(kind,))
    with jax.set_mesh(mesh):
        logits, labels = jax.device_put((LOGITS, LABELS), tuple(NamedSharding(mesh, s) for s in (of_logits, of_labels)))
        for transform in (lambda f: f, jax.grad):
            found = jax.jit(transform(total))(logits, labels)
            np.testing.assert_allclose(found, transform(total)(LOGITS, LABELS), rtol=1e-5, atol=1e-6)
