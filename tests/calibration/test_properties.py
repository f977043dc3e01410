"""Laws of maps and metrics on whatever logits hypothesis can think of, saturated and tied ones above all."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from reference import calibration as oracle

from focalgeo import calibration

SHAPE = (6, 4)
logits = arrays.arrays(
    np.float32, SHAPE, elements=st.sampled_from([-100, -17, -1, 0, 0.25, 1, 60]) | st.floats(-90, 90, width=32)
)
gammas = st.sampled_from([0.0, 0.05, 0.5, 1.0, 3.0, 20.0]) | st.floats(0, 20, width=32)
temperatures = st.sampled_from([0.01, 1.0, 5.0]) | st.floats(0.015625, 16, width=32)

MAP = jax.jit(calibration.focal_temperature_scaling)
quick = settings(max_examples=50, deadline=None, derandomize=True)


@quick
@given(logits, gammas, temperatures)
def test_a_map_returns_probabilities_in_the_order_of_the_logits(z, gamma, temperature):
    log_probs = np.asarray(MAP(z, jnp.float32(gamma), jnp.float32(temperature)), np.float64)
    assert (log_probs <= 0).all()
    np.testing.assert_allclose(np.exp(log_probs).sum(-1), 1, atol=2e-5)
    order = np.argsort(z, -1, kind="stable")
    assert (np.diff(np.take_along_axis(log_probs, order, -1), axis=-1) >= -1e-4).all()


@quick
@given(logits, gammas, temperatures, st.floats(-50, 50, width=32))
def test_a_constant_added_to_a_row_changes_nothing(z, gamma, temperature, constant):
    near = np.round(z)  # sums with a rounded constant are exact
    log_probs = MAP(near, jnp.float32(gamma), jnp.float32(temperature))
    moved = MAP(near + np.round(np.float32(constant)), jnp.float32(gamma), jnp.float32(temperature))
    np.testing.assert_allclose(log_probs, moved, rtol=2e-6, atol=2e-5)


@quick
@given(st.integers(1, 10_000), st.data())
def test_a_value_on_an_edge_falls_into_the_bin_below_whatever_rounding_made_of_it(num_bins, data):
    """As NumPy's float64 or float32, next to the edge, or as exp(log p) in one program with all else."""
    edge = data.draw(st.integers(0, num_bins)) / num_bins
    off = edge + np.float64([0, 9e-7, -9e-7, 1.2e-6])
    near = np.float32(edge) + np.spacing(np.float32(edge)) * np.arange(-3, 4)
    values = np.clip(np.float32([*off, *near, np.exp(np.log(np.float32(max(edge, 1e-30))))]), 0, 1)
    expected = [oracle.bin_number(value, num_bins) for value in values]
    for binned in (
        calibration.metrics.binning.bin_index,
        jax.jit(calibration.metrics.binning.bin_index, static_argnums=1),
    ):
        np.testing.assert_array_equal(binned(values, num_bins), expected)
    assert len({*expected[:3], *expected[4:]}) == 1
    assert expected[3] == min(expected[0] + (edge > 0), num_bins - 1)
