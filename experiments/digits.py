"""The recipe of configs/digits.py as functions, for questions that train many networks of it in one program."""

import math
from collections.abc import Callable
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

    @property
    def per_epoch(self) -> int:
        """Steps of an epoch."""
        return -(-len(self.splits["train"][1]) // self.batch)

    def drawn(self, key: Array, at: Array) -> tuple[Array, Array, Array]:
        """Inputs, labels and weights of the batch of a step; the key draws the order of each epoch."""
        x, y = self.splits["train"]
        order = jax.random.permutation(jax.random.fold_in(key, at // self.per_epoch), self.per_epoch * self.batch)
        places = jax.lax.dynamic_slice_in_dim(order, (at % self.per_epoch) * self.batch, self.batch)
        return x[places % len(y)], y[places % len(y)], (places < len(y)).astype(jnp.float32)

    def trained(self, seed: Array, objective: Callable, carried: PyTree = ()) -> PyTree:
        """Parameters after training; objective: (params, carried, x, y, weights) -> (loss, what is carried on)."""
        first, order = jax.random.split(jax.random.PRNGKey(seed))

        def step(carry, at):
            params, state, carried = carry
            gradient, carried = jax.grad(objective, has_aux=True)(params, carried, *self.drawn(order, at))
            updates, state = self.tx.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state, carried), None

        params = self.model.init(first, self.splits["train"][0][:2])["params"]
        carry = (params, self.tx.init(params), carried)
        return jax.lax.scan(step, carry, jnp.arange(self.epochs * self.per_epoch))[0][0]

    def trained_with_focal(self, seed: Array, gamma: Array) -> PyTree:
        """Parameters after training with focal loss."""

        def objective(params, carried, x, y, mask):
            return jnp.sum(losses.focal_loss(self.logits(params, x), y, gamma) * mask) / jnp.sum(mask), carried

        return self.trained(seed, objective)

    def val_loss(self, params: PyTree) -> Array:
        """Mean cross-entropy on val."""
        x, y = self.splits["val"]
        return jnp.mean(losses.cross_entropy(self.logits(params, x), y))


def read(examples: int | None = None, share: float = 0.0, tail: float = 1.0) -> Recipe:
    """The recipe of configs/digits.py, with so many training examples, of whose labels a share is drawn anew.

    Which labels are drawn anew is the same for all seeds. tail: of every split class k keeps tail^(-k / 9) of its
    examples, the first ones, so that the last has 1 / tail of them.
    """
    config = job.check_config(jobs.load("configs/digits.py"))
    dataset, settings = prepare(config).dataset, config.optimizer
    labels, generator = np.array(dataset.train.y), np.random.default_rng(0)
    drawn = generator.random(len(labels)) < share
    labels[drawn] = generator.integers(0, 10, drawn.sum())
    train = thinned(Split(dataset.train.x[:examples], labels[:examples]), tail)
    splits = {
        name: (jnp.asarray(data.normalise_images(x, data.NORMALISATIONS["digits"])), jnp.asarray(y))
        for name, (x, y) in {
            "train": train,
            "val": thinned(dataset.val, tail),
            "test": thinned(dataset.test, tail),
        }.items()
    }
    per_epoch = -(-len(train.y) // settings.batch_size)
    schedule = optimiser.step_schedule([at * per_epoch for at in settings.decay_epochs], settings.decay_factor)
    rate = lambda step: settings.learning_rate * schedule(step)  # noqa: E731
    names = ("momentum", "nesterov", "weight_decay", "clip_norm")
    tx = optimiser.make_optimiser(settings.name, rate, **{name: settings[name] for name in names})
    return Recipe(splits, models.build(config.model.name, 10), tx, rate, settings.epochs, settings.batch_size)


def thinned(split: Split, tail: float) -> Split:
    """The first tail^(-k / 9) of the examples of each class k, rounded up."""
    kept = np.zeros(len(split.y), bool)
    for k in range(10):
        of_class = np.flatnonzero(split.y == k)
        kept[of_class[: math.ceil(len(of_class) * tail ** (-k / 9))]] = True
    return Split(split.x[kept], split.y[kept])


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
