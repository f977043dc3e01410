"""Calibration methods on a page: their tables, diagrams and differences, and the page of `focalgeo.calibrate`.

A method is chosen on val and measured on test, and the sentences keep the two apart.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from focalgeo.report import figures
from focalgeo.report.sections import (
    NOTHING,
    Cell,
    Line,
    Panel,
    Section,
    Table,
    as_text,
    config_settings,
    joined,
    manifest_settings,
    metric_cell,
    panels,
    phases,
    record,
    say,
    write_page,
)
from focalgeo.report.selection import (
    AS_TRAINED,
    CRITERION,
    ECE,
    FOCAL,
    HELD_OUT,
    LOSS_IMPLIED,
    PLAIN,
    UNCALIBRATED,
    Column,
    Run,
    criterion_title,
    difference_text,
    has_interval,
    is_better,
    is_worse,
)
from focalgeo.report.style import plain, rounded, short
from focalgeo.rows import LEAST_EXAMPLES, Difference, Metric, Row, Title, select
from focalgeo.types import METRIC_OF

PRINTED = ("accuracy", "nll", "ece")  # in a terminal, of all metrics
MOST_LARGE = 3  # reliability diagrams that stand beside each other in full size
_LEAST_P = 0.0001  # shown

# Plain NumPy for a page to show: it applies a calibrator.json on a machine without focalgeo, method by method. Each
# text takes `logits`, an array [examples, classes], and leaves `probs` of that shape. It computes in float64 and in
# logarithms, and sums 1 - q over the other classes, so that it keeps its digits where q rounds to 1.
_READ = """\
import json, pathlib, numpy as np; c = json.loads(pathlib.Path("calibrator.json").read_text())["parameters"]
"""
# q of the logits z, t the top class, and the focal map w = log q - g log(1 - q) - log(1 - g q log(q) / (1 - q))
_Q = 'a = z - lse(z); t = np.eye(len(z.T))[z.argmax(-1)] > 0; q = np.exp(a); g = c.get("gamma", 0)'
_FOCAL = """\
log_r = np.where(t, lse(np.where(t, -np.inf, a)), np.log1p(-np.where(t, 0, q))); r = np.maximum(np.exp(log_r), 1e-300)
w = a - g * log_r - np.log1p(-g * q * np.where(q > 0.5, np.log1p(-np.minimum(r, 0.5)), a) / r); w = w - lse(w)
"""
_FAMILY = f"""\
{_READ}\
lse = lambda v: np.logaddexp.reduce(v, -1, keepdims=True); z = logits.astype(float) / c.get("temperature", 1)
{_Q}; b = c.get("biases", 0)
{_FOCAL}\
w = (np.inner(w, c["weights"]) if "weights" in c else w * c.get("scales", 1)) + b; probs = np.exp(w - lse(w))
"""
_IMPLIED = f"""\
{_READ}\
lse = lambda v: np.logaddexp.reduce(v, -1, keepdims=True); z = logits.astype(float)
{_Q}
{_FOCAL}\
w = w / c["temperature"]; probs = np.exp(w - lse(w))
"""
_ENSEMBLE = f"""\
{_READ}\
softmax = lambda v: np.exp(v - np.logaddexp.reduce(v, -1, keepdims=True)); z = logits.astype(float)
first, second, rest = c["shares"]
probs = first * softmax(z / c["temperature"]) + second * softmax(z) + rest / z.shape[-1]
"""
_HISTOGRAM = f"""\
{_READ}\
z = logits.astype(float); t = np.eye(len(z.T))[z.argmax(-1)] > 0  # the top class
rest = np.logaddexp.reduce(np.where(t, -np.inf, z), -1, keepdims=True)
p = np.array(c["accuracies"])[np.searchsorted(c["edges"], z.max(-1, keepdims=True) - rest)]
probs = np.where(t, p, (1 - p) * np.exp(np.minimum(z - rest, 0)))
"""
_ISOTONIC = f"""\
{_READ}\
z = logits.astype(float); log_p = z - np.logaddexp.reduce(z, -1, keepdims=True)
f = np.interp(log_p, c["thresholds"], c["probabilities"]); probs = f / f.sum(-1, keepdims=True)
"""
_FOCAL_FAMILY = (
    "uncalibrated",
    "temperature_scaling",
    "focal_temperature_scaling",
    "vector_scaling",
    "focal_vector_scaling",
    "structured_matrix_scaling",
    "loss_implied_map",
)
SNIPPETS = {  # by the method's name
    **dict.fromkeys(_FOCAL_FAMILY, _FAMILY),
    "loss_implied_temperature_scaling": _IMPLIED,
    "ensemble_temperature_scaling": _ENSEMBLE,
    "histogram_binning": _HISTOGRAM,
    "isotonic": _ISOTONIC,
}


def metric_table(
    run: Run,
    split: str,
    corner: str,
    *,
    criterion: str = CRITERION,
    chosen: Column | None = None,
    names: Sequence[str] = (),
) -> Table | None:
    """Return a line for each fit of each method on one split, and a column for each metric; None without such rows.

    Bold is a value that is better beyond noise than that of every other method by `criterion`, and of no line worse.
    names: of metrics; else those asked for, NLL and Brier score.
    """
    columns, asked = run.columns(split), names or run.setting("evaluation.metrics")
    met = {row.name for row in select(run.rows, Metric, split=split, group=None)}
    met &= {*asked, *(() if names else ("nll", "brier"))} if asked else met
    titles = {name: title for name, title in run.metrics.items() if name in met}
    if not columns or not titles:
        return None
    competing, cells = run.column_of_each(split, criterion=criterion), []
    for name, title in titles.items():
        rows = {column: run.metric(column, name, split) for column in columns}
        values = {column: row.value * (1 if title.best == "low" else -1) for column, row in rows.items() if row}
        best = min(values, key=values.get)
        pairs = [run.difference(name, split, best, other) for other in competing if other in values and other != best]
        is_finding = bool(pairs) and all(is_better(pair, title.best) for pair in pairs)
        cells.append([metric_cell(rows[column], title, best=is_finding and column == best) for column in columns])
    lines = [
        Line(run.method_title(column.method), _fit_note(run, column), line, "chosen" if column == chosen else "")
        for column, line in zip(columns, zip(*cells, strict=True), strict=True)
    ]
    return Table(corner, [(title.title, title.note or title.unit) for title in titles.values()], lines)


def _fit_note(run: Run, column: Column) -> str:
    """By what a method was fitted, and the numbers found."""
    by = "nothing fitted" if column.method in run.methods else "from elsewhere"
    by = "as trained" if column == AS_TRAINED else f"by {criterion_title(column.criterion)}" if column.criterion else by
    title = run.fitted_title(column)
    same = f"that is {title.lower()}" if title != run.method_title(column.method) else ""
    return joined(by, *run.fitted_values(column), same)


def results_text(rows: Sequence[Row], manifest: Mapping[str, Any], split: str) -> str:
    """Return the main metrics of each method by each criterion as plain text, a line for each."""
    corner = "on val, cross-fitted" if split == HELD_OUT else f"on {split}"
    table = metric_table(Run(rows, manifest), split, corner, names=PRINTED)
    return as_text(table) if table else corner


def reliability_panels(
    run: Run, columns: Sequence[Column], split: str = "test", *, name: str = "reliability", file: str = ""
) -> list[Panel]:
    """Return a reliability diagram for each column that has bins `name`; more than MOST_LARGE are drawn small."""
    bins = {column: figures.bins_of(run.rows, column, split=split, name=name) for column in columns}
    bins = {column.method: own for column, own in bins.items() if own}
    return [
        Panel(
            f"{file or name}_{method}",
            run.method_title(method),
            figures.diagram(own, colour=run.method_colour(method), small=len(bins) > MOST_LARGE),
        )
        for method, own in bins.items()
    ]


def reliability_section(run: Run, columns: Sequence[Column], split: str, examples: str, opening: str = "") -> Section:
    """Return the diagrams of the methods."""
    fitted = [column for column in columns if column.criterion]
    others = [
        f"{run.method_title(column.method).lower()} by {criterion_title(column.criterion)}"
        for column in fitted
        if column.criterion != fitted[0].criterion
    ]
    by = ", ".join([criterion_title(fitted[0].criterion), *others]) if fitted else ""
    return Section(
        "When it says 80%, is it right 80% of the time?",
        figures=reliability_panels(run, columns, split),
        notes=say("reliability", examples=examples, bins=run.setting("evaluation.num_bins"), by=by),
        layout="diagrams",
        opening=opening,
    )


def difference_section(run: Run, split: str, criterion: str, marks: str) -> Section:
    """Return the plot of differences to temperature scaling."""
    against = figures.reference(run, split, criterion)
    title = f"Each method less {run.fitted_title(against).lower()}" if against else ""
    return Section(
        "Is a method better than temperature scaling?",
        figures=panels(("differences", title, figures.differences(run, split, criterion=criterion))),
        notes=say("differences", marks=marks),
        layout="beside",
    )


def loss_implied_section(run: Run, gamma: float | None, split: str) -> Section:
    """Return what the loss-implied map says of the miscalibration that the focal loss itself caused."""
    columns = AS_TRAINED, Column(LOSS_IMPLIED)
    before, after = (run.metric(column, "ece", split) for column in columns)
    row = run.difference("ece", split, columns[1], AS_TRAINED)
    title = "Loss-implied map: what the training loss did"
    if gamma is None or before is None or after is None or row is None:
        return Section(title)
    gaps = [_mean_gap(run.rows, column, split) for column in columns]
    words = say(
        "loss_implied",
        gamma=gamma,
        before=before,
        after=after,
        difference=difference_text(row, ECE, named=False).replace(" [", ", 95% interval ["),
        better=is_better(row),
        worse=is_worse(row),
        gaps=gaps,
    )
    return Section(title, words, figures=reliability_panels(run, columns, split, file="loss_implied"))


def _mean_gap(rows: Sequence[Row], column: Column, split: str) -> float:
    """Mean confidence less accuracy times the number of examples: above 0 is overconfident."""
    return sum(row.n * (row.confidence - row.value) for row in figures.bins_of(rows, column, split=split))


def search_section(run: Run, search: Mapping[str, Any]) -> Section:
    """Return the surface of each criterion over (gamma, T)."""
    surfaces = [
        (f"search_{name}", f"{name.upper()} over γ and T", figures.search_surface(run.rows, search, name))
        for name in (("ece", "nll") if search else ())
    ]
    return Section("Where γ and T were chosen", figures=panels(*surfaces), notes=say("search"), layout="wide")


def bold_words(run: Run, split: str, criterion: str) -> Markup:
    """Return the sentences beneath a table of metrics: what is bold, and whether methods may change the accuracy."""
    columns = [column for column in run.columns(split) if run.metric(column, "accuracy", split)]
    keeps = {run.methods.get(column.method, {}).get("keeps_class") for column in columns}
    differ = len({run.metric(column, "accuracy", split).value for column in columns}) > 1
    kept = False if False in keeps or differ else True if keeps == {True} else None
    return say("bold", criterion=criterion_title(criterion), kept=kept)


class _Choice:
    """The manifest's entry on a calibration, any part of which may be missing there, and what rows say of it."""

    def __init__(self, run: Run):
        entry = run.manifest["calibration"]
        self.run, self.entry = run, entry
        self.split, self.criterion = entry.get("split", "test"), entry.get("criterion", CRITERION)
        self.metric = METRIC_OF.get(self.criterion, self.criterion)
        self.refused, self.beaten = entry.get("refused") or {}, entry.get("beaten") or {}
        choice = entry.get("choice") or {}
        self.column = Column(choice.get("method", UNCALIBRATED), choice.get("criterion"))
        self.leaves = self.column == AS_TRAINED
        self.against = self._against()

    def _against(self) -> Column:
        """What the chosen method is held against: the last plainer one that is beaten; of none the plainest fitted."""
        run, columns = self.run, self.run.column_of_each(HELD_OUT, criterion=self.criterion)
        if self.leaves:
            return next((column for column in columns if column.criterion), AS_TRAINED)
        title = run.fitted_title(self.column)  # gamma 0 is temperature scaling: not held against itself
        others = [column for column in columns if run.fitted_title(column) != title]
        beaten = [column for column in others if column.method in self.beaten]
        return (beaten or [column for column in others if column.method == PLAIN] or [AS_TRAINED])[-1]

    def pair(self, split: str, *names: str) -> dict[str, Difference]:
        """Return its metrics less those of the other, by name; of no method chosen, the other's less none."""
        pair = (self.against, self.column) if self.leaves else (self.column, self.against)
        rows = {name: self.run.difference(name, split, *pair) for name in dict.fromkeys(names)}
        return {name: row for name, row in rows.items() if row is not None}

    def texts(self, rows: Mapping[str, Difference], *, named: bool = True) -> dict[str, str]:
        """Return differences with their intervals, as they stand in sentences."""
        titles = self.run.metrics
        return {
            name: difference_text(row, titles.get(name, Title(name.upper())), named=named) for name, row in rows.items()
        }


