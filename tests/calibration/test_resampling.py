"""The bootstrap, alone and in pairs: textbook errors, and how often intervals cover; Wilson's interval."""

from functools import partial

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import strategies as st
from outputs import predictions
from sklearn.metrics import log_loss

from focalgeo.calibration import (
    accuracy,
    adaptive_ece,
    all_metrics,
    bootstrap,
    ece,
    nll,
    paired_bootstrap,
    wilson_interval,
)
from focalgeo.calibration.metrics.resampling import compared, estimated, rounded_difference
from focalgeo.types import InputError


def drawn(num_examples, key):
    logits = 2 * jax.random.normal(key, (num_examples, 3))
    labels = jax.random.categorical(jax.random.fold_in(key, 1), logits)
    return jax.nn.log_softmax(logits * 1.3), labels


def test_mean_metrics_have_the_textbook_error_and_interval():
    log_probs, labels = drawn(400, jax.random.key(0))
    losses = -np.asarray(log_probs)[np.arange(400), labels]
    got = bootstrap(nll, log_probs, labels, jax.random.key(1), 2000)
    assert got.n == 400
    np.testing.assert_allclose(got.value, losses.mean(), rtol=1e-5)
    np.testing.assert_allclose(got.stderr, losses.std() / 20, rtol=0.06)
    reference = scipy.stats.bootstrap((losses,), np.mean, n_resamples=5000, method="percentile", rng=0)
    np.testing.assert_allclose((got.low, got.high), reference.confidence_interval, atol=0.2 * float(got.stderr))


def test_resamples_equal_gathered_resamples():
    log_probs, labels = drawn(150, jax.random.key(2))
    key, gathered = jax.random.key(3), []
    got = bootstrap(adaptive_ece, log_probs, labels, key, 50)
    measured = jax.jit(adaptive_ece)
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    for _ in range(50):
        rows = np.sort(generator.integers(150, size=150))
        gathered.append(measured(log_probs[rows], labels[rows]))
    np.testing.assert_allclose(got.stderr, np.std(gathered, ddof=1), rtol=1e-4)
    assert got.low < got.high


@pytest.mark.parametrize(("ratio", "ends"), [(0.05, (0.05, 0.05)), (0.3, (0.3 * 1.6, 0.3 * 0.3 / 2.3))])
def test_interval_is_moved_against_the_bias_of_resampling(ratio, ends):
    """Draws around value + bias give an interval around value - bias, and a wider one where it is none of chance."""
    log_probs, labels = drawn(400, jax.random.key(0))
    error = float(bootstrap(accuracy, log_probs, labels, jax.random.key(1), 2000).stderr)

    def biased(log_probs, labels, *, mask=None):
        return accuracy(log_probs, labels, mask=mask) + jnp.where(jnp.all(mask == 1), 0.0, ratio * error)

    got = bootstrap(biased, log_probs, labels, jax.random.key(1), 2000)
    expected = float(got.value) - np.array(ends) * error + np.array([-1.96, 1.96]) * error
    np.testing.assert_allclose((got.low, got.high), expected, atol=0.1 * error)


@pytest.mark.parametrize(
    "gaps", [np.zeros(15), np.repeat([0, 3], [8, 7]), np.linspace(0, 3, 15), np.linspace(0, 3, 150), np.full(150, 2)]
)
def test_the_interval_of_a_sum_of_gaps_covers_it_wherever_they_lie(gaps):
    """Gaps of bins in their standard errors, and their sums in resamples: it covered 100, 80, 89, 90 and 83%."""
    rng, covered = np.random.default_rng(0), []
    for seen in gaps + rng.normal(size=(300, len(gaps))):
        draws = np.abs(seen + rng.normal(size=(200, len(gaps)))).sum(1)
        got = estimated(np.abs(seen).sum(), draws, num_examples=1)
        covered.append(got.low <= gaps.sum() <= got.high)
    assert np.mean(covered) >= 0.915


