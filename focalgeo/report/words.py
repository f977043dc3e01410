"""Sentences computed from rows; they claim no more than the intervals do."""

from collections.abc import Sequence
from pathlib import PurePath

from focalgeo.report.selection import (
    AS_TRAINED,
    FOCAL,
    LOSS_IMPLIED,
    PLAIN,
    Column,
    Manifest,
    as_number,
    batches_of_row,
    column_of_each,
    columns_of,
    criterion_title,
    difference,
    differences,
    fits,
    fitted_title,
    has_interval,
    is_better,
    is_worse,
    loss_title,
    method_title,
    metric,
    setting,
    symbols_of,
)
from focalgeo.report.style import fixed, interval, percent, plain, points, rounded, short
from focalgeo.rows import LEAST_EXAMPLES, Difference, Metric, ReliabilityBin, Row, Scalar, Title, select

_LEVEL = 0.05  # two-sided, of one difference alone
_NLL = Title("NLL", "nats")
_ECE = Title("ECE", "%", scale=100.0, digits=2)
SPLIT_WORDS = {
    "test": "On the test examples, on which nothing was fitted.",
    "cross_fit": (
        "There was no test file: every example is measured with methods that were fitted without its fold, and a method"
        " was chosen by these numbers. The fitted numbers are those of all examples together, as in calibrator.json."
    ),
}


def data_title(manifest: Manifest, default: str) -> str:
    """Return the data set's name, of a path its last part alone: "newsgroups:/data/20news.tar.xz" is "20news"."""
    kind, _, path = str(manifest.get("data", {}).get("name", default)).partition(":")
    return short(PurePath(path).name.split(".")[0] if "/" in path else ":".join(filter(None, (kind, path))))


def training_loss(manifest: Manifest) -> str:
    """Return the training loss in words, such as "focal loss, γ = 3" (with spaces that do not break)."""
    name, gamma = setting(manifest, "loss.name"), as_number(setting(manifest, "loss.gamma"))
    if not isinstance(name, str):
        return "an unnamed loss"
    numbers = {
        "γ": gamma if "gamma" in manifest.get("loss_values", ()) else None,
        "trace penalty": as_number(setting(manifest, "loss.trace_penalty")) or None,
    }
    shown = [f"{what}\u00a0=\u00a0{plain(float(value))}" for what, value in numbers.items() if value is not None]
    return ", ".join([loss_title(short(name)), *shown])


def training_words(rows: Sequence[Row]) -> str:
    """Return sentences on the training rows: the number of batches behind each, by the distance between their steps."""
    losses = select(rows, Scalar, name="loss", split="train")
    batches = batches_of_row([row for row in losses if row.step is not None])
    if not batches:
        return ""
    what = f"the mean of {batches} batches" if batches > 1 else "a single batch"
    epochs = [row.value for row in select(rows, Scalar, name="selected_epoch")]
    kept = f" The parameters kept are those after epoch {epochs[0]:.0f}, the best on val." if epochs else ""
    return f"A training row is {what}, taken as the parameters move; a moving mean, where drawn, is of such rows.{kept}"


def interval_words(manifest: Manifest) -> str:
    """Return sentences on the intervals of metrics, with the run's numbers of resamples and bins where it has them."""
    resamples, bins = (as_number(setting(manifest, f"evaluation.{name}")) for name in ("num_resamples", "num_bins"))
    count = f" from {resamples:,} resamples of the examples" if isinstance(resamples, int) else ""
    binned = f" Both ECEs have {bins} bins." if isinstance(bins, int) else ""
    return (
        f"In brackets, bias-corrected bootstrap 95% intervals{count}: (2 × value − mean of the resamples)"
        " ±\u00a01.96 standard deviations of the resamples, or, where a metric that cannot be negative is too near"
        " 0 for that, from 0 to the root of what the squares give, or, where the resamples of a positive mean such as"
        " NLL are skewed to the right, what the logarithms give. Resampling biases ECE upwards, so its value lies in"
        f" the upper part of its interval. Accuracy has Wilson's interval.{binned}"
    )


def accuracy_words(rows: Sequence[Row], manifest: Manifest, split: str) -> str:
    """Return a sentence on whether the methods may change the accuracy; "" where neither rows nor manifest say so."""
    found = {each: metric(rows, each, "accuracy", split) for each in columns_of(rows, manifest, split)}
    found = {each: row for each, row in found.items() if row is not None}
    keeps = {manifest.get("methods", {}).get(each.method, {}).get("keeps_class") for each in found}
    if False in keeps or len({row.value for row in found.values()}) > 1:
        return "A method may change the predicted class, so accuracy is measured after each."
    return "These methods keep the predicted class, so accuracy does not change." if keeps == {True} else ""


