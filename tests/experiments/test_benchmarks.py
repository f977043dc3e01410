import json

import numpy as np
import pytest

from experiments.benchmarks import grid_search as benchmark
from experiments.benchmarks import loops, memory
from focalgeo.calibration import grid_search


def test_a_quick_run_prints_the_table_and_writes_nothing(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark, "RESULTS", tmp_path / "results.json")
    benchmark.main(["--quick"])
    printed = capsys.readouterr().out
    for name in benchmark.COLUMNS:
        assert printed.count(f"| {name} |") == 1
    assert not (tmp_path / "results.json").exists()
    benchmark.main(["--sizes", "30x4", "--rounds", "2", "--points", "2", "--temperatures", "5"])
    row = json.loads((tmp_path / "results.json").read_text())["rows"][0]
    assert (row["examples"], row["classes"], row["points"]) == (30, 4, 50)
    assert row["seconds"]["floor"][0] == min(wall for wall, _ in row["all rounds"]["floor"]) > 0


@pytest.mark.parametrize("make", [loops.papers_way, loops.lean_loop, loops._papers_way_numpy, loops._lean_loop_numpy])
def test_the_rivals_compute_what_we_compute(make):
    logits, labels = benchmark.predictions(1500, 20)
    found = grid_search(logits, labels, (0.0, 0.5, 5.0), (2.0, 4.0), criterion="adaptive_ece")
    point = make(logits, labels, 15)
    values = np.array([[point(gamma, temperature) for temperature in (2.0, 4.0)] for gamma in (0.0, 0.5, 5.0)])
    np.testing.assert_allclose(values[..., 1], found.nll, rtol=1e-4)
    np.testing.assert_allclose(values[..., 0], found.ece, atol=3e-3)  # the published edges drop the least confident


def test_the_memory_of_a_search_is_told(capsys):
    memory.main(["--examples", "100", "--classes", "5", "--temperatures", "2"])
    assert "ece, 10 x 2 points: logits 0 MB" in capsys.readouterr().out