@hypothesis.given(seed=st.integers(0, 2**20), resamples=st.sampled_from([30, 100, 1000]), skew=st.floats(0.1, 2))
def test_of_a_mean_the_interval_is_the_normal_one_or_that_of_logarithms(seed, resamples, skew):
    """By no chance is a mean's bias of resampling taken for that of a calibration error."""
    rng = np.random.default_rng(seed)
    values = rng.lognormal(0, skew, 50)
    value, draws = values.mean(), rng.choice(values, (resamples, 50)).mean(1)
    got, half = estimated(value, draws, num_examples=50), 1.96 * draws.std(ddof=1)
    half_of_logs = 1.96 * np.log(draws).std(ddof=1)
    plain = (2 * value - draws.mean() - half, 2 * value - draws.mean() + half)
    of_logs = np.exp(2 * np.log(value) - np.log(draws).mean() + np.array([-1, 1]) * half_of_logs)
    assert any(np.allclose((got.low, got.high), ends, rtol=1e-4) for ends in (plain, of_logs))


@pytest.mark.long
@pytest.mark.parametrize(("sharpening", "true"), [(1.0, 0.0), (1.1, 0.0251), (1.5, 0.1001)])
def test_the_interval_of_ece_covers_the_true_ece_of_calibrated_and_miscalibrated_models(sharpening, true):
    """Truth: 0 for labels drawn from the model's own probabilities; else the ECE of 4 million draws."""

    def covers(key):
        logits = 2 * jax.random.normal(key, (400, 5))
        labels = jax.random.categorical(jax.random.fold_in(key, 1), logits)
        got = bootstrap(ece, jax.nn.log_softmax(sharpening * logits), labels, jax.random.fold_in(key, 2), 100)
        return got.low <= true <= got.high

    share = np.mean([covers(key) for key in jax.random.split(jax.random.key(11), 200)])
    assert share >= 0.888  # 0.95 less 4 standard errors of 200 trials


def test_same_key_same_result_and_degenerate_data():
    log_probs, labels = drawn(150, jax.random.key(4))
    first, second = (bootstrap(ece, log_probs, labels, jax.random.key(5), 200) for _ in range(2))
    assert first == second
    certain = bootstrap(accuracy, jnp.log(jnp.full((20, 2), 0.5)), jnp.zeros(20, jnp.int32), jax.random.key(0), 50)
    assert (certain.value, certain.stderr, certain.low, certain.high) == (1, 0, 1, 1)
    with pytest.raises(InputError, match="are empty"):
        bootstrap(ece, jnp.zeros((0, 2)), jnp.zeros(0, jnp.int32), jax.random.key(0), 10)


def clustered(num_clusters, size, key, together=0.3):
    """Confidences, and clusters whose examples are right together; right in 65% of all, by `clustered`'s law."""
    generator = np.random.default_rng(key)
    clusters = np.repeat(np.arange(num_clusters), size)
    confidence = generator.uniform(0.55, 0.95, len(clusters))
    shared, own = generator.normal(size=num_clusters)[clusters], generator.normal(size=len(clusters))
    right = together**0.5 * shared + (1 - together) ** 0.5 * own < scipy.stats.norm.ppf(confidence - 0.1)
    return np.log(np.stack([confidence, 1 - confidence], 1)).astype(np.float32), (~right).astype(np.int32), clusters


def test_intervals_by_cluster_cover_where_those_of_independent_examples_do_not():
    metric, covered = jax.jit(partial(all_metrics, names=("accuracy", "nll"))), np.zeros((2, 2))
    share = np.linspace(0.55, 0.95, 10001)
    nll_true = -np.mean((share - 0.1) * np.log(share) + (1.1 - share) * np.log(1 - share))
    for seed in range(150):
        log_probs, labels, clusters = clustered(40, 50, seed)
        for index, given in enumerate((clusters, None)):
            got = bootstrap(metric, log_probs, labels, jax.random.key(seed), 100, clusters=given)
            for name, true in (("accuracy", 0.65), ("nll", nll_true)):
                covered[index, name == "nll"] += bool(got[name].low <= true <= got[name].high)
    assert (covered[0] / 150 > 0.91).all()
    assert (covered[1] / 150 < 0.6).all()


