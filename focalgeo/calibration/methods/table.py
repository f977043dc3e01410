"""Calibration methods: how each is fitted to held-out logits and applied, fitted methods, and calibrator.json.

A fit gives params, and applying a method with its params gives log-probabilities: metrics, intervals, comparisons,
tables and the saved calibrator take those of any method. A new method is a function pair and an entry of METHODS;
examples/adding/method.diff has one of ten lines.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jax
import msgspec
import numpy as np

from focalgeo import checks, files
from focalgeo.calibration import blocks, maps
from focalgeo.calibration.examples import as_logits
from focalgeo.calibration.fits import focal, search, stacking, two_classes, variants
from focalgeo.calibration.fits.variants import Params
from focalgeo.calibration.methods import exports
from focalgeo.calibration.methods.zeros import Zeros
from focalgeo.calibration.metrics.binning import Logits, LogProbs
from focalgeo.trees import namespace
from focalgeo.types import CRITERIA, Array, InputError

_ZERO, _ONE = np.float32(0), np.float32(1)


class Method(NamedTuple):
    """A calibration method: its fit, its application, and its name in rows and reports.

    fit(logits, labels, *, criterion, weights, <options>) -> params, a dict of arrays; its scalars are shown in reports,
    and "converged", where it is among them, says whether the best values lie inside the range searched. It is handed
    what has been checked: weights are how often each example counts, above 0.
    apply(params, logits) -> log_probs [examples, classes]. Written in jax.numpy, it serves jit, ONNX and PyTorch too.
    """

    name: str  # its key in METHODS, and in rows
    title: str  # in tables and figures
    fit: Callable[..., Params]
    apply: Callable[[Params, Array], Array]
    criteria: tuple[str, ...] = ("nll",)  # that it can be fitted by, the usual one first; () where nothing is fitted
    options: tuple[str, ...] = ()  # names of settings, and of what several methods share, that its fit needs
    keeps_class: bool = True  # False: it may change the predicted class
    most_classes: int | None = None  # beyond which it is refused

    def log_probs(self, params: Params, logits: Array) -> LogProbs:
        """`apply`, by which a class whose logit is -inf has no share, whatever that makes of it."""
        if getattr(self.apply, "func", self.apply) in (_applied, _apply_stacking):  # built of maps, which see to it
            return self.apply(params, logits)
        # a score far below the top stands for -inf, which a formula may multiply by 0
        possible = logits > -np.inf
        top = namespace(logits).max(logits, axis=-1, keepdims=True)
        try:
            log_probs = self.apply(params, namespace(logits).where(possible, logits, top + maps.FAR))
        except jax.errors.TracerArrayConversionError as error:
            mend = "write its apply in jax.numpy, or call it outside jit and vmap"
            raise InputError(f"{self.name} cannot be traced for jit, ONNX and PyTorch: {mend}") from error
        space = namespace(log_probs)
        log_probs = space.where(possible, log_probs, -np.inf)
        return log_probs - space.where(space.min(logits, axis=-1, keepdims=True) > -np.inf, 0, maps.log_sum(log_probs))


class ConvergenceWarning(UserWarning):
    """A fit ended at an end of its range, or did not converge.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", calibration.ConvergenceWarning)
        ...     fitted = calibration.fit("temperature_scaling", logits, np.argmax(logits, axis=1))  # all right
        >>> fitted.converged, round(fitted.searched["temperature"], 4)
        (False, 0.01)
    """


class Calibrated(NamedTuple):
    """Log-probabilities of examples by a method, with the method and the criterion it was fitted by."""

    method: Method
    criterion: str | None
    log_probs: LogProbs
    filled: LogProbs | None = None  # with numbers for probabilities of 0, for the NLL; None: as log_probs


class Fitted(NamedTuple):
    """A fitted method: the method, the criterion it was fitted by, and the parameters found."""

    method: Method
    criterion: str | None  # None where nothing is fitted
    params: Params
    num_classes: int | None = None  # of the logits it was fitted on; None for any
    groups: tuple[str, ...] | None = None  # where each has params of its own: their names, in order
    zeros: Zeros | None = None  # what probabilities of 0 stand for in the fit by NLL; None where there were none

    def predict_log_proba(
        self, logits: Logits | None = None, group: Array | None = None, *, probs: Array | None = None
    ) -> LogProbs:
        """Calibrated log-probabilities [examples, classes] of the logits; they keep what probabilities round to 0.

        group [examples] names each example's group, for methods with params of each. probs: in place of logits, see
        `log_probabilities`.
        """
        table = checks.score_rows("logits", as_logits(logits, probs), shape=(..., self.num_classes))
        return self.applied(checks.finite_logits(table), group)

    def applied(self, logits: Array, group: Array | None) -> LogProbs:
        """`predict_log_proba` of what has been checked."""
        if self.groups is None:
            if isinstance(logits, np.ndarray) and logits.ndim == 2:
                return blocks.mapped(partial(self.log_probs, self.params), logits)
            return self.log_probs(self.params, logits)
        names = group_names(group, logits.shape[:-1])
        if unknown := {*np.unique(names).tolist()} - {*self.groups}:
            known = ", ".join(self.groups[:5])
            raise InputError(f"group {min(unknown)!r} has no numbers of its own: give group, names such as {known}")
        index = np.searchsorted(self.groups, names)  # they are sorted, as np.unique gave them
        params = {name: np.asarray(value)[index] for name, value in self.params.items() if np.ndim(value)}
        return self.log_probs(params, logits)

    def __repr__(self) -> str:
        known = ((name, value) for name, value in self.parameters.items() if "." not in name)
        numbers = (f", {name} {np.shape(value) or f'{value:.4g}'}" for name, value in known)
        return f"<Fitted {self.method.title}: criterion {self.criterion}{''.join(numbers)}>"

    def log_probs(self, params: Params, logits: Array) -> LogProbs:
        """Those of the method with these params."""
        if self.fills_zeros:
            logits = self.zeros.filled(logits)
        return self.method.log_probs(params, logits)

    def predict_proba(
        self, logits: Logits | None = None, group: Array | None = None, *, probs: Array | None = None
    ) -> LogProbs:
        """Calibrated probabilities [examples, classes] of the logits, arguments as `predict_log_proba`."""
        log_probs = self.predict_log_proba(logits, group, probs=probs)
        with np.errstate(under="ignore"):
            return namespace(log_probs).exp(log_probs)

    def calibrated(self, logits: Logits, group: Array | None = None) -> Calibrated:
        """The log-probabilities with the method and criterion that they are from."""
        log_probs = self.predict_log_proba(logits, group)
        filled = self.applied(self.zeros.filled(logits), group) if self.zeros and not self.fills_zeros else None
        return Calibrated(self.method, self.criterion, log_probs, filled)

    @property
    def fills_zeros(self) -> bool:
        """Whether it puts a number in place of probabilities of 0."""
        return self.zeros is not None and self.criterion == "nll"

    @property
    def converged(self) -> bool:
        """False where the fit ended at the end of its range, or did not come to an end of its own."""
        return bool(self.params.get("converged", True))

    @property
    def searched(self) -> dict[str, float]:
        """The gamma and the temperature that were fitted, as far as the method has them."""
        names = ("temperature",) if "trained_gamma" in self.method.options else ("gamma", "temperature")
        return {name: float(self.params[name]) for name in names if np.ndim(self.params.get(name, [])) == 0}

    @property
    def admissible(self) -> bool:
        """Whether it converged, or its temperature ended where all probabilities are nearly equal, which harms none."""
        hottest = focal.TEMPERATURE_BRACKET[1] * (1 - focal.AT_EDGE)
        return self.converged or self.searched.get("temperature", 0) >= hottest

    @property
    def at_end(self) -> bool:
        """Whether a fit that has not converged stands at an end of its range: a bracket's by NLL, else the grid's."""
        brackets = {"gamma": focal.GAMMA_BRACKET, "temperature": focal.TEMPERATURE_BRACKET}
        return not self.converged and any(
            self.criterion != "nll" or np.isclose(value, brackets[name], rtol=2 * focal.AT_EDGE).any()  # float32 rounds
            for name, value in self.searched.items()
        )

    @property
    def why_not_converged(self) -> str:
        """In words why a fit that has not converged has not."""
        return "its fit ended at the end of the range searched" if self.at_end else "its fit did not converge"

    @property
    def parameters(self) -> dict[str, Any]:
        """The params but "converged", in plain numbers and nested lists: 0.51 for the float32 next to it."""
        return {name: value for name, value in plain_numbers(self.params).items() if name != "converged"}

    def to_json(self) -> str:
        """The text of a calibrator.json, which `read_calibrator` reads."""
        return json.dumps(calibrator_json(self), indent=2) + "\n"

    to_onnx = exports.to_onnx
    to_torch = exports.to_torch
    to_numpy = exports.to_numpy


def group_names(group: Array | None, shape: tuple[int, ...]) -> np.ndarray:
    """The name of each example's group; without groups all are of one, which has no name."""
    names = np.asarray("" if group is None else group).astype(str)
    if names.ndim:
        checks.check_array("group", names, shape=shape)
    return np.broadcast_to(names, shape)


