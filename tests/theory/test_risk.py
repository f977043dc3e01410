import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import theory as oracle

from focalgeo.calibration import focal_calibration
from focalgeo.losses import focal_loss
from focalgeo.theory import conditional_risk, focal_lower_bound, optimal_prediction, proper_focal_loss
from focalgeo.types import InputError

mapped = jax.jit(lambda q, gamma: jnp.exp(focal_calibration(jnp.log(q), gamma)))
optimum = jax.jit(optimal_prediction)
proper = jax.jit(proper_focal_loss)


def close(got, expected, rtol=1e-5, atol=1e-6):
    np.testing.assert_allclose(np.asarray(got, float), expected, rtol=rtol, atol=atol)


def binary(p):
    return np.stack([p, 1 - np.asarray(p)], axis=-1)


def risk_of_proper_loss(p, q, gamma):
    """Expected proper loss of predicting q, [..., classes], where p is true."""
    labels = np.arange(q.shape[-1])
    rows = np.repeat(np.log(q)[..., None, :], q.shape[-1], axis=-2)
    losses = proper(rows, np.broadcast_to(labels, q.shape), np.float32(gamma))
    return np.asarray(losses) @ p


def test_focal_loss_is_convex_in_the_probability():
    p = np.linspace(0.001, 0.999, 999)
    for gamma in (0.0, 0.5, 1.0, 2.0, 3.0, 7.0):
        losses = focal_loss(np.log(np.stack([p, 1 - p], -1)), np.zeros(999, np.int32), gamma)
        assert np.diff(np.asarray(losses, float), 2).min() > -1e-7, gamma


def test_records_of_the_binary_optimum(papers):
    records = papers["optimal_q_binary"]
    p, gamma = (np.array([record[name] for record in records], np.float32) for name in ("p", "gamma"))
    close(optimum(binary(p), gamma)[:, 0], [record["q"] for record in records], 0, 1e-5)


def test_records_of_the_multiclass_optimum(papers):
    for record in papers["inverse_map_multiclass"]:
        got = optimal_prediction(record["p"], record["gamma"])
        close(got, record["q"], 0, 1e-5)
        close(conditional_risk(record["p"], got, record["gamma"]), record["min_conditional_focal_risk"])


def test_optimum_minimises_the_risk_of_random_rows():
    rng = np.random.default_rng(0)
    for num_classes, gamma in ((4, 0.3), (10, 2.0)):
        p = rng.dirichlet(np.ones(num_classes)).astype(np.float32)
        q = np.asarray(optimal_prediction(p, gamma), float)
        close(q, oracle.optimal_prediction(p / p.sum(), gamma), 0, 1e-5)
        others = rng.dirichlet(50 * q, size=200)
        assert (conditional_risk(p, others, gamma) > conditional_risk(p, q, gamma)).all()


def test_records_of_the_proper_part(papers):
    for record in papers["proper_part_binary"]:
        p, gamma = binary(np.float32(record["p"])), np.float32(record["gamma"])
        close(optimum(p, gamma)[0], record["inverse_q"], 0, 1e-5)
        close(proper(jnp.log(p), 0, gamma), record["proper_loss_y1"], 5e-5)
        close(focal_loss(jnp.log(p), 0, gamma), record["focal_loss_y1"], 5e-5)
        order = np.sign(record["proper_loss_y1"] - record["focal_loss_y1"])
        assert order == np.sign(record["p"] - 0.5)


@pytest.mark.parametrize("gamma", [0.5, 3.0])
def test_the_proper_part_is_proper_and_the_focal_loss_is_not(gamma):
    p = np.float32([0.55, 0.3, 0.15])
    others = np.random.default_rng(1).dirichlet([5, 3, 2], size=100).astype(np.float32)
    at_truth = risk_of_proper_loss(p, p[None], gamma)[0]
    assert (risk_of_proper_loss(p, others, gamma) > at_truth).all()
    assert conditional_risk(p, optimal_prediction(p, gamma), gamma) < conditional_risk(p, p, gamma) - 1e-3
    close(at_truth, conditional_risk(p, optimal_prediction(p, gamma), gamma))


def test_focal_loss_is_the_proper_part_behind_the_map():
    logits = np.random.default_rng(2).normal(size=(50, 5)).astype(np.float32) * 4
    labels = np.arange(50) % 5
    close(proper(focal_calibration(logits, 2.0), labels, 2.0), focal_loss(logits, labels, 2.0), 5e-5)


