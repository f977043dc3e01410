"""Types that several packages share: errors, batches, data sets, the training state, estimates."""

import difflib
import importlib
import math
from collections.abc import Iterable, Mapping
from numbers import Integral
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import jax

    Array = jax.Array | np.ndarray
else:
    Array = Any  # jax is not imported at run time, so that packages without it start fast
PyTree = Any


# A criterion by which calibration methods are fitted, compared and chosen; the first is the default. NLL is proper, so
# that no miscalibration improves it, and the same examples settle it sooner than a binned error (experiments/posthoc).
CRITERIA = ("nll", "ece", "adaptive_ece", "line_search")
DEFAULT_CRITERIA = ("nll", "ece")
DEFAULT_METRICS = ("accuracy", "ece", "adaptive_ece", "nll", "brier")
OF_CLASS_ONE = ("auroc", "binary_brier", "calibration_slope", "calibration_intercept", "spiegelhalter_z")  # metrics
# methods that keep the ranking of two classes by P(1)
KEEP_RANKING = ("temperature_scaling", "platt_scaling", "focal_temperature_scaling", "beta_calibration")
METRIC_OF = {"line_search": "ece"}  # criterion -> the metric by which its fits are compared, where the names differ

BAR = {"delay": 3, "leave": False, "disable": None, "dynamic_ncols": True}  # tqdm's, of work of over 3 seconds

FEWEST_EXAMPLES = 30  # of val or test: of fewer neither a fit nor a measured calibration is worth anything
# Limits that config fields, flags and library functions share.
MOST_BINS = 10_000  # a table [bins, examples] is made of them, and a report of no more still opens
MOST_RESAMPLES = 100_000  # of a bootstrap: a minute or so for 10,000 examples on two cores
MOST_PAIRS = 100_000  # of gamma and temperature: half a minute for 10,000 examples of 100 classes on two cores

PROBABILITY_FLOOR = 1.1754944e-38  # the least that float32 holds to full precision; its log is -87.3
LOG_FLOOR = math.log(PROBABILITY_FLOOR)  # what `log_probabilities` writes for a probability of 0
NEAR_FLOOR = 1e-4  # by which NumPy's and XLA's float32 logarithms of it may differ
ON_EDGE = 1e-6  # within which a probability counts as on a bin's edge: exp(log p) is off by up to 1.3e-7 in float32

NEIGHBOURS = 10  # of each node of a graph, whose numbers stand behind its features

OFF_ONE = 1e-2  # by which probabilities of a row that were rounded may sum to something else than 1

_LONGEST = 500  # characters of an error's line


def shown(value: object, *, most: int = 60) -> str:
    """The value as a message shows it: on one line of at most so many letters, with escapes for what has no shape."""
    try:
        text = str(value)
    except Exception:  # of a class that cannot be shown, or of a whole number of too many digits
        text = f"a value of type {type(value).__name__}"
    text = text if len(text) <= most else f"{text[: most - 3]}..."
    return text if text.isprintable() else "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def count(name: str, value: object, low: int, high: int = 2**31 - 1) -> int:
    """A whole number from `low` to `high` that is known while tracing."""
    whole = isinstance(value, Integral) and not isinstance(value, bool | np.bool_)
    if not whole or not low <= value <= high:
        ends = f"{low} or more" if high == 2**31 - 1 else f"{low} to {high}"
        raise InputError(f"{name} is {shown(value)}: give a whole number, {ends}")
    return int(value)


class _OneLine(Exception):
    def __init__(self, message: str):
        """The message on one line of bounded length, whatever names it holds."""
        super().__init__(shown(message, most=_LONGEST))


class InputError(_OneLine, ValueError):
    """The user's input is wrong; the message is one line: what, where, how to correct it.

    Example:
        >>> losses.make_loss("focl_loss")
        Traceback (most recent call last):
            ...
        focalgeo.types.InputError: loss is 'focl_loss': did you mean 'focal_loss'?
    """

    exit_code = 2

    @classmethod
    def of_choice(cls, field: str, name: str, choices: Iterable[str]) -> "InputError":
        """The error that `field` holds `name`, which is none of the choices; it names the nearest of them."""
        choices, word = tuple(choices), str(name).lower()
        near = [each for each in choices if len(word) > 2 and word in each] or difflib.get_close_matches(
            str(name), choices, n=1, cutoff=0.4
        )
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(choices)}"
        return cls(f"{field} is {name!r}: {hint}")


