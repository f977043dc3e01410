"""The page: says what the rows say, is the same bytes each time, needs no network, and copes with missing parts."""

import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from synthetic_workdir import (
    COLUMNS,
    MANIFEST,
    NAMES,
    SHARE,
    calibration_rows,
    metric_rows,
    reliability_rows,
    training_rows,
    write_workdir,
)

from focalgeo import records
from focalgeo.report import Column, curve_figure, reliability_figure, results_text, to_svg, write_report
from focalgeo.report.__main__ import main
from focalgeo.report.calibration_page import class1_table, group_table
from focalgeo.report.figures import pooled
from focalgeo.report.selection import AS_TRAINED, column_of_each, columns_of, difference, method_colour, metric
from focalgeo.report.style import COLOURS, METHOD_COLOURS, fixed, interval, percent, plain, short, significant
from focalgeo.report.tables import config_settings, metric_table, phases, settings
from focalgeo.report.words import group_words
from focalgeo.rows import Difference, Metric, ReliabilityBin, Scalar, Seconds, select, tagged, to_json
from focalgeo.types import InputError

FIGURES = {
    "reliability_uncalibrated",
    "reliability_temperature_scaling",
    "reliability_focal_temperature_scaling",
    "loss_implied_uncalibrated",
    "loss_implied_loss_implied_map",
    "differences",
    "training_loss",
    "training_accuracy",
    "training_learning_rate",
    "search_ece",
    "search_nll",
    "curvature_lambda_max",
    "curvature_trace",
    "training_lambda_max",
    "training_trace",
    "spectral_density_val",
    *(f"diagnostics_{name}" for name in ("nll", "entropy", "true_class_probability", "weight_norm", "gradient_norm")),
    "diagnostics_reliability_train",
    "diagnostics_reliability_val",
}


