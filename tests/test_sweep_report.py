"""A sweep's page: means over seeds with intervals that cover, paired differences, any combination of axes."""

import numpy as np
import pytest
from msgspec.structs import replace
from scipy import stats
from synthetic_workdir import NAMES

from focalgeo import records
from focalgeo.report import merge_workdirs, sweep_text, write_report
from focalgeo.report.axes import Quantity, by_member, is_sweep, line_title, mean, paired, sweep_of
from focalgeo.report.choice_on_val import choice_table, choice_words, choices
from focalgeo.report.sweep_page import quantities, render_sweep, sweep_table
from focalgeo.report.tables import phases
from focalgeo.rows import Eigenvalue, Fit, Metric, ReliabilityBin, Seconds, Trace, select, tagged
from focalgeo.types import InputError


def manifest(**axes):
    empty = {"gamma": [], "trace_penalty": [], "learning_rate": [], "seed": [], "at_once": 0}
    config = {"loss": {"name": "focal_loss"}, "sweep": {**empty, **axes}}
    return {"config": config, "data": {"name": "digits"}, **NAMES}


def member_rows(value, methods=("temperature_scaling", "focal_temperature_scaling"), **tags):
    """The final rows of one member, about `value`."""
    test = {"split": "test", "method": "uncalibrated", "n": 100}
    rows = [Metric(name, share, **test) for name, share in (("accuracy", 0.9), ("nll", 0.4), ("ece", value))]
    for method in methods:
        fitted = {"method": method, "criterion": "nll"}
        rows.append(Metric("ece", value / 2, split="test", **fitted))
        names = ["temperature"] if method == "temperature_scaling" else ["calibration_gamma", "temperature"]
        rows.append(Metric("nll", 0.3, split="test", **fitted))
        rows += [Fit(name, len(method) + method.count("a") / 8, 100, "val", **fitted) for name in names]
    for loss in ("cross_entropy", "focal_loss"):
        of, ends = {"n": 50, "split": "val", "loss": loss}, {"low": value, "high": 20 * value, "stderr": 0.1}
        rows.append(Eigenvalue("lambda_max", 10 * value, 0.1, 20, converged=True, **of))
        rows += [Trace(name, 10 * value, probes=6, **ends, **of) for name in ("trace", "scale_free_trace")]
    edges = {"bin": 7, "lower": 0.5, "upper": 1.0, "confidence": 0.8, "low": 0.7, "high": 0.9}
    rows.append(ReliabilityBin("reliability", 0.75, **edges, **test))
    return tagged(rows, **tags)


def test_the_interval_over_five_seeds_covers_as_it_says():
    draws = np.random.default_rng(0).normal(3.0, 2.0, (4000, 5))
    found = [mean(list(row)) for row in draws]
    assert np.mean([each.low <= 3 <= each.high for each in found]) == pytest.approx(0.95, abs=0.012)
    expected = stats.t.interval(0.95, 4, loc=draws[0].mean(), scale=stats.sem(draws[0]))
    np.testing.assert_allclose((found[0].low, found[0].high), expected, rtol=1e-9)
    np.testing.assert_allclose(found[0].stderr, stats.sem(draws[0]))


def test_one_seed_has_a_value_and_no_interval_and_none_has_nothing():
    assert mean([0.25]) == (0.25, None, None, None, 1)
    assert mean([]) is None


def test_a_paired_difference_is_taken_within_seeds_that_both_have():
    first, second = {0: 5.0, 1: 7.0, 2: 100.0}, {0: 4.0, 1: 5.0, 3: -100.0}
    found = paired(first, second)
    assert (found.value, found.n) == (1.5, 2)
    assert paired({0: 1.0}, {1: 2.0}) is None


