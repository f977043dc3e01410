"""Random sign probes, one for each key and index, and the mean of what was measured on them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import stdtrit

from focalgeo.curvature.flattening import Layout
from focalgeo.types import Array, Estimate, InputError


@functools.partial(jax.jit, static_argnames="layout")
def sign_probe(key: Array, index: Array, basis: Array | None, *, layout: Layout) -> Array:
    """The probe of this index as a flat vector; projected away from the rows of `basis`, if there is one."""
    probe = jax.random.rademacher(jax.random.fold_in(key, index), (layout.size,), layout.dtype)
    if basis is None:
        return probe
    inside = jnp.matmul(basis, probe, precision="highest")
    return probe - jnp.matmul(inside, basis, precision="highest")


def sample_mean(samples: Array) -> Estimate:
    """The mean of n independent samples with its standard error and 95% interval by Student's t.

    Args:
        samples: [n, ...], of NumPy or JAX, n 2 or more; several numbers of a sample get an interval each.

    Returns:
        Estimate of arrays [...] of the samples' own library and dtype; n is a scalar.

    Raises:
        InputError: fewer than two samples.

    Accuracy: covers the mean of normal samples 95 times in 100; tests/curvature/test_sampling.py.
    """
    count = samples.shape[0]
    if count < 2:
        raise InputError(f"{count} sample has no standard error; take 2 or more")
    return with_interval(samples.mean(axis=0), samples.std(axis=0, ddof=1) / count**0.5, count=count)


def with_interval(value: Array, stderr: Array, *, count: int) -> Estimate:
    """The Estimate of a value whose standard error has count - 1 degrees of freedom."""
    reach = stderr * float(stdtrit(count - 1, 0.975))
    return Estimate(value, stderr, value - reach, value + reach, np.int32(count))
