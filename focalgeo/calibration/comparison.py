"""Calibration methods compared on a classifier's outputs: fitted and chosen on val, measured on test.

Cross-fitted: the examples are split into folds, and each fold is calibrated by a fit of the others. So a validation
split alone says how a method does on examples that its fit has not seen, and a method is chosen by that.
"""

import warnings
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import checks
from focalgeo.calibration import fits, metric_rows, suspicions
from focalgeo.calibration import methods as of_methods
from focalgeo.calibration.clusters import Clusters
from focalgeo.calibration.fits import ScoreTest
from focalgeo.calibration.methods import DEFAULT_METHODS, METHODS, Calibrated, Fitted, Method
from focalgeo.calibration.metrics import METRICS
from focalgeo.calibration.resampling import Sample
from focalgeo.calibration.search import GAMMAS, Grid
from focalgeo.rows import LEAST_EXAMPLES, Difference, Row, select
from focalgeo.types import (
    CRITERIA,
    DEFAULT_CRITERIA,
    DEFAULT_METRICS,
    METRIC_OF,
    MOST_RESAMPLES,
    Array,
    DataWarning,
    InputError,
)

# the paper's grid, and coarsely on from there: outputs of other programs may be scaled by anything
TEMPERATURES = tuple(np.float32([*(np.arange(1, 501) / 100), *np.geomspace(5.1, 100, 60)]).tolist())
FEWEST_RESAMPLES = 100  # with fewer, the ends of an interval are chance, and methods are chosen by it
LEVEL = 0.05  # of all comparisons of a method with others together
_MOST_FOLDS = 10_000  # fits are made for each
_WORDS = {"nll": "its NLL is", "brier": "its Brier score is", "accuracy": "its accuracy is"}


def folds(labels: Array, num_folds: int, seed: int, *, clusters: Array | None = None) -> np.ndarray:
    """The fold of each example at random in `seed`, int32 [examples] from 0 to num_folds - 1; of one size but for 1.

    With `clusters` [examples], a number or name for each, no cluster is parted, and the folds hold as many of them.
    The labels give their number alone. Folds with equal shares of each class would flatter methods that fit the
    classes: each held-out part would have the very shares that they were fitted to. With 1,000 examples of 100 classes
    that made structured matrix scaling 0.03 nats too good.
    """
    checks.count("num_folds", num_folds, 2, _MOST_FOLDS)
    checks.count("seed", seed, 0, 2**63 - 1)
    clusters = Clusters.of(clusters, labels)
    size = len(labels) if clusters is None else clusters.each.size
    if clusters is not None and size < num_folds:
        raise InputError(f"num_folds is {num_folds} for {size} clusters, which are not parted: give at most {size}")
    fold = np.empty(size, np.int32)
    fold[np.random.default_rng(seed).permutation(size)] = np.arange(size) % num_folds
    return fold if clusters is None else fold[clusters.index]


def cross_fit(
    methods: Mapping[str, Method], examples: checks.Examples, settings: Mapping[str, Any], fold: np.ndarray
) -> list[Calibrated]:
    """Held-out log-probabilities [examples, classes] of each fit of `fit_methods`, in its order.

    Each example is calibrated by a fit of the other folds, which has not seen it: fold [examples], from `folds`.
    """
    held_out, group = [], settings.get("group")
    for index in range(fold.max() + 1):
        weight = jnp.where(fold != index, examples.weight, 0)
        others = examples._replace(rows=jnp.where(weight[:, None] > 0, examples.rows, 0), weight=weight)
        fitted = of_methods.fit_all(methods, others, settings | {"searches": None})
        held_out.append([np.asarray(fit.applied(examples.rows, group))[fold == index] for fit in fitted])
    place = np.argsort(np.argsort(fold, kind="stable"))  # of each example among the folds one after another
    return [
        Calibrated(fit.method, fit.criterion, np.concatenate(parts)[place])
        for fit, *parts in zip(fitted, *held_out, strict=True)
    ]


class Choice(NamedTuple):
    """The method to use, and how it was chosen."""

    fitted: Fitted
    level: float  # one-sided p-value below which a difference in the criterion counted
    refused: dict[str, str]  # method -> why it was not to be chosen, whatever its criterion
    beaten: dict[str, str]  # plainer method -> one that is better than it beyond noise
    test: ScoreTest | None = None  # by which temperature scaling was held against the outputs as given, where it was


