"""Dense outputs, as of segmentation: fits and metrics by sums over images, of which one is in memory at a time."""

import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

from focalgeo import checks, files
from focalgeo.calibration import blocks, maps
from focalgeo.calibration.examples import Clusters
from focalgeo.calibration.fits import focal
from focalgeo.calibration.methods import METHODS, Fitted
from focalgeo.calibration.metrics import resampling, streaming
from focalgeo.calibration.study import comparison, metric_rows, suspicions
from focalgeo.rows import Difference, Metric, finite
from focalgeo.types import MOST_RESAMPLES, Array, DataWarning, InputError

_START_PIXELS = 2_000  # of an image, on which the fit begins
_STEP = 1e-5  # of log T, after which there is none: the steps before it leave an error of its square
_MOST_STEPS = 8  # passes over all pixels; two or three are usual
_NAMES = ("accuracy", "nll", "brier", "ece")
_AS_GIVEN = {"split": "test", "method": "uncalibrated"}
_SCALED = {"split": "test", "method": "temperature_scaling", "criterion": "nll"}


def dense(
    val: tuple,
    test: tuple,
    *,
    class_axis: int = -1,
    ignore_label: int | Sequence[int] | None = None,
    num_bins: int = 15,
    num_resamples: int = 1000,
    seed: int = 0,
) -> comparison.Comparison:
    """Temperature scaling of the outputs of every pixel, fitted by NLL on val and measured on test.

    The fit begins with every m-th pixel. Newton's steps on the NLL of all pixels follow; its slope and curvature in
    log T are sums over images, and so are the metrics. So memory holds one image in float32 and some arrays of its
    size, however many images there are.

    Args:
        val: (logits, labels), float [images, ..., classes] and int [images, ...]; each an array, or the path of an
            .npy file, of which one image at a time is read.
        test: The same of other images.
        class_axis: Axis of the classes in logits: 1 for [images, classes, height, width].
        ignore_label: Pixels with this label, or one of these, count for nothing.
        num_bins: Bins of the ECE, of equal width.
        num_resamples: Resamples of the images, 2 to 100,000.
        seed: Seed of the resamples.

    Returns:
        Comparison, as of `compare`, with temperature scaling chosen where its fit converged. Intervals are those of
        `bootstrap` with images as clusters. T is that of a fit of all pixels at once within 1e-4 relative, and the
        metrics are theirs within 1e-5 (tests/calibration/test_dense.py).

    Example:
        >>> images, truth = 3 * scores.reshape(4, 5, 15, 3), drawn.reshape(4, 5, 15)
        >>> result = calibration.dense((images[:2], truth[:2]), (images[2:], truth[2:]), num_resamples=100)
        >>> round(result.choice.fitted.searched["temperature"], 1)
        2.3
    """
    checks.count("num_resamples", num_resamples, 2, MOST_RESAMPLES)
    checks.check_bins(num_bins)
    read = partial(_images, class_axis=class_axis, ignored=() if ignore_label is None else ignore_label)
    of_val, of_test = partial(read, "val", *val), partial(read, "test", *test)
    some, others = _some(of_val), _some(of_test)
    suspected = [*suspicions.of_split("val", *some, clustered=True)]
    suspected += suspicions.of_split("test", *others, clustered=True)
    suspected += suspicions.of_both(some[:2], others[:2])
    for sentence in suspected:
        warnings.warn(sentence, DataWarning, stacklevel=2)
    start = focal.temperature_fit(*some)
    point, converged = np.log(start.temperature), start.converged
    if converged:
        # Newton's steps on all pixels, from the fit of some

        def slopes(point):
            return sum(focal.temperature_sums(point, *image)[:2] for image in of_val())

        newton = optimize.root_scalar(slopes, x0=point, fprime=True, xtol=_STEP, maxiter=_MOST_STEPS)
        point, converged = newton.root, newton.converged
    params = {"temperature": np.exp(np.float32(point)), "converged": np.asarray(converged)}
    fitted = Fitted(METHODS["temperature_scaling"], "nll", params, some.rows.shape[1])
    if _opened(test[0]).shape[class_axis] != fitted.num_classes:
        raise InputError(f"test has another number of classes than the {fitted.num_classes} of val: give one network's")
    measured = _metric_rows(of_test, fitted, num_bins, num_resamples, seed)
    methods = [Fitted(METHODS["uncalibrated"], None, {}, fitted.num_classes), fitted]
    refused = {} if fitted.admissible else {fitted.method.name: fitted.why_not_converged}
    chosen = methods[fitted.admissible]
    num_pixels = sum(int(image.weight.sum()) for image in of_val())
    rows = [*metric_rows.fit_rows([fitted], n=num_pixels), *measured]
    return comparison.Comparison(rows, methods, comparison.Choice(chosen, chosen, refused), [], suspected, {})


