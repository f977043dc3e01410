"""Pages: what they show of synthetic rows is golden, the same bytes each time, escaped, and follows the rows."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matplotlib import colors
from matplotlib.collections import LineCollection, PathCollection, QuadMesh
from matplotlib.patches import Polygon
from msgspec.structs import replace
from synthetic_workdir import (
    COLUMNS,
    MANIFEST,
    METHODS,
    calibration_manifest,
    calibration_rows,
    difference,
    member_rows,
    method_rows,
    metric_rows,
    run_rows,
    sweep_manifest,
    write_workdir,
)

from focalgeo.report import (
    Run,
    merge_workdirs,
    results_text,
    sections,
    style,
    sweep,
    sweep_text,
    write_list,
    write_report,
)
from focalgeo.report.__main__ import main
from focalgeo.report.calibration import metric_table
from focalgeo.rows import Metric, Scalar, Trace, encode, tagged
from focalgeo.types import InputError

GOLDEN = Path(__file__).parent / "golden" / "report"
EVIL = '"><script>alert(1)</script>{{ 7 * 7 }}$\\frac$\u202e\x00'
SWEPT = [
    row
    for penalty in (0.0, 0.01)
    for gamma in (0.0, 1.0)
    for seed in (0, 1, 2)
    for row in member_rows(gamma, seed, penalty)
]
TEMPERATURE, FOCAL = ("temperature_scaling", "nll"), ("focal_temperature_scaling", "nll")
VECTOR, NONE = ("vector_scaling", "nll"), ("uncalibrated", None)


def ends(middle, half=0.004):
    return (middle - half, middle + half)


FAR_OUT = difference(TEMPERATURE, "uncalibrated", *ends(-0.5))  # an arrow at the edge
PAGES = {
    "run": ([*run_rows(), FAR_OUT], MANIFEST),
    "sweep": (
        [*SWEPT, Scalar("stopped", 7.0, gamma=2.0, trace_penalty=0.0, seed=1)],
        sweep_manifest(gamma=[2.0, 0.0, 1.0], trace_penalty=[0.0, 0.01]),
    ),
    "calibration": (
        calibration_rows(),
        calibration_manifest(
            trained_gamma=3.0, refused={"vector_scaling": "it may change classes"}, warnings=["careful"]
        ),
    ),
}


def texts(page):
    """The visible lines of a page, ** about what is bold, and the lines of its CSV files."""
    page = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    page = re.sub(r'<svg[^>]*aria-label="([^"]*)".*?</svg>', r"\n[\1]\n", page, flags=re.DOTALL)
    page = re.sub(r'href="data:[^,]*,([^"]*)"', lambda link: f">\n{html.escape(unquote(link[1]))}<a", page)
    page = re.sub(r"</?b>", "**", page)
    page = re.sub(r"</?(?!sub>|code>)[a-z0-9]+\b[^>]*>", "\n", page)
    lines = html.unescape(re.sub(r"<[^>]*>", "", page)).split("\n")
    return [" ".join(line.split(" ")).strip(" ") for line in lines if line.strip(" ")]


def drawn(figure):
    """What the axes of a figure hold, in numbers: four digits of each, and of many the ends and the sum."""

    def short(values):
        values = np.ma.filled(np.ma.asarray(values, float), np.nan).ravel()
        few = values if values.size <= 6 else [values[0], values[-1], np.nansum(values), values.size]
        return " ".join(f"{value + 0.0:.4g}" for value in few)

    for ax in figure.axes:
        yield f"  {ax.get_xlabel()} | {ax.get_ylabel()} | {ax.get_title()} | {ax.get_xscale()} {ax.get_yscale()}"
        yield f"  {short(ax.get_xlim())}, {short(ax.get_ylim())}, {[t.get_text() for t in ax.get_yticklabels()][:4]}"
        for line in ax.lines:
            hues = " ".join(colors.to_hex(hue) for hue in (line.get_color(), line.get_markerfacecolor()))
            style = f"{line.get_label()} {line.get_marker()} {line.get_linestyle()} {hues}"
            yield f"    {style}: {short(line.get_xdata())}; {short(line.get_ydata())}"
        for part in ax.collections:
            if isinstance(part, LineCollection):
                segments = np.concatenate([np.zeros((0, 2)), *(ends for ends in part.get_segments() if len(ends))])
                yield f"    {part.get_label()} intervals: {short(segments[:, 0])}; {short(segments[:, 1])}"
            elif isinstance(part, QuadMesh | PathCollection):
                values = part.get_array() if isinstance(part, QuadMesh) else part.get_offsets()
                hues = "" if isinstance(part, QuadMesh) else " ".join(map(colors.to_hex, part.get_facecolor()))
                yield f"    {part.get_label()} {type(part).__name__} {hues}: {short(values)}"
            else:
                yield f"    band: {short(part.get_paths()[0].vertices)}"
        for container in ax.containers:
            numbers = [(bar.get_x(), bar.get_width(), bar.get_y(), bar.get_height()) for bar in container.patches]
            yield f"    {container.get_label()} bars: {short(np.sum(numbers, 0))}"
        for patch in ax.patches:
            if isinstance(patch, Polygon):
                yield f"    {patch.get_label()} outline: {short(patch.get_xy())}"
        yield from (f"    {text.get_text()} at {short(text.get_position())}" for text in ax.texts[:40])


@pytest.fixture
def figures(monkeypatch):
    """Figures by their files' names; they are made, and not laid out as SVG, which takes most of the time."""
    made = {}

    def to_svg(figure, name):
        made[name] = figure
        return '<svg viewBox="0 0 1 1"></svg>'

    monkeypatch.setattr(style, "to_svg", to_svg)
    return made


