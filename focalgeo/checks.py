"""The one door: what public functions ask of their arguments, at their top and nowhere below; advice when they refuse.

Shapes and types are asked while a function is traced too, values where they are concrete. Each function raises
InputError, a line that names the argument and what is wrong with it.
"""

import functools
import inspect
import warnings
from collections.abc import Callable, Collection, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Shaped

from focalgeo.types import (
    MOST_BINS,
    OFF_ONE,
    Array,
    InputError,
    ProbabilityWarning,
    PyTree,
    RunError,
    count,
    is_one_hot,
    look_like_probabilities,
    shown,
)

Scalar = Float[Array, ""] | float
Numbers = Float[Array, "*#batch"] | float  # scalars or arrays that broadcast against one another, results [*batch]
Rows = Float[Array, "*#batch classes"] | Sequence  # a last axis of classes, or (nested) lists of numbers
Batch = Float[Array, "*batch"]

_MEND = "of logits give jax.nn.log_softmax, of probabilities calibration.log_probabilities"
_NAMES = (
    "give class numbers in the order of the columns, of names in sorted order np.unique(labels, return_inverse=True)[1]"
)
_MANY = 30  # rows in [0, 1], as those of logits hardly ever are
SHAPES = {  # number of axes of scores -> what to give in place of them
    1: "of log-odds give jax.nn.log_softmax(np.c_[0 * {0}, {0}]), of P(1) calibration.log_probabilities(np.c_[1 - {0},"
    " {0}])",
    3: "of an ensemble [members, examples, classes] give jax.nn.logsumexp(jax.nn.log_softmax({0}), axis=0) -"
    " np.log(len({0})); of several labels [labels, examples, 2] calibration.binary_outputs(({0}[..., 1] -"
    " {0}[..., 0]).T, labels)",
}


def is_traced(*values: PyTree) -> bool:
    """Whether any leaf is a tracer, whose value is known only when a compiled function runs."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


def check_array(name: str, value: Array, *, shape: tuple = (...,), dtype: type = np.generic) -> None:
    """Refuse arrays of another shape (None for any size, ... for any axes) or kind of numbers, as jnp.floating."""
    array = value if hasattr(value, "dtype") else np.asarray(value)
    if not jnp.issubdtype(array.dtype, dtype):
        raise InputError(f"{name}: has type {array.dtype} but expected {dtype.__name__}")
    sizes = " ".join({None: "_", ...: "..."}.get(size, str(size)) for size in shape)
    if not isinstance(array, Shaped[Any, sizes]):
        raise InputError(f"{name}: has shape {array.shape} but expected {shape}".replace("Ellipsis", "..."))


def array_of(name: str, value: object) -> Array:
    """The value as an array of numbers or truth values: arrays as they are, numbers and nested lists by NumPy."""
    try:
        known = isinstance(getattr(value, "dtype", None), np.dtype)  # pandas has types of its own
        array = value if known else (jnp if is_traced(value) else np).asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{name} are no array: give numbers, in lists of one length") from error
    if array.dtype != bool and not jnp.issubdtype(array.dtype, jnp.number):
        mend = _NAMES if name == "labels" else "give numbers"
        raise InputError(f"{name} are {'missing' if value is None else array.dtype}: {mend}")
    if array.dtype == np.longdouble:  # which JAX has not
        array = array.astype(np.float64)
    return array if is_traced(array) or array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def number_array(name: str, value: object, shape: tuple[int, ...] | None = None) -> Array:
    """A real number, or numbers that broadcast to `shape`, as an array; None asks for no shape."""
    array = array_of(name, value)
    if array.dtype == bool or jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise InputError(f"{name} is {array.dtype}: give real numbers")
    if shape is not None:
        ends = zip(array.shape[::-1], shape[::-1], strict=False)
        if array.ndim > len(shape) or not all(axis in (1, size) for axis, size in ends):
            raise InputError(f"{name} has shape {array.shape}: give one number, or shape {shape}")
    return array


def floats(*values: Array) -> tuple[Array, ...]:
    """The values as float32 arrays, or as float64 where one of them is float64 and JAX's x64 mode is on."""
    # A Python number has no type of its own: float64 is for those who give an array of it.
    wide = any(getattr(value, "dtype", None) == np.float64 for value in values)
    dtype = jnp.result_type(float) if wide else jnp.float32
    return tuple(jnp.asarray(value, dtype) for value in values)


