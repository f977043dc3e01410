"""The page: says what the rows say, is the same bytes each time, needs no network, and copes with missing parts."""

import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from synthetic_workdir import MANIFEST, attribution_rows, curvature_rows, training_rows, write_workdir

from focalgeo import records
from focalgeo.report import Column, curve_figure, reliability_figure, to_svg, write_report
from focalgeo.report.__main__ import main
from focalgeo.report.attribution import attribution_tables, attribution_words
from focalgeo.report.calibration_page import class1_table, group_table
from focalgeo.report.calibration_words import choice_words, group_words
from focalgeo.report.formats import interval, percent, plain, significant
from focalgeo.report.selection import UNCALIBRATED, latest
from focalgeo.report.tables import config_settings, curvature_table, metric_table, phases, settings
from focalgeo.report.unfocalled import unfocalled_words
from focalgeo.report.words import (
    curvature_words,
    interval_words,
    trace_words,
    training_loss,
    training_words,
    verdict,
)
from focalgeo.types import InputError

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
    "training_lambda_max",
    "training_trace",
    "spectral_density_val",
    *(f"diagnostics_{name}" for name in ("nll", "entropy", "true_class_probability", "weight_norm", "gradient_norm")),
    "diagnostics_reliability_train",
    "diagnostics_reliability_val",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "digits"
    write_workdir(workdir)
    return workdir, write_report(workdir).read_text()


