"""Calibration methods: how each is fitted to held-out logits, and how it is applied.

A fit gives params, and applying a method with its params gives log-probabilities: metrics, intervals, comparisons,
tables and the saved calibrator take those of any method. A new method is a function pair and an entry of METHODS;
tests/calibration/test_methods.py has one of ten lines.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from focalgeo.calibration.binning import Labels, Logits, LogProbs, Mask
from focalgeo.calibration.classwise import focal_matrix_scaling, focal_vector_scaling
from focalgeo.calibration.classwise_fits import (
    MOST_MATRIX_CLASSES,
    fit_focal_vector_scaling,
    fit_matrix_scaling,
    fit_vector_scaling,
)
from focalgeo.calibration.fits import CalibrationFit, fit_focal_temperature, fit_temperature
from focalgeo.calibration.fitted import ConvergenceWarning, Fitted, Method, Params
from focalgeo.calibration.maps import focal_temperature_scaling
from focalgeo.calibration.nonparametric import (
    fit_histogram_binning,
    fit_isotonic,
    histogram_binning,
    isotonic_calibration,
)
from focalgeo.calibration.search import (
    GAMMAS,
    TABLE_NUMBERS,
    TEMPERATURES,
    Grid,
    GridSearch,
    LineSearch,
    best_point,
    grid_search,
    is_plain,
    line_search,
)
from focalgeo.calibration.temperature_variants import (
    ensemble_temperature_scaling,
    fit_ensemble_temperature,
    fit_loss_implied_temperature,
    loss_implied_temperature_scaling,
)
from focalgeo.checks import (
    check_above,
    check_choice,
    is_traced,
    number_array,
    predicted_logits,
)
from focalgeo.types import CRITERIA, DEFAULT_CRITERIA, Array, InputError

_ZERO, _ONE = np.float32(0), np.float32(1)
_Arguments = tuple[str | np.float32, ...]  # of a map beyond the logits: the name of a parameter, or a number
_MOST_NUMBERS = 2**27  # in the tables of the searches that run at once: 0.5 GB


def _fit_nothing(logits: Logits, labels: Labels, *, criterion: str | None = None, mask: Mask = None) -> Params:
    return {}


def _fit_temperature(
    logits: Logits,
    labels: Labels,
    *,
    criterion: str = "nll",
    mask: Mask = None,
    temperature_fit: CalibrationFit | None = None,
    **grid: Any,
) -> Params:
    """The temperature of the least NLL, or by an ECE that of the grid."""
    if criterion == "nll":
        found = temperature_fit or fit_temperature(logits, labels, mask)
        return {"temperature": found.temperature, "converged": found.converged}
    found = _best_on_grid(logits, labels, criterion, mask, gamma=0.0, **grid)
    return {name: value for name, value in found.items() if name != "gamma"}


def _fit_focal(
    logits: Logits,
    labels: Labels,
    *,
    criterion: str = "nll",
    mask: Mask = None,
    focal_fit: CalibrationFit | None = None,
    **grid: Any,
) -> Params:
    """Gamma and temperature of the least NLL, or by an ECE those of the grid, or of a line through it."""
    if criterion == "nll":
        found = focal_fit or fit_focal_temperature(logits, labels, mask)
        return {"gamma": found.gamma, "temperature": found.temperature, "converged": found.converged}
    if criterion == "line_search":
        grid.pop("searches", None)
        best = line_search(logits, labels, mask=mask, **grid)
        return _params(best, grid.get("gammas", GAMMAS), grid.get("temperatures", TEMPERATURES))
    return _best_on_grid(logits, labels, criterion, mask, **grid)


def _best_on_grid(
    logits: Logits,
    labels: Labels,
    criterion: str,
    mask: Mask,
    *,
    gamma: float | None = None,
    gammas: Grid = GAMMAS,
    temperatures: Grid = TEMPERATURES,
    num_bins: int = 15,
    searches: Mapping[str, GridSearch] | None = None,
) -> Params:
    """The best point of the grid, or of its row of one gamma.

    Temperature scaling is the row gamma = 0, so that on these examples focal temperature scaling is never worse.
    """
    search = (searches or {}).get(criterion)
    if search is None:
        search = grid_search(logits, labels, gammas, temperatures, criterion=criterion, num_bins=num_bins, mask=mask)
    best = best_point(search, gammas, temperatures, criterion=criterion, gamma=gamma)
    return _params(best, gammas if gamma is None else (gamma,), temperatures)


def _params(best: GridSearch | LineSearch, gammas: Grid, temperatures: Grid) -> Params:
    """The best point; converged where neither its gamma nor its temperature is an end of its grid, or is all of it."""
    inside = _inside(best.gamma, gammas) & _inside(best.temperature, temperatures)
    return {"gamma": best.gamma, "temperature": best.temperature, "converged": inside}


def _inside(value: Array, grid: Grid) -> Array:
    low, high = np.float32(np.min(grid)), np.float32(np.max(grid))
    return ((low < value) & (value < high)) | (low == high)


def _fit_implied(
    logits: Logits, labels: Labels, *, trained_gamma: float, criterion: str | None = None, mask: Mask = None
) -> Params:
    """The gamma of the training: the map that undoes what the focal loss of this gamma does to probabilities."""
    number_array("trained_gamma", trained_gamma, ())
    check_above("trained_gamma", trained_gamma, -1)
    return {"gamma": np.float32(trained_gamma)}


def _by_nll(
    fitted: Callable[..., Params],
    logits: Logits,
    labels: Labels,
    *,
    criterion: str = "nll",
    mask: Mask = None,
    **options: Any,
) -> Params:
    """A fit by least NLL as the `fit` of a method; no closure, so that what is fitted can be pickled."""
    return fitted(logits, labels, mask, **options)


def _applied(
    calibration_map: Callable[..., LogProbs], arguments: _Arguments, params: Params, logits: Logits
) -> LogProbs:
    """The map of the logits with these arguments: a number as it is, a name for the parameter of that name."""
    return _mapped(calibration_map, logits, *(params[each] if isinstance(each, str) else each for each in arguments))


@partial(jax.jit, static_argnums=0)
def _mapped(calibration_map: Callable[..., LogProbs], logits: Logits, *numbers: Array) -> LogProbs:
    """One compiled program for all methods of a map.

    Two methods of the focal map with the same gamma and temperature so agree to the bit, and their difference is 0
    instead of rounding, which a paired test would take for an effect.
    """
    return calibration_map(logits, *numbers)


_FIRST_STAGES = {"temperature_fit": fit_temperature, "focal_fit": fit_focal_temperature}
SHARED = ("searches", *_FIRST_STAGES)  # settings that are of these examples and this mask alone
_GRID = ("gammas", "temperatures", "num_bins", "searches")
METHODS: dict[str, Method] = {  # plainest first: `choose` takes the first that no other beats
    method.name: method
    for method in (
        Method(
            "uncalibrated",
            "Uncalibrated",
            _fit_nothing,
            partial(_applied, focal_temperature_scaling, (_ZERO, _ONE)),
            criteria=(),
        ),
        Method(
            "temperature_scaling",
            "Temperature scaling",
            _fit_temperature,
            partial(_applied, focal_temperature_scaling, (_ZERO, "temperature")),
            criteria=("nll", "ece", "adaptive_ece"),
            options=(*_GRID, "temperature_fit"),
        ),
        Method(
            "loss_implied_temperature_scaling",
            "Loss-implied map, then temperature scaling",
            partial(_by_nll, fit_loss_implied_temperature),
            partial(_applied, loss_implied_temperature_scaling, ("gamma", "temperature")),
            options=("trained_gamma",),
        ),
        Method(
            "ensemble_temperature_scaling",
            "Ensemble temperature scaling",
            partial(_by_nll, fit_ensemble_temperature),
            partial(_applied, ensemble_temperature_scaling, ("temperature", "shares")),
        ),
        Method(
            "focal_temperature_scaling",
            "Focal temperature scaling",
            _fit_focal,
            partial(_applied, focal_temperature_scaling, ("gamma", "temperature")),
            criteria=CRITERIA,
            options=(*_GRID, "focal_fit"),
        ),
        Method(
            "vector_scaling",
            "Vector scaling",
            partial(_by_nll, fit_vector_scaling),
            partial(_applied, focal_vector_scaling, (_ZERO, "temperature", "scales", "biases")),
            options=("temperature_fit",),
            keeps_class=False,
        ),
        Method(
            "focal_vector_scaling",
            "Focal vector scaling",
            partial(_by_nll, fit_focal_vector_scaling),
            partial(_applied, focal_vector_scaling, ("gamma", "temperature", "scales", "biases")),
            options=("focal_fit",),
            keeps_class=False,
        ),
        Method(
            "structured_matrix_scaling",
            "Structured matrix scaling",
            partial(_by_nll, fit_matrix_scaling),
            partial(_applied, focal_matrix_scaling, (_ZERO, "temperature", "weights", "biases")),
            options=("temperature_fit",),
            keeps_class=False,
            most_classes=MOST_MATRIX_CLASSES,
        ),
        Method(
            "histogram_binning",
            "Histogram binning",
            partial(_by_nll, fit_histogram_binning),
            partial(_applied, histogram_binning, ("edges", "accuracies")),
            options=("num_bins",),
            keeps_class=False,
        ),
        Method(
            "isotonic",
            "Isotonic regression",
            partial(_by_nll, fit_isotonic),
            partial(_applied, isotonic_calibration, ("thresholds", "probabilities")),
        ),
        Method(
            "loss_implied_map",
            "Loss-implied map",
            _fit_implied,
            partial(_applied, focal_temperature_scaling, ("gamma", _ONE)),
            criteria=(),
            options=("trained_gamma",),
        ),
    )
}
DEFAULT_METHODS = (
    "uncalibrated",
    "temperature_scaling",
    "loss_implied_temperature_scaling",
    "focal_temperature_scaling",
    "vector_scaling",
    "focal_vector_scaling",
    "structured_matrix_scaling",
    "loss_implied_map",
)


def configured(method: Method, settings: Mapping[str, Any]) -> Method:
    """The method with its `fit` bound to those of `settings` that are among its options."""
    chosen = {name: settings[name] for name in method.options if name in settings}
    return method._replace(fit=partial(method.fit, **chosen))


def usable(methods: Mapping[str, Method], settings: Mapping[str, Any]) -> dict[str, Method]:
    """The methods without those that need the gamma of the training, where `settings` has no "trained_gamma"."""
    known = settings.get("trained_gamma") is not None
    return {name: method for name, method in methods.items() if known or "trained_gamma" not in method.options}


def fit(
    name: str, logits: Logits, labels: Labels, *, criterion: str | None = None, mask: Mask = None, **options: Any
) -> Fitted:
    """A method of METHODS fitted to held-out logits, ready to predict.

    Args:
        name: Its key in METHODS, such as "focal_temperature_scaling".
        logits: Float [examples, classes], of examples that the network was not trained on. Rows that all look like
            probabilities are warned of.
        labels: Int [examples].
        criterion: One of the method's criteria; None for the first of them, "nll" wherever something is fitted.
        mask: Bool [examples], or how often each example counts; None counts each once.
        options: The options that METHODS names for it, such as `gammas` and `temperatures`, the grid of an ECE.

    Returns:
        Fitted. Where its fit did not converge, as when it ended at an end of its range, a ConvergenceWarning says so
        once; of traced examples nothing is said.

    Raises:
        InputError: an unknown method, criterion or option; a method that needs `trained_gamma`, without it; a grid for
            a fit by NLL; predictions that `check_predictions` refuses; more classes than the method takes.
    """
    check_choice("the method", name, tuple(METHODS))
    method = METHODS[name]
    for option in options:
        check_choice(f"the option of {name}", option, method.options)
    if name not in usable({name: method}, options):
        raise InputError(f"{name} needs trained_gamma: give the gamma of the focal loss of the model's training")
    if criterion is not None:
        check_choice(f"criterion of {name}", criterion, method.criteria)
    given = predicted_logits(logits, labels, mask)
    check_classes(method, given.rows.shape[-1])
    chosen = criterion or next(iter(method.criteria), None)
    _check_grid(options, chosen)
    params = method.fit(logits, labels, criterion=chosen, mask=mask, **options)
    fitted = Fitted(method, chosen, params, given.rows.shape[-1])
    if not is_traced(params) and not fitted.converged:
        warnings.warn(_of_convergence(fitted), ConvergenceWarning, stacklevel=3)
    return fitted


def _of_convergence(fitted: Fitted) -> str:
    where = ", ".join(f"{name} {value:.4g}" for name, value in fitted.searched.items())
    why = f"{fitted.why_not_converged}{f' ({where})' if fitted.at_end else ''}"
    return f"{fitted.method.title.lower()}: {why}: look at the labels, give more examples or take another method"


def _check_grid(options: Mapping[str, Any], criterion: str | None) -> None:
    """Refuse a grid where the fit is continuous, which would leave it unused."""
    unused = [name for name in ("gammas", "temperatures") if name in options]
    if criterion == "nll" and unused:
        what = f"{unused[0]} are given, but a fit by NLL is continuous and takes no grid"
        raise InputError(f"{what}: leave them out, or give criterion='ece'")


def check_classes(method: Method, num_classes: int) -> None:
    """Refuse more classes than the method takes.

    Raises:
        InputError: naming the method and its largest number of classes.
    """
    if not method.takes(num_classes):
        most = f"{method.title.lower()} takes {method.most_classes} at most"
        raise InputError(f"logits have {num_classes} classes, {most}: choose another method")


def fit_methods(
    methods: Mapping[str, Method],
    logits: Logits,
    labels: Labels,
    *,
    settings: Mapping[str, Any],
    mask: Mask = None,
) -> list[Fitted]:
    """Every method fitted by those of its criteria that `settings` names, in the order of `methods`.

    Args:
        methods: Some of METHODS, or others.
        logits: Float [examples, classes], of a validation split.
        labels: Int [examples].
        settings: Options of the fits by name, and "criteria", ("nll", "ece") if it is missing; a method that has none
            of them is fitted by its first. Methods that search the grid of gamma and temperature share one search for
            each criterion: give the results by criterion as "searches" where they are known.
        mask: Bool [examples], or how often each example counts; None counts each once.

    Raises:
        InputError: predictions that `check_predictions` refuses, more classes than a method takes.
    """
    num_classes = predicted_logits(logits, labels, mask).rows.shape[-1]
    for method in methods.values():
        check_classes(method, num_classes)
    settings = {**_shared(methods, logits, labels, settings, mask), **settings}
    ready = [configured(method, settings) for method in methods.values()]
    return [
        Fitted(method, criterion, method.fit(logits, labels, criterion=criterion, mask=mask), num_classes)
        for method in ready
        for criterion in criteria_of(method, settings) or (None,)
    ]


def _shared(
    methods: Mapping[str, Method], logits: Logits, labels: Labels, settings: Mapping[str, Any], mask: Mask
) -> dict[str, Any]:
    """What several of the methods need and `settings` does not have: searches of the grid, fits of a first stage."""
    shared: dict[str, Any] = {}
    if "searches" not in settings:
        shared["searches"] = searched(methods, logits, labels, settings=settings, mask=mask)
    for name, fitted in _FIRST_STAGES.items():
        if name not in settings and sum(name in method.options for method in methods.values()) > 1:
            shared[name] = fitted(logits, labels, mask)
    return shared


def criteria_of(method: Method, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The criteria by which `fit_methods` fits the method; () where nothing is fitted."""
    asked = settings.get("criteria", DEFAULT_CRITERIA)
    return tuple(name for name in method.criteria if name in asked) or method.criteria[:1]


