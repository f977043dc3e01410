"""Cells of the papers' tables: their jobs, what is stored of a run, and a real cell trained again."""

import json
from pathlib import Path

import pytest

from experiments import cells, jobs
from experiments.calibration_of_losses.quantities import by_seed, mean
from focalgeo import job
from focalgeo.config import load_config, with_values
from focalgeo.types import InputError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("task", cells.TASKS)
@pytest.mark.parametrize("loss", cells.LOSSES)
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_every_cell_is_a_job(task, loss, scale):
    cell = cells.Cell(task, loss, 3, scale)
    path, _, words = cell.config.partition(":")
    config = job.check_config(with_values(load_config(ROOT / path, words), cell.fields(None)))
    assert config.seed == 3
    assert (config.diagnostics.every == 1) == (task == "cifar10" and loss in cells.DIAGNOSED)
    if scale == "small":
        assert set(config.evaluation.criteria) >= {"nll", "ece", "adaptive_ece", "line_search"}
        assert tuple(config.evaluation.gammas) == cells.GAMMAS
        assert config.optimizer.epochs <= 10


def test_all_losses_of_a_seed_come_before_the_next_seed():
    found = cells.cells(["cifar10", "sst"], ["ce", "fl3"], None)
    assert [cell.seed for cell in found[:4]] == [0, 0, 1, 1]
    assert len(found) == 2 * 5 + 2 * 3


def test_stored_runs_hold_what_the_questions_need():
    for task in cells.TASKS:
        for run in cells.stored(task):
            assert run["record"].keys() == {"commit", "config", "date", "versions", "seconds"}
            assert run["metrics"]["test"].keys() >= {"uncalibrated", "temperature_scaling/ece"}
            assert all(len(values) == len(cells.GAMMAS) for values in run["temperatures"]["train"].values())
            assert ("diagnostics" in run) == (task == "cifar10" and run["loss"] in cells.DIAGNOSED)


@pytest.mark.parametrize("data", ["cifar10", "mnist=folder:x", "cifar10=folder:/nowhere/x.tar"])
def test_data_that_is_not_there_is_one_line(data, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["cells", "--tasks", "sst", "--data", data])
    with pytest.raises(SystemExit) as stopped:
        cells.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_name_without_a_path_stays_as_it_is():
    assert jobs.absolute("tfds:cifar10") == "tfds:cifar10"
    assert jobs.absolute(None) is None
    with pytest.raises(InputError, match="no such file"):
        jobs.absolute("folder:/nowhere")


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_real_cell_trained_again_lies_inside_its_stored_interval(tmp_path, real_archive, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # the job has one device, as a user's
    trees, stored = real_archive("sst-trees.tar.xz"), cells.stored("sst")
    if len(by_seed(stored, "ce", "ece")) < 2:
        pytest.skip("an interval needs two stored seeds: python -m experiments.cells --tasks sst")
    run = cells.train(cells.Cell("sst", "ce", 0), tmp_path, f"sst:{trees}")
    assert json.loads(json.dumps(run))
    for name in ("accuracy", "ece", "nll", "T by nll"):
        again = by_seed([run], "ce", name)[0]
        own = mean(stored, "ce", name)
        assert own.low <= again <= own.high, name
