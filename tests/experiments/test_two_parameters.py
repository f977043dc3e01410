"""Descent on two parameters, its known limit, and the verdicts and tables of experiments/two_parameters."""

import json

import numpy as np
import pytest

from experiments.intervals import NOT, SHOWS
from experiments.two_parameters import __main__ as command
from experiments.two_parameters import answers, descent


@pytest.fixture(scope="module")
def runs():
    return descent.measure(3)


def _verdicts(runs):
    return {claim.claim: claim.verdict for claim in answers.claims(runs)}


def test_without_spread_the_norm_is_the_known_one(runs):
    for loss, limit in answers.LIMITS.items():
        norms = list(answers.by_seed(runs, 0.0, loss, "weight norm").values())
        np.testing.assert_allclose(norms, limit, rtol=1e-4)


def test_descent_has_ended(runs):
    assert max(run["last change"] for run in runs) < 1e-4


def test_the_gradient_at_the_end_is_that_of_the_job(runs):
    """The optimum in float64, by Newton's method on cross-entropy."""
    points, labels = descent.sample(0.5, 1)["train"]
    weights = np.zeros(2)
    for _ in range(20):
        p = 1 / (1 + np.exp(-points @ weights))
        hessian = (points * (p * (1 - p))[:, None]).T @ points
        weights -= np.linalg.solve(hessian, points.T @ (p - labels))
    own = next(run for run in runs if (run["deviation"], run["loss"], run["seed"]) == (0.5, "ce", 1))
    np.testing.assert_allclose(own["weights"], weights, atol=2e-3)


def test_verdicts_follow_the_numbers(runs):
    found = _verdicts(runs)
    assert found["deviation 0.5: the norm of the weights is smaller with focal loss"] == SHOWS
    assert found["deviation 0.5: the norm of the weights is larger with focal loss"] == NOT
    assert found["without spread ‖w‖ of CE is 2.1972"] == SHOWS
    turned = [run | {"weight norm": -run["weight norm"]} for run in runs]
    assert _verdicts(turned)["without spread ‖w‖ of CE is 2.1972"] == NOT
    assert _verdicts(turned)["deviation 0.5: the norm of the weights is smaller with focal loss"] == NOT


def test_all_is_written_and_written_again_from_what_is_stored(runs, tmp_path, monkeypatch):
    (tmp_path / "README.md").write_text("<!-- norms -->\n<!-- end -->\n")
    command.write(runs, tmp_path, 1.0, "2026-01-01")
    first = (tmp_path / "results.json").read_text()
    monkeypatch.setattr("sys.argv", ["two_parameters", "--tables", f"--out={tmp_path}"])
    command.main()
    assert (tmp_path / "results.json").read_text() == first
    assert json.loads(first)["about"]["answers"] == ["M Fig. 5", "M Fig. 6"]
    assert "| 0.5 | FL-1 | 1." in (tmp_path / "README.md").read_text()
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"norms.png", "planes.png"}


def test_tables_of_nothing_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["two_parameters", "--tables", f"--out={tmp_path / 'none'}"])
    with pytest.raises(SystemExit) as stopped:
        command.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
