"""Calibration methods compared on a classifier's outputs: fitted and chosen on val, measured on test."""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, NamedTuple

import jax
import numpy as np

from focalgeo.calibration.crossfit import Choice, candidates, choose, cross_fit
from focalgeo.calibration.fits import temperature_score_test
from focalgeo.calibration.fitted import Calibrated, Fitted, Method
from focalgeo.calibration.methods import (
    DEFAULT_METHODS,
    METHODS,
    check_classes,
    criteria_of,
    fit_methods,
    searched,
    surfaces,
    usable,
)
from focalgeo.calibration.metric_rows import (
    calibration_rows,
    class1_rows,
    class_gap_rows,
    comparisons,
    fit_rows,
    group_rows,
)
from focalgeo.calibration.metrics import METRICS
from focalgeo.calibration.resampling import Sample
from focalgeo.calibration.search import GAMMAS, Grid, GridSearch
from focalgeo.checks import check_choice, count, examples, predicted_logits
from focalgeo.rows import Difference, Row, select
from focalgeo.types import (
    CRITERIA,
    DEFAULT_CRITERIA,
    DEFAULT_METRICS,
    METRIC_OF,
    MOST_BINS,
    MOST_RESAMPLES,
    Array,
    InputError,
)

# the paper's grid, and coarsely on from there: outputs of other programs may be scaled by anything
TEMPERATURES = tuple(np.float32([*(np.arange(1, 501) / 100), *np.geomspace(5.1, 100, 60)]).tolist())
FEWEST_RESAMPLES = 100  # with fewer, the ends of an interval are chance, and methods are chosen by it


class Outputs(NamedTuple):
    """A classifier's outputs on one split; a plain pair (logits, labels) will do."""

    logits: Array  # float [examples, classes]
    labels: Array  # int [examples]
    group: Array | None = None  # the name of each example's group


class Comparison(NamedTuple):
    """Methods compared: rows, fits, the choice and its evidence."""

    rows: list[Row]  # fits, metrics, differences and reliability bins, as metrics.jsonl holds them
    fits: list[Fitted]  # on val, plainest method first
    choice: Choice  # of the method to use
    held_out: list[Calibrated]  # val by fits of the other folds: uncalibrated, the candidates and `also`
    search: dict[str, np.ndarray]  # gammas, temperatures and on them ece and nll of the focal map on val; {} without it


class _Split(NamedTuple):
    """`Outputs`, and log-probabilities of the same examples by methods from elsewhere."""

    logits: Array
    labels: Array
    group: Array | None
    also: list[Calibrated]


class _Plan(NamedTuple):
    """How outputs are compared."""

    methods: Mapping[str, Method]
    settings: Mapping[str, Any]  # of `fit_methods`
    criterion: str
    metrics: Sequence[str]
    num_resamples: int
    num_folds: int
    seed: int

    @property
    def key(self) -> Array:
        """The main job's bootstrap key of the same seed, so that its predictions give its own rows again."""
        return jax.random.split(jax.random.PRNGKey(self.seed), 4)[3]

    def sample(self, split: str, labels: Array, calibrated: Sequence[Calibrated]) -> Sample:
        """Examples of one split by these methods."""
        return Sample(split, labels, calibrated, self.key, self.settings["num_bins"], self.num_resamples)


def compare(
    val: tuple,
    test: tuple | None = None,
    methods: Sequence[str] | None = None,
    *,
    criterion: str = "nll",
    criteria: Sequence[str] = DEFAULT_CRITERIA,
    metrics: Sequence[str] = DEFAULT_METRICS,
    num_bins: int = 15,
    num_resamples: int = 1000,
    num_folds: int = 5,
    seed: int = 0,
    trained_gamma: float | None = None,
    gammas: Grid = GAMMAS,
    temperatures: Grid = TEMPERATURES,
    also: Mapping[str, tuple[Array, Array | None]] | None = None,
) -> Comparison:
    """Calibration methods fitted and chosen on val, and measured with intervals on test: the rows of the command.

    Args:
        val: (logits, labels), or `Outputs` where there are groups; float [examples, classes] and int [examples].
        test: The same of other examples; without it, val is measured by fits of the other folds.
        methods: Names in METHODS; "uncalibrated" takes part anyway. None takes DEFAULT_METHODS, without those that
            need a gamma that is not given, or fewer classes.
        criterion: By which methods are fitted where they can be, compared and chosen, see `choose`. NLL by default: it
            is proper, so no miscalibration improves it, and the same examples settle it sooner than an ECE. By NLL the
            score test of T = 1 on val decides between the outputs as given and temperature scaling.
        criteria: By which methods are fitted beside it; each is a fit of its own in the rows.
        metrics: Names in METRICS.
        num_bins: Bins of every binned metric.
        num_resamples: Of the bootstrap, 100 or more.
        num_folds: Of the cross-fit of val by which a method is chosen.
        seed: Of the folds and of the bootstrap.
        trained_gamma: Gamma of the focal loss that the model was trained with, if it was.
        gammas: The grid on which the focal map is fitted by an ECE.
        temperatures: The grid on which temperatures are fitted by an ECE.
        also: Name -> log-probabilities (of val, of test) by a method from elsewhere: compared, never chosen. Those of
            val are to be held out: each fold by a fit of the others.

    Raises:
        InputError: predictions that `check_predictions` refuses, an unknown name, fewer than 100 resamples.
        RunError: a number is not finite.
    """
    given = _Split(*Outputs(*val), _from_elsewhere(also, 0))
    num_classes = _checked_classes("val", given)
    by_name = {"criterion": criterion, "criteria": criteria, "metrics": metrics, "trained_gamma": trained_gamma}
    chosen = checked_methods(methods, also=also or (), num_classes=num_classes, **by_name)
    on_test = None if test is None else _Split(*Outputs(*test), _from_elsewhere(also, 1))
    if on_test is not None and _checked_classes("test", on_test) != num_classes:
        raise InputError(f"test has another number of classes than the {num_classes} of val: give one classifier's")
    count("num_resamples", num_resamples, FEWEST_RESAMPLES, MOST_RESAMPLES)
    count("num_bins", num_bins, 1, MOST_BINS)
    settings = {
        "criteria": tuple(dict.fromkeys((criterion, *criteria))),
        "num_bins": num_bins,
        "trained_gamma": trained_gamma,
        "gammas": np.sort(np.float32(gammas)),
        "temperatures": np.float32(temperatures),
    }
    plan = _Plan(chosen, settings, criterion, metrics, num_resamples, num_folds, seed)
    return _compared(given.logits, given, on_test, plan)


