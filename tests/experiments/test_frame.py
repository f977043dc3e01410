"""The frame of questions: laws of its statistics, what is drawn, and the command on a question made here."""

import json
import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from experiments import __main__ as command
from experiments import cells, figures, jobs, numbers, question
from experiments.numbers import NOT, SHOWS, UNKNOWN, UNTOLD, Interval
from experiments.question import Job, Question
from focalgeo import records
from focalgeo.types import InputError

FLOATS = st.floats(-10, 10)


def runs_of(**columns):
    return pd.DataFrame(columns)


# ---- numbers


def test_an_interval_is_that_of_t_and_halves_widen_it():
    values = np.random.default_rng(0).normal(3, 2, 8)
    found = numbers.interval(values)
    low, high = stats.t.interval(0.95, 7, values.mean(), stats.sem(values))
    np.testing.assert_allclose(found, (values.mean(), low, high))
    wide = numbers.resampled_interval(values)
    np.testing.assert_allclose(wide.high - wide.mean, 3 * (found.high - found.mean))
    assert numbers.interval([2.0]) == (2.0, -np.inf, np.inf)
    assert not numbers.interval([]).known


@given(FLOATS, st.floats(0.01, 5), st.floats(0, 3))
def test_verdicts_follow_from_where_the_interval_lies(middle, half, margin):
    value = Interval(middle, middle - half, middle + half)
    said = numbers.verdict(value, margin=margin)
    assert said == (SHOWS if value.high < margin else NOT if value.low > margin else UNTOLD)
    mirrored = Interval(-middle, -value.high, -value.low)
    assert numbers.verdict(mirrored, falls=False, margin=margin) == said
    room = numbers.alike(value, margin)
    assert (room == SHOWS) == (abs(value.low) <= margin and abs(value.high) <= margin)
    assert (room == NOT) == (value.low > margin or value.high < -margin)
    assert numbers.verdict(UNKNOWN) == numbers.alike(UNKNOWN, 1.0) == UNTOLD
    assert numbers.joined([SHOWS, said]) == said
    claim = numbers.told("K", "it falls", value, margin=margin, scale=100, unit="points")
    assert claim.verdict == said
    assert claim.because.startswith("difference ")


@pytest.mark.parametrize(("temperature", "verdict"), [(1.29, "not tested"), (1.31, "contradicted")])
def test_a_claim_outside_the_regime_of_its_paper_is_not_tested(temperature, verdict):
    why = numbers.too_calm(pd.DataFrame({"temperature": [temperature] * 2}))
    claim = numbers.outside(numbers.Claim("F 2", "ECE is lower", NOT, "+1 points"), why)
    assert (claim.verdict, claim.because.endswith("+1 points")) == (verdict, True)


def test_pairs_are_by_seed_over_those_that_both_have():
    one = runs_of(seed=[2, 0, 1], ece=[0.5, 0.1, 0.3])
    other = runs_of(seed=[0, 2, 3], ece=[0.0, 0.1, 9.0])
    np.testing.assert_allclose(numbers.change(one, other, "ece").mean, (0.1 + 0.4) / 2)
    assert not len(numbers.column(one, "absent"))
    assert list(numbers.column(one, "ece", seed=0)) == [0.1]
    levels = numbers.levels(pd.concat([one, other]), "seed", "ece")
    assert levels == {
        seed: numbers.interval(values) for seed, values in enumerate(([0.1, 0.0], [0.3], [0.5, 0.1], [9.0]))
    }


def test_slopes_and_ratios_are_those_of_a_known_curve():
    gammas, seeds = (axis.ravel() for axis in np.meshgrid([0.0, 1.0, 3.0], range(4)))
    runs = runs_of(gamma=gammas, seed=seeds, trace=(2.0 + seeds) * np.exp(-0.2 * gammas), line=seeds - 0.5 * gammas)
    np.testing.assert_allclose(numbers.slope(runs, "trace"), -0.2)
    np.testing.assert_allclose(numbers.slope(runs, "line", log=False), -0.5)
    last, first = (numbers.rows_where(runs, gamma=gamma) for gamma in (3.0, 0.0))
    np.testing.assert_allclose(numbers.ratio(last, first, "trace"), np.expm1(-0.6))
    assert not numbers.has_log(runs, "line")
    assert not numbers.ratio(last, first, "line").known
    own = numbers.with_own(runs_of(**{"trace CE val": [1.0, 2.0], "trace own val": [np.nan, 5.0]}))
    assert list(own["trace own val"]) == [1.0, 5.0]


