"""Questions that train nothing: what they measure, at small size, against numbers by hand and stored ones."""

import concurrent.futures.process
import json
import math
import time

import jax
import numpy as np
import pandas as pd
import pytest
import scipy.stats
from jax import export
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC

from configs import cifar, digits, digits_gamma
from experiments import (
    accelerators,
    benchmarks,
    intervals,
    known_surfaces,
    peers,
    posthoc,
    programs,
    question,
    theory,
    which_ece,
)
from experiments.accelerators import cases
from experiments.benchmarks import pytorch
from experiments.known_surfaces import surfaces
from experiments.numbers import NOT, rounded
from experiments.posthoc import choice, measured, two_classes
from experiments.theory import errata, trained
from focalgeo import calibration, curvature
from focalgeo.types import InputError

pytestmark = pytest.mark.long


def small_sweep():
    config = digits_gamma.get_config()
    config.sweep.gamma, config.sweep.seed, config.model.options.hidden = (0.0, 2.0, 5.0), (0,), (8,)
    return config


# ---- which_ece


BY_HAND = (0.475, 0.475, 0.1875, 0.525, 0.25, 0.25, 0.1, 0.0, math.nan, 0.1015625)


@pytest.mark.parametrize(("case", "by_hand"), list(zip(which_ece.cases(), BY_HAND, strict=True)))
def test_focalgeo_and_exact_arithmetic_give_the_ece_worked_out_by_hand(case, by_hand):
    expected = pytest.approx(by_hand, abs=1e-6, nan_ok=True)
    assert case.exact() == expected
    assert which_ece.agrees(which_ece.answer("focalgeo", case), "NaN" if math.isnan(by_hand) else by_hand)


# ---- intervals


def test_percentile_and_bca_are_those_of_scipy_and_the_hull_holds_both():
    values = np.random.default_rng(0).exponential(size=60)
    draws = np.random.default_rng(1).choice(values, (20_000, 60)).mean(1)
    _, before, hull, *others = np.array([*intervals.intervals(values.mean(), draws, None)])
    for found, method in zip(others, ("percentile", "BCa"), strict=True):
        peer = scipy.stats.bootstrap((values,), np.mean, n_resamples=20_000, method=method, rng=2).confidence_interval
        np.testing.assert_allclose(found, peer, atol=0.1 * draws.std())
    np.testing.assert_allclose(
        before, 2 * values.mean() - draws.mean() + np.array([-1.96, 1.96]) * draws.std(), rtol=1e-3
    )
    assert hull[0] <= before[0] < before[1] <= hull[1]


@pytest.mark.parametrize("more", [{}, {"clusters": 20}, {"weights": True}])
def test_a_cell_counts_the_data_sets_whose_intervals_hold_the_truth(more, monkeypatch):
    for name, small in {"DRAWS": 4, "RESAMPLES": 40, "ROWS": 20_000}.items():
        monkeypatch.setattr(intervals, name, small)
    intervals.truth.cache_clear()
    cell = intervals.Cell(200, 2, 1.5, **more)
    (run,) = intervals.measure(cell, 0)
    assert (run["cell"], run["draws"]) == (str(cell), 4)
    assert 0.02 < run["true"] < 0.2
    for name in cell.metrics:
        assert run[name].keys() == set(intervals.INTERVALS)
        assert all(held in (0, 0.25, 0.5, 0.75, 1) and 0 <= width < 1 for held, width in run[name].values())
    assert intervals.measure(cell, 0) == [run]


# ---- theory


