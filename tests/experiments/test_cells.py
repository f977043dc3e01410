"""Cells of the papers' tables: their jobs, what is stored of a run, and a real cell trained again."""

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics

from experiments import calibration_of_losses, cells, jobs
from focalgeo import calibration, job, records
from focalgeo.config import load_config, with_values
from focalgeo.types import InputError

PAPERS_NETWORKS = {"resnet50", "resnet110", "wide_resnet26_10", "densenet121", "gp_cnn", "tree_lstm"}
SCALED = [(task, scale) for scale in ("small", "paper") for task in cells.having(scale)]


@pytest.mark.parametrize(("task", "scale"), SCALED)
def test_every_cell_is_a_job(task, scale):
    for loss in cells.LOSSES:
        cell = cells.Cell(task, loss, 3, scale)
        path, _, words = cell.config.partition(":")
        config = job.check_config(with_values(load_config(jobs.ROOT / path, words), cell.fields(None)))
        assert config.seed == 3
        assert scale == "small" or config.model.name in PAPERS_NETWORKS
        assert (config.diagnostics.every == 1) == cell.is_diagnosed
        if task == "cifar10" and scale == "small":
            assert (config.data.train_size, config.data.split_seed) == (7500, 4)  # a seed has its own images
        if scale == "small":
            assert set(config.evaluation.criteria) >= {"nll", "ece", "adaptive_ece", "line_search"}
            assert tuple(config.evaluation.gammas) == cells.GAMMAS


def test_a_task_without_a_scale_is_refused():
    with pytest.raises(
        InputError, match="cifar100 has no cells with --scale=small: name some of cifar10, newsgroups, sst"
    ):
        cells.cells(["cifar100"], ["ce"], 1)
    networks = {
        jobs.load(cells.Cell(task, "ce", 0, scale).config).model.name for task, scale in SCALED if scale == "paper"
    }
    assert networks == PAPERS_NETWORKS


def test_all_losses_of_a_seed_come_before_the_next_and_wait_for_each_other(monkeypatch, tmp_path):
    assert [cell.seed for cell in cells.cells(["cifar10", "sst"], ["ce", "fl3"], None)[:4]] == [0, 0, 1, 1]
    monkeypatch.setattr(cells, "ROWS", tmp_path)
    for loss, seed in (("fl3", 0), ("ce", 1), ("ce", 0)):
        cells.store({"loss": loss, "seed": seed}, "sst")
    assert [(run["loss"], run["seed"]) for run in cells.stored("sst")] == [("ce", 0), ("ce", 1), ("fl3", 0)]
    assert cells.compared("sst") == []  # of one seed nothing is said
    for loss, seed in (("fl3", 2), ("ce", 2), ("fl3", 3), ("ce", 3)):
        cells.store({"loss": loss, "seed": seed}, "sst")
    assert [run["seed"] for run in cells.compared("sst")] == [0, 2, 3, 0, 2, 3]


def test_a_run_on_other_test_examples_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(cells, "ROWS", tmp_path)
    cells.store({"loss": "ce", "seed": 0, "examples": 3769}, "newsgroups")
    with pytest.raises(InputError, match="fl3, seed 1 has 7,532 test examples, those stored 3,769: name the same data"):
        cells.store({"loss": "fl3", "seed": 1, "examples": 7532}, "newsgroups")
    cells.store({"loss": "fl3", "seed": 1, "examples": 3769}, "newsgroups")
    assert [run["loss"] for run in cells.stored("newsgroups")] == ["ce", "fl3"]


def test_the_area_of_classes_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    logits, labels = rng.standard_normal((300, 4)), rng.integers(0, 4, 300)
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = metrics.roc_auc_score(labels, probs, multi_class="ovr", average="macro")
    np.testing.assert_allclose(cells.class_auc(logits, labels), expected)
    perfect = 5.0 * np.eye(4)[labels]
    assert cells.class_auc(perfect[labels != 3], labels[labels != 3]) == 1  # a class that no label has is left out


