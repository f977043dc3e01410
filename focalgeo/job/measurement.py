"""Measurement of members: all of a trained one, and between epochs the curvature and diagnostics that are asked for."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.tree_util import Partial

from focalgeo import calibration, evaluation, losses, records
from focalgeo.job import preparation, say
from focalgeo.job.preparation import Member, Prepared
from focalgeo.rows import Diagnostic, Row, Scalar, finite, tagged
from focalgeo.training import loop
from focalgeo.training.step import member_state
from focalgeo.types import Array, Predictions, PyTree, RunError, Split, TrainState

_CROSS_ENTROPY = losses.make_loss("cross_entropy")  # one object, so that what is compiled for it serves every member


class Calibration(NamedTuple):
    """Calibration of one member on val and test."""

    rows: list[Row]
    search: dict[str, np.ndarray]  # on val, as search.npz holds it; {} where no method needs one
    error: str | None = None  # what is wrong, of a member whose numbers are not finite


def evaluate(
    member: Member,
    folder: Path,
    prepared: Prepared,
    state: TrainState,
    predictions: dict[str, Predictions],
    calibrated: Calibration,
) -> list[Row]:
    """The member's evaluation rows; its predictions and its search of gamma and temperature are written to `folder`.

    Raises:
        RunError: a number is not finite, which that of the calibration may have found.
    """
    for name, predicted in predictions.items():
        records.write_predictions(folder, name, predicted.logits, predicted.labels)
    if calibrated.error:
        raise RunError(calibrated.error)
    if calibrated.search:
        records.write_arrays(folder, "search", calibrated.search)
    selected = [] if state.best is None else [Scalar("selected_epoch", float(state.best.epoch))]
    return [*calibrated.rows, *selected, *curvature_rows(member, prepared, state)]


def curvature_rows(member: Member, prepared: Prepared, state: TrainState) -> list[Row]:
    """Eigenvalues, trace, attribution and density of cross-entropy, and of the loss trained with, on each split.

    A loss with a penalty is measured without it, as its mean over examples.
    """
    settings, rows = member.config.curvature, []
    _, parts_key, density_key = _keys(member)
    for split in settings.splits if settings.examples else ():
        problem = make_problem(member, prepared, state, split)
        if not member.name:
            say(f"measuring the curvature of the loss on {split}")
        measured = _measure(member, problem, split)
        rows += measured.rows
        rows += evaluation.attribution_rows(problem, measured, parts_key, split=split, num_probes=settings.num_probes)
        if settings.density_probes:
            of_density = {"num_probes": settings.density_probes, "steps": settings.density_steps}
            rows += evaluation.density_rows(problem, measured, density_key, split=split, **of_density)
    return rows


def curvature_of_epoch(
    config, prepared: Prepared, members: Sequence[Member], groups: Sequence[TrainState]
) -> list[Row]:
    """lambda_max and trace of each member that still trains, every config.curvature.every epochs; 0 asks for none.

    The last epoch's are left to the measurement after training.
    """
    settings, rows = config.curvature, []
    if not settings.examples or not _is_due(settings.every, prepared.plan, groups, at_end=False):
        return rows
    groups = jax.device_get([group._replace(opt_state=(), best=None) for group in groups])
    states = [member_state(group, index) for group in groups for index in range(len(group.step))]
    for member, state in zip(members, states, strict=True):
        for split in () if state.frozen else settings.splits:
            measured = _measure(member, make_problem(member, prepared, state, split), split)
            rows += tagged(measured.rows, **member.tags)
    return rows


def _is_due(every: int, plan: loop.Plan, groups: Sequence[TrainState], *, at_end: bool) -> bool:
    step = int(np.max(groups[0].step))
    return every > 0 and (at_end if step == plan.steps else step // plan.steps_per_epoch % every == 0)


def make_problem(member: Member, prepared: Prepared, state: TrainState, split: str) -> evaluation.Problem:
    """Cross-entropy and the loss trained with, of the member's network, on the split's examples for curvature."""
    functions = {"cross_entropy": _CROSS_ENTROPY, prepared.objective.name: prepared.objective.loss}
    needed = jax.device_get((state.loss_values, state.params, state.model_state))
    loss_values, params, model_state = jax.device_put(needed)
    of_logits = {name: Partial(_with_values, Partial(loss), loss_values) for name, loss in functions.items()}
    settings, (x, y) = member.config.curvature, getattr(prepared.dataset, split)
    few = Split(x[: settings.examples], y[: settings.examples])
    batches = preparation.evaluation_batches(member.config, few, batch_size=settings.batch_size)
    batches = [batch._replace(y=batch.y.reshape(-1), mask=batch.mask.reshape(-1)) for batch in batches]
    apply = Partial(_flat_logits, Partial(prepared.model.apply))
    return evaluation.Problem(apply, of_logits, params, model_state, batches)


def _flat_logits(apply: Callable, variables: PyTree, x: PyTree) -> Array:
    """Logits [examples, classes]; of a tree each node is one."""
    logits = apply(variables, x)
    return logits.reshape(-1, logits.shape[-1])


def _with_values(loss: Callable, loss_values: dict[str, PyTree], logits: Array, labels: Array) -> Array:
    return loss(logits, labels, loss_values)


def _keys(member: Member) -> jax.Array:
    """Three independent keys: of lambda_max and trace, of the attribution, of the density."""
    return jax.random.split(member.keys["probe"], 3)


def _measure(member: Member, problem: evaluation.Problem, split: str) -> evaluation.Curvature:
    settings = {n: member.config.curvature[n] for n in ("max_products", "tolerance", "num_probes", "trace_method")}
    return evaluation.measure_curvature(problem, _keys(member)[0], split=split, **settings)


def check_network(config, prepared: Prepared, states: TrainState) -> None:
    """Refuses, before training begins, diagnostics of a network that does not show its last layer.

    Raises:
        InputError: the network sows no last layer.
    """
    if config.diagnostics.every:
        state, x = member_state(states, 0), preparation.few_examples(prepared, config).x
        evaluation.check_last_layer(prepared.model.apply, {"params": state.params, **state.model_state}, x)


def diagnostics_of_epoch(
    config, prepared: Prepared, members: Sequence[Member], groups: Sequence[TrainState]
) -> list[Row]:
    """Rows of `evaluation.diagnosis_rows` for each member that still trains and each split, and its "weight_norm".

    After every config.diagnostics.every epochs and after the last; 0 asks for none. "weight_norm", that of the last
    layer's kernel, is of the network and so of no split. A member has no rows of a split on which its numbers are not
    finite.
    """
    settings, rest, rows = config.diagnostics, list(members), []
    for group in groups if _is_due(settings.every, prepared.plan, groups, at_end=True) else ():
        own, rest = rest[: len(group.step)], rest[len(group.step) :]
        training = np.flatnonzero(~np.asarray(group.frozen))
        for split in settings.splits if len(training) else ():
            examples = _spread(getattr(prepared.dataset, split), settings.examples)
            batches = preparation.evaluation_batches(config, examples)
            diagnosis, norms = evaluation.diagnose(
                prepared.model.apply, prepared.objective.loss, group, batches=batches
            )
            for index in training:
                of_member = jax.tree.map(lambda leaf: leaf[index], diagnosis)  # noqa: B023
                if not all(np.isfinite(leaf).all() for leaf in (*of_member, norms[index])):
                    continue
                measured = evaluation.diagnosis_rows(of_member, split=split, num_bins=settings.num_bins)
                if split == settings.splits[0]:
                    measured.append(finite(Diagnostic("weight_norm", norms[index])))
                rows += tagged(measured, **own[index].tags)
    return rows


def _spread(split: Split, examples: int) -> Split:
    """So many examples at even distances, all of them for 0: the test files of a folder stand class by class."""
    count = len(split.y)
    chosen = np.arange(examples) * count // examples if 0 < examples < count else slice(None)
    return Split(jax.tree.map(lambda leaf: leaf[chosen], split.x), split.y[chosen])


def calibrate_members(members: Sequence[Member], predictions: Mapping[str, Predictions]) -> list[Calibration]:
    """Calibration of members of the main job on val and test.

    Methods are those of config.evaluation.methods, or all, as far as they can be used after a member's training.

    Args:
        members: Of one sweep.
        predictions: Of each split, logits [examples, members, classes].
    """
    wrong = [None] * len(members)
    for split, outputs in reversed(predictions.items()):  # the first split is the one that is named
        for index in np.flatnonzero(~np.isfinite(outputs.logits).all(axis=(0, 2))):
            wrong[index] = split
    kept = [index for index, split in enumerate(wrong) if split is None]
    own = {split: outputs._replace(logits=outputs.logits[:, kept]) for split, outputs in predictions.items()}
    calibrated = iter(_calibrate([members[index] for index in kept], own) if kept else ())
    return [Calibration([], {}, f"logits on {split} are not finite") if split else next(calibrated) for split in wrong]


def _calibrate(members: Sequence[Member], predictions: Mapping[str, Predictions]) -> list[Calibration]:
    """Calibration of members whose numbers are finite: one call makes the searches of all."""
    options, val = members[0].config.evaluation, predictions["val"]
    count = round(options.max_temperature / options.temperature_step)
    settings = {
        "gammas": np.asarray(options.gammas, np.float32),
        "temperatures": (np.arange(1, count + 1) * options.temperature_step).astype(np.float32),
        "criteria": options.criteria,
        "num_bins": options.num_bins,
    }
    logits = np.ascontiguousarray(np.moveaxis(val.logits, 1, 0))
    mask = None if np.all(val.mask) else val.mask
    names = ("uncalibrated", *(options.methods or calibration.DEFAULT_METHODS))
    methods = {n: method for n, method in calibration.METHODS.items() if n in names and method.takes(logits.shape[-1])}
    searches = calibration.searched_members(methods, logits, val.labels, settings=settings, mask=mask)
    fits, calibrated = [], []
    for member, of_member, search in zip(members, logits, searches, strict=True):
        own = {**settings, "trained_gamma": preparation.trained_gamma(member.config), "searches": search}
        usable = calibration.usable(methods, own)
        fits.append(calibration.fit_methods(usable, of_member, val.labels, settings=own, mask=mask))
        rows = partial(calibration.fit_rows, fits[-1], n=len(val.labels))
        calibrated.append(_with_rows(Calibration([], calibration.surfaces(search, own)), rows))
    for split, outputs in predictions.items():
        samples = (
            calibration.Sample(
                split,
                outputs.labels,
                [fitted.calibrated(outputs.logits[:, index]) for fitted in fits[index]],
                member.keys["bootstrap"],
                options.num_bins,
                options.num_resamples,
            )
            for index, member in enumerate(members)
        )
        measured = calibration.measure_members(samples, options.metrics)
        for index, (sample, numbers) in enumerate(measured):
            pairs = calibration.comparisons(sample.calibrated, "nll") if split == "test" else ()
            rows = partial(calibration.calibration_rows, sample, pairs, options.metrics, measured=numbers)
            calibrated[index] = _with_rows(calibrated[index], rows)
    return calibrated


def _with_rows(calibrated: Calibration, rows: Callable[[], list[Row]]) -> Calibration:
    try:
        return calibrated if calibrated.error else calibrated._replace(rows=calibrated.rows + rows())
    except RunError as error:
        return Calibration([], {}, str(error))
