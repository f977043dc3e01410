"""Memory of a loss over a language model's vocabulary, by XLA's own count: in arrays of logits."""

import jax
import jax.numpy as jnp
import pytest

from focalgeo import curvature, losses

POSITIONS, CLASSES, WIDTH = 128, 8192, 8


def product(of, loss):
    """Of the last layer's weights, whose logits are arrays of the program itself."""

    def hessian(weights, along, words, labels, gamma):
        return curvature.hvp(lambda weights: loss(words @ weights, labels, gamma), weights, along)

    def gauss_newton(weights, along, words, labels, gamma):
        return curvature.ggn_vp(
            lambda weights: words @ weights, lambda logits: loss(logits, labels, gamma), weights, along
        )

    def penalty(weights, along, words, labels, gamma):
        def penalised(weights):
            return sum(
                curvature.value_and_trace(
                    lambda weights: loss(words @ weights, labels, gamma), weights, jax.random.key(0)
                )
            )

        return jax.grad(penalised)(weights)

    return {"hvp": hessian, "ggn_vp": gauss_newton, "gradient of the penalty": penalty}[of]


@pytest.mark.parametrize("name", ["cross_entropy", "focal_loss"])
@pytest.mark.parametrize(("of", "most"), [("hvp", 2.1), ("ggn_vp", 2.1), ("gradient of the penalty", 3.1)])
def test_few_arrays_of_logits_are_alive_at_once(name, of, most):
    def loss(logits, labels, gamma):
        values = (gamma,) if name == "focal_loss" else ()
        return getattr(losses, name)(logits, labels, *values).mean()

    like = jax.ShapeDtypeStruct
    weights, gamma = like((WIDTH, CLASSES), jnp.float32), like((), jnp.float32)
    words, labels = like((POSITIONS, WIDTH), jnp.float32), like((POSITIONS,), jnp.int32)
    program = jax.jit(product(of, loss)).lower(weights, weights, words, labels, gamma).compile()
    assert program.memory_analysis().temp_size_in_bytes / (4 * POSITIONS * CLASSES) < most
