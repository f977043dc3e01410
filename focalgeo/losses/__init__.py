"""Losses per example, in nats (Brier: a pure number), or with a mask their mean; penalties on a batch, with a mask too.

A loss is a function of (logits, labels, ...) and a line in LOSSES. Each further parameter has the name of a field of
config.loss (config.py), or is `epoch` or `adafocal`. `make_loss` gives every loss the form loss(logits, labels,
loss_values).
"""

import inspect
from collections.abc import Callable

from focalgeo.losses.adaptive import (
    POLICIES,
    SCHEDULES,
    AdaFocalState,
    adafocal_gamma,
    adafocal_loss,
    adafocal_state,
    adafocal_update,
    sample_dependent_focal_loss,
    sample_gamma,
    scheduled_focal_loss,
)
from focalgeo.losses.focal import (
    brier_loss,
    confidence_penalised_cross_entropy,
    cross_entropy,
    dual_focal_loss,
    focal_loss,
    label_smoothed_cross_entropy,
    sigmoid_focal_loss,
    signed_focal_loss,
    weighted_by_class,
)
from focalgeo.losses.kernel import mmce, weighted_mmce
from focalgeo.types import Array, InputError, PyTree

LOSSES = {
    function.__name__: function
    for function in (
        cross_entropy,
        label_smoothed_cross_entropy,
        brier_loss,
        focal_loss,
        sample_dependent_focal_loss,
        scheduled_focal_loss,
        adafocal_loss,
        signed_focal_loss,
        dual_focal_loss,
        confidence_penalised_cross_entropy,
    )
}

PENALTIES = {"mmce": mmce, "weighted_mmce": weighted_mmce}

# every name that config.loss.name may have -> the loss of LOSSES that is trained with
FUNCTIONS = (
    {name: name for name in LOSSES}
    | dict.fromkeys(POLICIES, "sample_dependent_focal_loss")
    | dict.fromkeys(SCHEDULES, "scheduled_focal_loss")
    | dict.fromkeys(PENALTIES, "cross_entropy")
)


def hyperparameters(name: str) -> tuple[str, ...]:
    """Names of the traced values that loss `name` takes after (logits, labels), in its own order.

    Raises:
        InputError: `name` is not in LOSSES.

    Example:
        >>> losses.hyperparameters("scheduled_focal_loss")
        ('epoch', 'boundaries', 'gammas')
    """
    if name not in [*LOSSES]:
        raise InputError.of_choice("loss", name, LOSSES)
    return tuple(
        value for value in [*inspect.signature(LOSSES[name]).parameters][2:] if value not in ("mask", "weights")
    )


def make_loss(name: str) -> Callable[[Array, Array, dict[str, PyTree]], Array]:
    """The loss `name` as loss(logits, labels, loss_values) -> [...]; loss_values hold at least `hyperparameters(name)`.

    Its keys are the loss's parameter names; its values are scalars, arrays or a pytree such as the AdaFocal state.
    Other keys are ignored, so that one dict of traced values can serve all of a sweep.

    Raises:
        InputError: `name` is not in LOSSES.

    Example:
        >>> focal = losses.make_loss("focal_loss")
        >>> print(np.asarray(focal(logits, labels, {"gamma": 2.0})).round(4))
        [0.0457 0.0041 0.5665 0.8655]
    """
    names, function = hyperparameters(name), LOSSES[name]
    return lambda logits, labels, loss_values: function(logits, labels, *(loss_values[value] for value in names))
