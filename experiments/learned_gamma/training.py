"""Training on digits with gamma fixed, by sample, or learned: every seed and start side by side in one program."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import jobs
from focalgeo import calibration, data, job, losses, models
from focalgeo.job.preparation import prepare
from focalgeo.training import optimiser
from focalgeo.types import Array, PyTree, Split

GAMMAS = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0)  # of the sweep
STARTS = (0.0, 3.0)  # of the learned gamma
EVERY, RATE, MOST = 10, 0.05, 10.0  # steps between updates of gamma; Adam's rate for it; gamma stays within 0..MOST
TASKS = {  # name -> (title, training examples, share of their labels drawn anew)
    "digits": ("digits", None, 0.0),
    "few": ("digits, 150 training images", 150, 0.0),
    "noisy": ("digits, a fifth of the training labels drawn anew", None, 0.2),
}


class Recipe(NamedTuple):
    """What a run needs: inputs and labels of each split, network, optimiser, its rate by step, epochs, batch size."""

    splits: dict[str, tuple[Array, Array]]
    model: Any
    tx: optax.GradientTransformation
    rate: Callable
    epochs: int
    batch: int

    def logits(self, params: PyTree, x: Array) -> Array:
        """The network's."""
        return self.model.apply({"params": params}, x, train=False)

    def val_loss(self, params: PyTree) -> Array:
        """Mean cross-entropy on val."""
        x, y = self.splits["val"]
        return jnp.mean(losses.cross_entropy(self.logits(params, x), y))


def read(task: str) -> Recipe:
    """The task's data, and the recipe of configs/digits.py; which labels are drawn anew is the same for all seeds."""
    config = job.check_config(jobs.load("configs/digits.py"))
    dataset, settings = prepare(config).dataset, config.optimizer
    _, examples, share = TASKS[task]
    labels, generator = np.array(dataset.train.y), np.random.default_rng(0)
    drawn = generator.random(len(labels)) < share
    labels[drawn] = generator.integers(0, 10, drawn.sum())
    train = Split(dataset.train.x[:examples], labels[:examples])
    splits = {
        name: (jnp.asarray(data.normalise_images(x, data.NORMALISATIONS["digits"])), jnp.asarray(y))
        for name, (x, y) in {"train": train, "val": dataset.val, "test": dataset.test}.items()
    }
    per_epoch = -(-len(train.y) // settings.batch_size)
    schedule = optimiser.step_schedule([at * per_epoch for at in settings.decay_epochs], settings.decay_factor)
    rate = lambda step: settings.learning_rate * schedule(step)  # noqa: E731
    names = ("momentum", "nesterov", "weight_decay", "clip_norm")
    tx = optimiser.make_optimiser(settings.name, rate, **{name: settings[name] for name in names})
    return Recipe(splits, models.build(config.model.name, 10), tx, rate, settings.epochs, settings.batch_size)


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
    train_x, train_y = recipe.splits["train"]
    examples, batch = len(train_y), recipe.batch
    per_epoch = -(-examples // batch)
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
        order = jax.random.permutation(jax.random.fold_in(key, at // per_epoch), per_epoch * batch)
        places = jax.lax.dynamic_slice_in_dim(order, (at % per_epoch) * batch, batch)
        mask, places, rate = (places < examples).astype(jnp.float32), places % examples, recipe.rate(at)
        on_batch = partial(loss, x=train_x[places], y=train_y[places], mask=mask)
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
        params = recipe.model.init(first, train_x[:2])["params"]
        carry = (params, recipe.tx.init(params), gamma, gamma_tx.init(gamma), order)
        (params, *_), path = jax.lax.scan(step, carry, jnp.arange(recipe.epochs * per_epoch))
        return *(recipe.logits(params, recipe.splits[name][0]) for name in ("val", "test")), path[EVERY - 1 :: EVERY]

    return run


def measure(task: str, seeds: int) -> list[dict[str, Any]]:
    """The runs of a task: "fixed" at each of GAMMAS, "flsd" and "learned" from each of STARTS, for every seed."""
    recipe, runs = read(task), []
    for kind, values in (("fixed", GAMMAS), ("flsd", (0.0,)), ("learned", STARTS)):
        every = [(seed, gamma) for gamma in values for seed in range(seeds)]
        outputs = jax.jit(jax.vmap(make_run(recipe, kind)))(*map(jnp.array, zip(*every, strict=True)))
        for (seed, gamma), val, test, path in zip(every, *map(np.asarray, outputs), strict=True):
            run = {"task": task, "kind": kind, "gamma": gamma, "seed": seed, **scores(val, test, recipe)}
            points = np.linspace(0, len(path) - 1, 25).round().astype(int)  # evenly over training
            runs.append(run | ({"path": path[points].tolist()} if kind == "learned" else {}))
    return runs


def scores(val_logits: np.ndarray, test_logits: np.ndarray, recipe: Recipe) -> dict[str, float]:
    """Val's NLL as trained, and test's accuracy, NLL and ECE as trained and after T, which val's NLL fits."""
    (_, val_labels), (_, labels) = recipe.splits["val"], recipe.splits["test"]
    fitted = calibration.fit("temperature_scaling", val_logits, np.asarray(val_labels))
    scores = {"val nll": float(losses.cross_entropy(val_logits, val_labels).mean())}
    plain = calibration.temperature_scaling(test_logits, 1.0)
    for words, log_probs in (("", plain), (" after T", fitted.predict_log_proba(test_logits))):
        metrics = calibration.all_metrics(log_probs, np.asarray(labels), names=("accuracy", "nll", "ece"))
        scores |= {f"{name}{words}": float(number) for name, number in metrics.items()}
    return scores | {"temperature": float(fitted.parameters["temperature"])}


def cost() -> dict[str, float]:
    """Floating-point operations of an update of gamma and of a step, as XLA counts them, on digits."""
    recipe = read("digits")
    x, y = (part[: recipe.batch] for part in recipe.splits["train"])
    params = recipe.model.init(jax.random.PRNGKey(0), x[:2])["params"]

    def loss(params, gamma):
        return jnp.mean(losses.focal_loss(recipe.logits(params, x), y, gamma))

    def update(params, gamma):
        return hypergradient(loss, recipe.val_loss, params, gamma, params, jnp.float32(0.1))

    step, once = (jobs.flops(call, params, jnp.float32(1.0)) for call in (jax.grad(loss), update))
    return {"step": step, "update": once, "run": 1 + once / step / EVERY}
