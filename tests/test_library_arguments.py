"""Checks of arguments: what they let through as it is, what they refuse in one line, what they mark where traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focalgeo import arguments
from focalgeo.types import InputError

LOG_PROBS = np.log(np.float32([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [1 / 3, 1 / 3, 1 / 3]]))
LABELS = np.int32([0, 1, 2])


@pytest.mark.parametrize("dtype", [np.longdouble, np.float64, np.float32, jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_log_probabilities_of_every_float_type_are_let_through(dtype, classes):
    logits = 10 * np.random.default_rng(0).normal(size=(50, classes))
    rows = np.concatenate([logits, np.zeros((1, classes)), np.where(np.arange(classes) == 1, 0, -np.inf)[None]])
    log_probs = np.asarray(jax.nn.log_softmax(jnp.asarray(rows, jnp.float32))).astype(dtype)
    found = arguments.examples(log_probs, np.zeros(52, np.int64))
    assert found.log_probs.dtype == found.weight.dtype == jnp.float32
    np.testing.assert_array_equal(found.weight, 1)


def test_lists_masks_and_what_a_mask_leaves_out_are_let_through():
    given = arguments.examples(LOG_PROBS.tolist(), [0, 1, 2], [True, True, False])
    np.testing.assert_array_equal(given.weight, [1, 1, 0])
    spoiled = np.where([[False], [False], [True]], np.nan, LOG_PROBS)
    found = arguments.examples(spoiled, np.int8([0, 1, -1]), np.float64([2, 1, 0]))
    np.testing.assert_array_equal(found.weight, [2, 1, 0])


@pytest.mark.parametrize(
    ("log_probs", "labels", "mask", "says"),
    [
        (LOG_PROBS, LABELS[:, None], None, r"labels have shape \(3, 1\), log_probs \(3, 3\): .* labels\[:, 0\]"),
        (LOG_PROBS, np.eye(3), None, r"labels have shape \(3, 3\), .* labels.argmax\(-1\)"),
        (LOG_PROBS, LABELS[:2], None, r"labels have shape \(2,\), log_probs \(3, 3\): give one label for each row"),
        (LOG_PROBS, np.float32(LABELS), None, "labels are float32: give class numbers as integers"),
        (LOG_PROBS, LABELS > 0, None, "labels are bool: give class numbers"),
        (LOG_PROBS, LABELS + 1, None, "labels run from 1 to 3: subtract 1"),
        (LOG_PROBS, LABELS - 1, None, r"labels\[0\] is -1: with 3 classes give labels from 0 to 2"),
        (LOG_PROBS, LABELS + np.int64(2**32), None, r"labels\[0\] is 4294967296: with 3 classes"),
        (LOG_PROBS[0], LABELS, None, r"log_probs have shape \(3,\): give \[examples, classes\]"),
        (LOG_PROBS[:, :1], LABELS, None, "log_probs have one class, .*: give two or more"),
        (np.int32(LOG_PROBS), LABELS, None, "log_probs are int32: give log-probabilities as floats"),
        ([[0.0], [1.0, 2.0]], LABELS, None, "log_probs are no array"),
        ("abc", LABELS, None, "log_probs are <U3: give numbers"),
        (2 * LOG_PROBS + 9, LABELS, None, "log_probs hold 8.55.*: of logits give jax.nn.log_softmax"),
        (np.exp(LOG_PROBS), LABELS, None, "log_probs hold 0.8: .* of probabilities calibration.log_probabilities"),
        (LOG_PROBS - 1, LABELS, None, r"log_probs\[0\] are the logs of numbers that sum to 0.3679, not to 1"),
        (LOG_PROBS, LABELS, [1, 1], r"mask has shape \(2,\), labels \(3,\)"),
        (LOG_PROBS, LABELS, [1.0, -1.0, 1.0], "mask holds -1.0: give truth values, or counts"),
    ],
)
def test_what_is_not_right_is_refused_in_one_line(log_probs, labels, mask, says):
    with pytest.raises(InputError, match=says) as raised:
        arguments.examples(log_probs, labels, mask)
    assert "\n" not in str(raised.value)


def test_where_values_are_traced_weights_are_nan_and_shapes_are_still_refused():
    weight = jax.jit(lambda *given: arguments.examples(*given).weight)
    rows = LOG_PROBS + np.float32([[0], [0.1], [np.nan]])
    np.testing.assert_array_equal(weight(rows, LABELS), [1, np.nan, np.nan])
    np.testing.assert_array_equal(weight(rows, LABELS, np.array([True, False, False])), [1, 0, 0])
    np.testing.assert_array_equal(weight(LOG_PROBS, np.int32([3, -1, 2])), [np.nan, np.nan, 1])
    np.testing.assert_array_equal(weight(LOG_PROBS, LABELS, np.float32([-1, np.inf, 2])), [np.nan, np.nan, 2])
    with pytest.raises(InputError, match="labels have shape"):
        weight(LOG_PROBS, LABELS[:, None])
    with pytest.raises(InputError, match="labels are float32"):
        jax.vmap(weight)(LOG_PROBS[None], np.float32(LABELS)[None])


def test_whole_numbers_keys_and_choices():
    assert arguments.count("num_bins", np.int64(3), 1, 9) == 3
    for value, says in ((0, "give 1 or more"), (10**6, "at most 10000, a table"), (1.5, "1.5: give a whole number")):
        with pytest.raises(InputError, match=f"num_bins is .*{says}"):
            arguments.check_bins(value)
    with pytest.raises(InputError, match="num_bins is 10000 for 10000000 examples: give at most 429"):
        arguments.check_bins(10_000, 10**7)
    with pytest.raises(InputError, match="num_bins is traced"):
        jax.jit(arguments.check_bins)(3)
    for key in (jax.random.key(0), jax.random.PRNGKey(0), np.asarray(jax.random.PRNGKey(0))):
        arguments.check_key(key)
    for key in (0, None, np.int32([0, 1]), jax.random.split(jax.random.key(0))):
        with pytest.raises(InputError, match=r"key is .*, not a PRNG key|several keys"):
            arguments.check_key(key)
    with pytest.raises(InputError, match=r"num_classes is 2\.0: choose one of 2, 3"):
        arguments.check_choice("num_classes", 2.0, (2, 3))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, -1, [0.5, 2e9, -3]])
def test_intervals_hold_finite_numbers_alone(value):
    with pytest.raises(InputError, match=r"gamma is .*: give a finite value of 0 or more"):
        arguments.check_interval("gamma", value, 0, np.inf)
    with pytest.raises(InputError, match=r"gamma is .*: give a finite value above -1"):
        arguments.check_above("gamma", value, -1)
    assert not np.asarray(arguments.in_interval(jnp.float32(value), 0, np.inf)).all()