def verdict(run: Run) -> Markup:
    """Return the verdict, two sentences at the most: the method to use with its evidence, and what test adds."""
    choice = _Choice(run)
    if not choice.entry.get("choice"):
        return say("no_choice")
    return Markup(" ").join(filter(None, (_on_val(run, choice), _on_test(choice))))


def _on_val(run: Run, choice: _Choice) -> Markup:
    rows = choice.pair(HELD_OUT, choice.metric, "nll")
    row = next(iter(rows.values()), None)
    fitted = {c.method for c in run.column_of_each(HELD_OUT, criterion=choice.criterion) if c.criterion}
    all_refused = choice.leaves and fitted and fitted <= choice.refused.keys()
    against, by, test = choice.against, choice.beaten.get(choice.against.method), choice.entry.get("score_test") or {}
    by_score = against.method == PLAIN if choice.leaves else against == AS_TRAINED and by == PLAIN
    p_value = test.get("p_value", 1.0)
    score = f"p\u00a0=\u00a0{rounded(p_value, 2)}" if p_value >= _LEAST_P else f"p\u00a0<\u00a0{_LEAST_P}"
    is_by_score = bool(test) and choice.metric == "nll" and by_score
    better = is_better(row)
    return say(
        "on_val",
        use=run.in_words(choice.column),
        leave=choice.leaves,
        n=row.n if row else None,
        few=row is not None and row.n < LEAST_EXAMPLES,
        reasons="; ".join(dict.fromkeys(choice.refused.values())) if all_refused else "",
        other="no calibration" if against == AS_TRAINED else run.fitted_title(against).lower(),
        numbers=", ".join(choice.texts(rows).values()),
        admitted=" to choose from" if choice.refused else "",
        score=score if is_by_score else "",
        side="overconfident" if test.get("statistic", 0) < 0 else "underconfident",
        chances=better or (is_by_score and p_value < 0.05),
        better=better or by == choice.column.method,  # the choice's test is one-sided: its interval may hold 0
        p="" if better or row is None else rounded(row.p_value / 2, 2),
        by=run.method_title(by).lower() if by else "",
    )