def choose(
    fits: Sequence[Fitted],
    differences: Sequence[Difference],
    *,
    criterion: str,
    test: ScoreTest | None = None,
    absent: bool = False,
) -> Choice:
    """The plainest method that no other beats beyond noise on held-out parts of the validation split.

    Compared are the uncalibrated predictions and a fit of each fitted method, the `candidates`, in the order of
    `fits`, plainest first. A method with numbers of each class takes no part where a class has no example. One is
    refused where its fit did not converge, as one that ended at the end of its range (the range would decide), and
    where its NLL, its Brier score or its accuracy is worse than that of a plainer one: the 95% interval of the
    difference leaves out 0. Of the others, the first is chosen that none beats in the criterion: one-sided p < 0.05 /
    the number of other methods. Many methods are many chances, and so divided (Bonferroni) the chance that any of them
    passes for better than one that is as good is 5% at most. With fewer than 100 examples the first method whose fit
    converged is taken. Where every other is better than that choice beyond noise, refused or not, it is made among
    those instead: it is never the worst of all.

    By NLL the score test of T = 1 stands in the place of one of the comparisons, of temperature scaling with the
    outputs as given, which it holds at T = 1: with few examples it finds what the difference of NLL does not. Its
    two-sided p-value counts below the same level, so the chance of 5% holds.

    Args:
        fits: Of `fit_methods` on all examples, "uncalibrated" among them.
        differences: Of `cross_fit` with the same methods: those of each of the `candidates` less each earlier one, and
            less the uncalibrated predictions, in the criterion, NLL, Brier score and accuracy.
        criterion: "nll", or the ECE that the methods are fitted by. A method that has no fit by it takes part with
            another of its fits.
        test: `temperature_score_test` of the outputs as given on all examples. It is used where the metric is NLL and
            temperature scaling is not refused; None leaves that pair to its difference.
        absent: Whether a class has no example among those that were fitted on.
    """
    uncalibrated = next(fitted for fitted in fits if fitted.criterion is None)
    compared = [uncalibrated, *(fits[index] for index in metric_rows.candidates(fits, criterion))]
    lacking = "it has numbers of each class, and val lacks examples of some"
    refused = {
        fitted.method.name: lacking
        for fitted in compared
        if absent and (fitted.method.most_classes == 2 or "biases" in fitted.params)
    }
    compared = [fitted for fitted in compared if fitted.method.name not in refused]
    if len(compared) == 1:
        return Choice(uncalibrated, LEVEL, refused, {})
    level = LEVEL / (len(compared) - 1)
    table = {(row.name, row.method, row.criterion, row.against, row.against_criterion): row for row in differences}
    refused |= {fitted.method.name: fitted.why_not_converged for fitted in compared if not fitted.converged}
    metric = METRIC_OF.get(criterion, criterion)
    if _difference(table, "nll", compared[1], uncalibrated).n < LEAST_EXAMPLES:
        choice = Choice(next((fitted for fitted in compared[1:] if fitted.converged), uncalibrated), level, {}, {})
    else:
        admitted: list[Fitted] = []
        for fitted in compared:
            why = fitted.why_not_converged or _worse(fitted, admitted, table)
            refused |= {fitted.method.name: why} if why else {}
            admitted += [] if why else [fitted]
        test = test if metric == "nll" and any(map(_is_plain, admitted)) else None
        choice = _unbeaten(admitted, table, metric, level, test)
    others = [fitted for fitted in compared if fitted is not choice.fitted]
    pairs = [[one for one in compared if one is fitted or one is choice.fitted] for fitted in others]
    if all(_better_than(pair[1] is choice.fitted, pair, table, metric, LEVEL / 2, None) for pair in pairs):
        choice = _unbeaten(others, table, metric, level, None)
        refused.pop(choice.fitted.method.name, None)
    return choice._replace(refused=refused)


def _unbeaten(admitted, table, metric, level, test):
    """The choice among these: the first that none of them beats."""
    beaten: dict[str, str] = {}
    for index, fitted in enumerate(admitted):
        better = _better_than(index, admitted, table, metric, level, test)
        if better is None:
            return Choice(fitted, level, {}, beaten, test)
        beaten[fitted.method.name] = better.method.name
    raise AssertionError("of several methods one has the least criterion, and none beats it")


def _worse(fitted, plainer, table):
    """In words how a method is worse than a plainer one; "" where it is not."""
    for against in plainer:
        for metric, sign in (("nll", 1), ("brier", 1), ("accuracy", -1)):
            row = _difference(table, metric, fitted, against)
            if row and min(sign * row.low, sign * row.high) > 0:
                return f"{_WORDS[metric]} worse than {against.method.title.lower()}'s beyond noise"
    return ""


def _better_than(index, admitted, table, metric, level, test):
    """The plainest of the admitted methods that is better than the one at `index` beyond noise."""
    for other, rival in enumerate(admitted):
        if other == index:
            continue
        earlier, later = (admitted[position] for position in sorted((other, index)))
        if test is not None and earlier.criterion is None and _is_plain(later):
            better, p_value = later, test.p_value
        else:
            row = _difference(table, metric, later, earlier)
            better, p_value = later if row.value < 0 else earlier, row.p_value / 2
        if better is rival and p_value < level:
            return rival
    return None


