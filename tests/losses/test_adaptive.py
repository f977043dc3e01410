import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.calibration import equal_mass

from focalgeo.losses import (
    POLICIES,
    SCHEDULES,
    adafocal_gamma,
    adafocal_loss,
    adafocal_state,
    adafocal_update,
    focal_loss,
    sample_dependent_focal_loss,
    sample_gamma,
    scheduled_focal_loss,
)
from focalgeo.losses.adaptive import next_gamma

NAMES = {
    "fla_53": "FLSD53_paper",
    "fla_532": "FLSD532_paper",
    "flsd_53": "FLSD53_code",
    "flsd_52": "FLSD52_code(5,3,2)",
}


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


def test_the_papers_updates(papers):
    for record in papers["adafocal"]["updates"]:
        gamma = record["gamma0"]
        for gap, expected in zip(record["gaps"], record["gammas"][1:], strict=True):
            gamma = next_gamma(gamma, gap)
            np.testing.assert_allclose(gamma, expected, rtol=1e-6, err_msg=str(record))


@pytest.fixture(scope="module")
def validation():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.2, 1, 107).astype(np.float32)
    return confidence, rng.uniform(size=107) < confidence**2


def test_update_moves_every_bin_by_its_own_gap(validation):
    state = adafocal_update(adafocal_state(), *validation)
    confidence, correct = validation
    bins = equal_mass(confidence, 15)
    gaps = [confidence[part].mean() - correct[part].mean() for part in bins]
    np.testing.assert_allclose(state.gammas, np.exp(gaps), rtol=2e-6)
    np.testing.assert_array_equal(state.edges, [confidence[part].max() for part in bins[:-1]])


def test_padding_counts_for_nothing_and_nothing_at_all_changes_nothing(validation):
    confidence, correct = validation
    padded = np.append(confidence, np.float32([np.nan, 0.5])), np.append(correct, [True, True])
    mask = np.arange(109) < 107
    update = jax.jit(lambda *data, mask: adafocal_update(adafocal_state(), *data, mask=mask))
    got, expected = update(*padded, mask=mask), adafocal_update(adafocal_state(), *validation)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, expected)
    jax.tree.map(np.testing.assert_array_equal, update(*padded, mask=np.zeros(109, bool)), adafocal_state())


def test_empty_bins_keep_their_gamma_and_take_nothing():
    state = adafocal_update(adafocal_state(4), np.float32([0.3, 0.8]), np.array([True, False]))
    np.testing.assert_allclose(state.gammas, [np.exp(-0.7), np.exp(0.8), 1, 1], rtol=1e-6)
    np.testing.assert_allclose(
        adafocal_gamma(state, np.float32([0, 0.29, 0.3, 1])), np.exp([-0.7, -0.7, 0.8, 0.8]), rtol=1e-6
    )


def test_the_first_state_is_focal_loss_with_gamma_one_and_a_sweep_can_stack_states(validation):
    logits, labels = jax.random.normal(jax.random.key(0), (30, 5)), jnp.arange(30) % 5
    np.testing.assert_array_equal(adafocal_loss(logits, labels, adafocal_state()), focal_loss(logits, labels, 1.0))
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), adafocal_state())
    confidence, correct = (np.stack([part, part[::-1]]) for part in validation)
    both = jax.vmap(adafocal_update)(stacked, confidence, correct)
    assert both.gammas.shape == (2, 15)
    np.testing.assert_allclose(both.gammas[0], both.gammas[1], rtol=1e-6)
    assert jax.vmap(adafocal_loss, in_axes=(None, None, 0))(logits, labels, both).shape == (2, 30)


def test_a_gamma_of_zero_counts_as_negative():
    np.testing.assert_allclose(next_gamma(np.zeros(2, np.float32), np.float32([0, 0.5])), 0.2)
