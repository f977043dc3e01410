"""Depthwise convolutions on a CPU against XLA's own: outputs, gradients and second derivatives."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focalgeo.models import layers

OPTIONS = {
    "lhs_dilation": (1, 1),
    "rhs_dilation": (1, 1),
    "dimension_numbers": jax.lax.ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2)),
    "feature_group_count": 6,
    "precision": None,
}


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [8, 7])
def test_shifted_products_are_the_convolution(stride, size):
    x = jax.random.normal(jax.random.PRNGKey(0), (3, size, size, 6))
    kernel = jax.random.normal(jax.random.PRNGKey(1), (3, 3, 1, 6))
    tangents = jax.random.normal(jax.random.PRNGKey(2), kernel.shape)
    arguments = ((stride, stride), ((1, 1), (1, 1)))

    def total(convolve, kernel):
        return jnp.sum(jnp.tanh(convolve(x, kernel, *arguments, **OPTIONS)))

    found = []
    for convolve in (layers._depthwise, jax.lax.conv_general_dilated):
        gradient = jax.grad(partial(total, convolve))
        found.append((convolve(x, kernel, *arguments, **OPTIONS), *jax.jvp(gradient, (kernel,), (tangents,))))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-4)


def test_other_platforms_have_the_convolution():
    x, kernel = jnp.zeros((2, 8, 8, 6)), jnp.zeros((3, 3, 1, 6))
    call = jax.jit(lambda x, kernel: layers._depthwise(x, kernel, (1, 1), ((1, 1), (1, 1)), **OPTIONS))
    assert "convolution" in call.trace(x, kernel).lower(lowering_platforms=("tpu",)).as_text()
    assert "convolution" not in call.trace(x, kernel).lower(lowering_platforms=("cpu",)).as_text()
