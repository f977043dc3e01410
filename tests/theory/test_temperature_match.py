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


@pytest.mark.parametrize("num_classes", [3, pytest.param(4, marks=pytest.mark.long)])
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
