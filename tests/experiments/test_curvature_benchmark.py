import json

import jax
import numpy as np
import pytest

from experiments.benchmarks import curvature as benchmark
from experiments.benchmarks import hessian_peers, problems, products_memory
from focalgeo import curvature


@pytest.mark.long
def test_a_quick_run_prints_every_table_and_writes_nothing(capsys, monkeypatch, tmp_path):
    results = tmp_path / "results_curvature.json"
    monkeypatch.setattr(benchmark, "RESULTS", results)
    monkeypatch.setattr(products_memory, "measured", _without_a_process)
    benchmark.main(["--quick"])
    printed = capsys.readouterr().out
    for name in ("gradient", "hvp", "linearized_hvp, point kept", "ours, lambda_max", "ours, hutch++", "PyHessian"):
        assert f"| {name} |" in printed
    assert not results.exists()
    benchmark.main(["--parts", "memory", "--images", "4"])
    assert [row["images"] for row in json.loads(results.read_text())["memory"]] == [4]


def _without_a_process(images, *, batch, network):
    sizes = {"seconds": 0.1, "images MB": 0.1, "before MB": 1, "peak MB": 2}
    return {"network": network, "images": images, "batch": batch, **sizes}


def test_the_memory_of_a_product_is_told(capsys, monkeypatch):
    monkeypatch.delenv("FOCALGEO_DATA", raising=False)
    products_memory.main(["--images", "6", "--batch", "3", "--network", "digits MLP"])
    told = json.loads(capsys.readouterr().out)
    assert (told["images"], told["source"]) == (6, "random")
    assert told["peak MB"] >= told["before MB"] > 0


@pytest.mark.skipif(hessian_peers.pyhessian is None, reason="pip install -e '.[benchmarks]'")
def test_pyhessian_is_given_our_hessian():
    problem = problems.make_problem("digits MLP", 20)
    matrix = curvature.dense_hessian(lambda p: problem.loss(p, problem.x, problem.y), problem.params)
    found = hessian_peers.pyhessian_estimates(problem, seeds=1)
    assert found["eigenvalues()"][0][0] == pytest.approx(np.linalg.eigvalsh(np.asarray(matrix))[-1], rel=0.2)


def test_the_problem_is_in_evaluation_mode():
    problem = problems.make_problem("ResNet-20", 2)
    loss = jax.jit(problem.loss)(problem.params, problem.x, problem.y)
    assert np.isfinite(loss)
    assert "batch_stats" in problem.model_state