REPORT = Path(__file__).parent.parent / "focalgeo" / "report"
LOSS = Scalar("loss", 1.0, split="val", step=1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "digits"
    write_workdir(workdir)
    return workdir, write_report(workdir).read_text()


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
        row = metric(rows, Column("focal_temperature_scaling", "ece"), name)
        assert percent(row.value) in page
        assert interval(row.low, row.high, scale=100) in page
    assert "python -m focalgeo.run --config=configs/digits.py --workdir=runs/digits" in page
    for text in ("optimizer.learning_rate", "56394", "sha256:9c1f", "0.10.2", "12.3 s", "22.0 s", "1257 (default)"):
        assert text in page


def test_a_page_without_curvature_search_or_final_rows_leaves_them_out(tmp_path):
    records.write_manifest(tmp_path, {})
    records.append_rows(tmp_path, training_rows()[:4])
    page = write_report(tmp_path).read_text()
    assert page.count("<svg ") == 3
    assert "holds no final test rows yet" in page
    for heading in ("Curvature of the loss", "Before and after", "Where γ and T were chosen", "Config"):
        assert heading not in page


def test_text_from_the_manifest_is_escaped(tmp_path):
    methods = {"../x": {"title": '"><script>', "criteria": []}}
    records.write_manifest(tmp_path, {**MANIFEST, "config": {"note": "<script>alert(1)</script>"}, "methods": methods})
    records.append_rows(tmp_path, [LOSS, *metric_rows(0.1, method="../x"), *reliability_rows(0.1, method="../x")])
    page = write_report(tmp_path).read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert (tmp_path / "figures" / "reliability__x.svg").exists()


def test_main_answers_a_bad_workdir_with_one_line_and_exit_code_2(tmp_path, capsys):
    assert main([str(tmp_path / "nowhere")]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert re.fullmatch(r"focalgeo: cannot read \S+manifest\.json: No such file or directory; [^\n]*\n", output.err)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give one workdir, for example python -m focalgeo.report runs/digits, or several and --out="),
        (
            ["--what"],
            "--what is no argument: give one workdir, for example python -m focalgeo.report runs/digits, or "
            "several and --out=",
        ),
        (["a", "b"], "several workdirs need a new folder for the report: --out=runs/together"),
    ],
)
def test_main_answers_other_arguments_with_one_line_and_exit_code_2(arguments, says, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err == f"focalgeo: {says}\n"


@pytest.mark.parametrize(
    ("manifest", "row", "says"),
    [
        ({"config": 3}, "", "manifest.json is corrupt: config is not an object"),
        ({"data": [1]}, "", "manifest.json is corrupt: data is not an object"),
        ({"command": "python"}, "", "manifest.json is corrupt: command is not a list"),
        ({"methods": {"vector": 3}}, "", "manifest.json is corrupt: methods.vector is not an object"),
        ({"metrics": {"ece": {"scale": "x"}}}, "", "manifest.json is corrupt: metrics.ece.scale is not a number"),
        ({}, '{"kind": "metric", "name": "ece"}', "metrics.jsonl, line 2: row 'ece' has no value"),
        ({}, '{"name": "ece", "value": 0.1, "map": "uncalibrated"}', "line 2: a row has no kind: it was written by"),
    ],
)
def test_a_workdir_of_the_wrong_shape_is_one_line_and_exit_code_2(tmp_path, capsys, manifest, row, says):
    records.write_manifest(tmp_path, manifest)
    (tmp_path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in (json.dumps(to_json(LOSS)), row) if line))
    assert main([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"focalgeo: [^\n]+\n", error)
    assert says in error


def test_a_search_of_another_shape_is_one_line(tmp_path):
    records.write_manifest(tmp_path, {"config": {}})
    records.append_rows(tmp_path, [])
    assert write_report(tmp_path).exists()
    records.write_arrays(
        tmp_path, "search", {"gammas": np.zeros(2), "temperatures": np.ones(3), "ece": np.ones((2, 3))}
    )
    with pytest.raises(InputError, match=r"search\.npz does not hold gammas"):
        write_report(tmp_path)


def ece_row(method, value, criterion=None, **fields):
    return Metric(
        "ece",
        **{"value": value, "low": 0.001, "high": 0.1, "n": 359, "split": "test", **fields},
        method=method,
        criterion=criterion,
    )


def test_an_interval_without_width_is_not_printed():
    row = ece_row("uncalibrated", 0.2, low=0.2, high=0.2, n=8)
    assert metric_table([row], NAMES, "test").lines[0].cells[0][:3] == ("20.00%", "", False)
    assert metric_table([], NAMES, "test") is None


def compared(column, against, low, high, *, name="ece", against_criterion=None, split="test"):
    ends = {"value": (low + high) / 2, "low": low, "high": high, "p_value": 0.5, "n": 359, "split": split}
    pair = {"method": column.method, "criterion": column.criterion, "against": against.method}
    return Difference(f"{name}_difference", **ends, **pair, against_criterion=against_criterion)


BY_NLL = [Column(name, "nll") for name in ("temperature_scaling", "focal_temperature_scaling", "vector_scaling")]


@pytest.mark.parametrize(
    ("ends", "value", "bold"),
    [
        ({}, 0.03, True),
        ({(2, 1): (-0.02, 0.001)}, 0.03, False),  # the next best is not told apart
        ({(2, 1): None}, 0.03, False),  # nor compared
        ({(2, None): (-0.2, 0.1)}, 0.03, False),
        ({}, 0.09, False),  # another line is better, if of a fit that does not compete
    ],
)
def test_a_value_is_bold_only_where_its_difference_to_every_other_method_is_a_finding(ends, value, bold):
    rows = [ece_row("uncalibrated", 0.2), ece_row("temperature_scaling", 0.06, "ece")]
    rows += [ece_row(each.method, found, "nll") for each, found in zip(BY_NLL, (0.05, 0.04, value), strict=True)]
    pairs = {(2, None): (-0.2, -0.1), (2, 0): (-0.03, -0.01), (2, 1): (-0.02, -0.001), (1, 0): (-0.02, 0.01), **ends}
    for (first, second), found in pairs.items():
        if found is not None:
            rows.append(compared(BY_NLL[first], AS_TRAINED if second is None else BY_NLL[second], *found))
    table = metric_table(rows, NAMES, "test")
    assert [line.cells[0].text for line in table.lines][:3] == ["20.00%", "6.00%", "5.00%"]
    assert [line.cells[0].best for line in table.lines] == [False] * 4 + [bold]


def test_the_highest_accuracy_is_the_best_whichever_of_two_methods_stands_first():
    fitted = BY_NLL[2]
    for values, ends in (((0.9, 0.92), (0.01, 0.03)), ((0.92, 0.9), (-0.03, -0.01))):
        rows = [
            Metric("accuracy", value, split="test", method=column.method, criterion=column.criterion)
            for value, column in zip(values, (AS_TRAINED, fitted), strict=True)
        ]
        rows.append(compared(fitted, AS_TRAINED, *ends, name="accuracy"))
        first, second = metric_table(rows, NAMES, "test").lines
        assert (first.cells[0].best, second.cells[0].best) == (values[0] > values[1], values[0] < values[1])


def test_a_difference_is_found_whichever_method_stands_first_and_only_of_these_fits():
    plain, focal, vector = BY_NLL
    row = compared(vector, plain, -0.03, -0.01)
    assert difference([row], vector, plain) == row
    swapped = difference([row], plain, vector)
    assert (swapped.low, swapped.high, swapped.method, swapped.against) == (0.01, 0.03, plain.method, vector.method)
    assert difference([swapped], plain, vector) == swapped
    assert difference([row], vector, Column(plain.method, "ece")) is None
    assert difference([row], focal, plain) is None
    across = compared(vector, plain, -0.03, -0.01, against_criterion="ece")
    assert difference([across], vector, plain) is None
    assert difference([across], vector, Column(plain.method, "ece")) == across


def test_what_was_fitted_stands_beneath_the_method_and_temperature_scaling_has_no_gamma():
    table = metric_table(calibration_rows(), MANIFEST, "test")
    assert [(line.title, line.note.replace("\u00a0", " ")) for line in table.lines] == [
        ("Uncalibrated", "as trained"),
        ("Temperature scaling", "by ECE, T = 0.42"),
        ("Temperature scaling", "by NLL, T = 0.45"),
        ("Focal temperature scaling", "by ECE, γ = 1, T = 0.8"),
        ("Focal temperature scaling", "by NLL, γ = 0.5, T = 0.6"),
        ("Loss-implied map", "nothing fitted"),
    ]
    assert [title for title, _ in table.heads] == ["Accuracy", "ECE", "Adaptive ECE", "NLL", "Brier score"]


def test_the_metrics_asked_for_are_columns_and_nll_and_brier_score_always():
    rows = calibration_rows()
    for asked, titles in ((["ece"], ["ECE", "NLL", "Brier score"]), (["mce"], ["NLL", "Brier score"]), ("x", [])):
        manifest = {**MANIFEST, "config": {"evaluation": {"metrics": asked}}}
        found = [title for title, _ in metric_table(rows, manifest, "test").heads]
        assert found == (titles or ["Accuracy", "ECE", "Adaptive ECE", "NLL", "Brier score"])


def test_a_method_from_elsewhere_is_a_line_that_says_so():
    rows = [ece_row("uncalibrated", 0.2), ece_row("theirs", 0.03)]
    assert metric_table(rows, NAMES, "test").lines[1].note == "from elsewhere"


def test_the_last_of_two_equal_rows_counts():
    rows = [ece_row("uncalibrated", value) for value in (0.3, 0.1)]
    assert metric_table(rows, NAMES, "test").lines[0].cells[0].text == "10.00%"


def test_columns_and_colours_follow_the_manifest(finished):
    rows = records.read_rows(finished[0])
    named = ("temperature_scaling", "focal_temperature_scaling")
    fitted = [Column(name, criterion) for name in named for criterion in ("ece", "nll")]
    assert columns_of(rows, MANIFEST, "test") == [AS_TRAINED, *fitted, Column("loss_implied_map")]
    assert column_of_each(rows, MANIFEST) == [AS_TRAINED, fitted[1], fitted[3]]
    assert column_of_each(rows, MANIFEST, criterion="ece") == [AS_TRAINED, fitted[0], fitted[2]]


def test_nine_methods_have_nine_colours_and_temperature_scaling_keeps_its_own():
    names = ["uncalibrated", "temperature_scaling", "a", "focal_temperature_scaling", *"bcdef", "loss_implied_map"]
    manifest = {"methods": {name: {} for name in names}}
    colours = [method_colour(manifest, name) for name in names[:-1]]
    assert colours[:4] == ["grey", "blue", "green", "orange"]
    assert len(set(colours)) == len(colours)
    assert set(METHOD_COLOURS) < set(COLOURS)
    assert all(f"--{name}: #" in (REPORT / "base.html").read_text() for name in COLOURS)


VECTOR = {"vector_scaling": {"title": "Vector scaling", "criteria": ["nll"]}}


def test_a_new_method_is_in_tables_differences_and_figures(tmp_path):
    columns = {**COLUMNS, ("vector_scaling", "nll"): (0.005, {"norm_of_scales": 1.25})}
    write_workdir(tmp_path, manifest={**MANIFEST, "methods": {**MANIFEST["methods"], **VECTOR}}, columns=columns)
    page = write_report(tmp_path).read_text()
    line = '<th scope="row">Vector scaling<small>by NLL, norm of scales\u00a0=\u00a01.25</small></th>'
    assert page.count(line) == 2  # on test and on val
    assert (
        "No method has a lower NLL than temperature scaling beyond noise when all 2 are counted as chances; the nearest"
        in page
    )
    assert '<div class="tile green"><span>ECE, vector scaling</span>' in page
    assert (tmp_path / "figures" / "reliability_vector_scaling.svg").exists()
    assert "Vector scaling</text>" in (tmp_path / "figures" / "differences.svg").read_text()
    assert "The methods shown are fitted by NLL." in page
    rows, manifest = records.read_rows(tmp_path), records.read_manifest(tmp_path)
    assert results_text(rows, manifest, "test").splitlines()[-1].startswith("vector scaling by NLL  ")


def test_a_new_metric_is_a_column_of_the_table(tmp_path):
    metrics = {**MANIFEST["metrics"], "smooth_ece": {**SHARE, "title": "Smooth ECE", "note": "no bins"}}
    extra = [Metric("smooth_ece", 0.04, 0.03, 0.05, 360, "test", *column) for column in COLUMNS]
    write_workdir(tmp_path, manifest={**MANIFEST, "metrics": metrics, "config": {}}, extra=extra)
    table = metric_table(records.read_rows(tmp_path), records.read_manifest(tmp_path), "test")
    assert table.heads[-1] == ("Smooth ECE", "no bins")
    assert [line.cells[-1].text for line in table.lines] == ["4.00%"] * 6
    assert "Smooth ECE<small>no bins</small>" in write_report(tmp_path).read_text()


def test_the_results_of_a_terminal_are_those_of_the_page():
    first, second, *others = results_text(calibration_rows(), MANIFEST, "test").splitlines()
    assert first == "on test                            accuracy      NLL      ECE"
    assert second == "uncalibrated                         0.9500   0.2800   0.0567"
    assert [line[:34].strip() for line in others] == [
        "temperature scaling by ECE",
        "temperature scaling by NLL",
        "focal temperature scaling by ECE",
        "focal temperature scaling by NLL",
        "loss-implied map",
    ]
    assert results_text([], MANIFEST, "cross_fit").startswith("on val, cross-fitted  ")


def test_a_long_name_pushes_the_numbers_of_all_lines_aside():
    rows = list(metric_rows(0.1, method="loss_implied_temperature_scaling", criterion="adaptive_ece"))
    head, line = results_text(rows, MANIFEST, "test").splitlines()
    assert line.startswith("loss implied temperature scaling by adaptive ECE   ")
    assert len(head) == len(line)


def rows_of_training(steps, *, loss=1.0):
    values = {"loss": loss, "learning_rate": 0.01}
    return [Scalar(name, value, split="train", step=step) for step in steps for name, value in values.items()]


def test_a_training_row_is_named_the_mean_of_as_many_batches_as_lie_between_rows():
    few, many, single = (rows_of_training(steps) for steps in (range(20, 101, 20), range(10, 1201, 10), range(1, 9)))
    labels = [[line.get_label() for line in curve_figure(rows, "loss").axes[0].lines] for rows in (few, many, single)]
    assert labels == [
        ["training, mean of 20 batches"],
        ["training, mean of 10 batches", "moving mean of 5 such rows"],
        ["training, single batches"],
    ]


def test_rows_of_another_split_are_no_training_curve(tmp_path):
    records.write_manifest(tmp_path, {})
    records.append_rows(tmp_path, [replace(LOSS, split="test")])
    assert "<h2>Training</h2>" not in write_report(tmp_path).read_text()


def test_the_loss_is_on_a_logarithmic_axis_where_it_has_a_logarithm():
    assert curve_figure(rows_of_training((20, 40)), "loss").axes[0].get_yscale() == "log"
    zero = curve_figure(rows_of_training((20, 40), loss=0.0), "loss").axes[0]
    assert (zero.get_yscale(), zero.get_ylabel()) == ("linear", "loss (nats)")


def test_the_learning_rate_is_drawn_from_0_at_the_logged_steps():
    axes = curve_figure(rows_of_training((20, 40)), "learning_rate").axes[0]
    assert axes.get_xlim()[0] == 0
    np.testing.assert_allclose(axes.get_ylim(), [0, 0.011])
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), [[20, 0.01], [40, 0.01]])


