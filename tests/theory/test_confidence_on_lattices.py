"""Proposition 5 of arXiv 2408.11598 (the focal map raises the confidence) on many points: where it holds and fails."""

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focalgeo.calibration import focal_calibration

TOP = jax.jit(lambda probs, gamma: jnp.exp(jnp.max(focal_calibration(jnp.log(probs), gamma), axis=-1)))


def top_after_the_map(probs, gamma):
    with jax.enable_x64(True):
        return np.asarray(TOP(jnp.asarray(probs), jnp.float64(gamma)))


def interior_lattice(num_classes, steps):
    """All sorted probability vectors of multiples of 1 / steps, none of them 0."""

    def parts(total, count, largest):
        if count == 1:
            return [(total,)] if total <= largest else []
        first = range(-(-total // count), min(largest, total - count + 1) + 1)
        return [(each, *rest) for each in first for rest in parts(total - each, count - 1, each)]

    return np.array(parts(steps, num_classes, steps)) / steps


@pytest.mark.parametrize(("num_classes", "steps"), [(3, 300), (4, 90)])
def test_a_negative_gamma_raises_the_confidence_of_the_unsure(papers, num_classes, steps):
    lattice = interior_lattice(num_classes, steps)
    assert all((lattice[:, a] >= lattice[:, b]).all() for a, b in pairwise(range(num_classes)))
    for gamma in (-0.9, -0.5, -0.25):
        raised = top_after_the_map(lattice, gamma) > lattice[:, 0] + 1e-12
        found = [int(raised.sum()), len(lattice), lattice[raised, 0].max()]
        expected = papers["prop5"]["negative_gamma_lattice"][f"neg_gamma_raises_conf_K{num_classes}_g{gamma}"]
        np.testing.assert_allclose(found, expected, rtol=1e-12)


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
