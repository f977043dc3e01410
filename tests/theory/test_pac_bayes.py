import numpy as np
import pytest

from focalgeo.theory import pac_bayes_bound, pac_bayes_lambda, pac_bayes_value
from focalgeo.types import InputError

LOSSES, PRIOR = np.array([0.3, 0.31, 0.32, 0.5]), np.full(4, 0.25)


def close(got, expected, rtol=1e-5, atol=1e-6):
    np.testing.assert_allclose(np.asarray(got, float), expected, rtol=rtol, atol=atol)


def test_records(papers):
    for record in papers["pac_bayes"]:
        count, delta = record["n"], record["delta"]
        got = pac_bayes_bound(record["L_hat"], record["prior"], count, delta=delta)
        close(got.bound, record["bound"])
        close(got.lambda_, record["lam"])
        close(got.posterior, record["rho"])
        close(got.divergence, record["KL"])
        close(got.expected_loss, record["E_Lhat"])
        assert got.residual <= 1e-6
        assert got.bound < record["bruteforce_grid_min"] * (1 + 1e-5)
        prior = record["prior_only"]
        close(pac_bayes_lambda(prior["E_Lhat"], 0.0, count, delta=delta), prior["lam"])
        close(pac_bayes_value(prior["E_Lhat"], 0.0, count, lambda_=prior["lam"], delta=delta), prior["bound"])
        expected, divergence = posterior_at(record, 1.0)
        first = record["first_step_from_lambda_1"]
        close(pac_bayes_value(expected, divergence, count, lambda_=1.0, delta=delta), first["bound"])
        close(pac_bayes_lambda(expected, divergence, count, delta=delta), first["lam_next"])


def posterior_at(record, lambda_):
    losses, prior = np.array(record["L_hat"]), np.array(record["prior"])
    weights = prior * np.exp(-lambda_ * record["n"] * (losses - losses.min()))
    rho = weights / weights.sum()
    return rho @ losses, np.sum(rho[rho > 0] * np.log(rho[rho > 0] / prior[rho > 0]))


def test_bound_is_the_least_over_lambda_and_posterior():
    least = pac_bayes_bound(LOSSES, PRIOR, 200)
    record = {"L_hat": LOSSES, "prior": PRIOR, "n": 200}
    for lambda_ in np.linspace(0.05, 1.9, 38):
        expected, divergence = posterior_at(record, lambda_)
        assert pac_bayes_value(expected, divergence, 200, lambda_=lambda_) >= least.bound - 1e-6


def test_lambda_of_2_and_more_bounds_nothing():
    assert np.isnan(pac_bayes_value(0.2, 0.0, 100, lambda_=2.0))
    assert np.isnan(pac_bayes_value(0.2, 0.0, 100, lambda_=0.0))


def test_numbers_out_of_range_are_refused():
    for losses, prior, count, delta in (
        ([0.3, 2.3], [0.5, 0.5], 10, 0.05),
        ([0.3, 0.3], [0.5, 0.6], 10, 0.05),
        ([0.3, 0.3, 0.1], [0.5, 0.5], 10, 0.05),
        ([0.3, 0.3], [0.5, 0.5], 0, 0.05),
        ([0.3, 0.3], [0.5, 0.5], 10, 0.0),
    ):
        with pytest.raises(InputError):
            pac_bayes_bound(losses, prior, count, delta=delta)
