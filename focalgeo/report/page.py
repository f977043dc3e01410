"""The page of a workdir: figures and tables in one HTML file that opens without a network."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from focalgeo import records
from focalgeo.report import calibration, figures, style, sweep
from focalgeo.report.sections import (
    NOTHING,
    Cell,
    Line,
    Section,
    Table,
    metric_cell,
    panels,
    record,
    say,
    write_page,
)
from focalgeo.report.selection import (
    AS_TRAINED,
    CRITERION,
    ECE,
    FOCAL,
    NLL,
    PLAIN,
    Column,
    Run,
    batches_of_row,
    difference_text,
    has_interval,
    in_training,
    is_better,
    is_worse,
    latest,
    latest_by,
    loss_title,
    measured,
    measured_title,
    splits_of,
)
from focalgeo.report.style import fixed, interval, plain, significant
from focalgeo.rows import (
    LEAST_EXAMPLES,
    TITLES,
    AttributionPart,
    DensityBin,
    Diagnostic,
    Eigenvalue,
    HistogramBin,
    ReliabilityBin,
    Row,
    Scalar,
    Trace,
    select,
)
from focalgeo.types import InputError

_LEVEL = 0.05  # two-sided, of one difference alone
_ROUNDING = 1e-4  # of the whole: float32 says nothing of a difference below
_MOST_TILES = 4
_ESTIMATORS = {"hutchinson": "Hutchinson", "hutch++": "Hutch++", "xtrace": "XTrace"}
_PARTS = (
    ("whole", "Whole", "sum of the two parts"),
    ("gauss_newton", "Loss in the logits", "Gauss–Newton part"),
    ("softmax_weighted", "– softmax × weight", "each example's weight held"),
    ("rank_one", "– change of weight", "rank one, of either sign"),
    ("residual", "Network in its parameters", "residual part"),
)


def write_report(workdir: records.Workdir) -> Path:
    """Write figures/*.svg and report.html from manifest.json, metrics.jsonl and search.npz; returns the page's path.

    A part whose rows are missing is left out. Deleting and rebuilding gives the same bytes. Nothing is written before
    everything is drawn.

    Raises:
        InputError: manifest, rows or search are missing or corrupt, or the page cannot be written.
    """
    folder = Path(workdir)
    manifest, rows = records.read_manifest(folder), records.read_rows(folder)
    run, search = Run(rows, manifest), records.read_arrays(folder, "search") if (folder / "search.npz").exists() else {}
    try:
        write = {"calibration": calibration.write_calibration, "sweep": sweep.write_sweep, "run": write_run}
        return write[kind_of(run)](folder / "report.html", run, search)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        what = f"{type(error).__name__}: {style.short(str(error), 200)}"
        raise InputError(f"{folder} holds what no page can show ({what}); choose another workdir") from error


def kind_of(run: Run) -> str:
    """Return "calibration", "sweep" or "run": which page a workdir has."""
    return "calibration" if "calibration" in run.manifest else "sweep" if sweep.axes_of(run) else "run"


def headline(run: Run) -> Markup:
    """Return the first sentences of a workdir's page."""
    return {"calibration": calibration.verdict, "sweep": sweep.headline, "run": verdict}[kind_of(run)](run)


def write_run(path: Path, run: Run, search: Mapping[str, Any]) -> Path:
    """Write the page of one run: what it reached, before and after calibration, how it trained, its curvature."""
    sections = [
        *_method_sections(run),
        *_training_sections(run.rows),
        calibration.search_section(run, search),
        _curvature_section(run.rows),
        record(run, "The run", files="manifest.json, metrics.jsonl and search.npz", folder="WORKDIR"),
    ]
    lead = say("paragraph", text=verdict(run), kind="lead")
    return write_page(path, f"{run.data_title or 'A run'}: {run.loss}", sections, verdict=lead, tiles=_tiles(run))


def verdict(run: Run) -> Markup:
    """Return the opening sentences: accuracy, ECE before and after, and which methods have a better NLL, if any."""
    accuracy, before = (run.metric(AS_TRAINED, name) for name in ("accuracy", "ece"))
    first, *others = [column for column in run.column_of_each() if column != AS_TRAINED] or [None]
    return say(
        "verdict",
        loss=run.loss,
        accuracy=accuracy,
        before=before,
        after=run.metric(first, "ece") if first else None,
        first=run.in_words(first) if first else "",
        compared=_compared(run, first, others),
    )


def _compared(run: Run, first: Column | None, others: Sequence[Column]) -> Markup:
    """Sentence on how many methods have a better NLL than the plainest on the same examples, and the best of them.

    Many methods are many chances: a difference counts where its p-value is below 5% / their number (Bonferroni).
    """
    same = [
        c
        for c in others
        if (c.method, first.method) == (FOCAL, PLAIN) and run.fitted_title(c) != run.method_title(FOCAL)
    ]
    rows = {column: run.difference("nll", "test", column, first) for column in others if column not in same}
    rows = {column: row for column, row in rows.items() if row is not None}
    if not rows:
        return say("gamma_0", plain=run.fitted_title(first).lower()) if same else Markup()
    n = next(iter(rows.values())).n
    if n < LEAST_EXAMPLES:
        return say("too_few", n=n)
    counted = {c: row for c, row in rows.items() if has_interval(row) and row.p_value < _LEVEL / len(rows)}
    better, worse = ([c for c, row in counted.items() if is_finding(row)] for is_finding in (is_better, is_worse))
    best = min(better or rows, key=lambda column: rows[column].value)
    pairs = ((rows[best], NLL), (run.difference("ece", "test", best, first), ECE))
    return say(
        "compared",
        total=len(rows),
        better=len(better),
        worse=len(worse),
        best=run.in_words(best),
        plain=run.fitted_title(first).lower(),
        numbers=", ".join(difference_text(row, title) for row, title in pairs if row is not None),
        alike=rows[best].low == rows[best].high == 0,
    )


def _tiles(run: Run) -> list[dict[str, Any]]:
    """The ECE on test of the first methods, for the tiles at the top of the page."""
    cells = {column: metric_cell(run.metric(column, "ece"), ECE) for column in run.column_of_each()[:_MOST_TILES]}
    return [
        {"title": run.method_title(column.method), "cell": cell, "colour": run.method_colour(column.method)}
        for column, cell in cells.items()
        if cell != NOTHING
    ]


def _method_sections(run: Run) -> list[Section]:
    resamples, bins = (run.setting(f"evaluation.{name}") for name in ("num_resamples", "num_bins"))
    fold = "The same on the validation split, on which the methods were fitted (optimistic)"
    test, val = (
        calibration.metric_table(run, split, f"{name} split")
        for split, name in (("test", "Test"), ("val", "Validation"))
    )
    table = Section(
        "Before and after calibration",
        tables=[test],
        notes=calibration.bold_words(run, "test", CRITERION) + say("intervals_of_run", resamples=resamples, bins=bins),
        parts=[Section(fold, tables=[val], folded=True)],
    )
    return [
        calibration.reliability_section(run, run.column_of_each(), "test", "Test"),
        *([table] if test else []),
        calibration.difference_section(run, "test", CRITERION, "On the test split"),
        calibration.loss_implied_section(run, run.setting("loss.gamma"), "test"),
    ]


def _training_sections(rows: Sequence[Row]) -> list[Section]:
    courses = [(f"training_{name}", title, figures.course(rows, name)) for name, (title, _) in figures.COURSES.items()]
    epoch = next((row.value for row in select(rows, Scalar, name="selected_epoch")), None)
    batches = batches_of_row(select(rows, Scalar, name="loss", split="train"))
    rows = in_training(rows)
    means = [(f"diagnostics_{name}", title, figures.outcomes(rows, name)) for name, (title, _) in figures.MEANS.items()]
    if norms := select(rows, Diagnostic, name="weight_norm"):
        drawn = figures.courses({"": (norms, "ink", "-")}, "epoch", "‖W‖, Frobenius norm")
        means.append(("diagnostics_weight_norm", "Norm of the last layer's weights", drawn))
    for split in splits_of(select(rows, HistogramBin))[:1]:
        title = f"Gradients of single examples, {split}"
        means.append(("diagnostics_gradient_norm", title, figures.gradient_norms(rows, split)))
    bins = [row for row in select(rows, ReliabilityBin, method=None) if row.share is not None]
    for split in splits_of(bins):
        last = max(row.epoch for row in bins if row.split == split)
        drawn = figures.diagram(latest_by(select(bins, ReliabilityBin, split=split, epoch=last), "bin"), sizes="share")
        means.append((f"diagnostics_reliability_{split}", f"Reliability on {split}, epoch {plain(last)}", drawn))
    return [
        Section("Training", figures=panels(*courses), notes=say("training", batches=batches, epoch=epoch)),
        Section("Training, example by example", figures=panels(*means), notes=say("diagnostics")),
    ]


def _curvature_section(rows: Sequence[Row]) -> Section:
    """Two losses side by side: largest eigenvalue and trace, the spectrum, and the parts of each."""
    heads = [("Value", ""), ("Error", ""), ("Effort", ""), ("Examples", "")]
    lines, drawn = [], []
    for name, (kind, _) in figures.ESTIMATES.items():
        present, title = measured(rows, kind, name), TITLES[name].title
        lines += [Line(title, measured_title(row), _curvature_cells(row)) for row in present]
        if present:
            drawn.append((f"curvature_{name}", title, figures.estimates(rows, name)))
        if select(in_training(rows), kind, name=name):
            drawn.append((f"training_{name}", f"{title} while training", figures.curvature_course(rows, name)))
    if not lines:
        return Section("")
    density = latest(rows, DensityBin)
    spectra = [
        (f"spectral_density_{split}", f"Eigenvalues on {split}", figures.density(rows, split))
        for split in splits_of(select(rows, DensityBin))
    ]
    final = [row for row in rows if row.epoch is None]
    by_split = {
        split: [row for row in final if getattr(row, "split", None) == split]
        for split in splits_of(select(final, AttributionPart))
    }
    parts = Section(
        "Where it comes from",
        words=say("paragraph", text=_attribution_words(by_split)),
        tables=[_attribution_table(own, f"Part, {split}") for split, own in by_split.items()],
        notes=say("parts"),
    )
    words = say("density", probes=density.probes, products=density.products) if density else ""
    return Section(
        "Curvature of the loss",
        words=_curvature_words(rows),
        tables=[Table("Hessian of", heads, lines)],
        figures=panels(*drawn),
        notes=say("hessian", estimators=sorted({str(r.estimator) for r in select(rows, Trace, name="trace")})),
        parts=[Section("All eigenvalues", figures=panels(*spectra), notes=words, layout="wide"), parts],
        layout="wide",
    )


def _curvature_cells(row: Eigenvalue | Trace) -> list[Cell]:
    value = Cell(significant(row.value), value=row.value)
    if isinstance(row, Trace):
        ends = f"[{significant(row.low)},\u00a0{significant(row.high)}]"
        value = value._replace(note=ends, low=row.low, high=row.high)
        by = f" ({_ESTIMATORS.get(row.estimator, row.estimator)})" if row.estimator else ""
        error, of, effort, products = row.stderr, "standard error", row.probes, f"Hessian products{by}"
    else:
        value = value._replace(note="" if row.converged else "not converged")
        error, of, effort, products = row.residual, "residual", row.products, "Hessian products"
    cells = (Cell(f"± {significant(error, 2)}", of, value=error), Cell(f"{effort:,}", products, value=effort))
    return [value, *cells, Cell(f"{row.n:,}", value=row.n)]


def _curvature_words(rows: Sequence[Row]) -> Markup:
    """One sentence that compares the training loss's trace on val with cross-entropy's; "" without both."""
    on_val = {row.loss: row for row in measured(rows, Trace, "trace") if row.split == "val"}
    cross = on_val.pop("cross_entropy", None)
    own = next(iter(on_val.values()), None)
    if own is None or cross is None or min(own.stderr, cross.stderr, own.value, cross.value) <= 0:
        return Markup()
    ratio = own.value / cross.value
    half = 1.96 * ratio * math.hypot(own.stderr / own.value, cross.stderr / cross.value)
    digits = max(2, 1 - math.floor(math.log10(half)))
    ends = interval(ratio - half, ratio + half, digits=digits)
    return say("curvature", loss=loss_title(own.loss), ratio=fixed(ratio, digits), ends=ends)


def _attribution_table(rows: Sequence[Row], corner: str) -> Table:
    parts = select(rows, AttributionPart)
    losses = list(dict.fromkeys(row.loss for row in parts))
    columns = [(of, loss) for of in ("trace", "lambda_max") for loss in losses]
    weight, named = latest(rows, Diagnostic, name="mean_weight"), list(_PARTS)
    if weight is not None:
        note = f"cross-entropy × mean weight {significant(weight.value, 2)}"
        named.append(("scale_only", "By scale alone", note))
    lines = [
        Line(
            title,
            note,
            [_part_cell(latest(parts, AttributionPart, of=of, loss=loss, part=part)) for of, loss in columns],
        )
        for part, title, note in named
    ]
    free = [_part_cell(latest(rows, Trace, name="scale_free_trace", loss=loss)) for loss in losses]
    note = "Σ θ² × diagonal of the Hessian"
    lines.append(Line(TITLES["scale_free_trace"].title, note, [*free, *[NOTHING] * len(losses)]))
    heads = [(TITLES[of].title, loss_title(loss)) for of, loss in columns]
    return Table(corner, heads, [line for line in lines if set(line.cells) != {NOTHING}])


def _part_cell(row: AttributionPart | Trace | None) -> Cell:
    if row is None:
        return NOTHING
    error = "" if row.stderr is None else f"± {significant(row.stderr, 2)}"
    if row.stderr is None or row.stderr < 1e-4:
        return Cell(significant(row.value), error, value=row.value)
    digits = max(1 - math.floor(math.log10(row.stderr)), 0)  # what lies below the error's second digit says nothing
    return Cell(fixed(row.value, digits), error, value=row.value)


def _attribution_words(by_split: dict[str, list[Row]]) -> Markup:
    """Sentences on the parts on val, or else on the first split: scaled or not, and by which examples."""
    rows = by_split.get("val") or next(iter(by_split.values()), [])
    weight, sentences = next(iter(select(rows, Diagnostic, name="mean_weight")), None), []
    parts = {row.part: row for row in select(rows, AttributionPart, of="trace", loss=weight.loss if weight else None)}
    beyond = parts.get("beyond_scaling")
    if beyond and beyond.low is not None and {"whole", "scale_only"} <= parts.keys():
        finding = "more" if beyond.low > 0 else "less" if beyond.high < 0 else ""
        finding = "rounding" if abs(beyond.value) < _ROUNDING * abs(parts["whole"].value) else finding
        sentences.append(
            say("scaling", loss=loss_title(weight.loss), weight=weight.value, parts=parts, finding=finding)
        )
    shares = {row.quantile: row for row in select(rows, Diagnostic, name="true_class_probability")}
    if {0.05, 0.5, 0.95} <= shares.keys():
        low, middle, high = (_probability(shares[level].value) for level in (0.05, 0.5, 0.95))
        sentences.append(say("probabilities", low=low, middle=middle, high=high, n=shares[0.5].n))
        raised, negative = (latest(rows, Diagnostic, name=f"share_{name}") for name in ("raised", "negative"))
        if raised and negative:
            numbers = {"raised": raised.value, "negative": negative.value}
            sentences.append(say("second_derivative", loss=loss_title(raised.loss), **numbers))
    return Markup(" ").join(sentences)


def _probability(value: float) -> str:
    """Three decimals, or as many as leave two digits of what is missing to 1, up to six."""
    return plain(round(value, max(3, 1 - math.floor(math.log10(max(1 - value, 1e-5))))))
