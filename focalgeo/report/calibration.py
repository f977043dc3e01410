"""Calibration methods on a page: their tables, diagrams and differences, and the page of `focalgeo.calibrate`.

A method is chosen on val and measured on test, and the sentences keep the two apart.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from focalgeo import formulas
from focalgeo.report import row_figures, sections
from focalgeo.report.sections import Cell, Line, Panel, Section, Table, joined, measurements, metric_cell, say
from focalgeo.report.selection import (
    AS_TRAINED,
    BY_NLL,
    ECE,
    FOCAL,
    HELD_OUT,
    LOSS_IMPLIED,
    NLL,
    Column,
    Rows,
    Run,
    criterion_title,
    difference_text,
    finding,
    latest,
    latest_by,
)
from focalgeo.report.style import short
from focalgeo.rows import LEAST_EXAMPLES, Metric, Title
from focalgeo.types import KEEP_RANKING, METRIC_OF

PRINTED = ("accuracy", "ece", "noise_floor", "nll")  # in a terminal, of all metrics
_FLOOR = ECE._replace(title="Noise floor", note="ECE if calibrated", best="middle")
_TITLES = {  # of rows that are no metrics of the manifest, and of those that have another title here
    "noise_floor": _FLOOR,
    "class1_ece": ECE._replace(title="ECE of P(1)", note="equal-width bins"),
    "class1_noise_floor": _FLOOR,
    "calibration_slope": Title("Slope", note="calibrated: 1", digits=3, best="middle"),
    "calibration_intercept": Title("Intercept", note="slope held at 1; calibrated: 0", digits=3, best="middle"),
    "auroc": Title("AUROC", note="of P(1)", digits=3, best="high"),
    "binary_brier": Title("Brier score", note="of P(1)"),
    "events": Title("Events", note="of class 1", digits=0),
}
_OF_EVENT = (
    "class1_ece",
    "class1_noise_floor",
    "calibration_slope",
    "calibration_intercept",
    "auroc",
    "binary_brier",
    "nll",
)
_CODE = """\
import numpy as np
from focalgeo.calibration import read_calibrator
from focalgeo.data.logits_files import Keys, read_outputs

