"""Calibration methods compared on a classifier's outputs: fitted and chosen on val, measured on test."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from focalgeo import checks
from focalgeo.calibration import blocks
from focalgeo.calibration.examples import Clusters, Outputs
from focalgeo.calibration.fits.focal import ScoreTest, score_test
from focalgeo.calibration.fits.search import GAMMAS, Grid
from focalgeo.calibration.methods import DEFAULT_METHODS, METHODS, Calibrated, Fitted, Method, fitting
from focalgeo.calibration.metrics import METRICS, resampling
from focalgeo.calibration.study import metric_rows, suspicions
from focalgeo.calibration.study.measurement import Sample
from focalgeo.rows import LEAST_EXAMPLES, Difference, Row, select
from focalgeo.types import (
    CRITERIA,
    DEFAULT_METRICS,
    METRIC_OF,
    MOST_RESAMPLES,
    Array,
    DataWarning,
    InputError,
)

# the paper's grid, and coarsely on from there: outputs of other programs may be scaled by anything
TEMPERATURES = tuple(np.float32([*(np.arange(1, 501) / 100), *np.geomspace(5.1, 100, 60)]).tolist())
_MOST_DRAWN = 10**8  # examples of all resamples, unless more are asked for
FEWEST_RESAMPLES = 100  # with fewer, the ends of an interval are chance, and methods are chosen by it
LEVEL = 0.05  # two-sided p-value of the score test, from which on outputs as given may be calibrated
NEAR = 0.5  # standard errors of a difference, within which the plainer of two methods counts as good
PREFERENCES = ("least", "plain")


class Choice(NamedTuple):
    """The method to use, and how it was chosen."""

    fitted: Fitted
    plainest: Fitted  # the plainest of all that is not worse than it beyond noise
    refused: dict[str, str]  # method -> why it was not to be chosen, whatever its criterion
    test: ScoreTest | None = None  # of T = 1


def choose(
    fits: Sequence[Fitted],
    differences: Sequence[Difference],
    *,
    criterion: str,
    prefer: str = "least",
    test: ScoreTest | None = None,
    absent: bool = False,
) -> Choice:
    """The method with the least criterion to be expected on other examples, by held-out parts of the validation split.

    Compared are the uncalibrated predictions and a fit of each fitted method, the `candidates`, in the order of
    `fits`, plainest first. A method with numbers of each class takes no part where a class has no example, nor does one
    whose fit did not converge, but for a temperature that ended where all probabilities are nearly equal.

    The choice is the plainest within half a standard error of the least. By NLL it is among the outputs as given and
    `stacking`, where that is fitted, and without the outputs as given where the score test of T = 1 has p < 0.05; else
    among all. With fewer than 100 examples it is the first method whose fit converged. What each rule costs is
    measured in experiments/posthoc.

    Args:
        fits: Of `fit_methods` on all examples, "uncalibrated" among them.
        differences: Of `cross_fit` with the same methods: those of each of the `candidates` less each earlier one, and
            less the uncalibrated predictions, in the metric of the criterion.
        criterion: "nll", or the ECE that the methods are fitted by. A method that has no fit by it takes part with
            another of its fits.
        prefer: "least", or "plain" for a choice among all single maps that keep the predicted class.
        test: `temperature_score_test` of the outputs as given on all examples.
        absent: Whether a class has no example among those that were fitted on.

    Example:
        >>> from focalgeo.rows import Difference
        >>> methods = {name: calibration.METHODS[name] for name in ("uncalibrated", "temperature_scaling")}
        >>> fits = calibration.fit_methods(methods, logits, labels, settings={"criteria": ("nll",)})
        >>> numbers = -0.03, -0.04, -0.02, 0.001, 500  # nats, their interval, the p-value, examples
        >>> less = Difference("nll_difference", *numbers, "cross_fit", "temperature_scaling", "uncalibrated", "nll")
        >>> calibration.choose(fits, [less], criterion="nll").fitted.method.name
        'temperature_scaling'
    """
    uncalibrated = next(fitted for fitted in fits if fitted.criterion is None)
    compared = [uncalibrated, *(fits[index] for index in metric_rows.candidates(fits, criterion))]
    metric, refused = METRIC_OF.get(criterion, criterion), {}
    rows = {
        (row.method, row.criterion, row.against, row.against_criterion): row
        for row in differences
        if row.name == f"{metric}_difference"
    }
    for fitted in compared:
        if absent and (fitted.method.most_classes == 2 or any("biases" in name for name in fitted.params)):
            refused[fitted.method.name] = "it has numbers of each class, and val lacks examples of some"
        elif not fitted.admissible:
            refused[fitted.method.name] = fitted.why_not_converged
    admitted = [fitted for fitted in compared if fitted.method.name not in refused]
    if len(admitted) == 1:
        return Choice(uncalibrated, uncalibrated, refused, test)
    if _difference(rows, admitted[1], uncalibrated).n < LEAST_EXAMPLES:
        return Choice(admitted[1], admitted[1], {}, test)
    mixture = [fitted for fitted in admitted if "members" in fitted.method.options and metric == "nll"]
    hot = metric == "nll" and test is not None and test.p_value < LEVEL
    pool = admitted[hot:]  # one fit at least stands beside the outputs as given
    if prefer == "plain":
        pool = [fitted for fitted in pool if fitted.method.keeps_class] or pool
    elif mixture:
        pool = [fitted for fitted in pool if fitted is uncalibrated] + mixture
    chosen = _first_near(_least(pool, rows), pool, rows, NEAR)
    return Choice(chosen, _first_near(chosen, admitted, rows, resampling.Z95), refused, test)


def _least(pool, rows):
    least = pool[0]
    for fitted in pool[1:]:
        least = fitted if _difference(rows, fitted, least).value < 0 else least
    return least


def _first_near(fitted, pool, rows, errors):
    """The first of the pool, up to the fitted one itself, that is worse by no more than so many standard errors."""
    for plainer in pool[: pool.index(fitted)]:
        row = _difference(rows, fitted, plainer)
        if -row.value <= errors * (row.high - row.low) / (2 * resampling.Z95):
            return plainer
    return fitted


def _difference(rows, fitted, against):
    """The row of one method less a plainer one."""
    other = None if against.criterion == fitted.criterion else against.criterion
    return rows[fitted.method.name, fitted.criterion, against.method.name, other]


class Comparison(NamedTuple):
    """Methods compared: rows, fits, the choice and its evidence."""

    rows: list[Row]  # fits, metrics, differences and reliability bins, as metrics.jsonl holds them
    fits: list[Fitted]  # on val, plainest method first
    choice: Choice  # of the method to use
    held_out: list[Calibrated]  # val by fits of the other folds: uncalibrated, the candidates and `also`
    suspicions: list[str]  # sentences on what speaks against the outputs: order of columns, chance, leakage
    search: dict[str, np.ndarray]  # gammas, temperatures and on them ece and nll of the focal map on val; {} without it

    @property
    def held_out_choice(self) -> Calibrated:
        """Val by the chosen method, each fold by a fit of the others."""
        fitted = self.choice.fitted
        named = {(held_out.method.name, held_out.criterion): held_out for held_out in self.held_out}
        return named[fitted.method.name, fitted.criterion]


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
    criteria: Sequence[str] = (),
    prefer: str = "least",
    metrics: Sequence[str] = DEFAULT_METRICS,
    num_bins: int = 15,
    num_resamples: int | None = None,
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
            need a gamma that is not given, or fewer classes, and by NLL their mixture, "stacking".
        criterion: By which methods are fitted where they can be, compared and chosen, see `choose`. NLL by default: it
            is proper, so no miscalibration improves it, and the same examples settle it sooner than an ECE. By NLL the
            score test of T = 1 on val decides whether the outputs as given take part.
        criteria: By which methods are fitted beside it; each is a fit of its own in the rows.
        prefer: "least" or "plain", see `choose`.
        metrics: Names in METRICS.
        num_bins: Bins of every binned metric.
        num_resamples: Of the bootstrap, 100 or more; None takes 1,000, of more than 100,000 examples fewer.
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

    Example:
        >>> result = calibration.compare((3 * scores, drawn), methods=["temperature_scaling"], num_resamples=100)
        >>> result.choice.fitted.method.name, round(result.choice.fitted.searched["temperature"], 1)
        ('temperature_scaling', 2.9)
    """
    if num_resamples is not None:
        checks.count("num_resamples", num_resamples, FEWEST_RESAMPLES, MOST_RESAMPLES)
    checks.check_choice("prefer", prefer, PREFERENCES)
    clusters = clusters if isinstance(clusters, tuple) else (clusters, None)
    of_val = _split("val", val, also or {}, 0, clusters[0])
    on_test = None if test is None else _split("test", test, also or {}, 1, clusters[1])
    num_classes = of_val.examples.rows.shape[1]
    if num_resamples is None:
        num_resamples = usual_resamples(*(len(split.examples.labels) for split in (of_val, on_test) if split))
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
    settings = fitting.checked_settings(
        {
            "criteria": tuple(dict.fromkeys((criterion, *criteria))),
            "num_bins": num_bins,
            "trained_gamma": trained_gamma,
            "gammas": np.sort(np.float32(gammas)),
            "temperatures": temperatures,
            "group": of_val.group,
        }
    )
    fold = fitting.folds(of_val.examples.labels, num_folds, seed, clusters=of_val.clusters and of_val.clusters.index)
    key = jax.random.split(jax.random.PRNGKey(seed), 4)[3]  # the main job's of this seed: it gives its rows again
    deciding = {METRIC_OF.get(criterion, criterion), "nll"}
    wanted = deciding.union({"brier", "accuracy"}, metrics)

    def sample(name, split, calibrated):
        calibrated = calibrated + split.also
        return Sample(name, split.examples.labels, calibrated, key, num_bins, num_resamples, split.clusters)

    def competing(method):
        """The method with the one criterion of its fits that `candidates` takes: val is not what is measured."""
        fitted_by = fitting.criteria_of(method, settings)
        return method._replace(criteria=(criterion,) if criterion in fitted_by else fitted_by[:1])

    searches = fitting.search_all(candidates, of_val.examples, settings)
    crossed = candidates if on_test is None else {name: competing(method) for name, method in candidates.items()}
    fitted, calibrated = fitting.fit_and_cross_fit(candidates, of_val.examples, settings, fold, crossed, searches)
    held_out = sample("cross_fit", of_val, calibrated)
    if on_test is None:
        measured, rows_of_test = held_out, []
        rows = _rows(held_out, criterion, wanted, of_val.group)
    else:  # ECE too, where it is asked for: on val it is drawn beside test's
        pairs = metric_rows.comparisons(calibrated, criterion)
        rows = metric_rows.calibration_rows(held_out, pairs, _ordered(deciding | {"ece"}.intersection(metrics)))
        measured = sample("test", on_test, [fit.calibrated(on_test.examples.rows, on_test.group) for fit in fitted])
        rows_of_test = _rows(measured, criterion, wanted, on_test.group)
    choice = choose(
        fitted,
        select(rows, Difference, split="cross_fit"),
        criterion=criterion,
        prefer=prefer,
        test=score_test(*of_val.examples, of_val.clusters),
        absent=len(np.unique(of_val.examples.labels)) < num_classes,
    )
    place = [fit is choice.fitted for fit in fitted].index(True)  # in `measured` too
    drawn = {0, *metric_rows.candidates(measured.calibrated, criterion)[:1], place}
    gaps = metric_rows.class_gap_rows(_part(measured, sorted(drawn)))
    rows = [*metric_rows.fit_rows(fitted, n=len(fold)), *rows_of_test, *rows, *gaps]
    searched = fitting.surfaces(searches, settings._asdict())
    return Comparison(rows, fitted, choice, held_out.calibrated, suspected, searched)


