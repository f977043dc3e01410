"""The question of large gammas: what counts as failed, and which claims follow from drawn runs."""

from itertools import product

import numpy as np
import pandas as pd

from experiments import large_gamma
from experiments.numbers import NOT, SHOWS, UNTOLD


def runs_of(accuracy):
    """Drawn runs of every task; accuracy: a function of task, gamma and seed."""
    tasks, rng, rows = (*large_gamma.TASKS, large_gamma.IMAGES), np.random.default_rng(0), []
    for task, gamma, seed in product(tasks, large_gamma.GAMMAS, range(5)):
        noise = rng.normal(0, 0.001)
        row = {"task": task, "gamma": gamma, "seed": seed, "accuracy": accuracy(task, gamma, seed) + noise}
        rows.append(row | {"ece": 0.02 + 0.02 * gamma + noise, "nll": 0.1 + 0.03 * gamma + noise})
    return pd.DataFrame(rows).assign(**{"ece after T": 0.02, "nll after T": 0.1, "temperature": 1.5})


def verdicts(accuracy):
    return {claim.claim: claim.verdict for claim in large_gamma.claims(runs_of(accuracy))}


def test_training_fails_where_most_runs_stay_at_chance():
    told = verdicts(lambda task, gamma, seed: 0.1 if gamma == 15 or (gamma == 10 and seed < 2) else 0.9)
    assert told["digits: training fails at γ = 7"] == NOT
    assert told["digits: training fails at γ = 10"] == UNTOLD
    assert told["digits: training fails at γ = 15"] == SHOWS


def test_runs_at_chance_are_left_out_of_means():
    told = verdicts(lambda task, gamma, seed: 0.1 if gamma == 7 and seed == 0 else 0.9 + 0.001 * gamma)
    assert told["digits: γ = 7 has a lower accuracy than γ = 3"] != SHOWS
    table = large_gamma.ends_table(runs_of(lambda task, gamma, seed: 0.1 if gamma == 7 and seed == 0 else 0.9))
    (row,) = [line for line in table.splitlines() if line.startswith("| digits | 7 |")]
    assert row.split(" | ")[2:4] == ["5", "1"]
    assert row.split(" | ")[4].startswith("90")


def test_gamma_10_is_judged_on_the_long_tail():
    told = verdicts(lambda task, gamma, seed: 0.9)
    assert told["digits, a long tail of classes: γ = 10 has a lower ECE as trained than γ = 0"] == NOT
    assert told["digits, a long tail of classes: γ = 10 has a lower NLL as trained than γ = 3"] == NOT


def test_the_long_tail_is_of_the_last_classes():
    recipe = large_gamma.digits.read(None, tail=10.0)
    counts = np.bincount(np.asarray(recipe.splits["train"][1]), minlength=10)
    assert counts[0] > 3 * counts[9] > 0
