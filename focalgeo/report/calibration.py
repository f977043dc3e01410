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
from focalgeo.report.style import rounded, short
from focalgeo.rows import LEAST_EXAMPLES, Metric, Title
from focalgeo.types import METRIC_OF

PRINTED = ("accuracy", "ece", "noise_floor", "nll")  # in a terminal, of all metrics
_FLOOR = ECE._replace(title="Noise floor", note="ECE if calibrated", best="middle")
_TITLES = {  # of rows that are no metrics of the manifest, and of those that have another title here
    "noise_floor": _FLOOR,
    "class1_ece": ECE._replace(title="ECE of P(1)", note="equal-width bins"),
    "class1_noise_floor": _FLOOR,
    "calibration_slope": Title("Slope", note="calibrated: 1", digits=3, best="middle"),
    "calibration_intercept": Title("Intercept", note="calibrated: 0", digits=3, best="middle"),
    "binary_brier": Title("Brier score", note="of P(1)"),
    "events": Title("Events", note="of class 1", digits=0, best="middle"),
}
_OF_EVENT = (
    *("class1_ece", "class1_noise_floor", "calibration_slope", "calibration_intercept", "auroc"),
    *("binary_brier", "nll"),
)
RANKING = ("temperature_scaling", "platt_scaling", "focal_temperature_scaling", "beta_calibration")  # keep that by P(1)
_CODE = """\
import numpy as np
from focalgeo.calibration import read_calibrator
from focalgeo.data.logits_files import Keys, read_outputs

new = read_outputs({outputs!r}, {keys}, where="new"{floor})
calibrator = read_calibrator({path!r})
probs = np.exp(calibrator.predict_log_proba(new.logits, new.group))  # [examples, classes]
"""
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
        wanted -= {*_OF_EVENT, "brier"} if _is_binary(run) else set()
        names = [each for name in run.metrics if name in wanted for each in (name, *["noise_floor"] * (name == "ece"))]
    titles = {name: known[name] for name in names if name in known}
    rows = {column: {name: run.metric(column, name, split) for name in titles} for column in run.columns(split)}
    lines = [
        (run.method_title(column), _fit_note(run, column), of_names, "chosen" if column == run.chosen else "")
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
    if column == AS_TRAINED:
        by = "as trained"
    elif column.criterion:
        by = f"by {criterion_title(column.criterion)}"
    else:
        by = "nothing fitted" if column.method in run.methods else "from elsewhere"
    title = run.fitted_title(column)
    same = f"that is {title.lower()}" if title != run.method_title(column) else ""
    return joined(by, *run.fitted_values(column), same)


def results_text(rows: Rows, manifest: Mapping[str, Any], split: str) -> str:
    """Return the main metrics of each method as plain text, those of several tests, and what is decided."""
    run = Run(rows, manifest)
    fitted = "" if run.setting("evaluation.assess") else ", cross-fitted"
    corner = f"on val{fitted}" if split == HELD_OUT else f"on {split}"
    of_event = [name for name in _OF_EVENT if name != "class1_noise_floor"]
    names = (*of_event, "accuracy", "ece") if _is_binary(run) else PRINTED
    tables, words = [metric_table(run, split, corner, names=names)], Markup()
    if run.chosen:
        tests = _tests_section(run)
        parts = tests, _benefit_section(run), _decision_section(run)
        words = Markup().join([_event_words(run), *(part.words for part in parts), verdict(run)])
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


def _is_binary(run):
    """Whether it is of two classes, so that it is about P(1)."""
    return bool(run.metric(AS_TRAINED, "class1_ece"))


def reliability_section(run: Run, name: str = "reliability") -> Section:
    """Return the diagrams of the methods; "class1_reliability" are those of P(1)."""
    columns, title = run.column_of_each(), "When it says 80%, is it right 80% of the time?"
    if name != "reliability":
        title = "Does the event happen as often as P(1) says?"
    elif _is_binary(run):
        title = "The predicted class: when it says 80%, is it right 80% of the time?"
    fitted = [(run.method_title(of).lower(), criterion_title(of.criterion)) for of in columns if of.criterion]
    return Section(
        title,
        figures=_reliability_panels(run, columns, name),
        notes=say("reliability", split=run.measured_on, run=run, fitted=fitted, event=name != "reliability"),
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
            for of in ((NLL,) if _is_binary(run) else (NLL, ECE))
        ],
        notes=say("differences", run=run, split=run.measured_on),
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
            difference=difference_text(row, ECE, named=False).replace(" [", ", 95% interval ["),
            finding=finding(row),
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


def bold_words(run: Run) -> Markup:
    """Return the sentences beneath a table of metrics: what is bold, and whether methods may change the accuracy."""
    kept = all(run.entry(f"methods.{column.method}.keeps_class") for column in run.columns())
    return say("bold", criterion=criterion_title(run.criterion), kept=kept)


def _judge(run):
    """The name and the title of the metric by which a method was chosen."""
    name = METRIC_OF.get(run.criterion, run.criterion)
    return name, run.metrics[name]


def verdict(run: Run) -> Markup:
    """Return the lead: metrics before and after, the method to use with its evidence, and what speaks against it."""
    entry, chosen, (metric, title) = run.manifest["calibration"], run.chosen, _judge(run)
    test, leave, plainest = entry.get("score_test"), chosen == AS_TRAINED, Column(**entry["plainest"])
    score = rounded(test["p_value"], 2) if test else ""
    side = "" if not test or test["p_value"] >= LEVEL else "over" if test["statistic"] < 0 else "under"
    fitted = [column for column in run.column_of_each(HELD_OUT) if column.criterion]
    # the method to use is held against none; where none is the choice, it is held against the first method fitted
    against = [*fitted, AS_TRAINED][0] if leave else AS_TRAINED
    row, cost = (run.difference(metric, HELD_OUT, *pair) for pair in ((chosen, against), (plainest, chosen)))
    less = None if _is_binary(run) else run.difference("ece", HELD_OUT, chosen, AS_TRAINED)
    simpler = "" if plainest in (chosen, AS_TRAINED) else run.in_words(plainest)
    mixture = run.difference(metric, HELD_OUT, Column("stacking", "nll"), chosen)
    on_val = say(
        "on_val",
        use=run.in_words(chosen),
        leave=leave,
        score="" if side else score,
        refused=len(entry["refused"]) >= len(fitted),
        n=row and row.n,
        least=LEAST_EXAMPLES,
        numbers=row and difference_text(row, title),
        simpler=simpler[:1].upper() + simpler[1:],
        cost=cost and difference_text(cost, title),
        ranks=_is_binary(run) and chosen.method == "stacking" and plainest.method in RANKING,
        mixture=mixture and (finding(mixture), difference_text(mixture, title)),
        worse=difference_text(less, ECE, named=False) if finding(less) == "worse" and less.n >= LEAST_EXAMPLES else "",
    )
    judged = [
        (row.n, finding(row), name.upper(), difference_text(row, run.metrics[name], named=False))
        for name in (("nll",) if _is_binary(run) else ("nll", "ece"))
        if run.measured_on != HELD_OUT and (row := run.difference(name, run.measured_on, chosen, against))
    ]
    other = "uncalibrated outputs" if against == AS_TRAINED else run.fitted_title(against).lower()
    added = say("on_test", judged=judged, least=LEAST_EXAMPLES, leave=leave, against=other)
    if run.setting("evaluation.assess"):
        on_val, added = say("assessed", score=score, side=side), ""
    elif run.measured_on == HELD_OUT:
        added = say("no_test")
    parts = _before_and_after(run), on_val, added
    return Markup(" ").join(part.strip() for part in parts if part.strip())


def _of_chance(run, column):
    """The ECE of a column, of two classes that of P(1), its noise floor, and whether chance alone may explain it."""
    names = ("class1_ece", "class1_noise_floor") if _is_binary(run) else ("ece", "noise_floor")
    row, floor = (run.metric(column, name) for name in names)
    return row, floor, bool(row and floor and row.value <= floor.high)


def _before_and_after(run):
    """The ECE, of two classes that of P(1), and the NLL as given and by the method to use, and what chance leaves."""
    numbers, ends, split = [], (AS_TRAINED, run.chosen), run.measured_on
    of_ece, title = [_of_chance(run, column) for column in ends], "ECE of P(1)" if _is_binary(run) else "ECE"
    row, floor, _ = of_ece[1]
    of_nll = [run.metric(column, "nll") for column in ends]
    for name, of, form in (
        (title, [each[0] for each in of_ece], ECE._replace(digits=1)),
        ("NLL", of_nll, NLL._replace(digits=2)),
    ):
        if None not in of and of[0].n >= LEAST_EXAMPLES:
            moves = "falls" if of[1].value < of[0].value else "rises"
            if of[0] is not of_nll[0] and all(each[2] for each in of_ece):
                moves = "goes"  # neither is more than chance
            first, last = (metric_cell(each, form).text for each in of)
            numbers.append((name, () if run.chosen == AS_TRAINED else (first, moves), last))
    assessed = run.setting("evaluation.assess")
    return say(
        "before_and_after",
        where=split if split != HELD_OUT else "val" if assessed else "held-out parts of val",
        numbers=numbers,
        floor=metric_cell(floor, ECE._replace(digits=1)).text if row and floor else "",
        n=floor and floor.n,
        more=row and floor and row.low > floor.high,
    )


def _event_words(run):
    """How many events there are, and slope, intercept and AUROC of P(1)."""
    ends = dict.fromkeys((AS_TRAINED, run.chosen))
    return say(
        "event",
        events=run.metric(AS_TRAINED, "events"),
        ends=[
            [metric_cell(run.metric(column, name), Title("", digits=2)).text for column in ends]
            for name in ("calibration_slope", "calibration_intercept")
        ],
        auroc=metric_cell(run.metric(run.chosen, "auroc"), ECE._replace(digits=0)).text,
    )


def _tiles(run):
    """The ECE as given and after the methods to use; what chance may explain is grey and says so."""
    for column in dict.fromkeys((AS_TRAINED, run.chosen, Column(**run.manifest["calibration"]["plainest"]))):
        row, floor, by_chance = _of_chance(run, column)
        if row:
            note = f"no more than chance: up to {floor.high:.2%} if calibrated" if by_chance else ""
            title = f"ECE{' of P(1)' if _is_binary(run) else ''}, {run.fitted_title(column).lower()}"
            yield title, metric_cell(row, ECE), "grey" if by_chance else run.method_colour(column), note


def write_calibration(path: Path, run: Run, search: Mapping[str, Any]) -> Path:
    """Write the page of a calibration: which method to use, how sure that is, and how to apply it."""
    entry, split, refused = run.manifest["calibration"], run.measured_on, defaultdict(list)
    for name, why in entry["refused"].items():
        refused[why].append(run.method_title(Column(name)).lower())
    notes = say("refused", refused=refused) + say("intervals_of_calibration", run=run, split=split)
    is_focal = FOCAL in [column.method for column in run.column_of_each()]
    corner, binary = (
        "Test split" if split != HELD_OUT else "Val" if run.setting("evaluation.assess") else "Cross-fitted",
        _is_binary(run),
    )
    asked = [_tests_section(run), _benefit_section(run), _decision_section(run)]
    of_class = [
        reliability_section(run),
        Section(
            "Accuracy and ECE of the predicted class" if binary else "Before and after calibration",
            tables=[metric_table(run, split, corner)],
            notes="" if binary else bold_words(run) + notes,
        ),
    ]
    of_event = [
        reliability_section(run, "class1_reliability"),
        Section(
            "Before and after calibration",
            tables=[metric_table(run, split, corner, names=_OF_EVENT)] if binary else [],
            notes=bold_words(run) + notes,
        ),
    ]
    parts = [
        *(of_event if binary else of_class),
        # what was asked for by a flag is said in the lead
        *(part._replace(words="") for part in asked),
        _group_section(run),
        difference_section(run),
        *(of_class if binary else ()),
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
        verdict=Markup().join([_event_words(run), *(part.words for part in asked)]),
        warnings=warnings,
        tiles=[*_tiles(run)],
    )


def _after(run, column):
    return "as given" if column == AS_TRAINED else f"after {run.fitted_title(column).lower()}"


def _class_section(run):
    """How far the probabilities of each class are off its share, as given and after the methods."""
    gaps, off = row_figures.class_gaps(run), Counter()
    if not gaps:
        return Section("")
    for rows in gaps.values():
        off.update({column: row.low > 0 or row.high < 0 for column, row in rows.items()})
    counts = [(count, _after(run, column)) for column, count in off.items()]
    return Section(
        "Class by class",
        figures=[Panel("classes", "Probability less share", row_figures.class_differences(run, gaps))],
        notes=say("classes", total=len(gaps), off=counts, most=row_figures.MOST_CLASSES),
        layout="beside",
    )


def _benefit_section(run):
    """Net benefit at the thresholds asked for, and the decision curve."""
    columns, split = [*dict.fromkeys((AS_TRAINED, run.chosen))], run.measured_on
    of_all = run.select(Metric, name="net_benefit_of_all", split=split)
    if not of_all:
        return Section("")
    curves = {of: run.select(Metric, of, name="net_benefit", split=split) for of in columns}
    title = Title("", "", "true positives per example", digits=4, best="high")
    titles = {of: title._replace(title=run.fitted_title(of)) for of in columns} | {
        "all": title._replace(title="Act on all")
    }
    found = {}
    for threshold in run.setting("evaluation.thresholds") or ():
        at = {of: latest(rows, Metric, group=f"{threshold:g}") for of, rows in (curves | {"all": of_all}).items()}
        if None not in at.values():
            found[f"{threshold:.4g}"] = at
    return Section(
        "Is it worth acting on P(1)? Net benefit",
        say(
            "net_benefit",
            name=_after(run, run.chosen),
            found=[(at, rows[run.chosen], rows["all"]) for at, rows in found.items()],
        ),
        [measurements("Threshold of P(1)", titles, [(at, "", rows) for at, rows in found.items()])],
        [Panel("net_benefit", "Decision curve", row_figures.net_benefit(run, curves, of_all))],
        say("how_net_benefit"),
        layout="beside",
    )


def _group_section(run):
    """A line for each group, worst calibrated first, as given and after the method; of two classes of P(1)."""
    split, titles, ends = run.measured_on, run.metrics | _TITLES, dict.fromkeys((AS_TRAINED, run.chosen))
    names = [name for name in _OF_EVENT if name in titles] if _is_binary(run) else ["ece", "accuracy"]
    rows = run.select(Metric, run.chosen, name=f"group_{names[0]}", split=split)
    groups = sorted(latest_by(rows, "group"), key=lambda row: -row.value)
    if not groups:
        return Section("")
    columns = {("events", AS_TRAINED): titles["events"]} | {
        (f"group_{name}", of): titles[name]._replace(title=f"{titles[name].title}, {run.method_title(of).lower()}")
        for name in names
        for of in ends
    }
    lines = [
        (row.group, f"{row.n:,} examples", {key: run.metric(key[1], key[0], group=row.group) for key in columns})
        for row in groups
    ]
    return Section(
        "Group by group",
        say("worst_group", name=_after(run, run.chosen), groups=groups, event=_is_binary(run)),
        [measurements("Group", columns, lines)],
        notes=say("groups"),
    )


def _tests_section(run):
    """A line for each of several tests: does the calibration hold there, and what would a fit there gain?"""
    on_val, own = Column("fitted_on_val"), BY_NLL if run.chosen == AS_TRAINED else run.chosen
    fits = {"as given": AS_TRAINED, "fitted on val": on_val, "fitted there": own}
    eces, kept, gains, lines = {}, {}, {}, []
    for name in run.manifest["calibration"].get("tests", ()):
        split = f"{HELD_OUT}_{name}"
        of_fits = [run.metric(of, "ece", split) for of in fits.values()]
        if of_fits[1] is None:  # a test without labels
            continue
        row, less = run.metric(on_val, "calibration_kept", split), run.difference("nll", split, own, on_val)
        eces[name], kept[name] = of_fits, row
        if finding(less) == "better" and less.n >= LEAST_EXAMPLES:
            gains[name] = difference_text(less, NLL, named=False)
        shares = [metric_cell(share, ECE) for share in (run.metric(AS_TRAINED, "accuracy", split), *of_fits)]
        p_value = Cell("< 0.001" if row.value < 0.001 else f"{row.value:.3f}", value=row.value)
        lines.append(Line(name, f"{row.n:,} examples", [*shares, p_value, metric_cell(less, NLL)]))
    if not lines:
        return Section("")
    titles = ("Accuracy", "as given"), *((f"ECE {title}", "") for title in fits), ("As on val", "p-value")
    return Section(
        "Does the calibration hold on each test?",
        say(
            "tests",
            name=_after(run, run.chosen),
            lost=[name for name, row in kept.items() if row.value < LEVEL / len(kept)],
            gains=gains,
            total=len(kept),
            fewest=min(run.setting("inputs.val.examples"), *(row.n for row in kept.values())),
        ),
        [Table("Test", [*titles, ("NLL difference", "of a fit there, nats")], lines)],
        figures=[
            Panel("tests", "ECE on each test", row_figures.eces_of_tests(eces, fits, run.method_colour(run.chosen)))
        ],
        notes=say("how_tests"),
        layout="beside",
    )


_DECISIONS = {  # by the names of rows
    "expected_coverage": Title("Coverage promised", "%", "of examples to come", 100.0, 2, "high"),
    "set_coverage": Title("Coverage", "%", "on test", 100.0, 2, "high"),
    "set_size": Title("Set size", "", "mean", digits=3),
    "empty_sets": Title("Empty sets", "%", "on test", 100.0, 2),
    "answered": Title("Answered", "%", "on test", 100.0, 2, "high"),
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
    covered = [rows["set_coverage"] for rows in parts if "set_coverage" in rows]
    below = sum("set_coverage" in rows and rows["set_coverage"].high < rows["expected_coverage"].low for rows in parts)
    curves = {of: run.select(Metric, of, name="error_of_share", split="test") for of in (AS_TRAINED, chosen)}
    return Section(
        "What to do with them: sets, answers, none",
        say("decisions", run=run, found=found[None, chosen], name=_after(run, chosen), covered=covered, below=below),
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
    choice, files, floor = entry["choice"], entry.get("files") or {}, run.setting("reading.floor")
    snippet = formulas.text(choice["method"], zeros="zeros" in choice)
    words = say("apply", run=run, dense=not files.get("keys"))
    if files.get("keys"):
        path = f"{files['folder'].rstrip('/')}/calibrator.json"
        code = _CODE.format(**files, path=path, floor=f", floor={floor}" if floor else "")
        words += Markup('<pre id="code">{}</pre>').format(code)
    lines = snippet.strip().split("\n")
    numpy = say("with_numpy", run=run, count=len(lines))
    parts = [
        Section("In NumPy, without focalgeo", numpy + Markup('<pre id="snippet">{}</pre>').format(snippet), folded=True)
    ]
    fitted = short(json.dumps(choice, ensure_ascii=False), 5000)
    parts = [*parts[: bool(snippet)], Section("What was fitted", say("fitted", calibrator=fitted), folded=True)]
    return Section("How to apply it", words, parts=parts)
