import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focalgeo.curvature import check_deterministic
from focalgeo.types import InputError, RunError

PARAMS = {"dense": jnp.linspace(-1.0, 1.0, 5), "head": jnp.ones(3)}


def loss(params):
    return jnp.sum(params["dense"] ** 2) + jnp.sum(jnp.exp(params["head"]))


def test_a_deterministic_loss_passes_bit_for_bit():
    check_deterministic(loss, PARAMS, tolerance=0.0)
    check_deterministic(jax.jit(loss), PARAMS, tolerance=0.0)


def test_dropout_with_a_fresh_key_is_refused():
    keys = (jax.random.key(seed) for seed in itertools.count())

    def dropped(params):
        return loss(params | {"head": params["head"] * jax.random.bernoulli(next(keys), 0.5, (3,)).astype(jnp.float32)})

    with pytest.raises(InputError, match=r"the loss changes .* dropout, .*statistics.*data") as error:
        check_deterministic(dropped, PARAMS)
    assert "\n" not in str(error.value)


def test_a_gradient_that_changes_under_an_equal_loss_is_refused():
    sign = itertools.cycle([1.0, -1.0])

    def turning(params):
        return next(sign) * jnp.sum(params["dense"])

    with pytest.raises(InputError, match="the gradient changes"):
        check_deterministic(turning, {"dense": jnp.zeros(4)})


def test_the_order_of_a_sum_passes_and_a_thousandth_does_not():
    random = np.random.default_rng(0)
    data = random.normal(size=(1000, 5)).astype(np.float32)

    def shuffled(params):
        return jnp.mean((jnp.asarray(random.permutation(data)) @ params["dense"] - 1) ** 2)

    check_deterministic(shuffled, PARAMS)
    factor = itertools.cycle([1.0, 1.001])
    with pytest.raises(InputError, match="the loss changes"):
        check_deterministic(lambda params: next(factor) * loss(params), PARAMS)


@pytest.mark.parametrize("size", [1e-30, 1e-6, 1.0, 1e25])
def test_noise_is_measured_in_the_gradients_own_size(size):
    factor = itertools.cycle([1.0, 1.01])
    params = {"dense": jnp.zeros(4)}  # where the loss is 0 and its gradient is not

    def noisy(params):
        return jnp.float32(size / 2) * next(factor) * jnp.sum(params["dense"])

    with pytest.raises(InputError, match=f"the gradient changes .*, its size is {re.escape(f'{size:.2g}')}"):
        check_deterministic(noisy, params)
    check_deterministic(lambda params: jnp.float32(size) * jnp.sum(params["dense"]), params, tolerance=0.0)


def test_values_that_are_not_finite_are_named():
    with pytest.raises(RunError, match=r"^loss is not finite"):
        check_deterministic(lambda params: loss(params) / 0.0, PARAMS)
    # The square root has a finite value and an infinite slope at zero.
    with pytest.raises(RunError, match=r"^gradient\['head'\] is not finite"):
        check_deterministic(lambda params: jnp.sum(jnp.sqrt(params["head"])), PARAMS | {"head": jnp.zeros(3)})


def test_nothing_can_be_checked_under_jit():
    with pytest.raises(InputError, match="outside jit"):
        jax.jit(lambda params: check_deterministic(loss, params))(PARAMS)
