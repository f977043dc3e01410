"""The epoch that a run ends with: the best on val, of equals the earliest, for each member of a sweep by itself."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from focalgeo import job, records
from focalgeo.config import load_config as config_file
from focalgeo.rows import Metric, Scalar, select
from focalgeo.training import loop
from focalgeo.types import BestEpoch, Predictions, TrainState

CONFIG = Path(__file__).parents[2] / "configs" / "digits.py"


def make_state(value, members=2):
    params = {"w": jnp.full((members, 3), value, jnp.float32)}
    scalar = jnp.zeros(members, jnp.int32)
    state = TrainState(scalar, params, {"mean": jnp.full((members,), value, jnp.float32)}, {}, None, {}, None)
    return state._replace(best=BestEpoch(-jnp.ones(members), jnp.zeros(members), state.params, state.model_state))


def predictions(*right):
    """Of two examples and two members: member i is right on right[i] of them."""
    logits = np.zeros((2, 2, 2), np.float32)
    for member, count in enumerate(right):
        logits[:count, member, 1] = 1.0
        logits[count:, member, 0] = 1.0
    return Predictions(logits, np.array([1, 1]))


def test_the_best_epoch_of_each_member_and_of_equals_the_earliest():
    best = make_state(0.0).best
    for epoch, right in ((1, (1, 0)), (2, (2, 0)), (3, (2, 1))):
        now = make_state(float(epoch))._replace(best=best)
        best = loop.best_after_epoch(now, epoch, predictions(*right))
    chosen = loop.with_best(now._replace(best=best))
    np.testing.assert_array_equal(chosen.best.epoch, [2, 3])
    np.testing.assert_array_equal(chosen.params["w"], [[2] * 3, [3] * 3])
    np.testing.assert_array_equal(chosen.model_state["mean"], [2, 3])


def test_logits_that_are_not_numbers_are_right_of_no_class():
    predicted = predictions(0, 2)
    predicted.logits[:, 0] = np.nan  # whose first largest is class 0
    best = loop.best_after_epoch(make_state(0.0), 1, predicted._replace(labels=np.array([0, 0])))
    np.testing.assert_array_equal(best.accuracy, [0, 0])


def test_what_is_evaluated_is_the_best_epoch_on_val(tmp_path):
    config = config_file(CONFIG, "quick")
    config.model.options.hidden = (8,)
    config.optimizer.update({"epochs": 5, "decay_epochs": (), "learning_rate": 1.0, "select": "best_val"})
    config.evaluation.update({"num_resamples": 2, "temperature_step": 0.5})
    config.curvature.examples = 0
    config.sweep.seed = (0, 1, 2)
    rows = job.run(config, tmp_path / "run")
    on_val = select(records.read_rows(tmp_path / "run"), Scalar, name="accuracy", split="val")
    epochs = []
    for seed in config.sweep.seed:
        by_epoch = {row.epoch: row.value for row in on_val if row.seed == seed}
        (final,) = select(rows, Metric, name="accuracy", split="val", seed=seed, method="uncalibrated")
        (epoch,) = select(rows, Scalar, name="selected_epoch", seed=seed)
        best = max(by_epoch.values())
        assert final.value == pytest.approx(best, abs=1e-6)
        assert epoch.value == min(number for number, value in by_epoch.items() if value == best)
        epochs.append(epoch.value)
    assert min(epochs) < 5  # else the last epoch would have done as well