def with_interval(row: Metric) -> str:
    """Return a share as a percentage with its interval, where it has one."""
    text = percent(row.value)
    return f"{text} {interval(row.low, row.high, scale=100)}" if has_interval(row) else text


def fitted_values(rows: Sequence[Row], column: Column) -> list[str]:
    """Return the fitted numbers of a column with their symbols, four digits of each: "T = 0.8"."""
    fitted = fits(rows, column)
    return [f"{symbol}\u00a0=\u00a0{rounded(fitted[name])}" for name, symbol in symbols_of(fitted).items()]


def column_words(rows: Sequence[Row], manifest: Manifest, column: Column) -> str:
    """Return a method with what was fitted: "focal temperature scaling (γ = 1, T = 0.8)"."""
    values = fitted_values(rows, column)
    return fitted_title(rows, manifest, column).lower() + (f" ({', '.join(values)})" if values else "")


def fitted_by(manifest: Manifest, columns: Sequence[Column]) -> str:
    """Return the criterion by which the methods of a figure are fitted: "ECE", or "ECE, vector scaling by NLL"."""
    fitted = [column for column in columns if column.criterion]
    others = [
        f"{method_title(manifest, column.method).lower()} by {criterion_title(column.criterion)}"
        for column in fitted
        if column.criterion != fitted[0].criterion
    ]
    return ", ".join([criterion_title(fitted[0].criterion), *others]) if fitted else ""


def verdict(rows: Sequence[Row], manifest: Manifest) -> list[str]:
    """Return the opening sentences: accuracy, ECE before and after, and which methods have a better NLL, if any."""
    accuracy, before = (metric(rows, AS_TRAINED, name) for name in ("accuracy", "ece"))
    sentences = ["This workdir holds no final test rows yet."]
    if accuracy is not None:
        subject = f"Trained with {training_loss(manifest)}, the network"
        count = "the" if accuracy.n is None else f"{accuracy.n:,}"
        sentences = [f"{subject} classifies {with_interval(accuracy)} of {count} test examples correctly."]
    if before is None:
        return sentences
    columns = [column for column in column_of_each(rows, manifest) if column != AS_TRAINED]
    first, others = columns[:1], columns[1:]
    shown = {column: metric(rows, column, "ece") for column in first}
    after = [
        f" and {with_interval(row)} after {column_words(rows, manifest, each)}" for each, row in shown.items() if row
    ]
    sentences.append(f"Its expected calibration error is {with_interval(before)} as trained{''.join(after)}.")
    compared = [_against_first(rows, manifest, first[0], others)] if others else []
    return [*sentences, *filter(None, compared)]


def _against_first(rows: Sequence[Row], manifest: Manifest, first: Column, others: Sequence[Column]) -> str:
    """Sentence on how many methods have a better NLL than the plainest on the same examples, and the best of them.

    Many methods are many chances: a difference counts where its p-value is below 5% / their number (Bonferroni).
    """
    found = {each: difference(differences(rows, "nll", "test"), each, first) for each in others}
    found = {each: row for each, row in found.items() if row is not None and not _is_same(rows, each, first)}
    plain = fitted_title(rows, manifest, first).lower()
    if not found:
        same = any(_is_same(rows, each, first) for each in others)
        return f"The fit chose γ = 0, so focal temperature scaling is {plain} here." if same else ""
    n = next(iter(found.values())).n
    if n < LEAST_EXAMPLES:
        return f"There are too few examples here ({n:,}) to compare the methods."
    counted = {each: row for each, row in found.items() if has_interval(row) and row.p_value < _LEVEL / len(found)}
    better, worse = ([each for each, row in counted.items() if is_finding(row)] for is_finding in (is_better, is_worse))
    best = min(better or found, key=lambda each: found[each].value)
    of_ece = difference(differences(rows, "ece", "test"), best, first)
    pairs = ((found[best], _NLL), (of_ece, _ECE))
    numbers = ", ".join(signed_words(row, title) for row, title in pairs if row is not None)
    name = column_words(rows, manifest, best)
    if len(found) > 1:
        return _of_many(len(found), len(better), len(worse), name, numbers, plain)
    if found[best].low == found[best].high == 0:
        return f"On the same examples, {name} has the NLL of {plain} to within rounding."
    finding = "has a lower NLL" if better else "has a higher NLL" if worse else "is not told apart"
    rest = f"than {plain} beyond noise" if better or worse else f"from {plain}"
    return f"On the same examples, {name} {finding} {rest} ({numbers})."


