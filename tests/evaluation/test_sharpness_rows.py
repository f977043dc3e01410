"""Sharpness rows of two padded batches on two devices, against the same measures of all examples at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import padded_batches

from focalgeo import curvature, evaluation, losses
from focalgeo.rows import Sharpness
from focalgeo.types import Split

EXAMPLES = 13


def apply(variables, x):
    hidden = jnp.tanh(x @ variables["params"]["hidden"] * variables["state"]["scale"])
    return hidden @ variables["params"]["head"]


def focal(logits, labels):
    return losses.focal_loss(logits, labels, 2.0)


@pytest.fixture(scope="module")
def problem():
    random = np.random.default_rng(0)
    params = {name: jnp.float32(random.normal(size=size)) for name, size in (("hidden", (2, 4)), ("head", (4, 3)))}
    split = Split(np.float32(random.normal(size=(EXAMPLES, 2))), np.int32(random.integers(0, 3, EXAMPLES)))
    batches = list(padded_batches(split, 50.0))
    named = {"cross_entropy": losses.cross_entropy, "focal_loss": focal}
    return split, evaluation.Problem(apply, named, params, {"state": {"scale": jnp.float32(0.7)}}, batches)


def test_rows_are_those_of_all_examples_at_once(problem):
    split, of = problem
    key, params = jax.random.key(5), of.params
    rows = evaluation.sharpness_rows(of, key, split="train")
    found = {(row.name, row.loss): row for row in rows}
    assert len(rows) == len(found) == 9
    assert all(isinstance(row, Sharpness) and (row.n, row.split) == (EXAMPLES, "train") for row in rows)

    def logits(params):
        return apply({"params": params, **of.model_state}, split.x)

    shares = np.asarray(curvature.fisher_rao(logits, params))
    expected = {("fisher_rao_norm", "cross_entropy"): (shares.mean(), shares.std(ddof=1) / EXAMPLES**0.5)}
    for name, loss in of.losses.items():
        mean = jax.jit(lambda params, loss=loss: jnp.mean(loss(logits(params), split.y)))
        worst = curvature.adaptive_sharpness(jax.jit(jax.value_and_grad(mean)), params, key, radius=0.5)
        rises = np.asarray(curvature.noise_rises(mean, params, key, 0.1, adaptive=True))
        expected["adaptive_sharpness", name] = worst
        expected["average_sharpness", name] = (rises.mean(), rises.std(ddof=1) / len(rises) ** 0.5)
        for sigma, rise in {"pac_bayes_sigma": 0.1, "relative_sigma": 0.1 * mean(params)}.items():
            expected[sigma, name] = curvature.pac_bayes_sigma(mean, params, key, rise=rise)[:2]
    assert expected.keys() == found.keys()
    for name, (value, error) in expected.items():
        np.testing.assert_allclose(found[name].value, value, rtol=2e-4, err_msg=str(name))
        np.testing.assert_allclose(found[name].error, error, rtol=0.02, atol=2e-5, err_msg=str(name))


def test_one_program_serves_other_parameters(problem):
    _, of = problem
    traced = []

    def counted(logits, labels):
        traced.append(logits.shape)
        return losses.cross_entropy(logits, labels)

    of = of._replace(losses={"cross_entropy": counted})
    evaluation.sharpness_rows(of, jax.random.key(0), split="val")
    count = len(traced)
    other = of._replace(params=jax.tree.map(lambda leaf: 1.5 * leaf, of.params))
    evaluation.sharpness_rows(other, jax.random.key(0), split="val")
    assert 0 < count == len(traced)