def ece_rows(ece, difference=None, *, gamma=1.0, n=359):
    """Final ECE rows: uncalibrated 20%, both maps with the values of `ece`; `difference` is (value, low, high)."""
    first = {"name": "ece", "split": "test", "map": "uncalibrated", "value": 0.2, "low": 0.15, "high": 0.25, "n": n}
    rows = [first]
    for name, value in zip(("temperature_scaling", "focal_temperature_scaling"), ece, strict=True):
        where = {"map": name, "criterion": "ece"}
        rows.append({**first, **where, "value": value, "low": 0.001, "high": 0.1})
        rows.append({"name": "calibration_gamma", "split": "val", **where, "value": gamma})
    if difference:
        ends = dict(zip(("value", "low", "high"), difference, strict=True))
        rows.append({**first, **where, "name": "ece_difference", "against": "temperature_scaling", **ends})
    return rows


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
    for text in ("optimizer.learning_rate", "56394", "sha256:9c1f", "0.10.2", "12.3 s", "22.0 s", "1257 (default)"):
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
    assert re.fullmatch(r"focalgeo: cannot read \S+manifest\.json: No such file or directory; [^\n]*\n", output.err)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give one workdir, for example python -m focalgeo.report runs/digits, or several and --out="),
        (["--what"], "give one workdir, for example python -m focalgeo.report runs/digits, or several and --out="),
        (["a", "b"], "several workdirs need a new folder for the report: --out=runs/together"),
    ],
)
def test_main_answers_other_arguments_with_one_line_and_exit_code_2(arguments, says, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err == f"focalgeo: {says}\n"


@pytest.mark.parametrize(
    ("manifest", "row", "says"),
    [
        ({"config": 3}, {}, "manifest.json is damaged: config is not an object"),
        ({"data": [1]}, {}, "manifest.json is damaged: data is not an object"),
        ({"command": "python"}, {}, "manifest.json is damaged: command is not a list"),
        ({}, {"name": "ece"}, "metrics.jsonl is damaged at row 2: value is missing"),
        ({}, {"value": 1.0}, "metrics.jsonl is damaged at row 2: name is missing"),
        (
            {},
            {"name": "ece", "value": "low"},
            "metrics.jsonl is damaged at row 2: value is missing or of the wrong kind",
        ),
        ({}, {"name": "ece", "value": True}, "row 2: value is missing or of the wrong kind"),
        ({}, {"name": "ece", "value": 0.1, "low": "x"}, "row 2: low is missing or of the wrong kind"),
        ({}, {"name": "reliability", "value": 0.1}, "row 2: bin is missing"),
        ({}, {"name": "seconds", "value": 0.1}, "row 2: phase is missing"),
    ],
)
def test_a_workdir_of_the_wrong_shape_is_one_line_and_exit_code_2(tmp_path, capsys, manifest, row, says):
    records.write_manifest(tmp_path, manifest)
    records.append_rows(tmp_path, [{"name": "loss", "split": "val", "step": 1, "value": 1.0}, *([row] if row else [])])
    assert main([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"focalgeo: [^\n]+\n", error)
    assert says in error


def test_a_search_of_another_shape_is_one_line(tmp_path):
    records.write_manifest(tmp_path, {"config": {"loss": 3, "evaluation": None}})
    records.append_rows(tmp_path, [])
    assert write_report(tmp_path).exists()
    records.write_arrays(
        tmp_path, "search", {"gammas": np.zeros(2), "temperatures": np.ones(3), "ece": np.ones((2, 3))}
    )
    with pytest.raises(InputError, match=r"search\.npz does not hold gammas"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("difference", "says"),
    [
        (
            (-0.01, -0.02, -0.001),
            "−1.00 percentage points, 95% interval [−2.00,\u00a0−0.10]: focal temperature scaling is better",
        ),
        (
            (0.01, 0.001, 0.02),
            "1.00 percentage points, 95% interval [0.10,\u00a02.00]: focal temperature scaling is worse",
        ),
        ((-0.01, -0.02, 0.001), "this test set does not tell the two maps apart"),
        ((0.01, -0.001, 0.02), "this test set does not tell the two maps apart"),
        ((-0.01, -0.01, -0.01), "too few examples here (359)"),
    ],
)
def test_the_verdict_is_that_of_the_paired_difference_alone(difference, says):
    assert says in verdict(ece_rows((0.09, 0.01), difference), {})[-1]
    assert verdict(ece_rows((0.01, 0.09), difference), {})[-1] == verdict(ece_rows((0.09, 0.01), difference), {})[-1]


def test_the_verdict_says_nothing_without_the_paired_difference():
    sentences = verdict(ece_rows((0.09, 0.01)), {})
    assert len(sentences) == 2
    assert sentences[-1].endswith("after focal temperature scaling (γ\u00a0=\u00a01) it is 1.00% [0.10,\u00a010.00].")
    assert verdict(ece_rows((0.09, 0.01))[:1], {})[-1] == (
        "Its expected calibration error is 20.00% [15.00,\u00a025.00] as trained."
    )


def test_the_verdict_with_few_examples_or_gamma_0_does_not_compare():
    apart = (-0.01, -0.02, -0.001)
    assert verdict(ece_rows((0.09, 0.01), apart, n=99), {})[-1] == (
        "There are too few examples here (99) to compare the two maps."
    )
    assert "is better" in verdict(ece_rows((0.09, 0.01), apart, n=100), {})[-1]
    same = verdict(ece_rows((0.05, 0.05), (0.0, 0.0, 0.0), gamma=0.0), {})[-1]
    assert same == "The fit chose γ = 0, so focal temperature scaling is temperature scaling here."


def test_an_interval_without_width_is_not_printed():
    row = {"name": "ece", "split": "test", "map": "uncalibrated", "value": 0.2, "low": 0.2, "high": 0.2, "n": 8}
    assert verdict([row], {})[-1] == "Its expected calibration error is 20.00% as trained."
    assert metric_table([row], "test").lines[0].cells[0] == ("20.00%", "", False)


def test_the_lowest_value_is_bold_and_what_prints_alike_is_alike():
    table = metric_table(ece_rows((0.05, 0.049999), (-0.00123, -0.01, 0.02)), "test")
    ece, difference = (next(line for line in table.lines if line.title == title) for title in ("ECE", "ECE difference"))
    assert [(cell.text, cell.best) for cell in ece.cells] == [("20.00%", False), ("5.00%", True), ("5.00%", True)]
    assert [cell.text for cell in difference.cells] == ["–", "–", "−0.12"]
    assert difference.cells[-1].note == "[−1.00,\u00a02.00]"
    assert metric_table([], "test") is None


def test_the_last_of_two_equal_rows_counts():
    rows = [{"name": "ece", "split": "test", "map": "uncalibrated", "value": value} for value in (0.3, 0.1)]
    assert metric_table(rows, "test").lines[0].cells[0].text == "10.00%"


def test_curvature_is_told_with_its_errors_and_a_search_that_failed_is_named():
    rows = list(curvature_rows())
    ratio = 402.0 / 1843.0
    half = 1.96 * ratio * ((17.5 / 402.0) ** 2 + (61.0 / 1843.0) ** 2) ** 0.5
    assert curvature_words(rows) == (
        f"At the trained parameters the focal loss's trace is {ratio:.3f} times that of cross-entropy"
        f" (approximate 95% interval [{ratio - half:.3f},\u00a0{ratio + half:.3f}], from the two standard errors)."
    )
    assert curvature_words([{key: row[key] for key in row if key != "stderr"} for row in rows]) == ""
    lines = curvature_table(rows).lines
    assert [cell.text for cell in lines[0].cells] == ["212.4", "± 0.31", "64", "180"]
    assert lines[2].cells[2] == ("60", "Hessian products (Hutch++)", False)
    failed = curvature_table([{**rows[0], "converged": False}]).lines[0].cells[0]
    assert failed.note == "not converged"


def test_the_parts_of_curvature_stand_side_by_side(finished):
    _, page = finished
    ((split, table),) = attribution_tables(list(attribution_rows()))
    assert split == "val"
    parts = ["Loss in the logits", "– softmax × weight", "– change of weight", "Network in its parameters"]
    assert [line.title for line in table.lines] == ["Whole", *parts, "By scale alone", "Scale-free trace"]
    losses = ["cross-entropy", "focal loss"]
    assert table.heads == [(of, loss) for of in ("Trace", "Largest eigenvalue") for loss in losses]
    assert [cell.text for cell in table.lines[3].cells] == ["–", "145.0", "–", "16.11"]
    assert table.lines[3].cells[1].note == "± 4.3"
    assert [cell.text for cell in table.lines[6].cells] == ["92.15", "92.15", "–", "–"]
    assert "Where it comes from" in page
    assert "change of weight" in page


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [
        (280, 300, "more than scaling leaves"),
        (-300, -280, "less than scaling leaves"),
        (-3, 3, "which the errors do not tell from scaling"),
    ],
)
def test_whether_the_loss_only_scaled_is_told_by_the_paired_interval(low, high, says):
    rows = [
        row | {"low": low, "high": high} if row.get("part") == "beyond_scaling" else row for row in attribution_rows()
    ]
    first, *others = attribution_words(rows)
    assert first.startswith(
        "Had the focal loss only scaled cross-entropy by its mean weight of 0.060, the trace would be"
    )
    assert says in first
    assert others == [
        "The true class's probability is 0.933 in the median of these 180 examples, 5% lie below 0.741 and 5% above"
        " 0.9949.",
        "In the true logit the focal loss bends more than cross-entropy for 12.0% of them, and downwards for 1.0%.",
    ]


def test_a_difference_that_is_rounding_is_no_finding():
    tiny = {"value": 1e-6, "low": 0.9e-6, "high": 1.1e-6}
    rows = [row | tiny if row.get("part") == "beyond_scaling" else row for row in attribution_rows()]
    assert "nothing but rounding" in attribution_words(rows)[0]


def test_a_loss_without_weight_or_rows_is_told_without_them():
    unweighted = [row for row in attribution_rows() if row["name"] != "mean_weight"]
    assert len(attribution_words(unweighted)) == 2
    ((_, table),) = attribution_tables([row for row in unweighted if row.get("part") in ("whole", "residual")])
    assert [line.title for line in table.lines] == ["Whole", "Network in its parameters"]
    assert (attribution_words([]), attribution_tables([])) == ([], [])


def test_the_trace_is_explained_by_its_method():
    rows = list(curvature_rows())
    assert "two thirds of the Hessian products build a part that is exact" in trace_words(rows)
    plain_rows = [{**row, "method": "hutchinson"} for row in rows]
    assert trace_words(plain_rows).startswith("estimated from random samples")
    assert curvature_table(plain_rows).lines[2].cells[2].note == "Hessian products (Hutchinson)"


def test_the_intervals_are_explained_with_the_runs_own_numbers(finished):
    _, page = finished
    assert "from 60 resamples of the examples: (2 × value − mean of the resamples) ±\u00a01.96 standard" in page
    assert "Both ECEs have 15 bins." in page
    assert interval_words({}).startswith("In brackets, bias-corrected bootstrap 95% intervals: (2")


def rows_of_training(steps, *, loss=1.0):
    return [
        {"name": name, "split": "train", "step": step, "value": value}
        for step in steps
        for name, value in (("loss", loss), ("learning_rate", 0.01))
    ]


def test_a_training_row_is_named_the_mean_of_as_many_batches_as_lie_between_rows():
    few, many, single = (rows_of_training(steps) for steps in (range(20, 101, 20), range(10, 1201, 10), range(1, 9)))
    labels = [[line.get_label() for line in curve_figure(rows, "loss").axes[0].lines] for rows in (few, many, single)]
    assert labels == [
        ["training, mean of 20 batches"],
        ["training, mean of 10 batches", "moving mean of 5 such rows"],
        ["training, single batches"],
    ]
    assert training_words(few).startswith("A training row is the mean of 20 batches,")
    assert training_words(single).startswith("A training row is a single batch,")
    assert training_words([]) == ""


def test_rows_of_another_split_are_no_training_curve(tmp_path):
    records.write_manifest(tmp_path, {})
    records.append_rows(tmp_path, [{"name": "loss", "split": "test", "step": 5, "value": 1.0}])
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
    (ends,) = (lines.get_segments() for lines in figure.axes[0].containers[2][2])
    np.testing.assert_allclose([end[:, 1] for end in ends], [[row["low"], row["high"]] for row in bins])
    assert 1 in figure.axes[1].get_yticks()
    assert "<svg" in to_svg(figure)


def test_training_loss_in_words():
    assert training_loss({"config": {"loss": {"name": "focal_loss", "gamma": 3.0}}}) == "focal loss, γ\u00a0=\u00a03"
    assert training_loss({"config": {"loss": {"name": "cross_entropy", "gamma": 0.0}}}) == "cross-entropy"
    flat = {"config": {"loss": {"name": "mmce", "gamma": 3.0, "trace_penalty": 0.01}}}
    assert training_loss(flat) == "cross-entropy with MMCE, trace penalty\u00a0=\u00a00.01"
    assert training_loss({"config": {"loss": {"name": "flsd_53", "trace_penalty": 0.0}}}) == "FLSD-53"
    for name in ("adafocal_loss", "flsd_53", "scheduled_focal_loss"):  # their gammas are not config.loss.gamma
        assert "γ" not in training_loss({"config": {"loss": {"name": name, "gamma": 3.0}}})
    assert training_loss({}) == "an unnamed loss"


def test_settings_are_dotted_names_in_the_order_written():
    tree = {"b": {"c": [1, 2], "d": None}, "a": 3, "e": []}
    assert settings(tree) == [("b.c", "1, 2"), ("b.d", "none"), ("a", "3"), ("e", "none")]
    assert settings({}) == []
    assert settings({"a": list(range(100))}) == [("a", "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 … (100 in all)")]


def test_a_setting_left_to_its_default_is_shown_as_such_and_a_size_as_the_data_sets():
    config = {
        "data": {"train_size": None, "val_size": 5, "image_size": None},
        "model": {"hidden": None, "drop": "none"},
    }
    assert config_settings({"config": config, "data": {"train": 1079, "val": 5}}) == [
        ("data.train_size", "1079 (default)"),
        ("data.val_size", "5"),
        ("data.image_size", "default"),
        ("model.hidden", "default"),
        ("model.drop", "none"),
    ]
    assert config_settings({}) == []


def test_wall_times_stand_in_the_order_of_the_phases_with_their_total():
    rows = [
        {"name": "seconds", "phase": p, "value": v} for p, v in (("evaluate", 4.0), ("draw", 0.5), ("prepare", 1.0))
    ]
    assert phases(rows) == [("prepare", "1.0 s"), ("evaluate", "4.0 s"), ("draw", "0.5 s"), ("total", "5.5 s")]
    assert phases([rows[0], {**rows[0], "value": 3.0}]) == [("evaluate", "3.0 s")]


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


PLAIN, FOCAL = Column("temperature_scaling", "ece"), Column("focal_temperature_scaling", "ece")


def compared_rows(differences, *, split="test", gamma=1.0, n=359):
    """ECE rows of three maps with the paired differences (low, high) of (map, against)."""
    rows = [{**row, "split": split} if "n" in row else row for row in ece_rows((0.05, 0.04), gamma=gamma, n=n)]
    rows += [{"name": "temperature", "split": "val", **PLAIN.where, "value": 0.5}]
    for (column, against), (low, high) in differences.items():
        ends = {"value": (low + high) / 2, "low": low, "high": high, "n": n}
        rows.append({"name": "ece_difference", "split": split, **column.where, "against": against, **ends})
    return rows


FOCAL_BETTER, FOCAL_ALIKE = (-0.02, -0.01), (-0.02, 0.01)
BETTER, ALIKE, WORSE = (-0.2, -0.1), (-0.1, 0.1), (0.1, 0.2)


@pytest.mark.parametrize(
    ("name", "focal", "before", "starts", "says"),
    [
        (
            "focal_temperature_scaling",
            FOCAL_BETTER,
            BETTER,
            "Use focal temperature scaling (γ\u00a0=\u00a01).",
            "beats",
        ),
        ("temperature_scaling", FOCAL_ALIKE, BETTER, "Use temperature scaling (T\u00a0=\u00a00.5).", "does not beat"),
        ("temperature_scaling", FOCAL_ALIKE, ALIKE, "Use temperature scaling", "not told apart from no map"),
        ("uncalibrated", FOCAL_ALIKE, WORSE, "Leave the outputs as they are", "worse beyond noise"),
    ],
)
@pytest.mark.parametrize("split", ["test", "cross_fit"])
def test_the_map_to_use_is_told_with_its_paired_differences(name, focal, before, starts, says, split):
    column = Column(name, "ece") if name != "uncalibrated" else PLAIN
    differences = {(FOCAL, "temperature_scaling"): focal, (column, "uncalibrated"): before}
    words = " ".join(
        choice_words(compared_rows(differences, split=split), {"map": name, "criterion": "ece"}, split, "ece")
    )
    assert words.startswith(starts)
    assert says in words
    assert "20.00% [15.00,\u00a025.00] as given" in words
    beats = "beats" if focal == FOCAL_BETTER else "does not beat"
    assert words.endswith(f"So focal temperature scaling {beats} plain temperature scaling beyond noise.")


def test_few_examples_or_gamma_0_give_no_verdict_on_the_focal_map():
    differences = {(FOCAL, "temperature_scaling"): FOCAL_BETTER, (PLAIN, "uncalibrated"): BETTER}
    choice = {"map": "temperature_scaling", "criterion": "ece"}
    few = " ".join(choice_words(compared_rows(differences, n=99), choice, "test", "ece"))
    same = " ".join(choice_words(compared_rows(differences, gamma=0.0), choice, "test", "ece"))
    assert few.endswith("There are too few examples here (99) to compare the two maps.")
    assert same.endswith("The fit chose γ = 0, so focal temperature scaling is temperature scaling here.")
    for words in (few, same):
        assert "beyond noise." not in words


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        (BETTER, "Undoing the loss makes it better calibrated, and turns it from underconfident to overconfident"),
        (WORSE, "Undoing the loss makes calibration worse here"),
        (ALIKE, "do not show that the loss itself caused"),
    ],
)
def test_what_the_focal_loss_caused_is_told_by_its_interval(ends, says):
    column = Column("unfocalled", None)
    rows = compared_rows({(column, "uncalibrated"): ends})
    rows.append({"name": "ece", "split": "test", "map": "unfocalled", "value": 0.03, "low": 0.02, "high": 0.04})
    for column, confidence in (("uncalibrated", 0.6), ("unfocalled", 0.8)):
        rows.append(
            {"name": "reliability", "split": "test", "map": column, "value": 0.7, "confidence": confidence, "n": 9}
        )
    words = unfocalled_words(rows, 3.0, "test")
    assert "γ\u00a0=\u00a03. The calibration map" in words[0]
    assert "from 20.00% [15.00,\u00a025.00] to 3.00% [2.00,\u00a04.00]" in words[0]
    assert words[1].startswith(says) or says in words[1]
    assert unfocalled_words([row for row in rows if row["name"] != "ece"], 3.0, "test") == []


