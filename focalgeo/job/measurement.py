"""Measurement of members: all of a trained one, and between epochs the curvature and diagnostics that are asked for."""

from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np
from jax.tree_util import Partial

from focalgeo import evaluation, losses, parallel, records, trees
from focalgeo.job import calibration, preparation
from focalgeo.job.members import Member
from focalgeo.job.preparation import Prepared
from focalgeo.rows import Diagnostic, Row, Scalar, finite, tagged
from focalgeo.training import loop
from focalgeo.training.step import member_state
from focalgeo.types import Array, Predictions, PyTree, RunError, Split, TrainState

_CROSS_ENTROPY = losses.make_loss("cross_entropy")  # one object, so that what is compiled for it serves every member
_SPARE_VECTORS = 8  # the vectors in flight between a product and the basis it goes to


def evaluate(
    member: Member,
    folder: Path,
    prepared: Prepared,
    state: TrainState,
    predictions: dict[str, Predictions],
    calibrated: calibration.Calibration | RunError,
    say: Callable[[str], None] | None,
) -> list[Row]:
    """The member's evaluation rows; its predictions and its search of gamma and temperature are written to `folder`.

    Raises:
        RunError: a number is not finite, which that of the calibration may have found.
    """
    for name, predicted in predictions.items():
        records.write_predictions(folder, name, predicted.logits, predicted.labels)
    if isinstance(calibrated, RunError):
        raise calibrated
    if calibrated.search:
        records.write_arrays(folder, "search", calibrated.search)
    selected = [] if state.best is None else [Scalar("selected_epoch", float(state.best.epoch))]
    return [*calibrated.rows, *selected, *curvature_rows(member, prepared, state, say)]


def check_memory(members: Sequence[Member], prepared: Prepared) -> None:
    """Refuses, before anything is allocated or written, a run that memory will not hold, by a lower bound of its needs.

    The states of all members are held twice, before and after a step, and beside them a batch.

    Raises:
        InputError: what is needed, what there is, and the field to lower.
    """
    config, free = members[0].config, parallel.free_memory()
    shapes = preparation.forecast(prepared, members[0])
    if free is None:
        return
    of_one, size = 2 * evaluation.tree_bytes(shapes.state), f"{trees.size(shapes.params):,} parameters"
    alone = f"a network of {size} with its optimiser's state"
    evaluation.check_fits(alone, of_one, free, mend="set smaller config.model.options, or another config.model.name")
    together = f"config.sweep of {len(members):,} members of {size} each"
    evaluation.check_fits(together, len(members) * of_one, free, mend="sweep fewer values at once")
    for section, needed in _bytes_of_batches(config, prepared, shapes.forward).items():
        what = f"config.{section}.batch_size is {config[section].batch_size}: a batch beside {size}"
        evaluation.check_fits(what, len(members) * of_one + needed, free, mend="lower it")


