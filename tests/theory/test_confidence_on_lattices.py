"""Proposition 5 of arXiv 2408.11598 (the focal map raises the confidence) on many points: where it holds and fails."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo.calibration import focal_calibration

TOP = jax.jit(lambda probs, gamma: jnp.exp(jnp.max(focal_calibration(jnp.log(probs), gamma), axis=-1)))


def top_after_the_map(probs, gamma):
    with jax.enable_x64(True):
        return np.asarray(TOP(jnp.asarray(probs), jnp.float64(gamma)))


def test_random_vectors_are_lowered_only_below_one_half_and_with_four_classes_or_more(papers):
    generator = np.random.default_rng(0)
    draw = partial(generator.dirichlet, size=500)
    for record in papers["prop5"]["random_dirichlet"]:
        assert record["max_conf_violating"] < 0.5
        vectors = np.concatenate([draw(np.full(record["K"], alpha)) for alpha in (0.3, 1.0, 5.0, 100.0)])
        vectors = np.maximum(vectors, 1e-12)
        vectors /= vectors.sum(axis=1, keepdims=True)
        top = vectors.max(axis=1)
        lowered = top_after_the_map(vectors, record["gamma"]) < top - 1e-12
        assert not lowered[top >= 0.5].any()
        assert record["K"] > 3 or not lowered.any()
        if record["violations"] > record["N"] / 10:
            assert lowered.any()
        if record["gamma"] > 0 and record["K"] <= 3:
            assert record["violations"] == 0
