"""Streamed metrics as a class with update, compute and reset, as in torchmetrics: python examples/metric_class.py."""

import jax
import numpy as np

from focalgeo.calibration import streaming


class CalibrationMetrics:
    def __init__(self, names, num_classes, num_bins=15):
        made = streaming.make(names, num_classes, num_bins)
        self.init, self.step, self.merged, self.values = made.init, jax.jit(made.update), made.merge, made.compute
        self.reset()

    def reset(self):
        self.state = self.init()

    def update(self, logits, labels):
        self.state = self.step(self.state, jax.nn.log_softmax(np.asarray(logits)), np.asarray(labels))

    def merge(self, other):
        self.state = self.merged(self.state, other.state)

    def compute(self):
        return {name: float(value) for name, value in self.values(self.state).items()}


metrics, draws = CalibrationMetrics(("accuracy", "ece", "nll"), 10), np.random.default_rng(0)
for _ in range(100):
    logits = 2 * draws.normal(size=(64, 10)).astype(np.float32)
    metrics.update(logits, (logits + draws.gumbel(size=(64, 10))).argmax(axis=1))  # labels drawn from the probabilities
print(", ".join(f"{name} {value:.4f}" for name, value in metrics.compute().items()))
