"""The verdict on calibration methods: which to use, what held-out parts of val say for it, and what the test set adds.

A method is chosen on val and measured on test, and the sentences keep the two apart.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from focalgeo.report.selection import (
    AS_TRAINED,
    CRITERION,
    HELD_OUT,
    PLAIN,
    UNCALIBRATED,
    Column,
    Manifest,
    as_number,
    column_of_each,
    columns_of,
    difference,
    differences,
    fitted_title,
    has_interval,
    is_better,
    method_title,
    metric_entries,
)
from focalgeo.report.style import rounded, short
from focalgeo.report.words import column_words, signed_words, value_words
from focalgeo.rows import LEAST_EXAMPLES, Difference, Row, Title
from focalgeo.types import METRIC_OF

_MOST_REASONS = 20
_LEAST_P = 0.0001  # shown


class Calibration(NamedTuple):
    """Settings and results of a calibration, from the manifest; any of them may be missing there."""

    split: str  # "test", or "cross_fit" without a test file
    criterion: str
    choice: Mapping[str, Any]
    refused: Mapping[str, str]  # method -> why it was not to be chosen
    beaten: Mapping[str, str]  # plainer method -> one better than it beyond noise
    warnings: Sequence[str]
    trained_gamma: float | None
    score_test: tuple[float, float] | None  # statistic and p-value, where it decided between T = 1 and another

    @property
    def chosen(self) -> Column:
        """The column of the method to use."""
        return Column(self.choice.get("method", UNCALIBRATED), self.choice.get("criterion"))

    @property
    def metric(self) -> str:
        """The metric by which the method was chosen."""
        return METRIC_OF.get(self.criterion, self.criterion)


def calibration_of(manifest: Manifest) -> Calibration:
    """Return the manifest's entry on a calibration."""
    found = manifest["calibration"]
    return Calibration(
        split=found.get("split", "test"),
        criterion=found.get("criterion", CRITERION),
        choice=found.get("choice", {}),
        refused=_texts(found.get("refused")),
        beaten=_texts(found.get("beaten")),
        warnings=found.get("warnings", ()),
        trained_gamma=as_number(found.get("trained_gamma")),
        score_test=_score_test(found.get("score_test")),
    )


def _score_test(found: Any) -> tuple[float, float] | None:
    """The statistic and p-value of an object; None of anything else."""
    numbers = [as_number(found.get(name)) for name in ("statistic", "p_value")] if isinstance(found, Mapping) else []
    if len(numbers) != 2 or None in numbers or not 0 <= numbers[1] <= 1:
        return None
    return numbers[0], numbers[1]


def _texts(found: Any) -> dict[str, str]:
    """The texts of an object by their names; {} of anything else."""
    entries = list(found.items())[:_MOST_REASONS] if isinstance(found, Mapping) else []
    return {short(name): short(value, 200) for name, value in entries if isinstance(value, str)}


def verdict_words(rows: Sequence[Row], manifest: Manifest) -> str:
    """Return the verdict, two sentences at the most: the method to use with its evidence, and what test adds."""
    calibration = calibration_of(manifest)
    if not calibration.choice:
        return "This folder does not say which method to use."
    against = _compared_with(rows, manifest, calibration)
    sentences = [_on_val(rows, manifest, calibration, against), _on_test(rows, manifest, calibration, against)]
    return " ".join(filter(None, sentences))


def _compared_with(rows: Sequence[Row], manifest: Manifest, calibration: Calibration) -> Column:
    """What the chosen method is held against: the last plainer one that is beaten; of no method the plainest fitted."""
    columns = column_of_each(rows, manifest, HELD_OUT, criterion=calibration.criterion)
    if calibration.chosen == AS_TRAINED:
        return next((each for each in columns if each.criterion), AS_TRAINED)
    own = fitted_title(rows, manifest, calibration.chosen)  # gamma 0 is temperature scaling: not held against itself
    others = [each for each in columns if fitted_title(rows, manifest, each) != own]
    beaten = [each for each in others if each.method in calibration.beaten]
    plain = [each for each in others if each.method == PLAIN]
    return (beaten or plain or [AS_TRAINED])[-1]


