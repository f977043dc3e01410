"""Gains, slopes, T on train and tables of experiments/focal_temperature, from made-up runs and a small file."""

import json

import numpy as np
import pytest

from experiments.focal_temperature import __main__ as command
from experiments.focal_temperature import answers, others
from experiments.intervals import NOT, SHOWS, UNTOLD
from focalgeo.types import InputError

GAMMAS = [-0.5, 0.0, 0.5, 1.0, 5.0]


def _run(loss: str, seed: int, gain: float = 0.2, up: float = 0.5, train: float = 0.45, task: str = "sst") -> dict:
    noise = 0.01 * (seed - 1)
    metrics = {"uncalibrated": {"accuracy": 0.85, "nll": 0.5, "ece": 0.08, "adaptive_ece": 0.08}}
    for method in ("temperature_scaling", "focal_temperature_scaling", "vector_scaling", "focal_vector_scaling"):
        own = {"accuracy": 0.85, "nll": 0.4, "ece": 0.02, "adaptive_ece": 0.02}
        if method.startswith("focal"):
            own |= {name: own[name] * (1 - gain - noise) for name in ("nll", "ece", "adaptive_ece")}
        metrics |= {f"{method}/{criterion}": own for criterion in ("nll", "ece", "adaptive_ece", "line_search")}
    fits = {name: {"temperature": 1.5, "calibration_gamma": 0.5} for name in metrics if "/" in name}
    best = [1.5 + up * gamma for gamma in GAMMAS]
    of_train = [train + noise] * len(GAMMAS)
    curves = {"val": dict.fromkeys(("nll", "ece", "adaptive_ece"), best)} | (
        {} if task == "others" else {"train": dict.fromkeys(("nll", "ece"), of_train)}
    )
    run = {
        "task": task,
        "loss": loss,
        "seed": seed,
        "classes": 2,
        "metrics": {"test": metrics, "val": metrics},
        "fits": fits,
    }
    return run | {"temperatures": {"gammas": GAMMAS, **curves}, "record": {"date": "2026-01-01"}}


def _runs(seeds: int = 3, **options) -> list[dict]:
    return [_run(loss, seed, **options) for loss in ("ce", "fl3") for seed in range(seeds)]


def _verdict(runs: list[dict], text: str) -> str:
    return next(claim.verdict for claim in answers.claims(runs) if text in claim.claim)


@pytest.mark.parametrize("words", ["by AdaECE lowers test AdaECE", "by ECE lowers test ECE", "by NLL lowers test NLL"])
def test_a_gain_is_shown_or_not(words):
    assert _verdict(_runs(), words) == SHOWS
    assert _verdict(_runs(gain=-0.2), words) == NOT
    assert _verdict(_runs(seeds=1), words) == UNTOLD
    of_one_seed = _run("brier", 0, gain=-0.9)
    assert _verdict([*_runs(), of_one_seed], words) == SHOWS  # left out, and the others keep their interval


def test_the_line_and_t_on_train():
    assert _verdict(_runs(), "best T by ECE rises") == SHOWS
    assert _verdict(_runs(up=-0.5), "best T by ECE rises") == NOT
    assert _verdict(_runs(), "FL-3: T on train") == SHOWS
    assert _verdict(_runs(train=0.9), "FL-3: T on train") == NOT
    np.testing.assert_allclose(answers.slope(_run("ce", 0), "ece"), (0.5, 1))


def test_halves_of_one_file_have_the_wider_interval():
    own = [_run("net", seed, task="others") for seed in range(6)]
    plain = [run | {"task": "sst"} for run in own]
    gain = answers.relative_gain("ece", "ece")
    wide, narrow = answers.mean(("others", "net"), own, gain), answers.mean(("sst", "net"), plain, gain)
    np.testing.assert_allclose((wide.high - wide.mean) / (narrow.high - narrow.mean), np.sqrt(7))


def test_all_is_written_with_the_papers_numbers(tmp_path):
    (tmp_path / "README.md").write_text("<!-- table 1 -->\n<!-- end -->\n<!-- train -->\n<!-- end -->\n")
    cifar = [run | {"task": "cifar10", "classes": 10} for run in _runs()]
    measured = [_run("net", seed, task="others") for seed in range(3)]
    command.write([*cifar, *_runs()], measured, tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "| paper, CIFAR-10, ResNet-50 | 5 | 95 | 16 | 17 | -6.3 | 1.03 | 0.71 | +31 | 1.72 | 1, 2.36 |" in text
    assert "| SST, two classes, FL-3 | 0.45 (" in text
    found = json.loads((tmp_path / "results.json").read_text())
    assert len(found["others"]) == 3
    assert (tmp_path / "figures" / "temperatures.png").exists()


def test_a_file_of_outputs_is_measured_by_halves(tmp_path):
    rng = np.random.default_rng(0)
    logits = 3 * rng.standard_normal((400, 4))
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(-1)
    np.savez(tmp_path / "net.npz", logits=logits, labels=labels)
    found = others.measure(tmp_path / "net.npz", 2)
    assert [run["seed"] for run in found] == [0, 1]
    assert found[0]["metrics"]["test"].keys() == {"uncalibrated", *(f"{method}/{name}" for method, name in others.FITS)}
    assert found[0]["metrics"] != found[1]["metrics"]
    np.testing.assert_allclose(found[0]["fits"]["temperature_scaling/nll"]["temperature"], 2, rtol=0.3)
    assert "| others' net | 2 |" in answers.table_1(found)
    np.savez(tmp_path / "wrong.npz", scores=logits)
    with pytest.raises(InputError, match="wrong has neither logits nor probs"):
        others.measure(tmp_path / "wrong.npz", 2)


def test_a_folder_without_outputs_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["focal_temperature", f"--logits={tmp_path}", f"--out={tmp_path / 'out'}"])
    with pytest.raises(SystemExit) as stopped:
        command.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
