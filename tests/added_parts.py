"""What examples/adding promises, in a copy with all its diffs: a job uses the parts that they add, a question runs."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments import question
from focalgeo import job, losses
from focalgeo.config import default_config
from focalgeo.rows import Fit, Metric, select

logits, labels = 3 * np.random.default_rng(0).normal(size=(6, 4)).astype("float32"), np.arange(6) % 4
p = jax.nn.softmax(logits)[np.arange(6), labels]
found = losses.make_loss("poly_loss")(logits, labels, {"poly_weight": 2.0})
np.testing.assert_allclose(found, 2 * (1 - p) - jnp.log(p), rtol=1e-5)

config = default_config()
config.data.name = "iris"
config.loss.name, config.loss.poly_weight = "poly_loss", 2.0
config.model.name, config.model.options.width = "wide_mlp", 48
config.optimizer.epochs, config.optimizer.decay_epochs = 2, ()
config.evaluation.methods, config.evaluation.num_resamples = ("temperature_scaling", "mixing"), 20
config.evaluation.metrics = ("nll", "brier", "root_brier")
config.curvature.max_products = config.curvature.num_probes = 4
config.curvature.density_probes = 0
rows = job.run(config, "run")

(share,) = select(rows, Fit, name="share")
assert 0 <= share.value <= 0.5
for method, criterion in (("uncalibrated", None), ("temperature_scaling", "nll"), ("mixing", "nll")):
    (brier,) = select(rows, Metric, split="test", method=method, criterion=criterion, name="brier")
    (root,) = select(rows, Metric, split="test", method=method, criterion=criterion, name="root_brier")
    np.testing.assert_allclose(root.value**2, brier.value, rtol=1e-5)
    assert root.low < root.value < root.high
assert "Mixing with uniform" in Path("run/report.html").read_text()

question.answer(question.load("longer_training"), ["--store", "--seeds=2"])
folder = Path("experiments/longer_training")
assert "| focalgeo | after longer training a higher temperature is fitted | " in (folder / "details.md").read_text()
assert "| 10 epochs | 2 | " in (folder / "README.md").read_text()
assert (folder / "figures" / "temperature.png").exists()
