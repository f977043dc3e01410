"""The page of the calibrate command from rows alone: forest plots, classes, the surface, and its width on a phone."""

import html
import re
import shutil

import numpy as np
import pytest
from hostile.pages import scroll_width
from synthetic_workdir import COLUMNS, MANIFEST, calibration_rows, search_arrays, write_workdir

from focalgeo import records
from focalgeo.report import Column, surface_figure, write_report
from focalgeo.report.figures import reliability_figure, small_reliability_figure
from focalgeo.report.forest import (
    MOST_CLASSES,
    class_gap_figure,
    class_gap_words,
    class_gaps,
    difference_entries,
    differences_figure,
)
from focalgeo.report.selection import AS_TRAINED
from focalgeo.report.style import COLOURS, to_svg
from focalgeo.rows import Difference, Fit, Metric

PLAIN, FOCAL, VECTOR = (Column(f"{name}_scaling", "nll") for name in ("temperature", "focal_temperature", "vector"))
METHODS = {**MANIFEST["methods"], "vector_scaling": {"title": "Vector scaling", "criteria": ["nll"]}}
CHOICE = {"method": PLAIN.method, "criterion": "nll", "parameters": {"temperature": 0.45, "biases": [0.5] * 1000}}
CALIBRATION = {
    "split": "test",
    "criterion": "nll",
    "choice": CHOICE,
    "level": 0.05 / 7,
    "refused": {FOCAL.method: "its NLL is worse than temperature scaling's beyond noise"},
    "beaten": {AS_TRAINED.method: PLAIN.method},
    "warnings": ["Val and test differ in their class shares beyond noise."],
}
MANIFEST_OF_CALIBRATION = {**MANIFEST, "methods": METHODS, "calibration": CALIBRATION}


def compared(column, against, low, high, *, name="nll", split="test"):
    ends = {"value": (low + high) / 2, "low": low, "high": high, "p_value": 0.01, "n": 359, "split": split}
    pair = {"method": column.method, "criterion": column.criterion, "against": against.method}
    return Difference(f"{name}_difference", **ends, **pair)


def pairs(split="test"):
    ends = {(PLAIN, AS_TRAINED): (-0.3, -0.2), (FOCAL, PLAIN): (-0.001, 0.004), (VECTOR, PLAIN): (-0.01, -0.002)}
    return [compared(*pair, *end, name=name, split=split) for pair, end in ends.items() for name in ("nll", "ece")]


def gaps(column, *, n=400, classes=20, off=()):
    """Class gaps of half a standard error, and of `off` of 6."""
    for k in range(classes):
        value = (6 if k in off else 0.5) * 0.01 * (-1) ** k
        ends = {"low": value - 1.96 * 0.01, "high": value + 1.96 * 0.01}
        yield Metric("class_gap", value, n=n, split="test", group=str(k), **ends, **column._asdict())


def rows_of_calibration():
    columns = {**COLUMNS, tuple(VECTOR): (0.005, {"temperature": 0.45})}
    rows = [row for row in calibration_rows(columns) if not isinstance(row, Difference)]
    held_out = [row._replace(split="cross_fit") for row in rows if isinstance(row, Metric) and row.split == "test"]
    return [*rows, *held_out, *pairs(), *pairs("cross_fit"), *gaps(AS_TRAINED, off=(3, 4)), *gaps(PLAIN, off=(4,))]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "mine"
    records.write_manifest(workdir, MANIFEST_OF_CALIBRATION)
    records.append_rows(workdir, rows_of_calibration())
    records.write_arrays(workdir, "search", search_arrays())
    return write_report(workdir).read_text()


def test_the_page_says_at_which_level_the_choice_was_made(page, tmp_path):
    says = "counts as better than another at one-sided p\u00a0&lt;\u00a00.0071, which is 0.05 / the number of"
    assert page.count(says) == 1
    before = {name: value for name, value in CALIBRATION.items() if name != "level"}
    records.write_manifest(tmp_path, {**MANIFEST_OF_CALIBRATION, "calibration": before})
    records.append_rows(tmp_path, rows_of_calibration())
    assert "one-sided" not in write_report(tmp_path).read_text()