def outputs(*sizes):
    """Logits, twice as sure as they should be, and labels."""
    rng = np.random.default_rng(1)
    logits = (3 * rng.standard_normal(sizes)).astype(np.float32)
    return logits, (logits / 2 + rng.gumbel(size=sizes)).argmax(-1).astype(np.int32)


def test_the_search_along_the_line_fits_on_val_alone():
    val, test = zip(*outputs(2, 400, 5), strict=True)
    along = cells.along_line(val, test, "nll")
    assert -0.5 <= along["gamma"] <= 1
    point = along["gamma"], along["temperature"]
    again = cells.along_line(val, val, "nll")
    assert (again["gamma"], again["temperature"]) == point
    for split, measured in ((test, along), (val, again)):
        nll = calibration.nll(calibration.focal_temperature_scaling(split[0], *point), split[1])
        np.testing.assert_allclose(measured["test"], nll, rtol=1e-6)
    plain = calibration.fit("temperature_scaling", *val).predict_log_proba(val[0])
    assert again["test"] < calibration.nll(plain, val[1]) + 1e-3


def test_the_temperatures_are_those_of_the_fits():
    logits, labels = outputs(600, 5)
    found = cells.temperatures(logits, labels, (0.0, 1.0))
    assert found.keys() == {"nll", "ece", "adaptive_ece"}
    assert found["nll"][1] > found["nll"][0]  # the map of gamma 1 sharpens
    plain = calibration.fit("temperature_scaling", logits, labels).parameters["temperature"]
    np.testing.assert_allclose(found["nll"][0], plain, atol=0.006)


@pytest.mark.long
@pytest.mark.parametrize("kept", ["last", "best_val"])
def test_the_network_is_the_one_that_the_job_predicted_with(tmp_path, kept):
    fields = {"optimizer.select": kept, "optimizer.epochs": 3, "curvature.examples": 0, "evaluation.num_resamples": 20}
    fields |= {"diagnostics.every": 1, "diagnostics.splits": ("train", "test")}
    workdir = jobs.trained("configs/digits.py:quick", tmp_path / "w", fields)
    predicted = records.read_predictions(workdir, "val")
    logits, labels = cells.train_outputs(workdir, 100, split="val")
    np.testing.assert_allclose(logits, predicted.logits[:100], atol=1e-4)
    np.testing.assert_array_equal(labels, predicted.labels[:100])
    found = cells.diagnosed(records.read_rows(workdir))
    assert len(found["epochs"]) == 3
    for name in ("error", "ece"):
        assert 0 <= found["means"]["test"][name][-1] <= 1
    shares = np.array(found["reliability"]["train"][f"{found['epochs'][-1]:g}"])[:, 2]
    np.testing.assert_allclose(shares.sum(), 1, atol=1e-6)


@pytest.mark.long
def test_a_tiny_cell_has_what_the_questions_need(tmp_path, real_archive, monkeypatch):
    quick = {"optimizer.epochs": 1, "data.train_size": 100, "data.val_size": 100, "data.test_size": 100}
    fields = cells.Cell.fields
    monkeypatch.setattr(cells.Cell, "fields", lambda cell, data: fields(cell, data) | quick)
    run = cells.train(cells.Cell("sst", "ce", 0), tmp_path, f"sst:{real_archive('sst-trees.tar.xz')}")
    brief = calibration_of_losses.brief(pd.DataFrame([run])).iloc[0]
    stored = next(run for run in cells.stored("sst") if run["loss"] == "ce")
    assert run.keys() >= stored.keys()
    assert run["train_nll"] > 0
    assert 0.4 < run["auc"]["test"] <= 1
    assert run["line"].keys() == {"nll", "adaptive_ece"}
    assert run["metrics"]["test"].keys() == stored["metrics"]["test"].keys()
    assert brief["accuracy"] > 40
    assert brief["T by ece"] > 0