def plain_numbers(params: Mapping[str, Array]) -> dict[str, Any]:
    """The params as Python numbers, truth values and nested lists, each with the fewest digits that give it back."""
    numbers = {}
    for name, value in params.items():
        array = np.asarray(value)
        numbers[name] = (array if array.dtype == bool else array.astype(str).astype(float)).tolist()
    return numbers


def calibrator_json(
    fitted: Fitted, *, inputs: Mapping[str, Any] | None = None, fits: Sequence[Fitted] = ()
) -> dict[str, Any]:
    """The object that calibrator.json holds: the fitted method, checksums of what it was made from, and other fits.

    Example:
        >>> fitted = calibration.fit("temperature_scaling", logits, labels)
        >>> list(calibration.calibrator_json(fitted))
        ['format', 'version', 'method', 'criterion', 'num_classes', 'parameters', 'inputs', 'fits']
        >>> calibration.calibrator_json(fitted)["method"]
        'temperature_scaling'
    """
    if fitted.num_classes is None:
        raise InputError("the number of classes is not known: give num_classes to Fitted, or use calibration.fit")
    for name, value in fitted.parameters.items():
        checks.check_finite(name, value)
    return {
        "format": "focalgeo-calibrator",
        "version": 2,
        "method": fitted.method.name,
        "criterion": fitted.criterion,
        "num_classes": fitted.num_classes,
        "parameters": fitted.parameters,
        **({} if fitted.groups is None else {"groups": list(fitted.groups)}),
        **({} if fitted.zeros is None else {"zeros": msgspec.structs.asdict(fitted.zeros)}),
        "inputs": dict(inputs or {}),
        "fits": [
            {"method": other.method.name, "criterion": other.criterion, "parameters": plain_numbers(other.params)}
            for other in fits
        ],
    }


