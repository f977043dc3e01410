"""The trace as a penalty: three forms, equal in value and gradient; Taylor propagation is jvp of jvp."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from reference.curvature import MLP, sign_quadratic_forms
from test_products import loss

from focalgeo import models, trees
from focalgeo.curvature import dense_hessian, outputs_and_trace, value_and_trace, with_trace_penalty
from focalgeo.curvature.penalty import FORMS, reverse_after_forward, second_order
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
    assert set(FORMS) == {"taylor", "jvp_of_grad"}
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
    with pytest.raises(InputError, match="custom_vjp"):
        second_order(lambda p: jnp.sum(square(p)), jnp.ones(2), jnp.ones(2))


SHAPES = {"image": (2, 5, 5, 3), "kernel": (3, 3, 3, 2), "matrix": (4, 4), "vector": (4,)}


@jax.custom_jvp
def cube_by_rule(x):
    """Its rule is not the derivative of its value, so that differentiating through the value is seen."""
    return jnp.sin(x)


@cube_by_rule.defjvp
def _(primals, tangents):
    return cube_by_rule(primals[0]), 3 * primals[0] ** 2 * jnp.cos(cube_by_rule(primals[0])) * tangents[0]


def correlate(p):
    return lax.conv_general_dilated(p["image"], p["kernel"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def pooled(p):
    return lax.reduce_window(p["image"], -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def scanned(p):
    return lax.scan(lambda carry, row: (jnp.tanh(carry * row), jnp.sum(carry)), p["vector"], p["matrix"])


def branched(p):
    return lax.cond(p["vector"][0] > 0, lambda v: v**3, lambda v: jnp.exp(v) @ p["matrix"], p["vector"])


def rematerialised(p):
    return jax.checkpoint(lambda q: jnp.tanh(q["matrix"] @ jnp.sin(q["vector"])))(p)


FUNCTIONS = {
    "matrix product": lambda p: p["matrix"] @ jnp.sin(p["matrix"]) @ p["vector"],
    "scalar operand": lambda p: jnp.sum(p["vector"]) * p["matrix"] / (2 + jnp.sum(p["vector"] ** 2)),
    "convolution": lambda p: jnp.sum(jnp.tanh(correlate(p)) ** 2),
    "relu": lambda p: jax.nn.relu(p["matrix"] @ jax.nn.relu(p["vector"])),
    "custom_jvp": lambda p: cube_by_rule(p["matrix"] @ cube_by_rule(p["vector"])),
    "softmax": lambda p: jax.nn.log_softmax(p["matrix"]) @ jax.nn.softmax(p["vector"]),
    "max pooling": pooled,
    "scan": scanned,
    "cond": branched,
    "checkpoint": rematerialised,
    "results of all kinds": lambda p: {
        "key": jax.random.key(1),
        "constant": jnp.ones(()),
        "whole": p["vector"].astype(jnp.int32),
        "sorted": jnp.sort(lax.stop_gradient(p["vector"]) * p["vector"] ** 2),
        "none": None,
    },
}


def random_tree(seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return {name: jnp.asarray(rng.normal(size=shape), dtype) for name, shape in SHAPES.items()}


def jvp_of_jvp(function, params, probe):
    def along(point):
        return jax.jvp(function, (point,), (probe,))

    (value, first), (_, second) = jax.jvp(along, (params,), (probe,))
    return value, first, second


def sum_of_all(derivatives):
    leaves = [leaf for leaf in jax.tree.leaves(derivatives) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return sum(jnp.sum(jnp.sin(leaf + index)) for index, leaf in enumerate(leaves))


def assert_same(found, expected, rtol=1e-10):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        if jnp.issubdtype(b.dtype, jnp.floating):
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)
        elif b.dtype != jax.dtypes.float0:
            assert jnp.all(a == b)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_equals_jvp_of_jvp_and_so_do_gradients(name):
    function = FUNCTIONS[name]
    with jax.enable_x64(True):
        params, probe = random_tree(0), random_tree(1)
        assert_same(second_order(function, params, probe), jvp_of_jvp(function, params, probe))

        def gradient(by):
            return jax.jit(jax.grad(lambda p, v: sum_of_all(by(function, p, v)), argnums=(0, 1)))(params, probe)

        assert_same(gradient(second_order), gradient(jvp_of_jvp))


def test_a_product_is_formed_once_for_every_pair_of_coefficients_that_are_not_zero():
    def network(p):
        hidden = jax.nn.relu(p["matrix"] @ jnp.ones(4))
        return p["matrix"] @ jnp.tanh(p["matrix"] @ hidden)

    params, probe = random_tree(0, np.float32), random_tree(1, np.float32)
    traced = str(jax.make_jaxpr(lambda p, v: second_order(network, p, v))(params, probe))
    # The first layer is linear in the parameters, and relu of that has no second derivative either.
    assert traced.count("dot_general[") == 2 + 4 + 5


def test_on_two_devices_with_sums_over_them_and_over_what_is_closed_over():
    params, probe = random_tree(0, np.float32), random_tree(1, np.float32)
    rows = jnp.asarray(np.random.default_rng(4).normal(size=(2, 3, 4)), jnp.float32)

    def replica(by, params, probe, rows):
        def function(p):
            hidden = jnp.tanh(rows @ p["matrix"])
            centred = hidden - lax.pmean(jnp.mean(hidden, 0, keepdims=True), "devices")
            return lax.psum(jnp.sum((centred @ p["vector"]) ** 2), "devices")

        def total(p):
            value, first, second = by(function, p, probe)
            return value + 0.3 * first + 0.2 * second

        return lax.psum(jax.grad(total)(params), "devices"), total(params)

    def on_devices(by):
        mapped = jax.pmap(lambda *of: replica(by, *of), "devices", in_axes=(None, None, 0), out_axes=None)
        return mapped(params, probe, rows)

    assert_same(on_devices(second_order), on_devices(jvp_of_jvp), rtol=1e-4)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_batch_norm_in_training_gives_its_statistics_and_the_trace(dtype):
    model = models.build("cnn", 3, widths=(4, 4), dtype=dtype)
    x, key = jax.random.normal(jax.random.PRNGKey(0), (6, 8, 8, 3)), jax.random.PRNGKey(1)
    variables = dict(model.init(key, x))
    params = variables.pop("params")

    def network(p):
        return model.apply({"params": p, **variables}, x, train=True, mutable=list(variables))

    def loss(logits):
        return jnp.mean(jax.nn.logsumexp(logits, -1) - logits[:, 0])

    outputs, statistics, trace = jax.jit(lambda p: outputs_and_trace(network, loss, p, key))(params)
    expected = jax.jit(network)(params)
    probe = trees.rademacher(key, params)
    curvature = jax.jit(lambda p: jvp_of_jvp(lambda q: loss(network(q)[0]), p, probe)[2])(params)
    rtol = 1e-4 if dtype == jnp.float32 else 0.1
    assert_same((outputs, statistics), expected, rtol=rtol)
    np.testing.assert_allclose(trace, curvature, rtol=rtol)
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
