"""A calibration method, the method fitted, and its text: the calibrator.json that applies it anywhere."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from focalgeo.calibration.binning import Logits, LogProbs
from focalgeo.calibration.fits import AT_EDGE, GAMMA_BRACKET, TEMPERATURE_BRACKET
from focalgeo.checks import TABLE, check_finite, finite_logits, score_rows
from focalgeo.types import Array, InputError

Params = dict[str, Array]

FORMAT, VERSION = "focalgeo-calibrator", 2


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
    criteria: tuple[str, ...] = ("nll",)  # that it can be fitted by, the usual one first; () where nothing is fitted
    options: tuple[str, ...] = ()  # keyword options of `fit` beyond criterion and mask
    keeps_class: bool = True  # False: it may change the predicted class
    most_classes: int | None = None  # beyond which it is refused

    def takes(self, num_classes: int) -> bool:
        """Whether logits of so many classes can be fitted."""
        return self.most_classes is None or num_classes <= self.most_classes


class ConvergenceWarning(UserWarning):
    """A fit ended at an end of its range, or did not converge."""


class Fitted(NamedTuple):
    """A fitted method: the method, the criterion it was fitted by, and the parameters found."""

    method: Method
    criterion: str | None  # None where nothing is fitted
    params: Params
    num_classes: int | None = None  # of the logits it was fitted on; None for any

    def predict_log_proba(self, logits: Logits) -> LogProbs:
        """Calibrated log-probabilities [examples, classes] of the logits; they keep what probabilities round to 0.

        Raises:
            InputError: the logits are of another number of classes, or are no finite numbers.
        """
        table = score_rows("logits", logits, shape=TABLE)
        if self.num_classes not in (None, table.shape[1]):
            raise InputError(f"logits have shape {table.shape}: give [examples, {self.num_classes}]")
        return self.method.apply(self.params, finite_logits(table))

    log_probs = predict_log_proba  # its name in programs of before

    def predict_proba(self, logits: Logits) -> LogProbs:
        """Calibrated probabilities [examples, classes] of the logits; errors as `predict_log_proba`."""
        return jnp.exp(self.predict_log_proba(logits))

    def calibrated(self, logits: Logits) -> "Calibrated":
        """The log-probabilities with the method and criterion that they are from."""
        return Calibrated(self.method, self.criterion, self.predict_log_proba(logits))

    @property
    def converged(self) -> bool:
        """False where the fit ended at the end of its range, or did not come to an end of its own."""
        return bool(self.params.get("converged", True))

    @property
    def searched(self) -> dict[str, float]:
        """The gamma and the temperature that were fitted, as far as the method has them."""
        given = ("gamma",) if "trained_gamma" in self.method.options else ()
        names = [name for name in ("gamma", "temperature") if name in self.params and name not in given]
        return {name: float(self.params[name]) for name in names}

    @property
    def at_end(self) -> bool:
        """Whether a fit that has not converged stands at an end of its range: a bracket's by NLL, else the grid's."""
        if self.converged or self.criterion != "nll":
            return not self.converged and bool(self.searched)
        return any(_is_end(name, value) for name, value in self.searched.items())

    @property
    def why_not_converged(self) -> str:
        """In words why the fit has not converged; "" where it has."""
        if self.converged:
            return ""
        return "its fit ended at the end of the range searched" if self.at_end else "its fit did not converge"

    @property
    def parameters(self) -> dict[str, Any]:
        """The params but "converged", in plain numbers and nested lists: 0.51 for the float32 next to it."""
        return {name: value for name, value in plain_numbers(self.params).items() if name != "converged"}

    def to_json(self) -> str:
        """The text of a calibrator.json, which `read_calibrator` reads.

        Raises:
            InputError: a parameter is not finite, or the number of classes is not known.
        """
        return json.dumps(calibrator_json(self), indent=2) + "\n"


def _is_end(name: str, value: float) -> bool:
    """Whether a number fitted by NLL is an end of its bracket."""
    value, ends = (value, GAMMA_BRACKET) if name == "gamma" else (np.log(value), np.log(TEMPERATURE_BRACKET))
    near = 1.1 * AT_EDGE  # what float32 rounds is near too
    return not ends[0] + near < value < ends[1] - near


class Calibrated(NamedTuple):
    """Log-probabilities of examples by a method, with the method and the criterion it was fitted by."""

    method: Method
    criterion: str | None
    log_probs: LogProbs


def calibrator_json(
    fitted: Fitted, *, inputs: Mapping[str, Any] | None = None, fits: Sequence[Fitted] = ()
) -> dict[str, Any]:
    """The object that calibrator.json holds: the fitted method, checksums of what it was made from, and other fits.

    Raises:
        InputError: a parameter is not finite, or the number of classes is not known.
    """
    if fitted.num_classes is None:
        raise InputError("the number of classes is not known: give num_classes to Fitted, or use calibration.fit")
    for name, value in fitted.params.items():
        check_finite(name, np.asarray(value, np.float32))
    listed = [
        {"method": each.method.name, "criterion": each.criterion, "parameters": plain_numbers(each.params)}
        for each in fits
    ]
    return {
        "format": FORMAT,
        "version": VERSION,
        "method": fitted.method.name,
        "criterion": fitted.criterion,
        "num_classes": fitted.num_classes,
        "parameters": fitted.parameters,
        "inputs": dict(inputs or {}),
        "fits": listed,
    }


def plain_numbers(params: Mapping[str, Array]) -> dict[str, Any]:
    """The params as Python numbers, truth values and nested lists, each with the fewest digits that give it back."""
    return {name: _plain(np.asarray(value)) for name, value in params.items()}


def _plain(value: np.ndarray) -> Any:
    if value.ndim:
        return [_plain(each) for each in value]
    return float(str(value)) if np.issubdtype(value.dtype, np.floating) else value.item()
