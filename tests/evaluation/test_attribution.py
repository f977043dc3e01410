"""Attribution: parts against dense float64 matrices, rows against their laws, the papers' numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import padded_batches

from focalgeo import evaluation, losses
from focalgeo.evaluation.attribution import compare, constant_weight
from focalgeo.rows import AttributionPart, select
from focalgeo.types import Split

pytestmark = pytest.mark.long

EXAMPLES, CLASSES = 13, 3  # two batches, the second with three rows of padding
GAMMAS = (0.5, 2.0, 5.0)


def apply(variables, x):
    """Two layers with ReLU and a bias in the first, 22 parameters."""
    params = variables["params"]
    return jax.nn.relu(x @ params["first"] + params["bias"][None]) @ params["second"]


def make_problem(chosen, dtype=np.float32):
    random = np.random.default_rng(0)
    shapes = {"bias": (4,), "first": (2, 4), "second": (4, CLASSES)}
    params = {name: random.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    x, y = random.normal(size=(EXAMPLES, 2)).astype(dtype), random.integers(0, CLASSES, EXAMPLES).astype(np.int32)
    padded = list(padded_batches(Split(x, y), 0.5))
    return evaluation.Problem(apply, {"cross_entropy": losses.cross_entropy, **chosen}, params, {}, padded), x, y


def focal(gamma):
    return lambda logits, labels: losses.focal_loss(logits, labels, gamma)


def rows_of(problem, num_probes):
    options = {"max_products": 40, "tolerance": 1e-4, "trace_method": "hutch++"}
    measured = evaluation.measure_curvature(
        problem, jax.random.key(3), split="val", num_probes=max(num_probes, 6), **options
    )
    rows = evaluation.attribution_rows(problem, measured, jax.random.key(4), split="val", num_probes=num_probes)
    return measured.rows, rows


def by_part(rows, of, loss):
    return {row.part: row for row in select(rows, AttributionPart, of=of, loss=loss)}


@pytest.fixture(scope="module")
def measured():
    """Rows of focal loss with gamma 2 from 12 vectors, of which 4 span the basis."""
    problem, x, y = make_problem({"focal_loss": focal(2.0)})
    return problem, x, y, *rows_of(problem, 12)


def test_rows_of_parts_sum_to_the_whole_and_to_lambda_max(measured):
    *_, whole_rows, rows = measured
    assert {(row.split, row.n) for row in rows} == {("val", EXAMPLES)}
    for of in ("trace", "lambda_max"):
        plain, own = (by_part(rows, of, loss) for loss in ("cross_entropy", "focal_loss"))
        value = lambda named, part: named[part].value  # noqa: E731
        assert plain.keys() == {"gauss_newton", "residual", "whole"}
        assert own.keys() == {*plain, "softmax_weighted", "rank_one", "scale_only", "beyond_scaling"}
        for named in (plain, own):
            assert value(named, "gauss_newton") + value(named, "residual") == pytest.approx(value(named, "whole"))
        split = value(own, "softmax_weighted") + value(own, "rank_one")
        assert split == pytest.approx(value(own, "gauss_newton"))
        (weight,) = [row.value for row in rows if row.name == "mean_weight"]
        assert value(own, "scale_only") == pytest.approx(weight * value(plain, "whole"))
        assert value(own, "beyond_scaling") == pytest.approx(value(own, "whole") - value(own, "scale_only"))
    for row in whole_rows:
        if row.name == "lambda_max":
            part = by_part(rows, "lambda_max", row.loss)["whole"].value
            assert abs(part - row.value) <= row.residual + 1e-5 * row.value


def named_row(rows, name, loss):
    (row,) = [row for row in rows if row.name == name and row.loss == loss]
    return row


def test_rescaled_layers_change_the_trace_but_not_the_scale_free_one(measured):
    problem, *_ = measured
    params = problem.params
    factors = {"bias": np.float32(3), "first": np.float32(3), "second": np.float32(1 / 3)}
    other = problem._replace(params={name: factors[name] * leaf for name, leaf in params.items()})
    x = problem.batches[0].x
    np.testing.assert_allclose(apply({"params": other.params}, x), apply({"params": params}, x), rtol=1e-4, atol=1e-5)
    (_, before), (_, after) = (rows_of(each, 3 * 24) for each in (problem, other))
    for loss in problem.losses:
        plain = [by_part(rows, "trace", loss)["whole"].value for rows in (before, after)]
        free = [named_row(rows, "scale_free_trace", loss).value for rows in (before, after)]
        assert free[1] == pytest.approx(free[0], rel=1e-3)
        assert abs(plain[1] / plain[0] - 1) > 0.5


def weighted(logits, labels):
    return losses.weighted_by_class(losses.focal_loss(logits, labels, 2.0), labels, jnp.float32([1, 2, 3]))


@pytest.mark.parametrize(
    ("loss", "splits"),
    [
        (focal(0.5), True),
        (weighted, True),
        (lambda z, y: losses.sample_dependent_focal_loss(z, y, jnp.float32([0.2]), jnp.float32([5, 3])), True),
        (lambda z, y: losses.label_smoothed_cross_entropy(z, y, 0.05), False),
        (losses.brier_loss, False),
        (lambda z, y: losses.dual_focal_loss(z, y, 2.0), False),
        (lambda z, y: losses.confidence_penalised_cross_entropy(z, y, 2.0), False),
    ],
    ids=["focal", "class-weighted", "by policy", "label smoothing", "brier", "dual focal", "confidence penalty"],
)
def test_only_a_loss_of_the_true_probability_alone_is_split_by_weight(loss, splits):
    random = np.random.default_rng(0)
    logits, labels = 3 * random.normal(size=(40, 3)).astype(np.float32), random.integers(0, 3, 40)
    found = compare(loss, losses.cross_entropy, jnp.asarray(logits), jnp.asarray(labels))
    assert bool(found.parallel.all()) == splits
    constant, own = (
        jax.grad(lambda z, each=each: jnp.sum(each(z, labels)))(jnp.asarray(logits))
        for each in (functools.partial(constant_weight, loss, losses.cross_entropy), loss)
    )
    assert np.allclose(constant, own, rtol=1e-3, atol=1e-6) == splits


def test_a_loss_without_a_weight_has_rows_but_no_split():
    problem, *_ = make_problem({"brier_loss": losses.brier_loss})
    _, rows = rows_of(problem, 6)
    assert by_part(rows, "trace", "brier_loss").keys() == {"gauss_newton", "residual", "whole"}
    assert not [row for row in rows if row.name == "mean_weight"]
    alone, *_ = make_problem({})
    _, rows = rows_of(alone, 6)
    assert {row.loss for row in rows if row.loss is not None} == {"cross_entropy"}
    assert len([row for row in rows if row.name == "true_class_probability"]) == 5


def with_true_probability(p, classes):
    """Logits whose class 0 has probability p, the others unequal shares of the rest."""
    shares = np.arange(1, classes) / np.arange(1, classes).sum()
    return np.log(np.column_stack([p, np.outer(1 - p, shares)])).astype(np.float32)


@pytest.mark.parametrize("classes", [2, 5])
def test_records_of_where_focal_loss_raises_curvature_and_where_it_is_negative(papers, classes):
    for record in papers["binary_logit_curvature_ratio_focal_over_CE"]:
        low, high = record["ratio_eq_1_at_p"]
        bounds = np.array([record["curvature_negative_below_p"], low, high])
        p = np.concatenate([0.98 * bounds, 1.02 * bounds])
        labels = jnp.zeros(6, jnp.int32)
        found = compare(focal(record["gamma"]), losses.cross_entropy, with_true_probability(p, classes), labels)
        np.testing.assert_allclose(found.probability, p, rtol=1e-5)
        np.testing.assert_array_equal(found.negative, [True, False, False, False, False, False])
        np.testing.assert_array_equal(found.raised, [False, False, True, False, True, False])


@pytest.mark.parametrize("gamma", GAMMAS)
def test_a_confident_example_is_neither_negative_nor_raised(gamma):
    logits = with_true_probability(1 - np.geomspace(1e-6, 1e-3, 20), 4)
    found = compare(focal(gamma), losses.cross_entropy, logits, jnp.zeros(20, jnp.int32))
    assert not found.negative.any()
    assert not found.raised.any()


def test_shares_and_quantiles_are_of_the_unmasked_examples(measured):
    problem, x, y, _, rows = measured
    logits = apply({"params": problem.params}, x)
    p = np.asarray(jax.nn.softmax(logits))[range(EXAMPLES), y]
    quantiles = {row.quantile: row.value for row in rows if row.name == "true_class_probability"}
    for level, value in quantiles.items():
        assert value == pytest.approx(np.quantile(p, level), rel=1e-4)
    expected = {
        "mean_weight": np.mean((1 - p) ** 2 - 2 * p * (1 - p) * np.log(p)),
        "share_raised": np.mean((p > 0.0926825) & (p < 0.6275365)),
        "share_negative": np.mean(p < 0.057846),
    }
    for name, value in expected.items():
        assert named_row(rows, name, "focal_loss").value == pytest.approx(value, rel=1e-4)
    assert 0 < expected["share_raised"] < 1
