"""The one door: what it lets through as it is, and one line of refusal for each class of fault."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest

from focalgeo import checks
from focalgeo.types import InputError

LOG_PROBS = np.log(np.float32([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [1 / 3, 1 / 3, 1 / 3]]))
LABELS = np.int32([0, 1, 2])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("classes", [2, 1000])
def test_log_probabilities_of_every_float_type_are_let_through(dtype, classes):
    logits = 10 * np.random.default_rng(0).normal(size=(50, classes))
    rows = np.concatenate([logits, np.zeros((1, classes)), np.where(np.arange(classes) == 1, 0, -np.inf)[None]])
    log_probs = np.asarray(jax.nn.log_softmax(jnp.asarray(rows, jnp.float32))).astype(dtype)
    examples = checks.examples(log_probs, np.zeros(52, np.int64))
    assert examples.rows.dtype == examples.weight.dtype == jnp.float32
    np.testing.assert_array_equal(examples.weight, 1)


def test_lists_masks_and_what_a_mask_leaves_out_are_let_through():
    np.testing.assert_array_equal(checks.examples(LOG_PROBS.tolist(), [0, 1, 2], [True, True, False]).weight, [1, 1, 0])
    spoiled = np.where([[False], [False], [True]], np.nan, LOG_PROBS)
    labels, weights = np.int8([0, 1, -1]), np.float64([2, 1, 0])
    np.testing.assert_array_equal(checks.examples(spoiled, labels, weights=weights).weight, [2, 1, 0])
    assert np.isfinite(checks.predicted_logits(spoiled, labels, weights=weights).rows).all()
    with pytest.raises(InputError, match="weights is -2: give a finite value of 0"):
        checks.examples(LOG_PROBS, LABELS, weights=-weights)


@pytest.mark.parametrize(
    ("log_probs", "labels", "mask", "says"),
    [
        (LOG_PROBS, LABELS[:, None], None, r"labels for log_probs .* has shape \(3, 1\) but expected"),
        (LOG_PROBS, LABELS + 1, None, r"labels\[2\] is 3: give labels from 0 to 2"),
        (LOG_PROBS, LABELS + np.int64(2**32), None, r"labels\[0\] is 4294967296"),
        (LOG_PROBS[:, :1], LABELS, None, "log_probs .*: give two classes or more"),
        (LOG_PROBS[:0], LABELS[:0], None, "empty: give at least one example"),
        ([[0.0], [1.0, 2.0]], LABELS, None, "log_probs are no array"),
        ("abc", LABELS, None, "log_probs are <U3: give numbers"),
        (2 * LOG_PROBS + 9, LABELS, None, r"log_probs are logs of numbers .*: of logits give jax.nn.log_softmax"),
        (LOG_PROBS, LABELS, [True, True], r"mask .* has shape \(2,\)"),
        (LOG_PROBS, LABELS, [1.0, 0.5, 1.0], "mask holds float64: give truth values, or .* as weights="),
    ],
)
def test_a_fault_of_predictions_is_one_line(log_probs, labels, mask, says):
    with pytest.raises(InputError, match=says) as raised:
        checks.examples(log_probs, labels, mask)
    assert "\n" not in str(raised.value)


N, CLASSES = 40, 12
CLASS = np.arange(N) % CLASSES
ONE_HOT = np.eye(CLASSES, dtype=int)[CLASS]
PROBS = np.random.default_rng(0).dirichlet(np.ones(CLASSES), N)
ADVICE = [  # by what the values are: a hint that is right for one cause does harm for another
    (ONE_HOT | ONE_HOT[0], "multi-label"),
    (2 * ONE_HOT - 1, "multi-label"),
    (0.9 * ONE_HOT + 0.1 / CLASSES, "soft labels"),
    (CLASS[:, None], "give labels[..., 0]"),
    (CLASS[:CLASSES], "classes first: give their transpose, 12 rows of 40 classes"),
    (CLASS[:-1], "give one class number for each row, [40]"),
    (np.array(["cat", "dog"])[CLASS % 2], "of names in sorted order"),
    (np.where(CLASS == 2, np.nan, CLASS), "leave out the 4 rows without a label"),
    (CLASS.astype(float), "give labels.astype(int)"),
    (CLASS + 0.5, "fractions are no classes"),
    (1 + CLASS, "give labels - 1"),
    (np.where(CLASS == 2, 255, CLASS).astype(np.uint8), "if 255 stands for no label, leave out these 4 rows"),
    (CLASS - 3, "give labels in the order of the columns"),
]


@pytest.mark.parametrize(("labels", "says"), ADVICE)
def test_advice_on_labels_is_by_what_they_hold(labels, says):
    assert says in checks.label_advice(labels, (N, CLASSES))


@pytest.mark.parametrize(
    ("probs", "says"),
    [
        (np.log(PROBS), "these are logarithms"),
        (100 * PROBS, "of percents give probs / 100"),
        (7 * ONE_HOT, "of rows that all sum to 7 give probs / 7"),
        (np.sqrt(PROBS), "as sigmoid and one-vs-rest scores have"),
        (3 * PROBS - 0.1, "if these are logits"),
    ],
)
def test_advice_on_probabilities_is_by_what_they_hold(probs, says):
    assert says in checks.probability_advice(probs)


@pytest.mark.parametrize(
    "labels",
    [pandas.Series(LABELS, dtype="Int64"), pandas.Categorical(LABELS), pandas.Series(LABELS).astype("category")],
)
def test_types_of_other_libraries_are_numbers(labels):
    found = checks.examples(LOG_PROBS.astype(np.longdouble), labels, weights=pandas.Series([1, 1, 0], dtype="Float64"))
    for got, expected in zip(found, checks.examples(LOG_PROBS, LABELS, weights=[1, 1, 0]), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_of_traced_values_shapes_and_types_are_asked():
    weight = jax.jit(lambda *arguments: checks.examples(*arguments).weight)
    np.testing.assert_array_equal(weight(LOG_PROBS * np.nan, LABELS, np.array([True, False, False])), [1, 0, 0])
    with pytest.raises(InputError, match=r"labels .* shape"):
        weight(LOG_PROBS, LABELS[:, None])
    with pytest.raises(InputError, match=r"labels .* float32"):
        jax.vmap(weight)(LOG_PROBS[None], np.float32(LABELS)[None])


def test_logits_are_finite():
    with pytest.raises(InputError, match="logits of 1 examples are not finite, the first in row 1"):
        checks.predicted_logits(np.where(np.arange(3)[:, None] == 1, np.inf, LOG_PROBS), LABELS)
    with pytest.raises(InputError, match="the mask leaves no example"):
        checks.predicted_logits(LOG_PROBS, LABELS, np.zeros(3, bool))
    below = np.float32([[-0.2, 0.6, 0.6], [0.3, 0.3, 0.4]])  # rows sum to 1, but not all of them lie in [0, 1]
    checks.predicted_logits(below, np.int32([0, 1]))


def test_whole_numbers_keys_and_choices():
    assert checks.count("num_bins", np.int64(3), 1, 9) == 3
    for value in (0, 10**5000, 1.5, True):
        with pytest.raises(InputError, match=r"num_bins is .*: give a whole number, 1 to 10000"):
            checks.check_bins(value)
    with pytest.raises(InputError, match=r"num_bins is .*Tracer"):
        jax.jit(checks.check_bins)(3)
    for key in (jax.random.key(0), jax.random.PRNGKey(0), np.asarray(jax.random.PRNGKey(0))):
        assert checks.prng_key(key) is key
    assert checks.prng_key(np.int64(3)) == jax.random.key(3)
    for key in (0.0, True, np.int32([0, 1]), jax.random.split(jax.random.key(0))):
        with pytest.raises(InputError, match=r"key is .*, not one PRNG key"):
            checks.prng_key(key)
    with pytest.raises(InputError, match=r"num_classes is 2\.0: choose one of 2, 3"):
        checks.check_choice("num_classes", 2.0, (2, 3))


@pytest.mark.parametrize("value", [np.inf, np.nan, [0.5, 2e9, -3]])
def test_intervals_hold_finite_numbers_alone(value):
    with pytest.raises(InputError, match=r"gamma is .*: give a finite value of 0 or more"):
        checks.check_interval("gamma", value, 0)
    with pytest.raises(InputError, match=r"gamma is .*: give a finite value above -1"):
        checks.check_above("gamma", value, -1)


def test_rows_of_probabilities_sum_to_one():
    checks.check_distribution("rows", [[0.5, 0.5], [1, 0]])
    for rows in ([0.5, 0.4], [1.5, -0.5]):
        with pytest.raises(InputError, match=r"rows (is|sums)"):
            checks.check_distribution("rows", rows)


def test_numbers_that_do_not_broadcast_are_refused():
    with pytest.raises(InputError, match=r"a has shape \(2,\), b has shape \(3,\): give shapes that broadcast"):
        checks.broadcast(a=np.ones(2), b=np.ones(3))
    with pytest.raises(InputError, match="gamma has shape"):
        checks.number_array("gamma", np.ones(2), (3,))