def _from_elsewhere(also: Mapping[str, tuple[Array, Array | None]] | None, split: int) -> list[Calibrated]:
    """The log-probabilities of val (0) or of test (1) by methods from elsewhere."""
    for name, by_split in (also or {}).items():
        if len(by_split) != 2:
            raise InputError(f"also {name} has {len(by_split)} entries: give log-probabilities of val and of test")
    return [
        Calibrated(Method(name, name, _no_fit, _no_fit, criteria=(), keeps_class=False), None, by_split[split])
        for name, by_split in (also or {}).items()
    ]


def _no_fit(*_: Any, **__: Any) -> None:
    raise InputError("log-probabilities from elsewhere are neither fitted nor applied here: they come as they are")


def _checked_classes(name: str, split: _Split) -> int:
    """The number of classes of a split; refuses what is wrong with it, by its name."""
    try:
        logits, labels, _ = predicted_logits(split.logits, split.labels)
        if split.group is not None and np.shape(split.group) != labels.shape:
            raise InputError(f"group has shape {np.shape(split.group)}: give one name for each label, {labels.shape}")
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    for each in split.also:
        _check_log_probs(f"also {each.method.name}, {name}", each.log_probs, logits, labels)
    return logits.shape[1]


def _check_log_probs(where: str, log_probs: Array | None, logits: Array, labels: Array) -> None:
    """Refuse what are no log-probabilities of these examples, by any other method."""
    if np.shape(log_probs) != np.shape(logits):
        raise InputError(f"{where} has shape {np.shape(log_probs)}: give log-probabilities {list(np.shape(logits))}")
    try:
        found = np.asarray(examples(log_probs, labels).rows)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    lost = np.isnan(found).any(axis=1) | ~np.isfinite(found[np.arange(len(found)), np.asarray(labels)])
    if lost.any():
        what = f"log-probabilities of {lost.sum()} examples are NaN, or infinite for the true class"
        raise InputError(f"{where}: {what}: mend them, calibration.log_probabilities floors probabilities of 0")


def checked_methods(
    methods: Sequence[str] | None,
    *,
    criterion: str,
    criteria: Sequence[str],
    metrics: Sequence[str],
    trained_gamma: float | None,
    num_classes: int,
    also: Collection[str] = (),
) -> dict[str, Method]:
    """The methods that `compare` compares with these arguments, plainest first; `also` are names alone.

    Raises:
        InputError: an unknown name, a text in place of a list, a method that cannot be used.
    """
    names = _checked_names(methods, criterion, criteria, metrics)
    taken = next((name for name in also if name in METHODS), None)
    if taken is not None:
        raise InputError(f"also names {taken}, a method of focalgeo's own: give it another name")
    return _methods(names, {"trained_gamma": trained_gamma}, num_classes, given=methods is not None)


def _checked_names(
    methods: Sequence[str] | None, criterion: str, criteria: Sequence[str], metrics: Sequence[str]
) -> Sequence[str]:
    """The methods' names; refuses what is none, and a text in place of a list."""
    names = DEFAULT_METHODS if methods is None else methods
    lists = (("methods", names, METHODS), ("criteria", criteria, CRITERIA), ("metrics", metrics, METRICS))
    for what, given, known in lists:
        if isinstance(given, str):
            raise InputError(f"{what} is {given[:40]!r}: give a list of names")
        for name in given:
            if not isinstance(name, str) or name not in known:
                raise InputError.of_choice(what, str(name)[:40], known)
    check_choice("criterion", criterion, CRITERIA)
    return names


