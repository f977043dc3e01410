"""Per-example losses in nats: pure functions of (logits, labels, hyperparameters...), without means, masks or
parameters.

What a loss needs beyond logits and labels is named by its own signature; `make_loss` turns any of them into one form.
"""

import difflib
import inspect
from collections.abc import Callable

from focalgeo.losses.cross_entropy import cross_entropy
from focalgeo.losses.focal import focal_loss
from focalgeo.types import Array, InputError

__all__ = ["LOSSES", "cross_entropy", "focal_loss", "hyperparameters", "make_loss"]

LOSSES: dict[str, Callable[..., Array]] = {"cross_entropy": cross_entropy, "focal_loss": focal_loss}


def hyperparameters(name: str) -> tuple[str, ...]:
    """Names of the traced scalars that loss `name` takes after (logits, labels), in its own order.

    Raises:
        InputError: `name` is not in LOSSES.
    """
    if name not in LOSSES:
        near = difflib.get_close_matches(name, LOSSES, n=1, cutoff=0.3)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(sorted(LOSSES))}"
        raise InputError(f"unknown loss {name!r}: {hint}")
    return tuple(inspect.signature(LOSSES[name]).parameters)[2:]


def make_loss(name: str) -> Callable[[Array, Array, dict[str, Array]], Array]:
    """The loss `name` as loss(logits, labels, hyper) -> [...], where `hyper` holds at least the scalars it needs.

    What `hyper` holds beyond them is left alone, so that one dict of traced scalars can serve a whole sweep.

    Raises:
        InputError: `name` is not in LOSSES.
    """
    names, function = hyperparameters(name), LOSSES[name]

    def loss(logits: Array, labels: Array, hyper: dict[str, Array]) -> Array:
        return function(logits, labels, *(hyper[needed] for needed in names))

    return loss