class _Evidence(NamedTuple):
    """The chosen method and the one it is held against, on held-out parts of val."""

    row: Difference  # by the criterion
    numbers: str  # by the criterion and by NLL
    other: str  # the method that it is held against
    admitted: str  # of the other methods, where some were refused


def _on_val(rows: Sequence[Row], manifest: Manifest, calibration: Calibration, against: Column) -> str:
    chosen, names = calibration.chosen, dict.fromkeys((calibration.metric, "nll"))
    use = f"Use {column_words(rows, manifest, chosen)}" if chosen != AS_TRAINED else "Leave the outputs as they are"
    found = _pair(rows, names, HELD_OUT, calibration, against)
    other, numbers = _other(rows, manifest, against), _numbers(found, manifest)
    row = next(iter(found.values()), None)
    if chosen == AS_TRAINED and _all_are_refused(rows, manifest, calibration):
        reasons = "; ".join(dict.fromkeys(calibration.refused.values()))
        beside = f"; on held-out parts of val {other} less none is {numbers}" if row and row.n >= LEAST_EXAMPLES else ""
        return f"{use}: every method was refused ({reasons}){beside}."
    if row is None:
        return f"{use}."
    if row.n < LEAST_EXAMPLES:
        examples = f"{row.n:,} examples are too few to compare methods"
        return f"{use} for want of evidence: {examples}, and nothing is concluded."
    evidence = _Evidence(row, numbers, other, " to choose from" if calibration.refused else "")
    if _is_by_score(calibration, against):
        return f"{use}: {_by_score(calibration, evidence)}."
    return f"{use}: on held-out parts of val {_by_difference(manifest, calibration, against, evidence)}."


def _all_are_refused(rows: Sequence[Row], manifest: Manifest, calibration: Calibration) -> bool:
    """Whether there are fitted methods, and none of them was to be chosen."""
    columns = column_of_each(rows, manifest, HELD_OUT, criterion=calibration.criterion)
    fitted = [each.method for each in columns if each.criterion]
    return bool(fitted) and calibration.refused.keys() >= set(fitted)


def _is_by_score(calibration: Calibration, against: Column) -> bool:
    """Whether the score test of T = 1 decided between the two that the sentence is about."""
    if calibration.score_test is None or calibration.metric != "nll":
        return False
    if calibration.chosen == AS_TRAINED:
        return against.method == PLAIN
    return against == AS_TRAINED and calibration.beaten.get(against.method) == PLAIN


def _by_score(calibration: Calibration, evidence: _Evidence) -> str:
    """The score test, on all of val, and beside it the difference on held-out parts, whose interval may say less."""
    row, numbers, other, admitted = evidence
    statistic, p_value = calibration.score_test
    p = f"p\u00a0=\u00a0{rounded(p_value, 2)}" if p_value >= _LEAST_P else f"p\u00a0<\u00a0{_LEAST_P}"
    test = f"score test of T\u00a0=\u00a01: {p}"
    if calibration.chosen == AS_TRAINED:
        chances = " when all methods are counted as chances" if is_better(row) or p_value < 0.05 else ""
        return (
            f"on val they are neither overconfident nor underconfident beyond noise{chances} ({test}), and on held-out"
            f" parts no other method{admitted} is better beyond noise ({other} less none: {numbers})"
        )
    side = "overconfident" if statistic < 0 else "underconfident"
    return (
        f"on val the outputs as given are {side} beyond noise ({test}), on held-out parts the difference to no"
        f" calibration is {numbers}, and no other{admitted} beats it"
    )