def _of_many(total: int, better: int, worse: int, best: str, numbers: str, plain: str) -> str:
    noise = f"beyond noise when all {total} are counted as chances"
    if better:
        return f"{_of(better, total)} a lower NLL than {plain} {noise}, {best} the lowest ({numbers})."
    higher = f"; {_of(worse, total)} a higher one" if worse else ""
    return f"No method has a lower NLL than {plain} {noise}; the nearest is {best} ({numbers}){higher}."


def _of(count: int, total: int) -> str:
    """So many methods of all others have."""
    return f"{count} of {total} other methods {'has' if count == 1 else 'have'}"


def _is_same(rows: Sequence[Row], column: Column, against: Column) -> bool:
    """Whether focal temperature scaling was fitted to be temperature scaling."""
    return (column.method, against.method) == (FOCAL, PLAIN) and fits(rows, column).get("calibration_gamma") == 0


def signed_words(row: Difference, entry: Title) -> str:
    """Return a metric's difference with its name and interval: "NLL −0.0261 nats [−0.0303, −0.0219]"."""
    return f"{entry.title}\u00a0{value_words(row, entry)}"


def value_words(row: Difference, entry: Title) -> str:
    """Return a metric's difference with its unit and interval."""
    unit = {"%": " percentage points", "": ""}.get(entry.unit, f"\u00a0{entry.unit}")
    ends = interval(row.low, row.high, scale=entry.scale, digits=entry.digits) if has_interval(row) else ""
    return f"{signed(row, entry)}{unit} {ends}".strip()


def signed(row: Difference, entry: Title) -> str:
    """Return a metric's difference as it is printed, with its sign."""
    text = fixed(entry.scale * row.value, entry.digits)
    return f"+{text}" if row.value > 0 and text.strip("0.,") else text


def difference_words(row: Difference) -> str:
    """Return a paired difference of shares with its interval."""
    ends = interval(row.low, row.high, scale=100)
    return f"{points(row.value)} percentage points, 95% interval {ends}"


def groups(rows: Sequence[Row], column: Column, split: str) -> list[Metric]:
    """Return the rows of the groups' ECE, the largest first."""
    found = select(rows, Metric, name="group_ece", split=split, **column._asdict())
    return sorted(found, key=lambda row: -row.value)


def group_words(rows: Sequence[Row], manifest: Manifest, column: Column, split: str) -> str:
    """Return a sentence on the worst calibrated group, with its interval; "" without groups."""
    found = groups(rows, column, split)
    if not found:
        return ""
    worst = found[0]
    many = f"the largest of {len(found)} groups, so part of it may be chance" if len(found) > 1 else "the only group"
    name = "as given" if column == AS_TRAINED else f"after {method_title(manifest, column.method).lower()}"
    count = "examples of unknown number" if worst.n is None else f"{worst.n:,} examples"
    return f"Worst calibrated {name} is group “{worst.group}”: ECE {with_interval(worst)} from {count}; {many}."


def loss_implied_words(rows: Sequence[Row], gamma: float | None, split: str) -> list[str]:
    """Return sentences on the miscalibration that the focal loss itself caused, which the loss-implied map undoes."""
    columns = (AS_TRAINED, Column(LOSS_IMPLIED))
    before, after = (metric(rows, column, "ece", split) for column in columns)
    row = difference(differences(rows, "ece", split), columns[1], AS_TRAINED)
    if gamma is None or before is None or after is None or row is None:
        return []
    value = f"γ\u00a0=\u00a0{plain(gamma)}"
    change = f"from {with_interval(before)} to {with_interval(after)}: {difference_words(row)}"
    text = (
        f"The model was trained with focal loss, {value}. The calibration map with that γ and T\u00a0=\u00a01, with"
        f" nothing fitted, takes the ECE {change}."
    )
    sides = [_mean_gap(rows, column, split) for column in columns]
    flipped = "" if sides[0] * sides[1] >= 0 else f", and turns it from {_side(sides[0])} to {_side(sides[1])}"
    if is_better(row):
        return [text, f"Undoing the loss makes it better calibrated{flipped}; what is left has other causes."]
    if is_worse(row):
        finding = "the rest of training has moved the outputs more"
        return [text, f"Undoing the loss makes calibration worse here{flipped}: {finding}."]
    return [text, "These examples do not show that the loss itself caused miscalibration."]


def _mean_gap(rows: Sequence[Row], column: Column, split: str) -> float:
    """Mean confidence less accuracy by the reliability rows, weighted by examples: above 0 is overconfident."""
    bins = select(rows, ReliabilityBin, name="reliability", split=split, **column._asdict())
    total = sum(row.n for row in bins)
    return sum(row.n * (row.confidence - row.value) for row in bins) / total if total else 0.0


def _side(gap: float) -> str:
    return "overconfident" if gap > 0 else "underconfident"