def broadcast(**values: Array) -> tuple[Array, ...]:
    """`floats`, broadcast against one another."""
    arrays = floats(*(number_array(name, value) for name, value in values.items()))
    try:
        return tuple(jnp.broadcast_arrays(*arrays))
    except ValueError as error:
        shapes = ", ".join(f"{name} has shape {array.shape}" for name, array in zip(values, arrays, strict=True))
        raise InputError(f"{shapes}: give shapes that broadcast") from error


def score_rows(name: str, scores: object, *, shape: tuple = (..., None)) -> Array:
    """Logits, log-probabilities or probabilities [..., classes], two classes or more, as an array of floats."""
    array = array_of(name, scores)
    if not hasattr(scores, "dtype") and jnp.issubdtype(array.dtype, jnp.integer):
        array = array.astype(np.float32)  # [[2, 0]] is a list of numbers; an array of integers is another thing
    is_column = array.shape[-1:] < (2,) or (array.ndim == 1 and shape[-1] not in (None, *array.shape))
    if is_column or (shape[0] is None and array.ndim in SHAPES):
        mend = SHAPES[1 if is_column else array.ndim].format(name)
        raise InputError(f"{name} have shape {array.shape}: give two classes or more for each example; {mend}")
    check_array(name, array, shape=shape, dtype=jnp.floating)
    return array


def label_array(
    labels: object, scores: Array, name: str = "logits", *, counted: Array | None = None, soft: bool = False
) -> Array:
    """Class numbers, one for each row of `scores`; those that a mask `counted` leaves out may be any number.

    Of one-hot rows [..., classes] their classes are taken; where `soft`, rows that sum to 1 stay shares of the classes.
    Of 32 bits or more: XLA compares integers in the array's own type, where 8 bits do not hold the class 300.
    """
    array, classes = array_of("labels", labels), scores.shape[-1]
    if array.shape == scores.shape:
        if not is_traced(array) and is_one_hot(np.asarray(array)):
            array = np.asarray(array).argmax(axis=-1)
        elif soft:
            check_distribution("labels", array if is_traced(array, counted) else _counted(array, counted))
            return array
    try:
        dtype = jnp.integer if array.size else np.generic
        check_array(f"labels for {name} {scores.shape}", array, shape=scores.shape[:-1], dtype=dtype)
    except InputError as error:
        if is_traced(array):
            raise
        raise InputError(f"{error}: {label_advice(np.asarray(array), scores.shape)}") from error
    if not is_traced(array, counted):
        values = np.asarray(array)
        outside = (values < 0) | (values >= classes)
        outside &= True if counted is None else np.asarray(counted) > 0
        if outside.any():
            first = np.argwhere(outside)[0].tolist()
            mend = f"give labels from 0 to {classes - 1}; {label_advice(values, scores.shape)}"
            raise InputError(f"labels{first or ''} is {values[outside][0]}: {mend}")
    return array.astype(np.int32) if not array.size or jnp.iinfo(array.dtype).bits < 32 else array


def mask_array(mask: object, shape: tuple[int, ...]) -> Array | None:
    """A mask of this shape, truth values; None stays None.

    A traced one may hold how often each example counts: `bootstrap` hands that to metrics that know mask= alone.
    """
    if mask is None:
        return None
    array = array_of("mask", mask)
    check_array(f"mask for labels {shape}", array, shape=shape)
    if array.dtype != bool and not is_traced(array):
        mend = "give truth values, or how often each example counts as weights="
        raise InputError(f"mask holds {array.dtype}: {mend}")
    return array


def weight_array(weights: object, shape: tuple[int, ...]) -> Array | None:
    """How often each example counts, 0 or more, of this shape; None stays None."""
    if weights is None:
        return None
    array = array_of("weights", weights)
    check_array(f"weights for labels {shape}", array, shape=shape)
    check_interval("weights", array, 0)
    return array


def take_counts(function: Callable, body: Callable) -> None:
    """Say of the function that it is the body, which takes `mask` and `weights` too."""
    functools.update_wrapper(function, body)
    signature, keyword = inspect.signature(body), inspect.Parameter.KEYWORD_ONLY
    options = {name: inspect.Parameter(name, keyword, default=None) for name in ("mask", "weights")}
    parameters = {**signature.parameters, **options}
    function.__signature__ = signature.replace(parameters=[*parameters.values()])  # type: ignore[attr-defined]


