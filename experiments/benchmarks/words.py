"""Curvature of a transformer of ten million parameters on sentences: seconds and error of each estimate."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from experiments import jobs, timing
from experiments.benchmarks import outputs
from experiments.numbers import markdown, plain
from focalgeo import curvature, losses
from focalgeo.job import preparation
from focalgeo.training.step import member_state
from focalgeo.types import Estimate

FIELDS = {
    "model.name": "transformer",
    "model.options.embedding_size": 256,
    "model.options.width": 384,
    "model.options.heads": 8,
    "model.options.depth": 3,
    "evaluation.batch_size": 32,
}


def measured(data: str) -> dict[str, Any]:
    """At the initial weights, on 32 sentences of val: the first call of each, compiled in it, and the next."""
    config = preparation.check_config(jobs.load("configs/sst.py:small", FIELDS | {"data.name": data}))
    prepared, states, _ = jobs.ready(config)
    batch = next(preparation.evaluation_batches(config, prepared.dataset.val))
    params, apply = member_state(states, 0).params, prepared.model.apply

    def loss(params):
        return losses.cross_entropy(apply({"params": params}, batch.x), batch.y, mask=batch.mask)

    key, matvec = jax.random.key(0), curvature.linearized_hvp(loss, params)
    calls: dict[str, Callable] = {
        "a product": lambda: matvec(params),
        "λ_max to 1e-3": partial(curvature.lambda_max, matvec, params, key),
        "trace, Hutch++, 15 products": partial(curvature.trace, matvec, params, key, 15, method="hutch++"),
        "density, 2 probes of 10 steps": partial(
            curvature.spectral_density, matvec, params, key, num_probes=2, steps=10
        ),
    }
    rows = []
    for name, call in calls.items():
        found, first = timing.result_and_seconds(call)
        rows.append({"call": name, "first": first, "next": timing.timed(call)})
        if isinstance(found, curvature.Eigenpairs | Estimate):
            rows[-1] |= {"value": float(found.value), "error": float(found[1 if isinstance(found, Estimate) else 2])}
    made = {"machine": timing.machine(), "sentences": len(batch.y)}
    return made | {"parameters": sum(leaf.size for leaf in jax.tree.leaves(params)), "rows": rows}


def words_table(words) -> str:
    """Seconds of the first call and of the next; λ_max has its residual, the trace its standard error."""
    lines = []
    for row in words["rows"]:
        value = [plain(row[name]) if name in row else "" for name in ("value", "error")]
        lines.append([row["call"], plain(row["first"]), plain(row["next"]), *value])
    what = f"{words['parameters']:,} parameters, {words['sentences']} sentences of the Stanford Sentiment Treebank"
    heads = ("call", "seconds, first", "next", "value", "error")
    return f"{what}; {outputs.machines([words])}\n\n{markdown(heads, lines)}"