def test_the_surface_is_drawn_where_the_focal_map_was_fitted_on_it(page, tmp_path):
    assert "ECE over γ and T" in page
    records.write_manifest(tmp_path, MANIFEST_OF_CALIBRATION)
    rows = [row for row in rows_of_calibration() if FOCAL.method not in (row.method, getattr(row, "against", ""))]
    records.append_rows(tmp_path, rows)
    records.write_arrays(tmp_path, "search", search_arrays())
    assert "over γ and T" not in write_report(tmp_path).read_text()


def test_differences_are_those_to_temperature_scaling_in_the_order_of_the_methods():
    entries = difference_entries(rows_of_calibration(), MANIFEST_OF_CALIBRATION, "test", "nll")
    assert [entry.title for entry in entries] == ["Uncalibrated", "Focal temperature scaling", "Vector scaling"]
    assert [entry.rows["nll", "test"].low for entry in entries] == [0.2, -0.001, -0.01]
    assert set(entries[0].rows) == {(name, split) for name in ("nll", "ece") for split in ("test", "cross_fit")}
    assert difference_entries([], MANIFEST_OF_CALIBRATION, "test", "nll") == []


def test_a_fit_by_another_criterion_says_so():
    other = Column(VECTOR.method, "ece")
    row = compared(other, PLAIN, -0.01, 0.01)._replace(against_criterion="nll")
    rows = [*rows_of_calibration(), row, Metric("nll", 0.3, split="test", **other._asdict())]
    titles = [entry.title for entry in difference_entries(rows, MANIFEST_OF_CALIBRATION, "test", "nll")]
    assert titles[-2:] == ["Vector scaling", "Vector scaling, by ECE"]


def test_the_plot_of_differences_has_a_panel_each_and_far_rows_are_arrows():
    figure = differences_figure(rows_of_calibration(), MANIFEST_OF_CALIBRATION, "test", criterion="nll")
    first, second = figure.axes
    assert (first.get_xlabel(), second.get_xlabel()) == ("NLL, nats", "ECE, percentage points")
    assert first.get_title("left") == "← better"
    assert first.get_xlim()[1] == pytest.approx(1.12 * 0.01)
    names = [text for text in second.texts if text.get_text() in ("Uncalibrated", "Vector scaling")]
    assert len(names) == 2
    assert not any(text.get_in_layout() for text in names)  # a long one would take the panels' width
    assert "+0.2500" in {text.get_text() for text in first.texts}
    marks = [line.get_color() for line in first.lines if line.get_marker() == "o"]
    assert marks.count(COLOURS["green"]) == marks.count(COLOURS["grey"]) == 2
    assert "<svg" in to_svg(figure)
    assert differences_figure([], MANIFEST_OF_CALIBRATION, "test", criterion="nll") is None


def test_without_test_every_difference_is_drawn_once():
    rows = [row for row in rows_of_calibration() if getattr(row, "split", None) != "test"]
    figure = differences_figure(rows, MANIFEST_OF_CALIBRATION, "cross_fit", criterion="nll")
    assert len([line for line in figure.axes[0].lines if line.get_marker() == "o"]) == 2


def test_classes_are_counted_against_chance_and_the_farthest_off_are_drawn():
    rows = [*gaps(AS_TRAINED, off=(3, 4)), *gaps(PLAIN, off=(4,)), *gaps(VECTOR)]
    found = class_gaps([*rows, Fit("temperature", 1.0, 9, "val", *PLAIN)], MANIFEST, "test", VECTOR, "nll")
    assert next(iter(found.rows)) == AS_TRAINED
    assert VECTOR in found.rows
    assert set(found.classes[:2]) == {"3", "4"}
    assert found.threshold == pytest.approx(3.0233, abs=1e-3)  # of 0.05 / 20, two-sided
    measured = [*rows, Metric("nll", 0.2, split="test", **PLAIN._asdict())]
    found = class_gaps(measured, {**MANIFEST, "methods": METHODS}, "test", VECTOR, "nll")
    assert class_gap_words(measured, {"methods": METHODS}, found) == (
        "Of 20 classes, so many have an interval that leaves out 0: 2 as given, 1 after temperature scaling, 0 after "
        "vector scaling; by chance 1."
    )
    names = dict.fromkeys(found.rows, "x")
    figure = class_gap_figure(found, dict.fromkeys(found.rows, "blue"), names)
    assert len(figure.axes[0].get_yticks()) == MOST_CLASSES
    filled = [line for line in figure.axes[0].lines if line.get_marker() == "o" and len(line.get_xdata()) == 1]
    assert len(filled) == 3 * MOST_CLASSES
    assert sum(line.get_markerfacecolor() == COLOURS["blue"] for line in filled) == 3
    assert class_gap_words([], {}, class_gaps([], {}, "test", PLAIN, "nll")) == ""