def _difference(table, metric, fitted, against):
    """The row of one method less another; None for the accuracy of two that keep the class."""
    other = None if against.criterion == fitted.criterion else against.criterion
    return table.get((f"{metric}_difference", fitted.method.name, fitted.criterion, against.method.name, other))


def _is_plain(fitted):
    """Whether it is temperature scaling, which holds the outputs as given at T = 1."""
    return fitted.method.name == "temperature_scaling"


class Outputs(NamedTuple):
    """A classifier's outputs on one split; a plain pair (logits, labels) will do."""

    logits: Array  # float [examples, classes]
    labels: Array  # int [examples]
    group: Array | None = None  # the name of each example's group
    clusters: Array | None = None  # the number or name of each example's cluster; None where all are independent
    weights: Array | None = None  # how often each example counts, above 0; None counts each once


class Comparison(NamedTuple):
    """Methods compared: rows, fits, the choice and its evidence."""

    rows: list[Row]  # fits, metrics, differences and reliability bins, as metrics.jsonl holds them
    fits: list[Fitted]  # on val, plainest method first
    choice: Choice  # of the method to use
    held_out: list[Calibrated]  # val by fits of the other folds: uncalibrated, the candidates and `also`
    suspicions: list[str]  # sentences on what speaks against the outputs: order of columns, chance, leakage
    search: dict[str, np.ndarray]  # gammas, temperatures and on them ece and nll of the focal map on val; {} without it


class _Split(NamedTuple):
    """`Outputs` that have been checked, and log-probabilities of the same examples by methods from elsewhere."""

    examples: checks.Examples
    group: Array | None
    clusters: Clusters | None
    also: list[Calibrated]


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
    clusters: Array | tuple | None = None,
) -> Comparison:
    """Calibration methods fitted and chosen on val, and measured with intervals on test: the rows of the command.

    Args:
        val: (logits, labels), or `Outputs` where there are groups or clusters; float [examples, classes] and int
            [examples].
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
        clusters: Numbers or names [examples] of which examples of val belong together, or a tuple of those of val and
            of test; what `Outputs` have of them is taken else.

    What speaks against the outputs is warned of as DataWarning. A number that is not finite is a RunError.
    """
    checks.count("num_resamples", num_resamples, FEWEST_RESAMPLES, MOST_RESAMPLES)
    clusters = clusters if isinstance(clusters, tuple) else (clusters, None)
    of_val = _split("val", val, also or {}, 0, clusters[0])
    on_test = None if test is None else _split("test", test, also or {}, 1, clusters[1])
    num_classes = of_val.examples.rows.shape[1]
    if on_test is not None and on_test.examples.rows.shape[1] != num_classes:
        raise InputError(f"test has another number of classes than the {num_classes} of val: give one classifier's")
    suspected = [
        sentence
        for name, split in (("val", of_val), ("test", on_test))
        if split
        for sentence in suspicions.of_split(name, *split.examples, clustered=split.clusters is not None)
    ]
    suspected += suspicions.of_both(of_val.examples[:2], on_test.examples[:2]) if on_test else ()
    for sentence in suspected:
        warnings.warn(sentence, DataWarning, stacklevel=2)
    candidates = checked_methods(
        methods,
        criterion=criterion,
        criteria=criteria,
        metrics=metrics,
        trained_gamma=trained_gamma,
        num_classes=num_classes,
        also=also or (),
    )
    settings = of_methods.checked_settings(
        {
            "criteria": tuple(dict.fromkeys((criterion, *criteria))),
            "num_bins": num_bins,
            "trained_gamma": trained_gamma,
            "gammas": np.sort(np.float32(gammas)),
            "temperatures": temperatures,
            "group": of_val.group,
        }
    )
    fold = folds(of_val.examples.labels, num_folds, seed, clusters=of_val.clusters and of_val.clusters.index)
    key = jax.random.split(jax.random.PRNGKey(seed), 4)[3]  # the main job's of this seed: it gives its rows again
    deciding = {METRIC_OF.get(criterion, criterion), "nll", "brier", "accuracy"}

    def sample(name, split, calibrated):
        calibrated = calibrated + split.also
        return Sample(name, split.examples.labels, calibrated, key, num_bins, num_resamples, split.clusters)

    def of_all():
        """Searches and fits of all of val; where there is a test set, it by every fit, and its rows."""
        searches = of_methods.search_all(candidates, of_val.examples, settings)
        fitted = of_methods.fit_all(candidates, of_val.examples, settings | {"searches": searches})
        if on_test is None:
            return searches, fitted, None, []
        measured = sample("test", on_test, [fit.calibrated(on_test.examples.rows, on_test.group) for fit in fitted])
        return searches, fitted, measured, _rows(measured, criterion, deciding.union(metrics), on_test.group)

    def competing(method):
        """The method with the one criterion of its fits that `candidates` takes: val is not what is measured."""
        fitted_by = of_methods.criteria_of(method, settings)
        return method._replace(criteria=(criterion,) if criterion in fitted_by else fitted_by[:1])

    crossed = candidates if on_test is None else {name: competing(method) for name, method in candidates.items()}
    with ThreadPoolExecutor(1) as pool:  # fits of all of val beside those of the folds, compiled side by side
        future = pool.submit(of_all)
        held_out = sample("cross_fit", of_val, cross_fit(crossed, of_val.examples, settings, fold))
        if on_test is None:
            rows = _rows(held_out, criterion, deciding.union(metrics), of_val.group)
        else:  # ECE too, where it is asked for: on val it is drawn beside test's
            pairs = metric_rows.comparisons(held_out.calibrated, criterion)
            rows = metric_rows.calibration_rows(held_out, pairs, _ordered(deciding | {"ece"}.intersection(metrics)))
        searches, fitted, measured, rows_of_test = future.result()
    choice = choose(
        fitted,
        select(rows, Difference, split="cross_fit"),
        criterion=criterion,
        test=fits.score_test(*of_val.examples, of_val.clusters),
        absent=len(np.unique(of_val.examples.labels)) < num_classes,
    )
    of_fits = metric_rows.fit_rows(fitted, n=len(fold))
    measured, fit = measured or held_out, (choice.fitted.method.name, choice.fitted.criterion)
    places = [(calibrated.method.name, calibrated.criterion) for calibrated in measured.calibrated]
    drawn = {0, *metric_rows.candidates(measured.calibrated, criterion)[:1], places.index(fit)}
    gaps = metric_rows.class_gap_rows(_part(measured, sorted(drawn)))
    rows = [*of_fits, *rows_of_test, *rows, *gaps]
    return Comparison(rows, fitted, choice, held_out.calibrated, suspected, of_methods.surfaces(searches, settings))


