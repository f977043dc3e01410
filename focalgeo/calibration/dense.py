"""Dense outputs, as of segmentation: fits and metrics by sums over images, of which one is in memory at a time."""

import warnings
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

from focalgeo import checks
from focalgeo.calibration import binning, fits, maps, metrics, resampling
from focalgeo.calibration.clusters import Clusters
from focalgeo.calibration.comparison import Choice, Comparison
from focalgeo.calibration.methods import METHODS, ConvergenceWarning, Fitted
from focalgeo.calibration.metric_rows import fit_rows
from focalgeo.calibration.resampling import PairedDifference
from focalgeo.rows import Difference, Metric, Row, finite
from focalgeo.types import MOST_RESAMPLES, Array, Estimate, InputError

_START_PIXELS = 2_000  # of an image, on which the fit begins
_STEP = 1e-5  # of log T, after which there is none: the steps before it leave an error of its square
_MOST_STEPS = 8  # passes over all pixels; two or three are usual
_MEANS = (metrics.accuracy, metrics.nll, metrics.brier)
_NAMES = ("accuracy", "nll", "brier", "ece")
_AS_GIVEN = {"split": "test", "method": "uncalibrated"}
_SCALED = {"split": "test", "method": "temperature_scaling", "criterion": "nll"}


class Dense(NamedTuple):
    """Temperature scaling fitted on val, and metrics on test, by name, with intervals that draw whole images."""

    fitted: Fitted
    before: dict[str, Estimate]  # of the outputs as given: accuracy, nll, brier, ece
    after: dict[str, Estimate]
    difference: dict[str, PairedDifference]  # after less before
    n: int  # pixels of val that count

    @property
    def comparison(self) -> Comparison:
        """What `compare` gives of outputs that are no images: rows, fits and the choice of the one method there is."""
        rows: list[Row] = [*fit_rows([self.fitted], n=self.n)]
        for name, (difference, _, *numbers) in self.difference.items():
            for estimates, tags in ((self.before, _AS_GIVEN), (self.after, _SCALED)):
                value, _, *ends_and_n = estimates[name]
                rows.append(finite(Metric(name, value, *ends_and_n, **tags)))
            rows.append(
                finite(Difference(f"{name}_difference", difference, *numbers, **_SCALED, against="uncalibrated"))
            )
        return Comparison(rows, [self.fitted], Choice(self.fitted, self.fitted, {}), [], [], {})


def dense(
    val: tuple,
    test: tuple,
    *,
    class_axis: int = -1,
    ignore_label: int | Collection[int] | None = None,
    num_bins: int = 15,
    num_resamples: int = 1000,
    seed: int = 0,
) -> Dense:
    """Temperature scaling of the outputs of every pixel, fitted by NLL on val and measured on test.

    The fit begins with that of every m-th pixel; Newton's steps on the NLL of all pixels follow, whose slope and
    curvature in log T are sums over images. Metrics are of sums over images too, so memory holds one image in float32
    and some arrays of its size, however many there are.

    Args:
        val: (logits, labels), float [images, ..., classes] and int [images, ...]; each an array, or the path of an
            .npy file, of which one image at a time is read.
        test: The same of other images.
        class_axis: Axis of the classes in logits: 1 for [images, classes, height, width].
        ignore_label: Pixels with this label, or one of these, count for nothing.
        num_bins: Of the ECE, of equal width.
        num_resamples: Of the images, from 2 to 100,000.
        seed: Of the resamples.

    Returns:
        Dense. Intervals are those of `bootstrap` with images as clusters. T is that of a fit of all pixels at once
        within 1e-4 relative, and the metrics are theirs within 1e-5 (tests/calibration/test_dense.py).
    """
    checks.count("num_resamples", num_resamples, 2, MOST_RESAMPLES)
    read = partial(_images, class_axis=class_axis, ignore_label=ignore_label)
    fitted, num_pixels = _fitted(partial(read, *val))
    if not fitted.converged:
        warnings.warn(f"temperature scaling: {fitted.why_not_converged}", ConvergenceWarning, stacklevel=2)
    if _opened(test[0]).shape[class_axis] != fitted.num_classes:
        raise InputError(f"test has another number of classes than the {fitted.num_classes} of val: give one network's")
    temperatures = np.array([1, fitted.params["temperature"]], np.float32)
    sums = np.array([_sums(*image, temperatures, num_bins=num_bins) for image in read(*test)], float)
    counts = np.random.default_rng(seed).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), num_resamples)
    values, draws = _metrics(sums.sum(axis=0)), _metrics(np.tensordot(counts, sums, 1))
    n = sums[:, 0, 0]
    options = {"num_examples": int(n.sum()), "clusters": Clusters.of(None, np.arange(len(n)), n)}
    result = Dense(fitted, {}, {}, {}, num_pixels)
    for name, (first, second) in values.items():
        of_first, of_second = draws[name].T
        result.before[name] = resampling.estimated(first, of_first, **options)
        result.after[name] = resampling.estimated(second, of_second, **options)
        result.difference[name] = resampling.compared(second - first, of_second - of_first, **options)
    return result