@pytest.mark.parametrize(
    ("axes", "axis", "others"),
    [
        ({"gamma": [0.0, 3.0], "seed": [0, 1]}, "gamma", []),
        ({"seed": [0, 1]}, "seed", []),
        ({"gamma": [0.0, 3.0], "trace_penalty": [0.0, 0.1]}, "gamma", ["trace_penalty"]),
        ({"learning_rate": [0.1, 1.0]}, "learning_rate", []),
    ],
)
def test_every_combination_of_axes_has_a_page(tmp_path, axes, axis, others):
    axes = {name: values for name, values in axes.items()}
    combinations = [{}]
    for name, values in axes.items():
        combinations = [{**each, name: value} for each in combinations for value in values]
    rows = []
    for number, each in enumerate(combinations):
        rows += member_rows(0.01 * (number + 1), **{"seed": 0, **each})
    sweep = sweep_of(manifest(**axes), rows)
    assert (sweep.axis, sweep.others) == (axis, others)
    records.write_manifest(tmp_path, manifest(**axes))
    records.append_rows(tmp_path, rows)
    page = write_report(tmp_path).read_text()
    assert f"{len(combinations)} runs trained side by side" in page
    assert page.count("<figure>") == len(list((tmp_path / "figures").glob("*.svg"))) - len(sweep.lines)
    assert len(sweep_text(rows, manifest(**axes)).splitlines()) >= len(axes[axis]) + 1
    if others:
        assert [line_title(sweep, line) for line in sweep.lines] == ["λ = 0", "λ = 0.1"]


def test_the_table_holds_means_and_marks_differences_whose_interval_leaves_out_0():
    rows = []
    for seed, (small, large) in enumerate([(0.010, 0.030), (0.012, 0.031), (0.011, 0.033)]):
        rows += [*member_rows(small, gamma=0.0, seed=seed), *member_rows(large, gamma=3.0, seed=seed)]
    sweep = sweep_of(manifest(gamma=[3.0, 0.0], seed=[0, 1, 2]), rows)  # in the order of the numbers
    lines = sweep_table(rows, manifest(), sweep, ()).lines
    index = next(number for number, line in enumerate(lines) if line.title == "ECE as trained, %")
    assert [cell.text for cell in lines[index].cells] == ["1.100", "3.133"]
    difference = lines[index + 1].cells[1]
    assert difference.text == "+2.03"
    assert difference.best
    low, high = stats.t.interval(0.95, 2, loc=61 / 30, scale=stats.sem([2.0, 1.9, 2.2]))
    assert difference.note == f"[{low:.1f},\u00a0{high:.1f}]"
    unlike = [replace(row, value=0.01 + 0.001 * row.seed * (row.gamma - 1)) for row in rows if row.name == "ece"]
    _, difference = sweep_table(unlike, manifest(), sweep, ()).lines[:2]
    assert (difference.cells[1].text, difference.cells[1].best) == ("+0.300", False)  # 0, 0.3 and 0.6
    accuracy = lines[1].cells[1]  # the same in all members: no difference, and none is marked
    assert (accuracy.text, accuracy.best) == ("0", False)


def ranked_rows(gamma, seed, val, test, name="nll", **column):
    found = [Metric(name, value, split=split, **column) for split, value in (("val", val), ("test", test))]
    return tagged(found, gamma=gamma, seed=seed)


UNCALIBRATED = {"method": "uncalibrated"}
SCALED = {"method": "temperature_scaling", "criterion": "nll"}


def test_what_is_chosen_on_val_and_what_that_costs_on_test():
    own = manifest(gamma=[0.0, 1.0, 3.0], seed=[0, 1, 2])
    val = {0.0: (0.5, 0.6, 0.7), 1.0: (0.3, 0.3, 0.6), 3.0: (0.4, 0.5, 0.5)}
    test = {0.0: (0.3, 0.3, 0.3), 1.0: (0.25, 0.21, 0.23), 3.0: (0.2, 0.2, 0.2)}
    rows = [
        row
        for gamma in val
        for seed in range(3)
        for row in ranked_rows(gamma, seed, val[gamma][seed], test[gamma][seed], **SCALED)
    ]
    sweep = sweep_of(own, rows)
    [found] = choices(rows, own, sweep)
    assert (found.chosen, found.votes, found.best) == (((), 1.0), (2, 3), ((), 3.0))
    differences = np.subtract(test[1.0], test[3.0])
    expected = stats.t.interval(0.95, 2, loc=differences.mean(), scale=stats.sem(differences))
    np.testing.assert_allclose((found.cost.low, found.cost.high), expected)
    assert found.cost.value == pytest.approx(0.03)
    words = choice_words(rows, own, sweep)
    assert words.startswith("By NLL after temperature scaling on val, γ = 1 is chosen; on test that costs 0.030 nats [")
    assert words.endswith("against γ = 3, the best there.")
    assert words in sweep_text(rows, own)
    page = render_sweep(rows, own, {})
    assert f'<p class="lead">{words}</p>' in page.replace("&#39;", "'")
    assert page.count('class="lead"') == 1
    assert "γ = 1" in str(choice_table(rows, own, sweep))


