"""Training on digits with gamma fixed, by sample, or learned: every seed and start side by side in one program."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import jobs
from experiments.digits import Recipe, read, scores
from focalgeo import losses
from focalgeo.training import optimiser
from focalgeo.types import Array, PyTree

GAMMAS = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0)  # of the sweep
STARTS = (0.0, 3.0)  # of the learned gamma
EVERY, RATE, MOST = 10, 0.05, 10.0  # steps between updates of gamma; Adam's rate for it; gamma stays within 0..MOST
TASKS = {  # name -> (title, training examples, share of their labels drawn anew)
    "digits": ("digits", None, 0.0),
    "few": ("digits, 150 training images", 150, 0.0),
    "noisy": ("digits, a fifth of the training labels drawn anew", None, 0.2),
}


def hypergradient(
    loss: Callable, val_loss: Callable, params: PyTree, gamma: Array, after: PyTree, rate: Array
) -> Array:
    """The derivative in gamma of val_loss(params - rate g(params, gamma)): -rate <grad val_loss(after), d g / d gamma>.

    g is the gradient of loss(params, gamma) in params, `after` the parameters after the step. One jvp of the gradient
    in gamma and one gradient on val; exact for a step of plain gradient descent, for which `after` is params - rate g.
    """
    _, mixed = jax.jvp(lambda at: jax.grad(loss)(params, at), (gamma,), (jnp.ones_like(gamma),))
    products = jax.tree.map(jnp.vdot, jax.grad(val_loss)(after), mixed)
    return -rate * sum(jax.tree.leaves(products))


def make_run(recipe: Recipe, kind: str) -> Callable:
    """(seed, gamma) -> (logits of val, of test, gamma after each update); "flsd": FLSD-53, whatever gamma is."""
    thresholds, gammas = (jnp.array(policy) for policy in losses.POLICIES["flsd_53"])
    plain = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0, "clip_norm": 0.0}
    gamma_tx = optimiser.make_optimiser("adam", lambda step: RATE, **plain)

    def loss(params, gamma, x, y, mask):
        logits = recipe.logits(params, x)
        if kind == "flsd":
            values = losses.sample_dependent_focal_loss(logits, y, thresholds, gammas)
        else:
            values = losses.focal_loss(logits, y, gamma)
        return jnp.sum(values * mask) / jnp.sum(mask)

    def step(carry, at):
        params, state, gamma, gamma_state, key = carry
        (x, y, mask), rate = recipe.drawn(key, at), recipe.rate(at)
        on_batch = partial(loss, x=x, y=y, mask=mask)
        updates, state = recipe.tx.update(jax.grad(on_batch)(params, gamma), state, params)
        after = optax.apply_updates(params, updates)

        def moved(_):
            slope = hypergradient(on_batch, recipe.val_loss, params, gamma, after, rate)
            change, new = gamma_tx.update(slope, gamma_state)
            return jnp.clip(gamma + change, 0.0, MOST), new

        if kind == "learned":
            due = (at + 1) % EVERY == 0
            gamma, gamma_state = jax.lax.cond(due, moved, lambda _: (gamma, gamma_state), None)
        return (after, state, gamma, gamma_state, key), gamma

    def run(seed, gamma):
        first, order = jax.random.split(jax.random.PRNGKey(seed))
        params = recipe.model.init(first, recipe.splits["train"][0][:2])["params"]
        carry = (params, recipe.tx.init(params), gamma, gamma_tx.init(gamma), order)
        (params, *_), path = jax.lax.scan(step, carry, jnp.arange(recipe.epochs * recipe.per_epoch))
        return *(recipe.logits(params, recipe.splits[name][0]) for name in ("val", "test")), path[EVERY - 1 :: EVERY]

    return run


def measure(task: str, seeds: int) -> list[dict[str, Any]]:
    """The runs of a task: "fixed" at each of GAMMAS, "flsd" and "learned" from each of STARTS, for every seed."""
    recipe, runs = read(*TASKS[task][1:]), []
    for kind, values in (("fixed", GAMMAS), ("flsd", (0.0,)), ("learned", STARTS)):
        every = [(seed, gamma) for gamma in values for seed in range(seeds)]
        outputs = jax.jit(jax.vmap(make_run(recipe, kind)))(*map(jnp.array, zip(*every, strict=True)))
        for (seed, gamma), val, test, path in zip(every, *map(np.asarray, outputs), strict=True):
            run = {"task": task, "kind": kind, "gamma": gamma, "seed": seed, **scores(val, test, recipe)}
            points = np.linspace(0, len(path) - 1, 25).round().astype(int)  # evenly over training
            runs.append(run | ({"path": path[points].tolist()} if kind == "learned" else {}))
    return runs


def cost() -> dict[str, float]:
    """Floating-point operations of an update of gamma and of a step, as XLA counts them, on digits."""
    recipe = read()
    x, y = (part[: recipe.batch] for part in recipe.splits["train"])
    params = recipe.model.init(jax.random.PRNGKey(0), x[:2])["params"]

    def loss(params, gamma):
        return jnp.mean(losses.focal_loss(recipe.logits(params, x), y, gamma))

    def update(params, gamma):
        return hypergradient(loss, recipe.val_loss, params, gamma, params, jnp.float32(0.1))

    step, once = (jobs.flops(call, params, jnp.float32(1.0)) for call in (jax.grad(loss), update))
    return {"step": step, "update": once, "run": 1 + once / step / EVERY}
