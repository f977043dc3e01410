"""The page: says what the rows say, is the same bytes each time, needs no network, and copes with missing parts."""

import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from synthetic_workdir import MANIFEST, curvature_rows, training_rows, write_workdir

from focalgeo import records
from focalgeo.report import Column, reliability_figure, to_svg, write_report
from focalgeo.report.__main__ import main
from focalgeo.report.formats import interval, percent, plain, significant
from focalgeo.report.selection import latest
from focalgeo.report.tables import curvature_table, metric_table, settings
from focalgeo.report.words import curvature_words, training_loss, verdict

FIGURES = {
    "reliability_uncalibrated",
    "reliability_temperature_scaling",
    "reliability_focal_temperature_scaling",
    "training_loss",
    "training_accuracy",
    "training_learning_rate",
    "search_ece",
    "search_nll",
    "curvature_lambda_max",
    "curvature_trace",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "digits"
    write_workdir(workdir)
    return workdir, write_report(workdir).read_text()


@pytest.fixture
def ece_rows():
    """Make final ECE rows of both maps from (value, low, high) each, temperature scaling first."""

    def make(scaling, focal, gamma=1.0):
        named = {"temperature_scaling": scaling, "focal_temperature_scaling": focal}
        rows = [
            {"name": "ece", "split": "test", "map": "uncalibrated", "value": 0.2, "low": 0.15, "high": 0.25, "n": 100}
        ]
        for name, (value, low, high) in named.items():
            where = {"map": name, "criterion": "ece"}
            rows.append({"name": "ece", "split": "test", **where, "value": value, "low": low, "high": high, "n": 100})
            rows.append({"name": "calibration_gamma", "split": "val", **where, "value": gamma})
        return rows

    return make


def test_every_figure_and_section_is_there_and_each_figure_is_xml(finished):
    workdir, page = finished
    assert {path.stem for path in (workdir / "figures").iterdir()} == FIGURES
    for name in FIGURES:
        ElementTree.parse(workdir / "figures" / f"{name}.svg")
    assert page.count("<svg ") == len(FIGURES)
    for heading in (
        "Before and after calibration",
        "Training",
        "Curvature of the loss",
        "The run, and how to repeat it",
    ):
        assert f"<h2>{heading}</h2>" in page


def test_a_page_rebuilt_by_another_process_is_the_same_bytes(finished, tmp_path):
    workdir, page = finished
    again = tmp_path / "again"
    shutil.copytree(workdir, again, ignore=shutil.ignore_patterns("figures", "report.html"))
    subprocess.run([sys.executable, "-m", "focalgeo.report", str(again)], check=True, capture_output=True)
    assert (again / "report.html").read_text() == page
    for name in FIGURES:
        assert (again / "figures" / f"{name}.svg").read_bytes() == (workdir / "figures" / f"{name}.svg").read_bytes()


def test_the_page_needs_no_network_and_no_script(finished):
    _, page = finished
    loads = re.findall(r"(?:src|href)=\"([^\"]*)\"|url\(([^)]*)\)|(<script|<link|@import)", page)
    outside = [load for load in loads if not re.match(r"#|data:", "".join(load))]
    assert loads
    assert outside == []


def test_inlined_ids_are_unique_and_every_reference_is_met(finished):
    _, page = finished
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'url\(#([^)]*)\)|href="#([^"]*)"', page)) <= {(i, "") for i in ids} | {("", i) for i in ids}


def test_colours_follow_the_theme(finished):
    _, page = finished
    drawn = page[page.index("<svg ") :]
    assert "var(--blue)" in drawn
    assert not re.search("#(0072b2|d55e00|1c2530|5b6675)", drawn)


def test_numbers_on_the_page_are_the_rows_own(finished):
    workdir, page = finished
    rows = records.read_rows(workdir)
    for name in ("accuracy", "ece", "adaptive_ece"):
        row = latest(rows, {"name": name, "split": "test", "map": "focal_temperature_scaling", "criterion": "ece"})
        assert percent(row["value"]) in page
        assert interval(row["low"], row["high"], scale=100) in page
    assert "python -m focalgeo.run --config=configs/digits.py --workdir=runs/digits" in page
    for text in ("optimizer.learning_rate", "56394", "sha256:9c1f", "0.10.2", "12.3 s"):
        assert text in page


def test_a_page_without_curvature_search_or_final_rows_leaves_them_out(tmp_path):
    records.write_manifest(tmp_path, {})
    records.append_rows(tmp_path, list(training_rows())[:4])
    page = write_report(tmp_path).read_text()
    assert page.count("<svg ") == 3
    assert "holds no final test rows yet" in page
    for heading in ("Curvature of the loss", "Before and after", "Where the calibration maps", "Config"):
        assert heading not in page


