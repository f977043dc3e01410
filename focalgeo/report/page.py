"""The page of a workdir: figures and tables in one HTML file that opens without a network."""

import math
from collections.abc import Callable
from pathlib import Path

from markupsafe import Markup

from focalgeo import files, records
from focalgeo.report import calibration, row_figures, style, sweep
from focalgeo.report.sections import (
    NOTHING,
    Cell,
    Line,
    Panel,
    Section,
    Table,
    metric_cell,
    record,
    say,
    write_page,
)
from focalgeo.report.selection import (
    AS_TRAINED,
    ECE,
    Run,
    finding,
    grouped,
    in_training,
    latest,
    latest_by,
    loss_title,
    measured,
    measured_title,
    splits_of,
)
from focalgeo.report.style import significant
from focalgeo.rows import (
    LEAST_EXAMPLES,
    TITLES,
    Z95,
    AttributionPart,
    DensityBin,
    Diagnostic,
    Eigenvalue,
    HistogramBin,
    ReliabilityBin,
    Scalar,
    Trace,
    select,
)

_ESTIMATORS = {"hutchinson": "Hutchinson", "hutch++": "Hutch++", "xtrace": "XTrace"}
_PARTS = (
    ("whole", "Whole", "sum of the two parts"),
    ("gauss_newton", "Loss in the logits", "Gauss–Newton part"),
    ("softmax_weighted", "– softmax × weight", "each example's weight held"),
    ("rank_one", "– change of weight", "rank one, of either sign"),
    ("residual", "Network in its parameters", "residual part"),
    ("scale_only", "By scale alone", ""),
    ("scale_free_trace", TITLES["scale_free_trace"], "Σ θ² × diagonal of the Hessian"),
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
    with files.reading(f"the page of {folder}", "choose another workdir"):
        _, write, _ = kind_of(run)
        return write(folder / "report.html", run, search)


def kind_of(run: Run) -> tuple[str, Callable, Callable]:
    """Return which page a workdir has, "calibration", "sweep" or "run", what writes it, and its first sentences."""
    if "calibration" in run.manifest:
        return "calibration", calibration.write_calibration, calibration.verdict
    return ("sweep", sweep.write_sweep, sweep.headline) if sweep.axes_of(run) else ("run", _write_run, verdict)


def _write_run(path, run, search):
    """Write the page of one run: what it reached, before and after calibration, how it trained, its curvature."""
    on_val = Section(
        "The same on the validation split, on which the methods were fitted (optimistic)",
        tables=[calibration.metric_table(run, "val", "Validation split")],
        folded=True,
    )
    return write_page(
        path,
        f"{run.data_title or 'A run'}: {run.loss}",
        [
            calibration.reliability_section(run),
            calibration.compared_section(
                run, calibration.metric_table(run, "test", "Test split"), say("intervals_of_run", run=run), on_val
            ),
            calibration.difference_section(run),
            calibration.loss_implied_section(run, run.setting("loss.gamma")),
            *_training_sections(run.rows),
            calibration.search_section(run, search),
            _curvature_section(run.rows),
            record(run, "The run"),
        ],
        lead=verdict(run),
        tiles=[
            (f"ECE, {run.method_title(of).lower()}", metric_cell(row, ECE), run.method_colour(of), "")
            for of in run.column_of_each()[:4]
            if (row := run.metric(of, "ece"))
        ],
    )


def verdict(run: Run) -> Markup:
    """Return the opening sentences: accuracy, ECE before and after, and which methods have a better NLL, if any."""
    first, *others = [column for column in run.column_of_each() if column != AS_TRAINED] or [None]
    return say(
        "verdict",
        run=run,
        accuracy=run.metric(AS_TRAINED, "accuracy"),
        before=run.metric(AS_TRAINED, "ece"),
        after=first and run.metric(first, "ece"),
        first=first and run.in_words(first),
        compared=_compared(run, first, others) if first else "",
    )


def _compared(run, first, others):
    """Sentence on how many methods have a better NLL than the simplest on the same examples, and the best of them.

    Many methods are many chances: a difference counts where its p-value is below 5% / their number (Bonferroni).
    """
    plain = run.fitted_title(first)  # which a focal map is where it came to gamma 0
    different = [column for column in others if run.fitted_title(column) != plain]
    rows = {column: row for column in different if (row := run.difference("nll", "test", column, first))}
    if not rows:
        return say("gamma_0", plain=plain.lower()) if len(different) < len(others) else Markup()
    n = next(iter(rows.values())).n
    if n < LEAST_EXAMPLES:
        return say("too_few", n=n)
    findings = {c: finding(row) for c, row in rows.items() if row.p_value < calibration.LEVEL / len(rows)}
    better = [column for column, side in findings.items() if side == "better"]
    best = min(better or rows, key=lambda column: rows[column].value)
    return say(
        "compared",
        total=len(rows),
        better=len(better),
        worse=[*findings.values()].count("worse"),
        best=run.in_words(best),
        plain=plain.lower(),
        differences={"nll": rows[best], "ece": run.difference("ece", "test", best, first)},
        run=run,
    )


def _training_sections(rows):
    """What was measured of batches and validation, and then of single examples."""
    courses = [
        Panel(f"training_{name}", title, row_figures.course(rows, name))
        for name, (title, _) in row_figures.COURSES.items()
    ]
    # a training row is a mean over the batches since the row before it, the first over those since the start
    batches = min((row.step for row in select(rows, Scalar, name="loss", split="train")), default=0)
    notes = say("training", batches=batches, epoch=latest(rows, Scalar, name="selected_epoch"))
    rows = in_training(rows)
    panels = [
        Panel(f"diagnostics_{name}", title, row_figures.means(rows, name))
        for name, (title, _) in row_figures.MEANS.items()
    ]
    for split in splits_of(select(rows, HistogramBin))[:1]:
        drawn = row_figures.gradient_norms(rows, split)
        panels.append(Panel("diagnostics_gradient_norm", f"Gradients of single examples, {split}", drawn))
    *_, last = [], *grouped(select(rows, ReliabilityBin), "epoch")
    for split in splits_of(last):
        title = f"Reliability on {split}, epoch {style.rounded(last[0].epoch)}"
        drawn = row_figures.diagram(latest_by(select(last, ReliabilityBin, split=split), "bin"))
        panels.append(Panel(f"diagnostics_reliability_{split}", title, drawn))
    return [
        Section("Training", figures=courses, notes=notes),
        Section("Training, example by example", figures=panels, notes=say("diagnostics")),
    ]


def _curvature_section(rows):
    """Two losses side by side: largest eigenvalue and trace, the spectrum, and the parts of each."""
    lines, drawn = [], []
    for name, title in TITLES.items():
        # the scale-free trace is a line among the parts
        found = () if name == "scale_free_trace" else measured(rows, name)
        lines += [Line(title, measured_title(row), _curvature_cells(row)) for row in found]
        if name in row_figures.ESTIMATES:
            drawn += [
                Panel(f"curvature_{name}", title, row_figures.estimates(rows, name)),
                Panel(f"training_{name}", f"{title} while training", row_figures.curvature_course(rows, name)),
            ]
    density = [
        Panel(f"spectral_density_{split}", f"Eigenvalues on {split}", row_figures.density(rows, split))
        for split in splits_of(select(rows, DensityBin))
    ]
    return Section(
        "Curvature of the loss",
        _curvature_words(rows),
        [Table("Hessian of", [(title, "") for title in ("Value", "Error", "Effort", "Examples")], lines)],
        drawn,
        say("hessian", estimators=sorted({str(row.estimator) for row in select(rows, Trace, name="trace")})),
        [
            Section(
                "All eigenvalues", figures=density, notes=say("density", row=latest(rows, DensityBin)), layout="wide"
            ),
            _attribution_section(rows),
        ],
        layout="wide",
    )


def _curvature_cells(row):
    """The value with its interval or a warning, its error, what it took, and of how many examples it is."""
    note, low, high, products = "", None, None, "Hessian products"
    if isinstance(row, Trace):
        low, high, error, of, effort = row.low, row.high, row.stderr, "standard error", row.probes
        note = f"[{significant(low)},\u00a0{significant(high)}]"
        products += f" ({_ESTIMATORS.get(row.estimator, row.estimator)})" if row.estimator else ""
    elif isinstance(row, Eigenvalue):
        note, error, of, effort = "" if row.converged else "not converged", row.residual, "residual", row.products
    else:
        error, of, effort = row.error, "", 0
    return [
        Cell(significant(row.value), note, value=row.value, low=low, high=high),
        Cell(f"± {significant(error, 2)}", of, value=error),
        Cell(f"{effort:,}", products, value=effort) if effort else NOTHING,
        Cell(f"{row.n:,}", value=row.n),
    ]


def _curvature_words(rows):
    """One sentence that compares the training loss's trace on val with cross-entropy's; "" without both."""
    on_val = {row.loss: row for row in measured(rows, "trace") if row.split == "val"}
    cross, row = on_val.pop("cross_entropy", None), next(iter(on_val.values()), None)
    if row is None or cross is None or min(row.value, cross.value) <= 0:
        return Markup()
    ratio = row.value / cross.value
    # the delta method: relative errors of a ratio add in squares
    half = Z95 * ratio * math.hypot(row.stderr / row.value, cross.stderr / cross.value)
    return say("curvature", loss=row.loss, ratio=ratio, ends=style.ends(ratio - half, ratio + half))


def _attribution_section(rows):
    """The parts of each split: a line for each, a column for each loss of the trace's, then of the eigenvalue's."""
    rows = [row for row in rows if row.epoch is None]
    splits, tables = splits_of(select(rows, AttributionPart)), []
    for split in splits:
        cells = {(row.part, row.of, row.loss): row for row in select(rows, AttributionPart, split=split)}
        columns = sorted(dict.fromkeys(key[1:] for key in cells), key=lambda column: column[0] != "trace")
        for row in select(rows, Trace, name="scale_free_trace", split=split):
            cells["scale_free_trace", "trace", row.loss] = row
        weight = latest(rows, Diagnostic, name="mean_weight", split=split)
        scale = f"cross-entropy × mean weight {significant(weight.value, 2)}" if weight else ""
        lines = []
        for part, title, note in _PARTS:
            found = [cells.get((part, *column)) for column in columns]
            line = [
                Cell(significant(row.value), f"± {significant(row.stderr, 2)}" if row.stderr else "", value=row.value)
                if row
                else NOTHING
                for row in found
            ]
            if any(found):
                lines.append(Line(title, scale if part == "scale_only" else note, line))
        heads = [(TITLES[of], loss_title(loss)) for of, loss in columns]
        tables.append(Table(f"Part, {split}", heads, lines))
    # the sentences are about val, as choices are
    rows = select(rows, AttributionPart | Diagnostic, split="val" if "val" in splits else next(iter(splits), ""))
    beyond = latest(rows, AttributionPart, of="trace", part="beyond_scaling")
    words = say(
        "attribution",
        parts={row.part: row for row in select(rows, AttributionPart, of="trace", loss=beyond and beyond.loss)},
        named={row.name: row for row in select(rows, Diagnostic, quantile=None)},
        quantiles={row.quantile: row for row in select(rows, Diagnostic, name="true_class_probability")},
    )
    return Section("Where it comes from", say("paragraph", text=words), tables, notes=say("parts"))
