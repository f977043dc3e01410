"""Images: files to uint8 arrays of one size, pixels to float32 of zero mean and unit variance, random augmentation.

Augmentation is sampled by NumPy and applied inside the compiled training step, to arrays of NumPy and of JAX alike, so
that this package loads without JAX.
"""

import io
import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Shaped, UInt8
from PIL import Image

from focalgeo.data.archives import Tell, counter
from focalgeo.files import free_memory
from focalgeo.types import Array, InputError, Split

# What Pillow turns into RGB without loss of range; "I;16", "I" and "F" it would clip at 255.
EIGHT_BIT_MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"})
# Other formats are not tried, whatever the name says: Pillow runs Ghostscript on PostScript.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
FILES_PER_TASK = 256
TASKS_WAITING = 4

File = tuple[str, bytes]


def decode_image(data: bytes, *, where: str, image_size: int | None = None) -> UInt8[np.ndarray, "height width 3"]:
    """One encoded image as uint8 [height, width, 3]; greyscale becomes RGB, transparency is dropped.

    Pixels are taken as they are stored: a camera's note of how it was held (EXIF) turns nothing.

    Args:
        data: the bytes of the file, in one of `FORMATS`.
        where: what the message calls the file.
        image_size: resize to this height and width (bilinear, aspect not kept); None keeps the size.

    Raises:
        InputError: the bytes are no image, are cut short, hold several images, more than 8 bits per channel, or more
            pixels than Pillow's limit.
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            why = _unusable(image)
            if why is None:
                image = image.convert("RGBA") if image.mode in ("P", "PA") else image  # else Pillow warns
                image = image.convert("RGB")
                if image_size is not None:
                    image = image.resize((image_size, image_size), Image.Resampling.BILINEAR)
                return np.asarray(image)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        why = f"has more than {Image.MAX_IMAGE_PIXELS:,} pixels: make it smaller"
    except Exception as error:  # Pillow's readers raise some ten unrelated types on corrupt files
        raise InputError(f"{where} is not a readable image: mend or remove it") from error
    raise InputError(f"{where} {why}")


def _unusable(image: Image.Image) -> str | None:
    if image.mode not in EIGHT_BIT_MODES:
        return f"is of mode {image.mode}: convert it to 8 bits per channel"
    # a camera's MPO holds a photo and smaller copies of it
    if image.format != "MPO" and getattr(image, "is_animated", False):
        return f"holds {image.n_frames} images: give a file with one"
    return None


def decode_files(
    files: Iterable[File], *, where: str, image_size: int | None = None, tell: Tell | None = None
) -> tuple[list[str], UInt8[np.ndarray, "files height width 3"]]:
    """The names and images, uint8 [files, height, width, 3], of encoded files, in their order.

    tell: gets a line of progress every few seconds.

    Raises:
        InputError: a broken image, images of different sizes where `image_size` is None, or more than memory takes.
    """
    names: list[str] = []
    groups: list[np.ndarray] = []
    count = counter(tell, where)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow, about a file's metadata
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        for group_names, images in _decoded_groups(iter(files), where, image_size):
            names += group_names
            groups.append(stack_images(group_names, images, where=where))
            check_one_size([names[0], group_names[0]], [groups[0][0], groups[-1][0]], where=where)
            count(len(names))
    return names, np.concatenate(groups) if groups else np.empty((0, 0, 0, 3), np.uint8)


def check_memory(count: int, image_size: int | None, *, where: str) -> None:
    """Refuse more resized images than memory takes; it holds them twice while they are joined.

    Raises:
        InputError: how much they take, and a size that fits.
    """
    if image_size is not None:
        _check_pixels(count, 3 * image_size**2, free_memory(), where)


def _check_pixels(count: int, bytes_each: int, free: float, where: str) -> None:
    if 2 * count * bytes_each > free:
        most = max(1, math.isqrt(int(free / (6 * count))))
        raise InputError(
            f"{where}: {count:,} images of {bytes_each / 2**20:,.1f} MiB are twice in memory while they are joined, and"
            f" {free / 2**30:,.1f} GiB are free: set config.data.image_size to at most {most}"
        )


def stack_images(
    names: list[str], images: list[np.ndarray], *, where: str
) -> Shaped[np.ndarray, "images height width channels"]:
    """Images of one shape as one array [images, ...]; refuses two shapes by name."""
    check_one_size(names, images, where=where)
    return np.stack(images)


def check_one_size(names: list[str], images: list[np.ndarray], *, where: str) -> None:
    """Refuses images whose shape differs from the first one's, naming both."""
    for name, image in zip(names, images, strict=True):
        if image.shape != images[0].shape:
            first, other = ("x".join(map(str, i.shape)) for i in (images[0], image))
            raise InputError(
                f"{where}: {names[0]} is {first} and {name} is {other}: set config.data.image_size to resize them all"
            )


def resize_image(
    image: UInt8[np.ndarray, "height width channels"], image_size: int
) -> UInt8[np.ndarray, "size size channels"]:
    """A uint8 image [height, width, 1 or 3] at image_size x image_size (bilinear, aspect not kept)."""
    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    resized = np.asarray(picture.resize((image_size, image_size), Image.Resampling.BILINEAR))
    return resized.reshape(image_size, image_size, image.shape[-1])


def _decoded_groups(
    files: Iterator[File], where: str, image_size: int | None
) -> Iterator[tuple[list[str], list[np.ndarray]]]:
    # Reading and unpacking go on while two threads decode; the queue is bounded so that memory is too.
    free = free_memory()

    def decode(group: list[File], so_far: int) -> tuple[list[str], list[np.ndarray]]:
        images: list[np.ndarray] = []
        for name, data in group:
            images.append(decode_image(data, where=f"{where}: {name}", image_size=image_size))
            if len(images) == 1:
                _check_pixels(so_far, images[0].nbytes, free, where)
        return [name for name, _ in group], images

    waiting: deque = deque()
    count = 0
    with ThreadPoolExecutor(2) as pool:
        while group := list(islice(files, FILES_PER_TASK)):
            count += len(group)
            check_memory(count, image_size, where=where)
            waiting.append(pool.submit(decode, group, count))
            if len(waiting) > TASKS_WAITING:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


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


def normalise_images(
    x: Shaped[Array, "*batch channels"], normalisation: Normalisation
) -> Float32[Array, "*batch channels"]:
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
    """Each image padded with zeros, cropped to its own size at its offset, and mirrored left-right if `changes` say so.

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