def weighted_mask(mask: object, weights: object, shape: tuple[int, ...]) -> Array | None:
    """How often each example counts: its weight, where the mask does not leave it out; None where neither is given."""
    mask, weights = mask_array(mask, shape), weight_array(weights, shape)
    if mask is None or weights is None:
        return mask if weights is None else weights
    mask, weights = floats(mask, weights)
    return mask * weights


class Examples(NamedTuple):
    """Rows of scores, labels and weights that have been checked."""

    rows: Float[Array, "examples classes"]  # log-probabilities or logits, float32 or wider
    labels: Array  # int32 [examples]; soft ones float [examples, classes]
    weight: Float[Array, " examples"]  # how often the example counts


def _table(name, rows, labels, mask, weights, soft):
    table = score_rows(name, rows, shape=(None, None))
    if not len(table):
        raise InputError(f"{name} and labels are empty: give at least one example")
    mask = weighted_mask(mask, weights, table.shape[:1] if soft else array_of("labels", labels).shape[:1])
    return table, label_array(labels, table, name, counted=mask, soft=soft), mask


def _counted(table, mask):
    return np.asarray(table) if mask is None else np.asarray(table)[np.asarray(mask) > 0]


def _weighted(rows, labels, mask, space=jnp) -> Examples:
    """The scores as float32 where their type is narrower, as bfloat16 sums stop growing at 256, else as they are."""
    rows, labels = space.asarray(rows), space.asarray(labels)
    rows = rows.astype(jax.dtypes.canonicalize_dtype(np.promote_types(rows.dtype, np.float32)), copy=False)
    weight = space.ones(len(labels), rows.dtype) if mask is None else space.asarray(mask).astype(rows.dtype)
    return Examples(rows, labels.astype(np.int32 if labels.ndim == 1 else rows.dtype), weight)


@np.errstate(under="ignore")
def examples(
    log_probs: object,
    labels: object,
    mask: object = None,
    weights: object = None,
    *,
    num_bins: int = 1,
    soft: bool = False,
) -> Examples:
    """The arguments of a metric. What has weight 0 may hold anything, NaN too.

    Refused is a row whose probabilities do not sum to 1 within 0.01 and what rounding to its type explains.
    """
    check_bins(num_bins)
    table, labels, mask = _table("log_probs", log_probs, labels, mask, weights, soft)
    if not is_traced(table, mask):
        # A log-probability of about -log(classes) is rounded by eps times that, its probability by as large a share.
        total = np.exp(_counted(table, mask).astype(np.float32)).sum(axis=-1)
        tolerance = OFF_ONE + 4 * float(jnp.finfo(table.dtype).eps) * np.log(table.shape[-1])
        wrong = total[~(np.abs(total - 1) <= tolerance)]
        if wrong.size:
            raise InputError(f"log_probs are logs of numbers that sum to {wrong[0]:.4g}, not 1: {_MEND}")
    return _weighted(table, labels, mask)


def predicted_logits(
    logits: object,
    labels: object,
    mask: object = None,
    weights: object = None,
    *,
    soft: bool = False,
    stacklevel: int | None = 3,
) -> Examples:
    """The arguments of a fit or a search, NumPy's unless traced; rows that a mask leaves out are 0, whatever they held.

    Probabilities among logits are asked for, in the line that calls the public function; None asks for none.
    """
    table, labels, mask = _table("logits", logits, labels, mask, weights, soft)
    if not is_traced(table, mask):
        values = finite_logits(_counted(table, mask))
        if not len(values):
            raise InputError("the mask leaves no example: give at least one")
        if stacklevel:
            check_logits("logits", values, refuse=True, stacklevel=stacklevel + 1)
    space = jnp if is_traced(table, labels, mask) else np
    rows, labels, weight = _weighted(table, labels, mask, space)
    if mask is not None:
        rows, labels = (space.where(weight > 0, each.T, 0).T for each in (rows, labels))
    # A label whose class cannot be has an infinite NLL, whatever is fitted.
    if space is np and not rows.min() > -np.inf:
        shares = labels if np.ndim(labels) > 1 else np.arange(rows.shape[1]) == labels[:, None]
        never = ((shares > 0) & (rows == -np.inf)).any(axis=1)
        if never.any():
            what = f"the logit of label {np.argmax(never)} is -inf, a class that cannot be"
            raise InputError(f"{what}: fix one of the two")
    return Examples(rows, labels, weight)


