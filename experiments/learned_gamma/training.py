"""Training on digits with gamma fixed, by sample, or learned: every seed and start side by side in one program."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from focalgeo import calibration, data, job, losses, models
from focalgeo.config import load_config
from focalgeo.job.preparation import prepare
from focalgeo.training import optimiser
from focalgeo.types import Array, PyTree

CONFIG = "configs/digits.py"
GAMMAS = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0)  # of the sweep
STARTS = (0.0, 3.0)  # of the learned gamma
EVERY, RATE, MOST = 10, 0.05, 10.0  # steps between updates of gamma; Adam's rate for it; gamma stays within 0..MOST
TASKS = {  # name -> (title, training examples, share of their labels drawn anew)
    "digits": ("digits", None, 0.0),
    "few": ("digits, 150 training images", 150, 0.0),
    "noisy": ("digits, a fifth of the training labels drawn anew", None, 0.2),
}


class Arrays(NamedTuple):
    """Inputs and labels of each split."""

    x: Array
    y: Array
    val_x: Array
    val_y: Array
    test_x: Array
    test_y: Array


class Recipe(NamedTuple):
    """What a run needs beside its data: network, optimiser for a rate of 1, its schedule, numbers of the config."""

    model: Any
    tx: optax.GradientTransformation
    schedule: Callable
    rate: float
    epochs: int
    batch: int


def read(task: str, root: str) -> tuple[Arrays, Recipe]:
    """The task's data, and the recipe of configs/digits.py; which labels are drawn anew is the same for all seeds."""
    config = job.check_config(load_config(f"{root}/{CONFIG}", ""))
    dataset = prepare(config).dataset
    _, examples, share = TASKS[task]
    found = []
    for split in (dataset.train, dataset.val, dataset.test):
        found += [jnp.asarray(data.normalise_images(split.x, data.NORMALISATIONS["digits"])), jnp.asarray(split.y)]
    arrays = Arrays(*found)
    generator = np.random.default_rng(0)
    labels = np.array(arrays.y)
    drawn = generator.random(len(labels)) < share
    labels[drawn] = generator.integers(0, 10, drawn.sum())
    arrays = arrays._replace(x=arrays.x[:examples], y=jnp.asarray(labels[:examples]))
    settings = config.optimizer
    batch = settings.batch_size
    per_epoch = -(-len(arrays.y) // batch)
    schedule = optimiser.step_schedule([at * per_epoch for at in settings.decay_epochs], settings.decay_factor)
    names = ("momentum", "nesterov", "weight_decay", "clip_norm")
    tx = optimiser.make_optimiser(settings.name, schedule, **{name: settings[name] for name in names})
    model = models.build(config.model.name, 10)
    return arrays, Recipe(model, tx, schedule, settings.learning_rate, settings.epochs, batch)


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


def make_run(arrays: Arrays, recipe: Recipe, *, learned: bool, by_sample: bool = False) -> Callable:
    """(seed, gamma) -> (log-odds of val, of test, gamma after each update); by_sample: FLSD-53, whatever gamma is."""
    thresholds, gammas = (jnp.array(each) for each in losses.POLICIES["flsd_53"])
    examples, batch = len(arrays.y), recipe.batch
    per_epoch = -(-examples // batch)
    plain = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0, "clip_norm": 0.0}
    gamma_tx = optimiser.make_optimiser("adam", optimiser.step_schedule([], 1.0), **plain)

    def outputs(params, x):
        return recipe.model.apply({"params": params}, x, train=False)

    def loss(params, gamma, x, y, mask):
        logits = outputs(params, x)
        if by_sample:
            each = losses.sample_dependent_focal_loss(logits, y, thresholds, gammas)
        else:
            each = losses.focal_loss(logits, y, gamma)
        return jnp.sum(each * mask) / jnp.sum(mask)

    def val_loss(params):
        return jnp.mean(losses.cross_entropy(outputs(params, arrays.val_x), arrays.val_y))

    def step(carry, at):
        params, state, gamma, gamma_state, key = carry
        order = jax.random.permutation(jax.random.fold_in(key, at // per_epoch), per_epoch * batch)
        chosen = jax.lax.dynamic_slice_in_dim(order, (at % per_epoch) * batch, batch)
        mask = (chosen < examples).astype(jnp.float32)
        x, y = arrays.x[chosen % examples], arrays.y[chosen % examples]
        gradient = jax.grad(loss)(params, gamma, x, y, mask)
        updates, state = recipe.tx.update(gradient, state, params)
        after = jax.tree.map(lambda leaf, more: leaf + recipe.rate * more, params, updates)

        def moved(_):
            slope = hypergradient(
                partial(loss, x=x, y=y, mask=mask), val_loss, params, gamma, after, recipe.rate * recipe.schedule(at)
            )
            change, new = gamma_tx.update(slope, gamma_state)
            return jnp.clip(gamma + RATE * change, 0.0, MOST), new

        if learned:
            due = (at + 1) % EVERY == 0
            gamma, gamma_state = jax.lax.cond(due, moved, lambda _: (gamma, gamma_state), None)
        return (after, state, gamma, gamma_state, key), gamma

    def run(seed, gamma):
        first, order = jax.random.split(jax.random.PRNGKey(seed))
        params = recipe.model.init(first, arrays.x[:2])["params"]
        carry = (params, recipe.tx.init(params), gamma, gamma_tx.init(gamma), order)
        (params, *_), path = jax.lax.scan(step, carry, jnp.arange(recipe.epochs * per_epoch))
        return outputs(params, arrays.val_x), outputs(params, arrays.test_x), path[EVERY - 1 :: EVERY]

    return run


def measure(task: str, seeds: int, root: str) -> list[dict[str, Any]]:
    """The runs of a task: "fixed" at each of GAMMAS, "flsd" and "learned" from each of STARTS, for every seed."""
    arrays, recipe = read(task, root)
    found = []
    for kind, values in (("fixed", GAMMAS), ("flsd", (0.0,)), ("learned", STARTS)):
        run = make_run(arrays, recipe, learned=kind == "learned", by_sample=kind == "flsd")
        every = [(seed, gamma) for gamma in values for seed in range(seeds)]
        numbers = jax.jit(jax.vmap(run))(*(jnp.array(each) for each in zip(*every, strict=True)))
        for (seed, gamma), *each in zip(every, *map(np.asarray, numbers), strict=True):
            head = {"task": task, "kind": kind, "gamma": gamma, "seed": seed}
            found.append(head | scores(*each[:2], arrays) | ({"path": path_of(each[2])} if kind == "learned" else {}))
    return found


def path_of(gammas: np.ndarray, points: int = 25) -> list[float]:
    """So many values of gamma, evenly over training, the last one last."""
    return gammas[np.linspace(0, len(gammas) - 1, points).round().astype(int)].tolist()


def scores(val_logits: np.ndarray, test_logits: np.ndarray, arrays: Arrays) -> dict[str, float]:
    """Val's NLL as trained, and test's accuracy, NLL and ECE as trained and after T, which val's NLL fits."""
    labels = np.asarray(arrays.test_y)
    fitted = calibration.fit("temperature_scaling", val_logits, np.asarray(arrays.val_y))
    found = {"val nll": float(losses.cross_entropy(val_logits, arrays.val_y).mean())}
    for words, log_probs in (
        ("", calibration.temperature_scaling(test_logits, 1.0)),
        (" after T", fitted.predict_log_proba(test_logits)),
    ):
        measured = calibration.all_metrics(log_probs, labels, names=("accuracy", "nll", "ece"))
        found |= {f"{name}{words}": float(number) for name, number in measured.items()}
    return found | {"temperature": float(fitted.parameters["temperature"])}


def cost(root: str) -> dict[str, float]:
    """Floating-point operations of an update of gamma and of a step, as XLA counts them, on digits."""
    arrays, recipe = read("digits", root)
    params = recipe.model.init(jax.random.PRNGKey(0), arrays.x[:2])["params"]
    gamma = jnp.float32(1.0)

    def loss(params, gamma):
        logits = recipe.model.apply({"params": params}, arrays.x[: recipe.batch], train=False)
        return jnp.mean(losses.focal_loss(logits, arrays.y[: recipe.batch], gamma))

    def val_loss(params):
        return jnp.mean(
            losses.cross_entropy(recipe.model.apply({"params": params}, arrays.val_x, train=False), arrays.val_y)
        )

    def update(params, gamma):
        return hypergradient(loss, val_loss, params, gamma, params, jnp.float32(0.1))

    counted = [
        jax.jit(call).lower(params, gamma).compile().cost_analysis()["flops"] for call in (jax.grad(loss), update)
    ]
    return {"step": counted[0], "update": counted[1], "run": 1 + counted[1] / counted[0] / EVERY}
