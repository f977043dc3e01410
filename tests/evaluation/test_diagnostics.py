"""Diagnostics of training against float64 and dense gradients: members, padding, trees, saturation, outcomes, bins."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import padded_batches

from focalgeo import calibration, data, evaluation, losses, models, theory
from focalgeo.evaluation.diagnostics import BY_OUTCOME, NORM_EDGES, find_last_layer
from focalgeo.rows import HistogramBin, ReliabilityBin, select
from focalgeo.types import Batch, InputError, Split, TrainState

EXAMPLES, CLASSES, WIDTH = 13, 4, 5
GAMMAS = np.float32([0, 3])
FOCAL = losses.make_loss("focal_loss")


def linear(variables, x, mutable=()):
    """A last layer and nothing before it."""
    kernel = variables["params"]["kernel"]
    sown = {"head": {"features": (x,), "kernel": (kernel,)}} if "intermediates" in mutable else {}
    return x @ kernel, {"intermediates": sown}


def states_of(params, model_state=None, gammas=GAMMAS):
    """Members with equal parameters and a gamma each."""
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(gammas)), (params, model_state or {}))
    return TrainState(np.zeros(len(gammas), np.int32), *stacked, None, None, {"gamma": jnp.asarray(gammas)}, None)


@pytest.fixture(scope="module")
def examples():
    """Features, labels and a kernel, with logits from even to far beyond where float32 rounds p to 1."""
    rng = np.random.default_rng(0)
    scale = np.float32(10.0) ** np.linspace(-1, 0.8, EXAMPLES, dtype=np.float32)[:, None]
    x = scale * rng.standard_normal((EXAMPLES, WIDTH), dtype=np.float32)
    kernel = rng.standard_normal((WIDTH, CLASSES), dtype=np.float32)
    labels = np.where(np.arange(EXAMPLES) % 3 < 2, (x @ kernel).argmax(-1), 1).astype(np.int32)
    return x, labels, kernel


@pytest.fixture(scope="module")
def found(examples):
    """All members on two batches, whose padding holds values that would be seen in any result."""
    x, labels, kernel = examples
    padded = [batch._replace(y=np.where(batch.mask, batch.y, -1)) for batch in padded_batches(Split(x, labels), 9.0)]
    return evaluation.diagnose(linear, FOCAL, states_of({"kernel": kernel}), batches=padded)


def member(found, index):
    return jax.tree.map(lambda leaf: leaf[index], found[0])


def test_every_example_is_judged_as_in_float64_also_where_p_rounds_to_1(found, examples):
    labels, kernel = examples[1:]
    logits = np.asarray(jnp.asarray(examples[0]) @ kernel, np.float64)
    rest = [
        np.logaddexp.reduce(np.delete(row, top)) - row[top] for row, top in zip(logits, logits.argmax(-1), strict=True)
    ]
    log_p = logits - logits.max(-1, keepdims=True) - np.log1p(np.exp(rest))[:, None]
    nll = -log_p[np.arange(EXAMPLES), examples[1]]
    own, _ = found
    for each in range(2):
        np.testing.assert_allclose(own.nll[each], nll, rtol=2e-5)
        np.testing.assert_allclose(own.entropy[each], -(np.exp(log_p) * log_p).sum(-1), rtol=2e-5)
        np.testing.assert_allclose(own.true_class_probability[each], np.exp(-nll), rtol=2e-5, atol=1e-37)
        np.testing.assert_allclose(own.confidence[each], np.exp(log_p.max(-1)), rtol=1e-6)
        np.testing.assert_array_equal(own.correct[each], logits.argmax(-1) == labels)
    assert (own.true_class_probability == 1).any()
    assert 0 < nll.min() < 1e-8
    np.testing.assert_allclose(found[1], [np.linalg.norm(kernel)] * 2, rtol=1e-6)


def test_the_focal_norm_is_the_papers_factor_times_that_of_cross_entropy(found):
    plain, focal = (member(found, index) for index in range(2))
    complement = -jnp.expm1(-jnp.asarray(plain.nll))
    factor = theory.gradient_ratio(plain.true_class_probability, GAMMAS[1], complement=complement)
    np.testing.assert_allclose(focal.gradient_norm, np.asarray(factor) * plain.gradient_norm, rtol=1e-4)
    assert (focal.gradient_norm > plain.gradient_norm).any()  # G is above 1 for confident mistakes
    assert 0 < focal.gradient_norm.min() < 1e-24  # its square is below float32's range


@pytest.mark.parametrize(("name", "options"), [("mlp", {"hidden": (6,)}), ("cnn", {"widths": (3, 4)})])
def test_norms_are_those_of_dense_gradients_of_each_example(name, options):
    rng = np.random.default_rng(1)
    split = Split(rng.standard_normal((6, 8, 8, 1), dtype=np.float32), rng.integers(0, CLASSES, 6, dtype=np.int32))
    model = models.build(name, CLASSES, **options)
    variables = model.init(jax.random.key(0), split.x[:2])
    params, rest = variables["params"], {key: each for key, each in variables.items() if key != "params"}

    def loss_of(params, x, y, gamma):
        return FOCAL(model.apply({"params": params, **rest}, x[None])[0], y, {"gamma": gamma})

    batches = data.evaluation_batches(split, batch_size=4)
    found, norms = evaluation.diagnose(model.apply, FOCAL, states_of(params, rest), batches=batches)
    per_example = jax.jit(jax.vmap(jax.grad(loss_of), (None, 0, 0, None)))
    for index, gamma in enumerate(GAMMAS):
        dense = jax.device_get(per_example(params, *split, gamma))
        (kernel,) = [leaf for leaf in jax.tree.leaves(dense) if leaf.ndim == 3 and leaf.shape[2] == CLASSES]
        np.testing.assert_allclose(found.gradient_norm[index], np.linalg.norm(kernel, axis=(1, 2)), rtol=1e-4)
    (kernel,) = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 2 and leaf.shape[1] == CLASSES]
    np.testing.assert_allclose(norms, [np.linalg.norm(kernel)] * 2, rtol=1e-5)


def test_a_kernel_of_one_output_moves_the_last_logit_alone(examples):
    x, labels, kernel = examples[0], examples[1] % 2, examples[2][:, :1]
    logistic = models.build("logistic", 2).apply
    batches = data.evaluation_batches(Split(x, labels), batch_size=8)
    states = states_of({"kernel": kernel}, gammas=GAMMAS[:1])
    found, norms = evaluation.diagnose(logistic, FOCAL, states, batches=batches)
    score = np.asarray(x, np.float64) @ kernel[:, 0]
    slope = 1 / (1 + np.exp(np.where(labels == 1, score, -score)))
    np.testing.assert_allclose(found.gradient_norm[0], slope * np.linalg.norm(x, axis=1), rtol=1e-4)
    assert norms == pytest.approx([np.linalg.norm(kernel)])


def test_norms_of_a_trees_nodes_are_those_of_dense_gradients_of_each_node():
    tree = [[2, 0, 0], [3, 0, 0], [4, 0, 0], [0, 1, 2], [0, 0, 3]]
    short = [[5, 0, 0], [2, 0, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0]]
    split = Split(np.int32([tree, short]), np.int32([[1, -1, 0, 1, 0], [-1, 1, -1, 0, -1]]))
    model = models.build("tree_lstm", 2, vocabulary_size=6, embedding_size=3, width=4)
    params = jax.jit(model.init)(jax.random.key(0), split.x)["params"]
    batch = Batch(*split, split.y >= 0)
    found, _ = evaluation.diagnose(model.apply, FOCAL, states_of(params), batches=[batch])

    def loss_of(kernel, example, node):
        logits = model.apply({"params": {**params, "Dense_0": {**params["Dense_0"], "kernel": kernel}}}, split.x)
        return FOCAL(logits[example, node], jnp.asarray(split.y)[example, node], {"gamma": GAMMAS[1]})

    per_node = jax.jit(jax.vmap(jax.grad(loss_of), (None, 0, 0)))
    dense = per_node(params["Dense_0"]["kernel"], *np.nonzero(split.y >= 0))
    np.testing.assert_allclose(found.gradient_norm[1], np.linalg.norm(dense, axis=(1, 2)), rtol=1e-4)
    assert found.nll.shape == (2, 6)


def test_both_outcomes_average_to_the_whole_by_their_examples(found, examples):
    rows = evaluation.diagnosis_rows(member(found, 1), split="train", num_bins=25)
    for name in BY_OUTCOME:
        parts = {row.outcome: row for row in rows if row.name == name}
        assert set(parts) == {None, "correct", "wrong"}
        assert {row.split for row in parts.values()} == {"train"}
        weighted = sum(parts[each].n * parts[each].value for each in ("correct", "wrong"))
        assert parts[None].n == EXAMPLES
        assert weighted == pytest.approx(EXAMPLES * parts[None].value, rel=1e-12)
    log_probs, labels = np.asarray(calibration.temperature_scaling(examples[0] @ examples[2], 1.0)), examples[1]
    right = log_probs.argmax(axis=1) == labels
    nll, entropy = -log_probs[np.arange(EXAMPLES), labels], -np.sum(np.exp(log_probs) * log_probs, axis=1)
    for name, values in (("nll", nll), ("entropy", entropy)):
        means = {row.outcome: row.value for row in rows if row.name == name}
        assert means["correct"] == pytest.approx(values[right].mean(), rel=1e-5)
        assert means["wrong"] == pytest.approx(values[~right].mean(), rel=1e-5)


@pytest.mark.parametrize(("correct", "left"), [(True, "correct"), (False, "wrong")])
def test_an_outcome_of_no_example_has_no_row(found, correct, left):
    own = member(found, 0)._replace(correct=np.full(EXAMPLES, correct))
    rows = evaluation.diagnosis_rows(own, split="val", num_bins=25)
    assert {row.outcome for row in rows if row.name in BY_OUTCOME} == {None, left}
    assert all(np.isfinite(row.value) for row in rows)


def test_the_histogram_has_the_same_bins_always_and_drops_no_norm(found):
    norms = np.float32([0, 1e-30, 0.999e-12, 1.001e-12, 1.0, 1.2, 1.9, 9e3, 1e4, 1e9])
    own = jax.tree.map(lambda leaf: leaf[: len(norms)], member(found, 0))._replace(gradient_norm=norms)
    rows = evaluation.diagnosis_rows(own, split="train", num_bins=25)
    rows = select(rows, HistogramBin, name="gradient_norm_histogram")
    assert [row.value for row in rows] == pytest.approx([0.3, 0.1, 0.2, 0.1, 0.3])
    assert [(row.lower, row.upper) for row in rows] == [(NORM_EDGES[row.bin], NORM_EDGES[row.bin + 1]) for row in rows]
    assert (rows[0].lower, rows[0].upper, rows[-1].upper) == pytest.approx((0, 1e-12, 1e4))
    assert (rows[2].lower, rows[2].upper) == pytest.approx((1, 10**0.25))
    assert {row.n for row in rows} == {len(norms)}


def test_the_histogram_of_the_true_class_has_25_even_bins_and_keeps_probability_1(found):
    probability = np.float32([0, 0.01, 0.05, 0.5, 0.999, 1.0, 1.0, 1.0])
    own = jax.tree.map(lambda leaf: leaf[: len(probability)], member(found, 0))
    rows = evaluation.diagnosis_rows(own._replace(true_class_probability=probability), split="train", num_bins=5)
    rows = select(rows, HistogramBin, name="true_class_probability_histogram")
    assert [(row.bin, row.value) for row in rows] == [(0, 0.25), (1, 0.125), (12, 0.125), (24, 0.5)]
    assert [(row.lower, row.upper) for row in rows] == [(row.bin / 25, (row.bin + 1) / 25) for row in rows]


def test_reliability_is_that_of_the_predictions_with_the_share_of_each_bin(found, examples):
    x, labels, kernel = examples
    log_probs = calibration.temperature_scaling(x @ kernel, 1.0)
    bins = jax.device_get(calibration.reliability(log_probs, labels, num_bins=25))
    rows = select(evaluation.diagnosis_rows(member(found, 0), split="train", num_bins=25), ReliabilityBin)
    assert [row.bin for row in rows] == list(np.flatnonzero(bins.count))
    for row in rows:
        at = row.bin
        expected = (bins.accuracy[at], bins.confidence[at], bins.lower[at], bins.upper[at], bins.count[at])
        found_here = [getattr(row, field) for field in ("value", "confidence", "lower", "upper", "n")]
        assert found_here == pytest.approx(list(expected))
        assert row.low <= row.value <= row.high
        assert row.method is None  # else it would count as a result of calibration
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert sum(row.n for row in rows) == EXAMPLES


@pytest.mark.parametrize(
    "sown", [{}, {"a": {"features": (1,), "kernel": (1,)}, "b": {"features": (1,), "kernel": (1,)}}]
)
def test_a_network_without_one_last_layer_is_refused_in_one_line(sown):
    with pytest.raises(InputError, match=r"sows [02] features and [02] kernel of a last layer, one of each is needed"):
        find_last_layer({"intermediates": sown})
