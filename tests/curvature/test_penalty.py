"""The trace as a penalty: two forms, equal in value and gradient, unbiased, of each matrix."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.curvature import MLP, sign_quadratic_forms
from test_products import loss

from focalgeo import models, trees
from focalgeo.curvature import (
    dense_hessian,
    hvp,
    outputs_and_trace,
    quadratic_parts,
    value_and_trace,
    with_trace_penalty,
)
from focalgeo.curvature.penalty import FORMS, reverse_after_forward
from focalgeo.types import InputError


@pytest.fixture
def params64():
    with jax.enable_x64(True):
        yield jax.tree.map(jnp.asarray, MLP().tree())


def test_all_forms_and_their_gradients_are_equal(params64):
    def penalised(params, form):
        value, estimate = value_and_trace(loss, params, jax.random.key(2), num_probes=3, form=form)
        return value + 0.1 * estimate

    differentiated = jax.jit(jax.value_and_grad(penalised), static_argnums=1)
    assert set(FORMS) == {"jvp_of_grad", "jvp_of_jvp"}
    values, gradients = zip(*(differentiated(params64, form) for form in FORMS), strict=True)
    np.testing.assert_allclose(values, [values[0]] * len(FORMS), rtol=1e-12)
    for other in gradients[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), gradients[0], other)


@pytest.mark.parametrize("form", FORMS)
def test_all_sign_vectors_average_to_the_trace_and_its_gradient(form):
    with jax.enable_x64(True):
        # A cubic, so that the trace has a gradient: H(p) = A + diag(6 c p).
        matrix, cubic = jnp.array([[2.0, 1.0, 0.0], [1.0, 3.0, -0.5], [0.0, -0.5, 0.5]]), jnp.array([0.3, -0.7, 0.2])
        params = jnp.array([0.5, -1.0, 2.0])

        def tiny(p):
            return jnp.vdot(p, matrix @ p) / 2 + jnp.vdot(cubic, p**3)

        keys = jax.random.split(jax.random.key(0), 400)
        probes = jax.vmap(lambda key: trees.rademacher(jax.random.split(key, 1)[0], params))(keys)
        estimates = jax.jit(jax.vmap(lambda key: value_and_trace(tiny, params, key, form=form)[1]))(keys)
        firsts = [
            int(np.argmax((np.asarray(probes) == signs).all(1))) for signs in itertools.product([-1, 1], repeat=3)
        ]
        assert len(set(firsts)) == 8
        forms = np.asarray(estimates)[firsts]
        hessian = np.asarray(dense_hessian(tiny, params))
        np.testing.assert_allclose(np.sort(forms), np.sort(sign_quadratic_forms(hessian)), atol=1e-12)
        np.testing.assert_allclose(forms.mean(), np.trace(hessian), rtol=1e-12)
        gradient = jax.jit(jax.grad(lambda p: value_and_trace(tiny, p, keys[0], form=form)[1]))(params)
        np.testing.assert_allclose(gradient, 6 * cubic, rtol=1e-12)


def make_case(dtype=jnp.float32):
    rng = np.random.default_rng(0)
    shapes = {"first": (4, 5), "second": (5, 3)}
    params = {name: jnp.asarray(rng.normal(size=shape), dtype) for name, shape in shapes.items()}
    x, y = jnp.asarray(rng.normal(size=(7, 4)), dtype), jnp.asarray(rng.integers(0, 3, 7))

    def network(params):
        hidden = jnp.tanh(x @ params["first"])
        return hidden @ params["second"], {"mean": jnp.mean(hidden)}

    def own_loss(logits):
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], -1))

    return params, network, own_loss


@pytest.mark.parametrize("form", FORMS)
def test_outputs_auxiliary_results_and_trace_are_those_of_each_apart(form):
    params, network, own_loss = make_case()
    key = jax.random.PRNGKey(3)
    outputs, auxiliary, trace = jax.jit(lambda p, k: outputs_and_trace(network, own_loss, p, k, form=form))(params, key)
    chex.assert_trees_all_close((outputs, auxiliary), network(params), rtol=1e-6)
    (probe_key,) = jax.random.split(key, 1)
    _, _, same_probe = outputs_and_trace(network, own_loss, params, probe_key, form=form)
    _, expected = value_and_trace(lambda p: own_loss(network(p)[0]), params, key)
    np.testing.assert_allclose(same_probe, expected, rtol=1e-5)
    assert abs(trace) > 0.1


@pytest.mark.parametrize("form", FORMS)
def test_the_gauss_newton_trace_is_v_j_h_j_v_with_its_gradient(form):
    with jax.enable_x64(True):
        params, network, own_loss = make_case(jnp.float64)
        key = jax.random.PRNGKey(3)
        flat, unravel = jax.flatten_util.ravel_pytree(params)
        probe = jax.flatten_util.ravel_pytree(trees.rademacher(key, params))[0]

        def dense(flat):
            outputs = lambda at: network(unravel(at))[0].ravel()  # noqa: E731
            jacobian = jax.jacfwd(outputs)(flat)
            middle = jax.hessian(lambda out: own_loss(out.reshape(7, 3)))(outputs(flat))
            return probe @ jacobian.T @ middle @ jacobian @ probe

        def estimate(params):
            return outputs_and_trace(network, own_loss, params, key, of="gauss_newton", form=form)[2]

        outputs, auxiliary, trace = outputs_and_trace(network, own_loss, params, key, of="gauss_newton", form=form)
        chex.assert_trees_all_close((outputs, auxiliary), network(params), rtol=1e-12)
        np.testing.assert_allclose(trace, dense(flat), rtol=1e-12)
        slope = jax.flatten_util.ravel_pytree(jax.grad(estimate)(params))[0]
        np.testing.assert_allclose(slope, jax.grad(dense)(flat), rtol=1e-9, atol=1e-12)
        assert trace > 0.1
        assert abs(trace - outputs_and_trace(network, own_loss, params, key)[2]) > 1e-3  # the Hessian's is another


@pytest.mark.parametrize("form", FORMS)
def test_the_scale_free_trace_is_that_of_the_hessian_between_the_parameters_with_its_gradient(form):
    with jax.enable_x64(True):
        params, network, own_loss = make_case(jnp.float64)
        keys = jax.random.split(jax.random.PRNGKey(3), 1000)

        def estimate(params, key):
            return outputs_and_trace(network, own_loss, params, key, of="scale_free", form=form)[2]

        def exact(params):
            flat, unravel = jax.flatten_util.ravel_pytree(params)
            return flat**2 @ jnp.diag(jax.hessian(lambda flat: own_loss(network(unravel(flat))[0]))(flat))

        values, slopes = jax.vmap(jax.value_and_grad(estimate), (None, 0))(params, keys)
        for samples, whole in ((values, exact(params)), *zip(*map(jax.tree.leaves, (slopes, jax.grad(exact)(params))))):  # noqa: B905
            error = 5 * samples.std(0) / len(keys) ** 0.5 + 1e-12
            assert np.all(np.abs(samples.mean(0) - whole) < error)
        assert np.abs(values.mean() - exact(params)) < 0.2 * np.abs(exact(params))


def test_the_reverse_pass_waits_by_a_factor_of_one_that_is_nan_where_the_curvature_is():
    slope = jax.vmap(jax.grad(reverse_after_forward))(jnp.array([-2.0, 0.0, 3.0, jnp.inf, jnp.nan]))
    np.testing.assert_array_equal(slope, [1, 1, 1, 1, jnp.nan])
    assert reverse_after_forward(jnp.float32(jnp.inf)) == jnp.inf
    assert jax.grad(jax.grad(reverse_after_forward))(3.0) == 0


def test_bad_options_losses_and_functions_without_forward_derivative_are_refused():
    with pytest.raises(InputError, match="num_probes is 0"):
        value_and_trace(jnp.sum, jnp.ones(2), jax.random.key(0), num_probes=0)
    with pytest.raises(InputError, match="form is 'reverse'"):
        value_and_trace(jnp.sum, jnp.ones(2), jax.random.key(0), form="reverse")
    with pytest.raises(InputError, match="of is 'fisher'"):
        outputs_and_trace(lambda p: (p, ()), jnp.sum, jnp.ones(2), jax.random.key(0), of="fisher")
    with pytest.raises(InputError, match="one floating-point number"):
        value_and_trace(lambda p: p, jnp.ones(2), jax.random.key(0))

    @jax.custom_vjp
    def square(x):
        return x * x

    square.defvjp(lambda x: (square(x), x), lambda x, cotangent: (2 * x * cotangent,))
    for form in FORMS:
        with pytest.raises(InputError, match=r"the function calls a jax\.custom_vjp, .*; make it a jax\.custom_jvp"):
            value_and_trace(lambda p: jnp.sum(square(p)), jnp.ones(2), jax.random.key(0), form=form)
    with pytest.raises(InputError, match=r"custom_vjp, which has no forward derivative; make"):
        quadratic_parts(lambda p: p, {"square": lambda p: jnp.sum(square(p))}, jnp.ones(2), jnp.ones(2))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_batch_norm_in_training_gives_its_statistics_and_the_trace(dtype, form):
    model = models.build("cnn", 3, widths=(4, 4), dtype=dtype)
    x, key = jax.random.normal(jax.random.PRNGKey(0), (6, 8, 8, 3)), jax.random.PRNGKey(1)
    variables = dict(model.init(key, x))
    params = variables.pop("params")

    def network(p):
        return model.apply({"params": p, **variables}, x, train=True, mutable=list(variables))

    def loss(logits):
        return jnp.mean(jax.nn.logsumexp(logits, -1) - logits[:, 0])

    outputs, statistics, trace = jax.jit(lambda p: outputs_and_trace(network, loss, p, key, form=form))(params)
    expected = jax.jit(network)(params)
    probe = trees.rademacher(key, params)
    product = jax.jit(lambda p: hvp(lambda q: loss(network(q)[0]), p, probe))(params)
    rtol = 1e-4 if dtype == jnp.float32 else 0.1
    chex.assert_trees_all_close((outputs, statistics), expected, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(trace, trees.dot(probe, product), rtol=rtol)
    assert trace.dtype == outputs.dtype == jnp.float32


def test_a_loss_with_its_penalty_is_value_plus_weight_times_trace(params64):
    key = jax.random.key(5)

    def scaled(params, scale):
        return scale * loss(params)

    def expected(params, scale, weight):
        value, trace = value_and_trace(lambda point: scaled(point, scale), params, key)
        return value + weight * trace

    def penalised(params, scale, weight):
        return with_trace_penalty(scaled, weight)(params, key, scale)

    value, gradient = jax.jit(jax.value_and_grad(penalised))(params64, 2.0, 0.1)
    same_value, same_gradient = jax.jit(jax.value_and_grad(expected))(params64, 2.0, 0.1)
    np.testing.assert_allclose(value, same_value, rtol=1e-12)
    chex.assert_trees_all_close(gradient, same_gradient, rtol=1e-9, atol=1e-12)
    assert abs(value - scaled(params64, 2.0)) > 1e-3  # the penalty is there