def searched_criteria(methods: Mapping[str, Method], settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The criteria by which a method is fitted on the grid of gamma and temperature."""
    own = [criteria_of(method, settings) for method in methods.values() if "searches" in method.options]
    return tuple(name for name in ("ece", "adaptive_ece") if any(name in each for each in own))


def searched(
    methods: Mapping[str, Method], logits: Logits, labels: Labels, *, settings: Mapping[str, Any], mask: Mask = None
) -> dict[str, GridSearch]:
    """The searches of the grid that `fit_methods` makes for these settings, by criterion."""
    grid = settings.get("gammas", GAMMAS), settings.get("temperatures", TEMPERATURES)
    num_bins = settings.get("num_bins", 15)
    return {
        criterion: grid_search(logits, labels, *grid, criterion=criterion, num_bins=num_bins, mask=mask)
        for criterion in searched_criteria(methods, settings)
    }


def surfaces(searches: Mapping[str, GridSearch], settings: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The grid and what was searched on it, by criterion, and the NLL; {} without a search by ECE."""
    if "ece" not in searches:
        return {}
    grid = {"gammas": settings.get("gammas", GAMMAS), "temperatures": settings.get("temperatures", TEMPERATURES)}
    found = {name: np.asarray(search.ece) for name, search in searches.items()}
    nll = np.asarray(searches["ece"].nll)
    return {name: np.float32(values) for name, values in grid.items()} | found | {"nll": nll}


def searched_members(
    methods: Mapping[str, Method],
    logits: Float[Array, "members examples classes"],
    labels: Labels,
    *,
    settings: Mapping[str, Any],
    mask: Mask = None,
) -> list[dict[str, GridSearch]]:
    """`searched` of each member of a sweep: several in one program where the search is the plain one.

    On the CPU one after another: `fast_search` streams from the host, and uses all cores for each. Logits are finite.
    """
    if np.ndim(logits) != 3:
        raise InputError(f"logits have shape {np.shape(logits)}: give [members, examples, classes]")

    def of_member(logits: Logits) -> dict[str, GridSearch]:
        return searched(methods, logits, labels, settings=settings, mask=mask)

    if not is_plain() or not searched_criteria(methods, settings):
        return [of_member(own) for own in logits]
    at_once = max(1, _MOST_NUMBERS // max(TABLE_NUMBERS, logits[0].size))
    together = jax.device_get(jax.lax.map(of_member, logits, batch_size=at_once))
    return [jax.tree.map(lambda leaf: leaf[member], together) for member in range(len(logits))]  # noqa: B023
