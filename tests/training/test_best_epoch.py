"""The epoch that a run ends with: the best on val, of equals the earliest, for each member of a sweep by itself."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focalgeo import job, records
from focalgeo.config import load_config as config_file
from focalgeo.rows import Metric, Scalar, select
from focalgeo.training import best_epoch
from focalgeo.types import InputError, Predictions, TrainState

CONFIG = Path(__file__).parents[2] / "configs" / "digits.py"


def make_state(value, members=2):
    params = {"w": jnp.full((members, 3), value, jnp.float32)}
    scalar = jnp.zeros(members, jnp.int32)
    return TrainState(scalar, params, {"mean": jnp.full((members,), value, jnp.float32)}, {}, None, {}, None)


def predictions(*right):
    """Of two examples and two members: member i is right on right[i] of them."""
    logits = np.zeros((2, 2, 2), np.float32)
    for member, count in enumerate(right):
        logits[:count, member, 1] = 1.0
        logits[count:, member, 0] = 1.0
    return Predictions(logits, np.array([1, 1]), np.ones(2, bool))


def test_the_best_epoch_of_each_member_and_of_equals_the_earliest():
    state = make_state(0.0)
    best = best_epoch.before_training(state.params, state.model_state)
    best = best._replace(accuracy=jnp.full(2, -1.0), epoch=jnp.zeros(2))
    for epoch, right in ((1, (1, 0)), (2, (2, 0)), (3, (2, 1))):
        now = make_state(float(epoch))._replace(best=best)
        best = best_epoch.after_epoch(now, epoch, predictions(*right))
    chosen = best_epoch.selected(now._replace(best=best))
    np.testing.assert_array_equal(chosen.best.epoch, [2, 3])
    np.testing.assert_array_equal(chosen.params["w"], [[2] * 3, [3] * 3])
    np.testing.assert_array_equal(chosen.model_state["mean"], [2, 3])


def test_logits_that_are_not_numbers_are_right_of_no_class():
    state = make_state(0.0)
    best = best_epoch.before_training(state.params, state.model_state)
    best = best._replace(accuracy=jnp.zeros(2), epoch=jnp.zeros(2))
    predicted = predictions(0, 2)
    predicted.logits[:, 0] = np.nan  # whose first largest is class 0
    best = best_epoch.after_epoch(state._replace(best=best), 1, predicted._replace(labels=np.array([0, 0])))
    np.testing.assert_array_equal(best.accuracy, [0, 0])
    with pytest.raises(InputError, match="predicted holds no example of val"):
        best_epoch.after_epoch(state._replace(best=best), 1, jax.tree.map(lambda leaf: leaf[:0], predicted))


@pytest.fixture(scope="module")
def config():
    config = config_file(CONFIG, "quick")
    config.model.options.hidden = (8,)
    config.optimizer.update({"epochs": 5, "decay_epochs": (), "learning_rate": 1.0, "select": "best_val"})
    config.evaluation.update({"num_resamples": 2, "temperature_step": 0.5})
    config.curvature.update({"examples": 16, "max_products": 2, "num_probes": 4, "density_probes": 0, "every": 2})
    config.sweep.seed = (0, 1, 2)
    return config


def test_what_is_evaluated_is_the_best_epoch_on_val(config, tmp_path):
    rows = job.run(config, tmp_path / "run")
    every = records.read_rows(tmp_path / "run")
    epochs = []
    for seed in config.sweep.seed:
        on_val = select(every, Scalar, name="accuracy", split="val", seed=seed)
        by_epoch = {row.epoch: row.value for row in on_val}
        (final,) = (
            row.value for row in select(every, Metric, name="accuracy", split="val", seed=seed, method="uncalibrated")
        )
        (epoch,) = (row.value for row in select(rows, Scalar, name="selected_epoch", seed=seed))
        assert final == pytest.approx(max(by_epoch.values()), abs=1e-6)
        assert epoch == min(number for number, value in by_epoch.items() if value == max(by_epoch.values()))
        epochs.append(epoch)
    assert min(epochs) < 5  # else the last epoch would have done as well


def test_a_best_epoch_that_is_the_last_has_its_number(config, tmp_path):
    short = config.copy_and_resolve_references()
    short.optimizer.update({"epochs": 1, "learning_rate": 0.1})
    short.sweep.seed = ()
    short.curvature.examples = 0
    rows = job.run(short, tmp_path / "run")
    assert [row.value for row in select(rows, Scalar, name="selected_epoch")] == [1]


def test_unknown_choices_are_named(config, tmp_path):
    for field, value in (("select", "best"), ("reduction", "total")):
        wrong = config.copy_and_resolve_references()
        wrong.optimizer[field] = value
        with pytest.raises(InputError, match=f"config.optimizer.{field} is {value}: it must be"):
            job.run(wrong, tmp_path / "run")
