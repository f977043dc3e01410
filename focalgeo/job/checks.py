"""What the fields of a config may hold, said before anything is loaded or written."""

import functools

import numpy as np
from ml_collections import ConfigDict

from focalgeo import data, losses
from focalgeo.job import members
from focalgeo.types import SWEPT_FIELDS, InputError

# (field, what must hold, in words)
CHECKS = (
    ("seed", lambda v: 0 <= v < 2**31, "must be 0 or more and below 2^31"),
    ("data.split_seed", lambda v: 0 <= v < 2**31, "must be 0 or more and below 2^31"),
    ("data.scale", lambda v: v > 0, "must be greater than 0"),
    ("data.mean", lambda v: len(v) > 0 and np.isfinite(np.asarray(v, float)).all(), "must hold finite numbers"),
    (
        "data.std",
        lambda v: len(v) > 0 and all(0 < each < float("inf") for each in v),
        "must hold finite numbers above 0",
    ),
    *(
        (f"data.{field}", lambda v: v is None or v >= 1, "must be 1 or more, or None for the data set's own")
        for field in ("max_words", "max_length")
    ),
    *(
        (f"model.{field}", lambda v: v is None or v >= 1, "must be 1 or more, or None for the network's own")
        for field in ("width", "depth", "embedding_size", "stem_stride")
    ),
    ("model.dropout", lambda v: v is None or 0 <= v < 1, "must be at least 0 and below 1"),
    ("model.dtype", lambda v: v in ("float32", "bfloat16"), "must be float32 or bfloat16"),
    ("loss.gamma", lambda v: abs(v) < float("inf"), "must be a finite number"),
    ("loss.smoothing", lambda v: 0 <= v < 1, "must be at least 0 and below 1"),
    (
        "loss.thresholds",
        lambda v: _ascending(v) and all(0 < each < 1 for each in v),
        "must ascend, above 0 and below 1",
    ),
    ("loss.boundaries", lambda v: _ascending(v) and all(each > 0 for each in v), "must ascend, in epochs above 0"),
    ("loss.gammas", lambda v: all(0 <= each < float("inf") for each in v), "must hold finite numbers, 0 or more"),
    ("loss.alpha", lambda v: all(0 <= each < float("inf") for each in v), "must hold finite weights, 0 or more"),
    ("loss.trace_penalty", lambda v: 0 <= v < float("inf"), "must be a finite number, 0 or more"),
    ("loss.penalty_weight", lambda v: 0 <= v < float("inf"), "must be a finite number, 0 or more"),
    ("model.hidden", lambda v: v is None or all(each >= 1 for each in v), "must hold widths of 1 or more"),
    ("model.widths", lambda v: v is None or all(each >= 1 for each in v), "must hold widths of 1 or more"),
    ("model.blocks", lambda v: v is None or all(each >= 1 for each in v), "must hold numbers of 1 or more"),
    ("optimizer.learning_rate", lambda v: 0 < v < float("inf"), "must be a finite number greater than 0"),
    ("optimizer.momentum", lambda v: 0 <= v < 1, "must be at least 0 and below 1"),
    ("optimizer.weight_decay", lambda v: v >= 0, "must be 0 or more"),
    ("optimizer.clip_norm", lambda v: v >= 0, "must be 0 (off) or more"),
    ("optimizer.batch_size", lambda v: v >= 1, "must be 1 or more"),
    ("optimizer.epochs", lambda v: v >= 1, "must be 1 or more"),
    ("optimizer.schedule", lambda v: v in ("steps", "cosine"), "must be steps or cosine"),
    ("optimizer.decay_factor", lambda v: 0 < v <= 1, "must be above 0 and at most 1"),
    ("optimizer.decay_epochs", lambda v: all(epoch > 0 for epoch in v), "must all be greater than 0"),
    ("optimizer.reduction", lambda v: v in ("mean", "sum"), "must be mean or sum, of the losses of a batch"),
    ("optimizer.select", lambda v: v in ("last", "best_val"), "must be last or best_val, the epoch that is kept"),
    ("optimizer.warmup_epochs", lambda v: v >= 0, "must be 0 or more"),
    ("log_every", lambda v: v >= 1, "must be 1 or more"),
    ("checkpoint.every", lambda v: v >= 1, "must be 1 or more"),
    ("checkpoint.keep", lambda v: v >= 2, "must be 2 or more, so that one is left when the newest is damaged"),
    ("evaluation.batch_size", lambda v: v >= 1, "must be 1 or more"),
    ("evaluation.num_bins", lambda v: v >= 1, "must be 1 or more"),
    ("evaluation.binning", lambda v: v in ("ece", "adaptive_ece"), "must be ece or adaptive_ece"),
    ("evaluation.num_resamples", lambda v: v >= 2, "must be 2 or more"),
    ("evaluation.gammas", lambda v: all(-1 < each <= 100 for each in v), "must hold numbers above -1, at most 100"),
    ("evaluation.gammas", lambda v: 0 in v, "must hold 0, the plain temperature scaling to compare with"),
    (
        "evaluation.temperature_step",
        lambda v: 0 < v <= 1 and abs(round(1 / v) * v - 1) < 1e-6,
        "must be 1/2, 1/100 ...",
    ),
    ("evaluation.max_temperature", lambda v: 1 <= v < float("inf"), "must be a finite number, 1 or more"),
    ("curvature.examples", lambda v: v >= 0, "must be 0 (no curvature) or more"),
    ("curvature.splits", lambda v: _are_splits(v), "must hold val, train or test, each once"),
    ("curvature.batch_size", lambda v: v >= 1, "must be 1 or more"),
    ("curvature.max_products", lambda v: v >= 2, "must be 2 or more"),
    ("curvature.tolerance", lambda v: v > 0, "must be greater than 0"),
    ("curvature.num_probes", lambda v: v >= 4, "must be 4 or more, to have a standard error"),
    ("curvature.density_probes", lambda v: v == 0 or v >= 2, "must be 0 (no density), or 2 or more for an error"),
    ("curvature.density_steps", lambda v: v >= 1, "must be 1 or more"),
    ("curvature.every", lambda v: v >= 0, "must be 0 (only after training) or more, in epochs"),
    ("diagnostics.every", lambda v: v >= 0, "must be 0 (none) or more, in epochs"),
    ("diagnostics.examples", lambda v: v >= 0, "must be 0 (all) or more"),
    ("diagnostics.num_bins", lambda v: v >= 1, "must be 1 or more"),
    ("diagnostics.splits", lambda v: _are_splits(v), "must hold val, train or test, each once"),
    (
        "sweep.seed",
        lambda v: _distinct(v) and all(type(each) is int for each in v),
        "must hold whole numbers, each once",
    ),
    *((f"sweep.{axis}", lambda v: _distinct(v), "must hold numbers, each once") for axis in SWEPT_FIELDS),
    ("sweep.at_once", lambda v: v >= 0, "must be 0 (measured) or the number of members in one call of the step"),
    (
        "curvature.trace_method",
        lambda v: v in ("hutchinson", "hutch++", "xtrace"),
        "must be hutchinson, hutch++ or xtrace",
    ),
)


