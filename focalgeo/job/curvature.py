"""The curvature of a run's losses: what config.curvature asks for, after training and between its epochs."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from focalgeo import evaluation, losses, parallel
from focalgeo.job import preparation
from focalgeo.job.preparation import Prepared
from focalgeo.types import Array, PyTree, TrainState

_SPARE_VECTORS = 8  # the vectors in flight between a product and the basis it goes to


def check_memory(config, prepared: Prepared) -> None:
    """Refuses, before training begins, a measurement of curvature that memory will not hold.

    Raises:
        InputError: what is needed and what there is.
    """
    settings = config.curvature
    if settings.examples == 0:
        return
    kept = max(settings.max_products, 2 * settings.num_probes // 3, settings.density_steps) + _SPARE_VECTORS
    problem = _problem(config, prepared, prepared.state, settings.splits[0])
    evaluation.check_memory(evaluation.forecast_memory(problem, num_vectors=kept), parallel.free_memory())


def curvature_rows(config, prepared: Prepared, state: TrainState, say: Callable[[str], None]) -> list[dict]:
    """Eigenvalues, trace, attribution and density of cross-entropy, and of the loss trained with, on each split.

    A loss with a penalty is that of its mean over examples, without it.
    """
    settings = config.curvature
    rows = []
    for split in settings.splits if settings.examples else ():
        problem = _problem(config, prepared, state, split)
        say(_forecast(settings, problem, split))
        measured = _measure(config, prepared, problem, split)
        key = prepared.keys["probe"]
        where = {"split": split, "num_probes": settings.num_probes}
        rows += measured.rows
        rows += evaluation.attribution_rows(problem, measured, jax.random.fold_in(key, 1), **where)
        if settings.density_probes:
            where = {"split": split, "num_probes": settings.density_probes, "steps": settings.density_steps}
            rows += evaluation.density_rows(problem, measured, jax.random.fold_in(key, 2), **where)
    return rows


def make_curvature_of_epoch(config, prepared: Prepared) -> Callable[[TrainState], list[dict]]:
    """The function from the state after an epoch to rows of lambda_max and trace, every config.curvature.every epochs.

    0 asks for none. The last epoch's are left to the measurement after training.
    """
    settings = config.curvature
    wanted = bool(settings.every and settings.examples)

    def rows_of(state: TrainState) -> list[dict]:
        step = int(state.step)
        epoch = step // prepared.plan.steps_per_epoch
        if not wanted or epoch % settings.every or step == prepared.plan.steps:
            return []
        problems = {split: _problem(config, prepared, state, split) for split in settings.splits}
        return [row for split, each in problems.items() for row in _measure(config, prepared, each, split).rows]

    return rows_of


def _problem(config, prepared: Prepared, state: TrainState, split: str) -> evaluation.Problem:
    state = jax.device_get(state)
    chosen = {"cross_entropy": losses.make_loss("cross_entropy"), prepared.objective.name: prepared.objective.loss}
    hyper, params, model_state = jax.tree.map(jnp.asarray, (state.hyper, state.params, state.model_state))
    of_logits = {name: Partial(_with_hyper, Partial(loss), hyper) for name, loss in chosen.items()}
    batches = preparation.curvature_batches(config, getattr(prepared.dataset, split))
    return evaluation.Problem(prepared.model.apply, of_logits, params, model_state, batches)


def _with_hyper(loss: Callable, hyper: dict[str, PyTree], logits: Array, labels: Array) -> Array:
    return loss(logits, labels, hyper)


def _measure(config, prepared: Prepared, problem: evaluation.Problem, split: str) -> evaluation.Curvature:
    settings = config.curvature
    return evaluation.measure_curvature(
        problem,
        prepared.keys["probe"],
        split=split,
        max_products=settings.max_products,
        tolerance=settings.tolerance,
        num_probes=settings.num_probes,
        trace_method=settings.trace_method,
    )


def _forecast(settings, problem: evaluation.Problem, split: str) -> str:
    """What will be done and how long it takes, in words: lambda_max, trace, two sets of parts, density."""
    each = settings.max_products + 3 * settings.num_probes + settings.density_probes * settings.density_steps
    products = len(problem.losses) * each
    took = products * evaluation.seconds_of_product(problem)
    about = f"about {took / 60:.0f} minutes" if took > 100 else f"about {max(took, 1):.0f} s"
    return f"measuring the curvature of the loss on {split}: at most {products:,} Hessian products, {about}"