def _on_test(choice: _Choice) -> Markup:
    """What test says of the same pair, by NLL and by ECE; "" without rows."""
    if choice.split == HELD_OUT:
        return say("no_test")
    rows = choice.pair(choice.split, "nll", "ece")
    if not rows:
        return Markup()
    texts, judged = choice.texts(rows, named=False), []
    for name, row in rows.items():
        better, worse = (is_worse(row), is_better(row)) if choice.leaves else (is_better(row), is_worse(row))
        said = "agrees" if better else "speaks against it" if worse else "does not tell the two apart"
        judged.append((said, name.upper(), texts[name]))
    n = next(iter(rows.values())).n
    judged = judged if len({said for said, *_ in judged}) > 1 else judged[:1]
    return say("on_test", n=n, few=n < LEAST_EXAMPLES, numbers=", ".join(choice.texts(rows).values()), judged=judged)


def _elsewhere(run: Run, choice: _Choice) -> list[Markup]:
    """A line for each method from elsewhere that is better than the chosen one beyond noise."""
    lines = []
    for column in run.columns(choice.split):
        row = run.difference(choice.metric, choice.split, column, choice.column)
        if (
            column.method not in run.methods
            and row
            and row.n >= LEAST_EXAMPLES
            and has_interval(row)
            and is_better(row)
        ):
            numbers = choice.texts({choice.metric: row})[choice.metric]
            lines.append(say("elsewhere", method=run.method_title(column.method), numbers=numbers))
    return lines


