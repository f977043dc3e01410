import jax
import mpmath
import numpy as np
import pytest

from focalgeo.calibration import binary_focal_calibration
from focalgeo.theory import focal_slope_at_zero, temperature_bounds
from focalgeo.types import InputError

bounds = jax.jit(temperature_bounds)


def close(got, expected, rtol=2e-6, atol=0.0):
    np.testing.assert_allclose(np.asarray(got, float), expected, rtol=rtol, atol=atol)


def test_records_of_the_binary_maps_slope_at_zero(papers):
    for record in papers["binary_map_slopes"]:
        gamma = record["gamma"]
        close(focal_slope_at_zero(gamma), record["slope_at_0"])
        close(1 / focal_slope_at_zero(gamma), record["T_at_0"])


def test_a_negative_gamma_softens_at_even_odds_only_above_minus_0885(papers):
    records = papers["negative_gamma"]
    for record in records["slopes"]:
        close(focal_slope_at_zero(record["gamma"]), record["slope0"], 2e-6)
    gamma, least = records["min_slope0"]
    close(focal_slope_at_zero(gamma), least)
    edge = records["slope0_equals_1_at_gamma"]
    assert focal_slope_at_zero(edge - 1e-4) > 1 > focal_slope_at_zero(edge + 1e-4)
    s = np.linspace(0, 40, 4000)
    for record in records["min_dlogit"]:
        slopes = jax.vmap(jax.grad(binary_focal_calibration), in_axes=(0, None))(
            np.float32(s), np.float32(record["gamma"])
        )
        close(slopes.min(), record["min_dlogit"], 1e-5)
        close(slopes.max(), record["max_dlogit"], 1e-4)


def test_records_of_the_bounds(papers):
    for record in papers["prop3_bounds"]:
        for reach in (5, 10, 20):
            got = bounds(np.float32(record["gamma"]), logit_range=np.float32(reach))
            close([got.low, got.high], [record["T_theory_low"], record["T_theory_high"]])
            close([got.tight_low, got.tight_high], record[f"T_tight_abs_s_lt_{reach}"])
            low, high = record[f"T_on_0.001_grid_abs_s_lt_{reach}"]
            assert low - 1e-6 <= got.tight_low < low + 0.001
            assert high - 0.001 < got.tight_high <= high + 1e-6
    for record in papers["prop3_tight_T_high_for_gamma_above"]:
        close(temperature_bounds(float(record["gamma"])).tight_high, record["T_hi"], 3e-6)


@pytest.mark.parametrize("gamma", [0.05, 0.5, 1.0, 4.0, 9.0, 50.0])
def test_theory_bounds_enclose_the_map(gamma):
    s = np.concatenate([np.geomspace(0.01, 600, 200), -np.geomspace(0.01, 600, 200)])
    got = bounds(np.float32(gamma))
    ratio = np.asarray(binary_focal_calibration(s, gamma), float) / s
    assert (ratio < 1 / float(got.low)).all()
    assert (ratio > 1 / float(got.high)).all()


@pytest.mark.parametrize("gamma", [0.1, 1.0, 3.0, 5.63, 5.64, 6.0, 10.0])
def test_t_high_is_1_over_the_slope_at_even_odds_up_to_gamma_5635(gamma):
    def mapped(s):
        q, rest = 1 / (1 + mpmath.exp(-s)), 1 / (1 + mpmath.exp(s))
        return gamma * s + mpmath.log((q - gamma * rest * mpmath.log(rest)) / (rest - gamma * q * mpmath.log(q)))

    with mpmath.workdps(40):
        log_2 = mpmath.log(2)
        third = gamma * (6 - 8 * log_2 + (9 - 18 * log_2 + 8 * log_2**2) * gamma - (3 * log_2 - 2) * gamma**2)
        third /= 4 * (1 + gamma * log_2) ** 3
        assert float(mpmath.diff(mapped, 0, 3)) == pytest.approx(float(third), rel=1e-6)
        at = np.geomspace(1e-2, 20, 100)
        convex = all(mpmath.diff(mapped, s, 2) > 0 for s in at)
        slope, least = mpmath.diff(mapped, 0), min(mapped(s) / s for s in at)
    assert convex == (least > slope) == (third > 0) == (gamma < 5.635)
    close(1 / temperature_bounds(gamma).tight_high, float(min(least, slope)), 5e-5)


def test_printed_0206_belongs_to_logits_within_10():
    tight_low = [float(temperature_bounds(4.0, logit_range=reach).tight_low) for reach in (10.0, 20.0)]
    assert np.floor(np.array(tight_low) * 1000).tolist() == [206, 203]


def test_gamma_zero_is_no_map_at_all():
    np.testing.assert_allclose(temperature_bounds(0.0), 1, rtol=1e-7)


def test_bad_input():
    with pytest.raises(InputError, match="gamma is -1: "):
        temperature_bounds(-1.0)
    with pytest.raises(InputError, match="logit_range is 0"):
        temperature_bounds(1.0, logit_range=0.0)
