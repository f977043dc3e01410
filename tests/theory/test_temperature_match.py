import numpy as np
import pytest

from focalgeo.theory import matching_temperature, temperature_mismatch
from focalgeo.types import InputError

PRINTED_LINES = {2: (0.95, 0.85), 3: (0.64, 0.91), 4: (0.47, 0.85)}


def close(got, expected, rtol=1e-4, atol=0.0):
    np.testing.assert_allclose(np.asarray(got, float), expected, rtol=rtol, atol=atol)


def inverse_matches(gammas, num_classes):
    return np.array([1 / float(matching_temperature(float(gamma), num_classes)) for gamma in gammas])


def test_records_of_two_classes(papers):
    for record in papers["binary_ts_fit_minimax"]:
        gamma = float(record["gamma"])
        close(matching_temperature(gamma, 2), record["T"], 1e-5)
        close(temperature_mismatch(gamma, record["T"], 2), record["max_err"], 1e-3, 5e-7)
        line = 1 / (0.95 * gamma + 0.85)
        close(temperature_mismatch(gamma, line, 2), record["max_err_linear_fit"], 1e-3, 5e-7)
    for record in papers["binary_printed_T_errors"]:
        close(temperature_mismatch(float(record["gamma"]), record["T"], 2), record["max_err"], 1e-3, 5e-7)


def test_no_line_is_both_printed_slope_and_intercept(papers):
    fits = papers["binary_ts_fit_OLS_of_invT_on_gamma"]
    gammas = np.arange(1, 51) / 10
    inverse = inverse_matches(gammas, 2)
    for stop in (3, 5):
        near = gammas <= stop
        close(np.polyfit(gammas[near], inverse[near], 1), fits[f"0.1-{stop}"], 1e-3)
    assert all(np.hypot(slope - 0.95, intercept - 0.85) > 0.01 for slope, intercept in fits.values())


def test_how_far_a_straight_line_is_off_for_two_classes(papers):
    for name, step in (("g0_1", 0.05), ("g0_3", 0.1), ("g0_5", 0.1)):
        record = papers["binary_linear_fit_detail"][name]
        gammas = np.arange(step, float(name[3:]) + step / 2, step)
        inverse = inverse_matches(gammas, 2)
        line = np.polyfit(gammas, inverse, 1)
        close(line, [record["slope"], record["intercept"]], 1e-4)
        close(np.abs(np.polyval(line, gammas) - inverse).max(), record["max_abs_resid_invT"], 1e-3)
        errors = [
            temperature_mismatch(gamma, 1 / value, 2)
            for gamma, value in zip(gammas, np.polyval(line, gammas), strict=True)
        ]
        close(np.max(errors), record["max_prob_err_of_line"], 1e-2)


def test_error_of_two_classes_passes_a_thousandth_for_some_gammas(papers):
    low, high = papers["binary_best_err_exceeds_1e-3_for_gamma_in"]
    worst, error = papers["binary_best_err_worst_gamma_and_value"]
    close(temperature_mismatch(worst, matching_temperature(worst, 2), 2), error, 1e-3)
    for gamma, above in ((low, True), (high, True), (low - 0.026, False), (high + 0.026, False)):
        assert (temperature_mismatch(gamma, matching_temperature(gamma, 2), 2) > 1e-3) == above


@pytest.mark.parametrize("num_classes", [3, 4])
def test_records_of_more_classes(papers, num_classes):
    fit = papers[f"multiclass_ts_fit_{num_classes}"]
    slope, intercept = PRINTED_LINES[num_classes]
    for record in fit["rows"]:
        gamma = float(record["gamma"])
        close(matching_temperature(gamma, num_classes), record["T"])
        close(temperature_mismatch(gamma, record["T"], num_classes), record["max_err"], 1e-3)
        line = 1 / (slope * gamma + intercept)
        close(temperature_mismatch(gamma, line, num_classes), record["err_paper"], 1e-3)
    gammas = np.array([float(record["gamma"]) for record in fit["rows"]])
    close(np.polyfit(gammas, inverse_matches(gammas, num_classes), 1), fit["OLS"], 1e-3)
    for record in papers[f"multiclass_ts_fit_{num_classes}_fine"]["rows"]:
        gamma = float(record["gamma"])
        close(matching_temperature(gamma, num_classes), record["T"], {3: 2e-3, 4: 1e-2}[num_classes])
        error = temperature_mismatch(gamma, record["T"], num_classes)
        close(error, record["max_err"], {3: 1e-2, 4: 3e-2}[num_classes])


def test_printed_pairs_of_three_classes(papers):
    errors = {}
    for record in papers["multiclass3_printed_pairs_error"]:
        gamma, temperature = float(record["gamma"]), record["T"]
        errors[gamma, temperature] = float(temperature_mismatch(gamma, temperature, 3))
        close(errors[gamma, temperature], record["max_err"], 1e-3)
    assert errors[1, 0.81] > 2 * errors[1, 0.645]  # Figure 5's pairs are those of gamma 0.5 and 2
    assert errors[3, 0.46] > 1.8 * errors[3, 0.353]
    close(matching_temperature(0.5, 3), 0.81, 0.01)
    close(matching_temperature(2.0, 3), 0.46, 0.02)


def test_four_classes_miss_by_more_than_the_printed_8_percent():
    assert temperature_mismatch(9.0, matching_temperature(9.0, 4), 4) > 0.12
    coarse = temperature_mismatch(9.0, matching_temperature(9.0, 4, steps=25), 4, steps=25)
    assert coarse < temperature_mismatch(9.0, matching_temperature(9.0, 4), 4)  # a coarse lattice hides it


@pytest.mark.parametrize("num_classes", [2, 3, 4])
def test_gamma_zero_needs_no_temperature(num_classes):
    close(matching_temperature(0.0, num_classes), 1, 1e-6)
    assert temperature_mismatch(0.0, 1.0, num_classes) < 3e-7


def test_bad_input():
    with pytest.raises(InputError, match="num_classes is 5: choose one of 2, 3, 4"):
        matching_temperature(1.0, 5)
    with pytest.raises(InputError, match="temperature is 0"):
        temperature_mismatch(1.0, 0.0, 2)
    with pytest.raises(InputError, match="steps is 1"):
        matching_temperature(1.0, 2, steps=1)


def test_records_of_three_classes_over_twice_the_spread(papers):
    for record in papers["multiclass_ts_fit_3_range20"]["rows"]:
        lattice = {"steps": round(record["diff_range"] / record["step"]), "spread": float(record["diff_range"])}
        gamma = float(record["gamma"])
        close(matching_temperature(gamma, 3, **lattice), record["T"], 1e-4)
        close(temperature_mismatch(gamma, record["T"], 3, **lattice), record["max_err"], 1e-4)
        close(temperature_mismatch(gamma, 1 / (0.64 * gamma + 0.91), 3, **lattice), record["err_paper"], 1e-4)
    for spread in (0.0, float("inf")):
        with pytest.raises(InputError, match="spread is"):
            matching_temperature(1.0, 3, spread=spread)
