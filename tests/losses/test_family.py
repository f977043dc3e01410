"""Every loss against its definition in high precision, and the laws that tie the losses to each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.losses import directional_third, loss_and_derivatives
from reference.losses import focal_loss as closed_form

from focalgeo import checks
from focalgeo.config import default_config
from focalgeo.losses import (
    LOSSES,
    AdaFocalState,
    brier_loss,
    confidence_penalised_cross_entropy,
    cross_entropy,
    dual_focal_loss,
    focal_loss,
    hyperparameters,
    label_smoothed_cross_entropy,
    make_loss,
    sample_gamma,
    signed_focal_loss,
    weighted_by_class,
)
from focalgeo.types import InputError

GAPS = (0.0, 5.0, 17.0, 60.0, 100.0)
GAMMAS = (0.0, 0.05, 0.5, 1.0, 2.0, 5.0)
TINY = 1e-36  # below it float32 loses digits, then everything
THRESHOLDS, CHOSEN = (0.3, 0.6), (5.0, 3.0, 0.5)
EDGES, BY_BIN = (0.1, 0.5, 0.9), (-2.0, 2.0, -0.2, 1.0)
EVERY = default_config().loss.to_dict() | {  # a value of each hyperparameter
    "gamma": 2.0,
    "smoothing": 0.1,
    "epoch": 1,
    "adafocal": AdaFocalState(jnp.float32(EDGES), jnp.float32(BY_BIN)),
    "thresholds": jnp.float32(THRESHOLDS),
    "boundaries": jnp.int32([1, 2]),
    "gammas": jnp.float32(CHOSEN),
}


def rows(hyper):
    return [([gap, 0.0, -1.0], label, *value) for gap in GAPS for label in (0, 1, 2) for value in hyper]


def over(function, cases):
    """Value, gradient and Hessian of function(logits, label, *hyper) for all cases, traced."""
    columns = [np.array(column) for column in zip(*cases, strict=True)]
    arguments = [
        columns[0].astype(np.float32),
        columns[1].astype(np.int32),
        *(c.astype(np.float32) for c in columns[2:]),
    ]

    def all_three(*case):
        return function(*case), jax.grad(function)(*case), jax.hessian(function)(*case)

    return [np.asarray(part) for part in jax.jit(jax.vmap(all_three))(*arguments)]


def assert_right(got, cases, oracle):
    for order, rtol in enumerate((4e-6, 4e-5, 2e-4)):
        assert got[order].dtype == np.float32
        for case, value in zip(cases, got[order], strict=True):
            expected = oracle(*case)[order]
            scale = np.abs(expected).max()  # entries cancel against each other
            np.testing.assert_allclose(value, expected, rtol=rtol, atol=rtol * scale + TINY, err_msg=f"{order} {case}")


def remembered(definition):
    known = {}

    def oracle(logits, label, *hyper):
        key = (*logits, label, *hyper)
        if key not in known:
            known[key] = loss_and_derivatives(definition, logits, label, *hyper)
        return known[key]

    return oracle


@pytest.mark.parametrize(
    ("definition", "function", "hyper"),
    [
        ("signed", signed_focal_loss, [(g,) for g in (*GAMMAS, -0.2, -2.0)]),
        ("dual", dual_focal_loss, [(g,) for g in GAMMAS]),
        ("penalised", confidence_penalised_cross_entropy, [(g,) for g in GAMMAS]),
        ("smoothed", label_smoothed_cross_entropy, [(a,) for a in (0.0, 0.05, 1.0)]),
        ("brier", brier_loss, [()]),
    ],
)
def test_value_gradient_and_hessian_equal_the_definition(definition, function, hyper):
    cases = rows(hyper)
    assert_right(over(function, cases), cases, remembered(definition))


def p_true(logits, label):
    weights = np.exp(np.array(logits, float) - max(logits))
    return weights[label] / weights.sum()


CHOOSING = {
    "cross_entropy": (lambda epoch: {}, lambda p, epoch: 0.0),
    "focal_loss": (lambda epoch: {"gamma": 2 + 0 * epoch}, lambda p, epoch: 2.0),
    "sample_dependent_focal_loss": (
        lambda epoch: {"thresholds": jnp.float32(THRESHOLDS), "gammas": jnp.float32(CHOSEN)},
        lambda p, epoch: CHOSEN[sum(p > t for t in THRESHOLDS)],
    ),
    "scheduled_focal_loss": (
        lambda epoch: {"epoch": epoch, "boundaries": jnp.int32([1, 2]), "gammas": jnp.float32(CHOSEN)},
        lambda p, epoch: CHOSEN[int(epoch)],
    ),
    "adafocal_loss": (
        lambda epoch: {"adafocal": AdaFocalState(jnp.float32(EDGES), jnp.float32(BY_BIN))},
        lambda p, epoch: BY_BIN[sum(p >= t for t in EDGES)],
    ),
}


@pytest.mark.parametrize("name", CHOOSING)
def test_a_chosen_gamma_is_held_while_the_loss_is_differentiated(name):
    hyper, gamma = CHOOSING[name]
    loss, oracle = make_loss(name), remembered("signed")
    cases = rows([(0.0,), (1.0,), (2.0,)] if name == "scheduled_focal_loss" else [(0.0,)])
    got = over(lambda logits, label, epoch: loss(logits, label, hyper(epoch)), cases)
    assert_right(got, cases, lambda logits, label, epoch: oracle(logits, label, gamma(p_true(logits, label), epoch)))


@pytest.fixture(scope="module")
def random_rows():
    logits = 20 * jax.random.normal(jax.random.key(0), (200, 7))
    return logits, jax.random.randint(jax.random.key(1), (200,), 0, 7)


@pytest.mark.parametrize(
    "function", [label_smoothed_cross_entropy, dual_focal_loss, signed_focal_loss, confidence_penalised_cross_entropy]
)
def test_zero_gives_cross_entropy_bit_for_bit(random_rows, function):
    np.testing.assert_array_equal(jax.jit(function)(*random_rows, jnp.float32(0)), jax.jit(cross_entropy)(*random_rows))


def test_signed_focal_is_focal_above_zero_bit_for_bit_and_takes_gamma_per_example(random_rows):
    gamma = jnp.linspace(0, 5, 200)
    np.testing.assert_array_equal(signed_focal_loss(*random_rows, gamma), focal_loss(*random_rows, gamma))


def test_focal_loss_is_at_least_cross_entropy_less_its_entropy(random_rows):
    for scale in (0.05, 1.0):
        logits, labels = scale * random_rows[0], random_rows[1]
        for gamma in (0.5, 1.0, 5.0):  # below 1 by computation, from 1 on by proof
            penalised = confidence_penalised_cross_entropy(logits, labels, gamma)
            bound = np.asarray(penalised, np.float64) - gamma * np.log(7)
            assert (focal_loss(logits, labels, gamma) >= bound - 1e-5).all()


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_is_blind_to_the_order_of_classes_and_takes_bfloat16(random_rows, name):
    logits, labels = random_rows[0][:40] / 8, random_rows[1][:40]
    loss, order = make_loss(name), np.array([3, 1, 6, 0, 2, 5, 4])
    got = loss(logits, labels, EVERY)
    moved = loss(logits[:, order], np.argsort(order).astype(np.int32)[labels], EVERY)
    np.testing.assert_allclose(moved, got, rtol=2e-5)
    half = logits.astype(jnp.bfloat16)
    in_half, widened = loss(half, labels, EVERY), loss(half.astype(jnp.float32), labels, EVERY)
    assert (in_half.dtype, got.shape) == (jnp.float32, (40,))
    assert (np.asarray(got) >= 0).all()
    np.testing.assert_array_equal(in_half, widened)
    slope = jax.grad(lambda z: jnp.sum(loss(z, labels, EVERY)))(half)
    assert slope.dtype == jnp.bfloat16
    assert np.isfinite(slope.astype(jnp.float32)).all()


def test_the_papers_losses(papers, dataset):
    record, logits, labels = dataset
    np.testing.assert_allclose(np.mean(brier_loss(logits, labels)), record["brier_sum_over_classes"], rtol=2e-6)
    for gamma, key in ((0, "nll"), (1, "focal_mean_gamma1"), (2, "focal_mean_gamma2"), (3, "focal_mean_gamma3")):
        np.testing.assert_allclose(np.mean(focal_loss(logits, labels, float(gamma))), record[key], rtol=2e-6)
    smooth, dual = record["label_smoothing_0.05"], record["dual_focal"]
    given, y = np.log(np.float32(smooth["P"])), np.array(smooth["y"], np.int32)
    np.testing.assert_allclose(np.mean(label_smoothed_cross_entropy(given, y, 0.05)), smooth["loss"], rtol=2e-6)
    given, y = np.log(np.float32(dual["P"])), np.array(dual["y"], np.int32)
    for gamma, expected in dual["per_sample"].items():
        np.testing.assert_allclose(dual_focal_loss(given, y, float(gamma)), expected, rtol=4e-6)
    for row in papers["adafocal"]["loss"]:
        given = np.log(np.float32([row["p"], 1 - row["p"]]))
        np.testing.assert_allclose(signed_focal_loss(given, 0, row["gamma"]), row["loss"], rtol=4e-6)


def test_the_papers_logit_hessians(papers):
    hessian = jax.jit(jax.hessian(focal_loss))
    for r in papers["softmax_logit_hessian"]:
        case = jnp.float32(r["logits"]), r["y"], jnp.float32(r["gamma"])
        np.testing.assert_allclose(focal_loss(*case), r["loss"], rtol=4e-6)
        np.testing.assert_allclose(jax.grad(focal_loss)(*case), r["grad"], rtol=4e-5, atol=1e-7)
        np.testing.assert_allclose(hessian(*case), r["H"], rtol=1e-4, atol=1e-6)


def test_third_derivatives_of_the_focal_loss_are_finite_and_right():
    direction, cases = jnp.array([1.0, -0.5, 0.25]), rows([(gamma,) for gamma in GAMMAS])

    def third(logits, label, gamma):
        along = lambda t: focal_loss(logits + t * direction, label, gamma)  # noqa: E731
        return jax.grad(jax.grad(jax.grad(along)))(0.0)

    columns = [jnp.asarray(np.array(column)) for column in zip(*cases, strict=True)]
    arguments = columns[0].astype(jnp.float32), columns[1].astype(jnp.int32), columns[2].astype(jnp.float32)
    assert np.isfinite(jax.jit(jax.vmap(jax.jacfwd(jax.hessian(focal_loss))))(*arguments)).all()
    thirds = jax.jit(jax.vmap(third))(*arguments)
    for case, value in list(zip(cases, thirds, strict=True))[::7]:
        expected, scale = directional_third(*case, direction), np.abs(closed_form(*case)[2]).max()
        np.testing.assert_allclose(value, expected, rtol=5e-4, atol=1e-5 * scale + TINY)


def test_gradient_in_gamma_is_the_loss_times_log_one_minus_p():
    for gamma in (0.0, 2.0):
        got = jax.grad(focal_loss, argnums=2)(jnp.array([17.0, 0.0, -1.0]), 0, gamma)
        p_rest = np.exp(-17) + np.exp(-18)
        np.testing.assert_allclose(got, p_rest ** (gamma + 1) * np.log(p_rest), rtol=1e-5)


@pytest.mark.parametrize(("dtype", "classes"), [(np.uint8, 256), (np.uint8, 300), (np.int8, 200)])
def test_labels_of_8_bits_serve_more_classes_than_8_bits_hold(dtype, classes):
    logits = np.random.default_rng(0).normal(size=(2, classes)).astype(np.float32)
    labels = np.array([127, 3])
    for function in (cross_entropy, jax.jit(cross_entropy)):
        np.testing.assert_array_equal(function(logits, labels.astype(dtype)), function(logits, labels))
    np.testing.assert_array_equal(weighted_by_class(np.ones(2), labels.astype(dtype), np.ones(classes)), 1)


def test_every_loss_has_one_calling_form():
    logits, labels = jnp.array([[1.0, 2.0]]), jnp.array([0])
    assert hyperparameters("cross_entropy") == ()
    assert hyperparameters("focal_loss") == ("gamma",)
    assert hyperparameters("scheduled_focal_loss") == ("epoch", "boundaries", "gammas")
    hyper = {"gamma": jnp.float32(2), "weight_decay": jnp.float32(0)}
    for name in ("cross_entropy", "focal_loss"):
        assert make_loss(name)(logits, labels, hyper).shape == (1,)
    np.testing.assert_array_equal(make_loss("focal_loss")(logits, labels, hyper), focal_loss(logits, labels, 2.0))
    with pytest.raises(InputError, match=r"^loss is 'focal_los': did you mean 'focal_loss'\?"):
        make_loss("focal_los")


def test_labels_and_numbers_that_fit_no_loss_are_refused():
    logits = jnp.zeros((2, 3))
    for wrong in (
        lambda: cross_entropy(logits, [0]),
        lambda: cross_entropy(jnp.zeros((2, 1)), [0, 0]),
        lambda: cross_entropy(logits.astype(int), [0, 1]),
        lambda: focal_loss(logits, [0, 1], np.nan),
        lambda: focal_loss(logits, [0, 1], np.ones(3)),
        lambda: label_smoothed_cross_entropy(logits, [0, 1], 1.5),
        lambda: weighted_by_class(np.ones(2), [0, 1], [-1.0, 1.0]),
        lambda: sample_gamma(0.3, [0.5, 0.1], [1.0, 2, 3]),
    ):
        with pytest.raises(InputError):
            wrong()


def test_class_weights_of_another_number_are_told_by_their_own_fault():
    with pytest.raises(InputError, match=r"alpha holds 2 weights, fewer than .*: give a weight for each class"):
        weighted_by_class(np.ones(4), [0, 1, 2, 3], np.ones(2))


@pytest.mark.parametrize("labels", [np.int32([[0], [1]]), np.int32([1, 3])])
def test_advice_on_labels_is_that_of_files(labels):  # by what they hold, see tests/test_checks.py
    with pytest.raises(InputError) as caught:
        brier_loss(jnp.zeros((2, 3)), labels)
    assert checks.label_advice(labels, (2, 3)) in str(caught.value)


def test_minus_one_is_no_label_where_a_mask_leaves_it_out():
    def masked(z):
        labels = np.array([1, -1])
        return jnp.sum(jnp.where(labels >= 0, focal_loss(z, labels, 2.0), 0))

    slope = jax.grad(masked)(jnp.float32([[1, 2, 3], [4, 5, 6]]))
    assert (slope[0] != 0).all()
    np.testing.assert_array_equal(slope[1], 0)
