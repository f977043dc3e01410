"""Tests of the loss that docs/upstream.md offers to optax, written as optax's tests of its losses are."""
# ruff: noqa: PT009 (assertions are those of unittest, as in optax)

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.test_util as jaxtest
import numpy as np
import optax
from absl.testing import absltest, parameterized
from upstream import (
    MARGINS,
    by_log_probability,
    by_probability,
    errors,
    exact,
    offered,
    rows,
    softmax_focal_loss_with_integer_labels,
)

from focalgeo import losses


class SoftmaxFocalLossWithIntegerLabelsTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.logits = np.array([[2.0, 0.5, -1.0], [0.3, -0.2, 1.2]], dtype=np.float32)
        self.labels = np.array([0, 1])

    @parameterized.parameters(0.0, 0.5, 1.0, 2.0, 5.0)
    def test_values(self, gamma):
        expected = [float(exact(row, label, gamma)[0]) for row, label in zip(self.logits, self.labels, strict=True)]
        computed = jax.jit(softmax_focal_loss_with_integer_labels)(self.logits, self.labels, gamma=gamma)
        np.testing.assert_allclose(computed, expected, rtol=1e-6)

    def test_one_example(self):
        one = softmax_focal_loss_with_integer_labels(self.logits[0], self.labels[0])
        batch = softmax_focal_loss_with_integer_labels(self.logits, self.labels)
        np.testing.assert_allclose(one, batch[0], rtol=1e-6)

    @parameterized.parameters(0, 1, -2)
    def test_axis(self, axis):
        logits = np.random.default_rng(0).normal(size=(4, 3, 5)).astype(np.float32)
        moved = np.moveaxis(logits, axis, -1)
        labels = np.random.default_rng(1).integers(0, moved.shape[-1], moved.shape[:-1])
        np.testing.assert_allclose(
            softmax_focal_loss_with_integer_labels(logits, labels, axis=axis),
            softmax_focal_loss_with_integer_labels(moved, labels),
            rtol=1e-6,
        )

    def test_gamma_zero_is_cross_entropy(self):
        np.testing.assert_allclose(
            softmax_focal_loss_with_integer_labels(self.logits, self.labels, gamma=0.0),
            optax.softmax_cross_entropy_with_integer_labels(self.logits, self.labels),
            rtol=1e-6,
        )

    def test_two_classes_are_the_sigmoid_focal_loss(self):
        log_odds = np.array([-30.0, -3.0, 0.5, 4.0, 20.0], dtype=np.float32)
        logits = np.stack([np.zeros_like(log_odds), log_odds], axis=-1)
        for label in (0, 1):
            labels = np.full(log_odds.shape, label)
            np.testing.assert_allclose(
                softmax_focal_loss_with_integer_labels(logits, labels, gamma=1.5),
                optax.sigmoid_focal_loss(log_odds, labels, gamma=1.5),
                rtol=2e-5,
            )

    def test_gamma_of_each_example(self):
        computed = softmax_focal_loss_with_integer_labels(self.logits, self.labels, gamma=jnp.array([5.0, 3.0]))
        for index, gamma in enumerate((5.0, 3.0)):
            alone = softmax_focal_loss_with_integer_labels(self.logits[index], self.labels[index], gamma=gamma)
            np.testing.assert_allclose(computed[index], alone, rtol=1e-6)

    @parameterized.parameters(0.5, 2.0)
    def test_gradient(self, gamma):
        jaxtest.check_grads(lambda z: offered(z, self.labels, gamma), (self.logits,), order=2, rtol=2e-2)

    @parameterized.product(gamma=(0.5, 2.0), margin=MARGINS)
    def test_float32_is_right_where_probabilities_saturate(self, gamma, margin):
        self.assertLess(max(errors(offered, margin, gamma)), 5e-6)

    def test_masked_class_counts_for_nothing(self):
        masked = np.concatenate([self.logits, np.full((2, 1), -np.inf, np.float32)], axis=-1)
        gradient = jax.grad(lambda z: jnp.sum(offered(z, self.labels, 2.0)))
        np.testing.assert_allclose(gradient(masked)[:, :3], gradient(self.logits), rtol=1e-6)
        np.testing.assert_array_equal(gradient(masked)[:, 3], 0)


class WhyTest(parameterized.TestCase):
    @parameterized.parameters(by_probability, by_log_probability)
    def test_forms_by_probability_are_wrong_there(self, loss):
        of_loss, of_gradient = errors(loss, 20, 0.5)
        self.assertGreater(of_loss, 0.9)
        self.assertTrue(np.isnan(of_gradient))

    @parameterized.parameters(0, 15, -10)
    def test_offered_is_the_loss_of_focalgeo(self, margin):
        logits, labels = rows(margin)
        np.testing.assert_allclose(offered(logits, labels, 2.0), losses.focal_loss(logits, labels, 2.0), rtol=1e-5)

    def test_table(self):
        text = (Path(__file__).parents[2] / "docs" / "upstream.md").read_text()
        table = re.findall(r"^\| (\d\.\d) \| (-?\d+) \|.*\| (\S+), (\S+) \|$", text, re.MULTILINE)
        self.assertLen(table, 2 * len(MARGINS))
        for gamma, margin, *stated in table:
            for number, now in zip(stated, errors(offered, int(margin), float(gamma)), strict=True):
                self.assertLess(now, 3 * float(number) + 1e-6)


if __name__ == "__main__":
    absltest.main()
