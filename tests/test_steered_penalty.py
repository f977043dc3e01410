"""The trace penalty whose weight is steered to a target of the trace: the rule, what it measures, reach, resumption."""

import shutil
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from focalgeo import losses, records
from focalgeo.config import load_config
from focalgeo.curvature import dense_hessian
from focalgeo.job import measurement, preparation, training
from focalgeo.rows import Scalar, select
from focalgeo.training import penalties
from focalgeo.training.step import member_state

ROOT = Path(__file__).parents[1]
BOUND = 0.005
TARGETS = (1.0, 10.0, 0.0)  # of the members; the last is plain


def steered(**loss):
    config = load_config(ROOT / "configs" / "digits.py")
    config.data.update({"train_size": 256, "val_size": 50, "test_size": 50})
    config.model.options.hidden = (16,)
    config.loss.update({"name": "cross_entropy", "trace_bound": BOUND, "trace_of": "hessian"} | loss)
    config.optimizer.update({"epochs": 80, "decay_epochs": (30, 70), "batch_size": 32, "clip_norm": 1.0})
    config.curvature.update({"examples": 256, "batch_size": 100, "num_probes": 20})
    config.checkpoint.update({"every": 90, "keep": 10})
    config.log_every = 1000
    config.sweep.update({"trace_target": TARGETS, "at_once": 3})
    return config


def train(config, workdir):
    """Member states after training, by the loop of a job."""
    config = preparation.check_config(config)
    prepared, members = preparation.prepare(config), preparation.make_members(config)
    predict, state = training.make_prediction(config, prepared.model), preparation.initial_state(prepared, members)
    workdir.mkdir(exist_ok=True)
    (workdir / "manifest.json").write_text("{}")
    outcome, _ = training.train(workdir, prepared, members, state, predict)
    return prepared, outcome.state


def exact_trace(prepared, state):
    """Of the Hessian of mean cross-entropy on all of train, of one member."""
    flat, unravel = ravel_pytree(state.params)
    (batch,) = preparation.evaluation_batches(prepared.config, prepared.dataset.train)

    def loss(flat):
        per_example = losses.cross_entropy(prepared.model.apply({"params": unravel(flat)}, batch.x), batch.y)
        return jnp.sum(jnp.where(batch.mask, per_example, 0)) / np.sum(batch.mask, dtype=np.float32)

    return float(jnp.trace(dense_hessian(loss, flat)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Three members of the targets."""
    workdir = tmp_path_factory.mktemp("steered")
    return workdir, *train(steered(), workdir)


def test_a_target_is_reached_up_and_down_and_a_member_without_one_is_plain(whole):
    workdir, prepared, states = whole
    below, above, plain = (exact_trace(prepared, member_state(states, index)) for index in range(3))
    np.testing.assert_allclose([below, above], TARGETS[:2], rtol=0.2)
    assert 1.5 * below < plain < above / 1.5
    weights = states.loss_values["trace_penalty"]
    assert np.all(np.abs(weights) <= np.float32(BOUND))
    assert weights[2] == 0
    rows = records.read_rows(workdir)
    weights = select(rows, Scalar, name="trace_penalty")
    assert len(weights) == len(select(rows, Scalar, name="penalised_trace")) == 3 * 80
    assert min(row.value for row in weights) < 0 < max(row.value for row in weights)


def test_a_run_that_goes_on_from_a_checkpoint_within_an_epoch_ends_with_the_same_bits(whole, tmp_path):
    workdir, _, states = whole
    shutil.copytree(workdir, tmp_path / "copy")
    for folder in (tmp_path / "copy" / "checkpoints").glob("[0-9]*"):
        if int(folder.name) > 90:
            shutil.rmtree(folder)
    assert [folder.name for folder in (tmp_path / "copy" / "checkpoints").glob("[0-9]*")] == ["90"]
    chex.assert_trees_all_equal(train(steered(), tmp_path / "copy")[1], states)


@pytest.mark.parametrize("of", ["hessian", "gauss_newton", "scale_free"])
def test_what_is_measured_is_the_trace_that_the_penalty_is_of(whole, of):
    config = steered(trace_of=of)
    config.curvature.num_probes = 1000
    prepared, states = whole[1]._replace(config=preparation.check_config(config)), whole[2]
    measured = measurement.make_trace(prepared)(states, 5)
    for index in range(3):
        state = member_state(states, index)
        if of == "scale_free":
            (batch,) = preparation.evaluation_batches(config, prepared.dataset.train)
            flat, unravel = ravel_pytree(state.params)

            def loss(scale, flat=flat, unravel=unravel, batch=batch):
                logits = prepared.model.apply({"params": unravel(flat * scale)}, batch.x)
                return jnp.sum(jnp.where(batch.mask, losses.cross_entropy(logits, batch.y), 0)) / np.sum(
                    batch.mask, dtype=np.float32
                )

            expected = float(jnp.trace(dense_hessian(loss, jnp.ones_like(flat))))
        else:  # equal, as the logits of ReLU layers are linear in each
            expected = exact_trace(prepared, state)
        np.testing.assert_allclose(measured[index], expected, rtol=0.1)


def test_the_weight_gains_by_distance_and_change_within_its_bound():
    def after(weight, trace, before, target, bound=0.1):
        values = {"trace_penalty": weight, "trace": trace, "trace_target": target, "trace_bound": bound}
        values = jax.tree.map(jnp.float32, values)
        return float(penalties.steered_weight(values, before=jnp.float32(before)))

    np.testing.assert_allclose(after(0, 2, 2, 1), 0.02 * np.log(2), rtol=1e-5)
    np.testing.assert_allclose(after(0.01, 1, 2, 1), 0.01 - 0.05 * np.log(2), rtol=1e-5)
    np.testing.assert_allclose(after(0, 100, 100, 1), 0.02, rtol=1e-5)  # far away the distance is 1
    np.testing.assert_allclose([after(0, trace, trace, 1) for trace in (0.01, 0, -3)], -0.02, rtol=1e-5)
    np.testing.assert_allclose([after(0.099, 9, 9, 1), after(-0.099, 0.1, 0.1, 1)], [0.1, -0.1], rtol=1e-5)
    assert after(0.5, 9, 1, 0) == 0.5  # no target
    assert after(0.0, 1, 1, 1) == 0
