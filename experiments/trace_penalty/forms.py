"""The forms of the penalty at the same weights and rate: what they do, what a step takes, and their noise."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.flatten_util import ravel_pytree

from experiments import jobs, numbers, programs, timing
from experiments.numbers import Number, learned
from focalgeo import parallel, records
from focalgeo.config import with_values
from focalgeo.job import preparation
from focalgeo.training import checkpoint
from focalgeo.training.step import member_state
from focalgeo.types import Batch, TrainState

FORMS = {  # what the trace is of, and of which part of the batch
    "hessian": ("hessian", 1),
    "gauss_newton": ("gauss_newton", 1),
    "gauss_newton, quarter": ("gauss_newton", 4),
}
TASKS = {  # config, penalties, what jobs have beside
    "digits": ("configs/digits_trace_sweep.py", (0.0, 0.001, 0.004), {}),
    "cifar10": ("configs/cifar10_trace.py:quick", (0.0, 0.0003), {"curvature.splits": ("val", "train")}),
}
COMMON = {
    "ece": Number("ECE, %", 100),
    "accuracy": Number("accuracy, %", 100),
    "nll": Number("NLL, 1/100 nat", 100),
    "trace train": Number("trace, train"),
    "trace val": Number("trace, val"),
    "lambda_max val": Number("λ_max, val"),
}
COLUMNS = COMMON | {"lambda_max train": Number("λ_max, train")}
ROUNDS, STEPS, PROBES = 9, 20, 200  # of timing, steps of each; random vectors by which noise is measured


def measure(out: Path, task: str, seeds: int, data: str | None) -> dict[str, Any]:
    """The runs of every form, and their cost. Runs without penalty are part of the Hessian's job."""
    (config, penalties, fields), runs, workdirs = TASKS[task], [], {}
    fields = fields | {"sweep.seed": tuple(range(seeds))} | ({"data.name": data} if data else {})
    for form, (of, part) in FORMS.items():
        fields |= {"loss.trace_of": of, "sweep.trace_penalty": penalties[form != "hessian" :]}
        if part > 1:
            fields["loss.trace_examples"] = jobs.load(config).optimizer.batch_size // part
        workdirs[form] = jobs.trained(config, out / f"{task}-{form.replace(', ', '-')}-seeds={seeds}", fields)
        runs += runs_of(workdirs[form], form, {"penalty": "trace_penalty", "seed": "seed"}, COLUMNS)
    return {"runs": runs, "cost": cost(workdirs)}


