"""The forms of the penalty at the same weights and rate: what they do, what a step takes, and their noise."""

from collections.abc import Callable
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.flatten_util import ravel_pytree

from experiments import jobs, numbers, programs, timing
from experiments.numbers import Number, learned
from focalgeo import parallel
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
TASKS = {  # config, penalties above 0, what jobs have beside
    "digits": ("configs/digits_trace_sweep.py", (0.001, 0.004), {}),
    "cifar10": ("configs/cifar10_trace.py:quick", (0.0003,), {"curvature.splits": ("val", "train")}),
}
COLUMNS = {
    "trace train": Number("trace, train"),
    "trace val": Number("trace, val"),
    "lambda_max train": Number("λ_max, train"),
    "lambda_max val": Number("λ_max, val"),
    "accuracy": Number("accuracy, %", 100),
    "ece": Number("ECE, 1/100", 100),
    "nll": Number("NLL, 1/100 nat", 100),
}
ROUNDS, STEPS, PROBES = 9, 20, 200  # of timing, steps of each; random vectors by which noise is measured
TAGS = {"penalty": "trace_penalty", "seed": "seed"}


def fields_of(task: str, form: str, seeds: int, data: str | None) -> dict[str, Any]:
    """What the job of a form differs in from the config. Runs without penalty are part of the Hessian's job."""
    (config, penalties, changes), (of, part) = TASKS[task], FORMS[form]
    fields = changes | ({"data.name": data} if data else {})
    if part > 1:
        fields["loss.trace_examples"] = jobs.load(config).optimizer.batch_size // part
    penalties = (0.0, *penalties) if form == "hessian" else penalties
    return fields | {"loss.trace_of": of, "sweep.trace_penalty": penalties, "sweep.seed": tuple(range(seeds))}


def measure(out: Path, task: str, seeds: int, data: str | None) -> dict[str, Any]:
    """The runs of every form, and their cost."""
    config, runs, workdirs = TASKS[task][0], [], {}
    for form in FORMS:
        folder = out / f"{task}-{form.replace(', ', '-')}-seeds={seeds}"
        workdirs[form] = jobs.trained(config, folder, fields_of(task, form, seeds, data))
        for run in jobs.measured(workdirs[form], config, {}, tags=TAGS):
            short = {name.replace(" CE ", " "): value for name, value in run.items()}
            runs.append(
                {"form": form if run["penalty"] else "none"} | {name: short[name] for name in (*TAGS, *COLUMNS)}
            )
    return {"runs": runs, "cost": cost(workdirs)}


def cost(workdirs: dict[str, Path]) -> dict[str, Any]:
    """Seconds of steps, and noise before and after training without penalty, of the first seed."""
    configs = {form: jobs.config_of(workdir) for form, workdir in workdirs.items()}
    prepared, states, batch = jobs.ready(configs["hessian"])
    after = checkpoint.restore_latest(workdirs["hessian"] / "checkpoints", states).state
    moments = {"initial": member_state(states, 0), "trained": member_state(after, 0)}
    noise = {}
    for form, config in configs.items():
        estimate = make_estimate(prepared.model.apply, preparation.make_objective(config).outputs)
        noise[form] = {when: noise_of(estimate, state, batch) for when, state in moments.items()}
    return {"seconds": seconds_of(configs), "noise": noise}