def test_bootstraps_hold_their_statistic_and_refuse_too_few():
    values = np.random.default_rng(1).normal(size=60)
    found = numbers.bootstrapped(60, lambda places: values[places].mean(-1))
    np.testing.assert_allclose(found, numbers.interval(values), atol=0.06)
    assert numbers.bootstrapped(4, lambda places: values[places].mean(-1)) == UNKNOWN
    assert numbers.bootstrapped(9, lambda places: np.full(places.shape[:-1], np.nan)) == UNKNOWN
    ranks = numbers.rank_correlation(values[:20], values[:20] ** 3)
    assert ranks.mean == pytest.approx(1)
    assert numbers.rank_correlation(values, -values).high < 0
    assert numbers.rank_correlation([1, 2, 3], [1, 2, 3]) == UNKNOWN
    assert numbers.rank_correlation([1, 1, 1, 1], [1, 2, 3, 4]) == UNKNOWN


@pytest.mark.parametrize(
    ("value", "how", "text"),
    [
        (Interval(1.234, 0.9, 1.5), {}, "1.23 (0.9 to 1.5)"),
        (Interval(0.01, 0.005, 0.02), {"scale": 100, "signed": True}, "**+1 (+0.5 to +2)**"),
        (Interval(-0.0, -1, 1), {"signed": True}, "+0 (-1 to +1)"),
        (Interval(12345.6, -np.inf, np.inf), {}, "12,300"),
        (UNKNOWN, {}, ""),
    ],
)
def test_numbers_as_text(value, how, text):
    assert numbers.shown(value, **how) == text


def test_tables_have_means_and_changes():
    one, other = (runs_of(seed=[0, 1, 2], ece=values) for values in ([0.1, 0.2, 0.3], [0.0, 0.0, 0.0]))
    columns = {"ece": numbers.Number("ECE, %", 100)}
    means = numbers.means_table(["loss"], {"a": one, "b": other}, columns)
    assert means.splitlines()[2:] == ["| a | 3 | 20 (0 to 44.8) |", "| b | 3 | 0 (0 to 0) |"]
    groups = {("a", "1"): one, ("b", "2"): other}
    changes = numbers.table(["loss", "T"], groups, {"seeds": len} | numbers.changes(columns, other))
    assert changes.splitlines()[2:] == ["| a | 1 | 3 | +20 (-4.84 to +44.8) |", "| b | 2 | 3 |  |"]


def test_what_is_drawn_leaves_out_bars_that_are_unknown():
    figure, axes = figures.panels(1, 2, 4, 2)
    found = [Interval(2, 1, 4), UNKNOWN._replace(mean=20.0)]
    figures.intervals(axes[0, 0], [0, 1], found, label="a", **figures.look(0))
    (bars,) = axes[0, 0].containers[0][2]
    np.testing.assert_allclose([segment[:, 1] for segment in bars.get_segments()], [[1, 4], [20, 20]])
    figures.logarithmic(axes[0, 0], "y")
    assert [tick for tick in axes[0, 0].get_yticks() if 1 <= tick <= 20] == [1, 2, 5, 10, 20]
    figures.legend(figure)
    plt.close(figure)


# ---- the command


def declared(folder, made):
    """A question with two ways, of which each job leaves its name in `made`."""

    def make(way):
        made.append(way)
        return [{"way": way, "seed": seed, "ece": 0.1 * (way == "plain") + 0.01 * seed} for seed in range(3)]

    def jobs_of(flags, parts):
        return [Job({"way": way}, range(flags.seeds), lambda out, way=way: make(way), 60) for way in ("plain", "flat")]

    def claims(runs):
        less = numbers.paired(*(numbers.column(runs, "ece", way=way) for way in ("flat", "plain")))
        return [numbers.told("here", "flat is calibrated", less)]

    class Here(Question):
        folder = property(lambda self: folder)

    return Here(
        "here",
        "Which?",
        claims,
        tables={"means": lambda runs: numbers.markdown(["way", "ECE"], runs.groupby("way").ece.mean().items())},
        figures={"ece": lambda runs: figures.panels(1, 1, 2, 2)[0]},
        numbers={"best": lambda runs: runs.ece.min()},
        jobs=jobs_of,
        keys={"way": ("plain", "flat")},
        seeds=3,
    )


