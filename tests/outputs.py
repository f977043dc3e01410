"""Outputs of a classifier, drawn for tests: logits and labels, or log-probabilities and labels."""

import jax
import numpy as np


def outputs(num_examples, num_classes, *, sharpness=1.7, seed=0):
    """Logits `sharpness` times those that the labels are drawn from."""
    generator = np.random.default_rng(seed)
    truth = 2 * generator.normal(size=(num_examples, num_classes))
    labels = np.argmax(truth + generator.gumbel(size=truth.shape), axis=1)
    return (sharpness * truth).astype(np.float32), labels.astype(np.int32)


def predictions(num_examples, num_classes=4, **options):
    """The same, as log-probabilities."""
    logits, labels = outputs(num_examples, num_classes, **options)
    return np.asarray(jax.nn.log_softmax(logits)), labels
