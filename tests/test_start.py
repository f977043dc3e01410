"""Runs that start from another run's checkpoint: what is taken, of which member, and what is refused."""

import shutil
from pathlib import Path

import chex
import jax
import numpy as np
import pytest

from focalgeo import job, records
from focalgeo.config import load_config, with_values
from focalgeo.job import preparation, start
from focalgeo.job.preparation import make_members
from focalgeo.training import checkpoint
from focalgeo.types import InputError

pytestmark = pytest.mark.long

CONFIG = Path(__file__).parent.parent / "configs" / "digits.py"
TINY = {
    "optimizer.epochs": 2,
    "checkpoint.every": 17,
    "evaluation.num_resamples": 5,
    "evaluation.temperature_step": 0.5,
    "evaluation.methods": ("temperature_scaling",),
    "curvature.examples": 0,
}


def config_of(**fields):
    values = TINY | {name.replace("__", "."): value for name, value in fields.items()}
    return job.check_config(with_values(load_config(CONFIG, ""), values))


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep over seeds."""
    workdir = tmp_path_factory.mktemp("source") / "swept"
    job.run(config_of(sweep__seed=(0, 1)), workdir)
    return workdir


def states(**fields):
    config = config_of(**fields)
    members, prepared = make_members(config), preparation.prepare(config)
    fresh = preparation.initial_state(prepared, members)
    return fresh, start.started(config, members, fresh)


def saved_in(run, step=34):
    return checkpoint.read(run / "checkpoints" / str(step))


def part(tree, members):
    return jax.tree.map(lambda leaf: leaf[members], tree)


def test_each_member_takes_the_parameters_of_its_own_seed(swept):
    fresh, begun = states(start__run=str(swept), sweep__seed=(1, 0))
    chex.assert_trees_all_equal(begun.params, part(saved_in(swept)["params"], [1, 0]))
    chex.assert_trees_all_equal(begun._replace(params=fresh.params), fresh)  # all else begins anew
    assert not np.array_equal(fresh.params["Dense_0"]["kernel"], begun.params["Dense_0"]["kernel"])
    _, begun = states(start__run=str(swept), start__step=17)
    chex.assert_trees_all_equal(begun.params, part(saved_in(swept, 17)["params"], [0]))


def test_named_parts_alone_are_taken_and_may_be_all_that_fits(swept):
    fields = {"start__run": str(swept), "start__modules": ("Dense_0",), "model__options__hidden": (32, 20)}
    fresh, begun = states(**fields, seed=1)
    taken = part(saved_in(swept)["params"]["Dense_0"], [1])
    chex.assert_trees_all_equal(begun.params, fresh.params | {"Dense_0": taken})


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_moments_are_kept_where_asked_and_the_schedule_begins_anew(tmp_path, name):
    own = {"optimizer__name": name, "optimizer__learning_rate": 0.01}
    job.run(config_of(**own), tmp_path / "source")
    saved = saved_in(tmp_path / "source")["opt_state"][2]
    _, begun = states(**own, start__run=str(tmp_path / "source"), start__optimizer="kept")
    chex.assert_trees_all_equal(begun.opt_state[2]._asdict(), saved)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(saved)) > 0
    assert begun.opt_state[3].count == 0


def test_batch_statistics_come_with_the_parameters(tmp_path):
    network = {"model__name": "mobilenet_v2", "model__options__blocks": (1,), "data__train_size": 64}
    job.run(config_of(**network, optimizer__epochs=1), tmp_path / "source")
    saved = saved_in(tmp_path / "source", 1)["model_state"]
    fresh, begun = states(**network, start__run=str(tmp_path / "source"))
    chex.assert_trees_all_equal(begun.model_state, saved)
    pairs = zip(*map(jax.tree.leaves, (fresh.model_state, saved)), strict=True)
    assert any(np.any(one != other) for one, other in pairs)


def test_a_job_trains_on_from_there_and_refuses_a_source_that_has_changed(swept, tmp_path, capfd):
    source, own = shutil.copytree(swept, tmp_path / "source"), tmp_path / "own"
    config = config_of(start__run=str(source), optimizer__learning_rate=1e-20)
    job.run(config, own)
    assert f"starting from {source}/checkpoints/34" in capfd.readouterr().err
    logits = [records.read_predictions(folder, "test").logits for folder in (own, source / "members" / "seed=0")]
    np.testing.assert_allclose(*logits, rtol=1e-5, atol=1e-5)  # it has not moved from there
    path = source / "checkpoints" / "34"
    assert records.read_manifest(own)["start"] == {str(path): checkpoint.digest(path)}
    shutil.rmtree(source / "checkpoints" / "34")
    job.run(config, own)  # it has a checkpoint of its own
    shutil.rmtree(own / "checkpoints")
    (own / "metrics.jsonl").unlink()
    shutil.rmtree(source)
    job.run(config_of(sweep__seed=(0, 1), optimizer__learning_rate=0.02), source)
    with pytest.raises(InputError, match=r"checkpoints/34 has changed since the run in .* began; choose another"):
        job.run(config, own)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"start__run": "nowhere"}, "nowhere/checkpoints holds no valid checkpoint"),
        ({"seed": 7}, "it has no member seed=7; it has seed=0, seed=1"),
        ({"start__step": 20}, r"holds no valid checkpoint of step 20 .steps there: 17, 34."),
        (
            {"model__options__hidden": (20, 32)},
            r"Dense_0 in .*/34 is {'bias': 'float32\[1, 32\]', .* here {'bias': 'float32\[1, 20\]'",
        ),
        ({"model__options__hidden": (32, 32, 32)}, "Dense_2 in .* is {'bias': 'float32.*, here {'bias'"),
        ({"start__modules": ("Dense_7",)}, "config.start.modules is 'Dense_7'"),
        (
            {"start__optimizer": "kept", "optimizer__name": "adam"},
            "the optimiser's state in .* is {'trace'",
        ),
    ],
)
def test_misfits_are_refused_before_anything_is_written(swept, tmp_path, fields, words):
    with pytest.raises(InputError, match=words):
        job.run(config_of(**{"start__run": str(swept)} | fields), tmp_path / "own")
    assert not any(path.is_file() and path.stat().st_size for path in (tmp_path / "own").rglob("*"))


def test_a_corrupt_checkpoint_is_passed_over_and_left_where_it_is(swept, tmp_path):
    source = shutil.copytree(swept, tmp_path / "source")
    files = (path for path in (source / "checkpoints" / "34").rglob("*") if path.is_file())
    cut = next(path for path in files if path.stat().st_size > 9)
    cut.write_bytes(b"")
    assert checkpoint.find(source / "checkpoints") == source / "checkpoints" / "17"
    assert cut.exists()