def _methods(names: Sequence[str], settings: Mapping[str, Any], num_classes: int, *, given: bool) -> dict[str, Method]:
    """The methods of these names, plainest first; those left to the default only as far as they can be used."""
    found = {name: METHODS[name] for name in METHODS if name in names or name == "uncalibrated"}
    known = usable(found, settings)
    if not given:
        return {name: method for name, method in known.items() if method.takes(num_classes)}
    missing = next((name for name in found if name not in known), None)
    if missing is not None:
        raise InputError(f"{missing} needs the gamma that the model was trained with: give trained_gamma")
    for method in found.values():
        check_classes(method, num_classes)
    return found


def _compared(logits: Array, val: _Split, test: _Split | None, plan: _Plan) -> Comparison:
    """The comparison; logits are those of val."""
    methods = plan.methods if test is None else _competing(plan)
    with ThreadPoolExecutor(1) as pool:  # fits of all of val beside those of the folds, compiled side by side
        of_all = pool.submit(copy_context().run, _of_all, val, test, plan)
        held_out = cross_fit(
            methods, logits, val.labels, settings=plan.settings, num_folds=plan.num_folds, seed=plan.seed
        )
        of_val = plan.sample("cross_fit", val.labels, held_out + val.also)
        if test is None:
            rows = _measured(of_val, plan, val.group)
        else:
            rows = calibration_rows(of_val, comparisons(of_val.calibrated, plan.criterion), _of_choice(plan))
        searches, fits, on_test, rows_of_test = of_all.result()
    score_test = temperature_score_test(logits, val.labels)
    choice = choose(fits, select(rows, Difference, split="cross_fit"), criterion=plan.criterion, test=score_test)
    gaps = class_gap_rows(_shown(on_test or of_val, choice, plan))
    rows = [*fit_rows(fits, n=len(val.labels)), *rows_of_test, *rows, *gaps]
    return Comparison(rows, fits, choice, list(of_val.calibrated), surfaces(searches, plan.settings))


def _competing(plan: _Plan) -> dict[str, Method]:
    """The methods, each with the one criterion of its fits that it competes by: that which `candidates` takes."""
    competing = {}
    for name, method in plan.methods.items():
        fitted_by = criteria_of(method, plan.settings)
        own = (plan.criterion,) if plan.criterion in fitted_by else fitted_by[:1]
        competing[name] = method._replace(criteria=own)
    return competing


def _of_all(
    val: _Split, test: _Split | None, plan: _Plan
) -> tuple[dict[str, GridSearch], list[Fitted], Sample | None, list[Row]]:
    """Searches and fits of all of val; where there is a test set, it by every fit, and its rows."""
    searches = searched(plan.methods, val.logits, val.labels, settings=plan.settings)
    fits = fit_methods(plan.methods, val.logits, val.labels, settings={**plan.settings, "searches": searches})
    if test is None:
        return searches, fits, None, []
    by_method = [fitted.calibrated(test.logits) for fitted in fits]
    on_test = plan.sample("test", test.labels, by_method + test.also)
    return searches, fits, on_test, _measured(on_test, plan, test.group)


def _of_choice(plan: _Plan) -> tuple[str, ...]:
    """The metrics that a method is chosen by, and ECE where it is asked for: on val it is drawn beside test's."""
    criterion = METRIC_OF.get(plan.criterion, plan.criterion)
    drawn = {"ece"}.intersection(plan.metrics)
    return tuple(name for name in METRICS if name in {criterion, "nll", "brier", "accuracy", *drawn})


def _measured(sample: Sample, plan: _Plan, group: Array | None) -> list[Row]:
    """Rows of a split on which methods are compared: metrics, differences, and those of two classes and of groups."""
    pairs = comparisons(sample.calibrated, plan.criterion)
    metrics = {*plan.metrics, *_of_choice(plan)}
    rows = calibration_rows(sample, pairs, tuple(name for name in METRICS if name in metrics))
    compete = candidates(sample.calibrated, plan.criterion)
    competing = sample._replace(calibrated=[sample.calibrated[0], *(sample.calibrated[index] for index in compete)])
    if np.shape(competing.calibrated[0].log_probs)[1] == 2:
        rows += class1_rows(competing)
    if group is not None:
        rows += group_rows(competing, np.asarray(group))
    return rows


def _shown(sample: Sample, choice: Choice, plan: _Plan) -> Sample:
    """The sample as given, by the plainest fitted method, and by the chosen one."""
    first = candidates(sample.calibrated, plan.criterion)[:1]
    names = [(choice.fitted.method.name, choice.fitted.criterion)]
    chosen = [
        index
        for index, each in enumerate(sample.calibrated)
        if (each.method.name, each.criterion) in names or index in (0, *first)
    ]
    return sample._replace(calibrated=[sample.calibrated[index] for index in chosen])