class _Stored(msgspec.Struct):
    """What is read of a calibrator.json."""

    format: Literal["focalgeo-calibrator"]
    version: Literal[2]
    method: str
    criterion: Literal["nll", "ece", "adaptive_ece", "line_search"] | None
    num_classes: Annotated[int, msgspec.Meta(ge=2, le=10_000_000)]
    parameters: dict[str, float | list]
    groups: tuple[str, ...] | None = None
    zeros: Zeros | None = None


def read_calibrator(path: str | os.PathLike[str]) -> Fitted:
    """The fitted method that calibrator.json holds, ready to predict.

    Example:
        >>> fitted = calibration.fit("temperature_scaling", logits, labels)
        >>> with open("calibrator.json", "w") as file:
        ...     _ = file.write(fitted.to_json())
        >>> print(calibration.read_calibrator("calibrator.json").predict_proba(logits[:1]).round(4))
        [[0.6759 0.2394 0.0848]]
    """
    files.check_regular(Path(str(path)))
    try:
        stored = msgspec.json.decode(Path(path).read_bytes(), type=_Stored)
        with np.errstate(over="ignore"):  # what float32 does not hold is infinite, and refused below
            params = {name: np.asarray(value, np.float32) for name, value in stored.parameters.items()}
        of = stored.criterion, params, stored.num_classes, stored.groups, stored.zeros
        fitted = Fitted(METHODS[stored.method], *of)
        # that it gives log-probabilities, and keeps the predicted class where the method promises that
        logits = np.zeros((2, 1, fitted.num_classes), np.float32)  # so that no parameter can have a number for each row
        logits[1, 0, 0] = 100
        log_probs = np.asarray(fitted.applied(logits, fitted.groups and fitted.groups[0]), np.float64)
        works = log_probs.shape == logits.shape and np.allclose(np.exp(log_probs).sum(axis=-1), 1, atol=1e-3)
        works &= not fitted.method.keeps_class or log_probs[1].max() == log_probs[1, 0, 0]
    except (OSError, LookupError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"cannot read {path} as a calibrator.json: {error}; write it anew") from error
    if not works:
        raise InputError(f"{path} holds parameters that its method cannot be applied with: write it anew")
    return fitted


def _fit_nothing(logits, labels, *, criterion, weights):
    return {}


def _fit_temperature(logits, labels, *, criterion, weights, temperature_fit, searches, gammas, temperatures):
    """The temperature of the least NLL, or by an ECE that of the grid's row gamma = 0.

    So focal temperature scaling, whose grid it is, is never worse on these examples.
    """
    if criterion == "nll":
        return {"temperature": temperature_fit.temperature, "converged": temperature_fit.converged}
    best = search.best_point(searches[criterion], gammas, temperatures, criterion=criterion, gamma=0.0)
    return {"temperature": best.temperature, "converged": _inside(best.temperature, temperatures)}


