"""The tables, verdicts and merging of experiments/curvature_and_gamma, from made-up runs and from a tiny sweep."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments import jobs
from experiments.curvature_and_gamma import __main__ as command
from experiments.curvature_and_gamma import figures, minima, runs, statistics, tables, verdicts
from experiments.curvature_rows import with_own, with_sums
from experiments.intervals import NOT, SHOWS, UNTOLD
from focalgeo import job
from focalgeo.config import load_config

ROOT = Path(__file__).parents[2]
RECORD = {"commit": "0", "config": "c", "date": "2026-01-01", "versions": {}, "seconds": 3.0}


def _runs(change: float = -0.1, seeds: int = 4, ece=lambda at: 0.02 + (at - 0.5) ** 2, network: str = "digits") -> list:
    found = []
    for seed in range(seeds):
        for number, gamma in enumerate((0.0, 1.0, 2.0, 3.0, 5.0)):
            size = 30 * np.exp(change * gamma) * (1 + 0.01 * seed * (number % 2))
            run = {"network": network, "gamma": gamma, "seed": seed, "record": RECORD}
            names = [
                f"{name} CE {split}" for name in ("trace", "lambda_max", "scale_free_trace") for split in runs.SPLITS
            ]
            run |= dict.fromkeys(names, size)
            if gamma:
                run |= {name.replace("CE", "own"): 0.5 * number for name, number in dict.fromkeys(names, size).items()}
            run |= {"accuracy": 0.9, "nll": 0.3, "ece": ece(gamma / 5) + 1e-4 * seed * gamma}
            found.append(run)
    return found


def _verdicts(own: list) -> dict[str, str]:
    return {claim.claim: claim.verdict for claim in verdicts.claims({"digits": own})}


def test_a_fall_of_the_curvature_is_shown_or_not_by_its_slope():
    claim = "two layers, digits: the trace of cross-entropy's Hessian on val falls with γ"
    assert _verdicts(_runs())[claim] == SHOWS
    assert _verdicts(_runs(change=+0.1))[claim] == NOT
    assert _verdicts(_runs(seeds=1))[claim] == UNTOLD
    np.testing.assert_allclose(statistics.slope(_runs(), "trace CE val").mean, -0.1, atol=2e-3)


@pytest.mark.parametrize(
    ("ece", "expected"),
    [
        (lambda at: 0.02 + (at - 0.5) ** 2, SHOWS),
        (lambda at: 0.02 + 0.1 * at + 0.1 * at**2, NOT),  # the vertex lies outside
        (lambda at: 0.5 - (at - 0.5) ** 2, NOT),  # a maximum
        (lambda at: 0.02 + 0.1 * at, UNTOLD),  # a line, but for noise
    ],
)
def test_an_inner_minimum_needs_a_parabola_whose_vertex_lies_inside(ece, expected):
    own = _runs(seeds=6, ece=ece)
    noise = np.random.default_rng(1).normal(0, 1e-3, len(own))
    for run, more in zip(own, noise, strict=True):
        run["ece"] += more
    found = minima.inner_minimum(own)
    assert found.verdict == expected
    assert found.seeds == 6


def test_a_parabola_that_opens_downwards_is_said_to_have_no_minimum():
    own = _runs(ece=lambda at: 0.5 - (at - 0.5) ** 2)
    said = {claim.because for claim in verdicts.claims({"digits": own}) if claim.source == "K Fig. 3"}
    assert said
    assert all("no vertex is a minimum" in because for because in said)


def _networks(ece, seeds: int = 3, shift: float = 0.0) -> dict:
    noise = np.random.default_rng(2)
    found = {}
    for number, name in enumerate(("vit", "vgg19", "resnet18")):
        found[name] = _runs(seeds=seeds, ece=ece, network=name)
        for run in found[name]:
            run["ece"] += noise.normal(0, 1e-3) + 0.1 * number
            run["trace CE val"] *= np.exp(shift * number)
    return found


@pytest.mark.parametrize(
    ("ece", "expected"),
    [
        (lambda at: 0.02 + (at - 0.5) ** 2, SHOWS),
        (lambda at: 0.02 + 0.1 * at + 0.1 * at**2, NOT),
        (lambda at: 0.5 - (at - 0.5) ** 2, NOT),
    ],
)
def test_networks_share_a_parabola_each_with_a_constant_of_its_own(ece, expected):
    found = minima.shared_minimum(_networks(ece, shift=2.0), "trace CE val", within=True)
    assert found.verdict == expected
    assert found.groups == 3
    if expected == SHOWS:
        assert found.inside == 3
        np.testing.assert_allclose([found.curvature.mean, found.vertex.mean], [1, 0.5], atol=0.1)


def test_over_all_networks_at_once_there_is_one_range_of_the_trace():
    rising = _networks(lambda at: 0.02 + (at - 0.5) ** 2, shift=3.0)  # ECE by network rises with the trace
    assert minima.shared_minimum(rising, "trace CE val", within=True).verdict == SHOWS
    found = minima.shared_minimum(rising, "trace CE val", within=False)
    assert (found.groups, found.verdict) == (1, NOT)


def test_of_one_seed_no_minimum_over_networks_can_be_told():
    own = _networks(lambda at: 0.02 + (at - 0.5) ** 2, seeds=1)
    assert minima.shared_minimum(own, "trace CE val", within=True).verdict == UNTOLD


def test_the_claim_on_every_network_falls_with_one_of_them():
    claim = "every network on CIFAR-10: λ_max of cross-entropy's Hessian on val falls with γ"
    own = _networks(lambda at: 0.1)
    assert {found.claim: found.verdict for found in verdicts.claims(own)}[claim] == SHOWS
    own["vit"] = _runs(change=0.1, network="vit")
    assert {found.claim: found.verdict for found in verdicts.claims(own)}[claim] == NOT


def _with_parts(own: list, factor: float) -> list:
    for run in own:
        for where in ("CE val", "own val"):
            if f"trace {where}" in run:
                run[f"trace, gauss_newton {where}"] = factor ** run["gamma"] * run[f"trace {where}"] + 1
                run[f"trace, residual {where}"] = -1.0
    return own


def test_a_trace_by_other_vectors_is_the_sum_of_its_parts():
    own = _with_parts(_runs(change=-0.1, seeds=3), np.exp(0.3))
    run = with_sums(own[1])
    assert run["trace by parts CE val"] == pytest.approx(np.exp(0.3) * run["trace CE val"])
    row = tables.other_vectors({"digits": own}).splitlines()[2].split(" | ")
    assert row[:2] == ["| two layers, digits", "change of log by γ"]
    assert row[2].startswith("**-0.1")
    assert row[3].startswith("**+0.2")
    own[0]["trace, residual CE val"] = -1e3  # the sum is below 0
    lines = tables.other_vectors({"digits": own}).splitlines()[2:]
    assert [line.split(" | ")[1] for line in lines] == ["change of log by γ", "change by γ"]
    assert [line.split(" | ")[3] == "" for line in lines] == [True, False]


def test_minima_are_told_without_each_network_too():
    own = _networks(lambda at: 0.0, shift=3.0)
    for run in (run for of_network in own.values() for run in of_network):
        run["ece"] = 0.01 * (np.log(run["trace CE val"]) - np.log(25)) ** 2  # least within the ViT's range
    _, *lines = (line.split(" | ") for line in tables.minima(own).splitlines()[2:])  # the first is within networks
    assert {line[0]: line[1] for line in lines} == {
        "| together": "100",
        "| together, without ViT": "0",
        "| together, without VGG": "100",
        "| together, without small ResNet": "100",
    }
    assert "| within networks |  |  |  |  |" in tables.minima({"digits": _runs()})


def test_changes_from_gamma_0_are_paired_by_seed():
    own = _runs(change=-0.1, seeds=3)
    np.testing.assert_allclose(statistics.change(own, 2.0, "trace CE val").mean, np.exp(-0.2) - 1, atol=1e-9)
    assert "| 5 | **-39.3 (-39.3 to -39.3)**" in tables.changes(own).replace("-39.4", "-39.3")


def test_a_trace_of_both_signs_is_measured_itself_and_no_run_is_left_out(tmp_path):
    own = _runs(change=-0.1, seeds=3)
    for run in own:
        run["trace CE val"] = 40 - 10 * run["gamma"] + run["seed"]  # -10 at gamma 5
    np.testing.assert_allclose(statistics.slope(own, "trace CE val"), [-10] * 3, atol=1e-9)
    np.testing.assert_allclose(statistics.change(own, 5.0, "trace CE val"), [-50] * 3, atol=1e-9)
    np.testing.assert_allclose(statistics.slope(own, "lambda_max CE val").mean, -0.1, atol=2e-3)
    claim = "two layers, digits: the trace of cross-entropy's Hessian on val falls with γ"
    found = {found.claim: found for found in verdicts.claims({"digits": own})}[claim]
    assert (found.verdict, found.because.partition(" for")[0]) == (SHOWS, "change of the number")
    assert minima.inner_minimum(own).seeds == 3
    assert "| change by γ |  |  | **-10 (-10 to -10)** |" in tables.curvature(own)
    assert "| trace, CE, val | trace, own, val, % |" in tables.changes(own)
    figures.draw({"digits": own, "vit": _runs(network="vit")}, tmp_path)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--tables"], "no run is stored: leave --tables out to train some"),
        (["--seeds", "0"], "--seeds: 0 is fewer than 1"),
        (["--networks", "vit", "--cifar10=folder:nowhere.tar.xz"], "nowhere.tar.xz: no such file or folder"),
    ],
)
def test_bad_input_is_one_line_and_code_2(flags, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["curvature_and_gamma", f"--out={tmp_path}", *flags])
    with pytest.raises(SystemExit) as stopped:
        command.main()
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1


def test_of_gamma_0_the_trained_loss_is_cross_entropy():
    run = with_own(_runs()[0])
    assert run["trace own val"] == run["trace CE val"]


def test_what_is_stored_is_not_trained_again_and_new_runs_take_their_places(tmp_path):
    known = command.merged(_runs(seeds=2), _runs(seeds=3, change=0.1))
    assert len(known) == 15
    assert [run["seed"] for run in known[:4]] == [0, 1, 2, 0]
    assert known[4]["trace CE val"] > known[0]["trace CE val"]  # the new ones
    (tmp_path / "README.md").write_text("<!-- digits curvature -->\n<!-- end -->\n<!-- claims -->\n<!-- end -->\n")
    command.write(known, tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "| change of log by γ | **+0." in text
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["runs"] == json.loads(json.dumps(results["runs"]))
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"curvature.png", "trace_and_ece.png"}
    asked = command.argparse.Namespace(again=False, networks=["digits", "vit"], seeds=3)
    assert command._missing(asked, known) == [("vit", (0,)), ("vit", (1,)), ("vit", (2,))]


def test_every_network_of_a_seed_comes_before_the_next_seed():
    found = runs.pieces(["digits", "vit", "vgg19"], None)
    assert found[0] == ("digits", tuple(range(20)))
    assert found[1:3] == [("vit", (0,)), ("vgg19", (0,))]
    assert len(found) == 7


@pytest.mark.parametrize("name", [name for name in runs.NETWORKS if name != runs.DIGITS])
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_every_network_is_a_job(name, scale):
    path, _, words = runs.config_of(name, scale).partition(":")
    config = job.check_config(load_config(ROOT / path, words))
    assert config.model.name == name
    assert list(config.sweep.gamma) == [0, 1, 2, 3, 5]
    assert (config.optimizer.epochs == 350) == (scale == "paper")


def test_the_numbers_of_a_run_are_those_of_its_rows(tmp_path):
    fields = {
        "sweep.seed": (0, 1),
        "evaluation.num_resamples": 50,
        "curvature.examples": 40,
        "curvature.batch_size": 40,
    }
    jobs.run("configs/digits_gamma.py:quick", tmp_path / "w", fields)
    found = runs.measured(tmp_path / "w", "digits", "configs/digits_gamma.py:quick")
    assert [(run["gamma"], run["seed"]) for run in found] == [(0, 0), (0, 1), (3, 0), (3, 1)]
    assert 0.5 < found[0]["train accuracy"] <= 1
    assert found[2].keys() >= {
        "trace CE val",
        "trace own train",
        "lambda_max own val",
        "ece",
        "ece after T",
        "temperature",
    }
    parts = found[2]["trace, gauss_newton own val"] + found[2]["trace, residual own val"]
    np.testing.assert_allclose(parts, found[2]["trace own val"], rtol=0.5)
    command.write(found, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "results.json").read_text())["about"]["answers"] == ["K Fig. 2", "K Fig. 3"]
