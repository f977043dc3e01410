"""The parts of the NLL, the verdicts, tables and figures of experiments/map_and_matrix."""

import json

import numpy as np
import pytest
from scipy.special import log_softmax

from experiments import cells
from experiments.intervals import NOT, SHOWS, UNTOLD
from experiments.map_and_matrix import __main__ as command
from experiments.map_and_matrix import answers, parts


def _outputs(seed: int, examples: int = 400, classes: int = 4):
    generator = np.random.default_rng(seed)
    logits = 2 * generator.normal(size=(examples, classes))
    probs = np.exp(log_softmax(0.5 * logits + np.arange(classes) / 4, axis=-1))
    labels = (probs.cumsum(-1) < generator.random((examples, 1))).sum(-1)
    return logits.astype(np.float32), labels.astype(np.int32)


def test_the_parts_sum_to_the_nll_whatever_class_is_fixed():
    logits, labels = _outputs(0)
    log_probs = log_softmax(logits.astype(np.float64), axis=-1)
    nll = -log_probs[np.arange(len(labels)), labels].mean()
    for top in (logits.argmax(-1), np.zeros(len(labels), int)):
        found = parts.numbers(log_probs, labels, top)
        np.testing.assert_allclose([found["nll"], found["right or wrong"] + found["which else"]], nll, rtol=1e-12)


def test_with_two_classes_all_is_right_or_wrong():
    logits, labels = _outputs(1, classes=2)
    found = parts.numbers(log_softmax(logits.astype(np.float64), -1), labels, logits.argmax(-1))
    np.testing.assert_allclose(found["which else"], 0, atol=1e-12)


def test_the_errors_are_0_where_nothing_is_wrong():
    """Ten examples of each of two classes, seven of ten right at a confidence of 0.7."""
    top = np.repeat([0, 1], 10)
    labels = np.where(np.arange(20) % 10 < 7, top, 1 - top)
    probs = np.where(np.eye(2, dtype=bool)[top], 0.7, 0.3)
    found = parts.numbers(np.log(probs), labels, top)
    np.testing.assert_allclose([found["confidence"], found["class shares"]], 0, atol=1e-12)
    found = parts.numbers(np.log(np.where(np.eye(2, dtype=bool)[top], 0.9, 0.1)), labels, top)
    expected = 0.7 * np.log(0.7 / 0.9) + 0.3 * np.log(0.3 / 0.1)
    np.testing.assert_allclose(found["confidence"], expected, rtol=1e-12)


def test_the_error_of_the_class_shares_is_a_divergence():
    labels = np.array([0, 0, 0, 1])
    found = parts.numbers(np.log(np.full((4, 2), 0.5)), labels, labels)
    np.testing.assert_allclose(found["class shares"], 0.75 * np.log(1.5) + 0.25 * np.log(0.5), rtol=1e-12)


def _run(seed: int, gains: tuple[float, float, float], name: str = "A", kind: str = "seeds"):
    nll = dict(zip(answers.METHODS, (1.2, 1.0, *(1.0 - gain for gain in gains)), strict=True))
    noise = 1e-4 * np.random.default_rng(seed).normal(size=5)
    numbers = {
        method: dict.fromkeys((*answers.PARTS, *answers.ERRORS), value + more)
        for (method, value), more in zip(nll.items(), noise, strict=True)
    }
    return {"set": name, "kind": kind, "seed": seed, "parts": numbers}


@pytest.mark.parametrize(
    ("gains", "expected"),
    [((0.1, 0.2, 0.3), SHOWS), ((0.1, 0.2, 0.31), SHOWS), ((0.1, 0.2, 0.2), NOT), ((0.0, 0.2, 0.2), UNTOLD)],
)
@pytest.mark.parametrize("kind", ["seeds", "halves"])
def test_gains_add_up_where_the_gain_of_both_is_near_their_sum(gains, expected, kind):
    found = answers.claims([_run(seed, gains, kind=kind) for seed in range(5)], {})
    (claim,) = [claim for claim in found if "add up" in claim.claim]
    assert claim.verdict == expected


