"""The forms of the penalty at the same weights and rate: what they do, what a step takes, and their noise."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments import jobs, numbers
from experiments.numbers import Number, rows_where
from focalgeo import parallel, trees
from focalgeo.config import load_config, with_values
from focalgeo.job import check_config, preparation
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
ROUNDS, PROBES = 9, 200  # of timed steps; random vectors by which noise is measured


def fields_of(task: str, form: str, seeds: int, data: str | None) -> dict[str, Any]:
    """What the job of a form differs in from the config. Runs without penalty are part of the Hessian's job."""
    (config, penalties, changes), (of, part) = TASKS[task], FORMS[form]
    path, _, words = config.partition(":")
    batch_size = load_config(jobs.ROOT / path, words).optimizer.batch_size
    return (
        changes
        | {
            "loss.trace_of": of,
            "loss.trace_examples": batch_size // part if part > 1 else 0,
            "sweep.trace_penalty": ((0.0,) if form == "hessian" else ()) + penalties,
            "sweep.seed": tuple(range(seeds)),
        }
        | ({"data.name": data} if data else {})
    )


def measure(out: Path, task: str, seeds: int, data: str | None) -> dict[str, Any]:
    """The runs of every form, and their cost."""
    config, runs, workdirs, tags = TASKS[task][0], [], {}, {"penalty": "trace_penalty", "seed": "seed"}
    for form in FORMS:
        folder = out / f"{task}-{form.replace(', ', '-')}-seeds={seeds}"
        workdirs[form] = jobs.trained(config, folder, fields_of(task, form, seeds, data))
        for run in jobs.measured(workdirs[form], config, {"form": form}, tags=tags):
            short = {name.replace(" CE ", " "): value for name, value in run.items()}
            kept = {name: short[name] for name in ("form", "penalty", "seed", *COLUMNS)}
            runs.append(kept | ({} if run["penalty"] else {"form": "none"}))
    return {"runs": runs, "cost": cost(workdirs)}


def cost(workdirs: dict[str, Path]) -> dict[str, Any]:
    """Seconds of steps, and noise before and after training without penalty, of the first seed."""
    config = jobs.config_of(workdirs["hessian"])
    prepared, states, batch = jobs.ready(config)
    after = checkpoint.restore_latest(workdirs["hessian"] / "checkpoints", states).state
    moments = {"initial": member_state(states, 0), "trained": member_state(after, 0)}
    plain = check_config(with_values(config.unlock_copy(), {"sweep.trace_penalty": ()}))
    objectives = {"none": preparation.make_objective(plain)}
    objectives |= {form: preparation.make_objective(jobs.config_of(workdirs[form])) for form in FORMS}
    steps = {
        form: parallel.pmapped(preparation.step_of(config, prepared.model, objective, prepared.tx))
        for form, objective in objectives.items()
    }
    noise = {}
    for form in FORMS:
        estimate = make_estimate(prepared.model.apply, objectives[form].outputs)
        noise[form] = {when: noise_of(estimate, state, batch) for when, state in moments.items()}
    return {"seconds": seconds_of(steps, moments["initial"], batch), "noise": noise}


def seconds_of(steps: dict[str, Callable], state: TrainState, batch: Batch) -> dict[str, dict[str, float]]:
    """Medians over rounds in which each form takes its steps in turn; the first round is not counted."""
    state, sharded = jax.device_get(state), parallel.shard(batch)
    repeats = 1 if sum(leaf.size for leaf in jax.tree.leaves(state.params)) > 50_000 else 50
    times = np.empty((ROUNDS + 1, len(steps), 2))
    for number in range(ROUNDS + 1):
        for place, (form, step) in enumerate(steps.items()):
            values = {"trace_penalty": jnp.float32(1e-4)} if form != "none" else {}
            current = parallel.replicated(state._replace(loss_values=state.loss_values | values))
            jax.block_until_ready(current)
            before = time.perf_counter(), time.process_time()
            for _ in range(repeats):
                current, _, _ = step(current, sharded)
            jax.block_until_ready(current)
            times[number, place] = np.subtract((time.perf_counter(), time.process_time()), before) / repeats
    medians = np.concatenate([np.median(part[1:], 0) for part in (times, times / times[:, :1])], -1)
    names = ("wall", "processor", "times", "processor times")
    return {form: dict(zip(names, own, strict=True)) for form, own in zip(steps, medians.tolist(), strict=True)}


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

    @jax.jit
    def once(params, model_state, key):
        own, order = jax.random.split(key)
        shuffled = jax.tree.map(lambda leaf: jax.random.permutation(order, leaf), batch)
        alone = jax.vmap(jax.value_and_grad(estimate), in_axes=None, axis_name=parallel.AXIS, axis_size=1)
        return jax.tree.map(lambda leaf: leaf[0], alone(params, model_state, shuffled, own))

    drawn = [once(state.params, state.model_state, jax.random.PRNGKey(number)) for number in range(PROBES)]
    values, gradients = zip(*drawn, strict=True)
    total = jax.tree.map(lambda *leaves: sum(leaves), *gradients)
    of_mean = float(trees.dot(total, total)) / PROBES**2
    squares = sum(float(trees.dot(gradient, gradient)) for gradient in gradients)
    variance = (squares / PROBES - of_mean) * PROBES / (PROBES - 1)
    signal = max(of_mean - variance / PROBES, 0.0)
    sd = float(np.std(values, ddof=1))
    return {
        "probes": PROBES,
        "mean": float(np.mean(values)),
        "error of mean": sd / PROBES**0.5,
        "sd": sd,
        "gradient noise": (variance / signal) ** 0.5 if signal else None,
    }


# ---- tables


def tables(task: str, measured: dict[str, Any]) -> dict[str, str]:
    """Of a task: means over the seeds that learned, paired differences, cost and noise."""
    runs = pd.DataFrame(measured["runs"])
    learned = runs[runs.accuracy >= numbers.LEARNED]
    orders = [
        (penalty, [form for form in ("none", *FORMS) if (own.form == form).any()])
        for penalty, own in runs.groupby("penalty")
    ]
    cells = {
        (penalty, form): rows_where(learned, penalty=penalty, form=form) for penalty, forms in orders for form in forms
    }
    means, differences = {}, {}
    for (penalty, form), own in cells.items():
        count = len(rows_where(runs, penalty=penalty, form=form))
        means[f"{penalty:g}", form, str(count), str(count - len(own))] = own
    for penalty, forms in orders[1:]:
        for place, base in enumerate(("none", *forms[:2])):
            for form in forms[place:]:
                other = cells[penalty if place else 0.0, base]
                both = cells[penalty, form][cells[penalty, form].seed.isin(other.seed)]
                differences[f"{penalty:g}", f"{form} less {base}", str(len(both))] = (both, other)
    rows = [
        [
            *title,
            *(
                numbers.shown(numbers.change(one, other, name), scale=number.scale, signed=True)
                for name, number in COLUMNS.items()
            ),
        ]
        for title, (one, other) in differences.items()
    ]
    titles = [number.title for number in COLUMNS.values()]
    return {
        f"{task} forms": numbers.table(["penalty", "form", "seeds", "at chance"], means, numbers.means(COLUMNS)),
        f"{task} forms differences": numbers.markdown(["penalty", "form less other", "seeds", *titles], rows),
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