def test_reliability_bars_stand_at_the_accuracy_of_their_bins(finished):
    rows = records.read_rows(finished[0])
    column = Column("temperature_scaling", "ece")
    bins = select(rows, ReliabilityBin, name="reliability", **column._asdict())
    figure = reliability_figure(rows, column)
    heights = [patch.get_height() for patch in figure.axes[0].containers[0]]
    np.testing.assert_allclose(heights, [row.value for row in bins])
    gaps = [patch.get_height() for patch in figure.axes[0].containers[1]]
    counts = [patch.get_height() for patch in figure.axes[1].containers[0]]
    ece = metric(rows, column, "ece")
    np.testing.assert_allclose(np.average(gaps, weights=counts), ece.value, rtol=1e-12)
    assert sum(counts) == ece.n
    (ends,) = (lines.get_segments() for lines in figure.axes[0].containers[2][2])
    np.testing.assert_allclose([end[:, 1] for end in ends], [[row.low, row.high] for row in bins])
    assert 1 in figure.axes[1].get_yticks()
    assert "<svg" in to_svg(figure)


def test_settings_are_dotted_names_in_the_order_written():
    tree = {"b": {"c": [1, 2], "d": None}, "a": 3, "e": []}
    assert settings(tree) == [("b.c", "1, 2"), ("b.d", "none"), ("a", "3"), ("e", "none")]
    assert settings({}) == []
    assert settings({"a": list(range(100))}) == [("a", "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 … (100 in all)")]


