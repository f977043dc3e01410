"""Random augmentation of training images: sampled by NumPy, applied inside the compiled training step.

It is applied to arrays of NumPy and of JAX alike, so that this package loads without JAX.
"""

from collections.abc import Callable
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped

from focalgeo.types import Array

PADDING = 4  # pixels on every side, as the papers' published code has it
Changes = dict[str, Array]  # the random numbers of each image, leaves [examples, ...]


class Augmentation(NamedTuple):
    """sample(rng, n) -> the changes of n images; apply(x, changes) -> the changed images, also under jit."""

    sample: Callable[[np.random.Generator, int], Changes]
    apply: Callable[[Array, Changes], Array]


def sample_crop_flip(rng: np.random.Generator, n: int, *, padding: int = PADDING) -> Changes:
    """The changes that `crop_flip` makes: all offsets are sampled first, then all coins.

    Returns:
        offsets int32 [n, 2], uniform on 0..2*padding; mirrored bool [n], True with probability 1/2.
    """
    offsets = rng.integers(0, 2 * padding + 1, (n, 2))
    return {"offsets": offsets.astype(np.int32), "mirrored": rng.random(n) < 0.5}


def crop_flip(
    x: Shaped[Array, "examples height width channels"], changes: Changes, *, padding: int = PADDING
) -> Shaped[Array, "examples height width channels"]:
    """Each image padded with zeros, cropped to its own size at its offset, and mirrored left-right where told to.

    Args:
        x: [examples, height, width, channels], any dtype, before normalisation (so the border is black).
        changes: of `sample_crop_flip` with the same padding.
        padding: pixels on every side, 0 or more.

    Returns:
        An array of the shape and dtype of x.

    Accuracy:
        exact, held against an image-by-image oracle by tests/data/test_augmentation.py.

    Source:
        Mukhoti et al., arXiv 2002.09437, App. D and its published code (padding 4).
    """
    n, height, width, _ = x.shape
    across = np.arange(width, dtype=np.int32)[None]
    mirrored = changes["mirrored"].astype(np.int32)[:, None]
    across = across + mirrored * (np.int32(width - 1) - np.int32(2) * across)
    rows = changes["offsets"][:, :1] + np.arange(-padding, height - padding, dtype=np.int32)[None]
    columns = changes["offsets"][:, 1:] + across - np.int32(padding)
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    images = np.arange(n, dtype=np.int32)[:, None, None]
    pixels = x[images, rows.clip(0, height - 1)[:, :, None], columns.clip(0, width - 1)[:, None, :]]
    return pixels * inside[..., None].astype(x.dtype)


AUGMENTATIONS: MappingProxyType[str, Augmentation] = MappingProxyType(
    {
        "none": Augmentation(lambda rng, n: {}, lambda x, changes: x),
        "crop_flip": Augmentation(sample_crop_flip, crop_flip),
    }
)
