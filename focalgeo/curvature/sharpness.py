"""Sharpness as the field measures it, each with an error: how far a loss rises about its parameters.

The worst case and the mean within a neighbourhood that every parameter's own size scales, the noise that a loss bears,
and the Fisher-Rao norm. The loops are Python's: all but `fisher_rao` are to be called outside jit.
"""

import math

import jax
import jax.numpy as jnp

from focalgeo import checks
from focalgeo.curvature.matvec import layout_of, ravel, unravel
from focalgeo.curvature.quadratic_forms import sample_mean
from focalgeo.trees import at_highest
from focalgeo.types import Array, Estimate, PyTree, RunError


@at_highest
def adaptive_sharpness(
    value_and_grad, params: PyTree, key: Array | int, *, radius: float, steps: int = 20, starts: int = 3
) -> tuple[Array, Array]:
    """The worst rise max L(w + |w| u) - L(w) over |u| <= radius, entry by entry, by projected gradient ascent.

    |u| is the Euclidean length over all parameters. An ascent goes along the gradient in u, at first by 2 radius, and
    back into the ball; a step that does not raise the loss is taken back, and the next is half as long. The first
    begins at w, others at random points of the ball. A ReLU network is as sharp after one layer was multiplied and
    another divided. A parameter of 0 stays.

    Args:
        value_and_grad: params -> (loss, gradient), as jax.jit(jax.value_and_grad(loss)).
        params: tree of floating-point arrays, w.
        key: PRNG key, or a seed, of the starts.
        radius: above 0.
        steps: of each ascent, a gradient each.
        starts: ascents, 1 or more.

    Returns:
        (value, error): the highest rise found, and the larger of two numbers: what the gradient there still promises
        within the ball, to first order, and how far below the least of the ascents ended. The true worst case is at
        least the value; where all ascents have come to one height from which no step leads up, the error is 0.

    Raises:
        InputError: an argument out of range, `params` empty or not floating-point, a gradient unlike it.
        RunError: a loss or gradient within the ball is not finite.

    Accuracy: the solution of the trust-region problem of quadratic losses, convex and not, to 3e-3 after 20 steps where
    it lies on the surface, within the error elsewhere; tests/curvature/test_sharpness_measures.py.

    Source: Kwon et al., ASAM (2021), Definition 1, without its constant added to |w|; Andriushchenko et al., A modern
    look at the relationship between sharpness and generalization (2023), Eq. 1, who take Auto-PGD, and for |u| also the
    largest entry.

    Example:
        >>> value, error = curvature.adaptive_sharpness(jax.value_and_grad(loss), params, key, radius=0.1)
        >>> round(float(value), 3)
        0.505
    """
    checks.check_params("params", params)
    key = checks.prng_key(key)
    checks.check_above("radius", radius, 0)
    checks.check_function("value_and_grad", value_and_grad)
    steps, starts = checks.count("steps", steps, 0), checks.count("starts", starts, 1)
    layout = layout_of(params)
    origin = ravel(params, layout)
    scale = jnp.abs(origin)

    def at(place):
        place = place * (radius / jnp.maximum(jnp.linalg.norm(place), radius))
        value, gradient = value_and_grad(unravel(origin + scale * place, layout))
        checks.check_array("the loss", value, shape=())
        checks.check_alike("the gradient", gradient, "params", params)
        checks.check_finite_tree("loss and gradient", (value, gradient))
        return value, place, scale * ravel(gradient, layout)

    def ascent(best):
        step = 2 * radius
        for _ in range(steps):
            _, place, gradient = best
            new = at(place + step * gradient / jnp.linalg.norm(gradient))
            if new[0] > best[0]:  # not from a gradient of 0, which gives NaN
                best = new
            else:
                step /= 2
        return best

    ends = [
        ascent(at(start * radius * jax.random.normal(each, origin.shape, origin.dtype)))
        for start, each in enumerate(jax.random.split(key, starts))
    ]
    ends.sort(key=lambda end: end[0])
    value, place, gradient = ends[-1]
    gap = radius * jnp.linalg.norm(gradient) - jnp.vdot(gradient, place)
    return value - value_and_grad(params)[0], jnp.maximum(gap, value - ends[0][0])


@at_highest
def noise_rises(
    loss, params: PyTree, key: Array | int, sigma: float, *, num_samples: int = 32, adaptive: bool = False
) -> Array:
    """Samples of L(w + sigma xi) - L(w), xi standard normal; adaptive: of L(w + sigma |w| xi) - L(w), entry by entry.

    The mean of adaptive ones is the average-case adaptive sharpness; to second order it is sigma^2 / 2 times the
    scale-free trace sum_i w_i^2 H_ii, of others sigma^2 / 2 times Tr H.

    Args:
        loss: params -> one floating-point number; jitted for speed by the caller.
        params: tree of floating-point arrays, w.
        key: PRNG key, or a seed, of xi: of one key the same at every sigma.
        sigma: standard deviation of the noise; adaptive: beside each parameter's size.
        num_samples: draws of xi.
        adaptive: measure the noise by each parameter's size.

    Returns:
        [num_samples], in the loss's unit; `sample_mean` has their mean with its error.

    Raises:
        InputError: an argument out of range, a loss that is not scalar, `params` empty or not floating-point.

    Accuracy: within errors of a quadratic loss's closed form; tests/curvature/test_sharpness_measures.py.

    Source: Andriushchenko et al., A modern look at the relationship between sharpness and generalization (2023), Eq. 1.

    Example:
        >>> minimum = {"b": jnp.float32(0), "w": jnp.float32([0, 0])}
        >>> rises = curvature.noise_rises(loss, minimum, key, 0.1)
        >>> round(float(curvature.sample_mean(rises).value), 3)  # on average sigma^2 / 2 times the trace 9, 0.045
        0.042
    """
    checks.check_params("params", params)
    key = checks.prng_key(key)
    checks.check_interval("sigma", sigma, 0)
    num_samples = checks.count("num_samples", num_samples, 1)
    loss, layout = checks.scalar(loss), layout_of(params)
    origin = ravel(params, layout)
    sizes = sigma * jnp.abs(origin) if adaptive else sigma
    moved = [
        loss(unravel(origin + sizes * jax.random.normal(each, origin.shape, origin.dtype), layout))
        for each in jax.random.split(key, num_samples)
    ]
    return jnp.stack(moved) - loss(params)