def test_errata_are_confirmed_and_stored(monkeypatch):
    stored = question.stored(theory.QUESTION.folder)
    monkeypatch.setattr(errata, "STEPS", {2: 1000, 3: 50, 4: 50})  # coarse lattices
    for row, kept in zip(errata.errata(), stored["errata"], strict=True):
        assert row.refuted, row.where
        assert rounded(row.numbers) == pytest.approx(kept["numbers"], rel=0.05, abs=1e-5)
        assert (row.printed, row.holds, row.tried) == (kept["printed"], kept["holds"], kept["tried"])
    for row, kept in zip(errata.readings(), stored["readings"], strict=True):
        assert row.holds, row.printed
        assert rounded(row.numbers) == pytest.approx(kept["numbers"], rel=0.05, abs=1e-5)
    for kept in stored["matching_temperatures"]:
        rows = [row for row in kept["rows"] if row["gamma"] in (1.0, 3.0)]
        matched = [row["temperature"] for row in theory.matches(kept["num_classes"], (1.0, 3.0))["rows"]]
        np.testing.assert_allclose(matched, [row["temperature"] for row in rows], rtol=0.02)


def heights(axis, label: str, at: float) -> float:
    """The height at x of the curve that a legend names so."""
    (curve,) = (line for line in axis.lines if line.get_label() == label)
    return float(np.interp(at, *np.asarray(curve.get_data(), float)))


# figure -> panel, curve, x and the number that its formula has there; or panel and words with a number
DRAWN = {
    "kimura_1": [(0, "γ = 2", 0.5, 2 * 0.5 * math.log(2) + 0.5**2 / 0.5), (1, "γ = 2", 0.5, 1.5966)],  # -dl/dp, rho
    "mukhoti_4a_7": [
        (0, "γ = 7", 0.5, 0.5**7 + 3.5 * 0.5**6 * math.log(2)),  # (1-p)^7 - 7 p (1-p)^6 log p
        (1, "γ*, 0 from p0 = 1/2 on", 0.2526, 3.0),
        (2, "γ = 2", 0.8, 0.6266),
    ],
    "komisarenko_1": [
        (1, "its proper part", 0.5, math.log(2) / 8),  # the map leaves 1/2 where it is
        (2, "γ = 1", 0.8, 1 / (1 + 0.25 * (0.2 - 0.8 * math.log(0.8)) / (0.8 - 0.2 * math.log(0.2)))),
    ],
    "komisarenko_2_6": [(0, "best 1/T", 3.0, 1 / 0.2758), (1, "best 1/T", 2.0, 1 / 0.4649), (5, "best T", 9.0, 0.125)],
    "komisarenko_2_right": [(0, "T = 0.731, nearest", 10.0, 10 / 0.7312), (1, "focal map, γ = 3", 0.0, 0.0)],
    "komisarenko_3": [(0, "s / map(s), γ = 4", 9.9, 0.2066), (1, "tight for |s| < 20", 4.0, 0.21784 - 0.20327)],
    "komisarenko_4": [(0, "least risk 0.585"), (1, "least risk 0.975")],  # 1 - sum of squares, the entropy
    "komisarenko_5": [(5, "Temperature 0.356 (best fit)")],
    "komisarenko_7": [(1, "largest 0.0500")],
}


@pytest.mark.parametrize("name", theory.DRAWN)
def test_a_figure_of_the_papers_has_its_numbers(name):
    parts = question.frames(question.stored(theory.QUESTION.folder))
    figure = question.called(theory.QUESTION.figures[name], parts)
    for panel, words, *numbers in DRAWN[name]:
        axis = figure.axes[panel]
        if numbers:
            at, height = numbers
            assert heights(axis, words, at) == pytest.approx(height, rel=0.01, abs=1e-6), (panel, words)
        else:
            assert words in axis.get_title(), axis.get_title()


@pytest.mark.parametrize("gamma", [-0.5, 0.5, 5.0])
@pytest.mark.parametrize("probs", [[0.8, 0.2], [0.6, 0.2, 0.2]])
def test_the_derived_temperature_keeps_the_predicted_probability(gamma, probs):
    ratio = trained.temperature_ratio(gamma, probs[0], len(probs) - 1)
    log_probs = calibration.focal_calibration(np.log(np.float32(probs)) / np.float32(ratio), gamma)
    np.testing.assert_allclose(np.exp(log_probs), probs, rtol=1e-5)


