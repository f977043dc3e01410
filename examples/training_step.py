"""A training step of your own, in plain JAX and optax: focal loss with the trace of a Hessian as penalty.

python examples/training_step.py
"""

import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

from focalgeo import calibration, curvature, losses

GAMMA, PENALTY, STEPS, BATCH = 2.0, 1e-3, 300, 128
optimizer = optax.adam(1e-2)


def logits_of(params, x):
    return jax.nn.relu(x @ params["in"]) @ params["out"]


def objective(params, x, y, key):
    focal = jnp.mean(losses.focal_loss(logits_of(params, x), y, GAMMA))
    _, trace = curvature.value_and_trace(lambda p: jnp.mean(losses.cross_entropy(logits_of(p, x), y)), params, key)
    return focal + PENALTY * trace


@jax.jit
def step(params, state, x, y, key):
    value, gradient = jax.value_and_grad(objective)(params, x, y, key)
    updates, state = optimizer.update(gradient, state)
    return optax.apply_updates(params, updates), state, value


x, y = (jnp.asarray(each, kind) for each, kind in zip(load_digits(return_X_y=True), ("float32", "int32"), strict=True))
train, test = (x[:1300] / 16, y[:1300]), (x[1300:] / 16, y[1300:])
first, second, noise = jax.random.split(jax.random.PRNGKey(0), 3)
params = {"in": jax.random.normal(first, (64, 64)) / 8, "out": jax.random.normal(second, (64, 10)) / 8}
state = optimizer.init(params)
for i in range(STEPS):
    batch_key, probe_key = jax.random.split(jax.random.fold_in(noise, i))
    chosen = jax.random.choice(batch_key, len(train[0]), (BATCH,), replace=False)
    params, state, value = step(params, state, train[0][chosen], train[1][chosen], probe_key)

log_probs = jax.nn.log_softmax(logits_of(params, test[0]))
ece = calibration.bootstrap(calibration.ece, log_probs, test[1], jax.random.PRNGKey(1), 1000)
print(f"accuracy {calibration.accuracy(log_probs, test[1]):.3f}, ECE {ece.value:.3f} ({ece.low:.3f} to {ece.high:.3f})")