def usual_resamples(*sizes: int) -> int:
    """1,000, of many examples so few that they are 1e8 in all, and 100 at least: an interval's width is off by 7%.

    Example:
        >>> calibration.usual_resamples(10_000), calibration.usual_resamples(500_000)
        (1000, 200)
    """
    return int(np.clip(_MOST_DRAWN // max(sizes), FEWEST_RESAMPLES, 1000))


def _split(name, outputs, also, position, named):
    """The outputs of a split, checked; what is wrong with them is said with its name."""
    logits, labels, group, clusters, weights = Outputs(*outputs)
    where, others = name, []
    try:
        examples = blocks.on_host(checks.predicted_logits(logits, labels, weights=weights, stacklevel=4))
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
    """The methods that `compare` compares with these arguments, plainest first; `also` are names alone.

    Example:
        >>> given = {"criteria": (), "metrics": ("nll",), "trained_gamma": None, "num_classes": 3}
        >>> list(calibration.checked_methods(["vector_scaling", "temperature_scaling"], criterion="ece", **given))
        ['uncalibrated', 'temperature_scaling', 'vector_scaling']
    """
    usual = (*DEFAULT_METHODS, *(("stacking",) if criterion == "nll" else ()))
    names = checks.names("methods", usual if methods is None else methods, METHODS)
    checks.names("criteria", criteria, CRITERIA)
    checks.names("metrics", metrics, METRICS)
    checks.check_choice("criterion", criterion, CRITERIA)
    if taken := METHODS.keys() & also:
        raise InputError(f"also names {min(taken)}, a method of focalgeo's own: give it another name")
    if "stacking" in names and criterion != "nll":
        raise InputError("stacking is fitted by NLL: leave it out of methods, or give criterion nll")
    if "stacking" in names:
        names = (*names, *fitting.members(num_classes))
    candidates = {name: method for name, method in METHODS.items() if name in names or name == "uncalibrated"}
    if methods is None:
        return fitting.usable(candidates, {"trained_gamma": trained_gamma}, num_classes)
    fitting.check_usable(candidates, trained_gamma, num_classes)
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