def test_errors_by_cluster_are_those_of_the_sums_of_clusters():
    log_probs, labels, clusters = clustered(30, 20, 0)
    losses = -log_probs.astype(np.float64)[np.arange(600), labels]
    sums = np.bincount(clusters, losses - losses.mean())
    error = np.sqrt(30 / 29 * (sums**2).sum()) / 600
    names = np.array(["a", "b", "c", "d", "e"])[clusters % 5]  # names, in any order
    got = bootstrap(nll, log_probs, labels, jax.random.key(0), 4000, clusters=clusters)
    np.testing.assert_allclose(got.stderr, error, rtol=0.05)
    np.testing.assert_allclose((got.high - got.low) / 2, scipy.stats.t.ppf(0.975, 29) * error, rtol=0.08)
    pair = paired_bootstrap(nll, log_probs, log_probs[::-1], labels, jax.random.key(0), 500, clusters=names)
    expected = 2 * scipy.stats.t.sf(abs(pair.difference / pair.stderr), 4)
    np.testing.assert_allclose(pair.p_value, expected, rtol=1e-4)


def branching(log_probs, labels, *, mask=None):
    return nll(log_probs, labels, mask=mask) if log_probs.sum() < 0 else jnp.zeros(())


@pytest.mark.parametrize(
    ("metric", "clusters", "words"),
    [
        (branching, None, "cannot be compiled by JAX: write it with jax.numpy"),
        (lambda p, y, *, mask=None: jnp.float32(log_loss(y, np.exp(p))), None, "cannot be compiled by JAX"),
        (nll, np.zeros(400), "clusters are all one"),
        (nll, np.arange(399), "clusters for labels"),
        (nll, np.full(400, np.nan), "none that is NaN"),
    ],
)
def test_a_metric_that_cannot_be_compiled_and_clusters_that_are_none_are_one_line(metric, clusters, words):
    log_probs, labels = drawn(400, jax.random.key(0))
    with pytest.raises(InputError, match=words):
        bootstrap(metric, log_probs, labels, jax.random.key(1), 10, clusters=clusters)


def both(log_probs, labels, *, mask=None):
    return {"ece": ece(log_probs, labels, mask=mask), "nll": nll(log_probs, labels, mask=mask)}


def models(key, num_examples=400, noise=0.7):
    """Two models that differ from the truth by noise of one law: in expectation no metric tells them apart."""
    truth, first, second = (jax.random.normal(k, (num_examples, 4)) for k in jax.random.split(key, 3))
    labels = jax.random.categorical(jax.random.fold_in(key, 9), 2 * truth)
    return jax.nn.log_softmax(2 * truth + noise * first), jax.nn.log_softmax(2 * truth + noise * second), labels


def test_the_difference_of_means_has_the_textbook_error_and_p_value():
    first, second, labels = models(jax.random.key(0))
    rows = np.arange(400)
    change = np.asarray(second)[rows, labels] - np.asarray(first)[rows, labels]
    got = paired_bootstrap(nll, first, second, labels, jax.random.key(1), 2000)
    assert got.n == 400
    np.testing.assert_allclose(got.difference, change.mean(), rtol=1e-4)
    np.testing.assert_allclose(got.stderr, change.std() / 20, rtol=0.06)
    np.testing.assert_allclose(got.p_value, scipy.stats.ttest_1samp(change, 0).pvalue, atol=0.05)
    reach = 1.96 * float(got.stderr)
    np.testing.assert_allclose((got.low, got.high), [got.difference - reach, got.difference + reach], rtol=1e-3)


@pytest.mark.long
def test_where_there_is_no_difference_it_rejects_as_often_as_it_says():
    """400 pairs of equally good models: 0.05 has a standard error of 0.011. With ECE it is conservative, 0.03."""

    def tested(key):
        found = paired_bootstrap(both, *models(key), jax.random.fold_in(key, 1), 100)
        return {name: (each.p_value, each.low > 0 or each.high < 0) for name, each in found.items()}

    found = [tested(key) for key in jax.random.split(jax.random.key(5), 400)]
    for name in found[0]:
        p_values, excluded = np.transpose([each[name] for each in found])
        np.testing.assert_array_equal(p_values < 0.05, excluded, err_msg=name)
        assert 0.006 < np.mean(p_values < 0.05) < 0.05 + 3 * 0.011, name
    assert abs(np.mean([each["nll"][0] < 0.5 for each in found]) - 0.5) < 4 * 0.025


