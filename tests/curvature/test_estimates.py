"""What all estimates of a matvec share: one door, one result in Python, under jit and vmap, errors of one line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.curvature import with_spectrum

from focalgeo import curvature
from focalgeo.types import InputError, RunError

MATRIX = with_spectrum(np.r_[9.0, 4.0, np.linspace(-1, 1, 6)]).astype(np.float32)
LIKE = {"a": jnp.zeros((1, 2)), "b": jnp.zeros(6)}
ESTIMATES = {
    "lambda_max": curvature.lambda_max,
    "extreme_eigenvalues": lambda *of, **more: curvature.extreme_eigenvalues(*of, k=2, which="smallest", **more),
    "spectral_density": lambda *of, **more: curvature.spectral_density(*of, **({"num_probes": 3, "steps": 4} | more)),
    "hutchinson": lambda *of: curvature.trace(*of, 4),
    "hutch++": lambda *of: curvature.trace(*of, 6, method="hutch++"),
    "xtrace": lambda *of: curvature.trace(*of, 6, method="xtrace"),
    "diagonal": lambda *of: curvature.diagonal(*of, 4),
    "leaf_traces": lambda *of: curvature.leaf_traces(*of, 4),
}


def multiply(matrix, tree):
    product = jnp.matmul(matrix, jnp.concatenate([tree["a"].ravel(), tree["b"]]), precision="highest")
    return {"a": product[:2].reshape(1, 2), "b": product[2:]}


@pytest.mark.parametrize("name", ESTIMATES)
def test_python_jit_and_vmap_agree_and_nan_stays_nan(name):
    matrices = jnp.stack([MATRIX, 2 * MATRIX, jnp.asarray(MATRIX).at[3, 3].set(jnp.nan)])

    def estimate(matrix):  # the matvec alone is traced
        return ESTIMATES[name](lambda v: multiply(matrix, v), LIKE, jax.random.key(3))

    alone, together = estimate(matrices[0]), jax.jit(jax.vmap(estimate))(matrices)
    for other in (jax.jit(estimate)(matrices[0]), jax.tree.map(lambda leaf: leaf[0], together)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), alone, other)
    broken = jax.tree.leaves(jax.tree.map(lambda leaf: leaf[2], together[0]))
    assert any(np.isnan(leaf).any() for leaf in broken)


@pytest.mark.parametrize("name", ESTIMATES)
def test_what_is_no_matvec_no_tree_of_floats_and_no_key_is_refused(name):
    estimate, key = ESTIMATES[name], jax.random.key(0)
    for matvec, like, wrong_key, message in (
        (lambda v: {"a": v["a"]}, LIKE, key, "its vector"),
        (lambda v: v, {"a": jnp.arange(3)}, key, "like.* is int32"),
        (lambda v: v, {}, key, "like holds no number"),
        (lambda v: v, LIKE, 0.5, "key is 0.5"),
        (3, LIKE, key, "matvec is int"),
    ):
        with pytest.raises(InputError, match=message) as error:
            estimate(matvec, like, wrong_key)
        assert "\n" not in str(error.value)
    with pytest.raises(RunError, match=r"product\['b'\] is not finite"):
        estimate(lambda v: {"a": v["a"], "b": v["b"] / 0.0}, LIKE, key)


@pytest.mark.parametrize("name", ["lambda_max", "extreme_eigenvalues", "spectral_density"])
def test_an_asymmetric_matvec_is_refused(name):
    skewed = jnp.asarray(MATRIX + 5 * np.triu(np.ones((8, 8)), 1), jnp.float32)
    with pytest.raises(InputError, match="not symmetric"):
        ESTIMATES[name](lambda v: multiply(skewed, v), LIKE, jax.random.key(0))


@pytest.mark.parametrize(
    ("estimate", "options"),
    [
        (curvature.extreme_eigenvalues, {"k": 9}),
        (curvature.extreme_eigenvalues, {"max_products": 3, "k": 2}),
        (curvature.extreme_eigenvalues, {"which": "magnitude"}),
        (curvature.lambda_max, {"tolerance": 0.0}),
        (curvature.spectral_density, {"num_probes": 1}),
        (curvature.spectral_density, {"steps": 0}),
        (curvature.trace, {"num_probes": 1}),
        (curvature.trace, {"num_probes": 3, "method": "hutch++"}),
        (curvature.trace, {"method": "x", "num_probes": 4}),
        (curvature.diagonal, {"num_probes": 1}),
    ],
)
def test_options_out_of_range_are_refused(estimate, options):
    with pytest.raises(InputError, match=next(iter(options))):
        estimate(lambda v: v, LIKE, jax.random.key(0), **options)


@pytest.mark.parametrize(("name", "most"), [("lambda_max", 15), ("hutchinson", 11), ("spectral_density", 17)])
def test_a_first_call_compiles_few_programs(name, most):
    def loss(params):
        return jnp.mean(jax.nn.logsumexp(jnp.tanh(params["a"]) @ params["b"].reshape(2, 3), axis=-1))

    compiled, key = [], jax.random.key(0)

    def count(event, seconds, **_):
        compiled.append(event.endswith("backend_compile_duration"))

    jax.clear_caches()
    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        ESTIMATES[name](curvature.linearized_hvp(loss, LIKE), LIKE, key)
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert 5 < sum(compiled) <= most
