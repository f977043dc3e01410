"""Predictions on several devices against the network applied to all examples at once."""

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import data, evaluation, parallel
from focalgeo.types import Split

EXAMPLES = 13


def apply(variables, x):
    return jnp.tanh(x @ variables["params"]["kernel"] * variables["state"]["scale"])


def test_predictions_are_all_examples_once_and_in_order():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(EXAMPLES, 2)).astype(np.float32), random.integers(0, 3, EXAMPLES).astype(np.int32)
    kernel = random.normal(size=(2, 3)).astype(np.float32)
    variables = {"params": {"kernel": kernel}, "state": {"scale": np.float32(0.7)}}
    forward = parallel.pmapped_forward(apply)
    padded = data.evaluation_batches(Split(x, y), batch_size=5, multiple_of=parallel.device_count())
    got = evaluation.predict(forward, variables, padded)
    np.testing.assert_allclose(got.logits, apply(variables, x), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got.labels, y)
    assert (got.logits.dtype, got.mask.all(), len(got.mask)) == (np.float32, True, EXAMPLES)
    assert jax.device_count() == 2
