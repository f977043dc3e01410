"""Where curvature comes from, as tables and sentences: two losses side by side, and their parts."""

import math
from collections.abc import Sequence

from focalgeo.report.formats import percent, plain, significant
from focalgeo.report.selection import Row, latest, loss_title, matching
from focalgeo.report.tables import Cell, Line, Table

_LINES = (
    ("whole", "Whole", "sum of the two parts"),
    ("gauss_newton", "Loss in the logits", "Gauss–Newton part"),
    ("softmax_weighted", "– softmax × weight", "each example's weight held"),
    ("rank_one", "– change of weight", "rank one, of either sign"),
    ("residual", "Network in its parameters", "residual part"),
)
_NOTHING = Cell("–")
ROUNDING = 1e-4  # of the whole: float32 says nothing of a difference below


def attribution_tables(rows: Sequence[Row]) -> list[tuple[str, Table]]:
    """Return (split, table) of the parts of trace and largest eigenvalue; empty without such rows."""
    splits = dict.fromkeys(row.get("split", "") for row in matching(rows, {"name": "attribution"}))
    return [(split, _table(matching(rows, {"split": split} if split else {}))) for split in splits]


def _table(rows: Sequence[Row]) -> Table:
    parts = matching(rows, {"name": "attribution"})
    losses = list(dict.fromkeys(row["loss"] for row in parts))
    columns = [(of, loss) for of in ("trace", "lambda_max") for loss in losses]
    titles = {"trace": "Trace", "lambda_max": "Largest eigenvalue"}
    heads = [(titles[of], loss_title(loss)) for of, loss in columns]
    lines = [Line(title, note, _part_cells(parts, columns, part)) for part, title, note in _LINES]
    weight = latest(rows, {"name": "mean_weight"})
    if weight is not None:
        note = f"cross-entropy × mean weight {significant(weight['value'], 2)}"
        lines.append(Line("By scale alone", note, _part_cells(parts, columns, "scale_only")))
    free = [latest(rows, {"name": "scale_free_trace", "loss": loss}) for loss in losses]
    cells = [*map(_cell, free), *[_NOTHING for _ in losses]]
    lines.append(Line("Scale-free trace", "Σ θ² × diagonal of the Hessian", cells))
    return Table(heads, [line for line in lines if set(line.cells) != {_NOTHING}])


def _part_cells(parts: Sequence[Row], columns: Sequence[tuple[str, str]], part: str) -> list[Cell]:
    return [_cell(latest(parts, {"of": of, "loss": loss, "part": part})) for of, loss in columns]


def _cell(row: Row | None) -> Cell:
    if row is None:
        return _NOTHING
    if row.get("stderr", 0) < 1e-4:
        return Cell(significant(row["value"]), f"± {significant(row['stderr'], 2)}" if "stderr" in row else "")
    digits = max(1 - math.floor(math.log10(row["stderr"])), 0)  # what lies below the error's second digit says nothing
    return Cell(f"{row['value']:,.{digits}f}".replace("-", "−"), f"± {significant(row['stderr'], 2)}")


def attribution_words(rows: Sequence[Row]) -> list[str]:
    """Return what the parts say on val, or else on the first split: scaled or not, and by which examples."""
    found = matching(rows, {"name": "attribution"})
    split = "val" if matching(found, {"split": "val"}) else next((row.get("split") for row in found), None)
    here = matching(rows, {"split": split})
    own = next((row["loss"] for row in matching(here, {"name": "mean_weight"})), None)
    return ([] if own is None else _scale_words(here, own)) + _probability_words(here)


def _scale_words(rows: Sequence[Row], loss: str) -> list[str]:
    where = {"name": "attribution", "of": "trace", "loss": loss}
    found = [latest(rows, {**where, "part": part}) for part in ("whole", "scale_only", "beyond_scaling")]
    if None in found or "low" not in found[2]:
        return []
    whole, scaled, beyond = found
    weight = latest(rows, {"name": "mean_weight", "loss": loss})
    if abs(beyond["value"]) < ROUNDING * abs(whole["value"]):
        finding = "which is nothing but rounding: it only scales"
    elif beyond["low"] > 0:
        finding = "more than scaling leaves: beyond its scale the loss adds curvature here, it does not flatten"
    elif beyond["high"] < 0:
        finding = "less than scaling leaves: the loss flattens the surface here, beyond its scale"
    else:
        finding = "which the errors do not tell from scaling"
    ends = f"[{significant(beyond['low'], 3)},\u00a0{significant(beyond['high'], 3)}]"
    return [
        f"Had the {loss_title(loss)} only scaled cross-entropy by its mean weight of {significant(weight['value'], 2)},"
        f" the trace would be {significant(scaled['value'], 3)}; it is {significant(whole['value'], 3)}, a difference"
        f" of {significant(beyond['value'], 3)} (95% interval {ends} from the samples), {finding}."
    ]


def _probability_words(rows: Sequence[Row]) -> list[str]:
    found = [row for row in matching(rows, {"name": "true_class_probability"}) if "quantile" in row]
    quantiles = {row["quantile"]: row for row in found}
    if not {0.05, 0.5, 0.95} <= set(quantiles):
        return []
    low, middle, high = (_probability(quantiles[level]["value"]) for level in (0.05, 0.5, 0.95))
    n = quantiles[0.5]["n"]
    words = [f"The true class's probability is {middle} in the median of these {n:,} examples, 5% lie below {low}"]
    words[0] += f" and 5% above {high}."
    raised, negative = (next(iter(matching(rows, {"name": f"share_{name}"})), None) for name in ("raised", "negative"))
    if raised is not None and negative is not None:
        words.append(
            f"In the true logit the {loss_title(raised['loss'])} bends more than cross-entropy for"
            f" {percent(raised['value'], 1)} of them, and downwards for {percent(negative['value'], 1)}."
        )
    return words


def _probability(value: float) -> str:
    """Three decimals, or as many as leave two digits of what is missing to 1, up to six."""
    rest = max(1 - value, 1e-5)
    return plain(round(value, max(3, 1 - math.floor(math.log10(rest)))))
