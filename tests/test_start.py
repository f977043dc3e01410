"""Runs that start from another run's checkpoint: what is taken, of which member, and what is refused."""

import json
import shutil
from pathlib import Path

import chex
import jax
import numpy as np
import pytest

from focalgeo import job, records
from focalgeo.config import load_config, with_values
from focalgeo.job import preparation, start
from focalgeo.job.members import make_members
from focalgeo.training import checkpoint
from focalgeo.types import InputError

CONFIG = Path(__file__).parent.parent / "configs" / "digits.py"
TINY = {
    "optimizer.epochs": 2,
    "checkpoint.every": 17,
    "evaluation.num_resamples": 5,
    "evaluation.temperature_step": 0.5,
    "evaluation.methods": ("temperature_scaling",),
    "curvature.examples": 0,
}
STEPS = (17, 34)


def config_of(**fields):
    values = TINY | {name.replace("__", "."): value for name, value in fields.items()}
    return job.check_config(with_values(load_config(CONFIG, ""), values))


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep over seeds, and what its last checkpoint holds."""
    workdir = tmp_path_factory.mktemp("source") / "swept"
    job.run(config_of(sweep__seed=(0, 1)), workdir)
    return workdir, checkpoint.read(workdir / "checkpoints" / str(STEPS[-1]))


def states(config):
    members, prepared = make_members(config), preparation.prepare(config)
    fresh = preparation.initial_state(prepared, members)
    return fresh, start.started(config, members, fresh)


def test_each_member_takes_the_parameters_of_its_own_seed(swept):
    workdir, saved = swept
    fresh, begun = states(config_of(start__run=str(workdir), sweep__seed=(1, 0)))
    chex.assert_trees_all_equal(begun.params, jax.tree.map(lambda leaf: leaf[::-1], saved["params"]))
    chex.assert_trees_all_equal(begun._replace(params=fresh.params), fresh)  # all else begins anew
    assert not np.array_equal(fresh.params["Dense_0"]["kernel"], begun.params["Dense_0"]["kernel"])


def test_the_momentum_is_kept_where_asked_and_the_schedule_begins_anew(swept):
    workdir, saved = swept
    _, begun = states(config_of(start__run=str(workdir), start__optimizer="kept", seed=1))
    own = saved["opt_state"][2]["trace"]
    chex.assert_trees_all_equal(begun.opt_state[2].trace, jax.tree.map(lambda leaf: leaf[1:], own))
    assert np.abs(own["Dense_0"]["kernel"]).max() > 0
    assert begun.opt_state[3].count == 0


@pytest.mark.parametrize("name", ["adam", "adagrad"])
def test_moments_of_other_optimisers_are_kept(tmp_path, name):
    own = {"optimizer__name": name, "optimizer__learning_rate": 0.01}
    job.run(config_of(**own), tmp_path / "source")
    saved = checkpoint.read(tmp_path / "source" / "checkpoints" / "34")["opt_state"][2]
    _, begun = states(config_of(**own, start__run=str(tmp_path / "source"), start__optimizer="kept"))
    chex.assert_trees_all_equal(begun.opt_state[2]._asdict(), saved)


def test_named_parts_alone_are_taken_and_may_be_all_that_fits(swept):
    workdir, saved = swept
    fields = {"start__run": str(workdir), "start__modules": ("Dense_0",), "model__options__hidden": (32, 20)}
    fresh, begun = states(config_of(**fields))
    own = jax.tree.map(lambda leaf: leaf[:1], saved["params"]["Dense_0"])
    chex.assert_trees_all_equal(begun.params["Dense_0"], own)
    for name in ("Dense_1", "Dense_2"):
        chex.assert_trees_all_equal(begun.params[name], fresh.params[name])


def test_batch_statistics_come_with_the_parameters(tmp_path):
    network = {"model__name": "mobilenet_v2", "model__options__blocks": (1,), "data__train_size": 64}
    job.run(config_of(**network, optimizer__epochs=1, checkpoint__every=1), tmp_path / "source")
    newest = checkpoint.find(tmp_path / "source" / "checkpoints")
    saved = checkpoint.read(newest)["model_state"]
    fresh, begun = states(config_of(**network, start__run=str(tmp_path / "source")))
    chex.assert_trees_all_equal(begun.model_state, saved)
    pairs = zip(*map(jax.tree.leaves, (fresh.model_state, saved)), strict=True)
    assert any(np.any(one != other) for one, other in pairs)


def test_an_earlier_step_is_taken_where_asked(swept):
    workdir, _ = swept
    earlier = checkpoint.read(workdir / "checkpoints" / str(STEPS[0]))
    _, begun = states(config_of(start__run=str(workdir), start__step=STEPS[0]))
    chex.assert_trees_all_equal(begun.params, jax.tree.map(lambda leaf: leaf[:1], earlier["params"]))


def test_a_job_trains_on_from_there_and_says_so(swept, tmp_path, capfd):
    workdir, _ = swept
    job.run(config_of(start__run=str(workdir), optimizer__learning_rate=1e-20), tmp_path / "own")
    assert f"starting from {workdir}/checkpoints/34" in capfd.readouterr().err
    one, other = (
        records.read_predictions(folder, "test").logits for folder in (tmp_path / "own", workdir / "members" / "seed=0")
    )
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)  # it has not moved from there
    digest = json.loads((workdir / "checkpoints" / "34" / "digest.json").read_text())["blake2b"]
    assert records.read_manifest(tmp_path / "own")["start"] == {"checkpoints/34": digest}


def test_a_run_goes_on_without_its_source_once_it_has_a_checkpoint(swept, tmp_path):
    source = shutil.copytree(swept[0], tmp_path / "source")
    config = config_of(start__run=str(source))
    job.run(config, tmp_path / "own")
    shutil.rmtree(source)
    (tmp_path / "own" / "metrics.jsonl").unlink()  # measured again
    job.run(config, tmp_path / "own")
    assert (tmp_path / "own" / "metrics.jsonl").exists()


def test_a_run_that_begins_again_refuses_a_source_that_has_changed(swept, tmp_path):
    source = shutil.copytree(swept[0], tmp_path / "source")
    config = config_of(start__run=str(source))
    job.run(config, tmp_path / "own")
    shutil.rmtree(tmp_path / "own" / "checkpoints")
    (tmp_path / "own" / "metrics.jsonl").unlink()
    shutil.rmtree(source)
    job.run(config_of(sweep__seed=(0, 1), optimizer__learning_rate=0.02), source)
    with pytest.raises(InputError, match=r"has changed since the run in .* began .checkpoints/34.; choose another"):
        job.run(config, tmp_path / "own")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"start__run": "nowhere"}, "config.start.run is nowhere: it holds no manifest.json"),
        ({"seed": 7}, "it has no member seed=7; it has seed=0, seed=1"),
        ({"start__step": 20}, r"holds no valid checkpoint of step 20 .steps there: 17, 34."),
        ({"model__options__hidden": (20, 32)}, r"Dense_0\['bias'\] has shape \(32,\) there, \(20,\) here"),
        ({"model__options__hidden": (32, 32, 32)}, "has no part Dense_3|Dense_2.* has shape"),
        ({"start__modules": ("Dense_7",)}, "config.start.modules is 'Dense_7'"),
        ({"start__optimizer": "kept", "optimizer__name": "adam"}, "set it to fresh, or the same config.optimizer.name"),
        ({"start__run": None, "start__step": 17}, "config.start.run is None: name the workdir"),
        ({"start__run": None, "start__modules": ("Dense_0",)}, "config.start.run is None"),
        ({"start__optimizer": "kept", "start__modules": ("Dense_0",)}, "config.start.optimizer is kept: with"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(swept, tmp_path, fields, words):
    with pytest.raises(InputError, match=words):
        job.run(config_of(**{"start__run": str(swept[0])} | fields), tmp_path / "own")
    assert not any(path.is_file() and path.stat().st_size for path in (tmp_path / "own").rglob("*"))


def test_a_run_without_networks_is_refused(tmp_path):
    records.write_manifest(tmp_path, {"config": {}})
    with pytest.raises(InputError, match="holds no valid checkpoint"):
        states(config_of(start__run=str(tmp_path)))


def test_a_corrupt_checkpoint_is_passed_over_and_left_where_it_is(swept, tmp_path):
    source = shutil.copytree(swept[0], tmp_path / "source")
    files = (path for path in (source / "checkpoints" / "34").rglob("*") if path.is_file())
    cut = next(path for path in files if path.stat().st_size > 9)
    cut.write_bytes(b"")
    assert checkpoint.find(source / "checkpoints") == source / "checkpoints" / "17"
    assert cut.exists()