def test_arrows_of_a_temperature_end_where_it_moves_a_prediction():
    figure = theory.QUESTION.figures["komisarenko_5"]()
    for panel, temperature in ((2, 0.658), (5, 0.356)):
        (arrows,) = figure.axes[panel].collections
        corners, tails = np.array([[0.5, np.sqrt(0.75)], [0, 0], [1, 0]]), arrows.XY
        start = np.linalg.lstsq(
            np.vstack([corners.T, np.ones(3)]), np.vstack([tails.T, np.ones(len(tails))]), rcond=None
        )[0].T
        end = start ** (1 / temperature)
        moves = (end / end.sum(1, keepdims=True) - start) @ corners
        np.testing.assert_allclose(np.column_stack([arrows.U, arrows.V]), moves, atol=2e-4)


# ---- known_surfaces


@pytest.mark.parametrize(
    "surface",
    [
        surfaces.quadratic(1 / np.arange(1, 31), 0),
        surfaces.linear_network(inputs=4, hidden=3, outputs=2),
        surfaces.softmax_regression(0.0, trained=True, examples=30),
        surfaces.softmax_regression(5.0, trained=False, examples=30),
    ],
)
def test_the_closed_form_is_the_hessian(surface):
    found = np.asarray(curvature.dense_hessian(surface.loss, surface.params), np.float64)
    np.testing.assert_allclose(found, surface.hessian, atol=3e-6 * np.abs(surface.hessian).max())


def test_estimates_are_held_against_the_closed_form(monkeypatch):
    monkeypatch.setattr(known_surfaces, "PRODUCTS", (6, 24))
    monkeypatch.setattr(known_surfaces, "SEARCHES", (4, 18))
    monkeypatch.setattr(known_surfaces, "DENSITY", ((3, 6), (12, 6)))
    rows = known_surfaces.measure(surfaces.linear_network(inputs=4, hidden=3, outputs=2), 20)
    for name in ("hutchinson", "xtrace", "lambda_max", "density", "diagonal"):
        few, many = (row for row in rows if row["estimator"] == name)
        assert many["error"] < few["error"]
        assert 0 <= many["held"][1] <= many["held"][0] <= many["held"][2] <= 1
        assert many["held"][0] > 0.5 or name == "density"
    assert [row["converged"] for row in rows if row["estimator"] == "lambda_max"][-1] == 1
    assert next(row for row in rows if row["estimator"] == "xtrace")["more"][1] < 1


# ---- posthoc


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    generator, path = np.random.default_rng(0), tmp_path_factory.mktemp("posthoc") / "val.npz"
    logits = (2 * generator.standard_normal((400, 3))).astype(np.float32)
    labels = (logits / 2 + generator.gumbel(size=logits.shape)).argmax(1)
    np.savez(path, logits=logits, labels=labels)
    return (path,)


def test_halves_share_no_example_and_scores_are_those_of_the_metrics(files):
    val, test = measured.halves(files, 0)
    assert len(np.unique(np.concatenate([val[0], test[0]]), axis=0)) == 400
    np.testing.assert_array_equal(measured.halves(files, 0)[1][1], test[1])
    scores = measured.scores(*test)
    for name in ("nll", "ece", "brier", "accuracy"):
        assert scores[name] == pytest.approx(float(getattr(calibration, name)(*test)), rel=1e-5)
    with np.errstate(divide="ignore"):
        scores = measured.scores(np.log([[1.0, 0.0], [0.5, 0.5]]), np.array([1, 0]))
    assert (scores["zeros"], scores["nll"]) == (0.5, pytest.approx(12 * np.log(2)))


