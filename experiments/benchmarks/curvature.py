"""Hessian products and trace-regularised gradients against a plain gradient, and against PyTorch's tools."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from experiments import timing
from experiments.benchmarks import pytorch
from experiments.numbers import markdown
from focalgeo import curvature, losses, models, trees
from focalgeo.types import Array, PyTree

NETWORKS = {  # name -> model, options, image shape, batch: that of the papers' image recipes
    "digits MLP": ("mlp", {"hidden": (32, 32)}, (8, 8, 1), 359),
    "MLP": ("mlp", {"hidden": (512, 512)}, (28, 28, 1), 256),
    "ResNet-20": ("resnet20", {}, (32, 32, 3), 128),
}
LEAST_SECONDS = 0.2  # of a round of one call, which repeats it as often as fits
WEIGHT = 0.1  # of the trace in the regularised loss


def measure(name: str, *, rounds: int = 7) -> dict[str, Any]:
    """Seconds of every call, the least and the median of interleaved rounds, and megabytes of our compiled ones.

    The network is in evaluation mode at its initial weights, the examples are random: time depends on neither.
    """
    model_name, options, shape, batch = NETWORKS[name]
    keys = jax.random.split(jax.random.key(0), 3)
    x, y = jax.random.normal(keys[0], (batch, *shape)), jax.random.randint(keys[1], (batch,), 0, 10)
    model = models.build(model_name, **options)
    variables = dict(jax.jit(model.init)(keys[2], x[:2]))
    params = variables.pop("params")

    def loss(params: PyTree, x: Array, y: Array) -> Array:
        return losses.cross_entropy(model.apply({"params": params, **variables}, x), y).mean()

    vector = trees.gaussian(jax.random.key(1), params)
    arguments = params, vector, jax.random.key(2), x, y
    compiled = {name: jax.jit(call).lower(*arguments).compile() for name, call in functions(loss).items()}
    calls = {name: lambda call=call: call(*arguments) for name, call in compiled.items()}
    matvec = jax.jit(curvature.linearized_hvp(lambda p: loss(p, x, y), params))
    calls["linearized_hvp, point kept"] = lambda: matvec(vector)
    calls |= pytorch.curvature_calls(name, params, x, y)
    times = timing.interleaved(calls, rounds=rounds, seconds=LEAST_SECONDS)
    megabytes = {name: _megabytes(call) for name, call in compiled.items()}
    return {"network": name, "parameters": trees.size(params), "batch": batch, **times, "megabytes": megabytes}


def functions(loss: Callable[[PyTree, Array, Array], Array]) -> dict[str, Callable]:
    """Functions of (params, vector, key, x, y) to be compiled; the key draws the probe, as training does."""

    def product(params, vector, key, x, y):
        return curvature.hvp(lambda p: loss(p, x, y), params, vector)

    def regularised(form: str) -> Callable:
        def total(params, key, x, y):
            value, trace = curvature.value_and_trace(lambda p: loss(p, x, y), params, key, form=form)
            return value + WEIGHT * trace

        return lambda params, vector, key, x, y: jax.grad(total)(params, key, x, y)

    plain = {"gradient": lambda params, vector, key, x, y: jax.grad(loss)(params, x, y), "hvp": product}
    return plain | {f"trace-regularised gradient, {form}": regularised(form) for form in curvature.penalty.FORMS}


def _megabytes(compiled: Any) -> dict[str, float]:
    memory = compiled.memory_analysis()
    whole = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
    return {"temporary": memory.temp_size_in_bytes / 1e6, "peak": whole / 1e6}


def table(rows: Sequence[dict]) -> str:
    """Each call beside the plain gradient of its own library."""
    lines = []
    for row in rows:
        megabytes, base = row["megabytes"], row["megabytes"]["gradient"]
        for name, seconds in row["seconds"].items():
            own = "gradient" if name in megabytes or name.startswith("linearized") else "torch gradient"
            ratios = [row[kind][name] / row[kind][own] for kind in ("seconds", "median seconds")]
            held = [f"{megabytes[name][k]:.3g} ({megabytes[name][k] / base[k]:.2f})" for k in base if name in megabytes]
            what = f"{row['network']}, {row['parameters']:,}, {row['batch']}"
            lines.append([what, name, f"{1e3 * seconds:.4g}", "{:.2f} ({:.2f})".format(*ratios), *(held or ["", ""])])
    heads = ("network, parameters, batch", "call", "ms", "times its own gradient (medians)")
    return markdown((*heads, "temporary MB (times)", "peak MB (times)"), lines)
