import jax
import numpy as np
import pytest

from focalgeo.theory import maxwell_boltzmann
from focalgeo.types import InputError

solved = jax.jit(maxwell_boltzmann)


def entropy(q):
    return -np.sum(q * np.log(q))


def test_records(papers):
    for record in papers["maxwell_boltzmann"]:
        beta, probs = maxwell_boltzmann(record["E"], record["mean_energy"])
        np.testing.assert_allclose(beta, record["beta"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(probs, record["q"], atol=1e-6)
        probs = np.asarray(probs, float)
        np.testing.assert_allclose(entropy(probs), record["entropy"], rtol=1e-5)
        np.testing.assert_allclose(np.log(record["Z"]) + beta * record["mean_energy"], record["entropy"], rtol=1e-5)
        slope = jax.grad(lambda e, u: maxwell_boltzmann(e, u)[0], argnums=1)(
            np.float32(record["E"]), np.float32(record["mean_energy"])
        )
        np.testing.assert_allclose(1 / slope, record["dmean_dbeta"], rtol=1e-4)


def test_no_competitor_of_one_mean_has_more_entropy(papers):
    energies = np.arange(4.0)
    competitor = papers["maxwell_boltzmann_competitor"]
    _, probs = maxwell_boltzmann(energies, competitor["mean"])
    assert entropy(np.asarray(probs, float)) > entropy(np.array(competitor["q"])) + 0.004
    assert entropy(np.array(competitor["q"])) == pytest.approx(competitor["entropy"])
    moves = np.random.default_rng(0).normal(size=(200, 4))
    moves -= moves @ np.ones((4, 1)) / 4
    moves -= np.outer(moves @ (energies - 1.5), energies - 1.5) / 5  # now neither the sum nor the mean changes
    for move in 0.1 * moves / np.abs(moves).max(axis=1, keepdims=True):
        assert entropy(np.asarray(probs, float) + move) < entropy(np.asarray(probs, float))


@pytest.mark.parametrize("mean", [1e-4, 0.02, 0.5, 0.9, 0.9999])
def test_the_mean_is_met_near_the_ends_too(mean):
    energies = np.random.default_rng(1).uniform(size=20)
    energies[:2] = 0, 1
    beta, probs = solved(np.float32(energies * 3 - 7), np.float32(mean * 3 - 7))
    assert np.isfinite(beta)
    np.testing.assert_allclose(np.asarray(probs, float) @ energies, mean, atol=3e-7 * 10)


def test_means_outside_the_energies_and_energies_that_are_none_are_refused():
    for energies, mean in (([0.0, 1.0], 1.0), ([2.0, 2.0], 2.0), ([0.0, np.inf], 1.0), (1.0, 1.0)):
        with pytest.raises(InputError, match="energ"):
            maxwell_boltzmann(energies, mean)
