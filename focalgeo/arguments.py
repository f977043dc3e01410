"""Arguments of library functions: shapes, types and values, each checked in one line where it enters.

Shapes and types are checked while a function is traced too. Values are checked where they are concrete. Where they are
traced, what cannot be right becomes NaN (`marked`, the weights of `examples`), so that a result is NaN and no number.
"""

import inspect
import warnings
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from functools import cache, partial, wraps
from numbers import Integral, Real
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from focalgeo.probabilities import ProbabilityWarning, look_like_probabilities
from focalgeo.types import MOST_BINS, Array, InputError, PyTree, shown

Scalar = Float[Array, ""] | float
Numbers = Float[Array, "*#batch"] | float  # scalars or arrays that broadcast against one another, results [*batch]
Rows = Float[Array, "*#batch classes"] | Sequence  # a last axis of classes, or (nested) lists of numbers
Batch = Float[Array, "*batch"]

MOST_NUMBERS = 2**32  # in one table, 16 GB of float32

_OFF_ONE = 1e-2  # by which the probabilities of a row may sum to something else than 1: they were rounded


def is_traced(*values: PyTree) -> bool:
    """Whether any leaf is a tracer, whose value is known only when a compiled function runs."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


def array_of(name: str, value: object) -> Array:
    """The value as an array: arrays as they are, numbers and nested lists by NumPy.

    Raises:
        InputError: it is no array of numbers or truth values.
    """
    if not isinstance(value, jax.Array | np.ndarray | np.generic):
        library = jnp if is_traced(value) else np
        try:
            value = library.asarray(value)
        except (ValueError, TypeError, OverflowError) as error:
            raise InputError(f"{name} are no array: give numbers, in lists of one length") from error
    if value.dtype == np.longdouble:  # NumPy's long double, which JAX does not have
        value = value.astype(np.float64)
    if value.dtype != bool and not jnp.issubdtype(value.dtype, jnp.number):
        raise InputError(f"{name} are {value.dtype}: give numbers")
    return value


def score_rows(name: str, scores: object) -> Array:
    """Logits, log-probabilities or probabilities [..., classes], as an array of floats.

    Raises:
        InputError: another type, no class axis, or fewer than two classes.
    """
    array = array_of(name, scores)
    if isinstance(scores, Sequence) and jnp.issubdtype(array.dtype, jnp.integer):
        array = array.astype(np.float32)  # [[2, 0]] is a list of numbers; an array of integers is another thing
    if not jnp.issubdtype(array.dtype, jnp.floating):
        what = name.replace("_", "-").replace("probs", "probabilities")
        raise InputError(f"{name} are {array.dtype}: give {what} as floats")
    if array.ndim == 0:
        raise InputError(f"{name} have shape (): give [..., classes], two classes or more")
    if array.shape[-1] < 2:
        number = "one class" if array.shape[-1] else "no class"
        raise InputError(f"{name} have {number}, shape {array.shape}: give two or more")
    return array


def score_table(name: str, scores: object) -> Array:
    """`score_rows` of shape [examples, classes].

    Raises:
        InputError: as `score_rows`, or another number of axes.
    """
    array = array_of(name, scores)
    if array.ndim != 2:
        raise InputError(f"{name} have shape {array.shape}: give [examples, classes]")
    return score_rows(name, scores)


def label_array(labels: object, scores: Array, name: str, *, counted: Array | None = None) -> Array:
    """Class numbers, one for each row of `scores`, which messages call `name`, of 32 bits or more.

    XLA compares integers in the array's own type, where 8 bits do not hold the number of classes 300.

    Args:
        labels: Integers; their values are checked where they are concrete.
        scores: Float [..., classes].
        name: Of the scores.
        counted: The mask; what it leaves out may hold any label. With a traced one, values are not checked.

    Raises:
        InputError: no integers, another shape, or a label outside 0 to classes - 1.
    """
    array, rows, classes = array_of("labels", labels), scores.shape[:-1], scores.shape[-1]
    if array.shape != rows:
        raise InputError(f"labels have shape {array.shape}, {name} {scores.shape}: {_mend_of(array.shape, rows)}")
    if array.size == 0 and not hasattr(labels, "dtype"):
        array = array.astype(np.int32)  # NumPy calls an empty list a list of floats
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise InputError(f"labels are {array.dtype}: give class numbers as integers")
    if not is_traced(array, counted):
        _check_labels(_of_32_bits(np.asarray(array)), classes, counted)
    return _of_32_bits(array)


def _of_32_bits(labels: Array) -> Array:
    return labels.astype(np.int32) if jnp.iinfo(labels.dtype).bits < 32 else labels


def _mend_of(shape: tuple[int, ...], rows: tuple[int, ...]) -> str:
    if shape == (*rows, 1):
        return f"give one label for each row, labels[{':, ' * len(rows)}0]"
    if len(shape) == len(rows) + 1 and shape[:-1] == rows:
        return "give one label for each row, labels.argmax(-1) of one-hot rows"
    return "give one label for each row"


def _check_labels(labels: np.ndarray, classes: int, counted: Array | None) -> None:
    outside = (labels < 0) | (labels >= classes)
    if not outside.any():
        return
    chosen = np.ones(labels.shape, bool) if counted is None else np.asarray(counted) > 0
    outside = np.argwhere(outside & chosen)
    if not len(outside):
        return
    if labels[chosen].min() >= 1 and labels[chosen].max() == classes:
        raise InputError(f"labels run from 1 to {classes}: subtract 1, they count from 0")
    first = tuple(map(int, outside[0]))
    where = f"labels[{', '.join(map(str, first))}]" if first else "labels"
    raise InputError(f"{where} is {labels[first]}: with {classes} classes give labels from 0 to {classes - 1}")


def in_classes(labels: Array, classes: int) -> Array:
    """Whether each label is one of 0 to classes - 1."""
    return (labels >= 0) & (labels < classes)


def mask_array(mask: object, labels: Array, name: str = "labels") -> Array | None:
    """A mask as an array: truth values, or how often each example counts; None stays None.

    Raises:
        InputError: another shape than the labels, which messages call `name`; a concrete number below 0 or not finite.
    """
    if mask is None:
        return None
    array = array_of("mask", mask)
    if array.shape != labels.shape:
        raise InputError(f"mask has shape {array.shape}, {name} {labels.shape}: give one entry for each")
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise InputError(f"mask is {array.dtype}: give truth values, or how often each example counts")
    if array.dtype != bool and not is_traced(array):
        wrong = ~((np.asarray(array) >= 0) & np.isfinite(np.asarray(array, np.float64)))
        if wrong.any():
            raise InputError(
                f"mask holds {np.asarray(array)[wrong].flat[0]}: give truth values, or counts of 0 or more"
            )
    return array


def widened(scores: Array) -> Array:
    """The scores as float32, exactly, where their type is narrower (bfloat16 sums stop growing at 256), else as is."""
    scores = jnp.asarray(scores)
    return scores.astype(jnp.float32) if jnp.finfo(scores.dtype).bits < 32 else scores


class Examples(NamedTuple):
    """Log-probabilities, labels and weights that have been checked."""

    log_probs: Float[Array, "examples classes"]  # float32, or wider
    labels: Array  # int32 [examples]
    weight: Float[Array, " examples"]  # how often the example counts; NaN where it counts and is not valid


def examples(log_probs: object, labels: object, mask: object = None) -> Examples:
    """The arguments of a metric, checked. What has weight 0 may hold anything, NaN too; no example is one of weight 0.

    Weights are NaN where an example counts whose label is no class, or whose row is no logarithm of probabilities: its
    probabilities do not sum to 1 within 0.01 and what rounding to its type explains. So a mean over them is NaN.

    Raises:
        InputError: shapes or types that do not fit; where values are concrete, a label that is no class, a row of
            logits or probabilities. Rows that hold NaN are no error: their result is NaN.
    """
    table = score_table("log_probs", log_probs)
    array = label_array(labels, table, "log_probs", counted=(counted := mask_array(mask, array_of("labels", labels))))
    if len(table) == 0:
        return Examples(jnp.zeros((1, table.shape[1])), jnp.zeros(1, jnp.int32), jnp.zeros(1))
    rows = jnp.asarray(table)
    weight, spoiled = _weighted(rows, jnp.asarray(array), None if counted is None else jnp.asarray(counted))
    if not is_traced(spoiled) and spoiled:
        _refuse_rows(np.asarray(rows, np.float64), np.isnan(weight))
    return Examples(rows.astype(weight.dtype), jnp.asarray(array).astype(jnp.int32), weight)


@partial(jax.jit, inline=True)
def _weighted(log_probs: Array, labels: Array, mask: Array | None) -> tuple[Array, Array]:
    """The weights of `examples`, and whether one is NaN."""
    wide = widened(log_probs)
    weight = jnp.ones(labels.shape, wide.dtype) if mask is None else mask.astype(wide.dtype)
    tolerance = _OFF_ONE + 4 * float(jnp.finfo(log_probs.dtype).eps) * np.log(log_probs.shape[-1])
    valid = jnp.abs(jnp.sum(jnp.exp(wide), axis=-1) - 1) <= tolerance
    valid &= in_classes(labels, log_probs.shape[-1])
    weight = jnp.where((weight == 0) | (valid & (weight > 0) & (weight < jnp.inf)), weight, jnp.nan)
    return weight, jnp.isnan(jnp.sum(weight))


def _refuse_rows(log_probs: np.ndarray, spoiled: np.ndarray) -> None:
    wrong = np.flatnonzero(spoiled & ~np.isnan(log_probs).any(axis=1))
    if not len(wrong):
        return
    of = "of logits give jax.nn.log_softmax, of probabilities calibration.log_probabilities"
    largest = log_probs[wrong].max()
    if largest > 1e-3:
        raise InputError(f"log_probs hold {largest:.4g}: {of}")
    total = np.exp(log_probs[wrong[0]]).sum()
    raise InputError(f"log_probs[{wrong[0]}] are the logs of numbers that sum to {total:.4g}, not to 1: {of}")


class PredictedLogits(NamedTuple):
    """Logits, labels and mask that have been checked, as they were given."""

    logits: Float[Array, "examples classes"]
    labels: Array  # integers [examples]
    mask: Array | None  # bool or numbers [examples]

    def weight(self) -> Float[Array, " examples"]:
        """Weights as those of `examples`, in float32 or wider: NaN where it counts and is not valid."""
        logits = widened(self.logits)
        mask = jnp.ones(self.labels.shape, bool) if self.mask is None else jnp.asarray(self.mask)
        weight, valid = mask.astype(logits.dtype), jnp.all(jnp.isfinite(logits), axis=-1)
        valid &= in_classes(jnp.asarray(self.labels), logits.shape[-1]) & (weight > 0) & (weight < jnp.inf)
        return jnp.where((weight == 0) | valid, weight, jnp.nan)


def predicted_logits(logits: object, labels: object, mask: object = None) -> PredictedLogits:
    """The arguments of a fit or a search, checked. What a mask leaves out may hold anything, NaN too.

    Raises:
        InputError: shapes or types that do not fit, no example; where values are concrete, a label that is no class,
            logits that are not finite, a mask that leaves no example.
    """
    table = score_table("logits", logits)
    if len(table) == 0:
        raise InputError("logits and labels are empty: give at least one example")
    counted = mask_array(mask, array_of("labels", labels))
    if counted is not None and not is_traced(counted) and not np.asarray(counted, bool).any():
        raise InputError("the mask leaves no example: give at least one")
    array = label_array(labels, table, "logits", counted=counted)
    if not is_traced(table, counted):
        check_finite_rows(np.asarray(table), None if counted is None else np.asarray(counted, bool))
    return PredictedLogits(table, array, counted)


_told = ContextVar("_told", default=False)  # whether a function that calls this one has looked at the logits


def warns_of_probabilities(function: Callable) -> Callable:
    """The function of `logits` and perhaps a `mask`, with one warning where concrete logits look like probabilities.

    What it calls in its own thread does not warn again.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def warning(*args: object, **options: object) -> object:
        if _told.get():
            return function(*args, **options)
        given = signature.bind(*args, **options).arguments
        if _are_probabilities(given.get("logits"), given.get("mask")):
            text = "logits look like probabilities: every row is in [0, 1] and sums to 1; if they are, give"
            warnings.warn(f"{text} calibration.log_probabilities(logits)", ProbabilityWarning, stacklevel=2)
        token = _told.set(True)
        try:
            return function(*args, **options)
        finally:
            _told.reset(token)

    return warning