def _refused_words(run: Run, choice: _Choice) -> Markup:
    by_reason: dict[str, list[str]] = {}
    for name, why in choice.refused.items():
        by_reason.setdefault(why, []).append(run.method_title(name).lower())
    reasons = "; ".join(f"{', '.join(names)} ({why})" for why, names in by_reason.items())
    return say("paragraph", text=say("refused", reasons=reasons)) if reasons else Markup()


def write_calibration(path: Path, run: Run, search: Mapping[str, Any]) -> Path:
    """Write the page of a calibration: which method to use, how sure that is, and how to apply it."""
    choice = _Choice(run)
    split, criterion, chosen = choice.split, choice.criterion, choice.column
    columns, gamma = run.column_of_each(split, criterion=criterion), choice.entry.get("trained_gamma")
    examples = "Cross-fitted" if split == HELD_OUT else "Test"
    corner = "Cross-fitted" if split == HELD_OUT else "Test split"
    marks = "Filled marks: the test set. Hollow: held-out parts of val, by which a method was chosen"
    level = choice.entry.get("level")
    intervals = say(
        "intervals_of_calibration",
        resamples=run.setting("evaluation.num_resamples"),
        bins=run.setting("evaluation.num_bins"),
        cross_fitted=split == HELD_OUT,
        level=rounded(level, 2) if level else "",
    )
    sections = [
        reliability_section(run, columns, split, examples, run.method_title(chosen.method)),
        Section(
            "Before and after calibration",
            tables=[metric_table(run, split, corner, criterion=criterion, chosen=chosen)],
            notes=bold_words(run, split, criterion) + _refused_words(run, choice) + intervals,
        ),
        difference_section(run, split, criterion, "Cross-fitted examples of val" if split == HELD_OUT else marks),
        _class_section(run, choice),
        _two_classes(run, columns, split, run.method_title(chosen.method)),
        loss_implied_section(run, gamma, split),
        _group_section(run, chosen, split),
        search_section(run, search if FOCAL in [column.method for column in columns] else {}),
        _apply_section(run, choice),
        record(
            run,
            "The run",
            {
                "": config_settings(run),
                "Wall time": phases(run.rows),
                "Versions": manifest_settings(run, "created", "platform", "versions"),
            },
            files="manifest.json, metrics.jsonl and search.npz",
            folder="FOLDER",
        ),
    ]
    title = f"Calibration of {short(str(run.manifest.get('data', {}).get('name', 'a classifier')), 200)}"
    warnings = [*_elsewhere(run, choice), *choice.entry.get("warnings", ())]
    return write_page(
        path, title, sections, verdict=say("paragraph", text=verdict(run), kind="lead"), warnings=warnings
    )