def check_logits(name: str, scores: Array, *, refuse: bool = False, stacklevel: int) -> None:
    """Warn of probabilities [..., classes] where logits belong: two rows in [0, 1] that sum to 1, or 30 in [0, 1].

    Where 30 sum to 1, `refuse` has them refused.
    """
    rows, many = np.asarray(scores), len(scores) >= _MANY
    # equal numbers everywhere are the same as probabilities and as logits
    if not look_like_probabilities(rows, np.inf) or not np.ptp(rows):
        return
    if (certain := look_like_probabilities(rows)) or many:
        mend = f"calibration.log_probabilities({name})"
        if certain and many and refuse:
            raise InputError(f"{name} are probabilities, every row in [0, 1] with the sum 1: give {mend}")
        if not certain:
            of_class_1 = f"calibration.log_probabilities(np.c_[1 - {name}[:, 1], {name}[:, 1]])"
            mend = f"scipy.special.logit({name}.clip(1e-7, 1 - 1e-7))" if rows[..., 0].any() else of_class_1
        what = f"{name} look like probabilities, all in [0, 1]: if they are, give {mend}"
        warnings.warn(what, ProbabilityWarning, stacklevel)


def finite_logits(logits: Array) -> Array:
    """The logits, of which float32 holds each as a finite number, or -inf beside one; traced ones are not asked."""
    if not is_traced(logits):
        with np.errstate(over="ignore"):
            values = np.asarray(logits).astype(np.float32, copy=False)
        finite = np.isfinite(values.max(axis=-1)) & (np.isfinite(values) | (np.asarray(logits) == -np.inf)).all(axis=-1)
        if not finite.all():
            where = f"the first in row {np.argmin(finite)}"
            raise InputError(f"logits of {np.sum(~finite)} examples are not finite, {where}: remove or fix them")
    return logits


def described(leaf: object) -> str:
    """The dtype and shape of an array in words, "float32[3, 4]"; of what is none its type."""
    return f"{getattr(leaf, 'dtype', type(leaf).__name__)}{list(getattr(leaf, 'shape', ()))}"


def check_bins(num_bins: int) -> None:
    """Refuse a number of bins that is none, or so large that a table of it and the examples fills the memory."""
    count("num_bins", num_bins, 1, MOST_BINS)


def prng_key(key: object) -> Array:
    """One PRNG key, of jax.random.key or jax.random.PRNGKey, or that of a seed, a whole number."""
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return jax.random.key(count("key", key, 0, 2**32 - 1))
    # Those of jax.random.PRNGKey are arrays of 2 numbers, or of 4 where the generator is "rbg".
    dtype, shape = getattr(key, "dtype", None), np.shape(key)
    is_new = jnp.issubdtype(dtype or object, jax.dtypes.prng_key)
    if not (shape == () if is_new else dtype == np.uint32 and shape in ((2,), (4,))):
        raise InputError(f"key is {shown(key)}, not one PRNG key: give jax.random.key(seed) or a whole number")
    return key


def _check_all(name, value, holds, ask):
    array = number_array(name, value)
    if not is_traced(array):
        array = np.asarray(array, np.float64)
        wrong = array[~(holds(array) & np.isfinite(array))]
        if wrong.size:
            raise InputError(f"{name} is {wrong[0]:g}: give {ask}")


def check_interval(name: str, value: Array, low: float, high: float = np.inf) -> None:
    """Refuse numbers outside [low, high], and NaN and infinity."""
    ask = f"a value from {low:g} to {high:g}" if high < np.inf else f"a finite value of {low:g} or more"
    _check_all(name, value, lambda array: (array >= low) & (array <= high), ask)


def check_above(name: str, value: Array, bound: float) -> None:
    """Refuse numbers that are not finite and above `bound`."""
    _check_all(name, value, lambda array: array > bound, f"a finite value above {bound:g}")