def _are_probabilities(logits: object, mask: object) -> bool:
    """Whether they are a concrete table of what looks like probabilities where the mask counts; never an error."""
    if is_traced(logits, mask) or not hasattr(logits, "dtype") or np.ndim(logits) != 2:
        return False
    table = np.asarray(logits)
    if mask is not None and np.shape(mask) == table.shape[:1]:
        table = table[np.asarray(mask) > 0]
    return jnp.issubdtype(table.dtype, jnp.floating) and look_like_probabilities(table)


def check_finite_rows(logits: np.ndarray, counted: np.ndarray | None = None) -> None:
    """Refuse rows of concrete logits that float32 does not hold as finite numbers, those left out by `counted` aside.

    Raises:
        InputError: there are some; it names the first.
    """
    with np.errstate(over="ignore"):  # of float64, beyond what float32 holds
        wrong = ~np.isfinite(logits.astype(np.float32, copy=False)).all(axis=1)
    bad = np.flatnonzero(wrong if counted is None else wrong & counted)
    if bad.size:
        raise InputError(
            f"logits of {bad.size} examples are not finite, the first in row {bad[0]}: remove or mend them"
        )


def count(name: str, value: object, low: int, high: int = 2**31 - 1, *, because: str = "", why: str = "") -> int:
    """A whole number from `low` to `high` that is known while tracing.

    Raises:
        InputError: anything else; `why` is said of the least, `because` says why no more than `high`.
    """
    if is_traced(value):
        raise InputError(f"{name} is traced: give a plain int, as a static argument of jit")
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise InputError(f"{name} is {shown_value(value)}: give a whole number of {low} or more")
    if value < low:
        raise InputError(f"{name} is {shown(value)}: give {low} or more{why}")
    if value > high:
        raise InputError(f"{name} is {shown(value)}: give at most {high}{because and f', {because}'}")
    return int(value)