new = read_outputs({outputs!r}, {keys}, where="new"{floor})
calibrator = read_calibrator({path!r})
probs = np.exp(calibrator.predict_log_proba(new.logits, new.group))  # [examples, classes]
np.savetxt("calibrated.csv", probs, delimiter=",")
"""
_PRE = Markup('<pre id="{}">{}</pre>')
LEVEL = 0.05  # two-sided, of the score test, or of one difference alone


def metric_table(run: Run, split: str, corner: str, *, names: Sequence[str] = ()) -> Table:
    """Return a line for each fit of each method on one split, and a column for each metric.

    Bold is a value that is significantly better than every other method's by the run's criterion, and of no line
    worse.
    names: of metrics; else those asked for, NLL and Brier score, of two classes without those of P(1).
    """
    known = run.metrics | _TITLES
    if not names:
        wanted = {*(run.setting("evaluation.metrics") or run.metrics), "nll", "brier"}
        wanted -= {*_OF_EVENT, "brier"} if run.is_binary else set()
        names = [each for name in run.metrics if name in wanted for each in (name, *["noise_floor"] * (name == "ece"))]
    titles = {name: known[name] for name in names if name in known}
    rows = {column: {name: run.metric(column, name, split) for name in titles} for column in run.columns(split)}
    chosen = run.chosen if len(rows) > 1 else None  # of one line nothing was
    lines = [
        (run.method_title(column), _fit_note(run, column), of_names, "chosen" if column == chosen else "")
        for column, of_names in rows.items()
    ]
    bold = []
    for name, title in titles.items():
        values = {column: of_names[name].value for column, of_names in rows.items() if of_names[name]}
        if values and title.best != "middle":
            best = (min if title.best == "low" else max)(values, key=values.get)
            others = values.keys() & {*run.column_of_each(split)} - {best}
            if {finding(run.difference(name, split, best, other), title.best) for other in others} == {"better"}:
                bold.append(rows[best][name])
    return measurements(corner, titles, lines, bold)


def _fit_note(run, column):
    """By what a method was fitted, and the numbers found."""
    if column.criterion:
        by = f"by {criterion_title(column.criterion)}"
    else:
        by = "nothing fitted" if column == AS_TRAINED or column.method in run.methods else "from elsewhere"
    title = run.fitted_title(column)
    same = f"that is {title.lower()}" if title != run.method_title(column) else ""
    return joined(by, *run.fitted_values(column), same)


def results_text(rows: Rows, manifest: Mapping[str, Any], split: str) -> str:
    """Return the main metrics of each method as plain text, those of several tests, and what is decided."""
    run = Run(rows, manifest)
    fitted = "" if run.setting("evaluation.assess") else ", cross-fitted"
    corner = f"on val{fitted}" if split == HELD_OUT else f"on {split}"
    names = ("class1_ece", *_OF_EVENT[2:], "accuracy", "ece") if run.is_binary else PRINTED
    tables, words = [metric_table(run, split, corner, names=names)], Markup()
    if run.chosen:
        tests = _tests_section(run)
        parts = tests, _benefit_section(run), _decision_section(run)
        words = Markup().join([say("event", run=run), *(part.words for part in parts), verdict(run)])
        tables = [*tables, *tests.tables]
    sentences = filter(None, (sentence.striptags() for sentence in words.split("</p>")))
    return "\n".join(["\n\n".join(map(sections.as_text, tables)), *sentences])


def _reliability_panels(run, columns, name="reliability", *, file=""):
    """Return a reliability diagram for each column that has bins `name`."""
    return [
        Panel(
            f"{file or name}_{column.method}",
            run.method_title(column),
            row_figures.diagram(bins, colour=run.method_colour(column)),
        )
        for column in columns
        if (bins := row_figures.bins_of(run.rows, column, split=run.measured_on, name=name))
    ]


def reliability_section(
    run: Run, title: str = "When it says 80%, is it right 80% of the time?", name: str = "reliability"
) -> Section:
    """Return the diagrams of the methods; "class1_reliability" are those of P(1)."""
    columns = run.column_of_each()
    fitted = [(run.method_title(of).lower(), criterion_title(of.criterion)) for of in columns if of.criterion]
    return Section(
        title,
        figures=_reliability_panels(run, columns, name),
        notes=say("reliability", run=run, fitted=fitted, event=name != "reliability"),
        layout="diagrams",
        opening=run.method_title(run.chosen) if run.chosen else "",
    )


def difference_section(run: Run) -> Section:
    """Return the plots of differences to temperature scaling."""
    plain = run.fitted_title(row_figures.reference(run) or AS_TRAINED).lower()
    return Section(
        "Is a method better than temperature scaling?",
        figures=[
            Panel(
                f"differences_{of.title.lower()}", f"{of.title} minus that of {plain}", row_figures.differences(run, of)
            )
            for of in ((NLL,) if run.is_binary else (NLL, ECE))
        ],
        notes=say("differences", run=run),
        layout="wide",
    )


def loss_implied_section(run: Run, gamma: float | None) -> Section:
    """Return what the loss-implied map says of the miscalibration that the focal loss itself caused."""
    columns, split = (AS_TRAINED, Column(LOSS_IMPLIED)), run.measured_on
    row = run.difference("ece", split, *reversed(columns))
    if gamma is None or row is None:
        return Section("")
    bins = [row_figures.bins_of(run.rows, column, split=split) for column in columns]
    return Section(
        "Loss-implied map: what the training loss did",
        say(
            "loss_implied",
            gamma=gamma,
            eces=[run.metric(column, "ece") for column in columns],
            run=run,
            row=row,
            # Confidence less accuracy, summed over the examples: above 0 is overconfident.
            gaps=[sum(of.n * (of.confidence - of.value) for of in rows) for rows in bins],
        ),
        figures=_reliability_panels(run, columns, file="loss_implied"),
    )


def search_section(run: Run, search: Mapping[str, Any]) -> Section:
    """Return the surface of each criterion over (gamma, T)."""
    panels = [
        Panel(
            f"search_{title.title.lower()}",
            f"{title.title} over γ and T",
            row_figures.search_surface(run, search, title),
        )
        for title in ((ECE, NLL) if search else ())
    ]
    return Section("Where γ and T were chosen", figures=panels, notes=say("search"), layout="wide")


def compared_section(run: Run, table: Table, notes: Markup, *parts: Section) -> Section:
    """Return a table of metrics with what is bold in it and whether methods may change the accuracy."""
    kept = all(run.entry(f"methods.{column.method}.keeps_class") for column in run.columns())
    words = say("bold", criterion=criterion_title(run.criterion), kept=kept, table=table)
    title = "Before and after calibration" if len(table.lines) > 1 else "Without calibration"
    return Section(title, tables=[table], notes=words + notes, parts=parts)


def _judge(run):
    """The name and the title of the metric by which a method was chosen."""
    name = METRIC_OF.get(run.criterion, run.criterion)
    return name, run.metrics[name]


def verdict(run: Run) -> Markup:
    """Return the lead: metrics before and after, the method to use with its evidence, and what speaks against it."""
    entry, chosen, (metric, title) = run.manifest["calibration"], run.chosen, _judge(run)
    test, plainest = entry.get("score_test"), Column(**entry["plainest"])
    fitted = [column for column in run.column_of_each(HELD_OUT) if column.criterion]
    # the method to use is held against none; where none is the choice, it is held against the first method fitted
    against = [*fitted, AS_TRAINED][0] if chosen == AS_TRAINED else AS_TRAINED
    row, cost = (run.difference(metric, HELD_OUT, *pair) for pair in ((chosen, against), (plainest, chosen)))
    eces, floors, by_chance = zip(*(_of_chance(run, of) for of in (AS_TRAINED, chosen)), strict=True)
    nlls = [run.metric(of, "nll") for of in (AS_TRAINED, chosen)]
    return say(
        "calibrated",
        run=run,
        least=LEAST_EXAMPLES,
        numbers={
            name: (*of, all(by_chance) and of is eces)  # neither is more than chance
            for name, of in ((_ece_title(run), eces), ("NLL", nlls))
            if None not in of and of[0].n >= LEAST_EXAMPLES
        },
        ece=eces[1],
        floor=floors[1],
        test=test,
        refuted=test and test["p_value"] < LEVEL,
        refused=len(entry["refused"]) >= len(fitted),
        row=row,
        title=title,
        simpler=plainest,
        cost=cost,
        ranks=plainest.method in KEEP_RANKING,
        mixture=run.difference(metric, HELD_OUT, Column("stacking", "nll"), chosen),
        against=against,
    )


def _ece_title(run):
    return "ECE of P(1)" if run.is_binary else "ECE"


def _of_chance(run, column):
    """The ECE of a column, of two classes that of P(1), its noise floor, and whether chance alone may explain it."""
    names = ("class1_ece", "class1_noise_floor") if run.is_binary else ("ece", "noise_floor")
    row, floor = (run.metric(column, name) for name in names)
    return row, floor, bool(row and floor and row.value <= floor.high)


def _tiles(run):
    """The ECE as given and after the methods to use; what chance may explain is grey and says so."""
    for column in dict.fromkeys((AS_TRAINED, run.chosen, Column(**run.manifest["calibration"]["plainest"]))):
        row, floor, by_chance = _of_chance(run, column)
        if row:
            note = f"no more than chance: up to {floor.high:.2%} if calibrated" if by_chance else ""
            yield (
                f"{_ece_title(run)}, {run.in_text(column)}",
                metric_cell(row, ECE),
                "grey" if by_chance else run.method_colour(column),
                note,
            )


def write_calibration(path: Path, run: Run, search: Mapping[str, Any]) -> Path:
    """Write the page of a calibration: which method to use, how sure that is, and how to apply it."""
    entry, split = run.manifest["calibration"], run.measured_on
    is_focal = FOCAL in [column.method for column in run.column_of_each()]
    corner = "Test split" if split != HELD_OUT else "Val" if run.setting("evaluation.assess") else "Cross-fitted"
    asked = [_tests_section(run), _benefit_section(run), _decision_section(run)]
    diagrams, names, of_class = [], (), []
    if run.is_binary:
        diagrams, names = ["Does the event happen as often as P(1) says?", "class1_reliability"], _OF_EVENT
        of_class = [
            reliability_section(run, "The predicted class: when it says 80%, is it right 80% of the time?"),
            Section("Accuracy and ECE of the predicted class", tables=[metric_table(run, split, corner)]),
        ]
    parts = [
        reliability_section(run, *diagrams),
        compared_section(
            run,
            metric_table(run, split, corner, names=names),
            say("refused", run=run) + say("intervals_of_calibration", run=run),
        ),
        # what was asked for by a flag is said in the lead
        *(part._replace(words="") for part in asked),
        _group_section(run),
        difference_section(run),
        *of_class,
        _class_section(run),
        loss_implied_section(run, entry.get("trained_gamma")),
        search_section(run, search if is_focal else {}),
        _apply_section(run, entry),
        sections.record(run, "The run", folder="FOLDER"),
    ]
    metric, title = _judge(run)
    warnings = [
        say("elsewhere", method=run.method_title(column), numbers=difference_text(row, title))
        for column in run.columns()
        if column.method not in run.methods
        and finding(row := run.difference(metric, split, column, run.chosen)) == "better"
        and row.n >= LEAST_EXAMPLES
    ]
    warnings += entry["warnings"]
    return sections.write_page(
        path,
        f"How far can the probabilities in {run.data_title} be trusted?",
        parts,
        lead=verdict(run),
        verdict=Markup().join([say("event", run=run), *(part.words for part in asked)]),
        warnings=warnings,
        tiles=[*_tiles(run)],
    )


def _class_section(run):
    """How far the probabilities of each class are off its share, as given and after the methods."""
    gaps, off = row_figures.class_gaps(run), Counter()
    if not gaps:
        return Section("")
    for rows in gaps.values():
        off.update({column: row.low > 0 or row.high < 0 for column, row in rows.items()})
    return Section(
        "Class by class",
        figures=[Panel("classes", "Probability minus share", row_figures.class_differences(run, gaps))],
        notes=say("classes", run=run, total=len(gaps), off=off, most=row_figures.MOST_CLASSES),
        layout="beside",
    )


def _benefit_section(run):
    """Net benefit at the thresholds asked for, and the decision curve."""
    split, of_all = run.measured_on, ("net_benefit_of_all", AS_TRAINED)
    curves = {
        (name, of): [*{row.group: row for row in run.select(Metric, of, name=name, split=split)}.values()]
        for name, of in (*(("net_benefit", of) for of in run.ends), of_all)
    }
    if not curves[of_all]:
        return Section("")
    titles = {key: run.fitted_title(key[1]) for key in curves} | {of_all: "Act on all"}
    per = "pair" if run.setting("evaluation.task") == "multilabel" else "example"
    titles = {key: Title(title, "", f"true positives per {per}", digits=4) for key, title in titles.items()}
    found = {
        f"{threshold:.4g}": {of: latest(rows, Metric, group=f"{threshold:g}") for of, rows in curves.items()}
        for threshold in run.setting("evaluation.thresholds")
    }
    return Section(
        "Is it worth acting on P(1)? Net benefit",
        say("net_benefit", run=run, found=found, per=per),
        [measurements("Threshold of P(1)", titles, [(at, "", rows) for at, rows in found.items()])],
        [Panel("net_benefit", "Decision curve", row_figures.net_benefit(run, curves))],
        say("how_net_benefit"),
        layout="beside",
    )


def _group_section(run):
    """Lines for each group, worst calibrated first: uncalibrated and after the method; of two classes of P(1)."""
    titles, names = run.metrics | _TITLES, _OF_EVENT if run.is_binary else ("ece", "noise_floor", "accuracy")
    rows = run.select(Metric, run.chosen, name=f"group_{names[0]}", split=run.measured_on)
    groups = sorted(latest_by(rows, "group"), key=lambda row: -row.value)
    columns = {"events": titles["events"]} | {f"group_{name}": titles[name] for name in names if name in titles}
    lines = [
        (
            row.group,
            f"{row.n:,} examples, {run.in_text(of)}",
            {name: run.metric(of, name, group=row.group) for name in columns},
        )
        for row in groups
        for of in run.ends
    ]
    return Section(
        "Group by group",
        say("worst_group", run=run, groups=groups),
        [measurements("Group", columns, lines)],
        notes=say("groups", run=run),
    )


def _tests_section(run):
    """A line for each of several tests: does the calibration hold there, and what would a fit there gain?"""
    on_val, own = Column("fitted_on_val"), BY_NLL if run.chosen == AS_TRAINED else run.chosen
    fits = {"uncalibrated": AS_TRAINED, "fitted on val": on_val, "fitted there": own}
    eces, kept, gains, lines = {}, {}, {}, []
    for name in run.manifest["calibration"].get("tests", ()):
        split = f"{HELD_OUT}_{name}"
        of_fits = [run.metric(of, "ece", split) for of in fits.values()]
        if of_fits[1] is None:  # a test without labels
            continue
        row, less = run.metric(on_val, "calibration_kept", split), run.difference("nll", split, own, on_val)
        eces[name], kept[name] = of_fits, row
        if finding(less) == "better" and less.n >= LEAST_EXAMPLES:
            gains[name] = less
        shares = [metric_cell(share, ECE) for share in (run.metric(AS_TRAINED, "accuracy", split), *of_fits)]
        p_value = Cell("< 0.001" if row.value < 0.001 else f"{row.value:.3f}", value=row.value)
        lines.append(Line(name, f"{row.n:,} examples", [*shares, p_value, metric_cell(less, NLL)]))
    if not lines:
        return Section("")
    titles = (
        ("Accuracy", "uncalibrated"),
        *((f"ECE {title}", "") for title in fits),
        ("As on val", "p-value"),
        ("NLL difference", "of a fit there, nats"),
    )
    return Section(
        "Does the calibration hold on each test?",
        say(
            "tests",
            run=run,
            kept=kept,
            gains=gains,
            level=LEVEL / len(kept),
        ),
        [Table("Test", titles, lines)],
        figures=[
            Panel("tests", "ECE on each test", row_figures.eces_of_tests(eces, fits, run.method_colour(run.chosen)))
        ],
        notes=say("how_tests"),
        layout="beside",
    )


_DECISIONS = {  # by the names of rows
    "expected_coverage": Title("Coverage promised", "%", "of examples to come", 100.0, 2),
    "set_coverage": Title("Coverage", "%", "on test", 100.0, 2),
    "set_size": Title("Set size", "", "mean", digits=3),
    "empty_sets": Title("Empty sets", "%", "on test", 100.0, 2),
    "answered": Title("Answered", "%", "on test", 100.0, 2),
    "answered_error": Title("Errors", "%", "of the answers", 100.0, 2),
    "answered_bound": Title("Error bound", "%", "on what was held back", 100.0, 2),
}


def _decision_section(run):
    """Sets of classes and answers, as given and after the method; and how far it covers each class or group."""
    chosen, found = run.chosen, defaultdict(dict)
    for row in run.select(Metric):
        if row.name in _DECISIONS:
            found[row.group, Column(row.method, row.criterion)][row.name] = row
    if not found:
        return Section("")
    parts = [rows for (name, column), rows in found.items() if name is not None and column == chosen]
    parts.sort(key=lambda rows: rows.get("set_coverage", rows["expected_coverage"]).value)
    of_parts = [
        (
            short(rows["expected_coverage"].group, 40),
            ", ".join(f"{row.n:,} of {row.split}" for row in rows.values()),
            rows,
        )
        for rows in parts[: row_figures.MOST_CLASSES]
    ]
    curves = {of: run.select(Metric, of, name="error_of_share", split="test") for of in run.ends}
    return Section(
        "What to do with them: sets, answers, none",
        say("decisions", run=run, found=found[None, chosen], parts=parts),
        [
            measurements("Test split", _DECISIONS, [(run.fitted_title(of), "", found[None, of]) for of in curves]),
            measurements("Least covered first", _DECISIONS, of_parts),
        ],
        figures=[Panel("risk_coverage", "Errors among the surest", row_figures.risk_coverage(run, curves))],
        notes=say("how_decided", run=run),
        layout="beside",
    )


def _apply_section(run, entry):
    """Code that applies the method to the file that was given, and to others like it."""
    if run.setting("evaluation.assess"):
        return Section("")
    choice, files, floor = entry["choice"], entry.get("files"), run.setting("reading.floor")
    snippet = formulas.text(choice["method"], zeros="zeros" in choice)
    numpy = snippet and say("with_numpy", run=run, snippet=snippet) + _PRE.format("snippet", snippet)
    words = say("apply", run=run)
    if files and files["keys"]:
        path = f"{files['folder'].rstrip('/')}/calibrator.json"
        words += _PRE.format("code", _CODE.format(**files, path=path, floor=f", floor={floor}" if floor else ""))
    fitted = say("fitted", calibrator=short(json.dumps(choice, ensure_ascii=False), 5000))
    parts = {"In NumPy, without focalgeo": numpy, "What was fitted": fitted}
    return Section("How to apply it", words, parts=[Section(*part, folded=True) for part in parts.items()])
