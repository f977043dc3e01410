"""Calibration methods: how each is fitted to held-out logits, and how it is applied.

A fit gives params, and applying a method with its params gives log-probabilities: metrics, intervals, comparisons,
tables and the saved calibrator take those of any method. A new method is a function pair and an entry of METHODS;
tests/calibration/test_methods.py has one of ten lines.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from focalgeo.arguments import check_above, number_array, predicted_logits, warns_of_probabilities
from focalgeo.calibration.binning import Labels, Logits, LogProbs, Mask
from focalgeo.calibration.maps import focal_temperature_scaling
from focalgeo.calibration.search import (
    GAMMAS,
    TABLE_NUMBERS,
    TEMPERATURES,
    Grid,
    GridSearch,
    best_point,
    grid_search,
    is_plain,
)
from focalgeo.types import Array, InputError

Params = dict[str, Array]


class Method(NamedTuple):
    """A calibration method: its fit, its application, and its name in rows and reports.

    fit(logits, labels, *, criterion, mask=None, <options>) -> params, a dict of arrays; its scalars are shown in
    reports, and "converged", where it is among them, says whether the best values lie inside the range searched.
    apply(params, logits) -> log_probs [examples, classes].
    """

    name: str  # its key in METHODS, and in rows
    title: str  # in tables and figures
    fit: Callable[..., Params]
    apply: Callable[[Params, Array], Array]
    criteria: tuple[str, ...] = ("ece", "nll")  # that it can be fitted by; () where nothing is fitted
    options: tuple[str, ...] = ()  # keyword options of `fit` beyond criterion and mask
    keeps_class: bool = True  # False: it may change the predicted class


class Fitted(NamedTuple):
    """A fitted method: the method, the criterion it was fitted by, and the parameters found."""

    method: Method
    criterion: str | None  # None where nothing is fitted
    params: Params

    def log_probs(self, logits: Logits) -> LogProbs:
        """Calibrated log-probabilities of the logits."""
        return self.method.apply(self.params, logits)

    def calibrated(self, logits: Logits) -> "Calibrated":
        """The log-probabilities with the method and criterion that they are from."""
        return Calibrated(self.method, self.criterion, self.log_probs(logits))

    @property
    def converged(self) -> bool:
        """False where the fit ended at the end of its range."""
        return bool(self.params.get("converged", True))


class Calibrated(NamedTuple):
    """Log-probabilities of examples by a method, with the method and the criterion it was fitted by."""

    method: Method
    criterion: str | None
    log_probs: LogProbs


# One compiled program for all methods of the focal map: two of them with the same gamma and temperature then agree to
# the bit, and their difference is 0 instead of rounding, which a paired test would take for an effect.
_MAP = jax.jit(focal_temperature_scaling)
_ZERO, _ONE = np.float32(0), np.float32(1)
_MOST_NUMBERS = 2**27  # in the tables of the searches that run at once: 0.5 GB


def _fit_nothing(logits: Logits, labels: Labels, *, criterion: str | None = None, mask: Mask = None) -> Params:
    return {}


def _fit_on_grid(
    logits: Logits,
    labels: Labels,
    *,
    criterion: str,
    mask: Mask = None,
    gamma: float | None = None,
    gammas: Grid = GAMMAS,
    temperatures: Grid = TEMPERATURES,
    binning: str = "ece",
    num_bins: int = 15,
    search: GridSearch | None = None,
) -> Params:
    """The best point of the grid, or of its row of one gamma.

    Temperature scaling is the row gamma = 0, so that on these examples focal temperature scaling is never worse.
    """
    if search is None:
        search = grid_search(logits, labels, gammas, temperatures, criterion=binning, num_bins=num_bins, mask=mask)
    best = best_point(search, gammas, temperatures, criterion=criterion, gamma=gamma)
    return _params(best, temperatures)


_fit_temperature, _fit_focal = partial(_fit_on_grid, gamma=0.0), _fit_on_grid


def _params(best: GridSearch, temperatures: Grid) -> Params:
    """The best point; converged where its temperature is not an end of the grid, or is all of it."""
    low, high = np.float32(np.min(temperatures)), np.float32(np.max(temperatures))
    inside = (low < best.temperature) & (best.temperature < high)
    return {"gamma": best.gamma, "temperature": best.temperature, "converged": inside | (low == high)}


def _fit_implied(
    logits: Logits, labels: Labels, *, trained_gamma: float, criterion: str | None = None, mask: Mask = None
) -> Params:
    """The gamma of the training: the map that undoes what the focal loss of this gamma does to probabilities."""
    number_array("trained_gamma", trained_gamma, ())
    check_above("trained_gamma", trained_gamma, -1)
    return {"gamma": np.float32(trained_gamma)}


def _uncalibrated(params: Params, logits: Logits) -> LogProbs:
    return _MAP(logits, _ZERO, _ONE)


def _temperature_scaled(params: Params, logits: Logits) -> LogProbs:
    return _MAP(logits, _ZERO, params["temperature"])


def _focal_scaled(params: Params, logits: Logits) -> LogProbs:
    return _MAP(logits, params["gamma"], params["temperature"])


def _implied(params: Params, logits: Logits) -> LogProbs:
    return _MAP(logits, params["gamma"], _ONE)


_GRID = ("gammas", "temperatures", "binning", "num_bins", "search")
METHODS: dict[str, Method] = {  # simplest first; `choose` compares them in this order
    method.name: method
    for method in (
        Method("uncalibrated", "Uncalibrated", _fit_nothing, _uncalibrated, criteria=()),
        Method(
            "temperature_scaling",
            "Temperature scaling",
            _fit_temperature,
            _temperature_scaled,
            options=_GRID,
        ),
        Method("focal_temperature_scaling", "Focal temperature scaling", _fit_focal, _focal_scaled, options=_GRID),
        Method("loss_implied_map", "Loss-implied map", _fit_implied, _implied, criteria=(), options=("trained_gamma",)),
    )
}


def configured(method: Method, settings: Mapping[str, Any]) -> Method:
    """The method with its `fit` bound to those of `settings` that are among its options."""
    chosen = {name: settings[name] for name in method.options if name in settings}
    return method._replace(fit=partial(method.fit, **chosen))


def usable(methods: Mapping[str, Method], settings: Mapping[str, Any]) -> dict[str, Method]:
    """The methods without those that need the gamma of the training, where `settings` has no "trained_gamma"."""
    known = settings.get("trained_gamma") is not None
    return {name: method for name, method in methods.items() if known or "trained_gamma" not in method.options}


@warns_of_probabilities
def fit_methods(
    methods: Mapping[str, Method],
    logits: Logits,
    labels: Labels,
    *,
    settings: Mapping[str, Any],
    mask: Mask = None,
) -> list[Fitted]:
    """Every method fitted by each of its criteria, in the order of `methods`.

    Args:
        methods: Some of METHODS, or others.
        logits: Float [examples, classes], of a validation split.
        labels: Int [examples].
        settings: Options of the fits by name. Methods that search the grid of gamma and temperature share one
            search: give its result as "search" where it is known, else it is made here.
        mask: Bool [examples], or how often each example counts; None counts each once.
    """
    predicted_logits(logits, labels, mask)
    if "search" not in settings and any("search" in method.options for method in methods.values()):
        settings = {**settings, "search": searched(logits, labels, settings=settings, mask=mask)}
    ready = [configured(method, settings) for method in methods.values()]
    return [
        Fitted(method, criterion, method.fit(logits, labels, criterion=criterion, mask=mask))
        for method in ready
        for criterion in method.criteria or (None,)
    ]


def searched(logits: Logits, labels: Labels, *, settings: Mapping[str, Any], mask: Mask = None) -> GridSearch:
    """The `grid_search` that `fit_methods` makes for these settings."""
    gammas, temperatures = settings.get("gammas", GAMMAS), settings.get("temperatures", TEMPERATURES)
    options = {"criterion": settings.get("binning", "ece"), "num_bins": settings.get("num_bins", 15)}
    return grid_search(logits, labels, gammas, temperatures, mask=mask, **options)


def searched_members(
    logits: Float[Array, "members examples classes"],
    labels: Labels,
    *,
    settings: Mapping[str, Any],
    mask: Mask = None,
) -> list[GridSearch]:
    """`searched` of each member of a sweep: several in one program where the search is the plain one.

    On the CPU one after another: `fast_search` streams from the host, and uses all cores for each. Logits are finite.
    """
    if np.ndim(logits) != 3:
        raise InputError(f"logits have shape {np.shape(logits)}: give [members, examples, classes]")

    def of_member(logits: Logits) -> GridSearch:
        return searched(logits, labels, settings=settings, mask=mask)

    if not is_plain():
        return [of_member(own) for own in logits]
    at_once = max(1, _MOST_NUMBERS // max(TABLE_NUMBERS, logits[0].size))
    together = jax.device_get(jax.lax.map(of_member, logits, batch_size=at_once))
    return [jax.tree.map(lambda leaf: leaf[member], together) for member in range(len(logits))]  # noqa: B023