def _fitted(read):
    """The fit of some pixels of each image, then Newton's steps on all; and the number of these."""
    few, num_pixels = [], 0
    for image in read():
        few.append([leaf[:: 1 + len(leaf) // _START_PIXELS] for leaf in image])
        num_pixels += int(image.weight.sum())
    start = fits.temperature_fit(*map(np.concatenate, zip(*few, strict=True)))

    def slopes(point):
        return sum(fits.temperature_sums(point, *image)[:2] for image in read())

    point, converged = np.log(start.temperature), start.converged
    if converged:
        newton = optimize.root_scalar(slopes, x0=float(point), fprime=True, xtol=_STEP, maxiter=_MOST_STEPS)
        point, converged = newton.root, newton.converged
    params = {"temperature": np.exp(np.float32(point)), "converged": np.asarray(converged)}
    return Fitted(METHODS["temperature_scaling"], "nll", params, few[0][0].shape[1]), num_pixels


@partial(jax.jit, static_argnames="num_bins")
def _sums(rows, labels, weight, temperatures, *, num_bins):
    """Sums over pixels at each temperature: their number, of what is averaged, and in the bins of an ECE."""

    def sums(temperature):
        log_probs = maps.temperature_scaling(rows, temperature)
        means = [1, *(mean(log_probs, labels, mask=weight) for mean in _MEANS)]
        events = binning.top_label(checks.Examples(log_probs, labels, weight))
        return jnp.concatenate([jnp.sum(weight) * jnp.stack(means), binning.residual_sums(*events, num_bins)])

    return jax.lax.map(sums, temperatures)


def _metrics(sums):
    """The metrics by name, of sums [..., 4 + bins]."""
    parts = np.moveaxis(sums, -1, 0)
    totals = [*parts[1:4], np.abs(parts[4:]).sum(axis=0)]
    return {name: total / parts[0] for name, total in zip(_NAMES, totals, strict=True)}


def _images(logits, labels, *, class_axis, ignore_label) -> Iterator[checks.Examples]:
    """The pixels of each image that has any that count."""
    shape, like = list(_opened(logits).shape), _opened(labels).shape
    classes = shape.pop(class_axis) if -len(shape) <= class_axis < len(shape) else "no"
    if tuple(shape) != like:
        raise InputError(
            f"logits are {shape} by {classes} classes, labels {like}: name the classes' axis, class_axis=1"
        )
    some = False
    for index in range(like[0]):
        rows, truth = np.asarray(_opened(logits)[index], np.float32), np.asarray(_opened(labels)[index]).ravel()
        rows = np.moveaxis(rows, class_axis - (class_axis > 0), -1).reshape(-1, classes)
        counted = ~np.isin(truth, () if ignore_label is None else ignore_label)
        if counted.any():
            some = True
            yield checks.predicted_logits(rows, truth, counted)
    if not some:
        raise InputError(f"no pixel of {like} has another label than {ignore_label}: give some that count")


def _opened(source: Array | str | Path) -> Array:
    """The array, or that of a file mapped anew: a map that stays open keeps what has been read in memory."""
    if not isinstance(source, str | Path):
        return np.asarray(source)
    if Path(source).suffix != ".npy":
        raise InputError(f"{source} is no .npy, which alone is read in parts: save each array by numpy.save")
    try:
        return np.load(source, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise InputError(f"{source} cannot be read ({error}): check the path, or write it again") from error