def _after(run: Run, column: Column) -> str:
    return "as given" if column == AS_TRAINED else f"after {run.fitted_title(column).lower()}"


def _class_section(run: Run, choice: _Choice) -> Section:
    gaps = figures.class_gaps(run, choice.split, choice.column, choice.criterion)
    total = len({name for own in gaps.values() for name in own})
    if not total:
        return Section("")
    off = {column: sum(row.low > 0 or row.high < 0 for row in own.values()) for column, own in gaps.items()}
    parts = [f"{count} {_after(run, column)}" for column, count in off.items()]
    words = say("class_gaps", total=total, parts=", ".join(parts), chance=plain(round(0.05 * total, 2)))
    return Section(
        "Class by class",
        figures=panels(("classes", "Probability less share", figures.class_differences(run, gaps))),
        notes=say("classes", gaps=words, total=total, most=figures.MOST_CLASSES),
        layout="beside",
    )


def _two_classes(run: Run, columns: Sequence[Column], split: str, opening: str) -> Section:
    """The two kinds of ECE of a two-class problem side by side."""
    title = "Two classes: top-label and class-1 calibration"
    if not select(run.rows, Metric, name="class1_ece", split=split):
        return Section(title)
    lines = [
        Line(
            run.fitted_title(column),
            "",
            [metric_cell(run.metric(column, name, split), ECE) for name in ("ece", "class1_ece")],
        )
        for column in columns
    ]
    heads = [
        ("Top-label ECE", "probability of the predicted class"),
        ("Class-1 ECE", "probability of class 1, whatever is predicted"),
    ]
    diagrams = reliability_panels(run, columns, split, name="class1_reliability")
    return Section(
        title,
        words=say("two_classes"),
        tables=[Table("Two classes", heads, lines)],
        figures=diagrams,
        notes=say("class_1") if diagrams else "",
        layout="diagrams",
        opening=opening,
    )


