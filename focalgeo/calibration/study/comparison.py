"""Calibration methods compared on a classifier's outputs: fitted and chosen on val, measured on test."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from focalgeo import checks
from focalgeo.calibration import blocks, decisions
from focalgeo.calibration.examples import Clusters, Outputs, prevalence_weights
from focalgeo.calibration.fits.focal import ScoreTest, score_test
from focalgeo.calibration.fits.search import GAMMAS, Grid
from focalgeo.calibration.methods import DEFAULT_METHODS, METHODS, Calibrated, Fitted, Method, fitting
from focalgeo.calibration.methods.zeros import chosen, half_filled
from focalgeo.calibration.metrics import METRICS, resampling
from focalgeo.calibration.study import measurement, metric_rows, suspicions
from focalgeo.rows import LEAST_EXAMPLES, Difference, Row, select
from focalgeo.types import (
    CRITERIA,
    DEFAULT_METRICS,
    KEEP_RANKING,
    METRIC_OF,
    MOST_RESAMPLES,
    OF_CLASS_ONE,
    Array,
    DataWarning,
    InputError,
)

# the paper's grid, and coarsely on from there: outputs of other programs may be scaled by anything
TEMPERATURES = tuple(np.float32([*(np.arange(1, 501) / 100), *np.geomspace(5.1, 100, 60)]).tolist())
_MOST_DRAWN = 10**8  # examples of all resamples, unless more are asked for
FEWEST_RESAMPLES = 100  # with fewer, the ends of an interval are chance, and methods are chosen by it
LEVEL = 0.05  # two-sided p-value of the score test, from which on outputs as given may be calibrated
NEAR = 0.5  # standard errors of a difference, within which the simpler of two methods counts as good
PREFERENCES = ("least", "plain")
_AT_ONCE = 10**6  # examples times groups, with which metrics of P(1) take a minute


def _keeps_ranking(fitted):
    return fitted.method.name in KEEP_RANKING and fitted.params.get("a", 1) > 0  # below 0 Platt scaling reverses it


class Choice(NamedTuple):
    """The method to use, and how it was chosen."""

    fitted: Fitted
    plainest: Fitted  # the simplest of all that is not significantly worse than it
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
    `fits`, simplest first. A method with numbers of each class takes no part where a class has no example. Nor does a
    method whose fit did not converge, unless it is a temperature that ended where all probabilities are nearly equal.

    The choice is the simplest method within half a standard error of the least. By NLL, where `stacking` is fitted, it
    is between uncalibrated outputs and `stacking`; uncalibrated outputs take part only where the score test of T = 1
    has p >= 0.05. Otherwise it is among all methods. With fewer than 100 examples it is the first method whose fit
    converged. experiments/posthoc measures what each rule costs.

    Args:
        fits: Result of `fit_methods` on all examples, with "uncalibrated" among them.
        differences: Result of `cross_fit` with the same methods: each of the `candidates` minus each earlier one, and
            minus the uncalibrated predictions, in the metric of the criterion.
        criterion: "nll", or the ECE that the methods are fitted by. A method that has no fit by it takes part with
            another of its fits.
        prefer: "least", or "plain" for a choice among all single maps that keep the predicted class, or of two classes
            the ranking by P(1), as Platt scaling does.
        test: `temperature_score_test` of the uncalibrated outputs on all examples.
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
    # differences of so few examples say next to nothing
    if _difference(rows, admitted[1], uncalibrated).n < LEAST_EXAMPLES:
        return Choice(admitted[1], admitted[1], {}, test)
    mixture = [fitted for fitted in admitted if "members" in fitted.method.options and metric == "nll"]
    hot = metric == "nll" and test is not None and test.p_value < LEVEL
    # where the score test refutes T = 1, the outputs as given leave the pool
    pool = admitted[hot:]  # one fit at least stands beside the outputs as given
    if prefer == "plain":
        pool = [fitted for fitted in pool if fitted.method.keeps_class or _keeps_ranking(fitted)] or pool
    elif mixture:
        pool = [fitted for fitted in pool if fitted is uncalibrated] + mixture
    least = pool[0]
    for fitted in pool[1:]:
        least = fitted if _difference(rows, fitted, least).value < 0 else least
    chosen = _first_near(least, pool, rows, NEAR)
    return Choice(chosen, _first_near(chosen, admitted, rows, resampling.Z95), refused, test)


def _first_near(fitted, pool, rows, errors):
    """The first of the pool, up to the fitted one itself, that is worse by no more than so many standard errors."""
    for plainer in pool[: pool.index(fitted)]:
        row = _difference(rows, fitted, plainer)
        if -row.value <= errors * (row.high - row.low) / (2 * resampling.Z95):
            return plainer
    return fitted


def _difference(rows, fitted, against):
    """The row of one method minus a simpler one."""
    other = None if against.criterion == fitted.criterion else against.criterion
    return rows[fitted.method.name, fitted.criterion, against.method.name, other]


class Comparison(NamedTuple):
    """Methods compared: rows, fits, the choice and its evidence."""

    rows: list[Row]  # fits, metrics, differences and reliability bins, as metrics.jsonl holds them
    fits: list[Fitted]  # on val, simplest method first
    choice: Choice  # of the method to use
    held_out: list[Calibrated]  # val by fits of the other folds: uncalibrated, the candidates and `also`
    suspicions: list[str]  # sentences on what speaks against the outputs: order of columns, chance, leakage
    search: dict[str, np.ndarray]  # gammas, temperatures and on them ece and nll of the focal map on val; {} without it

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.fits)} fits in {len(self.rows)} rows; choice: {self.choice.fitted}>"

    @property
    def held_out_choice(self) -> Calibrated:
        """Val by the chosen method, each fold by a fit of the others."""
        fitted = self.choice.fitted
        named = {(held_out.method.name, held_out.criterion): held_out for held_out in self.held_out}
        return named[fitted.method.name, fitted.criterion]


class Settings(NamedTuple):
    """How a study fits, chooses and measures methods; `compare` says what each does."""

    criterion: str = "nll"
    criteria: Sequence[str] = ()
    prefer: str = "least"
    metrics: Sequence[str] = DEFAULT_METRICS
    num_bins: int = 15
    num_resamples: int | None = None
    num_folds: int = 5
    seed: int = 0
    trained_gamma: float | None = None
    gammas: Grid = GAMMAS
    temperatures: Grid = TEMPERATURES
    thresholds: Sequence[float] = ()

    @classmethod
    def of(cls, options: Mapping[str, Any], **others: Any) -> "Settings":
        """Those among options, by their names; others beside them."""
        return cls(**{name: options[name] for name in cls._fields if name in options}, **others)


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
    prevalence: float | None = None,
    thresholds: Sequence[float] = (),
) -> Comparison:
    """Calibration methods fitted and chosen on val, and measured with intervals on test: the rows of the command.

    Args:
        val: (logits, labels), or `Outputs` where there are groups or clusters; float [examples, classes] and int
            [examples].
        test: The same of other examples; without it, val is measured by fits of the other folds.
        methods: Names in METHODS, or their short names ("platt"); "uncalibrated" takes part anyway. None takes
            DEFAULT_METHODS, without those that need a gamma that is not given, or fewer classes, and by NLL their
            mixture, "stacking".
        criterion: By which methods are fitted where they can be, compared and chosen, see `choose`. NLL by default: it
            is proper, so no miscalibration improves it, and the same examples settle it sooner than an ECE. By NLL the
            score test of T = 1 on val decides whether the uncalibrated outputs take part.
        criteria: Further criteria to fit by; each fit has rows of its own.
        prefer: "least" or "plain", see `choose`.
        metrics: Names in METRICS.
        num_bins: Bins of every binned metric.
        num_resamples: Resamples of the bootstrap, 100 or more; None takes 1,000, or fewer for more than 100,000
            examples.
        num_folds: Folds of the cross-fit of val by which a method is chosen.
        seed: Seed of the folds and of the bootstrap.
        trained_gamma: Gamma of the focal loss that the model was trained with, if it was.
        gammas: The grid on which the focal map is fitted by an ECE.
        temperatures: The grid on which temperatures are fitted by an ECE.
        also: Name -> log-probabilities (of val, of test) by a method from elsewhere: compared, never chosen. Those of
            val must be held out: each fold by a fit of the others.
        clusters: Numbers or names [examples] of which examples of val belong together, or a tuple of those of val and
            of test; without them the clusters of `Outputs` are taken.
        prevalence: Share of class 1 of two in use, where a split is rebalanced: both get weights of
            `prevalence_weights`.
        thresholds: Values of P(1) of two classes from which one acts: rows "net_benefit" of a decision curve.

    A DataWarning says what speaks against the outputs. A number that is not finite is a RunError.

    Example:
        >>> result = calibration.compare((3 * scores, drawn), methods=["temperature_scaling"], num_resamples=100)
        >>> result.choice.fitted.method.name, round(result.choice.fitted.searched["temperature"], 1)
        ('temperature_scaling', 2.9)
    """
    settings = Settings.of(locals())
    try:
        splits = {"val": Outputs(*val)} | ({} if test is None else {"test": Outputs(*test)})
    except TypeError as error:
        mend = "give each as (logits, labels), or calibration.Outputs(probs=probs, labels=labels)"
        raise InputError(f"val and test hold other than two to five arrays: {mend}") from error
    named = clusters if isinstance(clusters, tuple) else (clusters, None)
    for name, of_split in zip(("val", "test"), named, strict=True):
        if of_split is not None and name in splits:
            splits[name] = splits[name]._replace(clusters=of_split)
    for name, split in splits.items():
        splits[name] = split._replace(weights=prevalence_weights(split.labels, prevalence, split.weights))
    return study(splits, methods, settings, also=also or {}, stacklevel=6)


def study(
    outputs: Mapping[str, Outputs],
    methods: Sequence[str] | None,
    settings: Settings,
    *,
    also: Mapping[str, tuple[Array, Array | None]],
    stacklevel: int | None = None,
) -> Comparison:
    """`compare` of val, and of test if it is there: what is wrong is said before anything is fitted.

    Without `stacklevel`, as by a command that has lines of its own, no probabilities among the logits are asked for.
    """
    splits, settings = _checked(outputs, settings, also, stacklevel)
    suspected = []
    for name, split in splits.items():
        suspected += suspicions.of_split(name, *split.examples, clustered=split.clusters is not None)
    if "test" in splits:
        suspected += suspicions.of_both(*(split.examples[:2] for split in splits.values()))
    for sentence in suspected:
        warnings.warn(sentence, DataWarning, stacklevel=3)
    of_val, on_test, criterion = splits["val"], splits.get("test"), settings.criterion
    num_classes = of_val.examples.rows.shape[1]
    candidates = checked_methods(methods, settings, num_classes, also)
    fits, calibrated, search = _fitted(candidates, of_val, settings, cross_fit_all=on_test is None)
    held_out = _sample("cross_fit", of_val, calibrated, settings)
    deciding = {METRIC_OF.get(criterion, criterion), "nll"}
    wanted = deciding.union({"brier", "accuracy"}, settings.metrics)
    if on_test is None:
        measured, rows_of_test = held_out, []
        rows = _rows(held_out, criterion, wanted, of_val.group)
    else:  # ECE too, where it is asked for: on val it is drawn beside test's
        pairs = metric_rows.comparisons(calibrated, criterion)
        drawn = sorted(deciding | {"ece"}.intersection(settings.metrics), key=[*METRICS].index)
        rows = metric_rows.calibration_rows(held_out, pairs, drawn)
        on_rows = [fitted.calibrated(on_test.examples.rows, on_test.group) for fitted in fits]
        measured = _sample("test", on_test, on_rows, settings)
        rows_of_test = _rows(measured, criterion, wanted, on_test.group)
    examples = of_val.examples
    if fits[0].zeros:  # the test asks of the likelihood
        examples = examples._replace(rows=fits[0].zeros.filled(examples.rows))
    choice = choose(
        fits,
        select(rows, Difference, split="cross_fit"),
        criterion=criterion,
        prefer=settings.prefer,
        test=score_test(*examples, of_val.clusters),
        absent=len(np.unique(of_val.examples.labels)) < num_classes,
    )
    place = [fitted is choice.fitted for fitted in fits].index(True)  # in `measured` too
    shown = {0, *metric_rows.candidates(measured.calibrated, criterion)[:1], place}
    gaps = metric_rows.class_gap_rows(_part(measured, sorted(shown)))
    judged, group = _part(measured, sorted({0, place})), (on_test or of_val).group
    if settings.thresholds:
        gaps += metric_rows.net_benefit_rows(judged, settings.thresholds)
    if num_classes == 2 and group is not None and (size := len(group) * len({*group})) <= _AT_ONCE:
        few = judged._replace(num_resamples=min(settings.num_resamples, usual_resamples(size)))
        gaps += metric_rows.group_rows(few, group, [name for name in OF_CLASS_ONE if name != "spiegelhalter_z"])
    rows = [*metric_rows.fit_rows(fits, n=len(of_val.examples.labels)), *rows_of_test, *rows, *gaps]
    return Comparison(rows, fits, choice, held_out.calibrated, suspected, search)


def fitted_rows(
    splits: Mapping[str, tuple], methods: Mapping[str, Method], settings: Settings
) -> tuple[list[Row], dict[str, np.ndarray], list[Fitted]]:
    """Rows of methods that are fitted on val and measured on every split, val too; the search on val; and the fits.

    Nothing is held out and nothing is chosen: so the main job measures its network at each size in seconds. Methods are
    compared on test alone.
    """
    checked = {name: _split(name, Outputs(*outputs), {}) for name, outputs in splits.items()}
    of_fits = _settings_of_fits(settings, checked["val"], settings.criteria)
    val = checked["val"].examples
    searches = fitting.search_all(methods, val, of_fits)
    fits = fitting.fit_all(methods, val, of_fits, searches=searches)
    rows = metric_rows.fit_rows(fits, n=len(val.labels))
    for name, split in checked.items():
        calibrated = [fitted.calibrated(split.examples.rows, split.group) for fitted in fits]
        pairs = metric_rows.comparisons(calibrated, settings.criterion) if name == "test" else ()
        rows += metric_rows.calibration_rows(_sample(name, split, calibrated, settings), pairs, settings.metrics)
    return rows, fitting.surfaces(searches, of_fits._asdict()), fits


def _checked(given, settings, also, stacklevel):
    """The splits and the settings of a study, as far as they can be checked without each other."""
    if settings.num_resamples is not None:
        checks.count("num_resamples", settings.num_resamples, FEWEST_RESAMPLES, MOST_RESAMPLES)
    checks.check_choice("prefer", settings.prefer, PREFERENCES)
    splits = {}
    for name, outputs in given.items():  # no comprehension: before Python 3.12 it is a frame
        splits[name] = _split(name, outputs, also, stacklevel)
    classes, *others = (split.examples.rows.shape[1] for split in splits.values())
    if others and others != [classes]:
        raise InputError(f"test has another number of classes than the {classes} of val: give one classifier's")
    usual = usual_resamples(*(len(split.examples.labels) for split in splits.values()))
    return splits, settings._replace(num_resamples=settings.num_resamples or usual)


def _settings_of_fits(settings, val, criteria):
    of_val = {"group": val.group, "zeros": chosen(*val.examples), "criteria": criteria}
    return fitting.checked_settings(settings._asdict() | {"gammas": np.sort(np.float32(settings.gammas))} | of_val)


def _fitted(methods, val, settings, *, cross_fit_all):
    """Fits on val, val by fits of the other folds, and the search; where test is measured each method has one fold-fit.

    That is the one criterion of its fits that `candidates` takes.
    """
    criteria = tuple(dict.fromkeys((settings.criterion, *settings.criteria)))
    of_fits, (_, labels, _) = _settings_of_fits(settings, val, criteria), val.examples

    def competing(method):
        fitted_by = fitting.criteria_of(method, of_fits)
        criteria = (settings.criterion,) if settings.criterion in fitted_by else fitted_by[:1]
        return method._replace(criteria=criteria)

    fold = fitting.folds(labels, settings.num_folds, settings.seed, clusters=val.clusters and val.clusters.index)
    searches = fitting.search_all(methods, val.examples, of_fits)
    crossed = methods if cross_fit_all else {name: competing(method) for name, method in methods.items()}
    fits, calibrated = fitting.fit_and_cross_fit(methods, val.examples, of_fits, fold, crossed, searches)
    return fits, calibrated, fitting.surfaces(searches, of_fits._asdict())


def _sample(name, split, calibrated, settings):
    key = jax.random.split(jax.random.PRNGKey(settings.seed), 4)[3]  # the main job's of this seed: the same rows
    numbers = settings.num_bins, settings.num_resamples
    return measurement.Sample(name, split.examples.labels, calibrated + split.also, key, *numbers, split.clusters)


def usual_resamples(*sizes: int) -> int:
    """1,000, of many examples so few that they are 1e8 in all, and 100 at least: an interval's width is off by 7%.

    Example:
        >>> calibration.usual_resamples(10_000), calibration.usual_resamples(500_000)
        (1000, 200)
    """
    return int(np.clip(_MOST_DRAWN // max(sizes), FEWEST_RESAMPLES, 1000))


def _split(name, outputs, also, stacklevel=None):
    """The outputs of a split, checked; what is wrong with them is said with its name."""
    logits, labels, group, clusters, weights = outputs
    where, others = name, []
    try:
        examples = blocks.on_host(checks.predicted_logits(logits, labels, weights=weights, stacklevel=stacklevel))
        if group is not None:
            group = np.asarray(group)
            checks.check_array("group", group, shape=examples.labels.shape)
        clusters = Clusters.of(clusters, examples.labels, weights)
        for other, by_split in also.items():
            where = f"also {other}, {name}"
            log_probs = checks.score_rows("log_probs", by_split[name == "test"], shape=examples.rows.shape)
            method = Method(other, other, None, None, criteria=(), keeps_class=False)
            rows = checks.examples(log_probs, examples.labels).rows
            others.append(Calibrated(method, None, rows, half_filled(rows)))
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    return _Split(examples, group, clusters, others)


def checked_methods(
    methods: Sequence[str] | None, settings: Settings, num_classes: int, also: Collection[str]
) -> dict[str, Method]:
    """The methods that a study compares with these settings, simplest first; `also` are names alone."""
    by_nll = settings.criterion == "nll"
    usual = (*DEFAULT_METHODS, "stacking") if by_nll else DEFAULT_METHODS
    names = checks.names("methods", usual if methods is None else methods, METHODS | fitting.ALIASES)
    names = [fitting.ALIASES.get(name, name) for name in names]
    checks.names("criteria", settings.criteria, CRITERIA)
    checks.names("metrics", settings.metrics, METRICS)
    checks.check_choice("criterion", settings.criterion, CRITERIA)
    if taken := METHODS.keys() & also:
        raise InputError(f"also names {min(taken)}, a method of focalgeo's own: give it another name")
    if "stacking" in names:
        if not by_nll:
            raise InputError("stacking is fitted by NLL: leave it out of methods, or give criterion nll")
        names += fitting.members(num_classes)
    for threshold in settings.thresholds:
        decisions.check_share("thresholds", threshold)
    if settings.thresholds and num_classes != 2:
        raise InputError(f"thresholds are of P(1) of two classes, here are {num_classes}: leave them out")
    candidates = {name: method for name, method in METHODS.items() if name in names or name == "uncalibrated"}
    if methods is None:
        return fitting.usable(candidates, settings._asdict(), num_classes)
    fitting.check_usable(candidates, settings.trained_gamma, num_classes)
    return candidates


def _part(sample, positions):
    return sample._replace(calibrated=[sample.calibrated[index] for index in positions])


def _rows(sample, criterion, metrics, group):
    """Rows of a split on which methods are compared: metrics, differences, and those of two classes and of groups."""
    pairs = metric_rows.comparisons(sample.calibrated, criterion)
    rows = metric_rows.calibration_rows(sample, pairs, sorted(metrics, key=[*METRICS].index))
    competing = _part(sample, [0, *metric_rows.candidates(sample.calibrated, criterion)])
    if competing.calibrated[0].log_probs.shape[1] == 2:
        rows += metric_rows.class1_rows(competing)
    return rows if group is None else rows + metric_rows.group_rows(competing, group)