def _by_difference(manifest: Manifest, calibration: Calibration, against: Column, evidence: _Evidence) -> str:
    row, numbers, other, admitted = evidence
    by = calibration.beaten.get(against.method)
    if calibration.chosen == AS_TRAINED:
        chances = " when all of them are counted as chances" if is_better(row) else ""
        return f"no method{admitted} is better beyond noise{chances} ({other} less none: {numbers})"
    if is_better(row) or by == calibration.chosen.method:  # the choice's test is one-sided: its interval may hold 0
        p = "" if is_better(row) else f", one-sided p\u00a0=\u00a0{rounded(row.p_value / 2, 2)}"
        return f"it is better than {other} ({numbers}{p}), and no other{admitted} beats it"
    better = f"{method_title(manifest, by).lower()} is better than {other}" if by else f"{other} is not to be chosen"
    return f"{better}, and no other{admitted} beats this method, whose own difference to {other} is {numbers}"


def _other(rows: Sequence[Row], manifest: Manifest, column: Column) -> str:
    return "no calibration" if column == AS_TRAINED else fitted_title(rows, manifest, column).lower()


def _pair(
    rows: Sequence[Row], names: Iterable[str], split: str, calibration: Calibration, against: Column
) -> dict[str, Difference]:
    """The chosen method's metrics less those of the other, by name; of no method chosen, the other's less none."""
    first, second = calibration.chosen, against
    first, second = (second, first) if first == AS_TRAINED else (first, second)
    found = {name: difference(differences(rows, name, split), first, second) for name in names}
    return {name: row for name, row in found.items() if row is not None}


def _numbers(found: Mapping[str, Difference], manifest: Manifest) -> str:
    entries = metric_entries(manifest)
    return ", ".join(signed_words(row, entries.get(name, Title(name.upper()))) for name, row in found.items())


def _on_test(rows: Sequence[Row], manifest: Manifest, calibration: Calibration, against: Column) -> str:
    """What test says of the same pair, by NLL and by ECE; "" without rows."""
    if calibration.split == HELD_OUT:
        return "There was no test file, so no other examples check this."
    found = _pair(rows, ("nll", "ece"), calibration.split, calibration, against)
    if not found:
        return ""
    n = next(iter(found.values())).n
    if n < LEAST_EXAMPLES:
        return f"The test set of {n:,} examples is too small to add to this."
    judged = {name: _judged(row, calibration.chosen == AS_TRAINED) for name, row in found.items()}
    if len(set(judged.values())) == 1:
        return f"The test set {judged[next(iter(judged))]} ({_numbers(found, manifest)})."
    entries = metric_entries(manifest)
    values = {name: value_words(row, entries.get(name, Title(name))) for name, row in found.items()}
    return f"The test set {' and '.join(f'{judged[name]} by {name.upper()} ({values[name]})' for name in found)}."


def _judged(row: Difference, none_chosen: bool) -> str:
    better, worse = is_better(row), is_better(row, "high")
    if none_chosen:
        better, worse = worse, better
    return "agrees" if better else "speaks against it" if worse else "does not tell the two apart"


def refused_words(rows: Sequence[Row], manifest: Manifest) -> str:
    """Return the line on methods that were not to be chosen, and why; "" where there are none."""
    calibration = calibration_of(manifest)
    by_reason: dict[str, list[str]] = {}
    for name, why in calibration.refused.items():
        by_reason.setdefault(why, []).append(method_title(manifest, name).lower())
    reasons = [f"{', '.join(names)} ({why})" for why, names in by_reason.items()]
    return f"Not recommended: {'; '.join(reasons)}." if reasons else ""


def elsewhere_words(rows: Sequence[Row], manifest: Manifest) -> list[str]:
    """Return a line for each method from elsewhere that is better than the chosen one beyond noise."""
    calibration = calibration_of(manifest)
    known, entries = manifest.get("methods", {}), metric_entries(manifest)
    found = differences(rows, calibration.metric, calibration.split)
    lines = []
    for column in columns_of(rows, manifest, calibration.split):
        row = difference(found, column, calibration.chosen) if column.method not in known else None
        if row is not None and row.n >= LEAST_EXAMPLES and has_interval(row) and is_better(row):
            numbers = signed_words(row, entries.get(calibration.metric, Title(calibration.metric)))
            lines.append(
                f"{method_title(manifest, column.method)}, from elsewhere, is better than the method to use: {numbers}."
            )
    return lines
