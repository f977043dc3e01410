"""Metrics of chunks against those of all examples at once, and against float64 where there are 10^7."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focalgeo.calibration import METRICS, all_metrics
from focalgeo.calibration.metrics import streaming
from focalgeo.types import InputError

SUMMED = [name for name, entry in METRICS.items() if entry.summed]
BINARY = ("binary_brier", "rms_calibration_error", "spiegelhalter_z")


def predictions(examples, classes, seed):
    draws = np.random.default_rng(seed)
    log_probs = np.array(jax.nn.log_softmax(jnp.asarray(3 * draws.normal(size=(examples, classes)), jnp.float32)))
    likely = log_probs.argmax(axis=1)
    return log_probs, np.where(draws.random(examples) < 0.7, likely, draws.integers(0, classes, examples)), draws


def close(found, whole):
    assert found.keys() == whole.keys()
    for name, value in whole.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


@functools.cache
def of(classes):
    made = streaming.make([name for name in SUMMED if classes == 2 or name not in BINARY], classes)
    return made._replace(compute=jax.jit(made.compute)), jax.jit(made.update)


@pytest.mark.parametrize("counted", ["all", "mask", "weights", "both"])
@pytest.mark.parametrize("classes", [2, 5])
def test_any_chunks_give_the_metrics_of_all_examples(classes, counted):
    made, update = of(classes)
    for seed in range(3):
        log_probs, labels, draws = predictions(600, classes, seed)
        mask = draws.random(600) < 0.6 if counted in ("mask", "both") else None
        weights = draws.gamma(1.0, size=600).astype(np.float32) if counted in ("weights", "both") else None
        if mask is not None:
            log_probs[~mask & (np.arange(600) % 2 == 0)] = np.nan
        cuts = np.sort(draws.choice([0, 0, 40, 41, 150, 300, 300, 450, 600], 6))  # few shapes: each is compiled
        parts = zip([0, *cuts], [*cuts, 600], strict=True)
        states = [made.init()]
        for first, end in parts:
            own = {
                name: values[first:end] for name, values in (("mask", mask), ("weights", weights)) if values is not None
            }
            if draws.random() < 0.3:
                states.append(made.init())
            states[-1] = update(states[-1], log_probs[first:end], labels[first:end], **own)
        while len(states) > 1:  # merged in any order
            states.append(made.merge(states.pop(draws.integers(len(states))), states.pop(0)))
        names = list(made.compute(states[0]))
        close(made.compute(states[0]), all_metrics(log_probs, labels, mask=mask, weights=weights, names=names))


def test_ten_million_examples_do_not_drift():
    """As 157 rounds of the same 1,000 chunks of 64: the value is that of one round, in float64."""
    log_probs, labels, _ = predictions(64_000, 2, 3)
    p = np.exp(log_probs.astype(float))
    right = p[np.arange(64_000), labels]
    truth = {"accuracy": np.mean(p.argmax(axis=1) == labels), "nll": -np.mean(np.log(right))}
    truth["brier"] = np.mean(2 * (1 - right) ** 2)
    bins = np.searchsorted(np.arange(1, 15) / 15 + 1e-6, p.max(axis=1))
    gaps = np.bincount(bins, weights=(p.argmax(axis=1) == labels) - p.max(axis=1))
    truth["ece"] = np.abs(gaps).sum() / 64_000
    truth["high_confidence"] = np.mean(p.max(axis=1) >= 0.99 - 1e-6)
    made = streaming.make(truth, 2)
    chunks = log_probs.reshape(1000, 64, 2), labels.reshape(1000, 64)

    def chunk(states, rows):
        state, plain = states
        one = made.update(made.init(), *rows)
        return (made.update(state, *rows), plain + jnp.sum(one, axis=0)), None

    @jax.jit
    def all_rounds(state):
        rounds = lambda _, states: jax.lax.scan(chunk, states, chunks)[0]  # noqa: E731
        return jax.lax.fori_loop(0, 157, rounds, (state, state[1]))

    state, plain = all_rounds(made.init())
    found, drifted = made.compute(state), made.compute(jnp.stack([plain, 0 * plain]))
    close({name: float(value) for name, value in found.items()}, truth)
    assert max(abs(drifted[name] - truth[name]) for name in truth) > 1e-5  # what one float32 sum would give
    one = streaming.make(["accuracy"], 2)
    count = one.update(one.init(), *(each[:1] for each in predictions(8, 2, 0)[:2]), weights=np.float32([2**30]))
    for _ in range(3):
        count = one.update(count, *(each[:1] for each in predictions(8, 2, 0)[:2]))
    assert np.asarray(count, float).sum(axis=0).max() == 2**30 + 3


def test_psum_of_states_is_their_merge():
    made, update = of(2)
    log_probs, labels, _ = predictions(800, 2, 5)
    states = [update(made.init(), log_probs[i : i + 100], labels[i : i + 100]) for i in range(0, 800, 100)]
    summed = jax.vmap(lambda state: jax.lax.psum(state, "devices"), axis_name="devices")(jnp.stack(states))
    merged = functools.reduce(made.merge, states)
    np.testing.assert_array_equal(summed[0, 0], merged[0])
    np.testing.assert_allclose(summed[0], merged, atol=1e-6)
    names = list(made.compute(merged))
    close(made.compute(summed[0]), all_metrics(log_probs, labels, names=names))


def test_no_example_is_nan_and_an_infinite_nll_stays_infinite():
    made, update = of(5)
    log_probs, labels, _ = predictions(100, 5, 1)
    nothing = update(made.init(), log_probs, labels, mask=np.zeros(100, bool))
    for state in (made.init(), made.update(made.init(), log_probs[:0], labels[:0]), nothing):
        assert all(np.isnan(value) for value in made.compute(state).values())
    never = np.log(np.float32([[1, 0, 0, 0, 0]]), where=np.arange(5) == 0, out=np.full((1, 5), -np.inf, np.float32))
    state = update(update(update(made.init(), log_probs, labels), never, np.array([3])), log_probs, labels)
    found = made.compute(state)
    assert found.pop("nll") == np.inf
    assert all(np.isfinite(value) for value in found.values())


def test_what_is_no_log_probability_or_class_makes_a_jitted_state_nan():
    made, update = of(5)
    log_probs, labels, _ = predictions(100, 5, 1)
    first = np.arange(100) == 0
    wrong = [(rows, labels) for rows in (3 * log_probs, np.exp(log_probs), np.where(first[:, None], np.nan, log_probs))]
    for chunk in [*wrong, *((log_probs, np.where(first, label, labels)) for label in (-100, -1, 5))]:
        state = made.merge(update(made.init(), log_probs, labels), update(made.init(), *chunk))
        assert np.isnan([*made.compute(state).values()]).all()
    masked = (update(made.init(), *rows, mask=~first) for rows in (chunk, (log_probs, labels)))
    np.testing.assert_array_equal(*masked)


@pytest.mark.parametrize("name", sorted(METRICS.keys() - set(SUMMED)))
def test_what_sums_do_not_hold_is_refused_in_one_line(name):
    with pytest.raises(InputError, match=f"metrics: {name} orders or fits all examples at once"):
        streaming.make(["ece", name], 2)


def test_other_numbers_of_classes_are_refused():
    with pytest.raises(InputError, match="log_probs"):
        streaming.make(["spiegelhalter_z"], 3)
    made, _ = of(5)
    with pytest.raises(InputError, match="log_probs"):
        made.update(made.init(), *predictions(10, 4, 0)[:2])
    with pytest.raises(InputError, match="did you mean 'ece'"):
        streaming.make(["eec"], 3)
