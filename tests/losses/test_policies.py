import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focalgeo.losses import (
    POLICIES,
    SCHEDULES,
    focal_loss,
    sample_dependent_focal_loss,
    sample_gamma,
    scheduled_focal_loss,
)

NAMES = {
    "fla_53": "FLSD53_paper",
    "fla_532": "FLSD532_paper",
    "flsd_53": "FLSD53_code",
    "flsd_52": "FLSD52_code(5,3,2)",
}


def test_the_ends_of_the_ranges_without_the_reference_file():
    p = np.float32([0.19, 0.195, 0.2, 0.5])
    expected = {"fla_53": [5, 3, 3, 3], "fla_532": [5, 3, 3, 3], "flsd_53": [5, 5, 3, 3], "flsd_52": [5, 5, 3, 2]}
    for name, gammas in expected.items():
        np.testing.assert_array_equal(sample_gamma(p, *POLICIES[name]), gammas, err_msg=name)


@pytest.mark.parametrize("name", NAMES)
def test_the_papers_tables_of_gamma_and_mean_losses(dataset, name):
    record, logits, labels = dataset
    table = record["flsd_gamma_table"]
    np.testing.assert_array_equal(sample_gamma(np.float32(table["p"]), *POLICIES[name]), table[NAMES[name]])
    mean = np.mean(sample_dependent_focal_loss(logits, labels, *POLICIES[name]))
    if name == "flsd_52":  # three p of exactly .5: the rounded softmax may fall on either side of the jump
        gamma = sample_gamma(np.float32(record["p_true"]), *POLICIES[name])
        mean = np.mean(focal_loss(logits, labels, gamma))
    np.testing.assert_allclose(mean, record["flsd_losses"][NAMES[name]], rtol=4e-6)


def test_gamma_is_a_constant_and_policies_can_be_traced():
    slope = jax.grad(lambda p: sample_gamma(p, *POLICIES["fla_53"]))(jnp.float32(0.19))
    assert slope == 0
    got = jax.jit(sample_gamma)(jnp.float32([[0.1, 0.9]]), jnp.float32([0.5]), jnp.float32([4, 1]))
    np.testing.assert_array_equal(got, [[4, 1]])


def test_schedules_change_at_the_papers_epochs(papers):
    logits, labels = jnp.float32([[1.0, 0.0, -1.0]]), jnp.int32([1])
    loss = jax.jit(scheduled_focal_loss)
    steps = {name: (papers["schedules"][name.upper()], SCHEDULES[name]) for name in SCHEDULES}
    first, second = papers["schedules"]["FLS_tiny_code_steps"]
    steps["tiny"] = [[0, 5], [first, 3], [second, 2]], ((first, second), (5.0, 3.0, 2.0))
    for changes, (boundaries, gammas) in steps.values():
        for start, gamma in changes:
            for epoch, expected in ((start, gamma), (start + 29, gamma)):
                got = loss(logits, labels, epoch, jnp.int32(boundaries), jnp.float32(gammas))
                np.testing.assert_allclose(got, focal_loss(logits, labels, float(expected)), rtol=1e-6)
        last = loss(logits, labels, changes[1][0] - 1, jnp.int32(boundaries), jnp.float32(gammas))
        np.testing.assert_allclose(last, focal_loss(logits, labels, 5.0), rtol=1e-6)