def check_finite(name: str, value: Array) -> None:
    """Refuse NaN and infinite numbers."""
    _check_all(name, value, lambda array: True, "finite numbers")


def check_distribution(name: str, value: Array, *, off: float = 1e-4) -> None:
    """Refuse rows that are not probabilities over two classes or more: negative, or a sum off 1."""
    rows = score_rows(name, value)
    check_interval(name, rows, 0, 1 + off)
    if not is_traced(rows):
        total = np.sum(np.asarray(rows, np.float64), axis=-1)
        wrong = total[np.abs(total - 1) > off]
        if wrong.size:
            raise InputError(f"{name} sums to {wrong[0]:g} over the classes: divide each row by its sum")


def check_choice(name: str, value: object, choices: Collection) -> None:
    """Refuse what is none of the choices."""
    if not isinstance(value, Integral | str) or value not in choices:
        raise InputError(f"{name} is {value!r:.60}: choose one of {', '.join(map(str, choices))}")


def names(what: str, values: Collection, choices: Collection) -> tuple[str, ...]:
    """A list of names, each one of the choices."""
    if isinstance(values, str) or not np.iterable(values):
        raise InputError(f"{what} is {shown(values)}: give a list of names")
    for name in values:
        if name not in [*choices]:
            raise InputError.of_choice(what, shown(name), choices)
    return tuple(values)


def check_function(name: str, value: Any) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise InputError(f"{name} is {shown(type(value).__name__)}: give a function")


def check_params(name: str, params: PyTree) -> None:
    """Refuse a tree that holds no number, anything but floating-point arrays, or flax's statistics beside weights."""
    # A flax.nnx.Variable is a node around its array, so that leaves alone would not tell weights from statistics.
    nodes = jax.tree_util.tree_leaves_with_path(params, is_leaf=lambda node: bool(_kinds(node)))
    paths = [[jax.tree_util.keystr((key,), simple=True) for key in path] for path, _ in nodes]
    beside = {(*path[:i],) for path in paths for i, key in enumerate(path) if key == "params"}
    for path, (_, node) in zip(paths, nodes, strict=True):
        of = [key for i, key in enumerate(path) if key == "batch_stats" or (key != "params" and (*path[:i],) in beside)]
        of += [type(node).__name__] if _kinds(node) and "Param" not in _kinds(node) else []
        if of:
            mend = 'give variables["params"], or what nnx.split(model, nnx.Param, ...) has of nnx.Param'
            where = f"{name}: {'/'.join(path)} is of {of[0]}"
            raise InputError(f"{where}, no weights, as batch_stats are: {mend}, and close over the rest")
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(getattr(leaf, "dtype", bool), jnp.floating):
            where = f"{name}{jax.tree_util.keystr(path)}"
            raise InputError(f"{where} is {described(leaf)}: give floating-point arrays, and close over all else")
    if not any(leaf.size for leaf in jax.tree.leaves(params)):
        raise InputError(f"{name} holds no number: give the arrays that are differentiated")


def _kinds(node):
    """The names of a flax.nnx.Variable's classes; of all else none."""
    names = {kind.__name__ for kind in type(node).__mro__ if kind.__module__.startswith("flax.nnx")}
    return names if "Variable" in names else set()


def check_alike(name: str, tree: PyTree, other: str, like: PyTree) -> None:
    """Refuse a tree that has not the structure, shapes and dtypes of `like`, which messages call `other`."""

    def layout(tree):
        leaves, structure = jax.tree.flatten(tree)
        return structure, [(np.shape(leaf), getattr(leaf, "dtype", None)) for leaf in leaves]

    if layout(tree) != layout(like):
        first, second = (shown(jax.tree.map(described, side), most=200) for side in (tree, like))
        raise InputError(f"{name} is {first}, {other} {second}: give the same structure, shapes and dtypes")


def scalar(loss):
    """`loss`, which refuses at trace time to return anything but one floating-point number."""
    check_function("loss", loss)

    def checked(params):
        value = loss(params)
        if getattr(value, "shape", None) != () or not jnp.issubdtype(value.dtype, jnp.floating):
            raise InputError(f"the loss returns {described(value)}: give one floating-point number, a mean or a sum")
        return value

    return checked