def test_a_choice_by_accuracy_takes_the_highest_and_one_that_is_best_on_test_too_costs_nothing():
    own = manifest(gamma=[0.0, 1.0], seed=[0])
    rows = [
        row
        for gamma, value in ((0.0, 0.8), (1.0, 0.9))
        for row in ranked_rows(gamma, 0, value, value - 0.1, "accuracy", **UNCALIBRATED)
    ]
    [found] = choices(rows, own, sweep_of(own, rows))
    assert found.chosen == found.best == ((), 1.0)
    assert found.cost.value == 0
    assert "best on test too" in choice_words(rows, own, sweep_of(own, rows))


def test_values_that_share_no_seeds_are_not_compared_and_one_that_lacks_a_seed_is_said_to_be_left_out():
    own = manifest(gamma=[0.0, 1.0, 2.0], seed=[0, 1])
    other = [*ranked_rows(0.0, 0, 0.5, 0.5, **SCALED), *ranked_rows(1.0, 1, 0.4, 0.4, **SCALED)]
    assert choices(other, own, sweep_of(own, other)) == []
    rows = [row for gamma in (0.0, 1.0) for seed in (0, 1) for row in ranked_rows(gamma, seed, gamma, 0.5, **SCALED)]
    rows += ranked_rows(2.0, 0, -1.0, 0.1, **SCALED)
    [found] = choices(rows, own, sweep_of(own, rows))
    assert (found.chosen, found.left_out) == (((), 0.0), 1)
    assert choice_words(rows, own, sweep_of(own, rows)).endswith(" 1 that lack a seed took no part.")


def test_a_run_without_a_value_on_an_axis_is_no_candidate():
    own = manifest(gamma=[0.0, 1.0], seed=[0])
    rows = [row for gamma in (1.0, 3.0) for row in ranked_rows(gamma, 0, gamma, gamma, **SCALED)]
    rows += ranked_rows(None, 0, 0.1, 0.1, **SCALED)
    [found] = choices(rows, own, sweep_of(own, rows))
    assert found.chosen == ((), 1.0)


def test_runs_that_stopped_and_sweeps_over_seeds_choose_nothing():
    own = manifest(gamma=[0.0, 1.0], seed=[0, 1])
    rows = [row for seed in (0, 1) for row in ranked_rows(0.0, seed, 0.5, 0.5, **UNCALIBRATED)]
    rows += ranked_rows(1.0, 0, 0.1, 0.1, **UNCALIBRATED)  # of seed 1 there is no result
    assert choices(rows, own, sweep_of(own, rows)) == []
    assert choice_table(rows, own, sweep_of(own, rows)) is None
    assert choice_words(rows, own, sweep_of(own, rows)) == ""
    seeds = manifest(seed=[0, 1])
    rows = [row for seed in (0, 1) for row in ranked_rows(None, seed, 0.5, 0.5, **UNCALIBRATED)]
    assert choices(rows, seeds, sweep_of(seeds, rows)) == []


def test_traces_below_0_are_drawn_on_a_linear_axis(tmp_path):
    rows = [*member_rows(0.1, gamma=0.0, seed=0), *member_rows(-0.1, gamma=3.0, seed=0)]
    records.write_manifest(tmp_path, manifest(gamma=[0.0, 3.0]))
    records.append_rows(tmp_path, rows)
    assert (write_report(tmp_path).parent / "figures" / "sweep_trace_and_ece_val.svg").exists()


