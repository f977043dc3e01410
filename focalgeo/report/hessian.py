"""Curvature on the page: figures, tables and sentences on two losses side by side, with the parts of each."""

import math
from collections.abc import Iterator, Sequence

from focalgeo.report.curves import curvature_curve_figure
from focalgeo.report.figures import bounds, density_figure, density_splits, estimate_figure
from focalgeo.report.panels import Panel
from focalgeo.report.selection import final, in_training, latest, loss_title, measured, measured_title
from focalgeo.report.style import fixed, interval, percent, plain, significant
from focalgeo.report.tables import NOTHING, Cell, Line, Table
from focalgeo.rows import TITLES, AttributionPart, DensityBin, Diagnostic, Eigenvalue, Row, Trace, select

_ESTIMATES = {"lambda_max": Eigenvalue, "trace": Trace}
_ESTIMATORS = {"hutchinson": "Hutchinson", "hutch++": "Hutch++", "xtrace": "XTrace"}
_PARTS = (
    ("whole", "Whole", "sum of the two parts"),
    ("gauss_newton", "Loss in the logits", "Gauss–Newton part"),
    ("softmax_weighted", "– softmax × weight", "each example's weight held"),
    ("rank_one", "– change of weight", "rank one, of either sign"),
    ("residual", "Network in its parameters", "residual part"),
)
ROUNDING = 1e-4  # of the whole: float32 says nothing of a difference below


def curvature_panels(rows: Sequence[Row]) -> Iterator[Panel]:
    """Yield the estimates after training and while training, and the spectra, as far as there are rows for them."""
    for name, kind in _ESTIMATES.items():
        if measured(rows, kind, name):
            yield Panel("curvature", f"curvature_{name}", TITLES[name].title, estimate_figure(rows, name))
        if select(in_training(rows), kind, name=name):
            figure = curvature_curve_figure(rows, name)
            yield Panel("curvature", f"training_{name}", f"{TITLES[name].title} while training", figure)
    for split in density_splits(rows):
        figure = density_figure(rows, split)
        yield Panel("density", f"spectral_density_{split}", f"Eigenvalues on {split}", figure)


def curvature_table(rows: Sequence[Row]) -> Table | None:
    """Return largest eigenvalue and trace of each loss with error, effort and examples; None without such rows."""
    lines = []
    for name, kind in _ESTIMATES.items():
        lines += [
            Line(TITLES[name].title, measured_title(row), _curvature_cells(row)) for row in measured(rows, kind, name)
        ]
    heads = [("Value", ""), ("Error", ""), ("Effort", ""), ("Examples", "")]
    return Table(heads, lines) if lines else None


def _curvature_cells(row: Eigenvalue | Trace) -> list[Cell]:
    if isinstance(row, Trace):
        low, high = bounds(row)
        value = Cell(significant(row.value), numbers=(row.value,))
        if low <= high:
            within = f"[{significant(low)},\u00a0{significant(high)}]"
            value = value._replace(note=within, numbers=(row.value, low, high))
        error = Cell(f"± {significant(row.stderr, 2)}", "standard error", numbers=(row.stderr,))
        by = f" ({_ESTIMATORS.get(row.estimator, row.estimator)})" if row.estimator else ""
        effort = Cell(f"{row.probes:,}", f"Hessian products{by}", numbers=(row.probes,))
    else:
        value = Cell(significant(row.value), "" if row.converged else "not converged", numbers=(row.value,))
        error = Cell(f"± {significant(row.residual, 2)}", "residual", numbers=(row.residual,))
        effort = Cell(f"{row.products:,}", "Hessian products", numbers=(row.products,))
    return [value, error, effort, Cell(f"{row.n:,}", numbers=(row.n,))]


def trace_words(rows: Sequence[Row]) -> str:
    """Return the sentence on how the traces were estimated, as their rows say."""
    estimators = {row.estimator for row in select(rows, Trace, name="trace")}
    if estimators == {"hutch++"}:
        return (
            "estimated by Hutch++: two thirds of the Hessian products build a part that is exact, and a third are"
            " random samples of the rest, from which standard error and 95% interval come"
        )
    if estimators == {"xtrace"}:
        return (
            "estimated by XTrace: each random vector samples what all the others leave, and standard error and 95%"
            " interval come from the spread of these samples"
        )
    return "estimated from random samples, with the standard error and 95% interval of their mean"


def density_words(rows: Sequence[Row]) -> str:
    """Return the sentence on how the distribution of eigenvalues was found, as its rows say."""
    row = latest(rows, DensityBin)
    if row is None:
        return ""
    return (
        f"By stochastic Lanczos quadrature from {row.probes} random vectors, {row.products:,} Hessian products"
        " for each loss; the band is one standard error over them. Bins are even in the eigenvalue near 0 and in its"
        " logarithm beyond. Eigenvalues far out are told apart, and one alone has the share 1 / number of parameters;"
        " close together near 0 they fall on the method's own points, and a gap between these says nothing."
    )


def curvature_words(rows: Sequence[Row]) -> str:
    """Return one sentence that compares the training loss's trace on val with cross-entropy's; "" without both."""
    on_val = {row.loss: row for row in measured(rows, Trace, "trace") if row.split == "val"}
    other = next((loss for loss in on_val if loss != "cross_entropy"), "")
    own, cross = on_val.get(other), on_val.get("cross_entropy")
    if own is None or cross is None or min(own.stderr, cross.stderr, own.value, cross.value) <= 0:
        return ""
    ratio = own.value / cross.value
    half = 1.96 * ratio * math.hypot(own.stderr / own.value, cross.stderr / cross.value)
    if not 0 < half < math.inf or not 0 < ratio < math.inf:  # of numbers at float32's ends
        return ""
    digits = min(max(2, 1 - math.floor(math.log10(half))), 12)
    ends = interval(ratio - half, ratio + half, digits=digits)
    return (
        f"At the trained parameters the {loss_title(other)}'s trace is {ratio:.{digits}f} times that of cross-entropy"
        f" (approximate 95% interval {ends}, from the two standard errors)."
    )


