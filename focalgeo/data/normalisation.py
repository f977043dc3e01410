"""Pixels to float32 of about zero mean and unit variance."""

from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from focalgeo.types import Array, InputError, Split


class Normalisation(NamedTuple):
    """x -> (x / scale - mean) / std; mean and std hold one value per channel, or one for all, in units of x / scale."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 255.0


# "digits": mean and deviation over all 1797 images; "unit" maps uint8 to 0..1.
NORMALISATIONS = MappingProxyType(
    {
        "cifar10": Normalisation((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        "digits": Normalisation((0.305,), (0.376,), 16.0),
        "unit": Normalisation((0.0,), (1.0,)),
    }
)


def normalise_images(x: Array, normalisation: Normalisation) -> Array:
    """(x / scale - mean) / std as float32.

    Args:
        x: [..., channels], of NumPy or, also under jit, of JAX.
        normalisation: mean and std of 1 or `channels` values; std and scale positive.

    Raises:
        InputError: another number of values, or a std or scale that is not positive.

    Accuracy:
        2e-6 absolute for uint8 and the constants above, held against float64 by tests/data/test_batching.py.

    Source:
        the "cifar10" constants: published code of Mukhoti et al., arXiv 2002.09437.
    """
    mean, std, scale = (np.asarray(value, np.float64) for value in normalisation)
    if mean.size not in (1, x.shape[-1]) or std.size not in (1, x.shape[-1]):
        raise InputError(
            f"normalisation has {mean.size} means and {std.size} deviations for images of {x.shape[-1]} channels: "
            "give one per channel, or one for all"
        )
    if not (std > 0).all() or not scale > 0:
        raise InputError(f"normalisation needs positive std and scale: got std={normalisation.std}, scale={scale}")
    factor, shift = (_of_channels(value, x.ndim) for value in (1 / (scale * std), mean / std))
    return x.astype(np.float32) * factor - shift


def _of_channels(value: np.ndarray, ndim: int) -> np.ndarray:
    return value.astype(np.float32).reshape((1,) * (ndim - 1) + (-1,))


def measure_normalisation(split: Split, *, scale: float = 255.0) -> Normalisation:
    """Mean and standard deviation of every channel over all pixels of the split (give it train, never test).

    Args:
        split: x uint8 [examples, height, width, channels].
        scale: what the largest pixel value stands for; 255 for images, 16 for digits.

    Raises:
        InputError: a channel that is constant over the whole split.
    """
    counts = np.stack([np.bincount(split.x[..., c].ravel(), minlength=256) for c in range(split.x.shape[-1])])
    share = counts / counts.sum(axis=1, keepdims=True)
    values = np.arange(share.shape[1]) / scale
    mean = share @ values
    std = np.sqrt(np.sum(share * (values - mean[:, None]) ** 2, axis=1))
    if not (std > 0).all():
        raise InputError(
            f"channel {int(np.argmin(std))} has the same value in every pixel: normalise by hand or drop it"
        )
    return Normalisation(tuple(mean.tolist()), tuple(std.tolist()), scale)