def _fit_by_group(logits, labels, *, criterion, weights, group, temperature_fit):
    """The temperature of each group, its rows given, by least NLL; where that does not converge, that of all."""
    fits = [
        focal.temperature_fit(logits[rows], labels[rows], weights[rows]) if rows.size else temperature_fit
        for rows in group
    ]
    fits = [fit if fit.converged else temperature_fit for fit in fits]
    temperature = np.array([fit.temperature for fit in fits], logits.dtype)
    return {"temperature": temperature, "converged": np.all([fit.converged for fit in fits])}


def _fit_focal(logits, labels, *, criterion, weights, focal_fit, searches, gammas, temperatures, num_bins):
    """Gamma and temperature of the least NLL, or by an ECE those of the grid, or of a line through it."""
    if criterion == "nll":
        return {"gamma": focal_fit.gamma, "temperature": focal_fit.temperature, "converged": focal_fit.converged}
    if criterion == "line_search":
        best = search.searched_line(checks.Examples(logits, labels, weights), gammas, temperatures, num_bins=num_bins)
    else:
        best = search.best_point(searches[criterion], gammas, temperatures, criterion=criterion)
    converged = _inside(best.gamma, gammas) & _inside(best.temperature, temperatures)
    return {"gamma": best.gamma, "temperature": best.temperature, "converged": converged}


def _inside(value, grid):
    """Whether it is no end of its grid, or all of it."""
    low, high = np.float32(np.min(grid)), np.float32(np.max(grid))
    return ((low < value) & (value < high)) | (low == high)


def _fit_implied(logits, labels, *, criterion, weights, trained_gamma):
    """The gamma of the training: the map that undoes what the focal loss of this gamma does to probabilities."""
    return {"gamma": np.float32(trained_gamma)}


def _applied(calibration_map, arguments, params, logits):
    """The map of the logits with these arguments: a number as it is, a name for the parameter of that name."""
    numbers = [params[name] if isinstance(name, str) else name for name in arguments]
    if isinstance(logits, np.ndarray) and not checks.is_traced(numbers):
        return calibration_map(logits, *map(np.asarray, numbers))
    return _mapped(calibration_map, logits, *numbers)


@partial(jax.jit, static_argnums=0)
def _mapped(calibration_map, logits, *numbers):
    """One compiled program for all methods of a map.

    Two methods of the focal map with the same gamma and temperature so agree to the bit, and their difference is 0
    instead of rounding, which a paired test would take for an effect.
    """
    return calibration_map(logits, *numbers)


def _map(calibration_map, *arguments):
    return partial(_applied, calibration_map, arguments)  # no closure, so that what is fitted can be pickled


_SHARE = "share_of_"  # and the name of a member
MEMBERS = (  # of stacking, as far as they take so many classes
    "uncalibrated",
    "temperature_scaling",
    "platt_scaling",
    "focal_temperature_scaling",
    "beta_calibration",
    "focal_vector_scaling",
    "structured_matrix_scaling",
    "binary_isotonic",
)


def _fit_stacking(logits, labels, *, criterion, weights, members):
    """The fitted members' params, and the shares of least NLL on examples that no member was fitted to.

    members: the fits, and their log-probabilities of these examples by fits of other folds.
    """
    fits, held_out = members
    given = stacking.likelihoods(held_out, labels, weights)
    shares = stacking.mixture_shares(*given, stacking.PRIOR / logits.shape[1])
    params = {
        f"{fit.method.name}.{name}": value for fit in fits for name, value in fit.params.items() if name != "converged"
    }
    params |= {_SHARE + fit.method.name: np.float32(share) for fit, share in zip(fits, shares, strict=True)}
    # a member at the end of another range is held-out outputs like any: its share says what it is worth
    return params | {"converged": all(fit.admissible for fit in fits if fit.method.name == "temperature_scaling")}


def _apply_stacking(params, logits):
    def numbers(prefix):
        return {key.removeprefix(prefix): value for key, value in params.items() if key.startswith(prefix)}

    shares = numbers(_SHARE)
    checks.check_distribution("shares", np.array([*shares.values()]))
    parts = [METHODS[name].apply(numbers(f"{name}."), logits) for name in shares]
    return stacking.mixed(parts, [*shares.values()])


