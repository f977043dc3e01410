"""Focal loss, FLSD, the trace penalty and SAM as pieces of an equinox loop: python examples/pieces_equinox.py."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

from focalgeo import curvature, losses

x, y = load_digits(return_X_y=True)
x, y = jnp.asarray(x / 16, "float32"), jnp.asarray(y, "int32")
network = eqx.nn.MLP(64, 10, width_size=64, depth=1, key=jax.random.PRNGKey(0))
start, static = eqx.partition(network, eqx.is_inexact_array)


def logits_of(params, x):
    return jax.vmap(eqx.combine(params, static))(x)


def focal(params, x, y):
    return jnp.mean(losses.focal_loss(logits_of(params, x), y, 2.0))


def flsd(params, x, y):
    return jnp.mean(losses.sample_dependent_focal_loss(logits_of(params, x), y, *losses.POLICIES["flsd_53"]))


def train(objective, optimizer):
    @eqx.filter_jit
    def step(params, state, *inputs):
        def gradient(params, adversarial_step):
            return jax.grad(objective)(params, *inputs)

        updates, state = optimizer.update(gradient(params, 0), state, params, grad_fn=gradient)
        return eqx.apply_updates(params, updates), state

    params, state = start, optimizer.init(start)
    for i in range(200):
        key = jax.random.fold_in(jax.random.PRNGKey(1), i)
        chosen = jax.random.choice(key, 1300, (128,), replace=False)
        params, state = step(params, state, key, x[chosen], y[chosen])
    return params


adam, uphill = optax.adam(1e-2), optax.chain(optax.contrib.normalize(), optax.sgd(0.05))
for name, objective, transformation in (
    ("focal loss", lambda params, key, x, y: focal(params, x, y), adam),
    ("FLSD", lambda params, key, x, y: flsd(params, x, y), adam),
    ("trace penalty", curvature.with_trace_penalty(focal, 0.01), adam),
    ("SAM", lambda params, key, x, y: focal(params, x, y), optax.contrib.sam(adam, uphill, opaque_mode=True)),
):
    params = train(objective, optax.with_extra_args_support(transformation))  # SAM alone asks for grad_fn
    accuracy = jnp.mean(logits_of(params, x[1300:]).argmax(-1) == y[1300:])
    _, trace = curvature.value_and_trace(lambda w: focal(w, x, y), params, jax.random.PRNGKey(2), num_probes=20)
    print(f"{name}: accuracy {accuracy:.3f}, trace {trace:.2f}")
