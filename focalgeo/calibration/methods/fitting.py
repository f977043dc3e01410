"""Methods fitted to outputs: one, several that share their searches, and each fold by a fit of the others.

Cross-fitted: the examples are split into folds, and each fold is calibrated by a fit of the others. So a validation
split alone says how a method does on examples that its fit has not seen.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from focalgeo import checks
from focalgeo.calibration import blocks
from focalgeo.calibration.examples import Clusters, as_logits, prevalence_weights
from focalgeo.calibration.fits import focal, search, stacking
from focalgeo.calibration.fits.search import Grid, GridSearch
from focalgeo.calibration.methods import MEMBERS, METHODS, Calibrated, ConvergenceWarning, Fitted, Method, group_names
from focalgeo.calibration.methods.zeros import Zeros, chosen
from focalgeo.calibration.metrics.binning import Labels, Logits, Mask, SoftLabels, Weights
from focalgeo.types import BAR, DEFAULT_CRITERIA, Array, InputError

Methods = Mapping[str, Method]

ALIASES = {  # of `fit` and CalibratedClassifier
    "temperature": "temperature_scaling",
    "platt": "platt_scaling",
    "sigmoid": "platt_scaling",
    "beta": "beta_calibration",
}
_MOST_FOLDS = 10_000  # fits are made for each
_NUM_FOLDS = 5  # of the examples, where a method needs held-out ones and none are given


class Settings(NamedTuple):
    """What fits are made by, beside the examples; `checked_settings` makes it."""

    criteria: tuple[str, ...] = DEFAULT_CRITERIA
    gammas: Grid = search.GAMMAS
    temperatures: Grid = search.TEMPERATURES
    num_bins: int = 15
    trained_gamma: float | None = None
    group: Array | None = None  # the name of each example's group
    zeros: Zeros | None = None  # what probabilities of 0 stand for where a fit is by NLL; None where there are none


def checked_settings(settings: Mapping[str, Any]) -> Settings:
    """The settings of fits with their defaults, the grid as float32."""
    settings = Settings(**{name: settings[name] for name in Settings._fields if name in settings})
    grid = search.checked_grid(settings.gammas, settings.temperatures, "ece", settings.num_bins)
    if settings.trained_gamma is not None:
        checks.check_above("trained_gamma", settings.trained_gamma, -1)
    return settings._replace(gammas=grid[0], temperatures=grid[1])


def criteria_of(method: Method, settings: Settings) -> tuple[str, ...]:
    """The criteria by which `fit_methods` fits the method; () where nothing is fitted."""
    return tuple(name for name in method.criteria if name in settings.criteria) or method.criteria[:1]


def _why_refused(method, trained_gamma, num_classes):
    """Why logits of so many classes cannot be fitted; "" where they can."""
    if "trained_gamma" in method.options and trained_gamma is None:
        return f"{method.name} needs the gamma that the model was trained with: give trained_gamma"
    if num_classes > (method.most_classes or num_classes):
        most = f"{method.title.lower()} takes {method.most_classes} at most"
        return f"logits have {num_classes} classes, {most}: choose another method"
    return ""


def usable(methods: Methods, settings: Mapping[str, Any], num_classes: int) -> dict[str, Method]:
    """The methods that take so many classes, and need no gamma of the training that `settings` does not give.

    Example:
        >>> names = "temperature_scaling", "platt_scaling", "loss_implied_map"  # of two classes, of a gamma
        >>> list(calibration.usable({name: calibration.METHODS[name] for name in names}, {"trained_gamma": 3.0}, 3))
        ['temperature_scaling', 'loss_implied_map']
    """
    gamma = settings.get("trained_gamma")
    return {name: method for name, method in methods.items() if not _why_refused(method, gamma, num_classes)}


def check_usable(methods: Methods, trained_gamma: float | None, num_classes: int) -> None:
    """Refuse methods that are not `usable`."""
    for method in methods.values():
        if why := _why_refused(method, trained_gamma, num_classes):
            raise InputError(why)


def members(num_classes: int) -> dict[str, Method]:
    """The members of stacking that take so many classes."""
    return usable({name: METHODS[name] for name in MEMBERS}, {}, num_classes)


def named(name: str) -> Method:
    """The method of METHODS with this name or short name."""
    (known,) = checks.names("the method", [ALIASES.get(str(name), str(name))], METHODS)
    return METHODS[known]


def fit(
    name: str,
    logits: Logits | None = None,
    labels: SoftLabels | None = None,
    *,
    probs: Array | None = None,
    criterion: str | None = None,
    mask: Mask = None,
    gammas: Grid | None = None,
    temperatures: Grid | None = None,
    num_bins: int = 15,
    trained_gamma: float | None = None,
    weights: Weights = None,
    group: Array | None = None,
    prevalence: float | None = None,
) -> Fitted:
    """A method of METHODS fitted to held-out logits, ready to predict.

    Args:
        name: Its key in METHODS, such as "focal_temperature_scaling", or a short name: "temperature", "platt",
            "sigmoid" (Platt scaling) or "beta".
        logits: Float [examples, classes], of examples that the network was not trained on. Probabilities are refused;
            of fewer than 30 rows, or where all are in [0, 1] and rows do not sum to 1, a ProbabilityWarning asks.
        labels: Int [examples], or soft [examples, classes] that sum to 1, for fits by NLL.
        probs: In place of logits, see `log_probabilities`.
        criterion: One of the method's criteria; None for the first of them, "nll" wherever something is fitted.
        mask: Bool [examples], which examples count; None takes all.
        weights: Float [examples], 0 or more: how often each example counts; None counts each once.
        gammas: The grid of an ECE, GAMMAS if None; refused with "nll", whose fit is continuous.
        temperatures: The grid of an ECE, TEMPERATURES if None; refused with "nll".
        num_bins: Bins of an ECE, and of histogram binning.
        trained_gamma: Gamma of the focal loss that the model was trained with, for methods that need it.
        group: The name of each example's group [examples], for the method that fits each by itself; None is one group.
        prevalence: Share of class 1 of two in use, for rebalanced examples: they get weights of `prevalence_weights`.

    Returns:
        Fitted. Where its fit did not converge, as when it ended at an end of its range, a ConvergenceWarning says so
        once. On the host: inside jit or vmap it is refused.

    Example:
        >>> fitted = calibration.fit("temperature_scaling", logits, labels)
        >>> round(float(fitted.params["temperature"]), 2)
        0.96
        >>> print(fitted.predict_proba(logits[:1]).round(4))
        [[0.6759 0.2394 0.0848]]
    """
    method = named(name)
    name, logits = method.name, as_logits(logits, probs)
    criteria = method.criteria[:1]
    if criterion is not None:
        checks.check_choice(f"criterion of {name}", criterion, method.criteria)
        criteria = (criterion,)
    grid = {name: values for name, values in (("gammas", gammas), ("temperatures", temperatures)) if values is not None}
    if grid and criteria == ("nll",):
        raise InputError("a fit by NLL is continuous and takes no gammas and temperatures: give criterion='ece'")
    settings = {"criteria": criteria, "num_bins": num_bins, "trained_gamma": trained_gamma, "group": group}
    settings |= grid | {"prevalence": prevalence}
    (fitted,) = fit_all({name: method}, *_checked({name: method}, logits, labels, settings, mask, weights))
    if not fitted.converged:
        where = ", ".join(f"{name} {value:.4g}" for name, value in fitted.searched.items())
        why = f"{method.title.lower()}: {fitted.why_not_converged}{f' ({where})' if fitted.at_end else ''}"
        mend = "look at the labels, give more examples or take another method"
        warnings.warn(f"{why}: {mend}", ConvergenceWarning, stacklevel=2)
    return fitted


def fit_methods(
    methods: Methods,
    logits: Logits,
    labels: SoftLabels,
    *,
    settings: Mapping[str, Any],
    mask: Mask = None,
    weights: Weights = None,
) -> list[Fitted]:
    """Every method fitted by those of its criteria that `settings` names, in the order of `methods`.

    Args:
        methods: Some of METHODS, or others.
        logits: Float [examples, classes], of a validation split.
        labels: Int [examples], or soft [examples, classes] that sum to 1, for fits by NLL.
        settings: "criteria", ("nll", "ece") if it is missing (a method that has none of them is fitted by its first),
            "gammas", "temperatures", "num_bins", "trained_gamma" and "prevalence". Methods that search the grid
            share one search for each criterion: give the results by criterion as "searches" where they are known.
        mask: Bool [examples], which examples count; None takes all.
        weights: Float [examples], 0 or more: how often each example counts; None counts each once.

    Example:
        >>> methods = {name: calibration.METHODS[name] for name in ("uncalibrated", "temperature_scaling")}
        >>> fits = calibration.fit_methods(methods, logits, labels, settings={"criteria": ("nll",)})
        >>> [(fit.method.name, {name: round(value, 2) for name, value in fit.searched.items()}) for fit in fits]
        [('uncalibrated', {}), ('temperature_scaling', {'temperature': 0.96})]
    """
    checked = _checked(methods, logits, labels, settings, mask, weights)
    return fit_all(methods, *checked, searches=settings.get("searches"))


def _checked(methods, logits, labels, settings, mask, weights):
    """Examples and settings as `fit_all` takes them; a warning of the logits names the line that calls our caller."""
    prevalence, settings = settings.get("prevalence"), checked_settings(settings)
    examples = checks.predicted_logits(logits, labels, mask, weights, soft=True, stacklevel=4)
    weight = prevalence_weights(examples.labels, prevalence, examples.weight)
    examples = examples._replace(weight=weight.astype(examples.rows.dtype))
    check_usable(methods, settings.trained_gamma, examples.rows.shape[-1])
    for name, method in methods.items() if examples.labels.ndim == 2 else ():
        if (
            name == "histogram_binning"
            or method.most_classes == 2
            or {*criteria_of(method, settings)} - {"nll"}
            or ("members" in method.options and examples.rows.shape[1] == 2)  # some members are by classes
        ):
            raise InputError(f"labels are soft, which {name} does not take: fit by NLL, or give classes")
    return examples, settings._replace(zeros=chosen(*blocks.on_host(examples)))


@blocks.one_blas_thread()
def fit_all(methods, examples, settings, *, searches=None, starts=None, mixed=None) -> list[Fitted]:
    """`fit_methods` of what has been checked: what several methods need is computed here, once.

    Args:
        methods: Some of METHODS, or others.
        examples: Logits, labels and weights.
        settings: Of `checked_settings`.
        searches: Of `search_all`, if they are known.
        starts: Params near the best by (method, criterion), such as a fit of all examples for that of a fold.
        mixed: What stacking mixes, the members' fits and their held-out log-probabilities, if they are known.
    """
    plan = [
        (method, criterion) for method in methods.values() for criterion in criteria_of(method, settings) or (None,)
    ]
    searches, starts = searches or search_all(methods, examples, settings), starts or {}
    on_host = by_nll = blocks.on_host(examples)
    if settings.zeros:
        by_nll = on_host._replace(rows=settings.zeros.filled(on_host.rows))
    names, index = np.unique(group_names(settings.group, examples.weight.shape), return_inverse=True)
    index = index[examples.weight > 0]
    shared = {"searches": searches, "group": [np.flatnonzero(index == number) for number in range(len(names))]}
    needed = {option for method, criterion in plan if criterion == "nll" for option in method.options}
    # the fits by least NLL that several methods go on from
    if needed & {"temperature_fit", "focal_fit"}:
        near = starts.get(("temperature_scaling", "nll"))
        shared["temperature_fit"] = focal.temperature_fit(*by_nll, near)
    if "focal_fit" in needed:
        near = starts.get(("focal_temperature_scaling", "nll"))
        shared["focal_fit"] = focal.focal_fit(*by_nll, shared["temperature_fit"], near)
    fitted = []
    for method, criterion in plan:
        if "members" in method.options:
            shared["members"] = mixed or _members(fitted, on_host, settings)
        known = settings._asdict() | shared | {"start": starts.get((method.name, criterion))}
        options = {option: known.get(option) for option in method.options}
        logits, labels, weight = by_nll if criterion == "nll" else on_host
        params = method.fit(logits, labels, criterion=criterion, weights=weight, **options)
        of_groups = tuple(names.tolist()) if "group" in method.options else None
        fitted.append(Fitted(method, criterion, params, logits.shape[-1], of_groups, settings.zeros))
    return fitted


def _members(fitted, examples, settings, held_out=None):
    """What stacking mixes, with the members' fits as far as they are among what is fitted."""
    methods, settings = members(examples.rows.shape[-1]), settings._replace(criteria=("nll",), group=None)
    if held_out is None:
        if len(examples.labels) < 2:
            raise InputError("stacking of one example has none to be held out: give two or more")
        fold = folds(examples.labels, min(_NUM_FOLDS, len(examples.labels)), 0)
        held_out = of_members(cross_fit(methods, examples, settings, fold))
    known = {fit.method.name: fit for fit in fitted if fit.criterion in ("nll", None)}
    fits = [known.get(name) or fit_all({name: method}, examples, settings)[0] for name, method in methods.items()]
    return fits, held_out


