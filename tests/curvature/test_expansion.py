"""Kimura and Naganuma, Eq. 27: near its minimum a likelihood is the quadratic form of its Fisher information."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from focalgeo.curvature import dense_hessian, ggn_vp
from focalgeo.losses import cross_entropy


def test_the_quadratic_fit_of_logistic_regression_errs_by_the_cube_of_the_step():
    random = np.random.default_rng(0)
    x, noise = random.normal(size=(60, 3)), random.gumbel(size=(60, 2))
    labels = np.argmax(np.stack([np.zeros(60), x @ [1.0, -2.0, 0.5]], 1) + noise, 1)
    with jax.enable_x64(True):

        def logits(params):
            score = jnp.asarray(x) @ params["w"] + params["b"]
            return jnp.stack([jnp.zeros_like(score), score], axis=1)

        def output_loss(z):
            return jnp.mean(cross_entropy(z, jnp.asarray(labels)))

        params, unravel = ravel_pytree({"b": jnp.zeros(()), "w": jnp.zeros(3)})
        loss = jax.jit(lambda flat: output_loss(logits(unravel(flat))))
        for _ in range(12):
            params -= jnp.linalg.solve(dense_hessian(loss, params), jax.grad(loss)(params))
        direction = jnp.asarray(random.normal(size=4))
        fisher = ggn_vp(lambda flat: logits(unravel(flat)), output_loss, params, direction)
        steps = np.array([0.02, 0.01, 0.005])
        errors = np.array(
            [loss(params + e * direction) - loss(params) - e**2 / 2 * (direction @ fisher) for e in steps]
        )
        quadratic = steps**2 / 2 * float(direction @ fisher)
    np.testing.assert_allclose(errors[:-1] / errors[1:], 8, rtol=0.03)  # halve the step: an eighth of the error
    assert np.all(np.abs(errors) < 0.1 * quadratic)
