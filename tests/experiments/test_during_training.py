"""The figures, tables and verdicts of experiments/during_training, from runs made up with known numbers."""

import json
import sys

import numpy as np
import pytest

from experiments import cells, jobs
from experiments.diagnosed import FIELDS, diagnosed
from experiments.during_training import __main__ as command
from experiments.during_training import figures, images, numbers, tables, verdicts
from experiments.intervals import NOT, SHOWS, UNTOLD

EPOCHS = np.arange(1.0, 11.0)
AT = ("1", "6", "10")
GAMMAS = {"ce": 0, "fl1": 1, "fl2": 2, "fl3": 3}


def _means(gamma: float, noise: float, growth: float) -> dict[str, list]:
    late = (EPOCHS - 1) / 9
    falling, sure = 2 - 1.9 * late, 1 / (1 + gamma)
    own = {
        "nll": falling * (1 - noise),
        "nll correct": 0.5 * falling,
        "nll wrong": 2 + growth * sure * late * (1 + noise),
        "entropy": falling + 0.1 * gamma,
        "entropy correct": 0.5 * falling + 0.1 * gamma + noise,
        "entropy wrong": falling + 0.2 * gamma + noise,
        "true_class_probability": late,
        "true_class_probability correct": late,
        "true_class_probability wrong": 0.1 * late,
        "gradient_norm": falling * sure + noise,
        "gradient_norm correct": falling * sure,
        "gradient_norm wrong": falling,
        "error": 0.5 - 0.4 * late + 0.01 * noise,
        "ece": 0.02 + 0.1 * sure * late + noise / 100,
    }
    return {name: values.tolist() for name, values in own.items()}


def _reliability(share: float) -> dict[str, list]:
    bins = [[0.48, 0.52, 1 - share, 0.5, 0.6], [0.96, 1.0, share, 0.99, 0.95]]
    return {
        "1": bins[:1],
        "6": [[*bins[0][:2], 1 - share / 2, 0.5, 0.6], [0.96, 1.0, share / 2, 0.99, 0.9]],
        "10": bins,
    }


