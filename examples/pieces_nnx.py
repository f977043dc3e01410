"""Focal loss, FLSD, the trace penalty and SAM as pieces of a flax NNX loop: python examples/pieces_nnx.py."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from sklearn.datasets import load_digits

from focalgeo import curvature, losses

x, y = load_digits(return_X_y=True)
x, y = jnp.asarray(x / 16, "float32"), jnp.asarray(y, "int32")
network = nnx.Sequential(nnx.Linear(64, 64, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(64, 10, rngs=nnx.Rngs(1)))
graph, _, rest = nnx.split(network, nnx.Param, ...)


def logits_of(params, x):
    return nnx.merge(graph, params, rest)(x)


def focal(params, x, y):
    return jnp.mean(losses.focal_loss(logits_of(params, x), y, 2.0))


def flsd(params, x, y):
    return jnp.mean(losses.sample_dependent_focal_loss(logits_of(params, x), y, *losses.POLICIES["flsd_53"]))


def train(objective, transformation):
    model = nnx.clone(network)
    optimizer = nnx.Optimizer(model, transformation, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, *inputs):
        def gradient(params, adversarial_step):
            return jax.grad(objective)(params, *inputs)

        optimizer.update(model, gradient(nnx.state(model, nnx.Param), 0), grad_fn=gradient)

    for i in range(200):
        key = jax.random.fold_in(jax.random.PRNGKey(1), i)
        chosen = jax.random.choice(key, 1300, (128,), replace=False)
        step(model, optimizer, key, x[chosen], y[chosen])
    return nnx.state(model, nnx.Param)


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
