"""Stacking: its shares against scipy, its saved form, and resamples in parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from outputs import outputs
from scipy import optimize

from focalgeo import calibration
from focalgeo.calibration import METHODS, blocks, fit, maps, read_calibrator
from focalgeo.calibration.fits import stacking
from focalgeo.calibration.methods import MEMBERS, Calibrated
from focalgeo.calibration.metrics import resampling
from focalgeo.calibration.study import measurement
from focalgeo.types import InputError


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("prior", [0.0, 2.5])
def test_shares_have_the_least_nll_beside_their_prior(seed, prior):
    rng = np.random.default_rng(seed)
    likelihoods, weight = rng.beta(0.5, 0.5, size=(4, 300)), rng.integers(0, 3, 300)
    found = stacking.mixture_shares(likelihoods, weight.astype(float), prior)

    def loss(shares):
        return -(weight @ np.log(shares @ likelihoods) + prior * np.log(shares.clip(1e-9)).sum()) / weight.sum()

    best = optimize.minimize(
        loss,
        np.full(4, 0.25),
        method="SLSQP",
        bounds=[(1e-9, 1)] * 4,
        constraints={"type": "eq", "fun": lambda shares: shares.sum() - 1},
        options={"ftol": 1e-12},
    )
    assert found.sum() == pytest.approx(1)
    assert (found >= 0).all()
    assert loss(found) <= best.fun + 1e-5
    repeated = stacking.mixture_shares(np.repeat(likelihoods, weight, axis=1), np.ones(weight.sum()), prior)
    np.testing.assert_allclose(repeated, found, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 5])
def test_a_mixture_is_that_of_its_members_and_its_file_gives_it_again(classes, tmp_path):
    logits, labels = outputs(400, classes)
    found = fit("stacking", logits, labels)
    names = [name for name in MEMBERS if classes <= (METHODS[name].most_classes or classes)]
    probs = [np.exp(fit(name, logits, labels).predict_log_proba(logits)) for name in names]
    shares = [float(found.params[f"share_of_{name}"]) for name in names]
    assert sum(shares) == pytest.approx(1, abs=1e-6)
    assert ("share_of_binary_isotonic" in found.params) == (classes == 2)
    np.testing.assert_allclose(found.predict_proba(logits), np.tensordot(shares, probs, 1), atol=2e-6)
    (tmp_path / "calibrator.json").write_text(found.to_json())
    again = read_calibrator(tmp_path / "calibrator.json")
    np.testing.assert_allclose(again.predict_log_proba(logits), found.predict_log_proba(logits), atol=1e-6)


@pytest.mark.parametrize("share", [-0.5, 100.0, None])
def test_a_file_whose_shares_are_none_is_refused(share, tmp_path):
    found = fit("stacking", *outputs(100, 3))
    shares = {name: share for name in found.params if name.startswith("share_of_") and share is not None}
    params = {name: value for name, value in found.params.items() if not name.startswith("share_of_")} | shares
    (tmp_path / "calibrator.json").write_text(found._replace(params=params).to_json())
    with pytest.raises(InputError, match=r"cannot read .* shares"):
        read_calibrator(tmp_path / "calibrator.json")


def test_shares_of_soft_labels_and_of_very_many_examples_are_those_of_all():
    rows = [np.log(np.full((60_000, 5), each)) for each in ([0.9, 0.025, 0.025, 0.025, 0.025], [0.2] * 5)]
    labels = np.tile([0.1, 0.9, 0, 0, 0], (60_000, 1))
    np.testing.assert_allclose(stacking.mixture_shares(*stacking.likelihoods(rows, labels, np.ones(60_000))), [0, 1])


def test_rows_beside_numbers_of_jax_are_jax_s():
    """And so have derivatives by them."""
    logits, ones, zeros = outputs(20, 3)[0], jnp.ones(3), jnp.zeros(3)
    slopes = jax.grad(lambda scales: maps.focal_vector_scaling(logits, 0.0, 1.0, scales, zeros)[0, 0])(ones)
    step = 1e-2 * np.eye(3)[0]
    ends = [
        maps.focal_vector_scaling(logits, 0.0, 1.0, np.ones(3) + sign * step, np.zeros(3))[0, 0] for sign in (1, -1)
    ]
    assert slopes[0] == pytest.approx((ends[0] - ends[1]) / 2e-2, rel=1e-2)
    assert isinstance(maps.focal_matrix_scaling(logits, 0.0, 1.0, jnp.eye(3), zeros), jax.Array)
    assert isinstance(maps.ensemble_temperature_scaling(logits, 1.0, jnp.ones(3) / 3), jax.Array)


def test_no_rows_give_no_rows_and_blocks_leak_no_warning(monkeypatch):
    logits, labels = outputs(300, 3)
    logits[0, (labels[0] + 1) % 3] = -np.inf
    whole = fit("vector_scaling", logits, labels).predict_log_proba(logits)
    monkeypatch.setattr(blocks, "_BLOCK", 300)
    found = fit("vector_scaling", logits, labels)  # warnings are errors here
    np.testing.assert_allclose(found.predict_log_proba(logits), whole, atol=1e-5)
    assert found.predict_log_proba(logits[:0]).shape == (0, 3)


def test_the_held_out_nll_is_no_worse_than_that_of_the_best_member():
    val, (logits, labels) = outputs(2000, 4), outputs(4000, 4, seed=1)
    names = ("stacking", *MEMBERS[:2], "focal_temperature_scaling")
    nll = {name: calibration.nll(fit(name, *val).predict_log_proba(logits), labels) for name in names}
    assert nll["stacking"] <= min(nll.values()) + 1e-3


def test_members_of_two_classes_take_no_soft_labels():
    logits, labels = outputs(100, 2)
    with pytest.raises(InputError, match="labels are soft, which stacking does not take"):
        fit("stacking", logits, np.eye(2, dtype=np.float32)[labels] * 0.8 + 0.1)


def test_resamples_in_parts_are_those_of_one(monkeypatch):
    logits, labels = outputs(200, 3)
    plain = Calibrated(METHODS["uncalibrated"], None, fit("uncalibrated", logits, labels).predict_log_proba(logits))
    entries = calibration.metrics.metric_entries(("nll", "adaptive_ece"))

    def draws(most):
        monkeypatch.setattr(resampling, "MOST_COUNTS", most)
        sample = calibration.Sample("test", labels, [plain], np.array([0, 7], np.uint32), 10, 30)
        (measured,) = measurement.measure(sample, entries)
        return measured.draws

    whole, parts = draws(2**24), draws(200 * 7)
    for name in entries:
        assert whole[name].shape == (30,)
        np.testing.assert_array_equal(whole[name], parts[name])


def test_many_examples_have_fewer_resamples():
    assert [calibration.usual_resamples(n) for n in (10, 100_000, 250_000, 10**6, 10**8)] == [1000, 1000, 400, 100, 100]