def library(name: str) -> ModuleType:
    """A module that an extra of its name brings; InputError says how where it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"{name} is not installed: pip install 'focalgeo[{name}]'") from error


class RunError(_OneLine, RuntimeError):
    """A run cannot go on (a loss that is not finite, say); the message is one line."""

    exit_code = 3


STOPPED = "stopped; the same command goes on from what is saved"


class Interrupted(BaseException):
    """A signal stopped the run in good order; no handler of errors may swallow that. Exit code: 128 + its number."""

    def __init__(self, signum: int, message: str = STOPPED):
        """A stop by signal `signum`, with one line on how to go on."""
        super().__init__(message)
        self.exit_code = 128 + signum


class ProbabilityWarning(UserWarning):
    """Probabilities were given where logits belong, by all appearance.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     fitted = calibration.fit("temperature_scaling", np.exp(log_probs), labels)
        >>> caught[0].category.__name__
        'ProbabilityWarning'
    """


class DataWarning(UserWarning):
    """Something speaks against a classifier's outputs: the order of columns, chance, rows that val and test share.

    Example:
        >>> import warnings
        >>> both = (scores, drawn), (scores, drawn)  # val is test
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     result = calibration.compare(*both, methods=["temperature_scaling"], num_resamples=100)
        >>> str(caught[0].message)[:43]
        '300 of 300 rows of test are rows of val too'
    """


def look_like_probabilities(scores: np.ndarray, tolerance: float = 1e-3) -> bool:
    """Whether every row of two or more lies in [0, 1] and sums to 1 within the tolerance, as logits hardly ever do."""
    if scores.ndim < 2 or len(scores) < 2 or not (scores.min() >= 0 and 0 < scores.max() <= 1):
        return False
    return bool((np.abs(scores.sum(axis=-1, dtype=np.float64) - 1) <= tolerance).all())


def is_one_hot(labels: np.ndarray) -> bool:
    """Whether rows [..., classes] hold a 1 each and zeros besides."""
    return labels.ndim > 1 and bool(np.isin(labels, (0, 1)).all() and (labels.sum(axis=-1) == 1).all())


def floored_log(probs: np.ndarray, floor: Array | float = PROBABILITY_FLOOR) -> np.ndarray:
    """Log max(p, floor) as float32, whatever the type of p: 0 has no logarithm.

    Rows are divided by their sums where the floor is one that adds to these.
    """
    floored = np.maximum(probs.astype(np.float64), floor)
    if np.max(floor) > PROBABILITY_FLOOR:
        floored /= floored.sum(axis=-1, keepdims=True)
    return np.log(floored).astype(np.float32)


def inner_ends(num_bins: int, dtype: Any) -> np.ndarray:
    """The largest values [num_bins - 1] of all equal-width bins but the last: 1/M, 2/M, ... and what is on them."""
    return (np.arange(1, num_bins) / num_bins + ON_EDGE).astype(dtype)


def tied_means(confidence: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Each value's mean over the examples of its confidence [examples]: what the order of equal ones cannot change."""
    _, index = np.unique(np.round(confidence / ON_EDGE), return_inverse=True)
    return (np.bincount(index, values) / np.bincount(index))[index]


class Batch(NamedTuple):
    """A batch of examples; entries where `mask` is False are padding and count for nothing."""

    x: PyTree  # [examples, ...]
    y: Array  # int32 [examples], or [examples, nodes] of trees and graphs
    mask: Array  # bool, of the shape of y


class Split(NamedTuple):
    """All examples of one split, as loaded: images are uint8 [examples, height, width, channels]; see load_dataset."""

    x: np.ndarray
    y: np.ndarray  # int32 [examples], or [examples, nodes] of trees and graphs with -1 for no label

    def at(self, rows: Any) -> "Split":
        """The examples in these rows, numbers or a slice."""
        return Split(self.x[rows], self.y[rows])


class Dataset(NamedTuple):
    """A data set by name: the three splits, its class names in label order, and a checksum of its content.

    `vocabulary` holds the words by token id, "" for padding and "<unk>" for unknown words first; () for images.
    `features` holds mean and standard deviation in train by which each feature was standardised; None for no features.
    """

    name: str
    train: Split
    val: Split
    test: Split
    class_names: tuple[str, ...]
    checksum: str
    vocabulary: tuple[str, ...] = ()
    features: Mapping[str, tuple[float, float]] | None = None


class Predictions(NamedTuple):
    """A model's raw outputs on one split; `logits` are never probabilities."""

    logits: Array  # float32 [examples, classes]; of a sweep [examples, members, classes]
    labels: Array  # int32 [examples]


class BestEpoch(NamedTuple):
    """The network after the epoch that was the most accurate on val so far, the earliest on ties."""

    accuracy: Array  # on val, -1 before the first epoch
    epoch: Array  # its number, from 1; 0 before the first
    params: PyTree
    model_state: PyTree


class TrainState(NamedTuple):
    """Everything a step reads and writes. All of it is traced, so that a sweep can stack members [members, ...]."""

    step: Array  # int32 scalar
    params: PyTree
    model_state: PyTree  # batch statistics and the like; {} where the model has none
    opt_state: PyTree
    key: Array  # raw PRNG key, folded with `step` for every use
    loss_values: dict[str, PyTree]  # values that loss and penalties read: gamma, alpha, ... by name
    learning_rate: Array  # float32 scalar: the base that the schedule multiplies
    weight_decay: Array | None = None  # float32 scalar where it is swept, else None: the optimiser holds it
    best: BestEpoch | None = None  # None where the run ends with its last epoch
    frozen: Array = np.False_  # bool: True once a member's loss or gradient was not finite; it is trained no further
    stream: Array = np.int32(0)  # number of the member's batch stream: members of one seed share one


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

    @classmethod
    def by_student(cls, value: Array, stderr: Array, n: int) -> "Estimate":
        """The mean of n >= 2 independent samples with its 95% interval by Student's t, n - 1 degrees of freedom."""
        from scipy.special import stdtrit  # slow to import, and most users of this file need none of it

        half = float(stdtrit(n - 1, 0.975)) * stderr
        return cls(value, stderr, value - half, value + half, n)