def _split(name, outputs, also, position, named):
    """The outputs of a split, checked; what is wrong with them is said with its name."""
    logits, labels, group, clusters, weights = Outputs(*outputs)
    where, others = name, []
    try:
        examples = checks.predicted_logits(logits, labels, weights=weights, stacklevel=4)
        if group is not None:
            group = np.asarray(group)
            checks.check_array("group", group, shape=examples.labels.shape)
        clusters = Clusters.of(clusters if named is None else named, examples.labels, weights)
        for other, by_split in also.items():
            where = f"also {other}, {name}"
            log_probs = checks.score_rows("log_probs", by_split[position], shape=examples.rows.shape)
            method = Method(other, other, None, None, criteria=(), keeps_class=False)
            others.append(Calibrated(method, None, checks.examples(log_probs, examples.labels).rows))
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    return _Split(examples, group, clusters, others)


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
    """The methods that `compare` compares with these arguments, plainest first; `also` are names alone."""
    names = checks.names("methods", DEFAULT_METHODS if methods is None else methods, METHODS)
    checks.names("criteria", criteria, CRITERIA)
    checks.names("metrics", metrics, METRICS)
    checks.check_choice("criterion", criterion, CRITERIA)
    if taken := METHODS.keys() & also:
        raise InputError(f"also names {min(taken)}, a method of focalgeo's own: give it another name")
    candidates = {name: method for name, method in METHODS.items() if name in names or name == "uncalibrated"}
    settings = {"trained_gamma": trained_gamma}
    if methods is None:
        return of_methods.usable(candidates, settings, num_classes)
    of_methods.check_usable(candidates, settings, num_classes)
    return candidates


def _part(sample, positions):
    return sample._replace(calibrated=[sample.calibrated[index] for index in positions])


def _ordered(names):
    return tuple(name for name in METRICS if name in names)


def _rows(sample, criterion, metrics, group):
    """Rows of a split on which methods are compared: metrics, differences, and those of two classes and of groups."""
    pairs = metric_rows.comparisons(sample.calibrated, criterion)
    rows = metric_rows.calibration_rows(sample, pairs, _ordered(metrics))
    competing = _part(sample, [0, *metric_rows.candidates(sample.calibrated, criterion)])
    if competing.calibrated[0].log_probs.shape[1] == 2:
        rows += metric_rows.class1_rows(competing)
    return rows if group is None else rows + metric_rows.group_rows(competing, group)