def test_gradient_of_the_proper_part():
    logits = np.float32([0.5, -1, 0.2])
    gradient = jax.grad(proper_focal_loss)(logits, 0, 2.0)
    with jax.enable_x64(True):
        steps = 1e-5 * np.eye(3)
        wide = logits.astype(np.float64)
        expected = [
            float(proper_focal_loss(wide + s, 0, 2.0) - proper_focal_loss(wide - s, 0, 2.0)) / 2e-5 for s in steps
        ]
    close(gradient, expected, 1e-4)
    assert np.isfinite(jax.grad(proper_focal_loss)(np.float32([60, 0, -40]), 1, 2.0)).all()


def test_records_of_the_lower_bound(papers):
    for record in papers["lemma1_examples"]:
        p, q, gamma = record["p"], record["q"], record["gamma"]
        close(conditional_risk(p, q, gamma), record["FL"])
        close(conditional_risk(p, q, 0.0), record["CE"])
        close(conditional_risk(q, q, 0.0), record["H_q"])
        close(focal_lower_bound(p, q, gamma), record["lower_bound"])
        close(conditional_risk(p, q, gamma) - focal_lower_bound(p, q, gamma), record["gap"])
        close(record["KL"] + record["H_p"] - gamma * record["H_q"], focal_lower_bound(p, q, gamma))


def test_lower_bound_holds_for_every_gamma(papers):
    rng = np.random.default_rng(3)
    p, q = rng.dirichlet(np.ones(4), size=(2, 2000))
    one_hot = np.eye(4)[np.arange(2000) % 4]
    for record in papers["lemma1_min_gap"]:
        gamma = float(record["gamma"])
        for truth in (p, one_hot):
            assert (conditional_risk(truth, q, gamma) - focal_lower_bound(truth, q, gamma) > -2e-6).all()
        with jax.enable_x64(True):
            unsure = binary(np.float64(record["at_q"]))
            gap = conditional_risk(np.eye(2)[0], unsure, gamma) - focal_lower_bound(np.eye(2)[0], unsure, gamma)
        close(gap, record["onehot_binary_min_gap"], 0.02, 2e-14)


def test_proposition_5_is_false_for_four_and_more_classes(papers):
    found = papers["prop5"]
    for record in found["counterexamples"]:
        q = np.full(record["K"], (1 - record["q_top"]) / (record["K"] - 1))
        q[0] = record["q_top"]
        top = mapped(q, record["gamma"])[0]
        close(top, record["phat_top"], 0, 1e-7)
        if abs(record["phat_top"] - record["q_top"]) > 1e-6:
            assert (top < record["q_top"]) == record["violates"]
    for record in found["counterexamples_K4"]:
        got = mapped(np.array(record["q"]), record["gamma"])
        close(got, record["phat"], 0, 1e-6)
        assert np.sign(got[0] - np.float32(record["q"][0])) == np.sign(record["top_change"])


def test_negative_gamma_lowers_confident_tops_only(papers):
    for record in papers["prop5"]["negative_gamma"]:
        top = mapped(np.array(record["q"]), record["gamma"])[0]
        close(top, record["phat_top"], 0, 1e-6)
        assert (top < record["q"][0]) == record["lower_confidence"]


def test_certain_and_impossible_classes():
    assert conditional_risk([1.0, 0.0], [1.0, 0.0], 2.0) == 0
    assert conditional_risk([0.5, 0.5], [1.0, 0.0], 2.0) == np.inf
    assert focal_lower_bound([1.0, 0.0], [1.0, 0.0], 2.0) == 0
    close(optimal_prediction([1.0, 0.0, 0.0], 2.0), [1, 0, 0])


def test_rows_that_are_no_probabilities_and_negative_gammas_are_refused():
    for p, gamma in ((0.8, 1.0), ([0.8, 0.8], 1.0), ([1.2, -0.2], 1.0), ([0.8, 0.2], -1.0), ([np.nan, 0.2], 1.0)):
        with pytest.raises(InputError):
            optimal_prediction(p, gamma)
    with pytest.raises(InputError, match="logits"):
        proper_focal_loss([np.nan, 0.0], 0, 1.0)
    with pytest.raises(InputError, match="q has"):
        conditional_risk([0.5, 0.5], [0.5, 0.25, 0.25], 1.0)
