import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax

from experiments.intervals import resampled_interval
from experiments.posthoc import collected, folds, measured, peers, simulation, splits, tables
from focalgeo import calibration

FOLDER = Path(__file__).parents[2] / "experiments" / "posthoc"


@pytest.fixture(scope="module")
def stored():
    return json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))


@pytest.fixture
def predictions():
    generator = np.random.default_rng(0)
    logits = (2 * generator.standard_normal((400, 3))).astype(np.float32)
    labels = (logits / 2 + generator.gumbel(size=logits.shape)).argmax(1).astype(np.int32)
    return splits.Half(log_softmax(logits, axis=1), labels)


def test_the_tables_of_the_readme_are_those_of_the_results(stored):
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name, table in tables.all_tables(stored).items():
        assert table in readme, name


def test_every_network_has_every_piece_on_twenty_splits(stored):
    for network in splits.TITLES:
        assert len(stored["choice"][network]) == 20
        for own in (*stored["methods"][network].values(), *stored["peers"][network].values()):
            assert len(own["nll"]) == 20


def test_the_interval_allows_for_splits_that_overlap():
    found = resampled_interval([1.0, 2.0, 3.0, 6.0])
    half = 3.182446305 * np.sqrt(1 / 4 + 1) * np.std([1, 2, 3, 6], ddof=1)
    assert found == pytest.approx((3.0, 3.0 - half, 3.0 + half), rel=1e-6)


def test_halves_share_no_example_and_are_the_same_each_time(tmp_path):
    logits, labels = np.arange(240, dtype=np.float32).reshape(80, 3) ** 0.5, np.arange(80) % 3
    np.savez(tmp_path / "val.npz", logits=logits, labels=labels)
    paths = (tmp_path / "val.npz",)
    first = splits.halves("own", paths, 0)
    splits.halves.cache_clear()
    again, other = (splits.halves("own", paths, seed) for seed in (0, 1))
    rows = np.concatenate([first.val.logits, first.test.logits])
    assert len(first.val.labels) == len(first.test.labels) == 40
    assert len(np.unique(rows, axis=0)) == len(np.unique(log_softmax(logits, axis=1).round(6), axis=0)) == 80
    np.testing.assert_array_equal(first.val.logits, again.val.logits)
    assert (first.val.labels != other.val.labels).any()
    np.testing.assert_allclose(np.exp(rows).sum(1), 1, rtol=1e-5)


def test_networks_whose_files_are_missing_are_left_out(tmp_path, monkeypatch):
    monkeypatch.delenv("FOCALGEO_DATA", raising=False)
    assert splits.sources(tmp_path) == {}


def test_scores_are_those_of_the_metrics(predictions):
    found = measured.scores(predictions.logits, predictions.labels)
    for name in ("nll", "ece", "brier", "accuracy"):
        own = getattr(calibration, name)(predictions.logits, predictions.labels)
        assert found[name] == pytest.approx(float(own), rel=1e-5)
    assert found["zeros"] == 0


def test_a_label_of_probability_0_is_counted_and_its_nll_cut():
    with np.errstate(divide="ignore"):
        found = measured.scores(np.log([[1.0, 0.0], [0.5, 0.5]]), np.array([1, 0]))
    assert found["zeros"] == 0.5
    assert found["nll"] == pytest.approx((23 * np.log(2) + np.log(2)) / 2)
    assert found["brier"] == pytest.approx((2 + 0.5) / 2)


def test_a_row_is_measured_once_and_a_line_cut_off_again(tmp_path, capsys):
    path, keys = tmp_path / "piece.jsonl", [{"seed": 0}, {"seed": 1}]
    measured.remember(path, keys[0], {"nll": 1.0})
    with path.open("a") as file:
        file.write('{"key": {"seed": 1}, "nl')
    assert list(measured.missing(path, keys)) == keys[1:]
    assert "piece 2 of 2: 1" in capsys.readouterr().err