def test_text_from_the_manifest_is_escaped(tmp_path):
    records.write_manifest(tmp_path, {**MANIFEST, "config": {"note": "<script>alert(1)</script>"}})
    records.append_rows(tmp_path, [{"name": "loss", "split": "val", "step": 1, "value": 1.0}])
    page = write_report(tmp_path).read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_main_answers_a_bad_workdir_with_one_line_and_exit_code_2(tmp_path, capsys):
    assert main([str(tmp_path / "nowhere")]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert re.fullmatch(r"error: cannot read \S+manifest\.json: No such file or directory; [^\n]*\n", output.err)


@pytest.mark.parametrize(
    ("scaling", "focal", "gamma", "says"),
    [
        ((0.05, 0.04, 0.06), (0.02, 0.01, 0.03), 1.0, "do not overlap: focal temperature scaling is better"),
        ((0.02, 0.01, 0.03), (0.05, 0.04, 0.06), 1.0, "do not overlap: focal temperature scaling is worse"),
        ((0.05, 0.04, 0.06), (0.045, 0.03, 0.05), 1.0, "value is lower, but the two intervals overlap"),
        ((0.05, 0.04, 0.06), (0.055, 0.03, 0.06), 1.0, "value is not lower, but the two intervals overlap"),
        (
            (0.05, 0.04, 0.06),
            (0.05, 0.04, 0.06),
            0.0,
            "chose γ = 0, so focal temperature scaling is temperature scaling",
        ),
    ],
)
def test_the_verdict_claims_no_more_than_the_intervals(ece_rows, scaling, focal, gamma, says):
    assert says in verdict(ece_rows(scaling, focal, gamma), {})[-1]


def test_the_verdict_without_fits_does_not_compare(ece_rows):
    rows = [row for row in ece_rows((0.1, 0, 1), (0.1, 0, 1)) if row["map"] == "uncalibrated"]
    assert verdict(rows, {})[-1] == "Its expected calibration error is 20.00% [15.00,\u00a025.00] as trained."


def test_the_lowest_value_is_bold_and_what_prints_alike_is_alike(ece_rows):
    table = metric_table(ece_rows((0.05, 0.04, 0.06), (0.049999, 0.03, 0.06)), "test")
    ece = next(line for line in table.lines if line.title == "ECE")
    assert [(cell.text, cell.best) for cell in ece.cells] == [("20.00%", False), ("5.00%", True), ("5.00%", True)]
    assert metric_table([], "test") is None


def test_the_last_of_two_equal_rows_counts():
    rows = [{"name": "ece", "split": "test", "map": "uncalibrated", "value": value} for value in (0.3, 0.1)]
    assert metric_table(rows, "test").lines[0].cells[0].text == "10.00%"


def test_curvature_is_told_with_its_errors_and_a_search_that_failed_is_named():
    rows = list(curvature_rows())
    words = curvature_words(rows)
    assert words == (
        "At the trained parameters the focal loss has 0.196 times the largest eigenvalue and 0.218 times the trace of"
        " cross-entropy."
    )
    cells = curvature_table(rows).lines[0].cells
    assert [cell.text for cell in cells] == ["212.4", "± 0.31", "64", "180"]
    failed = curvature_table([{**rows[0], "converged": False}]).lines[0].cells[0]
    assert failed.note == "not converged"


def test_reliability_bars_stand_at_the_accuracy_of_their_bins(finished):
    rows = records.read_rows(finished[0])
    column = Column("temperature_scaling", "ece")
    bins = [
        row
        for row in rows
        if row["name"] == "reliability" and row.get("criterion") == "ece" and row["map"] == column.map
    ]
    figure = reliability_figure(rows, column)
    heights = [patch.get_height() for patch in figure.axes[0].containers[0]]
    np.testing.assert_allclose(heights, [row["value"] for row in bins])
    gaps = [patch.get_height() for patch in figure.axes[0].containers[1]]
    counts = [patch.get_height() for patch in figure.axes[1].containers[0]]
    ece = latest(rows, {"name": "ece", "split": "test", "map": column.map, "criterion": "ece"})
    np.testing.assert_allclose(np.average(gaps, weights=counts), ece["value"], rtol=1e-12)
    assert sum(counts) == ece["n"]
    assert "<svg" in to_svg(figure)


def test_training_loss_in_words():
    assert training_loss({"config": {"loss": {"name": "focal_loss", "gamma": 3.0}}}) == "focal loss, γ\u00a0=\u00a03"
    assert training_loss({"config": {"loss": {"name": "cross_entropy", "gamma": 0.0}}}) == "cross-entropy"
    assert training_loss({}) == "an unnamed loss"


def test_settings_are_dotted_names_in_the_order_written():
    tree = {"b": {"c": [1, 2], "d": None}, "a": 3, "e": []}
    assert settings(tree) == [("b.c", "1, 2"), ("b.d", "none"), ("a", "3"), ("e", "none")]
    assert settings({}) == []
    assert settings({"a": list(range(100))}) == [("a", "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 … (100 in all)")]


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (significant(1843.2), "1,843"),
        (significant(0.012345), "0.01235"),
        (significant(-3.2e-7, 2), "−3.2 × 10⁻⁷"),
        (significant(0.0), "0"),
        (significant(12345678.0, 3), "1.23 × 10⁷"),
        (plain(3000.0), "3,000"),
        (plain(0.05), "0.05"),
        (plain(0.0), "0"),
        (interval(-0.5, 0.25), "[−0.50,\u00a00.25]"),
    ],
)
def test_numbers_as_printed(shown, text):
    assert shown == text