def test_methods_and_peers_are_fitted_on_the_same_halves(files, monkeypatch):
    halves = measured.halves(files, 0)
    monkeypatch.setitem(peers.PEERS, "refusing", peers.Peer("scipy", "", lambda *_: 1 / 0, None))
    names = (measured.PLAIN, "scikit-learn temperature", "scikit-learn isotonic", "refusing")
    ours, theirs, isotonic, refused = (measured.of_method(name, *halves, 0)[0] for name in names)
    assert theirs["nll"] == pytest.approx(ours["nll"], abs=1e-4)
    assert isotonic["zeros"] > 0  # one versus rest gives 0 to labels that come
    assert isotonic["nll"] > ours["nll"]
    assert refused["error"] == "ZeroDivisionError: division by zero"
    (row,) = measured.of_splits(files, [0], {"network": "own"}, measured.choice)
    assert {"network": "own", "seed": 0}.items() <= row.items()
    assert set(row["against"]) == {"uncalibrated", measured.PLAIN} - {row["chosen"]}


@pytest.mark.parametrize("name", ["GaussianNB", "LinearSVC", "RandomForestClassifier"])
def test_outputs_of_two_classes_are_the_classifiers_log_odds(name):
    x, labels = load_breast_cancer(return_X_y=True)
    model = {
        "GaussianNB": GaussianNB(),
        "LinearSVC": LinearSVC(),
        "RandomForestClassifier": RandomForestClassifier(100),
    }
    model = model[name].fit(x[::2], labels[::2])
    log_odds = np.diff(two_classes.logits_of(model, x[1::2]))[:, 0]
    assert np.isfinite(log_odds).all()
    if name == "LinearSVC":
        np.testing.assert_allclose(log_odds, model.decision_function(x[1::2]), rtol=1e-5)
    else:
        p = np.clip(model.predict_proba(x[1::2])[:, 1], 1 / 201, 200 / 201)
        np.testing.assert_allclose(np.clip(log_odds, *np.log([1 / 200, 200])), np.log(p / (1 - p)), atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "name"), [("truths", "temperature, 3 classes"), ("calibrated", "calibrated, 10 classes")]
)
def test_rules_give_their_stored_rows_again_and_a_candidate_is_judged_beside_them(kind, name):
    rows = question.stored(posthoc.QUESTION.folder)["rules"]
    (stored,) = [row for row in rows if (row["set"], row["examples"], row["seed"]) == (name, 200, 0)]
    of, halves = {"kind": kind, "set": name, "examples": 200}, choice.sets({})[kind, name][1]
    rules = choice.RULES | {"candidate": lambda held: np.full(len(held.names), 1 / len(held.names))}
    (made,) = choice.of_set(of, halves, [0], rules)
    for rule in (choice.RULE, *choice.RULES):
        np.testing.assert_allclose(made["rules"][rule][0], stored["rules"][rule][0], atol=2e-4)
    for method, nll in made["nll"].items():
        np.testing.assert_allclose(nll, stored["nll"][method], atol=2e-4)
    nll, *_ = made["rules"]["candidate"]  # no mixture is worse than its worst member
    assert min(made["nll"].values()) - 0.05 < nll < max(made["nll"].values())
    assert "| candidate |" in posthoc.rules_table(pd.DataFrame([made | {"seed": seed} for seed in range(2)]))
    assert choice.named("math:sqrt")(4) == 2


RIGHT = {"calibrated": (0.0, 1.0), "temperature": (0.0, measured.TEMPERATURE), "focal map": (measured.GAMMA, 1.0)}


@pytest.mark.parametrize("truth", RIGHT)
def test_each_truth_is_mended_by_its_method(truth):
    _, fresh, true = measured.drawn(truth, 10, 20, 0)
    np.testing.assert_allclose(true, calibration.focal_temperature_scaling(fresh, *RIGHT[truth]), atol=1e-4)


# ---- accelerators