def _diagnostics(gamma: float, noise: float, growth: float) -> dict:
    train = _means(gamma, noise, growth)
    train["nll wrong"][-1] = None  # nothing of train is wrong at the end
    norms = [[0.0, 1e-12, 0.1]] + [[10.0 ** (at / 4 - 3), 10.0 ** ((at + 1) / 4 - 3), 0.1] for at in (0, 1, 4, 5, 6)]
    histogram = [[0.24, 0.28, 0.25], [0.28, 0.32, 0.15], [0.96, 1.0, 0.6]]
    confidence = np.linspace(0.5, 0.99, 100)
    return {
        "examples": {"train": 5000, "test": 5000},
        "epochs": EPOCHS.tolist(),
        "weight_norm": (3 + 0.1 * gamma + (0.3 - 0.1 * gamma) * (EPOCHS - 1) + noise / 10).tolist(),
        "means": {"train": train, "test": _means(gamma, noise, growth)},
        "reliability": {split: _reliability(0.9 - 0.2 * gamma + noise / 10) for split in ("train", "test")},
        "histograms": {
            "gradient_norm": {"train": {at: norms for at in AT}},
            "true_class_probability": {"train": {at: histogram for at in AT}},
        },
        "images": {
            "index": list(range(0, 10000, 100)),
            "label": [at // 10 for at in range(100)],
            "predicted": [at // 10 if at % 5 else 9 - at // 10 for at in range(100)],
            "confidence": (confidence - 0.05 * gamma + noise / 10).tolist(),
            "after": (confidence - 0.1).tolist(),
            "temperature": 1.5,
        },
    }


def _run(loss: str, seed: int, growth: float = 1.0) -> dict:
    noise = 0.01 * ((seed + GAMMAS.get(loss, 4)) % 3 - 1)
    own = {"accuracy": 0.8 + noise / 100, "high_confidence": 0.6 + noise, "high_confidence_accuracy": 0.95 + noise}
    after = {"high_confidence": 0.1 + noise, "high_confidence_accuracy": 0.99}
    if loss == "flsd53":
        own, after = (
            own | {"high_confidence": 0.3, "high_confidence_accuracy": 0.99},
            after | {"high_confidence": 0.2},
        )
    found = {
        "task": "cifar10",
        "loss": loss,
        "seed": seed,
        "record": {"commit": "0", "config": "small,ce", "date": "2026-01-01", "versions": {}, "seconds": 10.0},
        "metrics": {"test": {numbers.PLAIN: own, numbers.SCALED: after}},
    }
    if loss in GAMMAS:
        found["diagnostics"] = _diagnostics(GAMMAS[loss], noise, growth)
    return found


def _runs(seeds: int = 3, growth: float = 1.0) -> list[dict]:
    return [_run(loss, seed, growth) for loss in (*GAMMAS, "mmce", "flsd53") for seed in range(seeds)]


def _verdicts(runs: list[dict]) -> dict[str, str]:
    return {claim.claim: claim.verdict for claim in verdicts.claims(runs)}


WRONG_GROWS = "CE, late in training: NLL of test examples predicted wrong grows"
LESS = "FL-3 beside CE: NLL of test examples predicted wrong grows less late in training"


def test_verdicts_follow_the_numbers():
    found = _verdicts(_runs())
    assert found[WRONG_GROWS] == found[LESS] == SHOWS
    assert found["CE, late in training: entropy of test examples predicted wrong falls"] == SHOWS
    assert found["CE, late in training: NLL of test examples grows"] == NOT
    assert found["FL-3 beside CE: the last layer's weights are larger after epoch 1"] == SHOWS
    assert found["FL-3 beside CE: the last layer's weights are smaller at the end"] == SHOWS
    assert found["FLSD-53 beside CE: after T S99 holds more test images"] == SHOWS
    turned = _verdicts(_runs(growth=-1.0))
    assert turned[WRONG_GROWS] == turned[LESS] == NOT


@pytest.mark.parametrize(("more", "expected"), [(0.0, SHOWS), (0.05, NOT)])
def test_error_is_kept_only_within_a_point(more, expected):
    runs = _runs()
    for run in runs:
        if run["loss"] == "fl3":
            run["metrics"]["test"][numbers.PLAIN]["accuracy"] -= more
    assert _verdicts(runs)["FL-3 beside CE: error on all test examples is at most 1 point higher"] == expected


def test_one_seed_or_no_run_tells_nothing():
    assert set(_verdicts(_runs(seeds=1)).values()) == {UNTOLD}
    without = _verdicts([run for run in _runs() if run["loss"] != "fl3"])
    assert (without[LESS], without[WRONG_GROWS]) == (UNTOLD, SHOWS)


def test_late_is_from_the_middle_epoch_to_the_last():
    run = _run("ce", 1)
    values = run["diagnostics"]["means"]["test"]["ece"]
    np.testing.assert_allclose(numbers.change("test", "ece")(run), 100 * (values[9] - values[5]))
    assert [numbers.epoch(run, when) for when in figures.WHENS] == [1, 6, 10]


def test_an_outcome_without_examples_is_left_out():
    runs = _runs()
    assert numbers.by_seed(runs, "ce", numbers.at("train", "nll wrong")) == {}
    last = numbers.band(runs, "ce", "train", "nll wrong")[-1]
    assert np.isnan(last.mean)


def test_shares_are_of_the_bins_beyond_the_edge():
    np.testing.assert_allclose(numbers.surest()(_run("ce", 1)), 100 * (0.9 + numbers_noise("ce", 1) / 10))
    assert numbers.beyond_threshold(_run("ce", 0)) is None
    np.testing.assert_allclose(numbers.beyond_threshold(_run("fl3", 0)), 75)
    np.testing.assert_allclose(numbers.beyond_threshold(_run("fl1", 0)), 60)


def numbers_noise(loss: str, seed: int) -> float:
    return 0.01 * ((seed + GAMMAS[loss]) % 3 - 1)


def test_table_6_has_the_papers_numbers_beside_ours():
    table = tables.s99(_runs())
    assert "| small ResNet, here | FLSD-53 | 30 (30 to 30) | 99 (99 to 99) | 20 (" in table
    assert "| ResNet-110, Mukhoti et al. | CE | 97.11 | 96.33 | 11.5 | 97.39 |" in table


def test_all_is_written_from_stored_runs(tmp_path):
    (tmp_path / "README.md").write_text(
        "".join(f"<!-- {name} -->\n<!-- end -->\n" for name in ("claims", "end of training", "s99"))
    )
    command.write(_runs(), tmp_path)
    found = json.loads((tmp_path / "results.json").read_text())
    assert len(found["claims"]) == len(verdicts.claims(_runs()))
    assert found["curves"]["ce"]["train nll wrong"][-1] == [None, None, None]
    np.testing.assert_allclose(found["curves"]["ce"]["test nll"][0][0], 2, rtol=0.02)
    assert len(found["runs"]) == 12
    assert found["runs"][0]["record"]["date"] == "2026-01-01"
    text = (tmp_path / "README.md").read_text()
    assert "| at the last epoch | CE, n = 3 | FL-1, n = 3 |" in text
    assert "| M Fig. 1 |" in text
    for name in figures.FIGURES:
        assert (tmp_path / "figures" / f"{name}.png").stat().st_size < 150_000


def test_one_seed_is_drawn_without_bands(tmp_path):
    figures.draw(_runs(seeds=1)[:4], tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == set(figures.FIGURES)


def test_images_are_the_first_of_each_class_that_both_networks_get_right_or_wrong():
    runs = _runs()
    right, wrong = images.choose(images.pair(runs))
    assert right == [1, 11, 21, 31]
    assert wrong == [0, 10, 20, 30]
    with pytest.raises(jobs.InputError, match="no seed has runs of both"):
        images.pair([run for run in runs if run["loss"] == "ce"])


def _called(monkeypatch, *flags: str) -> int:
    monkeypatch.setattr(sys, "argv", ["during_training", *flags])
    with pytest.raises(SystemExit) as ended:
        command.main()
    return ended.value.code


def test_bad_input_is_one_line_and_code_2(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(cells, "ROWS", tmp_path / "none")
    assert _called(monkeypatch) == 2
    assert "no run of experiments/rows" in capsys.readouterr().err
    monkeypatch.setattr(cells, "ROWS", tmp_path / "rows")
    cells.store(_runs(), "cifar10")
    assert _called(monkeypatch, "--cifar10=folder:/nowhere.tar.xz", f"--out={tmp_path / 'out'}") == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_cost_counts_what_is_left(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(cells, "ROWS", tmp_path / "rows")
    cells.store(_runs(), "cifar10")
    monkeypatch.setattr(sys, "argv", ["during_training", "--cost"])
    command.main()
    assert capsys.readouterr().out.startswith("8 runs are left, some 88 minutes")


def test_the_readme_s_tables_are_those_of_the_stored_runs():
    readme = (command.HERE / "README.md").read_text(encoding="utf-8")
    if not (command.HERE / "results.json").exists():
        assert "Not yet run" in readme
        return
    runs = cells.compared("cifar10")
    for name, table in tables.all_tables(runs).items():
        assert table in readme, name
    found = json.loads((command.HERE / "results.json").read_text(encoding="utf-8"))
    assert found["claims"] == [claim._asdict() for claim in verdicts.claims(runs)]


@pytest.mark.long
def test_a_tiny_real_run_has_all_that_is_stored_and_drawn(real_archive, tmp_path):
    fields = FIELDS | {
        "data.name": f"folder:{real_archive('cifar10-jpeg.tar.xz')}",
        "diagnostics.examples": 200,
        "curvature.examples": 0,
        "evaluation.criteria": ("nll", "ece"),
        "evaluation.metrics": ("accuracy", "ece", "high_confidence", "high_confidence_accuracy"),
    }
    runs = []
    for loss in images.SHOWN:
        workdir = tmp_path / loss
        jobs.run(f"configs/cifar.py:resnet18,{loss},quick", workdir, fields)
        own = {"diagnostics": diagnosed(workdir), "metrics": {"test": cells.metrics(jobs.rows_of(workdir), "test")}}
        runs.append(_run(loss, 0) | own)
    assert len(json.dumps(runs[0]["diagnostics"])) < 25_000
    assert runs[0]["diagnostics"]["examples"] == {"train": 200, "test": 200}
    means = runs[0]["diagnostics"]["means"]["test"]
    for at in range(3):
        mixed = means["error"][at] * means["nll wrong"][at] + (1 - means["error"][at]) * means["nll correct"][at]
        np.testing.assert_allclose(means["nll"][at], mixed, rtol=2e-3)
    command.write(runs, tmp_path / "out")
    assert numbers.s99(runs[0], scaled=False) is not None
    with pytest.raises(jobs.InputError, match="are not those of the stored runs"):
        images.draw(runs, tmp_path / "out", fields["data.name"])


@pytest.mark.long
def test_images_are_drawn_from_the_files(real_archive, tmp_path):
    images.draw(_runs(), tmp_path, f"folder:{real_archive('cifar10-jpeg.tar.xz')}")
    assert (tmp_path / "images.png").stat().st_size < 150_000
