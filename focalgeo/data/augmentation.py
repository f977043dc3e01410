"""Random changes of training images: NumPy draws them, the compiled training step makes them."""

from collections.abc import Callable
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo.types import Array

PADDING = 4  # pixels on every side, as the papers' published code has it
Changes = dict[str, Array]  # what is drawn for each image, leaves [examples, ...]


class Augmentation(NamedTuple):
    """draw(rng, n) -> the changes of n images; apply(x, changes) -> the changed images, for jit."""

    draw: Callable[[np.random.Generator, int], Changes]
    apply: Callable[[Array, Changes], Array]


def draw_crop_flip(rng: np.random.Generator, n: int, *, padding: int = PADDING) -> Changes:
    """The changes that `crop_flip` makes: all offsets are drawn first, then all coins.

    Returns:
        offsets int32 [n, 2], uniform on 0..2*padding; mirrored bool [n], True with probability 1/2.
    """
    offsets = rng.integers(0, 2 * padding + 1, (n, 2))
    return {"offsets": offsets.astype(np.int32), "mirrored": rng.random(n) < 0.5}


def crop_flip(x: Array, changes: Changes, *, padding: int = PADDING) -> Array:
    """Each image padded with zeros, cropped to its own size at its offset, and mirrored left-right if so drawn.

    Args:
        x: [examples, height, width, channels], any dtype, before normalisation (so the border is black).
        changes: of `draw_crop_flip` with the same padding.
        padding: pixels on every side, 0 or more.

    Returns:
        An array of the shape and dtype of x.

    Accuracy:
        exact, held against an image-by-image oracle by tests/data/test_augmentation.py.

    Source:
        Mukhoti et al., arXiv 2002.09437, App. D and its published code (padding 4).
    """
    padded = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))

    def one(image: Array, offset: Array, mirrored: Array) -> Array:
        crop = jax.lax.dynamic_slice(image, (offset[0], offset[1], jnp.zeros_like(offset[0])), x.shape[1:])
        return jnp.where(mirrored, crop[:, ::-1], crop)

    return jax.vmap(one)(padded, changes["offsets"], changes["mirrored"])


AUGMENTATIONS: MappingProxyType[str, Augmentation] = MappingProxyType(
    {
        "none": Augmentation(lambda rng, n: {}, lambda x, changes: x),
        "crop_flip": Augmentation(draw_crop_flip, crop_flip),
    }
)