def shown_value(value: object) -> str:
    """The value in one line: an array by dtype and shape, text in quotes."""
    if isinstance(value, np.ndarray | jax.Array):
        return described(value) + (" known only inside jit" if is_traced(value) else "")
    return f"'{shown(value)}'" if isinstance(value, str) else shown(value)


def described(leaf: object) -> str:
    """The dtype and shape of an array in words, "float32[3, 4]", or the name of another type."""
    if not hasattr(leaf, "dtype") and not isinstance(leaf, Real):
        return type(leaf).__name__
    try:
        dtype = jnp.result_type(leaf)
    except TypeError:  # text, say
        dtype = leaf.dtype
    return f"{dtype}{list(np.shape(leaf))}"


def check_bins(num_bins: int, num_examples: int = 1) -> None:
    """Refuse a number of bins below 1, above MOST_BINS, or whose table with the examples no memory holds."""
    count("num_bins", num_bins, 1, MOST_BINS, because="a table [bins, examples] is made")
    if num_bins * num_examples > MOST_NUMBERS:
        most = MOST_NUMBERS // num_examples
        raise InputError(
            f"num_bins is {num_bins} for {num_examples} examples: give at most {most}, memory holds no more"
        )


def check_key(key: object) -> None:
    """Refuse what is not one PRNG key, of jax.random.key or jax.random.PRNGKey.

    Raises:
        InputError: it is none, or several.
    """
    dtype = getattr(key, "dtype", None)
    is_new = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    is_raw = dtype == np.uint32 and np.shape(key)[-1:] == _raw_key_shape()
    if not (is_new or is_raw):
        raise InputError(f"key is {shown_value(key)}, not a PRNG key: give jax.random.key(seed)")
    if key.ndim != (0 if is_new else 1):
        raise InputError(f"key holds several keys, shape {list(key.shape)}: give one, or map over them by jax.vmap")


