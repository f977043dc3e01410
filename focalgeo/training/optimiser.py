"""Optimisers and learning-rate schedules, built from optax."""

from collections import Counter
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from focalgeo import checks
from focalgeo.types import PyTree


def step_schedule(boundaries: Sequence[float], factor: float) -> Callable:
    """Relative learning rate 1, factor, factor^2, ... that drops at each boundary (in steps).

    Raises:
        InputError: a boundary or the factor is no finite number, or below 0.
    """
    for name, numbers in (("boundaries", list(boundaries)), ("factor", factor)):
        checks.check_interval(name, numbers, 0)
    drops = Counter(map(int, boundaries))  # two within one step drop twice
    scales = {at: float(factor) ** times for at, times in drops.items()}
    return _of_float_count(optax.piecewise_constant_schedule(1.0, scales))


def cosine_schedule(steps: int, warmup_steps: int) -> Callable:
    """Relative learning rate: linear from 0 to 1 over the warm-up, then half a cosine down to 0 at `steps`.

    Raises:
        InputError: `steps` is no whole number of 1 or more, or `warmup_steps` none from 0 and below it.
    """
    steps = checks.count("steps", steps, 1)
    warmup_steps = checks.count("warmup_steps", warmup_steps, 0, steps - 1)
    return _of_float_count(optax.warmup_cosine_decay_schedule(0.0, 1.0, warmup_steps, steps))


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
    checks.check_choice("name", name, OPTIMISERS)
    for what, number in (("momentum", momentum), ("weight_decay", weight_decay), ("clip_norm", clip_norm)):
        checks.check_interval(what, number, 0, 1 if what == "momentum" else np.inf)
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


def _adam() -> optax.GradientTransformation:
    adam = optax.scale_by_adam(0.9, 0.999)

    # optax raises a float to its integer count, which strict dtype promotion refuses
    def update(*arguments):
        with jax.numpy_dtype_promotion("standard"):
            return adam.update(*arguments)

    return optax.GradientTransformation(adam.init, update)


# name -> the optimiser's own scaling of gradients, of (momentum, nesterov)
OPTIMISERS: dict[str, Callable[[float, bool], optax.GradientTransformation]] = {
    "sgd": lambda momentum, nesterov: optax.trace(momentum, nesterov=nesterov) if momentum else optax.identity(),
    "adam": lambda momentum, nesterov: _adam(),
    "adagrad": lambda momentum, nesterov: optax.scale_by_rss(initial_accumulator_value=0.0, eps=1e-10),
}


def _but_word_vectors(params: PyTree) -> PyTree:
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1:] != (jax.tree_util.DictKey("embedding"),), params)


def _of_float_count(schedule: Callable) -> Callable:
    # optax mixes the integer count with floats, which strict dtype promotion refuses
    return jax.jit(lambda count: schedule(jnp.asarray(count, jnp.float32)))