def test_rows_of_training_are_no_result():
    rows = [*member_rows(0.1, gamma=0.0, seed=0)]
    where = {"name": "trace", "loss": "cross_entropy", "split": "val"}
    during = Trace(value=9.0, low=8.0, high=10.0, stderr=0.5, probes=6, n=50, **where)
    during = replace(during, gamma=0.0, seed=0, epoch=3.0)
    sweep = sweep_of(manifest(gamma=[0.0]), rows)
    assert by_member([*rows, during], sweep, Quantity(Trace, where))[(), 0.0] == {0: 1.0}


def test_a_run_without_axes_is_no_sweep():
    assert not is_sweep(manifest())
    assert not is_sweep({"config": {}})
    assert is_sweep({**manifest(), "runs": ["a", "b"]})


def test_a_new_method_is_in_the_figures_the_table_and_the_text(tmp_path):
    methods = (*list(NAMES["methods"])[1:3], "vector_scaling")
    rows = [*member_rows(0.02, methods, gamma=0.0, seed=0), *member_rows(0.04, methods, gamma=3.0, seed=0)]
    titled = {**NAMES["methods"], "vector_scaling": {"title": "Vector scaling", "criteria": ["nll"]}}
    named = {**manifest(gamma=[0.0, 3.0]), "methods": titled}
    records.write_manifest(tmp_path, named)
    records.append_rows(tmp_path, rows)
    page = write_report(tmp_path).read_text()
    assert "ECE after vector scaling, %" in page
    assert "after vector scaling" in (tmp_path / "figures" / "sweep_ece.svg").read_text()
    assert ">vector scaling<" in (tmp_path / "figures" / "sweep_temperature.svg").read_text()
    assert all(words in sweep_text(rows, named) for words in ("ECE after", "vector", "scaling, %"))


def written(folder, own, members):
    """A workdir with the final rows of its members, each (tags, ECE), and their wall times."""
    rows = [row for tags, value in members for row in member_rows(value, **tags)]
    rows += [Seconds("seconds", "evaluate", 1.0, **tags) for tags, _ in members]
    rows.append(Seconds("seconds", "train", 2.0))
    records.write_manifest(folder, own)
    records.append_rows(folder, rows)
    return folder


def test_many_methods_leave_the_terminal_s_table_narrow_and_a_first_stage_has_no_line():
    others = ("vector_scaling", "structured_matrix_scaling")
    rows = member_rows(0.02, (*list(NAMES["methods"])[1:3], *others), gamma=0.0, seed=0)
    (of_plain,) = select(rows, Fit, method="temperature_scaling")
    rows = [replace(row, value=of_plain.value) if row in select(rows, Fit, method=others[0]) else row for row in rows]
    swept = manifest(gamma=[0.0, 3.0])
    sweep = sweep_of(swept, rows)
    titles = [line.title for line in sweep_table(rows, swept, sweep, sweep.lines[0]).lines]
    assert {"NLL after T, nats", "NLL after structured matrix scaling, nats"} <= set(titles)
    assert "Best T, structured matrix scaling" in titles
    assert "Best T, vector scaling" not in titles
    text = sweep_text(rows, swept)
    assert all(words in text for words in ("ECE after γ", "and T, %"))
    assert "matrix" not in text


def test_what_is_wider_than_a_terminal_goes_on_below():
    rows = [row for gamma in (0.0, 3.0) for row in member_rows(0.02 + gamma / 100, gamma=gamma, seed=0)]
    swept = manifest(gamma=[0.0, 3.0], seed=[0])
    tables = sweep_text(rows, swept).split("\n\n")
    assert len(tables) > 1
    for table in tables:
        *_, heads, zero, three = table.splitlines()
        assert max(map(len, table.splitlines())) <= 80
        assert [line.split()[0] for line in (heads, zero, three)] == ["γ", "0", "3"]
        assert len({len(line) for line in (heads, zero, three)}) == 1  # columns end where their heads do
    titles = [each.title for each in quantities(rows, swept) if each.printed]
    assert sum(len(table.splitlines()[-1].split()) - 1 for table in tables) == len(titles)
    assert "5.000" in tables[0]  # ECE as trained, %, at gamma 3


