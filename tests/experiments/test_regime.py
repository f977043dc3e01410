"""The question of the regime: the gamma that needs no temperature, the rule by the gap, and runs of a tiny setting."""

import numpy as np
import pandas as pd
import pytest

from experiments import question, regime
from experiments.numbers import NOT, SHOWS


def runs_of(ratio=lambda gamma: 1 / (1 + 0.3 * gamma), implied=1.0):
    """Drawn runs of all settings in which T falls with gamma as `ratio` says, and ECE follows |ln T|."""
    rows, rng = [], np.random.default_rng(0)
    for number, (images, epochs) in enumerate(regime.SETTINGS):
        for seed in range(3):
            plain = np.exp(0.05 + 0.1 * number + rng.normal(0, 0.02))
            for gamma in regime.GAMMAS:
                temperature = plain * ratio(gamma)
                row = {"train_size": images, "epochs": epochs, "gamma": gamma, "seed": seed, "temperature": temperature}
                row |= {"ece": 0.01 + 0.2 * abs(np.log(temperature)), "implied temperature": implied * plain}
                rows.append(row | {"val nll": 1 + plain, "train nll": 0.5, "train accuracy": 1.0})
    return pd.DataFrame(rows)


CELLS = ("loss", "task", "seed", "metrics", "fits", "train_accuracy", "train_nll", "diagnostics")
NONE = pd.DataFrame(columns=CELLS, dtype=object)


def test_the_gamma_that_needs_no_temperature_lies_where_t_is_one():
    def of(*temperatures):
        return regime.calibrated_gamma(pd.DataFrame({"gamma": [0.0, 1.0, 3.0], "temperature": temperatures}))

    assert of(2.0, 1.0, 0.5) == 1
    assert of(4.0, 2.0, 0.5) == 2  # half way in ln T
    assert of(0.9, 0.5, 0.2) == 0
    assert of(4.0, 3.0, 2.0) == 3


def test_a_rule_is_fitted_on_half_of_the_settings_and_beats_what_it_should_on_the_others():
    runs = runs_of()
    table = regime.every(runs, NONE)
    known, other = regime.halves(table)
    assert not set(known.setting) & set(other.setting)
    assert set(known.setting) | set(other.setting) == set(table.setting)
    rules = regime.rules(runs, NONE)
    for number in regime.NUMBERS:
        slope, _ = rules[number]["line"]
        assert slope > 0
        measured = rules[number]["other settings"]
        assert measured["minus CE"].high < 0
        assert measured["above the least"].mean < 1  # points


def test_claims_follow_t():
    told = {claim.claim: claim.verdict for claim in regime.claims(runs_of(), NONE)}
    assert told["γ = 3 divides cross-entropy's T by the same factor in every setting, to 15%"] == SHOWS
    assert told["γ = 3: behind the map of its loss every network needs cross-entropy's T, to 15%"] == SHOWS
    assert told["γ = 3 has a lower ECE than cross-entropy just where its T is nearer 1, in 19 of 20 runs"] == SHOWS
    other = {claim.claim: claim.verdict for claim in regime.claims(runs_of(implied=1.5), NONE)}
    assert other["γ = 3: behind the map of its loss every network needs cross-entropy's T, to 15%"] == NOT


@pytest.mark.long
def test_a_tiny_setting_has_what_the_question_needs(tmp_path, real_archive, monkeypatch):
    small = {"sweep.gamma": (0.0, 3.0), "data.val_size": 100, "data.test_size": 100, "diagnostics.examples": 50}
    monkeypatch.setattr(regime, "FIELDS", regime.FIELDS | small | {"model.options.widths": (4, 8, 8)})
    data = f"folder:{real_archive('cifar10-jpeg.tar.xz')}"
    monkeypatch.setattr(regime, "SETTINGS", ((64, 2),))
    runs = next(regime.plan(question.parse(regime.QUESTION, ["--data", data]), {})).make(tmp_path)
    assert [run["gamma"] for run in runs] == [0, 3]
    wanted = {"temperature", "implied temperature", "ece", "nll after T", "val nll", "train nll", "train accuracy"}
    assert all(wanted <= run.keys() for run in runs)
    assert {run["record"]["config"] for run in runs} == {regime.CONFIG}
