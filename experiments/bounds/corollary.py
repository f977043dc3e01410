"""Corollary 2 as an objective: a Gaussian over the weights, and its KL from the Maxwell-Boltzmann prior as regulariser.

The prior is exp(-beta E(theta)) / Z(beta), with the cross-entropy of the training set as energy E. For a distribution
rho over weights with entropy H(rho), KL = -H(rho) + beta E_rho[E] + ln Z(beta), and Z does not depend on rho. So the
bound's E_rho[E] / (1 - lambda/2) + KL / (n lambda (1 - lambda/2)) is, but for a constant and a factor,

    E_rho[cross-entropy] - H(rho) / (n lambda + beta):

lambda, n and beta enter by one number, the strength n lambda + beta; gamma does not enter. A point has no finite
entropy, and that of a Gaussian of fixed width is a constant, so that the KL then trains as cross-entropy under noise
does. Only where the width is trained as well does it do something, and that is what is done here.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.digits import Recipe, read, scores
from focalgeo import losses, trees
from focalgeo.types import Array, PyTree

STRENGTHS = (1e3, 2158.0, 1e4, 1e5, 1e6)  # n lambda + beta; 2,158 is 1,079 images times 2, which lambda stays below
WIDTH, RATE, DRAWS = 0.01, 0.02, 50  # of the Gaussian at first; Adam's rate for its logarithm; networks of a prediction


def make_run(recipe: Recipe) -> Callable:
    """(seed, strength) -> logits of the centre on val and test, mean log-probabilities of draws on test, width.

    strength: infinity trains cross-entropy alone, without noise. width: the geometric mean over parameters.
    """
    width_tx = optax.adam(RATE)

    def drawn(centre: PyTree, log_width: PyTree, key: Array, strength: Array) -> PyTree:
        noise = trees.gaussian(key, centre)
        scale = jnp.where(jnp.isinf(strength), 0.0, 1.0)
        return jax.tree.map(lambda at, log, more: at + scale * jnp.exp(log) * more, centre, log_width, noise)

    def objective(both, key, strength, x, y, mask):
        centre, log_width = both
        values = losses.cross_entropy(recipe.logits(drawn(centre, log_width, key, strength), x), y)
        entropy = sum(jnp.sum(leaf) for leaf in jax.tree.leaves(log_width))  # and a constant
        return jnp.sum(values * mask) / jnp.sum(mask) - entropy / strength

    def step(strength, carry, at):
        centre, state, log_width, width_state, key = carry
        noise = jax.random.fold_in(jax.random.fold_in(key, 1), at)
        slopes = jax.grad(objective)((centre, log_width), noise, strength, *recipe.drawn(key, at))
        updates, state = recipe.tx.update(slopes[0], state, centre)
        with jax.numpy_dtype_promotion("standard"):  # optax raises a float to its integer count
            changes, width_state = width_tx.update(slopes[1], width_state)
        log_width = optax.apply_updates(log_width, changes)
        return (optax.apply_updates(centre, updates), state, log_width, width_state, key), None

    def run(seed, strength):
        first, order, draws = jax.random.split(jax.random.PRNGKey(seed), 3)
        centre = recipe.model.init(first, recipe.splits["train"][0][:2])["params"]
        log_width = jax.tree.map(lambda leaf: jnp.full_like(leaf, np.log(WIDTH)), centre)
        carry = (centre, recipe.tx.init(centre), log_width, width_tx.init(log_width), order)
        (centre, _, log_width, *_), _ = jax.lax.scan(
            partial(step, strength), carry, jnp.arange(recipe.epochs * recipe.per_epoch)
        )
        test = recipe.splits["test"][0]
        every = jax.lax.map(
            lambda key: jax.nn.log_softmax(recipe.logits(drawn(centre, log_width, key, strength), test)),
            jax.random.split(draws, DRAWS),
        )
        mixed = jax.nn.logsumexp(every, axis=0) - jnp.log(DRAWS)
        logs = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(log_width)])
        of_centre = (recipe.logits(centre, recipe.splits[name][0]) for name in ("val", "test"))
        return *of_centre, mixed, jnp.exp(logs.mean())

    return run


def measure(seeds: int) -> list[dict[str, Any]]:
    """A run for each strength and seed: scores of the centre, and "drawn ..." of the mean prediction of draws."""
    recipe, runs = read(), []
    every = [(seed, strength) for strength in (np.inf, *STRENGTHS) for seed in range(seeds)]
    outputs = jax.jit(jax.vmap(make_run(recipe)))(*map(jnp.array, zip(*every, strict=True)))
    for (seed, strength), val, test, mixed, width in zip(every, *map(np.asarray, outputs), strict=True):
        run = {
            "strength": f"{strength:g}",
            "seed": seed,
            "finite": bool(np.isfinite(val).all() and np.isfinite(mixed).all()),
        }
        if run["finite"]:
            of_draws = scores(val, mixed, recipe)
            run |= {"width": float(width), **scores(val, test, recipe)}
            run |= {f"drawn {name}": of_draws[name] for name in ("accuracy", "nll", "ece")}
        runs.append(run)
    return runs
