"""Sentences computed from rows; they claim no more than the intervals do."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from focalgeo.report.selection import (
    AS_TRAINED,
    FOCAL,
    LOSS_IMPLIED,
    PLAIN,
    UNCALIBRATED,
    Column,
    Manifest,
    as_number,
    batches_of_row,
    column_of_each,
    columns_of,
    fits,
    has_interval,
    latest,
    loss_title,
    method_title,
    metric,
    setting,
    symbols_of,
)
from focalgeo.report.style import interval, percent, plain, points, short
from focalgeo.rows import LEAST_EXAMPLES, Difference, Metric, ReliabilityBin, Row, Scalar, select

_EXAMPLES = {"test": "this test set does"}
SPLIT_WORDS = {
    "test": "On the test examples, on which nothing was fitted.",
    "cross_fit": (
        "There was no test file: every example is measured with methods that were fitted without its fold. The fitted"
        " numbers of this table are those of all examples together, which calibrator.json holds."
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
    batches = batches_of_row([row for row in losses if row.tags.step is not None])
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
        " 0 for that, from 0 to the root of what the squares give. Resampling biases ECE upwards, so its value lies in"
        f" the upper part of its interval. Accuracy has Wilson's interval.{binned}"
    )


def accuracy_words(rows: Sequence[Row], manifest: Manifest, split: str) -> str:
    """Return a sentence on whether the methods' accuracies differ; "" without any."""
    found = {
        row.value
        for row in (metric(rows, each, "accuracy", split) for each in columns_of(rows, manifest, split))
        if row
    }
    if len(found) > 1:
        return "A method may change the predicted class, so accuracy is measured after each."
    return "These methods keep the order of the classes, so accuracy does not change." if found else ""


def with_interval(row: Metric) -> str:
    """Return a share as a percentage with its interval, where it has one."""
    text = percent(row.value)
    return f"{text} {interval(row.low, row.high, scale=100)}" if has_interval(row) else text


def column_words(rows: Sequence[Row], manifest: Manifest, column: Column) -> str:
    """Return a method with what was fitted: "focal temperature scaling (γ = 1, T = 0.8)"."""
    fitted = fits(rows, column)
    values = [f"{symbol}\u00a0=\u00a0{plain(fitted[name])}" for name, symbol in symbols_of(fitted).items()]
    return method_title(manifest, column.method).lower() + (f" ({', '.join(values)})" if values else "")


def _after_words(rows: Sequence[Row], manifest: Manifest, column: Column, split: str) -> str:
    row = metric(rows, column, "ece", split)
    shown = "not measured" if row is None else with_interval(row)
    return f"{column_words(rows, manifest, column)} it is {shown}"


def fitted_by(manifest: Manifest, columns: Sequence[Column]) -> str:
    """Return the criterion by which the methods of a figure are fitted: "ECE", or "ECE, vector scaling by NLL"."""
    fitted = [column for column in columns if column.criterion]
    others = [
        f"{method_title(manifest, column.method).lower()} by {column.criterion.upper()}"
        for column in fitted
        if column.criterion != fitted[0].criterion
    ]
    return ", ".join([fitted[0].criterion.upper(), *others]) if fitted else ""


def verdict(rows: Sequence[Row], manifest: Manifest) -> list[str]:
    """Return the opening sentences: accuracy, ECE before and after, and which of two methods is better, if either."""
    accuracy, before = (metric(rows, AS_TRAINED, name) for name in ("accuracy", "ece"))
    sentences = ["This workdir holds no final test rows yet."]
    if accuracy is not None:
        subject = f"Trained with {training_loss(manifest)}, the network"
        count = "the" if accuracy.n is None else f"{accuracy.n:,}"
        sentences = [f"{subject} classifies {with_interval(accuracy)} of {count} test examples correctly."]
    if before is None:
        return sentences
    columns = [column for column in column_of_each(rows, manifest) if column != AS_TRAINED]
    after = [_after_words(rows, manifest, column, "test") for column in columns]
    change = f"; after {', and after '.join(after)}" if after else ""
    sentences.append(f"Its expected calibration error is {with_interval(before)} as trained{change}.")
    return sentences + [_comparison(rows, manifest, row) for row in _pairs(rows, columns, "test")]


def difference(rows: Sequence[Row], column: Column, against: str, split: str = "test") -> Difference | None:
    """Return the row of a column's ECE less that of another method, on the same examples."""
    return latest(rows, Difference, name="ece_difference", split=split, against=against, **column._asdict())


