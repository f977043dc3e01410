"""Figures of training diagnostics: which stand on a page, and that they draw the rows of the right epochs."""

import json

import numpy as np
import pytest
from msgspec.structs import replace
from synthetic_workdir import attribution_rows, diagnosis_rows, training_rows

from focalgeo import records
from focalgeo.report import write_report
from focalgeo.report.axes import sweep_of
from focalgeo.report.curves import (
    diagnostic_panels,
    histogram_figure,
    outcome_figure,
    share_figure,
    weight_figure,
)
from focalgeo.report.hessian import attribution_words
from focalgeo.report.style import power_of_ten
from focalgeo.report.sweep_figures import epochs_figure
from focalgeo.report.words import training_words
from focalgeo.rows import Diagnostic, HistogramBin, Metric, ReliabilityBin, select, tagged, to_json
from focalgeo.types import InputError

ROWS = diagnosis_rows()
SWEEP = {"config": {"loss": {"name": "focal_loss"}, "sweep": {"gamma": [0.0, 3.0], "seed": [0, 1]}}}


def named(name, kind=Diagnostic, **fields):
    return select(ROWS, kind, name=name, **fields)


def with_outcome(name, **fields):
    return [row for row in named(name, **fields) if row.outcome]


def lines_of(figure):
    return {line.get_label(): line.get_xydata() for line in figure.axes[0].lines}


def test_each_outcome_and_split_is_a_line_over_the_epochs():
    drawn = lines_of(outcome_figure(with_outcome("nll"), "NLL"))
    assert set(drawn) == {f"{outcome}, {split}" for outcome in ("correct", "wrong") for split in ("train", "val")}
    expected = [(1, 1.6), (5, 2.0), (30, 4.5)]
    np.testing.assert_allclose(drawn["wrong, train"], expected)


def test_an_outcome_that_ends_leaves_a_shorter_line():
    rows = [row for row in with_outcome("entropy", split="train") if row.outcome == "correct" or row.epoch < 5]
    drawn = lines_of(outcome_figure(rows, "entropy"))
    assert {label: len(points) for label, points in drawn.items()} == {"correct, train": 3, "wrong, train": 1}


def test_the_weights_norm_is_drawn_and_of_two_equal_rows_the_last_counts():
    again = replace(named("weight_norm")[0], value=9.0)
    (line,) = lines_of(weight_figure([*named("weight_norm"), again])).values()
    np.testing.assert_allclose(line, [(1, 9), (5, 2 + np.log(5)), (30, 2 + np.log(30))])


def test_a_histogram_keeps_gaps_and_begins_at_0():
    bins = [(0, 0.0, 1e-12, 0.25), (1, 1e-12, 10**-11.75, 0.25), (9, 1e-10, 10**-9.75, 0.5)]
    name, of = "gradient_norm_histogram", {"n": 8, "split": "train", "epoch": 1.0}
    rows = [HistogramBin(name, value, number, lower, upper, **of) for number, lower, upper, value in bins]
    values, edges, _ = histogram_figure(rows).axes[0].patches[0].get_data()
    np.testing.assert_allclose(values, [0.25, 0.25, 0, 0.5])
    np.testing.assert_allclose(edges, 10.0 ** np.array([-12.25, -12, -11.75, -10, -9.75]))


def test_a_histogram_shows_three_epochs_at_most():
    figure = histogram_figure(named("gradient_norm_histogram", HistogramBin, split="train"))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["epoch 1", "epoch 5", "epoch 30"]
    alone = histogram_figure(named("gradient_norm_histogram", HistogramBin, split="train", epoch=5.0))
    assert [text.get_text() for text in alone.legends[0].get_texts()] == ["epoch 5"]


def test_shares_stand_beneath_the_reliability_of_the_last_epoch():
    bins = named("reliability", ReliabilityBin, split="train", epoch=30.0)
    heights = [bar.get_height() for bar in share_figure(bins).axes[1].patches]
    assert heights == [row.share for row in bins]
    assert sum(heights) == pytest.approx(1)
    assert "Reliability on train, epoch 30" in [panel.title for panel in diagnostic_panels(ROWS)]
    share_figure(bins[-1:])  # all examples in one bin


def test_without_diagnostics_no_figure_and_no_section(tmp_path):
    final = tagged(ROWS, epoch=None, step=None)
    assert list(diagnostic_panels([*final, *training_rows()])) == []
    records.write_manifest(tmp_path, {})
    records.append_rows(tmp_path, training_rows()[:4])
    assert "Training, example by example" not in write_report(tmp_path).read_text()


def test_diagnostics_do_not_pass_for_other_rows():
    assert attribution_words([*attribution_rows(), *ROWS]) == attribution_words(attribution_rows())
    training = [row for row in training_rows() if row.step in (160, 320)]
    assert training_words([*training, *ROWS]) == training_words(training)


def test_a_histogram_row_without_an_edge_is_named(tmp_path):
    records.write_manifest(tmp_path, {})
    fields = to_json(named("gradient_norm_histogram", HistogramBin)[0])
    del fields["upper"]
    (tmp_path / "metrics.jsonl").write_text(json.dumps(fields) + "\n")
    with pytest.raises(InputError, match="line 1: row 'gradient_norm_histogram' has no upper"):
        write_report(tmp_path)


def members():
    for gamma in (0.0, 3.0):
        for seed in (0, 1):
            for row in tagged(ROWS, gamma=gamma, seed=seed):
                yield replace(row, value=row.value / (1 + gamma) + seed)


def test_a_sweep_draws_means_over_seeds_for_each_gamma():
    rows = [row for row in members() if row.name == "weight_norm"]
    drawn = lines_of(epochs_figure(rows, sweep_of(SWEEP, rows), "norm"))
    assert set(drawn) == {"0", "3"}
    np.testing.assert_allclose(drawn["3"], [(1, 1.0), (5, 0.5 + np.log(5) / 4 + 0.5), (30, 1 + np.log(30) / 4)])


def test_a_sweeps_page_has_a_section_of_them(tmp_path):
    ece = Metric("ece", 0.1, split="test", method="uncalibrated")
    final = [row for gamma in (0.0, 3.0) for row in tagged([ece], gamma=gamma, seed=0)]
    records.write_manifest(tmp_path, SWEEP)
    records.append_rows(tmp_path, [*final, *members()])
    page = write_report(tmp_path).read_text()
    assert "<h2>While training</h2>" in page
    for title in ("Examples predicted wrong, train", "Examples predicted wrong, val", "Norm of the last layer"):
        assert f"<h3>{title}" in page


def test_powers_of_ten():
    assert [power_of_ten(value) for value in (1e-12, 1.0, 1000.0)] == ["10⁻¹²", "10⁰", "10³"]
