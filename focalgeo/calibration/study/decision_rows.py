"""Rows of prediction sets and answers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from focalgeo.calibration.decisions import THRESHOLDS, answers, prediction_sets
from focalgeo.calibration.methods import Fitted
from focalgeo.calibration.metrics.resampling import Z95, wilson_interval
from focalgeo.calibration.study import metric_rows
from focalgeo.rows import Metric, Row, finite
from focalgeo.types import Array, tied_means


def decided(
    fitted: Sequence[Fitted],
    held_back: tuple,
    test: tuple,
    *,
    coverage: float | None = None,
    error_at_most: float | None = None,
    **options: Any,
) -> tuple[list[Row], dict[str, Array]]:
    """Rows of sets and answers by each method, and arrays of the decisions on test by the last method.

    Thresholds come from `held_back`; rows are measured on test as far as it has labels. The arrays are "members" and
    "answered", with "set_thresholds" of "set_parts" and "answer_threshold".

    held_back, test: `Outputs`. options: options of `prediction_sets`, such as kind and part.

    Rows of sets are "set_size", "empty_sets", "set_coverage" and "expected_coverage" (from `held_back`); the last two
    have a row for each part, named as the group. Rows of answers are "answered", "answered_error" and "answered_bound".
    "error_of_share" is the error among the most confident twentieth of test, two twentieths, ..., with that share as
    the group.

    Example:
        >>> split = calibration.Outputs(logits, labels)
        >>> fits = [calibration.fit("temperature_scaling", *split[:2])]
        >>> rows, arrays = calibration.decided(fits, split, split, coverage=0.6)
        >>> [(row.name, round(row.value, 4)) for row in rows[:4]]
        [('set_size', 1.25), ('empty_sets', 0.0), ('expected_coverage', 0.6), ('set_coverage', 0.75)]
    """
    rows: list[Row] = []
    arrays: dict[str, Array] = {}
    cluster = np.arange(len(test.logits)) if test.clusters is None else np.asarray(test.clusters)
    for fit in fitted:
        tags = {"split": "test", "method": fit.method.name, "criterion": fit.criterion}
        of_val, of_test = (fit.predict_log_proba(split.logits, split.group) for split in (held_back, test))
        given = None
        if coverage:
            sets = prediction_sets(
                of_val,
                held_back.labels,
                of_test,
                coverage=coverage,
                groups=(held_back.group, test.group),
                clusters=held_back.clusters,
                **options,
            )
            arrays |= {"members": sets.members, "set_thresholds": sets.thresholds, "set_parts": np.array(sets.parts)}
            rows += _set_rows(sets, test.labels, cluster, tags)
        if error_at_most:
            given = answers(of_val, held_back.labels, of_test, error_at_most=error_at_most)
            arrays |= {"answered": given.answered, "answer_threshold": np.array(given.threshold)}
            rows.append(_share("answered", given.answered, tags, cluster))
            if given.answered.any():
                rows.append(Metric("answered_bound", given.error, 0.0, given.high, len(held_back.labels), **tags))
        if test.labels is not None:
            rows += _error_rows(of_test, test.labels, given, cluster, tags)
    return [finite(row) for row in rows], arrays


def _set_rows(sets, labels, cluster, tags):
    sizes, n = sets.members.sum(axis=1), len(sets.members)
    mean, half = sizes.mean(), Z95 * _error(sizes, cluster)[0]
    yield Metric("set_size", mean, mean - half, mean + half, n, **tags)
    yield _share("empty_sets", sizes == 0, tags, cluster)
    for name, *expected in zip(sets.parts, sets.expected, sets.low, sets.high, sets.counts, strict=True):
        yield Metric("expected_coverage", *expected, **tags | {"split": "val", "group": name})
    if labels is None:
        return
    hits, part = (table[np.arange(n), labels] for table in (sets.members, sets.part))
    yield _share("set_coverage", hits, tags, cluster)
    for index in np.unique(part):
        inside = part == index
        yield _share("set_coverage", hits[inside], tags | {"group": sets.parts[index]}, cluster[inside])


def _error_rows(log_probs, labels, given, cluster, tags):
    """Of what is answered, if anything is, and of the most confident twentieth, two twentieths, ..."""
    confidence = np.exp(log_probs.max(axis=1))
    wrong, order = log_probs.argmax(axis=1) != labels, np.argsort(-confidence, kind="stable")
    if given is not None and given.answered.any():
        yield _share("answered_error", wrong[given.answered], tags, cluster[given.answered])
    wrong = tied_means(confidence, wrong)
    for share in np.arange(1, THRESHOLDS + 1) / THRESHOLDS:
        if some := order[: round(share * len(order))].tolist():
            yield _share("error_of_share", wrong[some], tags | {"group": f"{share:g}"}, cluster[some])


def _share(name, hits, tags, cluster):
    share, n, (error, clusters) = hits.mean(), hits.size, _error(hits, cluster)
    worth = n if clusters == n else metric_rows.worth_of(n, share, error, clusters)
    return Metric(name, share, *wilson_interval(share * worth, worth), n, **tags)


def _error(values, cluster):
    """The standard error of a mean, and how many clusters of one size it is of."""
    _, index = np.unique(cluster, return_inverse=True)
    sizes, sums = np.bincount(index), np.bincount(index, values - values.mean())
    clusters = values.size**2 / (sizes @ sizes)
    return (sums @ sums * clusters / max(clusters - 1, 0.01)) ** 0.5 / values.size, clusters
