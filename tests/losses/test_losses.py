import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.losses import directional_third
from reference.losses import focal_loss as oracle

from focalgeo.losses import cross_entropy, focal_loss, hyperparameters, make_loss, weighted_by_class
from focalgeo.types import InputError

GAPS = (0.0, 5.0, 17.0, 60.0, 100.0)
GAMMAS = (0.0, 0.05, 0.5, 1.0, 2.0, 5.0)
CASES = [([gap, 0.0, -1.0], label, gamma) for gap in GAPS for label in (0, 1, 2) for gamma in GAMMAS]
TINY = 1e-36  # below it float32 loses digits, then everything


def scalar_loss(logits, label, gamma):
    return focal_loss(logits, label, gamma)


def over_cases(function):
    logits, labels, gammas = (jnp.asarray(np.array(column)) for column in zip(*CASES, strict=True))
    arguments = logits.astype(jnp.float32), labels.astype(jnp.int32), gammas.astype(jnp.float32)
    return np.asarray(jax.jit(jax.vmap(function))(*arguments))


@pytest.mark.parametrize(
    ("order", "function", "rtol"),
    [(0, scalar_loss, 2e-6), (1, jax.grad(scalar_loss), 2e-5), (2, jax.hessian(scalar_loss), 1e-4)],
)
def test_value_gradient_and_hessian_equal_high_precision(order, function, rtol):
    got = over_cases(function)
    assert got.dtype == np.float32
    for case, value in zip(CASES, got, strict=True):
        expected = oracle(*case)[order]
        scale = np.abs(expected).max()  # a Hessian's entries cancel against each other
        np.testing.assert_allclose(value, expected, rtol=rtol, atol=rtol * scale + TINY, err_msg=str(case))


def test_third_derivatives_are_finite_and_right():
    direction = jnp.array([1.0, -0.5, 0.25])

    def third(logits, label, gamma):
        along = lambda t: focal_loss(logits + t * direction, label, gamma)  # noqa: E731
        return jax.grad(jax.grad(jax.grad(along)))(0.0)

    entries = over_cases(jax.jacfwd(jax.hessian(scalar_loss)))
    assert np.isfinite(entries).all()
    for case, value in list(zip(CASES, over_cases(third), strict=True))[::7]:
        expected = directional_third(*case, direction)
        np.testing.assert_allclose(value, expected, rtol=5e-4, atol=1e-5 * np.abs(oracle(*case)[2]).max() + TINY)


def test_hessian_vector_product_of_the_trace_regulariser_is_finite():
    vector = jnp.array([1.0, -1.0, 1.0])

    def curvature(logits, label, gamma):
        gradient = jax.grad(scalar_loss)
        return jnp.vdot(vector, jax.jvp(lambda z: gradient(z, label, gamma), (logits,), (vector,))[1])

    assert np.isfinite(over_cases(jax.grad(curvature))).all()


def test_gamma_zero_is_cross_entropy_bit_for_bit():
    logits = 20 * jax.random.normal(jax.random.key(0), (200, 7))
    labels = jax.random.randint(jax.random.key(1), (200,), 0, 7)
    plain, focal = jax.jit(cross_entropy)(logits, labels), jax.jit(focal_loss)(logits, labels, jnp.float32(0))
    np.testing.assert_array_equal(plain, focal)
    np.testing.assert_allclose(plain, -jax.nn.log_softmax(logits)[jnp.arange(200), labels], rtol=1e-4, atol=1e-5)


def test_ratio_to_cross_entropy_is_the_power_of_one_minus_p():
    logits, labels = jax.random.normal(jax.random.key(2), (2, 5, 4)), jnp.array([[0, 1, 2, 3, 0], [1, 1, 2, 0, 3]])
    p = jnp.take_along_axis(jax.nn.softmax(logits), labels[..., None], axis=-1)[..., 0]
    gamma = jnp.linspace(0, 3, 10).reshape(2, 5)
    got = focal_loss(logits, labels, gamma) / cross_entropy(logits, labels)
    np.testing.assert_allclose(got, (1 - p) ** gamma, rtol=1e-5)


def test_gradient_in_gamma_is_the_loss_times_log_one_minus_p():
    for gamma in (0.0, 2.0):
        got = jax.grad(focal_loss, argnums=2)(jnp.array([17.0, 0.0, -1.0]), 0, gamma)
        p_rest = np.exp(-17) + np.exp(-18)
        np.testing.assert_allclose(got, p_rest ** (gamma + 1) * np.log(p_rest), rtol=1e-5)


def test_bfloat16_and_unsigned_labels_are_computed_in_float32():
    logits = jnp.array([[17.0, 0.0, -1.0]], jnp.bfloat16)
    loss = focal_loss(logits, np.zeros(1, np.uint8), 0.5)
    assert loss.dtype == jnp.float32
    np.testing.assert_allclose(loss, 1.3476e-11, rtol=1e-4)


@pytest.mark.parametrize(("dtype", "classes"), [(np.uint8, 256), (np.uint8, 300), (np.int8, 200)])
def test_labels_of_8_bits_serve_more_classes_than_8_bits_hold(dtype, classes):
    logits = np.random.default_rng(0).normal(size=(2, classes)).astype(np.float32)
    labels = np.array([127, 3])
    for function in (cross_entropy, jax.jit(cross_entropy)):
        np.testing.assert_array_equal(function(logits, labels.astype(dtype)), function(logits, labels))
    np.testing.assert_array_equal(weighted_by_class(np.ones(2), labels.astype(dtype), np.ones(classes)), 1)


def test_mean_losses_of_the_papers_example():
    """The 20 rows of `metrics_dataset` (probabilities in 64ths), with the mean focal loss for gamma 1, 2 and 3."""
    p_true = np.array([40, 60, 63, 24, 48, 21, 32, 56, 10, 62, 32, 48, 2, 30, 52, 40, 24, 50, 58, 47.5]) / 64
    logits = np.stack([np.log(p_true), np.log(1 - p_true)], axis=1).astype(np.float32)
    means = [np.mean(focal_loss(logits, np.zeros(20, np.int32), gamma)) for gamma in (0.0, 1.0, 2.0, 3.0)]
    expected = [0.6577032183962203, 0.43457174603132537, 0.3307039770907831, 0.27188390960406356]
    np.testing.assert_allclose(means, expected, rtol=2e-6)


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
