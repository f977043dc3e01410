"""Measurement of members: all of a trained one, and between epochs the curvature and diagnostics that are asked for."""

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from focalgeo import calibration, checks, curvature, evaluation, losses, parallel, records, trees
from focalgeo.calibration.study import comparison, findings
from focalgeo.calibration.study.comparison import Settings
from focalgeo.job import preparation, say
from focalgeo.job.preparation import Member, Prepared
from focalgeo.rows import Diagnostic, Row, Scalar, finite, tagged
from focalgeo.training.step import member_state
from focalgeo.types import (
    FEWEST_EXAMPLES,
    Batch,
    Dataset,
    InputError,
    Predictions,
    RunError,
    Split,
    TrainState,
)

_CROSS_ENTROPY = losses.make_loss("cross_entropy")  # one object, so that what is compiled for it serves every member


def check_examples(dataset: Dataset) -> None:
    """Refuse val or test of fewer examples than calibration can be fitted to or measured on."""
    for name in ("val", "test"):
        count = np.sum(getattr(dataset, name).y >= 0)
        if count < FEWEST_EXAMPLES:
            mend = f"set config.data.{name}_size to {FEWEST_EXAMPLES} or more"
            raise InputError(f"{name} has {count} examples, too few to measure calibration: {mend}")


def evaluate(
    member: Member,
    folder: Path,
    prepared: Prepared,
    state: TrainState,
    predictions: dict[str, Predictions],
    calibrated: Future | None,
) -> list[Row]:
    """The member's evaluation rows; its predictions and its search of gamma and temperature are written to `folder`.

    calibrated: what `calibrate` gives, on process 0 alone.

    Raises:
        RunError: a number is not finite.
    """
    for name, predicted in predictions.items():
        records.write_predictions(folder, name, predicted.logits, predicted.labels)
    rows = [] if state.best is None else [Scalar("selected_epoch", state.best.epoch)]

    def take():
        rows[:0], search = calibrated.result()
        if search:
            records.write_arrays(folder, "search", search)

    parallel.broadcast("calibrated", take)  # so that all processes learn of an error
    return rows + curvature_rows(member, prepared, state)


def curvature_rows(member: Member, prepared: Prepared, state: TrainState, *, in_training: bool = False) -> list[Row]:
    """Curvature and sharpness of cross-entropy, and of the loss trained with, on each split: all that is asked for.

    A loss with a penalty is measured without it, as its mean over examples. In training only lambda_max and trace are.
    """
    settings, rows = member.config.curvature, []
    # one key for each kind, measured or not: what is asked for besides changes no number of the others
    key, parts_key, density_key, sharpness_key = jax.random.split(member.keys["probe"], 4)
    options = {name: settings[name] for name in ("max_products", "tolerance", "num_probes", "trace_method")}
    for split in settings.splits if settings.examples else ():
        if not (member.name or in_training):
            say(f"measuring the curvature of the loss on {split}")
        problem = make_problem(member, prepared, state, split)
        measured = evaluation.measure_curvature(problem, key, split=split, **options)
        rows += measured.rows
        if in_training:
            continue
        rows += evaluation.attribution_rows(problem, measured, parts_key, split=split, num_probes=settings.num_probes)
        if settings.density_probes:
            rows += evaluation.density_rows(
                problem,
                measured,
                density_key,
                split=split,
                num_probes=settings.density_probes,
                steps=settings.density_steps,
            )
        if settings.sharpness:
            rows += evaluation.sharpness_rows(problem, sharpness_key, split=split)
    return rows


def curvature_of_epoch(prepared: Prepared, members: Sequence[Member], groups: Sequence[TrainState]) -> list[Row]:
    """lambda_max and trace of each member that still trains, every config.curvature.every epochs; 0 asks for none.

    The last epoch's are left to the measurement after training.
    """
    rows = []
    if _is_due(prepared.config.curvature.every, prepared, groups, at_end=False):
        groups = jax.device_get([group._replace(opt_state=(), best=None) for group in groups])
        states = [member_state(group, index) for group in groups for index in range(len(group.step))]
        for member, state in zip(members, states, strict=True):
            if not state.frozen:
                rows += tagged(curvature_rows(member, prepared, state, in_training=True), **member.tags)
    return rows