def _group_section(run: Run, column: Column, split: str) -> Section:
    """A line for each group, worst calibrated first: examples, accuracy, ECE as given and after the method."""
    rows = {(row.name, row.group, row.method, row.criterion): row for row in select(run.rows, Metric, split=split)}
    groups = [row for (name, _, *of), row in rows.items() if name == "group_ece" and tuple(of) == column]
    groups.sort(key=lambda row: -row.value)
    if not groups:
        return Section("")
    columns = list(dict.fromkeys([AS_TRAINED, column]))
    names = [("group_accuracy", AS_TRAINED), *(("group_ece", of) for of in columns)]
    lines = []
    for row in groups:
        size = NOTHING if row.n is None else Cell(f"{row.n:,}", value=row.n)
        shares = [metric_cell(rows.get((name, row.group, *of)), ECE) for name, of in names]
        lines.append(Line(str(row.group), "", [size, *shares]))
    heads = ["Examples", "Accuracy", *(f"ECE, {run.method_title(of.method).lower()}" for of in columns)]
    words = say("worst_group", name=_after(run, column), row=groups[0], total=len(groups))
    table = Table("Group", [(head, "") for head in heads], lines)
    return Section("Group by group", words, [table], notes=say("groups"))


def _apply_section(run: Run, choice: _Choice) -> Section:
    """How to apply the method; of a list of fitted numbers no more is shown than how many it holds."""
    entry = choice.entry.get("choice") or {}
    fitted = entry.get("parameters", {}).items()
    fitted = {name: f"{np.size(value):,} numbers" if isinstance(value, list) else value for name, value in fitted}
    saved = {"method": entry.get("method"), "parameters": fitted}
    snippet = SNIPPETS.get(choice.column.method, "")
    words = say(
        "apply",
        calibrator=short(json.dumps({name: value for name, value in saved.items() if value}, ensure_ascii=False), 5000),
        from_probs=any(given.get("given") == "probs" for given in (run.setting("inputs") or {}).values()),
        snippet=snippet,
    )
    code = Markup('<pre id="snippet">{}</pre>').format(snippet) if snippet else ""
    return Section("How to apply it", words + code, notes=say("with_focalgeo"))
