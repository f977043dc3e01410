"""The trace as a penalty: three forms, equal in value and gradient, with and without the network's outputs."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.curvature import MLP, sign_quadratic_forms
from test_products import loss

from focalgeo import models, trees
from focalgeo.curvature import dense_hessian, hvp, outputs_and_trace, value_and_trace
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
    assert set(FORMS) == {"taylor", "forward_over_forward", "jvp_of_grad"}
    values, gradients = zip(*(differentiated(params64, form) for form in FORMS), strict=True)
    np.testing.assert_allclose(values, [values[0]] * len(FORMS), rtol=1e-12)
    for other in gradients[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), gradients[0], other)


def test_value_is_the_loss_and_the_estimate_the_mean_of_v_hv(params64):
    key = jax.random.key(4)
    value, estimate = jax.jit(lambda params: value_and_trace(loss, params, key, num_probes=3))(params64)
    probes = [trees.rademacher(one, params64) for one in jax.random.split(key, 3)]
    form = jax.jit(lambda probe: trees.dot(probe, hvp(loss, params64, probe)))
    np.testing.assert_allclose(value, loss(params64), rtol=1e-12)
    np.testing.assert_allclose(estimate, np.mean([form(probe) for probe in probes]), rtol=1e-12)


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


def test_under_jit_and_vmap_in_float32():
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), MLP().tree())
    keys = jax.random.split(jax.random.key(1), 2)
    compute = jax.jit(lambda key: value_and_trace(loss, params, key, num_probes=2))
    values, estimates = jax.vmap(compute)(keys)
    for index in range(2):
        alone = compute(keys[index])
        np.testing.assert_allclose((values[index], estimates[index]), alone, rtol=1e-5)


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
def test_a_sum_of_outputs_loss_and_trace_has_the_gradient_of_both(form):
    params, network, own_loss = make_case()
    key = jax.random.PRNGKey(3)

    def together(params):
        outputs, _, trace = outputs_and_trace(network, own_loss, params, jax.random.split(key, 1)[0], form=form)
        return jnp.sum(outputs**2) + 0.3 * trace

    def apart(params):
        _, trace = value_and_trace(lambda p: own_loss(network(p)[0]), params, key, form="jvp_of_grad")
        return jnp.sum(network(params)[0] ** 2) + 0.3 * trace

    chex.assert_trees_all_close(jax.grad(together)(params), jax.grad(apart)(params), rtol=2e-4, atol=1e-4)


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


def test_memory_of_a_gradient_through_it_stays_small_as_no_coefficient_is_sent_back_before_the_others():
    model = models.build("resnet110", blocks=(1, 1, 1))
    x, key = jax.ShapeDtypeStruct((64, 32, 32, 3), jnp.float32), jax.random.key(0)
    variables = dict(jax.eval_shape(model.init, key, x))
    params = variables.pop("params")

    def peak(term):
        def total(params, variables, x):
            def loss(p):
                return -jnp.mean(jax.nn.log_softmax(model.apply({"params": p, **variables}, x))[:, 0])

            return term(loss, params)

        memory = jax.jit(jax.grad(total)).lower(params, variables, x).compile().memory_analysis()
        return memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes

    plain, penalised = peak(lambda loss, p: loss(p)), peak(lambda loss, p: sum(value_and_trace(loss, p, key)))
    assert plain > 30e6
    assert penalised < 2.4 * plain  # 2.26; with jax 0.10, without `reverse_after_forward`, 2.49


def test_the_reverse_pass_waits_by_a_factor_of_one_that_is_nan_where_the_curvature_is():
    slope = jax.vmap(jax.grad(reverse_after_forward))(jnp.array([-2.0, 0.0, 3.0, jnp.inf, jnp.nan]))
    np.testing.assert_array_equal(slope, [1, 1, 1, 1, jnp.nan])
    assert reverse_after_forward(jnp.float32(jnp.inf)) == jnp.inf
    assert jax.grad(jax.grad(reverse_after_forward))(3.0) == 0


@pytest.mark.parametrize(
    ("options", "message"), [({"num_probes": 0}, "num_probes is 0"), ({"form": "reverse"}, "form is 'reverse'")]
)
def test_bad_options_are_one_line(options, message):
    with pytest.raises(InputError, match=message):
        value_and_trace(lambda p: p.sum(), jnp.ones(2), jax.random.key(0), **options)


def test_a_matrix_that_is_none_is_refused():
    with pytest.raises(InputError, match="of is 'fisher': choose one of hessian, gauss_newton"):
        outputs_and_trace(lambda p: (p, ()), jnp.sum, jnp.ones(2), jax.random.key(0), of="fisher")


def test_losses_that_are_not_scalar_are_refused():
    with pytest.raises(InputError, match="not one floating-point number"):
        value_and_trace(lambda p: p, jnp.ones(2), jax.random.key(0))