def test_a_setting_left_to_its_default_is_shown_as_such_and_a_size_as_the_data_sets():
    config = {
        "data": {"train_size": None, "val_size": 5, "image_size": None},
        "model": {"hidden": None, "drop": "none"},
        "evaluation": {"methods": []},
    }
    assert config_settings({"config": config, "data": {"train": 1079, "val": 5}}) == [
        ("data.train_size", "1079 (default)"),
        ("data.val_size", "5"),
        ("data.image_size", "default"),
        ("model.hidden", "default"),
        ("model.drop", "none"),
        ("evaluation.methods", "all"),
    ]
    assert config_settings({}) == []


def test_wall_times_stand_in_the_order_of_the_phases_with_their_total():
    rows = [Seconds("seconds", *each) for each in (("evaluate", 4.0), ("draw", 0.5), ("prepare", 1.0))]
    assert phases(rows) == [("prepare", "1.0 s"), ("evaluate", "4.0 s"), ("draw", "0.5 s"), ("total", "5.5 s")]
    assert phases([rows[0], replace(rows[0], value=3.0)]) == [("evaluate", "3.0 s")]


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
        (fixed(-0.00004, 4), "0.0000"),
        (fixed(-1234.5, 2), "−1,234.50"),
        (interval(-0.5, 0.25), "[−0.50,\u00a00.25]"),
    ],
)
def test_numbers_as_printed(shown, text):
    assert shown == text