def without_none(config: ConfigDict) -> ConfigDict:
    """The config with None where the command line gives (None,), as it does for --config.model.hidden=None."""
    config = config.copy_and_resolve_references()
    for option in ("hidden", "widths", "blocks"):
        if config.model[option] == (None,):
            config.model[option] = None
    return config


def check_config(config: ConfigDict) -> None:
    """Check the ranges of all fields.

    Raises:
      InputError: the first field that is out of its range, with the range.
    """
    for field, holds, range_in_words in CHECKS:
        value = _field(config, field)
        try:
            right = holds(value)
        except (TypeError, ValueError):  # text where numbers belong
            right = False
        if not right:
            raise InputError(f"config.{field} is {value}: it {range_in_words}")
    if config.optimizer.schedule == "cosine" and config.optimizer.warmup_epochs >= config.optimizer.epochs:
        raise InputError("config.optimizer.warmup_epochs leaves no epoch to train: it must be below optimizer.epochs")
    for field, choices in (("loss.name", losses.FUNCTIONS), ("data.augment", data.AUGMENTATIONS)):
        name = _field(config, field)
        if name not in choices:
            raise InputError.of_choice(f"config.{field}", name, choices)
    _check_gammas(config.loss)
    _check_schedule(config.loss, config.optimizer.epochs)
    if members.axes(config):
        _check_sweep(config)


def _check_sweep(config: ConfigDict) -> None:
    if len(config.sweep.gamma) and "gamma" not in losses.hyperparameters(losses.FUNCTIONS[config.loss.name]):
        raise InputError(
            f"config.sweep.gamma is given, but config.loss.name {config.loss.name} has no gamma: choose focal_loss"
        )
    every = members.make_members(config)
    for member in every:
        try:
            check_config(member.config)
        except InputError as error:
            raise InputError(f"config.sweep, member {member.name}: {error}") from error
    if config.sweep.at_once and len(every) % config.sweep.at_once:
        raise InputError(f"config.sweep.at_once is {config.sweep.at_once}: it must divide the {len(every)} members")


def _check_gammas(loss: ConfigDict) -> None:
    if loss.gamma < 0 and loss.name != "signed_focal_loss":
        raise InputError(f"config.loss.gamma is {loss.gamma}: it must be 0 or more (only signed_focal_loss goes below)")
    limits = {"sample_dependent_focal_loss": "thresholds", "scheduled_focal_loss": "boundaries"}.get(loss.name)
    if limits and len(loss.gammas) != len(loss[limits]) + 1:
        raise InputError(
            f"config.loss.gammas must hold one value more than config.loss.{limits}, {len(loss[limits]) + 1}"
        )


def _check_schedule(loss: ConfigDict, epochs: int) -> None:
    own = {"scheduled_focal_loss": tuple(loss.boundaries)}
    boundaries = (own | {name: each.boundaries for name, each in losses.SCHEDULES.items()}).get(loss.name)
    if boundaries and boundaries[0] >= epochs:
        schedule = f"config.loss.name {loss.name} changes gamma at epochs {', '.join(map(str, boundaries))}"
        mend = "set loss.name=scheduled_focal_loss with boundaries and gammas of your own"
        raise InputError(f"{schedule}, optimizer.epochs is {epochs}: train longer, or {mend}")


def _are_splits(values) -> bool:
    return len(set(values)) == len(values) > 0 and set(values) <= {"train", "val", "test"}


def _distinct(values) -> bool:
    return len(set(values)) == len(values) and all(isinstance(value, int | float) for value in values)


def _ascending(values) -> bool:
    return list(values) == sorted(set(values))


def _field(config: ConfigDict, field: str):
    return functools.reduce(lambda part, name: part[name], field.split("."), config)