def pac_bayes_sigma(loss, params: PyTree, key: Array | int, *, rise: float = 0.1, num_samples: int = 32) -> Estimate:
    """The sigma at which E L(w + sigma xi) - L(w) = rise, xi standard normal: the flatter, the larger.

    By bisection of log sigma with the same xi at every sigma, from 1e-9 to 1e6; where the mean rise is not
    monotone, one of its crossings. To second order sqrt(2 rise / Tr H).

    Args:
        loss: params -> one floating-point number; jitted for speed by the caller.
        params: tree of floating-point arrays, w.
        key: PRNG key, or a seed, of the noise.
        rise: above 0, in the loss's unit: 0.1 is a tenth of a nat, whatever the loss is. For a rise by a tenth of the
            loss give 0.1 * loss(params).
        num_samples: draws of xi, 2 or more; a loss is taken for each of them 23 times.

    Returns:
        Estimate: stderr is that of the mean rise at sigma over its slope there.

    Raises:
        InputError: an argument out of range, `params` empty or not floating-point.
        RunError: no such noise gives that rise, as of a loss that is bounded below it; or the loss is not finite.

    Accuracy: within its error of a quadratic loss's closed form; tests/curvature/test_sharpness_measures.py.

    Source: Neyshabur et al., Exploring generalization in deep learning (2017), sharpness in PAC-Bayes; Jiang et al.,
    Fantastic generalization measures (2020), "PAC-Bayes flatness" 1 / sigma^2, whose sigma raises the error on train
    by 0.1. The 0-1 error is replaced by the loss itself, as in Neyshabur et al.

    Example:
        >>> minimum = {"b": jnp.float32(0), "w": jnp.float32([0, 0])}
        >>> found = curvature.pac_bayes_sigma(loss, minimum, key)  # of many draws sqrt(2 rise / 9) = 0.149
        >>> round(float(found.value), 3), round(float(found.stderr), 3)
        (0.155, 0.012)
    """
    checks.check_above("rise", rise, 0)

    def mean(log_sigma):
        return sample_mean(noise_rises(loss, params, key, math.exp(log_sigma), num_samples=num_samples))

    low, high = math.log(1e-9), math.log(1e6)
    if not (least := mean(low).value) <= rise:
        raise RunError(f"noise of 1e-9 raises the loss by {least:.3g}, more than {rise:.3g}: give a larger rise")
    for _ in range(20):  # to 3e-5 of sigma
        middle = (low + high) / 2
        # what is not finite is above
        low, high = (middle, high) if mean(middle).value <= rise else (low, middle)
    here, sigma = mean(high), math.exp(high)
    if not here.value > rise:
        raise RunError(f"no noise raises the loss by {rise:.3g}: give a smaller rise")
    slope = mean(high + 0.1).value - mean(high - 0.1).value
    return Estimate.by_student(sigma, 0.2 * sigma * here.stderr / abs(slope), num_samples)


@at_highest
def fisher_rao(logits, params: PyTree) -> Array:
    """Each example's share of the Fisher-Rao norm w' F w, w' J' (diag p - p p') J w: the variance of J w under p.

    F is the network's own Fisher matrix, labels drawn from its softmax p, as in `fisher_vp`, and J the Jacobian of an
    example's logits. The norm, in Liang et al. its square, is the mean over examples, and `sample_mean` of these
    numbers has the error of taking so few of them. It does not change when one layer of a ReLU network is multiplied
    and another divided.

    Args:
        logits: params -> [..., classes], all examples.
        params: tree of floating-point arrays, w.

    Returns:
        [...], 0 or more, in nats; one forward derivative.

    Raises:
        InputError: the logits are not an array with a last axis of classes; `params` empty or not floating-point.

    Accuracy: float rounding; against dense Jacobians in float64, tests/curvature/test_sharpness_measures.py.

    Source: Liang et al., Fisher-Rao metric, geometry, and complexity of neural networks (2019), Definition 2.

    Example:
        >>> outputs = lambda params: jnp.stack([params["w"], params["w"] ** 2]) * params["b"]  # logits [2, 2]
        >>> print(np.asarray(curvature.fisher_rao(outputs, params)).round(4))
        [0.7864 0.    ]
    """
    checks.check_params("params", params)
    scores, tangent = jax.jvp(
        lambda point: checks.floats(checks.score_rows("logits", logits(point)))[0], (params,), (params,)
    )
    probs = jax.nn.softmax(scores)
    apart = tangent - jnp.average(tangent, -1, probs, keepdims=True)
    return jnp.average(apart**2, -1, probs)
