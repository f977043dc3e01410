"""Optimisers and learning-rate schedules, built from optax."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import jax
import jax.numpy as jnp
import optax

from focalgeo.types import InputError, PyTree, shown


def step_schedule(boundaries: Sequence[int], factor: float) -> Callable:
    """Relative learning rate 1, factor, factor^2, ... that drops at each boundary (in steps).

    Raises:
        InputError: a boundary or the factor is no finite number, or below 0.
    """
    if not isinstance(boundaries, Iterable) or isinstance(boundaries, str):
        raise InputError(f"boundaries is {shown(boundaries)}: it must hold numbers of steps")
    boundaries = list(boundaries)
    for boundary in boundaries:
        _check("boundaries", boundary, _is_number(boundary), "hold finite numbers of steps, 0 or more")
    _check("factor", factor, _is_number(factor), "be a finite number, 0 or more")
    drops = Counter(map(int, boundaries))  # two within one step drop twice
    scales = {at: float(factor) ** times for at, times in drops.items()}
    return _of_float_count(optax.piecewise_constant_schedule(1.0, scales))


def cosine_schedule(steps: int, warmup_steps: int) -> Callable:
    """Relative learning rate: linear from 0 to 1 over the warm-up, then half a cosine down to 0 at `steps`.

    Raises:
        InputError: `steps` is no whole number of 1 or more, or `warmup_steps` none from 0 and below it.
    """
    _check("steps", steps, _is_whole(steps) and steps >= 1, "be a whole number of 1 or more")
    fits = _is_whole(warmup_steps) and 0 <= warmup_steps < steps
    _check("warmup_steps", warmup_steps, fits, f"be a whole number from 0, below the {steps} steps")
    return _of_float_count(optax.warmup_cosine_decay_schedule(0.0, 1.0, int(warmup_steps), int(steps)))


def make_optimiser(
    name: str, schedule: Callable, *, momentum: float, nesterov: bool, weight_decay: float, clip_norm: float
) -> optax.GradientTransformation:
    """Gradients -> updates for a base learning rate of 1; the step multiplies by the traced `TrainState.learning_rate`.

    Order: clip by global norm (0: off), add weight_decay * params to the gradient (all parameters, as PyTorch does, but
    word vectors: those of words that a batch lacks would have no other gradient, and an adaptive scaling such as
    AdaGrad's turns a small gradient that is alone into full steps towards 0), then the optimiser's own scaling.

    Raises:
        InputError: an unknown name, or a number out of its range.

    Source: the papers' recipes (Mukhoti et al., App. D; Komisarenko & Kull, 5.1).
    """
    if not isinstance(name, str) or name not in OPTIMISERS:
        raise InputError.of_choice("config.optimizer.name", str(name), OPTIMISERS)
    _check("schedule", schedule, callable(schedule), "be a function of the number of steps")
    is_share = _is_number(momentum) and momentum < 1
    _check("config.optimizer.momentum", momentum, is_share, "be at least 0 and below 1")
    _check("config.optimizer.nesterov", nesterov, isinstance(nesterov, bool), "be true or false")
    _check("config.optimizer.weight_decay", weight_decay, _is_number(weight_decay), "be a finite number, 0 or more")
    _check("config.optimizer.clip_norm", clip_norm, _is_number(clip_norm), "be 0 (off) or a finite number above it")
    return optax.chain(  # `moments` knows this order
        optax.clip_by_global_norm(float(clip_norm)) if clip_norm else optax.identity(),
        optax.add_decayed_weights(float(weight_decay), _but_word_vectors) if weight_decay else optax.identity(),
        OPTIMISERS[name](float(momentum), nesterov),
        optax.scale_by_learning_rate(schedule),
    )


def moments(opt_state: Sequence) -> PyTree:
    """The state of the optimiser's own scaling, sgd's momentum or adam's and adagrad's moments, of what it keeps."""
    return opt_state[2]


def with_moments(opt_state: tuple, own: PyTree) -> tuple:
    """The same state with these moments; the schedule's count stays."""
    return (*opt_state[:2], own, *opt_state[3:])


def _check(name: str, value: Any, holds: bool, words: str) -> None:
    if not holds:
        raise InputError(f"{name} is {shown(value)}: it must {words}")


def _is_number(value: Any) -> bool:
    """Whether it is a finite number of 0 or more."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _sgd(momentum: float, nesterov: bool) -> optax.GradientTransformation:
    return optax.trace(momentum, nesterov=nesterov) if momentum else optax.identity()


def _adam(momentum: float, nesterov: bool) -> optax.GradientTransformation:
    return _with_standard_promotion(optax.scale_by_adam(0.9, 0.999))


def _adagrad(momentum: float, nesterov: bool) -> optax.GradientTransformation:
    return optax.scale_by_rss(initial_accumulator_value=0.0, eps=1e-10)


# name -> the optimiser's own scaling of gradients, of (momentum, nesterov)
OPTIMISERS: dict[str, Callable[[float, bool], optax.GradientTransformation]] = {
    "sgd": _sgd,
    "adam": _adam,
    "adagrad": _adagrad,
}


def _but_word_vectors(params: PyTree) -> PyTree:
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1:] != (jax.tree_util.DictKey("embedding"),), params)


def _with_standard_promotion(tx: optax.GradientTransformation) -> optax.GradientTransformation:
    # optax raises a float to its integer count, which strict dtype promotion refuses
    def update(*arguments):
        with jax.numpy_dtype_promotion("standard"):
            return tx.update(*arguments)

    return optax.GradientTransformation(tx.init, update)


def _of_float_count(schedule: Callable) -> Callable:
    # optax mixes the integer count with floats, which strict dtype promotion refuses
    return jax.jit(lambda count: schedule(jnp.asarray(count, jnp.float32)))
