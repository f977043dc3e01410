"""The networks and data that the curvature benchmark measures on, and the digits network trained in seconds."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from focalgeo import models, trees
from focalgeo.data import load_dataset
from focalgeo.types import Array, PyTree

SIZES = {
    "digits MLP": ("mlp", {"hidden": (32, 32)}, (8, 8, 1)),
    "MLP": ("mlp", {"hidden": (512, 512)}, (28, 28, 1)),
    "ResNet-20": ("resnet20", {}, (32, 32, 3)),
    "ResNet-18": ("resnet18", {}, (32, 32, 3)),
}


class Problem(NamedTuple):
    """A network in evaluation mode, its parameters, and examples that are passed to every product anew."""

    name: str
    apply: Callable
    params: PyTree
    model_state: PyTree
    x: Array
    y: Array

    def loss(self, params: PyTree, x: Array, y: Array) -> Array:
        """Mean cross-entropy in nats."""
        logits = self.apply({"params": params, **self.model_state}, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def make_problem(name: str, num_examples: int) -> Problem:
    """A network of SIZES at its initial weights, and random examples: time does not depend on their values."""
    model_name, options, shape = SIZES[name]
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (num_examples, *shape))
    y = jax.random.randint(keys[1], (num_examples,), 0, 10)
    model = models.build(model_name, **options)
    variables = dict(jax.jit(model.init)(keys[2], x[:2]))
    params = variables.pop("params")
    return Problem(name, model.apply, params, variables, x, y)


def trained_digits(epochs: int) -> Problem:
    """The network of configs/digits.py after `epochs` epochs of cross-entropy; x and y are 359 digits it has not seen.

    Learning rate, momentum and batch size are the configuration's; the order of the batches is drawn here.
    """
    problem = make_problem("digits MLP", 2)
    digits = load_dataset("digits", split_seed=1)
    x, y = ((digits.train.x / 16 - 0.305) / 0.376).astype(np.float32), digits.train.y

    @jax.jit
    def step(params, velocity, rate, x, y):
        velocity = trees.axpy(jnp.float32(0.9), velocity, jax.grad(problem.loss)(params, x, y))
        return trees.axpy(-rate, velocity, params), velocity

    params, generator = problem.params, np.random.default_rng(0)
    velocity = jax.tree.map(jnp.zeros_like, params)
    for epoch in range(epochs):
        rate = np.float32(0.1 if epoch < epochs * 2 / 3 else 0.01)
        for rows in np.array_split(generator.permutation(len(y))[: len(y) // 64 * 64], len(y) // 64):
            params, velocity = step(params, velocity, rate, x[rows], y[rows])
    held_out = ((digits.val.x / 16 - 0.305) / 0.376).astype(np.float32)
    return problem._replace(params=params, x=jnp.asarray(held_out), y=jnp.asarray(digits.val.y))
