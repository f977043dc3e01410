"""What losses take beside class numbers and finite logits: masks, soft labels, classes that cannot be, many labels."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_expit, log_softmax
from test_family import EVERY

from focalgeo import losses
from focalgeo.losses import LOSSES, PENALTIES, cross_entropy, focal_loss, sigmoid_focal_loss
from focalgeo.types import InputError

JUNK = (np.nan, np.inf, -np.inf, 3e38)


def of(name, **values):
    """The loss as a function of (logits, labels), and a mask where one is given."""
    values = {key: (EVERY | values)[key] for key in losses.hyperparameters(name)}
    return lambda logits, labels, **mask: LOSSES[name](logits, labels, *values.values(), **mask)


def derivatives(loss, logits, direction):
    """The mean loss, its gradient and its Hessian times the direction."""
    mean = lambda z: jnp.mean(loss(z))  # noqa: E731
    return jax.jit(lambda z: (mean(z), *jax.jvp(jax.grad(mean), (z,), (direction,))))(logits)


@functools.cache
def compiled(name):
    """The derivatives of a loss as one function of (logits, labels, direction, gamma), compiled once for each shape."""
    return jax.jit(lambda z, y, v, gamma: derivatives(lambda z: of(name, gamma=gamma)(z, y), z, v))


def batch(seed=0, n=12, classes=5):
    rng = np.random.default_rng(seed)
    logits, direction = rng.normal(size=(2, n, classes)).astype(np.float32)
    return 3 * logits, rng.integers(0, classes, n).astype(np.int32), direction


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("weighted", [False, True])
def test_what_a_mask_leaves_out_counts_for_nothing(name, weighted):
    logits, labels, direction = batch()
    mask = np.arange(12) % 3 > 0
    weight = mask * (np.arange(12) / 4.0) if weighted else mask
    option = "weights" if weighted else "mask"
    spoiled, others = logits.copy(), labels.copy()
    spoiled[~mask], others[~mask] = np.resize(JUNK, (4, 1)), (-100, 255, -1, 5)
    loss, kept = of(name), weight[mask].astype(np.float32)
    expected = derivatives(lambda z: jnp.sum(kept * loss(z, labels[mask])) / kept.sum(), logits[mask], direction[mask])
    traced = jax.jit(lambda z, y, m: derivatives(lambda z: loss(z, y, **{option: m}), z, direction))
    for got in (
        derivatives(lambda z: loss(z, others, **{option: weight}), spoiled, direction),
        traced(spoiled, others, weight.astype(np.float32)),
    ):
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-6)
        for part, own in zip(got[1:], expected[1:], strict=True):
            np.testing.assert_array_equal(part[~mask], 0)
            np.testing.assert_allclose(part[mask], own, rtol=1e-5, atol=1e-7)
    assert np.isnan(loss(spoiled, others, mask=np.zeros(12, bool)))
    assert {"mask", "weights"} < inspect.signature(LOSSES[name]).parameters.keys()


def test_a_mask_does_not_hide_what_counts():
    logits, labels, _ = batch()
    mask = np.arange(12) > 0
    with pytest.raises(InputError, match=r"labels\[3\] is 5"):
        cross_entropy(logits, np.where(np.arange(12) == 3, 5, labels), mask=mask)
    with pytest.raises(InputError, match=r"mask for labels \(12,\)"):
        cross_entropy(logits, labels, mask=mask[:5])
    with pytest.raises(InputError, match="weights is -1"):
        cross_entropy(logits, labels, weights=-1.0 * mask)
    with pytest.raises(InputError, match=r"mask holds float32: give truth values, or .* as weights="):
        cross_entropy(logits, labels, mask=mask.astype(np.float32))
    with pytest.raises(InputError, match=r"labels for logits \(12, 5\)"):
        cross_entropy(logits, labels[:5], mask=mask)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, 5.0])
def test_soft_labels_give_the_expected_loss(gamma):
    logits, _, _ = batch()
    soft = np.random.default_rng(1).dirichlet(np.full(5, 0.3), 12)
    mask = np.arange(12) != 4
    log_p = log_softmax(logits.astype(np.float64), axis=-1)
    expected = -np.sum(soft * (1 - np.exp(log_p)) ** gamma * log_p, axis=-1)
    loss = lambda q, **mask: focal_loss(logits, q, gamma, **mask)  # noqa: E731
    np.testing.assert_allclose(loss(np.float32(soft)), expected, rtol=1e-5)
    if gamma == 0:
        np.testing.assert_allclose(cross_entropy(logits, np.float32(soft)), expected, rtol=1e-5)
    spoiled = np.where(mask[:, None], soft, np.nan)
    np.testing.assert_allclose(loss(spoiled, mask=mask), expected[mask].mean(), rtol=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from((0.1, 3.0, 30.0)), st.sampled_from((0.0, 0.5, 2.0, 40.0)))
def test_one_hot_rows_equal_class_numbers(seed, scale, gamma):
    logits, labels, direction = batch(seed)
    for name in ("cross_entropy", "focal_loss"):
        hard, soft = (
            compiled(name)(scale * logits, y, direction, gamma) for y in (labels, np.eye(5, dtype=np.float32)[labels])
        )
        for one, other, rtol in zip(soft, hard, (1e-6, 1e-5, 1e-4), strict=True):
            rtol *= 1 + gamma / 4
            np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol * np.abs(other).max() + 1e-36)


def test_rows_that_are_no_distribution_are_refused():
    logits, labels, _ = batch()
    one_hot = np.eye(5, dtype=np.float32)[labels]
    for wrong, line in (
        (0.9 * one_hot, "labels sums to 0.9"),
        (one_hot * np.nan, "labels is nan"),
        (-one_hot, "is -1"),
    ):
        with pytest.raises(InputError, match=line):
            cross_entropy(logits, wrong)
        with pytest.raises(InputError, match=line):
            jax.grad(lambda z, wrong=wrong: focal_loss(z, wrong, 2.0).sum())(logits)
    with pytest.raises(InputError, match="soft labels"):
        losses.brier_loss(logits, np.full((12, 5), 0.2))


SMOOTH = ("cross_entropy", "label_smoothed_cross_entropy", "brier_loss", "focal_loss", "signed_focal_loss")
SMOOTH += ("dual_focal_loss", "confidence_penalised_cross_entropy", "adafocal_loss", "sample_dependent_focal_loss")


@pytest.mark.parametrize("name", SMOOTH)
@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from((0.1, 1.0, 30.0)),
    st.sampled_from((0.3, 2.0, 60.0)),
    st.permutations(range(5)),
    st.sampled_from((1, 3)),
)
def test_a_logit_of_minus_infinity_is_a_class_left_out(name, seed, scale, gamma, order, many):
    """Loss, gradient and Hessian products are those of the other columns; a single one costs nothing."""
    left = sorted(order[:many])
    logits, _, direction = batch(seed)
    labels = np.random.default_rng(seed).choice(left, 12).astype(np.int32)
    without = np.where(np.isin(np.arange(5), left), scale * logits, -np.inf)
    got = compiled(name)(without, labels, direction, gamma)
    for part in got[1:]:
        np.testing.assert_array_equal(part[:, order[many:]], 0)
    if many == 1:
        for part in got:
            np.testing.assert_allclose(part, 0, atol=1e-6)
        return
    numbers = np.searchsorted(left, labels).astype(np.int32)
    expected = compiled(name)(scale * logits[:, left], numbers, direction[:, left], gamma)
    np.testing.assert_allclose(got[0], expected[0], rtol=2e-6)
    for part, other, rtol in zip(got[1:], expected[1:], (1e-5, 1e-4), strict=True):
        np.testing.assert_allclose(part[:, left], other, rtol=rtol, atol=rtol * np.abs(other).max() + 1e-36)


@pytest.mark.parametrize("name", PENALTIES)
def test_the_penalties_leave_such_classes_out_too(name):
    logits, labels, direction = batch()
    penalty, left = PENALTIES[name], [0, 2, 3]
    labels = np.resize(left, 12)
    without = np.where(np.isin(np.arange(5), left), logits, -np.inf)
    assert penalty(without, labels) == pytest.approx(float(penalty(logits[:, left], np.searchsorted(left, labels))))
    got = derivatives(lambda z: penalty(z, labels), without, direction)
    expected = derivatives(lambda z: penalty(z, np.searchsorted(left, labels)), logits[:, left], direction[:, left])
    for part, other in zip(got[1:], expected[1:], strict=True):
        np.testing.assert_array_equal(part[:, [1, 4]], 0)
        np.testing.assert_allclose(part[:, left], other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "brier_loss"])
def test_an_impossible_label_costs_infinitely_much(name):
    logits = np.float32([[0.0, -np.inf, 1.0]])
    assert of(name)(logits, np.int32([1]))[0] == np.inf
    assert np.isfinite(of(name)(logits, np.int32([0])))
    if name in ("cross_entropy", "focal_loss"):
        assert of(name)(logits, np.float32([[0.5, 0.5, 0]]))[0] == np.inf
        soft = of(name)(logits, np.float32([[0.3, 0, 0.7]]))
        np.testing.assert_allclose(soft, of(name)(logits[:, ::2], np.float32([[0.3, 0.7]])), rtol=1e-6)
        slope = jax.grad(lambda z: of(name)(z, np.float32([[0.3, 0, 0.7]])).sum())(logits)
        assert np.isfinite(slope).all()
        assert slope[0, 1] == 0


def test_an_impossible_label_costs_the_brier_loss_what_is_left():
    p = np.exp(log_softmax([0.0, 1.0]))
    np.testing.assert_allclose(losses.brier_loss(np.float32([0, -np.inf, 1]), 1), 1 + np.sum(p**2), rtol=1e-6)


@pytest.mark.parametrize("alpha", [None, 0.25])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_sigmoid_focal_loss_is_optax_s_and_right_where_it_saturates(gamma, alpha):
    rng = np.random.default_rng(0)
    logits, labels = (3 * rng.normal(size=(9, 4))).astype(np.float32), rng.integers(0, 2, (9, 4))
    loss = lambda z: sigmoid_focal_loss(z, labels, gamma, alpha)  # noqa: E731
    other = lambda z: optax.losses.sigmoid_focal_loss(z, labels, alpha=alpha, gamma=gamma)  # noqa: E731
    np.testing.assert_allclose(loss(logits), other(logits), rtol=2e-5)
    slopes = [jax.grad(lambda z, each=each: each(z).sum())(logits) for each in (loss, other)]
    np.testing.assert_allclose(*slopes, rtol=1e-4, atol=1e-6)
    wide = np.geomspace(1e-3, 1e4, 36).reshape(9, 4) * rng.choice((-1, 1), (9, 4))
    signed = np.float64(np.float32(wide)) * (2 * labels - 1)
    weight = 1 if alpha is None else np.where(labels, alpha, 1 - alpha)
    exact = -weight * np.exp(gamma * log_expit(-signed)) * log_expit(signed)
    np.testing.assert_allclose(loss(np.float32(wide)), exact, rtol=2e-5, atol=1e-36)
    curvature = derivatives(loss, np.float32(wide), np.ones((9, 4), np.float32))
    assert all(np.isfinite(part).all() for part in curvature)


@pytest.mark.parametrize("alpha", [None, 0.25, 0.0, 1.0])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_soft_targets_of_the_sigmoid_loss_give_its_expectation(gamma, alpha):
    rng = np.random.default_rng(0)
    logits = np.concatenate([3 * rng.normal(size=(9, 4)), [[-40, 40, -1e4, 1e4]]]).astype(np.float32)
    shares = np.where(rng.random((10, 4)) < 0.5, rng.random((10, 4)), [0.0, 1.0, 1.0, 0.0]).astype(np.float32)
    loss = lambda z, y=shares, **how: sigmoid_focal_loss(z, y, gamma, alpha, **how)  # noqa: E731
    one, zero = (loss(logits, np.full((10, 4), label)) for label in (1, 0))
    np.testing.assert_allclose(loss(logits), shares * one + (1 - shares) * zero, rtol=2e-6)
    mask = shares > 0.3
    masked = loss(logits, np.where(mask, shares, np.nan), mask=mask)
    np.testing.assert_allclose(masked, np.mean(loss(logits)[mask]), rtol=1e-6)
    assert all(np.isfinite(part).all() for part in derivatives(loss, logits, np.ones((10, 4), np.float32)))


def test_sigmoid_focal_loss_is_a_mean_over_what_a_mask_leaves():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(9, 4)).astype(np.float32), rng.integers(0, 2, (9, 4))
    each = sigmoid_focal_loss(logits, labels, 2.0, 0.3)
    mask = rng.random((9, 4)) < 0.6
    spoiled, others = np.where(mask, logits, np.nan), np.where(mask, labels, 255)
    np.testing.assert_allclose(sigmoid_focal_loss(spoiled, others, 2.0, 0.3, mask), each[mask].mean(), rtol=1e-6)
    rows = np.arange(9) % 2 > 0
    spoiled, others = np.where(rows[:, None], logits, np.inf), np.where(rows[:, None], labels, -100)
    slope = jax.grad(sigmoid_focal_loss)(spoiled, others, 2.0, 0.3, rows)
    np.testing.assert_array_equal(slope[~rows], 0)
    np.testing.assert_allclose(sigmoid_focal_loss(spoiled, others, 2.0, 0.3, rows), each[rows].mean(), rtol=1e-6)
    for wrong, line in (
        (labels + 1, r"labels\[.*\] is 2"),
        (labels * 1.5, "labels is 1.5: give a value from 0 to 1"),
        (labels * np.nan, "labels is nan"),
        (labels > 0, r"labels for logits \(9, 4\): has type bool"),
        (labels[:, :3], r"labels for logits \(9, 4\): has shape \(9, 3\)"),
        (labels[:, :3] / 2, r"labels for logits \(9, 4\): has shape \(9, 3\)"),
    ):
        with pytest.raises(InputError, match=line):
            sigmoid_focal_loss(logits, wrong, 2.0)
    with pytest.raises(InputError, match="alpha is 2"):
        sigmoid_focal_loss(logits, labels, 2.0, 2.0)
    with pytest.raises(InputError, match=r"mask for labels \(9, 4\)"):
        sigmoid_focal_loss(logits, labels, 2.0, mask=np.ones((9, 3)))


@pytest.mark.parametrize("name", ["cross_entropy", "sigmoid_focal_loss"])
def test_a_traced_soft_label_that_is_no_share_gives_nan(name):
    given, labels = (2.0,) if "focal" in name else (), np.float32([[0.5, 0.5], [np.nan, np.nan], [1, 0]])
    found = np.asarray(jax.jit(getattr(losses, name))(jnp.ones((3, 2)), labels, *given))
    assert np.isnan(found).reshape(3, -1).all(axis=1).tolist() == [False, True, False]
    out = jax.jit(sigmoid_focal_loss)(jnp.ones(2), np.float32([1.5, -0.5]), 2.0)
    assert np.isnan(out).all()


@pytest.mark.parametrize("name", ["cross_entropy", "focal_loss", "brier_loss", "sigmoid_focal_loss"])
def test_a_traced_label_that_is_no_class_gives_nan(name):
    loss = getattr(losses, name)
    given = (2.0,) if "focal" in name else ()
    logits = jnp.arange(12.0).reshape(4, 3)
    labels = jnp.int32([0, -100, 2, 255])
    if name == "sigmoid_focal_loss":
        labels = jnp.repeat(jnp.int32([[0], [-1], [1], [255]]), 3, axis=1)
    found = np.asarray(jax.jit(loss)(logits, labels, *given))
    wrong = np.array([False, True, False, True])
    assert (np.isnan(found).reshape(4, -1).all(axis=1) == wrong).all()
    mask = jnp.asarray(~wrong)
    value, slope = jax.jit(jax.value_and_grad(lambda rows: loss(rows, labels, *given, mask=mask)))(logits)
    assert np.isfinite(value)
    assert np.isfinite(slope).all()
