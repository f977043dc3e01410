"""Random matrices, trees and arguments for curvature and networks: refused in one line, or right and honest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from focalgeo import curvature as c
from focalgeo.curvature.lanczos import ROUNDING
from focalgeo.types import InputError, RunError

pytestmark = pytest.mark.long

SIZE = 5  # of all matrices, so that little is compiled
KEYS = st.integers(0, 2**31 - 1).map(jax.random.key)
EPSILON = float(np.finfo(np.float32).eps)

numbers = st.one_of(
    st.sampled_from([-3, 0, 1, 2, 4, 6]),
    st.sampled_from([10**6, 10**12, 2**63, -(2**31)]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.booleans(),
    st.none(),
    st.sampled_from(["", "10", [3], (2,), {}, np.float32(2.5), np.int64(6), np.array([4, 5]), np.zeros(0), 1j]),
)


@st.composite
def matrices(draw):
    """Symmetric float32 matrices with spectra of all kinds, scaled by 1e-30 to 1e30."""
    kind = st.one_of(st.floats(-1, 1, width=32), st.sampled_from([-1.0, 0.0, 1.0, 0.5]))
    eigenvalues = np.array(draw(st.lists(kind, min_size=SIZE, max_size=SIZE)))
    rotate = np.linalg.qr(np.random.default_rng(draw(st.integers(0, 9))).normal(size=(SIZE, SIZE)))[0]
    matrix = rotate @ np.diag(eigenvalues) @ rotate.T * 10.0 ** draw(st.floats(-30, 30))
    return np.asarray((matrix + matrix.T) / 2, np.float32)


@jax.jit
def multiply(matrix, vector):
    return jnp.matmul(matrix, vector, precision="highest")


@settings(max_examples=40, deadline=None)
@given(
    matrices(), KEYS, st.sampled_from(["largest", "smallest"]), st.integers(1, 3), st.sampled_from([1e-1, 1e-3, 1e-6])
)
def test_eigenvalues_are_within_their_residual_and_converged_is_honest(matrix, key, which, k, tolerance):
    like, ends = jnp.zeros(SIZE), np.linalg.eigvalsh(matrix.astype(np.float64))
    pairs = c.extreme_eigenvalues(
        lambda vector: multiply(matrix, vector), like, key, k=k, which=which, max_products=2 * SIZE, tolerance=tolerance
    )
    norm = np.abs(ends).max()
    value, residual, vector = (np.asarray(part, np.float64) for part in (pairs.value, pairs.residual, pairs.vector))
    true = np.linalg.norm(matrix.astype(np.float64) @ vector.T - value * vector.T, axis=0)
    np.testing.assert_allclose(residual, true, rtol=1e-2, atol=10 * EPSILON * norm)
    distance = np.abs(value[:, None] - ends[None, :]).min(axis=1)
    assert (distance <= residual + 10 * EPSILON * norm).all()
    threshold = np.maximum(tolerance * np.abs(value), ROUNDING * EPSILON * norm)
    assert (residual[pairs.converged] <= 1.001 * threshold[pairs.converged]).all()
    assert (residual[~pairs.converged] > 0.999 * tolerance * np.abs(value[~pairs.converged])).all()


ARGUMENTS = {
    "lambda_max": (c.lambda_max, ("max_products", "tolerance")),
    "extreme_eigenvalues": (c.extreme_eigenvalues, ("k", "which", "max_products", "tolerance")),
    "spectral_density": (c.spectral_density, ("num_probes", "steps")),
    "trace": (lambda *of, num_probes=4, **rest: c.trace(*of, num_probes, **rest), ("num_probes", "method")),
    "diagonal": (lambda *of, num_probes=4: c.diagonal(*of, num_probes), ("num_probes",)),
    "leaf_traces": (lambda *of, num_probes=4: c.leaf_traces(*of, num_probes), ("num_probes",)),
}


def one_line(call, *, names=()):
    """What a call gives; None where it is refused in one line that names one of these arguments."""
    try:
        return call()
    except (InputError, RunError) as error:
        message = str(error)
    assert "\n" not in message
    assert not names or any(name in message for name in names), message
    return None


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(sorted(ARGUMENTS)), st.data())
def test_numbers_of_any_kind_are_taken_or_refused_by_name(name, data):
    function, options = ARGUMENTS[name]
    option = data.draw(st.sampled_from(options))
    value = data.draw(numbers)
    found = one_line(
        lambda: function(jnp.negative, jnp.zeros(SIZE), jax.random.key(0), **{option: value}), names=(option,)
    )
    if found is not None:
        assert not isinstance(value, bool | str | list | tuple | dict | complex | None)
        assert np.isfinite(jax.tree.leaves(found)[0]).all()