def test_shards_of_one_config_become_one_sweep(tmp_path):
    axes = {"gamma": [0.0, 3.0], "seed": [0]}
    folders = [
        written(tmp_path / f"part{index}", manifest(**axes), [({"gamma": gamma, "seed": 0}, 0.1 + gamma)])
        for index, gamma in enumerate((0.0, 3.0))
    ]
    out = merge_workdirs(folders, tmp_path / "merged")
    rows, merged = records.read_rows(out), records.read_manifest(out)
    assert merged["config"]["sweep"] == axes
    assert merged["methods"] == NAMES["methods"]
    assert {row.gamma: row.value for row in select(rows, Metric, name="ece", method="uncalibrated")} == {
        0.0: 0.1,
        3.0: 3.1,
    }
    assert phases(rows) == [("train", "4.0 s"), ("evaluate", "2.0 s"), ("total", "6.0 s")]  # both shards' times count
    assert "2 runs trained side by side" in write_report(out).read_text()
    assert merge_workdirs(folders, out) == out  # a merge may be made anew


def test_a_run_without_a_sweep_takes_its_place_by_its_config(tmp_path):
    alone = manifest()
    alone["config"]["loss"]["gamma"] = 5.0
    folders = [
        written(tmp_path / "sweep", manifest(gamma=[0.0]), [({"gamma": 0.0, "seed": 0}, 0.1)]),
        written(tmp_path / "alone", alone, [({"seed": 0}, 0.2)]),
    ]
    out = merge_workdirs(folders, tmp_path / "merged")
    assert records.read_manifest(out)["config"]["sweep"] == {"gamma": [0.0, 5.0]}
    (row,) = select(records.read_rows(out), Metric, name="ece", method="uncalibrated", gamma=5.0)
    assert row.value == 0.2


def test_runs_of_other_configs_stand_side_by_side_under_their_names(tmp_path):
    other = manifest(gamma=[0.0])
    other["config"]["epochs"] = 7
    members = [({"gamma": 0.0, "seed": 0}, 0.1)]
    folders = [written(tmp_path / "first", manifest(gamma=[0.0]), members), written(tmp_path / "last", other, members)]
    out = merge_workdirs(folders, tmp_path / "merged")
    assert {row.run for row in records.read_rows(out)} == {"first", "last"}
    assert "last" in write_report(out).read_text()
    twice = [folders[0], tmp_path / "more" / "first"]
    written(twice[1], other, members)
    assert records.read_manifest(merge_workdirs(twice, tmp_path / "twice"))["runs"] == [str(each) for each in twice]


@pytest.mark.parametrize(("part", "field", "value"), [("config", "epochs", 7), ("data", "checksum", "other")])
def test_among_runs_of_other_examples_nothing_is_chosen(tmp_path, part, field, value):
    folders = []
    for name, nll, changed in (("first", 0.5, {}), ("last", 0.4, {field: value})):
        own = manifest()
        own[part] = {**own[part], **changed}
        own["config"]["optimizer"] = {"name": name}
        records.write_manifest(tmp_path / name, own)
        records.append_rows(tmp_path / name, ranked_rows(None, 0, nll, nll, **SCALED))
        folders.append(tmp_path / name)
    page = write_report(merge_workdirs(folders, tmp_path / "merged")).read_text()
    assert ("last is chosen" in page) == (part == "config")


def test_a_member_that_two_workdirs_hold_is_refused(tmp_path):
    members = [({"gamma": 0.0, "seed": 0}, 0.1)]
    folders = [written(tmp_path / name, manifest(gamma=[0.0]), members) for name in ("first", "last")]
    with pytest.raises(InputError, match=r"both hold the run with gamma 0\.0, seed 0; leave one of them out"):
        merge_workdirs(folders, tmp_path / "merged")
    with pytest.raises(InputError, match="is one of the workdirs"):
        merge_workdirs(folders, folders[0])
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.tex").write_text("")
    with pytest.raises(InputError):
        merge_workdirs(folders, tmp_path / "used")
