import json

import jax
import numpy as np
import pytest

from experiments.benchmarks import throughput as benchmark
from experiments.benchmarks import training_path
from focalgeo import data, models, trees
from focalgeo.job.preparation import normalisation

RESNETS = ("ResNet-18", "ResNet-50", "WRN-26-10", "ResNet-20")
TINY = ("tiny ResNet", "tiny bottleneck ResNet")


@pytest.mark.long
def test_a_quick_run_prints_both_tables_and_writes_nothing(capsys, monkeypatch, tmp_path):
    results = tmp_path / "results_throughput.json"
    monkeypatch.setattr(benchmark, "RESULTS", results)
    benchmark.main(["--quick"])
    printed = capsys.readouterr().out
    assert printed.count("| tiny ResNet, 4 |") == 2 + bool(benchmark.torch_training)
    assert ("not installed: torch" in printed) == (benchmark.torch_training is None)
    assert not results.exists()


def test_a_run_replaces_its_own_rows_only(monkeypatch, tmp_path):
    results = tmp_path / "results_throughput.json"
    results.write_text(json.dumps({"another device": {"host": []}}))
    monkeypatch.setattr(benchmark, "RESULTS", results)
    for name, draw in (("tiny ResNet", 1.0), ("small CNN", 2.0), ("tiny ResNet", 3.0)):
        row = {**HOST_ROW, "network": name, "host milliseconds": {"spec": draw, "dispatch": 0.1, "metrics": 0.1}}
        monkeypatch.setattr(benchmark, "host_row", lambda name, row=row, **_: row)
        benchmark.main(["--parts", "host", "--networks", name, "--batch", "4"])
    found = json.loads(results.read_text())
    assert found["another device"] == {"host": []}
    rows = [(row["network"], row["host milliseconds"]["spec"]) for row in found["cpu"]["host"]]
    assert rows == [("small CNN", 2.0), ("tiny ResNet", 3.0)]


HOST_ROW = {
    "batch": 4,
    "dtype": "float32",
    "seconds": {"fresh": 0.1, "kept": 0.1, "ready": 0.1},
    "median seconds": {"fresh": 0.1, "kept": 0.1, "ready": 0.1},
    "median of rounds": {"kept": 1.0, "ready": 1.0},
    "host milliseconds": {"spec": 0.1, "dispatch": 0.1, "metrics": 0.1},
}