def search_all(methods, examples, settings) -> dict[str, GridSearch]:
    """The searches of the grid that `fit_all` makes for these settings, by criterion."""
    searching = [method for method in methods.values() if "searches" in method.options]
    criteria = {criterion for method in searching for criterion in criteria_of(method, settings)}
    grid = settings.gammas, settings.temperatures
    return {
        criterion: search.searched_grid(examples, *grid, criterion=criterion, num_bins=settings.num_bins)
        for criterion in ("ece", "adaptive_ece")
        if criterion in criteria
    }


def surfaces(searches: Mapping[str, GridSearch], settings: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The grid and what was searched on it, by criterion, and the NLL; {} without a search by ECE.

    Example:
        >>> grid = {"gammas": [0.0, 1.0], "temperatures": [1.0, 2.0, 3.0]}
        >>> searches = {"ece": calibration.grid_search(logits, labels, **grid)}
        >>> print(calibration.surfaces(searches, grid)["nll"].round(4))
        [[0.8055 0.874  0.9295]
         [0.8495 0.8345 0.8895]]
    """
    if "ece" not in searches:
        return {}
    grid = {name: settings[name] for name in ("gammas", "temperatures")}
    eces = {criterion: np.asarray(result.ece) for criterion, result in searches.items()}
    return grid | eces | {"nll": np.asarray(searches["ece"].nll)}


def searched(methods: Methods, logits: Logits, labels: Labels, *, settings: Mapping[str, Any]) -> dict[str, GridSearch]:
    """The searches of the grid that `fit_methods` makes with these arguments, which takes them as "searches".

    Example:
        >>> methods = {name: calibration.METHODS[name] for name in ("focal_temperature_scaling",)}
        >>> grid = {"criteria": ("ece",), "gammas": [0.0, 1.0], "temperatures": [1.0, 2.0], "num_bins": 3}
        >>> print(np.asarray(calibration.searched(methods, logits, labels, settings=grid)["ece"].ece).round(4))
        [[0.2391 0.0088]
         [0.2617 0.2033]]
    """
    return search_all(methods, checks.predicted_logits(logits, labels), checked_settings(settings))


def folds(labels: Array, num_folds: int, seed: int, *, clusters: Array | None = None) -> np.ndarray:
    """The fold of each example at random in `seed`, int32 [examples] from 0 to num_folds - 1; of one size but for 1.

    With `clusters` [examples], a number or name for each, no cluster is parted, and the folds hold as many of them.
    The labels give their number alone. Folds with equal shares of each class would flatter methods that fit the
    classes: each held-out part would have the very shares that they were fitted to. With 1,000 examples of 100 classes
    that made structured matrix scaling 0.03 nats too good.

    Example:
        >>> calibration.folds(labels, 2, 0).tolist()
        [1, 0, 0, 1]
        >>> calibration.folds(labels, 2, 0, clusters=np.array([7, 7, 9, 9])).tolist()
        [0, 0, 1, 1]
    """
    checks.count("num_folds", num_folds, 2, _MOST_FOLDS)
    checks.count("seed", seed, 0, 2**63 - 1)
    clusters = Clusters.of(clusters, labels)
    size = len(labels) if clusters is None else clusters.number
    if clusters is not None and size < num_folds:
        raise InputError(f"num_folds is {num_folds} for {size} clusters, which are not parted: give at most {size}")
    fold = np.empty(size, np.int32)
    fold[np.random.default_rng(seed).permutation(size)] = np.arange(size) % num_folds
    return fold if clusters is None else fold[clusters.index]


@blocks.one_blas_thread()
def cross_fit(methods, examples, settings, fold, starts=None) -> list[Calibrated]:
    """Held-out log-probabilities [examples, classes] of each fit of `fit_methods`, in its order.

    Each example is calibrated by a fit of the other folds, which has not seen it: fold [examples], from `folds`. Of
    stacking the members, which are to be among the methods, are so fitted, and its shares are those of the other folds.
    """
    single, mixtures = _parted(methods)
    rows, calibrated = examples.rows, []
    group = group_names(settings.group, examples.weight.shape)
    for index in tqdm(range(fold.max() + 1), "cross-fitting", **BAR):
        inside = fold == index
        others = examples._replace(weight=np.where(inside, 0, examples.weight))
        fitted = fit_all(single, others, settings, starts=starts)
        for place, held_out in enumerate(fit.calibrated(rows[inside], group[inside]) for fit in fitted):
            if index == 0:
                filled = None if held_out.filled is None else np.empty_like(rows)
                calibrated.append(held_out._replace(log_probs=np.empty_like(rows), filled=filled))
            calibrated[place].log_probs[inside] = held_out.log_probs
            if held_out.filled is not None:
                calibrated[place].filled[inside] = held_out.filled
    members = of_members(calibrated)
    for method in mixtures.values():
        (given, weight), rows = stacking.likelihoods(members, *examples[1:]), np.empty_like(rows)
        # in each fold the shares of the others: examples of the fold have told nothing of its mixture
        for index in range(fold.max() + 1):
            inside = fold == index
            shares = stacking.mixture_shares(given, np.where(inside, 0, weight), stacking.PRIOR / rows.shape[1])
            rows[inside] = stacking.mixed([member[inside] for member in members], shares)
        calibrated.append(Calibrated(method, "nll", rows))
    return calibrated


def _parted(methods):
    """The methods that are fitted alone, and those that mix members."""
    single = {name: method for name, method in methods.items() if "members" not in method.options}
    return single, {name: method for name, method in methods.items() if name not in single}


def fit_and_cross_fit(methods, examples, settings, fold, crossed, searches) -> tuple[list[Fitted], list[Calibrated]]:
    """`fit_all` of all methods, and `cross_fit` of `crossed` from there; stacking shares the held-out."""
    single, mixtures = _parted(methods)
    fitted = fit_all(single, examples, settings, searches=searches)
    # a fold's fit goes on from that of all examples, which is a step or two away
    starts = {(fit.method.name, fit.criterion): fit.params for fit in fitted}
    held_out = cross_fit(crossed, examples, settings, fold, starts)
    if mixtures:
        mixed = _members(fitted, examples, settings, of_members(held_out))
        fitted += fit_all(mixtures, examples, settings, mixed=mixed)
    return fitted, held_out


def of_members(calibrated: Sequence[Calibrated]) -> list[np.ndarray]:
    """The log-probabilities by the members of stacking."""
    known = {
        part.method.name: part.log_probs if part.filled is None else part.filled
        for part in calibrated
        if part.criterion in ("nll", None)
    }
    return [known[name] for name in MEMBERS if name in known]