def test_what_follows_a_line_cut_off_is_kept(tmp_path):
    path = tmp_path / "piece.jsonl"
    path.write_text('{"key": {"seed": 1}, "nl')
    measured.remember(path, {"seed": 1}, {"nll": 2.0})
    assert [row["nll"] for row in measured.read_lines(path)] == [2.0]


def test_the_first_fit_in_a_process_is_made_twice():
    calls = []
    for _ in range(2):
        _, taken = measured.timed("a fit of this test", (1, 2), lambda: calls.append(1))
        assert {"seconds", "processor_seconds"} <= set(taken)
    assert len(calls) == 3
    assert "first_seconds" not in taken


def test_pooled_isotonic_regression_gives_probabilities(predictions):
    split = splits.Split("own", 0, predictions, predictions)
    found = peers.measured(split, "scikit-learn pooled isotonic")
    assert found["nll"] < float(calibration.nll(*predictions))
    assert found["seconds"] > 0


def test_scikit_learn_is_given_log_probabilities_as_a_frozen_classifier(predictions):
    split = splits.Split("own", 0, predictions, predictions)
    found = peers.measured(split, "scikit-learn temperature")
    best = calibration.fit("temperature_scaling", *predictions)
    expected = calibration.nll(best.predict_log_proba(predictions.logits), predictions.labels)
    assert found["nll"] == pytest.approx(float(expected), abs=1e-4)


def test_what_a_library_raises_is_its_answer(predictions, monkeypatch):
    def refuse(log_probs, labels):
        raise RuntimeError("no such thing\nmore")

    monkeypatch.setitem(peers.PEERS, "refusing", peers.Peer("scikit-learn", "refusing", refuse))
    assert peers.measured(splits.Split("own", 0, predictions, predictions), "refusing") == {
        "error": "RuntimeError: no such thing"
    }


RIGHT = {
    "calibrated": {"temperature": 1.0},
    "temperature": {"temperature": simulation.TEMPERATURE},
    "focal map": {"gamma": simulation.GAMMA, "temperature": 1.0},
}


@pytest.mark.parametrize("name", RIGHT)
def test_each_truth_is_mended_by_its_method(name):
    generator = np.random.default_rng(0)
    logits = (2 * generator.standard_normal((500, 10))).astype(np.float32)
    true = simulation.KINDS[name].drawn(10, generator)(logits)
    params = {key: np.float32(value) for key, value in RIGHT[name].items()}
    mended = calibration.METHODS[simulation.KINDS[name].right].apply(params, logits)
    np.testing.assert_allclose(true, mended, atol=1e-4)


def test_cells_count_what_was_chosen(tmp_path):
    excess = {"uncalibrated": 0.1, "temperature_scaling": 0.3}
    rows = [{"chosen": "uncalibrated", "least": "temperature_scaling", "excess": excess}] * 3
    rows += [{"chosen": "temperature_scaling", "least": "temperature_scaling", "excess": excess}]
    key = {"truth": "calibrated", "classes": 3, "examples": 300, "block": 0}
    measured.remember(tmp_path / "simulation.jsonl", key, {"repetitions": rows})
    (cell,) = collected.collected(tmp_path)["simulation"]
    assert cell["chosen"] == {"uncalibrated": 3, "temperature_scaling": 1}
    assert (cell["excess"]["chosen"], cell["excess"]["least"]) == pytest.approx((0.15, 0.3))
    assert cell["excess"]["at_least_temperature"] == pytest.approx(0.3)
    assert "| calibrated | 3 | 300 | 4 | uncalibrated | 0 | 75 | 25 |" in tables.simulation_table(
        {"simulation": [cell]}
    )


def test_only_stratified_folds_have_the_class_shares_of_all():
    labels = np.random.default_rng(0).integers(0, 20, 300)
    spread = {}
    for kind in (folds.stratified, folds.unstratified):
        fold = kind(labels, np.random.default_rng(1))
        counts = np.array([[np.sum(labels[fold == index] == k) for k in range(20)] for index in range(folds.NUM_FOLDS)])
        assert set(counts.sum(1)) == {60}
        spread[kind.__name__] = np.ptp(counts, axis=0).max()
    assert spread["stratified"] == 1
    assert spread["unstratified"] > 3