def test_repeated_steps_do_what_the_loop_does():
    own = training_path.make_training("tiny ResNet", batch=4, examples=8, dtype="float32")
    draw = next(own.pipeline.specs(0, 0))
    looped = own.program.step(own.program.place(own.state), draw)[0][0]
    for lowered, inputs in (training_path.lowered_on_a_spec(own), training_path.lowered_on_a_batch(own)):
        repeated = lowered.compile()(own.program.place(own.state)[0], *inputs)[0]
        for ours, theirs in zip(jax.tree.leaves(looped.params), jax.tree.leaves(repeated.params), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_flops_are_those_of_the_layers():
    own = training_path.make_training("tiny ResNet", batch=4, examples=8, dtype="float32")
    lowered, _ = training_path.lowered_on_a_spec(own)
    # products of 3x3 convolutions over 32x32 (of 3 to 4 and twice 4 to 4 channels) and 16x16, without the padding
    first, second = (3 * size - 2 for size in (32, 16))
    strided = 3 * 16 - 1  # every second position: only the first reaches over the edge
    forward = first**2 * 4 * (3 + 4 + 4) + strided**2 * 4 * 8 + second**2 * 8 * 8 * 3 + 16 * 16 * 4 * 8 + 8 * 10
    gradients = 2 * forward - first**2 * 3 * 4  # of pixels there is none
    convolutions = 2 * 4 * (forward + gradients) / len(jax.devices())
    assert convolutions < benchmark.flops(lowered) < 1.4 * convolutions


@pytest.mark.parametrize("name", RESNETS)
def test_pytorch_networks_have_our_number_of_parameters(name):
    torch = pytest.importorskip("torch", reason="pip install -e '.[benchmarks]'")
    from experiments.benchmarks import torch_networks

    with torch.device("meta"):
        theirs = sum(leaf.numel() for leaf in torch_networks.network(name).parameters())
    model, options, _ = training_path.NETWORKS[name]
    shapes = jax.eval_shape(models.build(model, **options).init, jax.random.key(0), np.zeros((2, 32, 32, 3), "float32"))
    assert theirs == trees.size(shapes["params"])


@pytest.fixture(scope="module", params=TINY)
def pair(request):
    """Our training, and the same network in PyTorch with our weights, made uneven so that every one of them counts."""
    pytest.importorskip("torch", reason="pip install -e '.[benchmarks]'")
    from experiments.benchmarks import torch_networks

    own = training_path.make_training(request.param, batch=8, examples=8, dtype="float32")
    rng = np.random.default_rng(1)
    uneven = lambda leaf: (np.asarray(leaf) * rng.uniform(0.5, 1.5, leaf.shape)).astype(np.float32)  # noqa: E731
    changed = {"params": own.state.params, "model_state": own.state.model_state}
    own = own._replace(state=own.state._replace(**jax.tree.map(uneven, changed)))
    variables = jax.tree.map(lambda leaf: leaf[0], {"params": own.state.params, **own.state.model_state})
    theirs = torch_networks.network(request.param)
    torch_networks.copy_weights(theirs, variables["params"], variables["batch_stats"])
    model, options, _ = training_path.NETWORKS[request.param]
    return own, models.build(model, **options), variables, theirs


def test_logits_are_equal_in_evaluation_and_in_training(pair):
    import torch

    _, model, variables, theirs = pair
    x = np.random.default_rng(2).normal(size=(8, 32, 32, 3)).astype(np.float32)
    pixels = torch.from_numpy(np.ascontiguousarray(np.moveaxis(x, -1, 1)))
    evaluated = jax.jit(model.apply)(variables, x)
    trained, _ = jax.jit(lambda v: model.apply(v, x, train=True, mutable=["batch_stats"]))(variables)
    with torch.no_grad():
        np.testing.assert_allclose(theirs.eval()(pixels), evaluated, atol=1e-4)
        statistics = {name: value.clone() for name, value in theirs.state_dict().items()}
        np.testing.assert_allclose(theirs.train()(pixels), trained, atol=1e-4)
    theirs.load_state_dict(statistics)
    assert np.ptp(evaluated) > 0.01
    assert np.max(np.abs(evaluated - trained)) > 0.01


def test_a_step_of_both_is_the_same(pair):
    """The same draw, so the same crops and flips; then the networks agree again, running statistics included."""
    import torch

    from experiments.benchmarks import torch_training

    own, model, _, theirs = pair
    step = torch_training.make_step(theirs, own.split, own.config, dtype="float32")
    chunks, losses = own.program.place(own.state), []
    for draw in (next(own.pipeline.specs(epoch, 0)) for epoch in (0, 1)):
        chunks, metrics, _ = own.program.step(chunks, draw)
        losses.append(metrics[0]["loss"][0] / 8)
        rows, offsets, mirrored = (draw.indices, draw.changes["offsets"], draw.changes["mirrored"])
        found = step(
            tuple(
                torch.from_numpy(leaf[0]).to(kind)
                for leaf, kind in ((rows, torch.int64), (offsets, torch.int64), (mirrored, torch.bool))
            )
        )
        np.testing.assert_allclose(found, losses[-1], rtol=1e-4)
    after = jax.tree.map(lambda leaf: leaf[0], own.program.whole(chunks))
    x = data.normalise_images(own.split.x, normalisation(own.config, own.split))
    evaluated = jax.jit(model.apply)({"params": after.params, **after.model_state}, x)
    with torch.no_grad():
        pixels = torch.from_numpy(np.ascontiguousarray(np.moveaxis(x, -1, 1)))
        np.testing.assert_allclose(theirs.eval()(pixels), evaluated, atol=1e-4)
