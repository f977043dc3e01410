"""Taylor propagation is jvp of jvp, gradients through it too, whatever a function is made of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from focalgeo.curvature.taylor import BILINEAR, second_order
from jax import lax

from focalgeo import models, trees
from focalgeo.curvature import outputs_and_trace
from focalgeo.types import InputError

SHAPES = {"image": (2, 5, 5, 3), "kernel": (3, 3, 3, 2), "matrix": (4, 4), "vector": (4,)}


@jax.custom_jvp
def cube_by_rule(x):
    """Its rule is not the derivative of its value, so that differentiating through the value is seen."""
    return jnp.sin(x)


@cube_by_rule.defjvp
def _(primals, tangents):
    return cube_by_rule(primals[0]), 3 * primals[0] ** 2 * jnp.cos(cube_by_rule(primals[0])) * tangents[0]


def correlate(p, *, strides=(1, 1)):
    return lax.conv_general_dilated(
        p["image"], p["kernel"], strides, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def pooled(p):
    return lax.reduce_window(p["image"], -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def scanned(p):
    return lax.scan(lambda carry, row: (jnp.tanh(carry * row), jnp.sum(carry)), p["vector"], p["matrix"])


def looped(p):
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(c[1] @ p["matrix"])), (0, p["vector"]))[1]


def branched(p):
    return lax.cond(p["vector"][0] > 0, lambda v: v**3, lambda v: jnp.exp(v) @ p["matrix"], p["vector"])


def rematerialised(p):
    return jax.checkpoint(lambda q: jnp.tanh(q["matrix"] @ jnp.sin(q["vector"])))(p)


def dropped_out(p):
    keep = jax.random.bernoulli(jax.random.fold_in(jax.random.key(0), 1), 0.5, (4,))
    return jnp.where(keep, p["vector"] ** 2, 0.0) * jax.random.normal(jax.random.PRNGKey(3), (4,), p["vector"].dtype)


def picked(p):
    order = jnp.argsort(p["vector"])
    rows = jnp.take_along_axis(jnp.exp(p["matrix"]), order[:, None], 1)
    return rows[:, 0] * jnp.sort(p["vector"]) * p["matrix"][jnp.argmax(p["vector"])], p["vector"].astype(jnp.int32)


def half_stopped(p):
    return lax.stop_gradient(jnp.sin(p["vector"])) * p["vector"] ** 2


def normalised(p):
    mean, variance = jnp.mean(p["image"], (0, 1, 2)), jnp.var(p["image"], (0, 1, 2))
    return (p["image"] - mean[None, None, None]) * lax.rsqrt(variance + 1e-3)[None, None, None]


def with_results_of_all_kinds(p):
    return {
        "key": jax.random.key(1),
        "constant": jnp.ones(()),
        "count": jnp.arange(3),
        "same": p["vector"],
        "none": None,
    }


FUNCTIONS = {
    "matrix product": lambda p: p["matrix"] @ jnp.sin(p["matrix"]) @ p["vector"],
    "batched product": lambda p: jnp.einsum("bijc,bjkc->bkc", jnp.sin(p["image"]), p["image"] ** 2),
    "square by mul": lambda p: lax.mul(jnp.sin(p["vector"]), jnp.sin(p["vector"])),
    "scalar operand": lambda p: jnp.sum(p["vector"]) * p["matrix"] / (2 + jnp.sum(p["vector"] ** 2)),
    "convolution": lambda p: jnp.sum(jnp.tanh(correlate(p)) ** 2),
    "strided convolution": lambda p: correlate({**p, "image": jnp.sin(p["image"])}, strides=(2, 2)),
    "relu": lambda p: jax.nn.relu(p["matrix"] @ jax.nn.relu(p["vector"])),
    "softplus, silu": lambda p: jax.nn.softplus(p["vector"]) * jax.nn.silu(jax.nn.log_sigmoid(p["vector"])),
    "custom_jvp": lambda p: cube_by_rule(p["matrix"] @ cube_by_rule(p["vector"])),
    "softmax": lambda p: jax.nn.log_softmax(p["matrix"]) @ jax.nn.softmax(p["vector"]),
    "max pooling": pooled,
    "scan": scanned,
    "while": looped,
    "cond": branched,
    "checkpoint": rematerialised,
    "random": dropped_out,
    "integers, sort, gather": picked,
    "stop_gradient": half_stopped,
    "statistics": normalised,
    "powers, division": lambda p: (jnp.abs(p["vector"]) + 1) ** 1.7 / (2 + p["matrix"][0] ** 2),
    "slices, cumsum": lambda p: jnp.cumsum(p["matrix"][1:] ** 2, 0) * lax.dynamic_slice(p["vector"], (1,), (1,))[0],
    "update": lambda p: p["matrix"].at[0].set(p["vector"] ** 2) * p["matrix"].at[1].add(p["vector"]),
    "inner jit": jax.jit(lambda p: jnp.sin(jax.jit(jnp.square)(p["vector"]))),
    "results of all kinds": with_results_of_all_kinds,
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
        if name != "while":  # no reverse mode through it

            def gradient(by):
                return jax.jit(jax.grad(lambda p, v: sum_of_all(by(function, p, v)), argnums=(0, 1)))(params, probe)

            assert_same(gradient(second_order), gradient(jvp_of_jvp))


OPERANDS = {
    "mul": lambda p: lax.mul(p["matrix"], jnp.sin(p["matrix"])),
    "dot_general": lambda p: p["matrix"] @ jnp.sin(p["vector"]),
    "conv_general_dilated": correlate,
}


@pytest.mark.parametrize("primitive", sorted(BILINEAR, key=str), ids=str)
def test_what_is_listed_as_bilinear_is(primitive):
    function = OPERANDS[primitive.name]
    with jax.enable_x64(True):
        params, probe = random_tree(2), random_tree(3)
        assert primitive in {equation.primitive for equation in jax.make_jaxpr(function)(params).eqns}
        assert_same(second_order(function, params, probe), jvp_of_jvp(function, params, probe))


def test_a_product_is_formed_once_for_every_pair_of_coefficients_that_are_not_zero():
    def network(p):
        hidden = jax.nn.relu(p["matrix"] @ jnp.ones(4))
        return p["matrix"] @ jnp.tanh(p["matrix"] @ hidden)

    params, probe = random_tree(0, np.float32), random_tree(1, np.float32)
    traced = str(jax.make_jaxpr(lambda p, v: second_order(network, p, v))(params, probe))
    # The first layer is linear in the parameters, and relu of that has no second derivative either.
    assert traced.count("dot_general[") == 2 + 4 + 5


def test_a_gradient_forms_no_product_with_a_coefficient_that_is_zero():
    params, probe = random_tree(0, np.float32), random_tree(1, np.float32)

    def products(by):
        def curvature(p):
            return by(lambda q: jnp.sum(jnp.tanh(q["matrix"] @ jnp.tanh(q["matrix"] @ jnp.ones(4)))), p, probe)[2]

        return str(jax.make_jaxpr(jax.grad(curvature))(params)).count("dot_general[")

    # Forward 2 and 5; back 5 for the second layer's input, 3 for its weights, 1 for the first's; none for the probe.
    assert products(second_order) == 7 + 8 + 1
    assert products(jvp_of_jvp) > 16


def test_under_vmap_over_points_and_probes_with_a_sum_over_the_axis():
    def function(p):
        return jnp.sin(lax.psum(p["matrix"] @ p["vector"], "points")) * p["vector"]

    trees32 = [random_tree(seed, np.float32) for seed in range(4)]
    points, probes = (jax.tree.map(lambda *leaves: jnp.stack(leaves), *pair) for pair in (trees32[:2], trees32[2:]))

    def mapped(by):
        return jax.jit(jax.vmap(lambda p, v: by(function, p, v), axis_name="points"))(points, probes)

    assert_same(mapped(second_order), mapped(jvp_of_jvp), rtol=1e-4)


@pytest.mark.parametrize("how", ["pmap", "shard_map"])
def test_on_two_devices_with_sums_and_gathers_over_them(how):
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
        if how == "pmap":
            mapped = jax.pmap(lambda *a: replica(by, *a), "devices", in_axes=(None, None, 0), out_axes=None)
            return mapped(params, probe, rows)
        spec, mesh = jax.sharding.PartitionSpec, jax.sharding.Mesh(np.asarray(jax.devices()), ("devices",))
        mapped = jax.shard_map(
            lambda p, v, r: replica(by, p, v, r[0]),
            mesh=mesh,
            in_specs=(spec(), spec(), spec("devices")),
            out_specs=spec(),
        )
        return jax.jit(mapped)(params, probe, rows)

    assert_same(on_devices(second_order), on_devices(jvp_of_jvp), rtol=1e-4)


def test_gradients_reach_what_the_function_closes_over():
    params, probe = random_tree(0, np.float32), random_tree(1, np.float32)

    def curvature(scale, by):
        return by(lambda p: jnp.sum(jnp.sin(scale * p["vector"])), params, probe)[2]

    gradients = [jax.grad(curvature)(jnp.float32(0.7), by) for by in (second_order, jvp_of_jvp)]
    np.testing.assert_allclose(*gradients, rtol=1e-5)


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


def test_a_function_without_forward_derivative_is_refused_in_one_line():
    @jax.custom_vjp
    def square(x):
        return x * x

    square.defvjp(lambda x: (square(x), x), lambda x, cotangent: (2 * x * cotangent,))
    with pytest.raises(InputError, match="custom_vjp, which has no forward derivative"):
        second_order(lambda p: jnp.sum(square(p)), jnp.ones(2), jnp.ones(2))