def assert_golden(name, lines):
    """Legitimate reasons to change: a sentence, title or table on purpose; a figure's look; matplotlib's limits.

    FOCALGEO_GOLDEN=write python -m pytest tests/test_report.py writes them anew; read the difference.
    """
    path, text = GOLDEN / f"{name}.txt", "\n".join(lines) + "\n"
    if os.environ.get("FOCALGEO_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text.split("\n") == path.read_text(encoding="utf-8").split("\n")


def written(folder, rows, manifest=MANIFEST, **options):
    """The visible lines of a page."""
    return texts(write_report(write_workdir(folder, rows, manifest, **options)).read_text())


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_the_golden_one(name, tmp_path, figures):
    rows, manifest = PAGES[name]
    lines = written(tmp_path, rows, manifest, search=name != "sweep")
    lines.append(sweep_text(rows, manifest) if name == "sweep" else results_text(rows, manifest, "test"))
    with style.styled():  # ticks are made as they are read, by the settings of that moment
        assert_golden(name, lines + [line for file, figure in figures.items() for line in (file, *drawn(figure))])


def of_run(*pairs, gamma=0.5, **fields):
    """A run whose methods have these differences in NLL to temperature scaling."""
    columns = {
        own: (gap, {**fitted, "calibration_gamma": gamma} if own == FOCAL else fitted)
        for own, (gap, fitted) in COLUMNS.items()
    }
    rows = [row for row in method_rows(columns) if not row.name.endswith("_difference")]
    return [*rows, *(difference(own, "temperature_scaling", *ends, **fields) for own, ends in pairs)], MANIFEST


def of_calibration(method, *pairs, test=(), n=360, **entry):
    """A calibration that chose a method, with differences on held-out parts of val and on test."""
    of_event = ("_difference", "class1_ece", "events", "net_benefit_of_all")
    rows = [row for row in calibration_rows() if not row.name.endswith(of_event)]
    held_out = [row for own in COLUMNS for row in metric_rows(0.1, split="cross_fit", method=own[0], criterion=own[1])]
    for split, own in (("cross_fit", pairs), ("test", test)):
        rows += [
            difference(column, against, *ends, name=name, n=n, split=split, p_value=0.08)
            for column, against, ends, name in own
        ]
    return [*rows, *held_out], calibration_manifest(method, **entry)


def guessing(rows, low, manifest=MANIFEST):
    """A run of ten classes whose accuracy as trained is from `low` on."""
    rows = [
        replace(row, value=0.12, low=low, high=0.14)
        if isinstance(row, Metric) and (row.name, row.split, row.method) == ("accuracy", "test", "uncalibrated")
        else row
        for row in rows
    ]
    return rows, {**manifest, "data": {**MANIFEST["data"], "classes": [str(k) for k in range(10)]}}


BETTER, HOLDS_0, WORSE = ends(-0.01), ends(0.001), ends(0.01)
TO_NONE = (TEMPERATURE, "uncalibrated")
VERDICTS = {
    "nothing": ([], MANIFEST),
    "no difference": of_run(),
    "better": of_run((FOCAL, BETTER)),
    "worse": of_run((FOCAL, WORSE)),
    "not told apart": of_run((FOCAL, HOLDS_0)),
    "alike": of_run((FOCAL, (0.0, 0.0))),
    "gamma 0": of_run((FOCAL, (0.0, 0.0)), gamma=0.0),
    "too few": of_run((FOCAL, BETTER), n=99),
    "enough": of_run((FOCAL, BETTER), n=100),
    "one of two": of_run((FOCAL, BETTER), (VECTOR, HOLDS_0)),
    "two of two": of_run((FOCAL, BETTER), (VECTOR, ends(-0.02))),
    "by chance": of_run((FOCAL, BETTER), (VECTOR, HOLDS_0), p_value=0.03),
    "none, one worse": of_run((FOCAL, WORSE), (VECTOR, HOLDS_0)),
    "chosen": of_calibration("temperature_scaling", (*TO_NONE, BETTER, "nll"), test=[(*TO_NONE, BETTER, "nll")]),
    "a plainer one": of_calibration(
        "focal_temperature_scaling",
        (FOCAL, "uncalibrated", BETTER, "nll"),
        (FOCAL, "temperature_scaling", HOLDS_0, "nll"),
        test=[(FOCAL, "uncalibrated", BETTER, "nll"), (FOCAL, "uncalibrated", WORSE, "ece")],
        score_test={"statistic": -3.0, "p_value": 0.00001},
    ),
    "score leaves": of_calibration(
        "uncalibrated",
        (*TO_NONE, HOLDS_0, "nll"),
        test=[(*TO_NONE, BETTER, "nll"), (*TO_NONE, HOLDS_0, "ece")],
        score_test={"statistic": 1.0, "p_value": 0.4},
    ),
    "leaves": of_calibration("uncalibrated", (*TO_NONE, BETTER, "nll"), test=[(*TO_NONE, WORSE, "nll")], split="test"),
    "few": of_calibration("uncalibrated", (*TO_NONE, WORSE, "nll"), test=[(*TO_NONE, WORSE, "nll")], n=99),
    "all refused": of_calibration(
        "uncalibrated",
        (*TO_NONE, WORSE, "nll"),
        refused={name: "too odd" for name in METHODS if name != "uncalibrated"},
    ),
    "at chance": guessing(method_rows(), 0.1),
    "above chance": guessing(method_rows(), 0.101),
    "no test": of_calibration("temperature_scaling", (*TO_NONE, BETTER, "nll"), split="cross_fit"),
    "raises the ECE": of_calibration(
        "temperature_scaling", (*TO_NONE, BETTER, "nll"), (*TO_NONE, WORSE, "ece"), split="test"
    ),
}
FLOOR = Metric("noise_floor", 0.01, 0.0, 0.012, 360, split="test", method=TEMPERATURE[0], criterion="nll")
MANY = VERDICTS["chosen"]  # classes
VERDICTS["two classes"] = [*MANY[0], *calibration_rows()], MANY[1]
VERDICTS["more than chance"] = [*MANY[0], FLOOR], MANY[1]
VERDICTS["no more than chance"] = [*MANY[0], replace(FLOOR, high=0.04)], MANY[1]
BY_CHANCE = [replace(FLOOR, high=0.09), replace(FLOOR, high=0.09, method="uncalibrated", criterion=None)]
VERDICTS["both no more than chance"] = [*MANY[0], *BY_CHANCE], MANY[1]
for side, statistic in (("over", -3.0), ("under", 3.0)):
    rows, manifest = of_calibration("uncalibrated", score_test={"statistic": statistic, "p_value": 0.001})
    evaluation = {**manifest["config"]["evaluation"], "assess": True}
    VERDICTS[f"assessed, {side}confident"] = rows, {**manifest, "config": {"evaluation": evaluation}}
VERDICTS["plain"] = of_calibration(
    "temperature_scaling", (*TO_NONE, BETTER, "nll"), (("stacking", "nll"), "temperature_scaling", HOLDS_0, "nll")
)


def test_verdicts_say_what_intervals_say(tmp_path, figures):
    """The first sentences of a page for each finding."""
    lines = []
    for number, (name, (rows, manifest)) in enumerate(VERDICTS.items()):
        page = write_report(write_workdir(tmp_path / str(number), rows, manifest)).read_text()
        lines.append(f"{name}: {html.unescape(re.search('<p class=.lead.>(.*?)</p>', page, re.DOTALL)[1])}")
    assert_golden("verdicts", lines)
    assert "\nECE on test falls from 5.7% to 3.0%, NLL rises" in results_text(*VERDICTS["more than chance"], "test")


def moved(ece, trace, spread=(0.001, 1.0), seeds=(0, 1, 2)):
    """Rows of seeds: ECE and trace of gamma 0 and what two more gammas add, with so much spread over seeds."""
    rows, of = [], {"stderr": 1.0, "n": 9, "probes": 9, "split": "val", "loss": "cross_entropy"}
    for gamma, by_ece, by_trace in zip(GAMMAS, (0.0, *ece), (0.0, *trace), strict=True):
        for seed in seeds:
            own = (seed - 1) * bool(gamma)
            metrics, value = (
                {"ece": 0.1 + by_ece + own * spread[0], "accuracy": 0.9},
                400.0 + by_trace + own * spread[1],
            )
            found = [Metric(name, number, split="test", method="uncalibrated") for name, number in metrics.items()]
            found += [Trace(name, value, value - 2, value + 2, **of) for name in ("trace", "scale_free_trace")]
            rows += tagged(found, gamma=gamma, seed=seed)
    return rows


def stopping(number):
    """Rows of five seeds of the first and of the last gamma, of whose runs so many stopped."""
    ended = Metric("accuracy", 0.9, split="test", method="uncalibrated")
    frozen = Scalar("stopped", 30.0, step=30, epoch=1.5)
    runs = [(gamma, seed) for gamma in (GAMMAS[0], GAMMAS[-1]) for seed in range(5)]
    return [replace(frozen if gamma and seed < number else ended, gamma=gamma, seed=seed) for gamma, seed in runs]


GAMMAS, FLATTER = (0.0, 2.0, 5.0), (-20.0, -60.0)
SIGNS = {
    # the intervals are Student's of 3 seeds: 4.303 / sqrt(3) times the spread; the scale-free trace is no sign
    "rises where it is flatter": moved((0.02, 0.05), FLATTER),
    "falls where it is sharper": moved((-0.02, -0.05), (20.0, 60.0)),
    "at the last both fall": moved((0.02, -0.05), FLATTER),
    "both rise": moved((0.02, 0.05), (20.0, 60.0)),
    "the interval of ECE holds 0": moved((0.02, 0.05), FLATTER, (0.03, 1.0)),
    "the interval of the trace holds 0": moved((0.02, 0.05), FLATTER, (0.001, 30.0)),
    "one seed": moved((0.02, 0.05), FLATTER, seeds=(0,)),
    "one at chance": [*member_rows(0.0, 1), *guessing(member_rows(0.0, 0), 0.09)[0]],
    # Wilson's intervals, and Fisher's exact test of the first and the last value
    **{f"{number} of 5 stopped": stopping(number) for number in (5, 4, 3, 1)},
}


def test_signs_of_failure_say_what_intervals_say():
    """What each sweep's paragraphs say, one case for each finding."""
    lines, (_, manifest) = [], guessing([], 0.0, sweep_manifest(gamma=list(GAMMAS)))
    for name, rows in SIGNS.items():
        run = Run(rows, manifest)
        of_sweep = sweep.sweep_of(run)
        signs = sweep.signs_of_failure(run, of_sweep, sweep.quantities(run, of_sweep))
        lines.append(f"{name}: {re.sub('<[^>]*>', ' ', signs.unescape())}")
    assert_golden("signs", lines)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = write_workdir(tmp_path_factory.mktemp("runs") / "digits", run_rows(), search=True)
    return folder, write_report(folder).read_text()


@pytest.mark.long
def test_a_page_rebuilt_by_another_process_is_the_same_bytes(finished, tmp_path):
    folder, page = finished
    again = tmp_path / "again"
    shutil.copytree(folder, again, ignore=shutil.ignore_patterns("figures", "report.html"))
    subprocess.run([sys.executable, "-m", "focalgeo.report", str(again)], check=True, capture_output=True)
    assert (again / "report.html").read_text() == page
    figures = [{path.name: path.read_bytes() for path in (of / "figures").iterdir()} for of in (folder, again)]
    assert figures[0] == figures[1]
    assert len(figures[0]) == page.count("<svg ")


def test_a_page_needs_no_network_nor_script_and_follows_the_theme(finished):
    _, page = finished
    loads = re.findall(r"(?:src|href)=\"([^\"]*)\"|url\(([^)]*)\)|(<script|<link|@import)", page)
    assert [load for load in loads if not re.match(r"#|data:", "".join(load))] == []
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert {ref for pair in re.findall(r'url\(#([^)]*)\)|href="#([^"]*)"', page) for ref in pair} <= {*ids, ""}
    assert "var(--blue)" in page
    assert not re.search("#(0072b2|d55e00|1c2530|5b6675)", page[page.index("<svg ") :])


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_no_page_scrolls_sideways_on_a_phone(finished, tmp_path):
    outer = '<title>none</title><iframe width="420" height="900" srcdoc="{}"></iframe><script>onload = () => {{'
    outer += 'document.title = document.querySelector("iframe").contentDocument.documentElement.scrollWidth }}</script>'
    (tmp_path / "outer.html").write_text(outer.format(html.escape(finished[1])))
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/user", "--dump-dom"]
    command = ["chromium", *options, f"file://{tmp_path}/outer.html"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert int(re.search(r"<title>(\d+)</title>", found)[1]) <= 420


def evil(value):
    """The same structure with markup in the place of each text, as a name and as a value."""
    if isinstance(value, dict):
        more = {} if any(isinstance(entry, dict) for entry in value.values()) else {EVIL: EVIL}
        return {name: evil(entry) for name, entry in value.items()} | more
    return [evil(entry) for entry in value] if isinstance(value, list) else EVIL if isinstance(value, str) else value


@pytest.mark.parametrize("name", PAGES)
def test_everything_is_escaped(name, tmp_path):
    """Markup, a template, a turned direction and a NUL in every text of rows and manifest."""
    rows, manifest = PAGES[name]
    fields = ("method", "criterion", "loss", "group", "part", "phase", "split", "against", "estimator")
    rows = rows + [
        replace(row, **{field: EVIL for field in fields if getattr(row, field, None)}) for row in rows[-150:]
    ]
    shown = {**evil(manifest), "metrics": manifest["metrics"]}
    shown["methods"] = {method: {"title": EVIL} for method in (*METHODS, EVIL)}
    shown["config"]["sweep"] = manifest["config"].get("sweep", {})
    if name == "calibration":
        shown["calibration"] = {**manifest["calibration"], "warnings": [EVIL], "refused": {EVIL: EVIL}}
    folder = write_workdir(tmp_path / "w", rows, shown, search=True)
    page = write_report(folder).read_text()
    assert "<script" not in page
    assert "<script" in html.unescape(page)
    assert not {"\u202e", "\x00"} & set(page)
    assert "{{ 7 * 7 }}" in html.unescape(page)
    for path in (folder / "figures").iterdir():
        assert re.fullmatch(r"[A-Za-z0-9,=_-]{1,90}\.svg", path.name)
        ElementTree.parse(path)
    assert {path.suffix for path in folder.iterdir()} == {"", ".json", ".jsonl", ".npz", ".html"}


ROWS = {
    name: [json.loads(encode(row)) for row in rows[:: max(len(rows) // 60, 1)]] for name, (rows, _) in PAGES.items()
}
VALUES = st.one_of(
    st.sampled_from([0, 1, -1.5, 1e-300, 3e38, 2**53, "", EVIL, "test", None]),
    st.floats(allow_nan=False),
    st.text(max_size=8),
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_rows_give_a_page_or_one_line(figures, tmp_path_factory, data):
    name = data.draw(st.sampled_from(sorted(PAGES)))
    folder, manifest = tmp_path_factory.mktemp("fuzz"), json.loads(json.dumps(PAGES[name][1]))
    rows = [dict(row) for row in data.draw(st.lists(st.sampled_from(ROWS[name]), max_size=12))]
    for row in rows:
        row[data.draw(st.sampled_from(sorted(row)))] = data.draw(VALUES)
    part = manifest[data.draw(st.sampled_from(sorted(manifest)))]
    if isinstance(part, dict) and part:
        part[data.draw(st.sampled_from(sorted(part)))] = data.draw(VALUES | st.lists(VALUES, max_size=2))
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code = main([str(folder)])
    written = {path.name for path in folder.iterdir()} - {"manifest.json", "metrics.jsonl"}
    if code == 0:
        assert "<script>" not in (folder / "report.html").read_text()
    assert (code, written - {"figures"}) in ((0, {"report.html"}), (2, set()))


@pytest.mark.parametrize(("high", "bold"), [(-0.1, True), (0.1, False)])
def test_bold_is_better_than_every_other_beyond_noise(high, bold):
    values = {NONE: 0.4, TEMPERATURE: 0.2}
    rows = [Metric("nll", value, split="test", method=own[0], criterion=own[1]) for own, value in values.items()]
    rows.append(difference(TEMPERATURE, "uncalibrated", -0.3, high))
    lines = metric_table(Run(rows, MANIFEST), "test", "Test").lines
    assert [[cell.best for cell in line.cells] for line in lines] == [[False], [bold]]


def test_no_text_of_a_csv_is_a_formula():
    table = sections.Table("=a", [("+b", "")], [sections.Line("-c", "@d", [sections.Cell("–")])])
    assert sections.as_csv(table) == "'=a,,'+b\n'-c,'@d,\n"


def test_a_part_without_rows_is_left_out(tmp_path, figures):
    page = write_report(write_workdir(tmp_path, run_rows()[:4], {})).read_text()
    assert set(figures) == {"training_loss", "training_accuracy", "training_learning_rate"}
    assert "holds no final test rows yet" in page
    assert re.findall("<h2>(.*?)</h2>", page) == ["Training"]


@pytest.mark.parametrize("name", PAGES)
def test_of_rows_that_were_written_twice_the_last_count(name, tmp_path, figures):
    """A part of a job that was killed writes its rows anew."""
    rows, manifest = PAGES[name]
    earlier = [replace(row, value=row.value / 2) for row in rows if not isinstance(row, Scalar)]
    assert written(tmp_path / "twice", [*earlier, *rows], manifest) == written(tmp_path / "once", rows, manifest)


def test_the_curvature_of_one_loss_alone_is_compared_with_no_other(tmp_path, figures):
    for loss, compared in (("cross_entropy", False), ("focal_loss", False), ("", True)):
        rows = [row for row in run_rows() if not loss or getattr(row, "loss", loss) in (loss, None)]
        assert ("focal loss's trace is" in " ".join(written(tmp_path / f"_{loss}", rows))) == compared


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"manifest.json": "[]"},
        {"manifest.json": '{"metrics": 3}', "metrics.jsonl": ""},
        {"manifest.json": "{}", "metrics.jsonl": "", "search.npz": "x"},
    ],
)
def test_what_is_no_workdir_is_one_line(files, tmp_path, capsys):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert main([str(tmp_path)]) == 2
    output = capsys.readouterr()
    assert re.fullmatch(r"focalgeo: [^\n]+\n", output.err)
    assert output.out == ""
    assert {path.name for path in tmp_path.iterdir()} == set(files)


@pytest.mark.parametrize(
    "arguments", [[], ["--what"], ["a", "b"], ["a", "--out=b", "--out=c"], ["w" * 5000], ["a\x00"]]
)
def test_bad_arguments_are_one_line(arguments, capsys):
    assert main(arguments) == 2
    assert re.fullmatch(r"focalgeo: [^\n]{1,600}\n", capsys.readouterr().err)


def test_nothing_is_written_through_a_link(tmp_path):
    folder = write_workdir(tmp_path / "w", run_rows())
    (tmp_path / "elsewhere").mkdir()
    (folder / "figures").symlink_to(tmp_path / "elsewhere")
    assert main([str(folder)]) == 2
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_of_runs_is_listed_newest_first_with_what_differs(tmp_path, figures, capsys):
    config = MANIFEST["config"]
    for name, created, gamma in (("deep/new", "2026-01-02", 1.0), ("old", "2026-01-01", 3.0)):
        manifest = {**MANIFEST, "created": created, "config": {**config, "loss": {**config["loss"], "gamma": gamma}}}
        write_workdir(tmp_path / name, method_rows(), manifest)
    write_report(tmp_path / "deep/new")
    for name in ("sweep", "calibration"):
        write_workdir(tmp_path / name, *PAGES[name])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{")
    assert main([str(tmp_path)]) == 0
    page = (tmp_path / "index.html").read_text()
    assert '<a href="deep/new/report.html">deep/new</a>' in page
    assert_golden("index", [line.replace(str(tmp_path), "RUNS").replace(tmp_path.name, "RUNS") for line in texts(page)])
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(InputError, match="another's page"):
        write_list(tmp_path)


def shards(folder, **changes):
    """Two workdirs with a seed each of one sweep."""
    for seed in (0, 1):
        rows = [row for gamma in (0.0, 1.0) for row in member_rows(gamma, seed)]
        write_workdir(
            folder / f"{seed}", rows, {**sweep_manifest(seed=[seed]), "shard": f"{seed}/2", **(changes if seed else {})}
        )
    return [folder / "0", folder / "1"]


@pytest.mark.parametrize(
    "changes", [{"data": {"checksum": "x"}}, {"config": {**sweep_manifest()["config"], "seed": 9}}]
)
def test_workdirs_of_other_sweeps_are_refused(changes, tmp_path, capsys):
    assert main([*map(str, shards(tmp_path, **changes)), f"--out={tmp_path / 'm'}"]) == 2
    assert "is no part of the sweep of" in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


def test_a_member_that_two_hold_and_a_folder_in_use_are_refused(tmp_path):
    first, second = shards(tmp_path)
    for folders, out, says in (
        ([first, first], "m", "both hold the run with"),
        ([first, second], "0", "something else"),
    ):
        with pytest.raises(InputError, match=says):
            merge_workdirs(folders, tmp_path / out)