def difference_words(row: Difference) -> str:
    """Return a paired difference with its interval."""
    ends = interval(row.low, row.high, scale=100)
    return f"{points(row.value)} percentage points, 95% interval {ends}"


def _pairs(rows: Sequence[Row], columns: Sequence[Column], split: str) -> Iterator[Difference]:
    """The differences in ECE of these columns less fitted methods."""
    for column in columns:
        found = select(rows, Difference, name="ece_difference", split=split, **column._asdict())
        yield from {row.against: row for row in found if row.against != UNCALIBRATED}.values()


def _is_same(rows: Sequence[Row], row: Difference) -> bool:
    """Whether focal temperature scaling was fitted to be temperature scaling."""
    fitted = fits(rows, Column(row.method, row.criterion))
    return (row.method, row.against) == (FOCAL, PLAIN) and fitted.get("calibration_gamma") == 0


def _names(manifest: Manifest, row: Difference) -> tuple[str, str, str]:
    """The two methods of a difference, and the difference itself in words."""
    first, second = (method_title(manifest, name).lower() for name in (row.method, row.against))
    if (row.method, row.against) == (FOCAL, PLAIN):
        return first, f"plain {second}", "focal minus plain temperature scaling"
    return first, second, f"{first} minus {second}"


def _comparison(rows: Sequence[Row], manifest: Manifest, row: Difference) -> str:
    """Sentence on one fitted method against another, by their paired difference on the same examples."""
    name, _, pair = _names(manifest, row)
    if _is_same(rows, row):
        return "The fit chose γ = 0, so focal temperature scaling is temperature scaling here."
    if row.n < LEAST_EXAMPLES or not has_interval(row):
        return f"There are too few examples here ({row.n:,}) to compare the two methods."
    if row.high < 0:
        finding = f"{name} is better calibrated here"
    elif row.low > 0:
        finding = f"{name} is worse calibrated here"
    else:
        finding = f"{_EXAMPLES.get(row.split, 'these examples do')} not tell the two methods apart"
    return f"On the same examples, {pair}'s ECE is {difference_words(row)}: {finding}."


def chosen_column(choice: Mapping[str, Any]) -> Column:
    """Return the column of the method that was chosen."""
    return Column(choice.get("method", UNCALIBRATED), choice.get("criterion"))


def choice_words(
    rows: Sequence[Row], manifest: Manifest, choice: Mapping[str, Any], *, split: str, criterion: str
) -> list[str]:
    """Return the opening sentences: which method to use, and what the paired differences say of it."""
    chosen = chosen_column(choice)
    columns = [each for each in column_of_each(rows, manifest, split, criterion=criterion) if each != AS_TRAINED]
    if chosen == AS_TRAINED:
        sentences = [
            "Leave the outputs as they are: held-out parts of val do not show that a method makes them better."
        ]
    else:
        sentences = [f"Use {column_words(rows, manifest, chosen)}."]
    shown = chosen if chosen != AS_TRAINED else next(iter(columns), AS_TRAINED)
    sentences += _against_none(rows, manifest, shown, split)
    for row in _pairs(rows, columns, split):
        sentences.append(_comparison(rows, manifest, row))
        if row.n >= LEAST_EXAMPLES and not _is_same(rows, row):
            first, second, _ = _names(manifest, row)
            beats = "beats" if row.high < 0 else "does not beat"
            sentences.append(f"So {first} {beats} {second} beyond noise.")
    return sentences


def _against_none(rows: Sequence[Row], manifest: Manifest, column: Column, split: str) -> list[str]:
    before, row = metric(rows, AS_TRAINED, "ece", split), difference(rows, column, UNCALIBRATED, split)
    if before is None:
        return []
    after = f"; after {_after_words(rows, manifest, column, split)}" if column != AS_TRAINED else ""
    text = f"The expected calibration error is {with_interval(before)} as given{after}"
    if row is None or row.n < LEAST_EXAMPLES:
        return [f"{text}."]
    if row.high < 0:
        finding = "better beyond noise"
    elif row.low > 0:
        finding = "worse beyond noise"
    else:
        finding = "not told apart from no calibration"
    return [f"{text} (difference {difference_words(row)}: {finding})."]


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
    row = difference(rows, Column(LOSS_IMPLIED), UNCALIBRATED, split)
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
    if row.high < 0:
        return [text, f"Undoing the loss makes it better calibrated{flipped}; what is left has other causes."]
    if row.low > 0:
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