TRAINED = {"sweep": small_sweep, "convolutions": lambda: cifar.get_config("resnet18,quick")}
PROGRAMS = {
    **{
        name: lambda on, get=get: programs.training_step(programs.make_training(get()), on)
        for name, get in TRAINED.items()
    },
    "prediction": lambda on: programs.prediction(digits.get_config(), on),
    "hvp": lambda on: cases.hessian_product(digits.get_config(), on),
    "Lanczos": lambda on: cases.lanczos_step(digits.get_config(), on),
    "search": lambda on: cases.grid_search(500, 10, on),
    "bootstrap": lambda on: cases.bootstrap(500, 10, on),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_lowered_for_accelerators(name):
    program = PROGRAMS[name](jax.devices()[:1])
    lowered = export.export(jax.jit(program.function), platforms=["tpu", "cuda"])(*program.arguments)
    assert lowered.platforms == ("tpu", "cuda")


def test_what_a_program_costs_is_a_row():
    row = accelerators.costs(PROGRAMS["prediction"](jax.devices()[:1]).lower().compile(), 1)
    assert row["fits"]
    assert row["flops"] > 0


def test_every_case_has_a_row():
    rows = [row.items() for row in question.stored(accelerators.QUESTION.folder)["rows"]]
    assert len(rows) == len({case.label for case in cases.every()})
    assert all(any(case.of.items() <= row for row in rows) for case in cases.every())


def test_what_does_not_compile_is_a_row(monkeypatch):
    if not accelerators.timing.version("libtpu"):
        with pytest.raises(InputError, match="pip install"):
            accelerators.row_of_child(cases.every()[0])
    monkeypatch.setattr(accelerators, "devices_of", lambda topology: range(4))

    def crash(*_, **__):
        raise concurrent.futures.process.BrokenProcessPool

    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", crash)
    rows = [accelerators.row_of_child(cases.every()[0]), *question.stored(accelerators.QUESTION.folder)["rows"]]
    assert "| linear | float32 | v5e:2x2 (4) | no: crash |" in question.as_text(accelerators.programs_table(rows))
    assert next(accelerators.claims(rows)).verdict == NOT


# ---- benchmarks


def test_a_quick_run_of_the_command_measures_every_part(monkeypatch, tmp_path):
    trained = []
    monkeypatch.setattr(benchmarks.jobs, "trained", lambda *job: trained.append(job) or time.sleep(0.02))
    quick = {"SIZES": ((200, 5),), "TRAINED": {"ResNet-20": ("resnet20", 2)}}
    for name, values in (quick | {"STRETCH": 1, "LEAST_SECONDS": 0.0}).items():
        monkeypatch.setattr(benchmarks, name, values)
    for name in set(benchmarks.NETWORKS) - {"digits MLP"}:
        monkeypatch.delitem(benchmarks.NETWORKS, name)
    monkeypatch.setattr(benchmarks.commands, "SIZES", ())
    question.answer(benchmarks.QUESTION, [f"--out={tmp_path}", "--rounds=1"])
    told = json.loads((tmp_path / "results.json").read_text())
    assert told["grid_search"]["rows"][0]["points"] == 5000
    megabytes = told["curvature"]["rows"][0]["megabytes"]
    assert megabytes["hvp"] > megabytes["gradient"]
    assert len(trained) == 1 + told["sweep"]["wall"]["members"] == 17
    assert told["training"]["rows"][0]["seconds"].keys() >= {"fresh", "kept"}


@pytest.mark.skipif(pytorch.torch is None, reason="pip install -e '.[benchmarks]'")
def test_the_rival_computes_what_we_compute():
    logits, labels = benchmarks.predictions(1500, 20)
    found = calibration.grid_search(logits, labels, (0.0, 0.5, 5.0), (2.0, 4.0), criterion="adaptive_ece")
    point = pytorch.lean_loop(logits, labels)
    values = np.array([[point(gamma, temperature) for temperature in (2.0, 4.0)] for gamma in (0.0, 0.5, 5.0)])
    np.testing.assert_allclose(values[..., 1], found.nll, rtol=1e-4)
    np.testing.assert_allclose(values[..., 0], found.ece, atol=3e-3)