def runs_of(workdir: Path, form: str, tags: Mapping[str, str], names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The runs of a job; one that stopped, its loss no longer finite, has None for each number."""
    for values, rows in jobs.members(records.read_rows(workdir), tags):
        if None not in values.values():
            measured = {name.replace(" CE ", " "): value for name, value in jobs.numbers(rows)}
            measured = {name: measured.get(name, np.nan) for name in names}
            finite = np.isfinite(list(measured.values())).all()
            yield {
                "form": form if values["penalty"] else "none",
                **values,
                **(measured if finite else dict.fromkeys(measured)),
            }


def cost(workdirs: dict[str, Path]) -> dict[str, Any]:
    """Seconds of steps, and noise before and after training without penalty, of the first seed."""
    configs = {form: jobs.config_of(workdir) for form, workdir in workdirs.items()}
    prepared, states, batch = jobs.ready(configs["hessian"])
    after = checkpoint.restore_latest(workdirs["hessian"] / "checkpoints", states).state
    moments = {"initial": member_state(states, 0), "trained": member_state(after, 0)}
    noise = {}
    for form, config in configs.items():
        outputs = preparation.make_objective(config).outputs
        noise[form] = {when: noise_of(prepared.model.apply, outputs, state, batch) for when, state in moments.items()}
    return {"seconds": seconds_of(configs), "noise": noise}


def seconds_of(configs: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Least seconds of a step of one run over rounds in which the forms take theirs in turn, and times no penalty's."""
    steps = {}
    for title, (config, weight) in {
        "none": (configs["hessian"], 0.0),
        **{form: (config, 1e-4) for form, config in configs.items()},
    }.items():
        alone = {"sweep.trace_penalty": (), "sweep.seed": (), "loss.trace_penalty": weight}
        step = programs.repeated_steps(programs.make_training(with_values(config, alone)))
        steps[title] = partial(step, STEPS)
    least = timing.interleaved(steps, rounds=ROUNDS)
    return {title: {"wall": time / STEPS, "times": time / least["none"]} for title, time in least.items()}


def noise_of(apply: Callable, outputs: Callable, state: TrainState, batch: Batch) -> dict[str, Any]:
    """Mean and standard deviation of the estimate of the trace of a batch's mean loss, and the noise of its gradient.

    Over random vectors and orders: the batch is the same, its examples in another order each time. Noise of the
    gradient: the root of its total variance, over the norm of its mean, with the part of that norm which is noise taken
    off.
    """

    def estimate(params, batch, key):
        def network(params, batch=batch):
            variables = {"params": params, **state.model_state}
            return apply(variables, batch.x, train=True, mask=batch.mask, mutable=list(state.model_state), rngs={})

        penalty = outputs(network, params, batch, key, {"trace_penalty": jnp.float32(1)})[2]
        return penalty / jnp.sum(batch.mask, dtype=jnp.float32)

    def once(key):
        probe_key, order = jax.random.split(key)
        shuffled = jax.tree.map(lambda leaf: jax.random.permutation(order, leaf), batch)
        alone = jax.vmap(jax.value_and_grad(estimate), in_axes=None, axis_name=parallel.AXIS, axis_size=1)
        value, gradient = alone(state.params, shuffled, probe_key)
        return value[0], ravel_pytree(gradient)[0]

    keys = jax.vmap(jax.random.PRNGKey)(jnp.arange(PROBES))
    values, gradients = (np.asarray(part, float) for part in jax.jit(lambda keys: jax.lax.map(once, keys))(keys))
    mean, variance = gradients.mean(0), gradients.var(0, ddof=1).sum()
    signal, sd = mean @ mean - variance / PROBES, float(values.std(ddof=1))
    return {
        "probes": PROBES,
        "mean": float(values.mean()),
        "error of mean": sd / PROBES**0.5,
        "sd": sd,
        "gradient noise": float(variance / signal) ** 0.5 if signal > 0 else None,
    }


# ---- tables


def tables(task: str, measured: dict[str, Any]) -> dict[str, Any]:
    """Of a task: means over the seeds that learned, paired differences, cost and noise."""
    runs, kinds = pd.DataFrame(measured["runs"]), ("none", *FORMS)
    runs["form"] = pd.Categorical(runs.form, kinds)
    means, ended = {}, {}
    for at, group in runs.groupby(["penalty", "form"], observed=True):
        ended[at] = learned(group)
        means[f"{at[0]:g}", at[1], len(group), len(group) - len(ended[at])] = ended[at]
    rows = [["penalty", "form less other", "seeds", *(number.title for number in COLUMNS.values())]]
    for penalty, (base, form) in product(sorted(set(runs.penalty) - {0}), combinations(kinds, 2)):
        one, other = ended[penalty, form], ended[penalty if base != "none" else 0.0, base]
        cells = (cell(one) for cell in numbers.changes(COLUMNS, other).values())
        rows.append([f"{penalty:g}", f"{form} less {base}", one.seed.isin(other.seed).sum(), *cells])
    return {
        f"{task} forms": numbers.table(["penalty", "form", "seeds", "at chance"], means, numbers.means(COLUMNS)),
        f"{task} forms differences": rows,
        f"{task} forms cost": cost_table(**measured["cost"]),
    }


def cost_table(seconds: dict[str, Any], noise: dict[str, Any]) -> Iterator[Iterable[str]]:
    """Seconds of a step, and the noise of the estimate and of its gradient before and after training."""
    yield "form", "ms a step", "times no penalty", "when", "estimate", "sd", "noise of the gradient"
    for form, of_step in seconds.items():
        head = [form, f"{1e3 * of_step['wall']:.3g}", f"{of_step['times']:.2f}"]
        if form not in noise:
            yield *head, *[""] * 4
        for when, spread in noise.get(form, {}).items():
            mean, relative = f"{spread['mean']:.4g} ± {spread['error of mean']:.2g}", spread["gradient noise"]
            yield *head, when, mean, f"{spread['sd']:.3g}", f"{relative:.2f}" if relative else "over its mean"
            head = [""] * 3
