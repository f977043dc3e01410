"""Diagnostics between epochs of members that train together: at which epochs, of which members and examples."""

import runpy
from pathlib import Path

import jax
import msgspec
import numpy as np
import pytest
from ml_collections import ConfigDict, FrozenConfigDict

from focalgeo import calibration, losses
from focalgeo.job import measurement, preparation
from focalgeo.job.preparation import evaluation_batches, make_members
from focalgeo.rows import Diagnostic, ReliabilityBin, Row, select
from focalgeo.types import Split

CONFIG = Path(__file__).parent.parent / "configs" / "digits.py"
MEANS = {"nll", "entropy", "true_class_probability", "gradient_norm"}


def config_with(**settings):
    config = runpy.run_path(str(CONFIG))["get_config"]("quick")
    config.optimizer.epochs = 5
    config.evaluation.batch_size = 64
    config.sweep.gamma = (0.0, 1.0, 3.0)
    config.diagnostics = ConfigDict({"every": 2, "splits": ("train", "val"), "examples": 100, "num_bins": 25})
    config.diagnostics.update(settings)
    return FrozenConfigDict(config)


@pytest.fixture(scope="module")
def prepared():
    return preparation.prepare(config_with())


def groups_after(prepared, epoch, *, frozen=(), at_once=3):
    """Members as initialised, that claim to have trained so long, in groups of `at_once`."""
    members = make_members(config_with())
    states = preparation.initial_state(prepared, members)
    step = np.full_like(states.step, epoch * prepared.plan.steps_per_epoch)
    states = states._replace(step=step, frozen=np.isin(np.arange(3), frozen))
    cut = lambda start: jax.tree.map(lambda leaf: leaf[start : start + at_once], states)  # noqa: E731
    return members, [cut(start) for start in range(0, 3, at_once)]


def rows_after(prepared, epoch, *, frozen=(), at_once=3, **settings):
    members, groups = groups_after(prepared, epoch, frozen=frozen, at_once=at_once)
    return measurement.diagnostics_of_epoch(prepared._replace(config=config_with(**settings)), members, groups)


@pytest.mark.parametrize(
    ("epoch", "every", "due"), [(1, 2, False), (2, 2, True), (5, 2, True), (4, 0, False), (5, 0, False)]
)
def test_rows_are_of_every_so_many_epochs_and_of_the_last(prepared, epoch, every, due):
    assert bool(rows_after(prepared, epoch, every=every)) == due


def test_each_member_has_its_rows_on_each_split(prepared):
    rows = rows_after(prepared, 2)
    for gamma in (0.0, 1.0, 3.0):
        own = select(rows, Row, gamma=gamma)
        assert {row.seed for row in own} == {0}
        for split in ("train", "val"):
            assert {row.name for row in own if row.split == split} == {
                *MEANS,
                "gradient_norm_histogram",
                "true_class_probability_histogram",
                "reliability",
            }
        (norm,) = [row for row in own if row.name == "weight_norm"]
        assert norm == Diagnostic("weight_norm", norm.value, gamma=gamma, seed=0)
        assert {row.n for row in own if row.name in MEANS and row.outcome is None} == {100}
    assert {(row.epoch, row.step) for row in rows} == {(None, None)}  # the loop adds when
    assert {row.method for row in select(rows, ReliabilityBin)} == {None}


def test_the_numbers_are_those_of_the_network_and_the_members_own_loss(prepared):
    _, (group,) = groups_after(prepared, 2)
    rows = rows_after(prepared, 2, splits=("val",))
    val = prepared.dataset.val
    chosen = np.arange(100) * len(val.y) // 100
    few = Split(val.x[chosen], val.y[chosen])
    params = jax.tree.map(lambda leaf: leaf[2], group.params)
    batches = list(evaluation_batches(config_with(), few))
    x = np.concatenate([batch.x[batch.mask] for batch in batches])
    logits = prepared.model.apply({"params": params}, x)
    mine = {(row.name, row.outcome): row.value for row in select(rows, Diagnostic, gamma=3.0)}
    log_probs = calibration.temperature_scaling(logits, 1.0)
    assert mine["nll", None] == pytest.approx(float(calibration.nll(log_probs, few.y)), rel=1e-5)

    def loss_of(params, x, y):
        return losses.focal_loss(prepared.model.apply({"params": params}, x[None])[0], y, 3.0)

    dense = jax.jit(jax.vmap(jax.grad(loss_of), (None, 0, 0)))(params, x, few.y)
    kernel = np.asarray(dense["Dense_2"]["kernel"])
    assert mine["gradient_norm", None] == pytest.approx(np.linalg.norm(kernel, axis=(1, 2)).mean(), rel=1e-4)
    assert mine["weight_norm", None] == pytest.approx(np.linalg.norm(params["Dense_2"]["kernel"]), rel=1e-5)


def test_frozen_members_have_none_and_groups_do_not_matter(prepared):
    rows = rows_after(prepared, 5, frozen=(1,))
    assert {row.gamma for row in rows} == {0.0, 3.0}
    assert by_name(rows) == pytest.approx(by_name(rows_after(prepared, 5, frozen=(1,), at_once=1)), rel=1e-5)


def by_name(rows):
    found = map(msgspec.to_builtins, rows)
    return {tuple(row.get(key) for key in ("gamma", "name", "split", "outcome", "bin")): row["value"] for row in found}


def test_examples_of_a_split_in_the_order_of_classes_are_of_all_classes():
    split = Split(np.arange(1000), np.repeat(np.arange(10), 100))
    few = measurement._spread(split, 70)
    np.testing.assert_array_equal(np.bincount(few.y), np.full(10, 7))
    np.testing.assert_array_equal(few.x // 100, few.y)
    for examples in (0, 1000, 2000):
        np.testing.assert_array_equal(measurement._spread(split, examples).y, split.y)


def test_a_member_whose_numbers_are_not_finite_has_none(prepared):
    members, (group,) = groups_after(prepared, 2)
    broken = jax.tree.map(np.array, group.params)
    broken["Dense_2"]["kernel"][0] = np.inf
    rows = measurement.diagnostics_of_epoch(prepared, members, [group._replace(params=broken)])
    assert {row.gamma for row in rows} == {1.0, 3.0}