def test_a_fit_between_rows_of_the_grid_is_marked_between_them():
    rows = [Fit("calibration_gamma", 1.5, 9, "val", *FOCAL), Fit("temperature", 0.9, 9, "val", *FOCAL)]
    figure = surface_figure(rows, search_arrays(), "nll")
    (star,) = [line for line in figure.axes[0].lines if line.get_marker() == "*"]
    assert star.get_ydata() == [2.5]  # gammas 0, 0.5, 1, 2, ...


def test_many_diagrams_are_small_and_without_numbers():
    rows = rows_of_calibration()
    large, small = (draw(rows, PLAIN) for draw in (reliability_figure, small_reliability_figure))
    assert small.get_figwidth() < large.get_figwidth()
    assert (len(large.legends), len(small.legends)) == (1, 0)
    assert len(large.axes[1].texts) > len(small.axes[1].texts) == 0
    np.testing.assert_array_equal(*(f.axes[0].lines[-1].get_xydata() for f in (large, small)))


def test_nothing_but_verdict_and_warnings_stands_before_the_first_picture(page):
    before = page[page.index("<body>") : page.index("<section")]
    texts = [html.unescape(text) for text in re.findall(r"<(?:p|li)\b[^>]*>(.*?)</(?:p|li)>", before, re.DOTALL)]
    verdict, warning = texts
    assert verdict.count(". ") == 1
    assert verdict.startswith(
        "Use temperature scaling (T\u00a0=\u00a00.45): on held-out parts of val it is better than no"
    )
    assert (
        "The test set agrees (NLL\u00a0−0.2500\u00a0nats [−0.3000,\u00a0−0.2000], ECE\u00a0−25.00 percentage" in verdict
    )
    assert warning == CALIBRATION["warnings"][0]
    assert page.index("<svg ") < page.index("<table>")
    between = page[page.index("<section") : page.index("<table>")]
    unfolded = re.sub(r"<details>.*?</details>", "", between, flags=re.DOTALL)
    assert [text for text in re.findall(r"<p\b[^>]*>(.*?)</p>", unfolded) if not text.startswith("Scroll")] == []


def test_the_page_has_each_part_and_one_verdict_alone(page):
    parts = ["Before and after calibration", "Is a method better than temperature scaling?", "Class by class"]
    places = [page.index(f"<h2>{heading}") for heading in [*parts, "Where γ and T were chosen", "How to apply it"]]
    assert places == sorted(places)
    assert "<small><b>chosen</b>, by NLL, T\u00a0=\u00a00.45</small>" in page
    assert "Not recommended: focal temperature scaling (its NLL is worse" in page
    assert page.count("to use") + page.count("Use ") == 2  # the verdict, and how it was chosen
    assert "1,000 numbers" in page
    assert re.sub(r'aria-label="[^"]*"', "", page).count("0.5, 0.5") == 0  # of a matrix not its numbers


def test_an_older_folder_without_evidence_is_drawn(tmp_path):
    manifest = {**MANIFEST, "calibration": {"choice": {"method": FOCAL.method, "criterion": "ece"}, "criterion": "ece"}}
    write_workdir(tmp_path, manifest=manifest)
    text = write_report(tmp_path).read_text()
    assert 'class="lead">Use focal temperature scaling (γ\u00a0=\u00a01, T\u00a0=\u00a00.8).' in text
    assert "<h2>Class by class" not in text


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_the_page_does_not_scroll_sideways_on_a_phone(page, tmp_path):
    assert 300 < scroll_width(page, tmp_path) <= 420