def _cell(loss: str, seed: int, fitted: float):
    scores = {answers.FITTED: {"nll": 0.5}}
    if loss != "ce":
        scores[answers.IMPLIED] = {"nll": 0.52}
    return {
        "loss": loss,
        "seed": seed,
        "record": {"date": "2026-01-01"},
        "fits": {answers.FITTED: {"calibration_gamma": fitted}},
        "metrics": {"test": scores},
    }


def _cells(slope: float, start: float, seeds: int = 3):
    return [
        _cell(loss, seed, start + slope * gamma + 0.01 * seed)
        for loss, gamma in answers.TRAINED.items()
        for seed in range(seeds)
    ]


def test_the_fitted_gamma_is_told_by_its_line():
    own = _cells(1.0, 2.0)
    slope, start = answers.line(own)
    np.testing.assert_allclose([slope.mean, start.mean], [1, 2.01], atol=1e-9)
    np.testing.assert_allclose(answers.given_up(own).mean, 0.02)
    verdicts = [claim.verdict for claim in answers.claims([], {"A": own})]
    assert verdicts == [SHOWS] * 4
    assert [claim.verdict for claim in answers.claims([], {"A": _cells(2.0, -1.0)})][:3] == [SHOWS, NOT, NOT]
    assert {claim.verdict for claim in answers.claims([], {"A": _cells(1.0, 2.0, seeds=1)})} == {UNTOLD}


def test_a_gamma_of_one_seed_does_not_bend_that_seed_s_line():
    own = _cells(1.0, 2.0)
    fewer = [run for run in own if run["loss"] != "fl7" or run["seed"] == own[0]["seed"]]
    without = [run for run in own if run["loss"] != "fl7"]
    assert len(fewer) == len(without) + 1
    assert answers.line(fewer) == answers.line(without)
    assert answers.given_up(fewer) == answers.given_up(without)


def test_all_is_written_from_outputs_and_kept(tmp_path, monkeypatch):
    logits, labels = _outputs(2)
    (tmp_path / "logits").mkdir()
    np.savez(tmp_path / "logits" / "mine.npz", logits=logits, labels=labels)
    out = tmp_path / "out"
    out.mkdir()
    (out / "README.md").write_text("<!-- gains -->\n<!-- end -->\n<!-- gammas -->\n<!-- end -->\n")
    monkeypatch.setattr(cells, "compared", lambda task: _cells(1.0, 2.0) if task == "sst" else [])
    flags = [f"--logits={tmp_path / 'logits'}", "--splits=3", f"--out={out}"]
    monkeypatch.setattr("sys.argv", ["map_and_matrix", *flags])
    command.main()
    first = (out / "results.json").read_text()
    assert [(run["set"], run["seed"]) for run in json.loads(first)["runs"]] == [("mine", 0), ("mine", 1), ("mine", 2)]
    assert {path.name for path in (out / "figures").iterdir()} == {"gains.png", "gamma.png"}
    text = (out / "README.md").read_text()
    assert "| mine | 3 | right or wrong | " in text
    assert "| SST, two classes | 2.01 (" in text
    monkeypatch.setattr("sys.argv", ["map_and_matrix", f"--out={out}"])
    command.main()
    assert (out / "results.json").read_text() == first


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--cells=nowhere"], "nowhere: holds no cell"),
        (["--logits=nowhere"], "nowhere: holds no .npz file"),
        (["--splits=1"], "--splits: 1 is fewer than 2"),
    ],
)
def test_bad_input_is_one_line_and_code_2(flags, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["map_and_matrix", f"--out={tmp_path}", *flags])
    with pytest.raises(SystemExit) as stopped:
        command.main()
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1


def test_the_readme_s_tables_are_those_of_the_stored_runs():
    text = (command.HERE / "README.md").read_text(encoding="utf-8")
    path = command.HERE / "results.json"
    if not path.exists():
        assert "Not yet run" in text
        return
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
    assert answers.gains_table(runs) in text
    assert answers.errors_table(runs) in text