PLAIN = Column("temperature_scaling", "ece")


def group_row(group, ece, column, name="group_ece"):
    return Metric(name, ece, ece / 2, 2 * ece, 40, "test", *column, group=group)


def test_the_worst_group_is_named_with_its_interval_and_stands_first():
    values = {"north": 0.02, "south": 0.11, "east": 0.05}
    rows = [group_row(group, ece, column) for column in (AS_TRAINED, PLAIN) for group, ece in values.items()]
    rows += [group_row("south", 0.75, AS_TRAINED, "group_accuracy")]
    words = group_words(rows, NAMES, PLAIN, "test")
    assert words.startswith(
        "Worst calibrated after temperature scaling is group “south”: ECE 11.00% [5.50,\u00a022.00]"
    )
    assert "from 40 examples; the largest of 3 groups" in words
    table = group_table(rows, NAMES, PLAIN, "test")
    assert [line.title for line in table.lines] == ["south", "east", "north"]
    assert [cell.text for cell in table.lines[0].cells] == ["40", "75.00%", "11.00%", "11.00%"]
    assert group_words([], NAMES, PLAIN, "test") == ""
    assert group_table([], NAMES, PLAIN, "test") is None
    assert columns_of(rows, NAMES, "test") == []  # a group's metrics are no method's


