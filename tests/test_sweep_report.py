"""A sweep's page: means over seeds with intervals that cover, paired differences, any combination of axes."""

import numpy as np
import pytest
from scipy import stats

from focalgeo import records
from focalgeo.report import sweep_text, write_report
from focalgeo.report.members import by_seed, is_sweep, line_title, mean, paired, sweep_of
from focalgeo.report.sweep_page import sweep_table


def manifest(**axes):
    empty = {"gamma": [], "trace_penalty": [], "learning_rate": [], "seed": [], "at_once": 0}
    return {"config": {"loss": {"name": "focal_loss"}, "sweep": {**empty, **axes}}, "data": {"name": "digits"}}


def member_rows(value, **place):
    """The final rows of one member, about `value`."""
    test = {"split": "test", "n": 100, **place}
    for name, share in (("accuracy", 0.9), ("nll", 0.4), ("ece", value)):
        yield {"name": name, "map": "uncalibrated", **test, "value": share}
    for each in ("temperature_scaling", "focal_temperature_scaling"):
        where = {"map": each, "criterion": "nll"}
        yield {"name": "ece", **where, **test, "value": value / 2}
        yield {"name": "temperature", "split": "val", **where, **place, "value": 1.5}
        yield {"name": "calibration_gamma", "split": "val", **where, **place, "value": 0.5}
    for loss in ("cross_entropy", "focal_loss"):
        for name in ("lambda_max", "trace", "scale_free_trace"):
            yield {"name": name, "loss": loss, "split": "val", **place, "value": 10 * value, "n": 50}
    ends = {"bin": 7, "lower": 0.5, "upper": 1.0, "confidence": 0.8, "low": 0.7, "high": 0.9}
    yield {"name": "reliability", "map": "uncalibrated", **test, "value": 0.75, **ends}


def test_the_interval_over_five_seeds_covers_as_it_says():
    draws = np.random.default_rng(0).normal(3.0, 2.0, (4000, 5))
    found = [mean(list(row)) for row in draws]
    assert np.mean([each.low <= 3 <= each.high for each in found]) == pytest.approx(0.95, abs=0.012)
    expected = stats.t.interval(0.95, 4, loc=draws[0].mean(), scale=stats.sem(draws[0]))
    np.testing.assert_allclose((found[0].low, found[0].high), expected, rtol=1e-9)


def test_one_seed_has_a_value_and_no_interval_and_none_has_nothing():
    assert mean([0.25]) == (0.25, None, None, 1)
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
    sweep = sweep_of(manifest(gamma=[0.0, 3.0], seed=[0, 1, 2]), rows)
    lines = sweep_table(rows, sweep, ()).lines
    place = next(number for number, line in enumerate(lines) if line.title == "ECE as trained, %")
    assert [cell.text for cell in lines[place].cells] == ["1.100", "3.133"]
    difference = lines[place + 1].cells[1]
    assert difference.text == "+2.03"
    assert difference.best
    low, high = stats.t.interval(0.95, 2, loc=61 / 30, scale=stats.sem([2.0, 1.9, 2.2]))
    assert difference.note == f"[{low:.1f},\u00a0{high:.1f}]"
    accuracy = lines[1].cells[1]  # the same in all members: no difference, and none is marked
    assert (accuracy.text, accuracy.best) == ("0", False)


def test_traces_below_0_are_drawn_on_a_linear_axis(tmp_path):
    rows = [*member_rows(0.1, gamma=0.0, seed=0), *member_rows(-0.1, gamma=3.0, seed=0)]
    records.write_manifest(tmp_path, manifest(gamma=[0.0, 3.0]))
    records.append_rows(tmp_path, rows)
    assert (write_report(tmp_path).parent / "figures" / "sweep_trace_and_ece_val.svg").exists()


def test_rows_of_training_are_no_result():
    rows = [*member_rows(0.1, gamma=0.0, seed=0)]
    during = {"name": "trace", "loss": "cross_entropy", "split": "val", "gamma": 0.0, "seed": 0, "epoch": 3, "value": 9}
    sweep = sweep_of(manifest(gamma=[0.0]), rows)
    where = {"name": "trace", "loss": "cross_entropy", "split": "val"}
    assert by_seed([*rows, during], sweep, (), 0.0, where) == {0: 1.0}


def test_a_run_without_axes_is_no_sweep():
    assert not is_sweep(manifest())
    assert not is_sweep({"config": {}})
    assert is_sweep({**manifest(), "runs": ["a", "b"]})
