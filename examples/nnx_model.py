"""The same losses with a flax NNX model: a train step, then the curvature of what was trained.

python examples/nnx_model.py
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from sklearn.datasets import load_digits

from focalgeo import calibration, curvature, losses

GAMMA, STEPS, BATCH = 2.0, 300, 128


class Network(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(64, 64, rngs=rngs)
        self.out = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.relu(self.hidden(x)))


@nnx.jit
def step(model, optimizer, x, y):
    value, gradient = nnx.value_and_grad(lambda m: jnp.mean(losses.focal_loss(m(x), y, GAMMA)))(model)
    optimizer.update(model, gradient)
    return value


x, y = (jnp.asarray(each, kind) for each, kind in zip(load_digits(return_X_y=True), ("float32", "int32"), strict=True))
train, test = (x[:1300] / 16, y[:1300]), (x[1300:] / 16, y[1300:])
model = Network(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
for i in range(STEPS):
    chosen = jax.random.choice(jax.random.fold_in(jax.random.PRNGKey(1), i), len(train[0]), (BATCH,), replace=False)
    step(model, optimizer, train[0][chosen], train[1][chosen])

log_probs = jax.nn.log_softmax(model(test[0]))
print(f"accuracy {calibration.accuracy(log_probs, test[1]):.3f}, ECE {calibration.ece(log_probs, test[1]):.3f}")

graph, params, rest = nnx.split(model, nnx.Param, ...)  # curvature takes functions of the weights alone
matvec = curvature.linearized_hvp(
    lambda p: jnp.mean(losses.cross_entropy(nnx.merge(graph, p, rest)(test[0]), test[1])), params
)
top = curvature.lambda_max(matvec, params, jax.random.PRNGKey(2))
trace = curvature.trace(matvec, params, jax.random.PRNGKey(3), num_probes=30)
print(f"lambda_max {top.value:.3f} (residual {top.residual:.1g}), trace {trace.value:.2f} +- {trace.stderr:.2f}")