def test_two_kinds_of_ece_stand_side_by_side():
    rows = [ece_row("uncalibrated", 0.2)]
    class1 = Metric("class1_ece", 0.3, 0.2, 0.4, split="test", method="uncalibrated")
    table = class1_table([*rows, class1], NAMES, [AS_TRAINED], "test")
    assert [title for title, _ in table.heads] == ["Top-label ECE", "Class-1 ECE"]
    assert [(line.title, [cell.text for cell in line.cells]) for line in table.lines] == [
        ("Uncalibrated", ["20.00%", "30.00%"])
    ]
    assert class1_table(rows, NAMES, [AS_TRAINED], "test") is None


def test_a_calibration_that_is_no_object_is_one_line(tmp_path):
    records.write_manifest(tmp_path, {"calibration": 3})
    records.append_rows(tmp_path, [])
    with pytest.raises(InputError, match="calibration is not an object"):
        write_report(tmp_path)
    records.write_manifest(tmp_path, {"calibration": {}})
    assert "How to apply it" in write_report(tmp_path).read_text()


def test_thousands_of_bins_are_drawn_together():
    edges = np.arange(401) / 400
    bins = [
        ReliabilityBin("reliability", float(number % 2), 0.0, 1.0, number, *edges[number : number + 2], 0.4, 3, "test")
        for number in range(400)
    ]
    figure = reliability_figure(tagged(bins, seed=0), Column(None))
    bars = figure.axes[0].containers[0]
    assert len(bars) == 200
    np.testing.assert_allclose([bar.get_height() for bar in bars], 0.5)
    assert figure.axes[1].get_xlabel() == "confidence (a bar: 2 bins)"
    assert {row.n for row in pooled(bins, 2)} == {6}
    (whole,) = pooled(bins[:2], 2)
    np.testing.assert_allclose((whole.low, whole.high), (0.187617, 0.812383), rtol=1e-3)


def test_names_are_printable_short_and_told_apart():
    assert short("a\nb\u202e\ud800\x00") == "a\\nb\\u202e\\ud800\\x00"
    first, second = short("x" * 100 + "1"), short("x" * 100 + "2")
    assert len(first) <= 64
    assert first != second
    assert short("é ‖W‖\u00a0γ") == "é ‖W‖\u00a0γ"
