import jax
import numpy as np
from reference.theory import gamma_star as oracle

from focalgeo.theory import gamma_star, gradient_ratio


def close(got, expected):
    np.testing.assert_allclose(np.asarray(got, float), expected, rtol=2e-6, atol=2e-6)


def test_records(papers):
    for record in papers["gamma_star"]:
        close(gamma_star(record["p0"]), record["gamma_Wm1"])


def test_equals_lambert_in_high_precision():
    p0 = np.concatenate([np.geomspace(1e-3, 0.4, 40), 0.5 - np.geomspace(1e-5, 0.1, 20)]).astype(np.float32)
    close(gamma_star(p0), [oracle(p) for p in p0])


def test_is_where_the_gradient_ratio_is_one():
    p0 = np.float32([0.05, 0.2, 0.35, 0.49])
    np.testing.assert_allclose(gradient_ratio(p0, gamma_star(p0)), 1, atol=3e-6)


def test_nothing_to_find_from_one_half_on():
    np.testing.assert_array_equal(gamma_star(np.float32([0.5, 0.5000001, 0.6, 1])), 0)
    assert gamma_star(0.0) == np.inf


def test_derivative_is_that_of_the_root():
    gradient = jax.jit(jax.vmap(jax.grad(gamma_star)))
    for p0 in (0.1, 0.3, 0.45):
        expected = (oracle(p0 + 1e-6) - oracle(p0 - 1e-6)) / 2e-6
        np.testing.assert_allclose(gradient(np.float32([p0])), [expected], rtol=2e-4)
    np.testing.assert_array_equal(gradient(np.float32([0.5, 0.7])), 0)