def group_row(group, ece, column, name="group_ece"):
    ends = {"value": ece, "low": ece / 2, "high": 2 * ece}
    return {"name": name, "split": "test", **column.where, "group": group, **ends, "n": 90, "group_n": 40}


def test_the_worst_group_is_named_with_its_interval_and_stands_first():
    values = {"north": 0.02, "south": 0.11, "east": 0.05}
    rows = [group_row(group, ece, column) for column in (UNCALIBRATED, PLAIN) for group, ece in values.items()]
    rows += [group_row("south", 0.75, UNCALIBRATED, "group_accuracy")]
    words = group_words(rows, PLAIN, "test")
    assert words.startswith(
        "Worst calibrated after temperature scaling is group “south”: ECE 11.00% [5.50,\u00a022.00]"
    )
    assert "from 40 examples; the largest of 3 groups" in words
    table = group_table(rows, "test", PLAIN)
    assert [line.title for line in table.lines] == ["south", "east", "north"]
    assert [cell.text for cell in table.lines[0].cells] == ["40", "75.00%", "11.00%", "11.00%"]
    assert group_words([], PLAIN, "test") == ""
    assert group_table([], "test", PLAIN) is None


def test_two_kinds_of_ece_stand_side_by_side():
    rows = [{"name": "class1_ece", "split": "test", "map": "uncalibrated", "value": 0.3, "low": 0.2, "high": 0.4}]
    rows += ece_rows((0.05, 0.04))
    table = class1_table(rows, "test", [UNCALIBRATED])
    assert [(line.title, line.cells[0].text) for line in table.lines] == [
        ("Top-label ECE", "20.00%"),
        ("Class-1 ECE", "30.00%"),
    ]
    assert class1_table(ece_rows((0.05, 0.04)), "test", [UNCALIBRATED]) is None


def test_a_calibration_that_is_no_object_is_one_line(tmp_path):
    records.write_manifest(tmp_path, {"calibration": 3})
    records.append_rows(tmp_path, [])
    with pytest.raises(InputError, match="calibration is not an object"):
        write_report(tmp_path)
    records.write_manifest(tmp_path, {"calibration": {}})
    assert "How to apply it" in write_report(tmp_path).read_text()
