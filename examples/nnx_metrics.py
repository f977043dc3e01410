"""Streamed metrics as a flax NNX metric, whose state nnx.jit carries: python examples/nnx_metrics.py."""

import jax
from flax import nnx

from focalgeo.calibration import streaming


class CalibrationMetrics(nnx.Metric):
    def __init__(self, names, num_classes):
        self.of = streaming.make(names, num_classes)
        self.sums = nnx.metrics.MetricState(self.of.init())

    def reset(self):
        self.sums.set_value(self.of.init())

    def update(self, *, logits, labels, **options):
        self.sums.set_value(self.of.update(self.sums.get_value(), jax.nn.log_softmax(logits), labels, **options))

    def compute(self):
        return self.of.compute(self.sums.get_value())


metrics = CalibrationMetrics(("accuracy", "ece", "nll"), 10)
step = nnx.jit(lambda metrics, logits, labels: metrics.update(logits=logits, labels=labels))
for i in range(100):
    first, second = jax.random.split(jax.random.PRNGKey(i))
    logits = 2 * jax.random.normal(first, (64, 10))
    step(metrics, logits, jax.random.categorical(second, logits))  # labels drawn from the probabilities: calibrated
print(", ".join(f"{name} {value:.4f}" for name, value in metrics.compute().items()))