def attribution_tables(rows: Sequence[Row]) -> list[tuple[str, Table]]:
    """Return (split, table) of the parts of trace and largest eigenvalue; empty without such rows."""
    rows = final(rows)
    splits = dict.fromkeys(row.split for row in select(rows, AttributionPart))
    return [(split, _table([row for row in rows if getattr(row, "split", None) == split])) for split in splits]


def _table(rows: Sequence[Row]) -> Table:
    parts = select(rows, AttributionPart)
    losses = list(dict.fromkeys(row.loss for row in parts))
    columns = [(of, loss) for of in ("trace", "lambda_max") for loss in losses]
    heads = [(TITLES[of].title, loss_title(loss)) for of, loss in columns]
    lines = [Line(title, note, _part_cells(parts, columns, part)) for part, title, note in _PARTS]
    weight = latest(rows, Diagnostic, name="mean_weight")
    if weight is not None:
        note = f"cross-entropy × mean weight {significant(weight.value, 2)}"
        lines.append(Line("By scale alone", note, _part_cells(parts, columns, "scale_only")))
    free = [latest(rows, Trace, name="scale_free_trace", loss=loss) for loss in losses]
    cells = [*map(_part_cell, free), *[NOTHING for _ in losses]]
    lines.append(Line(TITLES["scale_free_trace"].title, "Σ θ² × diagonal of the Hessian", cells))
    return Table(heads, [line for line in lines if set(line.cells) != {NOTHING}])


def _part_cells(parts: Sequence[Row], columns: Sequence[tuple[str, str]], part: str) -> list[Cell]:
    return [_part_cell(latest(parts, AttributionPart, of=of, loss=loss, part=part)) for of, loss in columns]


def _part_cell(row: AttributionPart | Trace | None) -> Cell:
    if row is None:
        return NOTHING
    error = "" if row.stderr is None else f"± {significant(row.stderr, 2)}"
    if row.stderr is None or row.stderr < 1e-4:
        return Cell(significant(row.value), error, numbers=(row.value,))
    digits = max(1 - math.floor(math.log10(row.stderr)), 0)  # what lies below the error's second digit says nothing
    return Cell(fixed(row.value, digits), error, numbers=(row.value,))


def attribution_words(rows: Sequence[Row]) -> list[str]:
    """Return sentences on the parts on val, or else on the first split: scaled or not, and by which examples."""
    rows = final(rows)
    splits = [row.split for row in select(rows, AttributionPart)]
    split = "val" if "val" in splits else next(iter(splits), None)
    here = [row for row in rows if getattr(row, "split", None) == split]
    weight = next(iter(select(here, Diagnostic, name="mean_weight")), None)
    return ([] if weight is None else _scale_words(here, weight)) + _probability_words(here)


def _scale_words(rows: Sequence[Row], weight: Diagnostic) -> list[str]:
    parts = {row.part: row for row in select(rows, AttributionPart, of="trace", loss=weight.loss)}
    if not {"whole", "scale_only", "beyond_scaling"} <= parts.keys():
        return []
    whole, scaled, beyond = (parts[name] for name in ("whole", "scale_only", "beyond_scaling"))
    if beyond.low is None or beyond.high is None:
        return []
    if abs(beyond.value) < ROUNDING * abs(whole.value):
        finding = "which is nothing but rounding: it only scales"
    elif beyond.low > 0:
        finding = "more than scaling leaves: beyond its scale the loss adds curvature here, it does not flatten"
    elif beyond.high < 0:
        finding = "less than scaling leaves: the loss flattens the surface here, beyond its scale"
    else:
        finding = "which the errors do not tell from scaling"
    ends = f"[{significant(beyond.low, 3)},\u00a0{significant(beyond.high, 3)}]"
    factor = significant(weight.value, 2)
    return [
        f"Had the {loss_title(weight.loss)} only scaled cross-entropy by its mean weight of {factor},"
        f" the trace would be {significant(scaled.value, 3)}; it is {significant(whole.value, 3)}, a difference"
        f" of {significant(beyond.value, 3)} (95% interval {ends} from the samples), {finding}."
    ]


def _probability_words(rows: Sequence[Row]) -> list[str]:
    found = select(rows, Diagnostic, name="true_class_probability")
    quantiles = {row.quantile: row for row in found if row.quantile is not None}
    if not {0.05, 0.5, 0.95} <= set(quantiles):
        return []
    low, middle, high = (_probability(quantiles[level].value) for level in (0.05, 0.5, 0.95))
    n = "" if quantiles[0.5].n is None else f"{quantiles[0.5].n:,} "
    words = [f"The true class's probability is {middle} in the median of these {n}examples, 5% lie below {low}"]
    words[0] += f" and 5% above {high}."
    raised, negative = (latest(rows, Diagnostic, name=f"share_{name}") for name in ("raised", "negative"))
    if raised is not None and raised.loss is not None and negative is not None:
        words.append(
            f"The {loss_title(raised.loss)}'s second derivative in the true logit exceeds cross-entropy's for"
            f" {percent(raised.value, 1)} of them, and is below 0 for {percent(negative.value, 1)}."
        )
    return words


def _probability(value: float) -> str:
    """Three decimals, or as many as leave two digits of what is missing to 1, up to six."""
    rest = max(1 - value, 1e-5)
    return plain(round(value, max(3, 1 - math.floor(math.log10(rest)))))