_GRID = ("gammas", "temperatures", "searches")
_TWO_CLASSES = {"keeps_class": False, "most_classes": 2}
METHODS = {  # simplest first, for `choose`
    method.name: method
    for method in (
        Method(
            "uncalibrated",
            "Uncalibrated",
            _fit_nothing,
            _map(maps.focal_temperature_scaling, _ZERO, _ONE),
            criteria=(),
        ),
        Method(
            "temperature_scaling",
            "Temperature scaling",
            _fit_temperature,
            _map(maps.focal_temperature_scaling, _ZERO, "temperature"),
            criteria=("nll", "ece", "adaptive_ece"),
            options=(*_GRID, "temperature_fit"),
        ),
        Method(
            "temperature_scaling_by_group",
            "Temperature scaling by group",
            _fit_by_group,
            _map(maps.focal_temperature_scaling, _ZERO, "temperature"),
            options=("group", "temperature_fit"),
        ),
        Method(
            "loss_implied_temperature_scaling",
            "Loss-implied map, then temperature scaling",
            variants.fit_loss_implied_temperature,
            _map(maps.loss_implied_temperature_scaling, "gamma", "temperature"),
            options=("trained_gamma",),
        ),
        Method(
            "ensemble_temperature_scaling",
            "Ensemble temperature scaling",
            variants.fit_ensemble_temperature,
            _map(maps.ensemble_temperature_scaling, "temperature", "shares"),
            options=("temperature_fit",),
        ),
        Method(
            "platt_scaling",
            "Platt scaling",
            partial(two_classes.fit_logistic, form=two_classes.PLATT),
            _map(maps.logistic_calibration, _ZERO, "a", "a", "b"),
            **_TWO_CLASSES,
        ),
        Method(
            "focal_temperature_scaling",
            "Focal temperature scaling",
            _fit_focal,
            _map(maps.focal_temperature_scaling, "gamma", "temperature"),
            criteria=CRITERIA,
            options=(*_GRID, "num_bins", "focal_fit"),
        ),
        Method(
            "beta_calibration",
            "Beta calibration",
            partial(two_classes.fit_logistic, form=two_classes.BETA, least=0),
            _map(maps.logistic_calibration, _ZERO, "a", "b", "c"),
            **_TWO_CLASSES,
        ),
        Method(
            "quadratic_scaling",
            "Quadratic scaling",
            partial(two_classes.fit_logistic, form=two_classes.QUADRATIC),
            _map(maps.logistic_calibration, "a", "b", "b", "c"),
            **_TWO_CLASSES,
        ),
        Method(
            "vector_scaling",
            "Vector scaling",
            variants.fit_by_class,
            _map(maps.focal_vector_scaling, _ZERO, "temperature", "scales", "biases"),
            options=("temperature_fit", "start"),
            keeps_class=False,
        ),
        Method(
            "focal_vector_scaling",
            "Focal vector scaling",
            variants.fit_by_class,
            _map(maps.focal_vector_scaling, "gamma", "temperature", "scales", "biases"),
            options=("focal_fit", "start"),
            keeps_class=False,
        ),
        Method(
            "structured_matrix_scaling",
            "Structured matrix scaling",
            partial(variants.fit_by_class, full=True),
            _map(maps.focal_matrix_scaling, _ZERO, "temperature", "weights", "biases"),
            options=("temperature_fit", "start"),
            keeps_class=False,
            most_classes=variants.MOST_MATRIX_CLASSES,
        ),
        Method(
            "histogram_binning",
            "Histogram binning",
            variants.fit_histogram_binning,
            _map(maps.histogram_binning, "edges", "accuracies"),
            options=("num_bins",),
            keeps_class=False,
        ),
        Method(
            "isotonic",
            "Isotonic regression",
            variants.fit_isotonic,
            _map(maps.isotonic_calibration, "thresholds", "probabilities"),
        ),
        Method(
            "binary_isotonic",
            "Binary isotonic regression",
            two_classes.fit_binary_isotonic,
            _map(maps.binary_isotonic_calibration, "thresholds", "probabilities"),
            **_TWO_CLASSES,
        ),
        Method(
            "loss_implied_map",
            "Loss-implied map",
            _fit_implied,
            _map(maps.focal_temperature_scaling, "gamma", _ONE),
            criteria=(),
            options=("trained_gamma",),
        ),
        Method("stacking", "Stacking", _fit_stacking, _apply_stacking, options=("members",), keeps_class=False),
    )
}
DEFAULT_METHODS = (
    "uncalibrated",
    "temperature_scaling",
    "loss_implied_temperature_scaling",
    "platt_scaling",
    "focal_temperature_scaling",
    "beta_calibration",
    "quadratic_scaling",
    "vector_scaling",
    "focal_vector_scaling",
    "structured_matrix_scaling",
    "binary_isotonic",
    "loss_implied_map",
)
