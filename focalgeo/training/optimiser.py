"""Optimisers and learning-rate schedules, built from optax."""

from collections import Counter
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import optax

MOMENTS = 2  # the place in a state of the optimiser's own scaling: momentum of sgd, moments of adam and adagrad


def step_schedule(boundaries: Sequence[float], factor: float) -> Callable:
    """Relative learning rate 1, factor, factor^2, ... that drops at each boundary (in steps)."""
    # two within one step drop twice
    scales = {at: factor**times for at, times in Counter(map(int, boundaries)).items()}
    return _of_float_count(optax.piecewise_constant_schedule(1.0, scales))


def cosine_schedule(steps: int, warmup_steps: int) -> Callable:
    """Relative learning rate: linear from 0 to 1 over the warm-up, then half a cosine down to 0 at `steps`."""
    return _of_float_count(optax.warmup_cosine_decay_schedule(0.0, 1.0, warmup_steps, steps))


def make_optimiser(
    name: str, schedule: Callable, *, momentum: float, nesterov: bool, weight_decay: float, clip_norm: float
) -> optax.GradientTransformation:
    """Gradients -> updates for a base learning rate of 1; the step multiplies by the traced `TrainState.learning_rate`.

    Order: clip by global norm (0: off), add weight_decay * params to the gradient (all parameters, as PyTorch does, but
    word vectors: those of words that a batch lacks would have no other gradient, and an adaptive scaling such as
    AdaGrad's turns a small gradient that is alone into full steps towards 0), then the optimiser's own scaling. Where
    weight_decay is above 0 its update takes weight_decay, traced, in place of it.

    Source: the papers' recipes (Mukhoti et al., App. D; Komisarenko & Kull, 5.1).
    """
    return optax.chain(  # MOMENTS is a place in it
        optax.clip_by_global_norm(clip_norm) if clip_norm else optax.identity(),
        _decayed_weights(weight_decay) if weight_decay else optax.identity(),
        OPTIMISERS[name](momentum, nesterov),
        optax.scale_by_learning_rate(schedule),
    )


def _adam() -> optax.GradientTransformation:
    adam = optax.scale_by_adam(0.9, 0.999)
    # optax raises a float to its integer count, which strict dtype promotion refuses
    return adam._replace(update=jax.numpy_dtype_promotion("standard")(adam.update))


# name -> the optimiser's own scaling of gradients, of (momentum, nesterov)
OPTIMISERS = {
    "sgd": lambda momentum, nesterov: optax.trace(momentum, nesterov=nesterov) if momentum else optax.identity(),
    "adam": lambda momentum, nesterov: _adam(),
    "adagrad": lambda momentum, nesterov: optax.scale_by_rss(initial_accumulator_value=0.0, eps=1e-10),
}


def _decayed_weights(weight_decay: float) -> optax.GradientTransformationExtraArgs:
    def decay(weight_decay):
        return optax.add_decayed_weights(weight_decay, but_word_vectors)

    def but_word_vectors(params):
        word_vectors = (jax.tree_util.DictKey("embedding"),)
        return jax.tree_util.tree_map_with_path(lambda path, _: path[-1:] != word_vectors, params)

    def update(updates, state, params=None, *, weight_decay=weight_decay, **others):
        return decay(weight_decay).update(updates, state, params)

    return optax.GradientTransformationExtraArgs(decay(weight_decay).init, update)


def _of_float_count(schedule):
    # optax mixes the integer count with floats, which strict dtype promotion refuses
    return jax.jit(lambda count: schedule(jnp.asarray(count, jnp.float32)))