def _raw_key_shape() -> tuple[int, ...]:
    """Shape of a key of jax.random.PRNGKey; functions that draw numbers know no other implementation's."""
    return _key_shape(jax.config.jax_default_prng_impl)


@cache
def _key_shape(implementation: str) -> tuple[int, ...]:
    return jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=implementation))).shape


def number_array(name: str, value: object, shape: tuple[int, ...] | None = None) -> Array:
    """A number, or numbers that broadcast to `shape`, as an array; None asks for no shape.

    Raises:
        InputError: truth values, complex numbers, another shape.
    """
    array = array_of(name, value)
    if array.dtype == bool or jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise InputError(f"{name} is {array.dtype}: give real numbers")
    if shape is not None and not _fits(array.shape, shape):
        wanted = f"one for all, or shape {shape}" if shape else "one number"
        raise InputError(f"{name} has shape {array.shape}: give {wanted}")
    return array


def _fits(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def marked(valid: Array, result: PyTree) -> PyTree:
    """The result where it is valid; NaN in its floating-point leaves elsewhere. Its derivative there is 0."""

    def mark(leaf: Array) -> Array:
        return jnp.where(valid, leaf, jnp.nan) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf

    return jax.tree.map(mark, result)


def floats(*values: Array) -> tuple[Array, ...]:
    """The values as float32 arrays, or as float64 where one of them is float64 and JAX's x64 mode is on."""
    wide = any(getattr(value, "dtype", None) == np.float64 for value in values)
    dtype = jnp.result_type(float) if wide else jnp.float32
    return tuple(jnp.asarray(value, dtype) for value in values)


def broadcast(**values: Array) -> tuple[Array, ...]:
    """`floats`, broadcast against one another.

    Raises:
        InputError: their shapes do not fit; it names them.
    """
    arrays = floats(*(number_array(name, value) for name, value in values.items()))
    shapes = [array.shape for array in arrays]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError as error:
        listed = ", ".join(f"{name} has shape {own}" for name, own in zip(values, shapes, strict=True))
        raise InputError(f"{listed}: give shapes that broadcast") from error
    return tuple(jnp.broadcast_to(array, shape) for array in arrays)


def check_interval(name: str, value: Array, low: float, high: float) -> None:
    """Refuse a concrete number outside [low, high], and NaN; a traced one is not checked.

    Infinity is no number here: an interval up to infinity holds the finite ones.

    Raises:
        InputError: `value` holds such a number, or none at all.
    """
    array = number_array(name, value)
    if is_traced(array):
        return
    array = np.asarray(array, np.float64)
    outside = ~((array >= low) & (array <= high) & np.isfinite(array))
    if outside.any():
        ends = f"a value from {low:g} to {high:g}" if high < np.inf else f"a finite value of {low:g} or more"
        raise InputError(f"{name} is {array[outside].flat[0]:g}: give {ends}")


def in_interval(value: Array, low: float, high: float) -> Array:
    """Whether each number lies in [low, high] and is finite: what `check_interval` asks for, of traced numbers."""
    return (value >= low) & (value <= high) & (jnp.abs(value) < jnp.inf)


def check_above(name: str, value: Array, bound: float) -> None:
    """Refuse a concrete number that is not finite and above `bound`; a traced one is not checked.

    Raises:
        InputError: `value` holds such a number.
    """
    array = number_array(name, value)
    if is_traced(array):
        return
    array = np.asarray(array, np.float64)
    outside = ~((array > bound) & np.isfinite(array))
    if outside.any():
        raise InputError(f"{name} is {array[outside].flat[0]:g}: give a finite value above {bound:g}")


def check_distribution(name: str, value: Array) -> None:
    """Refuse concrete rows that are not probabilities over two classes or more: negative, or a sum off 1 by 1e-4.

    Raises:
        InputError: `value` holds such a row, or the last axis is missing.
    """
    if np.ndim(array_of(name, value)) == 0 or np.shape(value)[-1] < 2:
        raise InputError(f"{name} holds no class axis of two or more: give probabilities, [p, 1 - p] for two classes")
    check_interval(name, value, 0, 1 + 1e-4)
    if is_traced(value):
        return
    sums = np.sum(np.asarray(value, np.float64), axis=-1)
    if np.any(np.abs(sums - 1) > 1e-4):
        worst = np.ravel(sums)[np.argmax(np.abs(sums - 1))]
        raise InputError(f"{name} sums to {worst:g} over the classes: divide each row by its sum")


def is_distribution(rows: Array) -> Array:
    """Whether each row [..., classes] is what `check_distribution` asks for, of traced rows."""
    return jnp.all((rows >= 0) & (rows <= 1 + 1e-4), axis=-1) & (jnp.abs(jnp.sum(rows, axis=-1) - 1) <= 2e-4)


def check_finite(name: str, value: Array) -> None:
    """Refuse concrete NaN and infinite numbers.

    Raises:
        InputError: `value` holds one.
    """
    array = number_array(name, value)
    if not is_traced(array) and not np.all(np.isfinite(np.asarray(array, np.float64))):
        raise InputError(f"{name} holds NaN or infinite numbers: give finite ones")


def check_choice(name: str, value: object, choices: Collection) -> None:
    """Refuse what is none of the choices.

    Raises:
        InputError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | str | np.integer) or value not in choices:
        raise InputError(f"{name} is {shown_value(value)}: choose one of {', '.join(map(str, choices))}")
