"""The data that passes between the rooms; no functions."""

import difflib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

Array = Any  # jax.Array or numpy.ndarray; jax is not imported here, so that rooms without it start fast
PyTree = Any


class InputError(ValueError):
    """Something the user gave is wrong; the message is one line: what, where, how to mend it."""

    exit_code = 2

    @classmethod
    def of_choice(cls, field: str, name: str, choices: Iterable[str]) -> "InputError":
        """The error that `field` holds `name`, which is none of the choices; it names the nearest of them."""
        choices = tuple(choices)
        near = difflib.get_close_matches(name, choices, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(choices)}"
        return cls(f"{field} is {name!r}: {hint}")


class RunError(RuntimeError):
    """A run cannot go on (a loss that is not finite, say); the message is one line."""

    exit_code = 3


class Interrupted(BaseException):
    """A signal stopped the run in good order; no handler of errors may swallow that. Exit code: 128 + its number."""

    def __init__(self, signum: int, message: str):
        """A stop by signal `signum`, with one line on how to go on."""
        super().__init__(message)
        self.exit_code = 128 + signum


class Batch(NamedTuple):
    """Examples that travel together; what stands where `mask` is False is padding and counts for nothing."""

    x: PyTree  # [examples, ...]
    y: Array  # int32 [examples], or [examples, nodes] of trees
    mask: Array  # bool, of the shape of y


class Split(NamedTuple):
    """All examples of one split, as loaded: images are uint8 [examples, height, width, channels]; see load_dataset."""

    x: np.ndarray
    y: np.ndarray  # int32 [examples], or [examples, nodes] of trees with -1 for no label


class Dataset(NamedTuple):
    """A data set by name: the three splits, its class names in label order, and a checksum of its content.

    `vocabulary` holds the words by token id, "" for padding and "<unk>" for unknown words first; () for images.
    """

    name: str
    train: Split
    val: Split
    test: Split
    class_names: tuple[str, ...]
    checksum: str
    vocabulary: tuple[str, ...] = ()


class Predictions(NamedTuple):
    """A model's raw outputs on one split; `logits` are never probabilities."""

    logits: Array  # float32 [examples, classes]
    labels: Array  # int32 [examples]
    mask: Array  # bool [examples]


class TrainState(NamedTuple):
    """Everything a step reads and writes; `hyper` holds traced scalars such as gamma, so a sweep can stack them."""

    step: Array  # int32 scalar
    params: PyTree
    model_state: PyTree  # batch statistics and the like; {} where the model has none
    opt_state: PyTree
    key: Array  # raw PRNG key, folded with `step` for every use
    hyper: dict[str, Array]


class Model(NamedTuple):
    """A network as two functions, with flax's own signatures.

    init(key, x) -> variables with "params"; apply(variables, x) -> logits in evaluation mode;
    apply(variables, x, train=True, mask=mask, mutable=[...], rngs={...}) -> (logits, new model state).
    """

    init: Any
    apply: Any


class Estimate(NamedTuple):
    """A value with its standard error and 95% interval from n samples (examples or probes: see the function)."""

    value: Array
    stderr: Array
    low: Array
    high: Array
    n: Array