def seconds_of(configs: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Least seconds of a step of one run over rounds in which the forms take theirs in turn, and times no penalty's."""
    alone = {"sweep.trace_penalty": (), "sweep.seed": ()}
    weights = {"none": ("hessian", 0.0)} | {form: (form, 1e-4) for form in configs}
    steps = {}
    for title, (form, weight) in weights.items():
        config = with_values(configs[form], alone | {"loss.trace_penalty": weight})
        steps[title] = partial(programs.repeated_steps(programs.make_training(config)), STEPS)
        timing.timed(steps[title])  # compiles
    least = np.min([[timing.timed(step) for step in steps.values()] for _ in range(ROUNDS)], 0) / STEPS
    times = pd.DataFrame(least, list(steps), ["wall", "processor"])
    return times.join((times / times.loc["none"]).set_axis(["times", "processor times"], axis=1)).to_dict("index")


def make_estimate(apply: Callable, outputs: Callable) -> Callable:
    """(params, model state, batch, key) -> the estimate of the trace of a batch's mean loss, as a step takes it."""

    def estimate(params, model_state, batch, key):
        def network(params, batch=batch):
            variables = {"params": params, **model_state}
            return apply(variables, batch.x, train=True, mask=batch.mask, mutable=list(model_state), rngs={})

        penalty = outputs(network, params, batch, key, {"trace_penalty": jnp.float32(1)})[2]
        return penalty / jnp.sum(batch.mask, dtype=jnp.float32)

    return estimate


def noise_of(estimate: Callable, state: TrainState, batch: Batch) -> dict[str, Any]:
    """Mean and standard deviation of the estimate, and the noise of its gradient, over random vectors and orders.

    The batch is the same, its examples in another order each time. Noise of the gradient: the root of its total
    variance, over the norm of its mean, with the part of that norm which is noise taken off.
    """

    def once(key):
        own, order = jax.random.split(key)
        shuffled = jax.tree.map(lambda leaf: jax.random.permutation(order, leaf), batch)
        alone = jax.vmap(jax.value_and_grad(estimate), in_axes=None, axis_name=parallel.AXIS, axis_size=1)
        value, gradient = alone(state.params, state.model_state, shuffled, own)
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


def tables(task: str, measured: dict[str, Any]) -> dict[str, str]:
    """Of a task: means over the seeds that learned, paired differences, cost and noise."""
    runs = pd.DataFrame(measured["runs"])
    every = {tags: own for tags, own in runs.groupby(["penalty", "form"])}
    means, rows = {}, []
    for penalty in sorted(runs.penalty.unique()):
        forms = [form for form in ("none", *FORMS) if (penalty, form) in every]
        for form in forms:
            own, ended = every[penalty, form], learned(every[penalty, form])
            means[f"{penalty:g}", form, len(own), len(own) - len(ended)] = ended
        for base, form in combinations(("none", *forms), 2) if penalty else ():
            one, other = (learned(every[at]) for at in ((penalty, form), (penalty if base != "none" else 0.0, base)))
            count = one.seed.isin(other.seed).sum()
            cells = [cell(one) for cell in numbers.changes(COLUMNS, other).values()]
            rows.append([f"{penalty:g}", f"{form} less {base}", count, *cells])
    heads = ["penalty", "form less other", "seeds", *(number.title for number in COLUMNS.values())]
    return {
        f"{task} forms": numbers.table(["penalty", "form", "seeds", "at chance"], means, numbers.means(COLUMNS)),
        f"{task} forms differences": numbers.markdown(heads, rows),
        f"{task} forms cost": cost_table(measured["cost"]),
    }


def cost_table(cost: dict[str, Any]) -> str:
    """Seconds of a step, and the noise of the estimate and of its gradient before and after training."""
    rows = []
    for form, seconds in cost["seconds"].items():
        head = [form, f"{1e3 * seconds['wall']:.3g}", f"{seconds['times']:.2f}", f"{seconds['processor times']:.2f}"]
        rows += [[*head, *[""] * 4]] if form not in cost["noise"] else []
        for when, noise in cost["noise"].get(form, {}).items():
            relative = noise["gradient noise"]
            mean = f"{noise['mean']:.4g} ± {noise['error of mean']:.2g}"
            rows.append([*head, when, mean, f"{noise['sd']:.3g}", f"{relative:.2f}" if relative else "over its mean"])
            head = [""] * 4
    heads = ("form", "ms a step", "times no penalty", "processor times", "when", "estimate", "sd")
    return numbers.markdown((*heads, "noise of the gradient"), rows)
