"""Forecasts of memory and time; one program serves all measurements of a shape."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from focalgeo import data, evaluation, losses, parallel
from focalgeo.evaluation import forecast
from focalgeo.types import InputError, Split

WIDTH, CLASSES = 64, 3


def apply(variables, x):
    return jnp.tanh(x @ variables["params"]["first"]) @ variables["params"]["second"]


def make_problem(gamma=2.0, seed=0, examples=24, rows=8):
    random = np.random.default_rng(seed)
    params = {
        "first": random.normal(size=(5, WIDTH)).astype(np.float32),
        "second": random.normal(size=(WIDTH, CLASSES)).astype(np.float32),
    }
    x = random.normal(size=(examples, 5)).astype(np.float32)
    y = random.integers(0, CLASSES, examples).astype(np.int32)
    batches = list(data.evaluation_batches(Split(x, y), batch_size=rows))
    return evaluation.Problem(apply, {"focal_loss": Partial(focal, np.float32(gamma))}, params, {}, batches)


def focal(gamma, logits, labels):
    return losses.focal_loss(logits, labels, gamma)


def test_the_memory_of_a_product_holds_its_vectors_and_a_batch_s_activations():
    small, large = (
        evaluation.forecast_memory(make_problem(examples=rows, rows=rows), num_vectors=10) for rows in (8, 4096)
    )
    assert small.num_parameters == WIDTH * (5 + CLASSES)
    assert small.vectors == 10 * 4 * small.num_parameters
    assert small.total == small.product + small.vectors
    assert large.product - small.product > 4088 * WIDTH * 4  # one layer's activations at the least


def test_the_memory_of_two_losses_is_that_of_the_larger():
    def large(logits, labels):
        apart = jnp.abs(logits[:, None, :] - logits[None, :, :])  # of all pairs of examples
        return losses.cross_entropy(logits, labels) + jnp.sum(jnp.exp(-apart), axis=(1, 2))

    problem = make_problem(examples=256, rows=256)
    named = {"small": losses.cross_entropy, "large": large}
    alone = {
        name: evaluation.forecast_memory(problem._replace(losses={name: loss}), num_vectors=3).product
        for name, loss in named.items()
    }
    assert alone["large"] > 1.5 * alone["small"]
    for first, second in (("small", "large"), ("large", "small")):
        order = {"a": named[first], "b": named[second]}  # JAX takes names in their order
        both = evaluation.forecast_memory(problem._replace(losses=order), num_vectors=3)
        assert both.product == alone["large"]


def test_a_forward_pass_is_forecast_by_the_outputs_of_its_products_and_allocates_nothing():
    variables = {"params": {"first": (5, 10**6), "second": (10**6, CLASSES)}}
    variables = jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape, np.float32), variables, is_leaf=is_shape)
    found = evaluation.forecast_forward(jax.jit(apply), variables, jax.ShapeDtypeStruct((10**6, 5), np.float32))
    assert found.logits.shape == (10**6, CLASSES)
    assert (found.largest, found.all) == (4 * 10**12, 4 * 10**12 + 4 * CLASSES * 10**6)
    assert evaluation.tree_bytes(variables) == 4 * 10**6 * (5 + CLASSES)
    evaluation.check_fits("it", 10**9, 10**9, mend="lower it")
    with pytest.raises(InputError, match=r"^it needs at least 1\.1 GB, 1\.0 GB are free: lower it$"):
        evaluation.check_fits("it", 1_100_000_000, 10**9, mend="lower it")


def is_shape(value):
    return isinstance(value, tuple)


def test_a_measurement_that_memory_does_not_hold_is_refused_in_one_line():
    needed = evaluation.Forecast(product=3 * 10**9, vectors=5 * 10**9, num_parameters=11_000_000)
    evaluation.check_memory(needed, None)
    evaluation.check_memory(needed, 8 * 10**9)
    with pytest.raises(
        InputError, match=r"^curvature needs about 8 GB \(3 GB for .* 7\.9 GB are free: lower"
    ) as caught:
        evaluation.check_memory(needed, 7_900_000_000)
    assert "\n" not in str(caught.value)


def test_seconds_of_a_product_grow_with_the_number_of_batches(monkeypatch):
    times = iter([0.0, 1.0, 10.0, 11.0])
    monkeypatch.setattr(forecast.time, "perf_counter", lambda: next(times))
    assert evaluation.seconds_of_product(make_problem()) == 3.0
    assert evaluation.seconds_of_product(make_problem(examples=8)) == 1.0


def test_the_free_memory_is_a_number_of_bytes_that_this_machine_could_have():
    assert 10**7 < parallel.free_memory() < 10**14


def test_one_program_serves_other_parameters_and_other_values_of_the_loss():
    traced = []

    def counted(gamma, logits, labels):
        traced.append(logits.shape)
        return losses.focal_loss(logits, labels, gamma)

    def values(gamma, seed):
        problem = make_problem(seed=seed)
        named = {"cross_entropy": losses.cross_entropy, "focal_loss": Partial(counted, np.float32(gamma))}
        problem = problem._replace(losses=named)
        measured = evaluation.measure_curvature(
            problem,
            jax.random.key(0),
            split="val",
            max_products=4,
            tolerance=1e-2,
            num_probes=4,
            trace_method="hutchinson",
        )
        rows = evaluation.attribution_rows(problem, measured, jax.random.key(1), split="val", num_probes=4)
        return [row.value for row in (*measured.rows, *rows)]

    first, count = values(2.0, 0), len(traced)
    assert count > 0
    second = values(3.0, 1)
    assert len(traced) == count
    assert not np.allclose(first, second, rtol=1e-3)


def test_batches_made_anew_at_every_product_give_the_same_product():
    problem = make_problem()

    class Anew:
        made = 0

        def __iter__(self):
            Anew.made += 1
            return iter(problem.batches)

    batch_loss = evaluation.make_batch_loss(problem.apply, problem.losses["focal_loss"], 24)
    product = functools.partial(evaluation.data_matvec, batch_loss, problem.params, problem.model_state)
    vector = jax.tree.map(np.ones_like, problem.params)
    jax.tree.map(np.testing.assert_array_equal, product(Anew())(vector), product(problem.batches)(vector))
    assert Anew.made == 1