def _bytes_of_batches(config, prepared: Prepared, forward: evaluation.Forward) -> dict[str, int]:
    """Bytes that a batch takes at least on a device, by the section of its batch_size.

    In training with the outputs of all products, which the pass back needs; in evaluation with the largest of them. Of
    curvature all batches are held.
    """
    few, sizes = preparation.few_examples(prepared, config), _batch_sizes(config)
    example, largest, products = (
        count / len(few.y) for count in (evaluation.tree_bytes(few.x), forward.largest, forward.all)
    )
    settings, needs = config.curvature, {"optimizer": example + products, "evaluation": example + largest}
    needed = {section: int(each * sizes[section]) for section, each in needs.items()}
    if settings.examples:
        lengths = [len(getattr(prepared.dataset, split).y) for split in settings.splits]
        batches = -(-min(settings.examples, max(lengths)) // settings.batch_size)
        needed["curvature"] = int(batches * settings.batch_size * example + products * sizes["curvature"])
    return needed


def _batch_sizes(config) -> dict[str, int]:
    """Examples of a batch on each device, by section."""
    sections = ("optimizer", "evaluation", "curvature")
    return {section: -(-config[section].batch_size // parallel.device_count()) for section in sections}


def check_curvature(member: Member, prepared: Prepared, states: TrainState) -> None:
    """Refuses, before training begins, a measurement of curvature that memory will not hold.

    Raises:
        InputError: what is needed and what there is.
    """
    settings = member.config.curvature
    if settings.examples == 0:
        return
    kept = max(settings.max_products, 2 * settings.num_probes // 3, settings.density_steps) + _SPARE_VECTORS
    problem = make_problem(member, prepared, member_state(states, 0), settings.splits[0])
    free = parallel.free_memory()
    if settings.every and free is not None:  # else the training examples are gone by then
        free -= preparation.resident_bytes(prepared.dataset)
    evaluation.check_memory(evaluation.forecast_memory(problem, num_vectors=kept), free)


def curvature_rows(
    member: Member, prepared: Prepared, state: TrainState, say: Callable[[str], None] | None
) -> list[Row]:
    """Eigenvalues, trace, attribution and density of cross-entropy, and of the loss trained with, on each split.

    A loss with a penalty is measured without it, as its mean over examples. say: takes a line on how long it will take;
    None for no forecast.
    """
    settings = member.config.curvature
    _, parts_key, density_key = _keys(member)
    rows = []
    for split in settings.splits if settings.examples else ():
        problem = make_problem(member, prepared, state, split)
        if say is not None:
            say(_forecast(settings, problem, split))
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
    settings, plan = config.curvature, prepared.plan
    step = max(int(np.max(group.step)) for group in groups)
    if not (settings.every and settings.examples) or step == plan.steps:
        return []
    if step // plan.steps_per_epoch % settings.every:
        return []
    groups = jax.device_get([group._replace(opt_state=(), best=None) for group in groups])
    states = [member_state(group, index) for group in groups for index in range(len(group.step))]
    rows = []
    for member, state in zip(members, states, strict=True):
        for split in () if state.frozen else settings.splits:
            measured = _measure(member, make_problem(member, prepared, state, split), split)
            rows += tagged(measured.rows, **member.tags)
    return rows


def make_problem(member: Member, prepared: Prepared, state: TrainState, split: str) -> evaluation.Problem:
    """Cross-entropy and the loss trained with, of the member's network, on the split's examples for curvature."""
    chosen = {"cross_entropy": _CROSS_ENTROPY, prepared.objective.name: prepared.objective.loss}
    needed = jax.device_get((state.loss_values, state.params, state.model_state))
    loss_values, params, model_state = jax.device_put(needed)
    of_logits = {name: Partial(_with_values, Partial(loss), loss_values) for name, loss in chosen.items()}
    batches = preparation.curvature_batches(member.config, getattr(prepared.dataset, split))
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
    settings = member.config.curvature
    return evaluation.measure_curvature(
        problem,
        _keys(member)[0],
        split=split,
        max_products=settings.max_products,
        tolerance=settings.tolerance,
        num_probes=settings.num_probes,
        trace_method=settings.trace_method,
    )


def _forecast(settings, problem: evaluation.Problem, split: str) -> str:
    """A line of text: the number of products of lambda_max, trace, two sets of parts and density, and their time."""
    each = settings.max_products + 3 * settings.num_probes + settings.density_probes * settings.density_steps
    products = len(problem.losses) * each
    took = products * evaluation.seconds_of_product(problem)
    about = f"about {took / 60:.0f} minutes" if took > 100 else f"about {max(took, 1):.0f} s"
    return f"measuring the curvature of the loss on {split}: at most {products:,} Hessian products, {about}"


def check_network(config, prepared: Prepared, states: TrainState) -> None:
    """Refuses, before training begins, diagnostics of a network that does not show its last layer.

    Raises:
        InputError: the network sows no last layer.
    """
    if not config.diagnostics.every:
        return
    state = member_state(states, 0)
    batch = next(iter(preparation.evaluation_batches(config, _spread(prepared.dataset.train, 2))))
    evaluation.check_last_layer(prepared.model.apply, {"params": state.params, **state.model_state}, batch.x)


def diagnostics_of_epoch(
    config, prepared: Prepared, members: Sequence[Member], groups: Sequence[TrainState]
) -> list[Row]:
    """Rows of `evaluation.diagnosis_rows` for each member that still trains and each split, and its "weight_norm".

    After every config.diagnostics.every epochs and after the last; 0 asks for none. "weight_norm", that of the last
    layer's kernel, is of the network and so of no split. A member has no rows of a split on which its numbers are not
    finite.
    """
    rows, number = [], 0
    for group in groups if _is_due(config, prepared.plan, groups) else ():
        own = members[number : number + len(group.step)]
        rows += _group_rows(config, prepared, own, group)
        number += len(own)
    return rows


def _is_due(config, plan: loop.Plan, groups: Sequence[TrainState]) -> bool:
    step, every = max(int(np.max(group.step)) for group in groups), config.diagnostics.every
    return every > 0 and (step == plan.steps or step // plan.steps_per_epoch % every == 0)


def _group_rows(config, prepared: Prepared, members: Sequence[Member], group: TrainState) -> list[Row]:
    settings, rows = config.diagnostics, []
    training = np.flatnonzero(~np.asarray(group.frozen))
    for split in settings.splits if len(training) else ():
        examples = _spread(getattr(prepared.dataset, split), settings.examples)
        batches = preparation.evaluation_batches(config, examples)
        found, norms = evaluation.diagnose(prepared.model.apply, prepared.objective.loss, group, batches=batches)
        for index in training:
            own = jax.tree.map(lambda leaf, index=index: leaf[index], found)
            if not all(np.isfinite(leaf).all() for leaf in (*own, norms[index])):
                continue
            measured = evaluation.diagnosis_rows(own, split=split, num_bins=settings.num_bins)
            if split == settings.splits[0]:
                measured.append(finite(Diagnostic("weight_norm", norms[index])))
            rows += tagged(measured, **members[index].tags)
    return rows


def _spread(split: Split, examples: int) -> Split:
    """So many examples at even distances, all of them for 0: the test files of a folder stand class by class."""
    count = len(split.y)
    chosen = np.arange(examples) * count // examples if 0 < examples < count else slice(None)
    return Split(jax.tree.map(lambda leaf: leaf[chosen], split.x), split.y[chosen])