def check_finite_tree(name: str, tree: PyTree) -> None:
    """Refuse NaN and infinities in concrete arrays by a RunError that names the leaf."""
    if is_traced(tree) or all_finite(tree):
        return
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not np.isfinite(leaf).all():
            where = f"{name}{jax.tree_util.keystr(path)}"
            raise RunError(f"{where} is not finite; look at the loss, the data and the parameters there")


@jax.jit
def all_finite(tree: PyTree) -> Array:
    """Whether every number in a tree of at least one array is finite, by one program that is compiled fast."""
    # 0 times infinity is NaN as 0 times NaN is, and one NaN makes the sum NaN, where a sum of the numbers may overflow.
    zeros = (
        jnp.sum(0 * leaf, dtype=jnp.float32)
        for leaf in jax.tree.leaves(tree)
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    )
    return jnp.isfinite(sum(zeros))


def label_advice(labels: np.ndarray, shape: tuple[int, ...]) -> str:
    """What to give in place of labels that are no class numbers, for scores of this shape; the end of an error."""
    *rows, classes = shape
    if labels.shape == shape and labels.dtype.kind in "biuf":
        if np.isin(labels, (-1, 0, 1)).all():
            return "these rows are multi-label: give --task=multilabel, or in Python calibration.binary_outputs"
        if (labels >= 0).all() and (abs(labels.sum(axis=-1, dtype=np.float64) - 1) < OFF_ONE).all():
            return "these are soft labels, which metrics nll and brier and fits by NLL take: give classes here"
    if labels.shape != tuple(rows):
        if labels.shape == (*rows, 1):
            return "give labels[..., 0]"
        if labels.shape == (classes,) and len(rows) == 1:
            return (
                f"the scores seem to have classes first: give their transpose, {labels.size} rows of {rows[0]} classes"
            )
        return f"give one class number for each row, {list(rows)} of them"
    if labels.dtype.kind not in "iu":
        return _of_kind(labels)
    held = np.unique(labels)
    outside = held[(held < 0) | (held >= classes)]
    if set(held.tolist()) <= {-1, 1} and classes == 2:
        return "of -1 and 1 give (labels + 1) // 2"
    if held[0] >= 1 and held[-1] == classes:
        return "if they count from 1, give labels - 1"
    if outside.size == 1:
        return f"if {outside[0]} stands for no label, leave out these {np.sum(labels == outside)} rows"
    return "give labels in the order of the columns, or all columns"


def _of_kind(labels):
    if labels.dtype.kind in "US":
        return _NAMES
    if labels.dtype.kind not in "bf":
        return "give whole numbers"
    if not np.isfinite(labels).all():
        return f"leave out the {np.sum(~np.isfinite(labels))} rows without a label"
    if (labels == np.round(labels)).all():
        return "give labels.astype(int)"
    return "fractions are no classes: give soft labels as shares of all classes; targets of a regression are not served"


def probability_advice(probs: np.ndarray) -> str:
    """What to give in place of rows that are negative or do not sum to 1, or of one column that leaves [0, 1]."""
    is_column, most = probs.ndim == 1, probs.max()
    sums = probs if is_column else probs.sum(axis=1, dtype=np.float64)
    usual = float(np.median(sums))
    if most <= 0:
        return "these are logarithms: give np.exp(probs), or say --logits-key"
    if np.mean((probs >= 0) & (probs <= 1) if is_column else abs(sums - 1) <= OFF_ONE) > 0.5:
        return "fix these, or leave them out"
    if probs.min() < 0 or (is_column and most > 100):
        return "if these are logits, say --logits-key"
    if is_column:
        return "of percents give probs / 100, of logits say --logits-key"
    if usual > 1 + OFF_ONE and (abs(sums / usual - 1) < OFF_ONE).all():
        what = "percents" if abs(usual - 100) < 1 else f"rows that all sum to {usual:.6g}"
        return f"of {what} give probs / {usual:.4g}"
    others = (abs(sums[:, None] - probs - 1) <= OFF_ONE).all(axis=0)
    if others.any():
        return f"without column {np.argmax(others)}, from 0, they do: name those of the classes, --probs-key=A,B"
    if most <= 1:
        return (
            "each class has a probability of its own, as sigmoid and one-vs-rest scores have: of one label a row give"
            " probs / probs.sum(axis=1, keepdims=True), of several labels a row --task=multilabel"
        )
    return "if these are logits, say --logits-key"