def _metric_rows(read, fitted, num_bins, num_resamples, seed):
    """Metrics of test uncalibrated and scaled, and their differences, with intervals by resamples of images."""
    of = streaming.make(_NAMES, fitted.num_classes, num_bins)
    temperatures = np.array([1, fitted.params["temperature"]], np.float32)

    @jax.jit
    def of_image(rows, labels, weight):
        """The number of pixels, and at each temperature the state of the metrics."""

        def state(temperature):
            return of.update(of.init(), maps.temperature_scaling(rows, temperature), labels, weights=weight)

        return jnp.sum(weight), jax.lax.map(state, temperatures)

    images = [jax.device_get(of_image(*image)) for image in read()]
    n, sums = (np.array(part, float) for part in zip(*images, strict=True))
    draws = np.random.default_rng(seed).multinomial(len(n), np.full(len(n), 1 / len(n)), num_resamples)
    # resamples of images are sums of their states: no image is read twice
    states = np.tensordot(np.vstack([np.ones(len(n)), draws]), sums, 1).astype(np.float32)
    values = jax.device_get(jax.vmap(jax.vmap(of.compute))(states))  # of all images, then of the resamples
    options = {"num_examples": int(n.sum()), "clusters": Clusters.of(None, np.arange(len(n)), n)}
    for name in _NAMES:
        plain, scaled = values[name].T.astype(float)
        for column, tags in ((plain, _AS_GIVEN), (scaled, _SCALED)):
            value, _, low, high, count = resampling.estimated(column[0], column[1:], **options)
            yield finite(Metric(name, value, low, high, count, **tags))
        difference, _, *numbers = resampling.compared(*((each[0], each[1:]) for each in (scaled, plain)), **options)
        yield finite(Difference(f"{name}_difference", difference, *numbers, **_SCALED, against="uncalibrated"))


def _some(read) -> checks.Examples:
    """Some pixels of each image."""
    few = [[leaf[:: 1 + len(leaf) // _START_PIXELS].copy() for leaf in image] for image in read()]
    return blocks.on_host(checks.Examples(*map(np.concatenate, zip(*few, strict=True))))


def class_count(name: str, logits: tuple[int, ...], labels: tuple[int, ...], class_axis: int) -> int:
    """The length of the class axis of logits of this shape, whose other axes are those of the labels."""
    shape = list(logits)
    classes = shape.pop(class_axis) if -len(shape) <= class_axis < len(shape) else "no"
    if tuple(shape) != labels:
        what = f"{name}: logits are {shape} by {classes} classes with class_axis {class_axis}, labels {labels}"
        raise InputError(f"{what}: name the classes' axis, or fix the shapes")
    return classes


def _images(name, logits, labels, *, class_axis, ignored) -> Iterator[checks.Examples]:
    """The pixels of each image that has any that count; what is wrong is said with the split's name and the image."""
    shape, like = _opened(logits).shape, _opened(labels).shape
    classes = class_count(name, shape, like, class_axis)
    some = False
    for index in range(like[0]):
        rows, truth = np.asarray(_opened(logits)[index], np.float32), np.asarray(_opened(labels)[index]).ravel()
        rows = np.moveaxis(rows, class_axis - (class_axis > 0), -1).reshape(-1, classes)
        counted = ~np.isin(truth, ignored)
        if counted.any():
            some = True
            try:
                image = checks.predicted_logits(rows, truth, counted)
            except InputError as error:
                raise InputError(f"{name}, image {index}: {error}") from error
            yield image
    if not some:
        raise InputError(f"{name}: no pixel of {like} has another label than {ignored}: give some that count")


def _opened(source: Array | str | Path) -> Array:
    """The array, or that of a file mapped anew: a map that stays open keeps what has been read in memory."""
    if not isinstance(source, str | Path):
        return np.asarray(source)
    if Path(source).suffix != ".npy":
        raise InputError(f"{source} is no .npy, which alone is read in parts: save each array by numpy.save")
    with files.reading(source):
        return np.load(source, mmap_mode="r")