def test_a_question_is_made_once_written_and_remade_from_what_is_stored(tmp_path, capsys):
    folder, made = tmp_path / "here", []
    asked = declared(folder, made)
    folder.mkdir()
    (folder / "README.md").write_text(
        "# Which?\n\n<!-- means -->\n\nold\n\n<!-- end -->\n\n<!-- means: plain -->\n<!-- end -->\n"
    )
    with pytest.raises(InputError, match="no results"):
        question.answer(asked, ["--store", "--tables"])
    question.answer(asked, ["--cost", "--store"])
    assert "2 jobs of 6 seeds, 6 minutes" in capsys.readouterr().out
    question.answer(asked, ["--store", "--only", "flat"])
    question.answer(asked, ["--store"])
    assert made == ["flat", "plain"]
    stored = question.stored(folder)
    assert [run["way"] for run in stored["runs"]] == ["plain"] * 3 + ["flat"] * 3
    assert stored["claims"][0]["verdict"] == SHOWS
    assert stored["best"] == 0.0
    text = (folder / "README.md").read_text()
    assert "old" not in text
    assert text.count("| flat | 0.01 |") == 1  # the second has the rows of one word
    assert text.count("| plain | 0.11") == 2
    details = (folder / "details.md").read_text()
    assert "| here | flat is calibrated | supported |" in details
    assert "## means\n\n| way | ECE |" in details
    assert (folder / "figures" / "ece.png").exists()
    question.answer(asked, ["--store", "--tables"])
    assert question.stored(folder) == stored
    assert (folder / "README.md").read_text() == text
    question.answer(asked, ["--store", "--table", "means"])
    assert capsys.readouterr().out.startswith("| way | ECE |")
    question.answer(asked, ["--store", "--again", "--seeds", "2"])
    assert made == ["flat", "plain", "plain", "flat"]
    assert len(question.stored(folder)["runs"]) == 6
    (folder / "results.json").write_text("{")
    with pytest.raises(InputError, match="move it away"):
        question.answer(asked, ["--store", "--tables"])


MISTAKES = ("switch --seeds x", "switch --seeds 1", "switch --data sst:/nowhere", "no")
MISTAKEN_CELLS = ("--data cifar10", "--data cifar10=folder:/nowhere/x.tar")


@pytest.mark.parametrize("words", MISTAKES + MISTAKEN_CELLS)
def test_a_mistake_is_one_line_and_exit_code_2(words, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["cells", *words.split()])
    with pytest.raises(SystemExit) as stopped:
        sys.exit(cells.main() if words in MISTAKEN_CELLS else command.main(words.split()))
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_refused_job_ends_with_its_code_and_line(tmp_path, capfd):
    with pytest.raises(SystemExit) as stopped, question.reported():
        jobs.trained("configs/digits.py", tmp_path / "w", {"loss.gama": 1.0})
    assert stopped.value.code == 2
    assert "config.loss.gamma" in capfd.readouterr().err


@pytest.mark.long
def test_the_numbers_of_a_job_s_runs_are_those_of_its_rows(tmp_path):
    fields = jobs.T_ALONE | {"sweep.gamma": (0.0, 2.0), "sweep.seed": (0, 1), "optimizer.epochs": 2}
    fields |= {"model.options.hidden": (8,), "curvature.num_probes": 6, "curvature.density_probes": 0}
    workdir = jobs.trained("configs/digits_gamma.py", tmp_path / "w", fields)
    runs = jobs.measured(workdir, "c", {"way": "here"}, tags={"gamma": "gamma", "seed": "seed"})
    assert [(run["gamma"], run["seed"]) for run in runs] == [(0.0, 0), (0.0, 1), (2.0, 0), (2.0, 1)]
    assert json.loads(json.dumps(runs)) == runs
    rows = records.read_rows(workdir)
    for run in runs:
        own = [row for row in rows if (row.gamma, row.seed) == (run["gamma"], run["seed"]) and row.epoch is None]
        for name, measured in (("trace CE val", ("trace", "val")), ("ece", ("ece", "test"))):
            values = [row.value for row in own if (row.name, getattr(row, "split", None)) == measured]
            assert run[name] in values
        assert run["trace own val"] > 0
        assert run["record"]["seconds"] > 0
    networks = jobs.networks(workdir)
    assert networks.keys() == {(run["gamma"], run["seed"]) for run in runs}