@pytest.mark.parametrize("gaps", [(0, 3), (0, 1), (1, 2.5), (2, 0), (0.5, 0)])
def test_the_interval_of_a_difference_of_gaps_covers_it(gaps):
    """Of 15 bins each, gaps in standard errors, the noise of both correlated: +- 1.96 s covered 27, 29, 93, 27, 62%."""
    rng, covered = np.random.default_rng(0), []
    both = np.repeat(np.float64(gaps)[:, None], 15, axis=1)
    mixed = np.linalg.cholesky([[1, 0.6], [0.6, 1]])
    for _ in range(300):
        seen = both + mixed @ rng.normal(size=both.shape)
        draws = np.abs(seen + mixed @ rng.normal(size=(200, *both.shape))).sum(-1)
        got = compared(*zip(np.abs(seen).sum(-1), draws.T, strict=True), num_examples=1)
        covered.append(got.low <= both[0].sum() - both[1].sum() <= got.high)
        assert (got.p_value < 0.05) == (got.low > 0 or got.high < 0)
    assert np.mean(covered) >= 0.93


@pytest.mark.parametrize(("size", "sharpness"), [(500, 1), (5000, 1), (5000, 3)])
def test_a_difference_of_rounding_is_none(size, sharpness):
    """Each log-probability, or every other one, an ulp larger: Brier's difference of 1e-7 had a p-value of 0.003."""
    (log_probs, labels), rng = predictions(size, 10, sharpness=sharpness), np.random.default_rng(0)
    larger = np.nextafter(log_probs, np.float32(0))
    for other in (log_probs, larger, np.where(rng.uniform(size=larger.shape) < 0.5, larger, log_probs)):
        for name, got in paired_bootstrap(all_metrics, log_probs, other, labels, jax.random.key(0), 50).items():
            assert tuple(got)[:5] == (0, 0, 0, 0, 1), name


def test_rounding_is_a_few_eps_and_a_true_difference_is_none_of_it():
    eps, difference = np.finfo(np.float32).eps, partial(rounded_difference, num_terms=10_000)
    one = np.float32(1.0)
    assert difference(one, one + 90 * eps) == 0
    assert difference(one, one + 120 * eps) < 0
    assert difference(np.float32(0.01), np.float32(0.01) + 2e-6) < 0  # relative to the metric
    assert difference(np.float32(0), np.float32(1e-7)) == 0
    rng = np.random.default_rng(1)
    log_probs = np.asarray(jax.nn.log_softmax(rng.normal(size=(5000, 10)).astype(np.float32)))
    labels = rng.integers(0, 10, 5000).astype(np.int32)
    # all probabilities a thousandth more like uniform ones: NLL falls by 1e-3 or so, in all resamples
    other = np.log(0.999 * np.exp(log_probs) + 0.0001)
    got = paired_bootstrap(nll, log_probs, other, labels, jax.random.key(0), 200)
    assert 5e-4 < got.difference < 3e-3
    assert got.p_value < 1e-3


def test_bad_input_is_refused():
    first, second, labels = models(jax.random.key(0))
    with pytest.raises(InputError, match="num_resamples is 1"):
        paired_bootstrap(nll, first, second, labels, jax.random.key(0), 1)
    with pytest.raises(InputError, match="shape"):
        paired_bootstrap(nll, first, second[:10], labels, jax.random.key(0), 10)


def test_wilson_interval_matches_published_cases():
    low, high = wilson_interval(np.array([0, 81, 10, 0]), np.array([10, 263, 10, 0]))
    np.testing.assert_allclose(low, [0, 0.2553, 0.7225, 0], atol=1e-4)  # 81 of 263: Newcombe 1998, Table I
    np.testing.assert_allclose(high, [0.2775, 0.3662, 1, 1], atol=1e-4)
