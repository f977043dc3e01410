"""The recipe of configs/digits.py as functions, for questions that train many networks of it in one program."""

from collections.abc import Callable
from typing import Any, NamedTuple

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

    def val_loss(self, params: PyTree) -> Array:
        """Mean cross-entropy on val."""
        x, y = self.splits["val"]
        return jnp.mean(losses.cross_entropy(self.logits(params, x), y))


def read(examples: int | None = None, share: float = 0.0) -> Recipe:
    """The recipe of configs/digits.py, with so many training examples, of whose labels a share is drawn anew.

    Which labels are drawn anew is the same for all seeds.
    """
    config = job.check_config(jobs.load("configs/digits.py"))
    dataset, settings = prepare(config).dataset, config.optimizer
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