def _is_due(every, prepared, groups, *, at_end):
    step, plan = int(np.max(groups[0].step)), prepared.plan
    return every > 0 and (at_end if step == plan.steps else step // plan.steps_per_epoch % every == 0)


def make_problem(member: Member, prepared: Prepared, state: TrainState, split: str) -> evaluation.Problem:
    """Cross-entropy and the loss trained with, of the member's network, on the split's examples for curvature."""
    functions = {"cross_entropy": _CROSS_ENTROPY, prepared.objective.name: prepared.objective.loss}
    loss_values, params, model_state = jax.device_get((state.loss_values, state.params, state.model_state))
    of_logits = {name: Partial(loss, loss_values=loss_values) for name, loss in functions.items()}
    apply = Partial(_flat_logits, Partial(prepared.model.apply))
    return evaluation.Problem(apply, of_logits, params, model_state, _curvature_batches(prepared, split))


def _curvature_batches(prepared: Prepared, split: str) -> list[Batch]:
    """The split's examples for curvature."""
    settings = prepared.config.curvature
    few = getattr(prepared.dataset, split).at(slice(settings.examples))
    batches = preparation.evaluation_batches(prepared.config, few, batch_size=settings.batch_size)
    return [batch._replace(y=batch.y.reshape(-1), mask=batch.mask.reshape(-1)) for batch in batches]


def make_trace(prepared: Prepared) -> Callable:
    """The function (states, epoch) -> the trace [members] that the penalty is of, of mean cross-entropy on train.

    In evaluation mode, on the examples for curvature, by config.curvature.num_probes random vectors of the epoch.
    """
    settings = prepared.config
    estimator = functools.partial(curvature.outputs_and_trace, of=settings.loss.trace_of, form=settings.loss.trace_form)

    @jax.jit
    @trees.at_highest
    @functools.partial(jax.vmap, in_axes=(0, None, None))
    def summed(state, batch, epoch):
        def network(params):
            return _flat_logits(prepared.model.apply, {"params": params, **state.model_state}, batch.x), ()

        def loss(logits):
            return jnp.sum(jnp.where(batch.mask, losses.cross_entropy(logits, batch.y), 0.0))

        keys = jax.random.split(jax.random.fold_in(state.key, epoch), settings.curvature.num_probes)
        return jnp.mean(jax.lax.map(lambda key: estimator(network, loss, state.params, key)[2], keys))

    def trace(states: TrainState, epoch: int):
        states, batches = states._replace(opt_state=(), best=None), _curvature_batches(prepared, "train")
        of_batches = [jax.device_get(summed(states, batch, epoch)) for batch in batches]
        return sum(of_batches) / np.float32(sum(np.sum(batch.mask) for batch in batches))

    return trace


def _flat_logits(apply: Callable, variables, x):
    """Logits [examples, classes]; of a tree each node is one."""
    logits = apply(variables, x)
    return logits.reshape(-1, logits.shape[-1])


def diagnostics_of_epoch(prepared: Prepared, members: Sequence[Member], groups: Sequence[TrainState]) -> list[Row]:
    """Rows of `evaluation.diagnosis_rows` for each member that still trains and each split, and its "weight_norm".

    After every config.diagnostics.every epochs and after the last; 0 asks for none. "weight_norm", that of the last
    layer's kernel, is of the network and so of no split. A member has no rows of a split on which its numbers are not
    finite.
    """
    settings, rest, rows = prepared.config.diagnostics, list(members), []
    for group in groups if _is_due(settings.every, prepared, groups, at_end=True) else ():
        of_group, rest = rest[: len(group.step)], rest[len(group.step) :]
        training = np.flatnonzero(~np.asarray(group.frozen))
        for split in settings.splits if len(training) else ():
            examples = _spread(getattr(prepared.dataset, split), settings.examples)
            batches = preparation.evaluation_batches(prepared.config, examples)
            diagnosis, norms = evaluation.diagnose(
                prepared.model.apply, prepared.objective.loss, group, batches=batches
            )
            for index in training:
                of_member = member_state(diagnosis, index)
                if checks.all_finite((of_member, norms[index])):
                    measured = evaluation.diagnosis_rows(of_member, split=split, num_bins=settings.num_bins)
                    if split == settings.splits[0]:
                        measured.append(finite(Diagnostic("weight_norm", norms[index])))
                    rows += tagged(measured, **of_group[index].tags)
    return rows


def _spread(split: Split, examples: int) -> Split:
    """So many examples at even distances, all of them for 0: the test files of a folder stand class by class."""
    count = len(split.y)
    return split.at(np.arange(examples) * count // examples if 0 < examples < count else slice(None))


def calibrate(member: Member, predictions: Mapping[str, Predictions]) -> tuple[list[Row], dict[str, np.ndarray]]:
    """Calibration rows of one member on val and test, and the search on val as search.npz holds it, {} without one.

    Methods are those of config.evaluation.methods, or the usual, as far as they can be used after its training.

    Raises:
        RunError: a number is not finite.
    """
    for split, (logits, *_) in predictions.items():
        if not checks.all_finite(logits):
            raise RunError(f"logits on {split} are not finite")
    options = member.config.evaluation
    # multiples of the step and no running sum, whose rounding would add up: T = 1 is on the grid
    count = round(options.max_temperature / options.temperature_step)
    settings = Settings.of(
        options,
        seed=member.config.seed,
        trained_gamma=preparation.trained_gamma(member.config),
        temperatures=np.float32(np.arange(1, count + 1) * options.temperature_step),
    )
    names = ("uncalibrated", *(options.methods or calibration.DEFAULT_METHODS))
    methods = {name: method for name, method in calibration.METHODS.items() if name in names}
    methods = calibration.usable(methods, settings._asdict(), predictions["val"].logits.shape[-1])
    rows, search, fits = comparison.fitted_rows(predictions, methods, settings)
    splits = {name: calibration.Outputs(*outputs) for name, outputs in predictions.items()}
    for warning in (*findings.of_study(splits, fits, settings), *findings.of_fits(fits, None)):
        warning = warning.replace("--num-bins", "config.evaluation.num_bins")
        say(f"warning: {member.name}{': ' * bool(member.name)}{warning}")
    return rows, search
