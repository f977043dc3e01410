"""Hessian products and trace-regularised gradients against a plain gradient, and against PyTorch's tools."""

from typing import Any

import jax

from experiments import timing
from experiments.benchmarks import pytorch
from experiments.numbers import markdown
from focalgeo import curvature, losses, models, trees

NETWORKS = {  # name -> model, options, image shape, batch: that of the papers' image recipes
    "digits MLP": ("mlp", {"hidden": (32, 32)}, (8, 8, 1), 359),
    "MLP": ("mlp", {"hidden": (512, 512)}, (28, 28, 1), 256),
    "ResNet-20": ("resnet20", {}, (32, 32, 3), 128),
}
LEAST_SECONDS = 0.2  # of a round of one call, which repeats it as often as fits
WEIGHT = 0.1  # of the trace in the regularised loss


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Seconds of every call, and megabytes of temporary memory of our compiled ones.

    The network is in evaluation mode at its initial weights, the examples are random: time depends on neither.
    """
    model_name, options, shape, batch = NETWORKS[name]
    keys = jax.random.split(jax.random.key(0), 3)
    x, y = jax.random.normal(keys[0], (batch, *shape)), jax.random.randint(keys[1], (batch,), 0, 10)
    model = models.build(model_name, **options)
    variables = dict(jax.jit(model.init)(keys[2], x[:2]))
    params = variables.pop("params")

    def loss(params, vector, key, x, y):
        return losses.cross_entropy(model.apply({"params": params, **variables}, x), y).mean()

    def product(params, vector, *rest):
        return curvature.hvp(lambda at: loss(at, vector, *rest), params, vector)

    def regularised(params, vector, key, *examples):
        value, trace = curvature.value_and_trace(lambda at: loss(at, vector, key, *examples), params, key)
        return value + WEIGHT * trace

    functions = {"gradient": jax.grad(loss), "hvp": product, "trace-regularised gradient": jax.grad(regularised)}
    vector = trees.gaussian(jax.random.key(1), params)
    arguments = params, vector, jax.random.key(2), x, y
    compiled = {name: jax.jit(call).lower(*arguments).compile() for name, call in functions.items()}
    calls = {name: lambda call=call: call(*arguments) for name, call in compiled.items()}
    calls |= pytorch.curvature_calls(name, params, x, y)
    seconds = timing.interleaved(calls, rounds=rounds, seconds=LEAST_SECONDS)
    megabytes = {name: call.memory_analysis().temp_size_in_bytes / 1e6 for name, call in compiled.items()}
    sizes = {"network": name, "parameters": trees.size(params), "batch": batch}
    return sizes | {"seconds": seconds, "megabytes": megabytes}


def table(part: dict[str, Any]) -> str:
    """Each call beside the plain gradient of its own library."""
    lines = []
    for row in part["rows"]:
        what = f"{row['network']}, {row['parameters']:,}, {row['batch']}"
        for name, seconds in row["seconds"].items():
            megabytes, memory, own = row["megabytes"], "", "torch gradient"
            if name in megabytes:
                own = "gradient"
                memory = f"{megabytes[name]:.3g} ({megabytes[name] / megabytes[own]:.2f})"
            lines.append([what, name, f"{1e3 * seconds:.4g}", f"{seconds / row['seconds'][own]:.2f}", memory])
    heads = ("network, parameters, batch", "call", "ms", "times its own gradient", "temporary MB (times)")
    return markdown(heads, lines)
