"""Encoded image files to uint8 arrays of one size, in order, on two threads."""

import io
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np
from PIL import Image

from focalgeo.types import InputError

# What Pillow turns into RGB without loss of range; "I;16", "I" and "F" it would clip at 255.
EIGHT_BIT_MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"})
FILES_PER_TASK = 256
TASKS_WAITING = 4

File = tuple[str, bytes]


def decode_image(data: bytes, *, where: str, image_size: int | None = None) -> np.ndarray:
    """One encoded image as uint8 [height, width, 3]; greyscale becomes RGB, transparency is dropped.

    Args:
        data: the bytes of the file, in any format Pillow reads.
        where: what the message calls the file.
        image_size: resize to this height and width (bilinear, aspect not kept); None keeps the size.

    Raises:
        InputError: the bytes are no image, are cut short, or hold more than 8 bits per channel.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            mode = image.mode
            if mode in EIGHT_BIT_MODES:
                image = image.convert("RGBA") if mode in ("P", "PA") else image  # else Pillow warns of transparency
                image = image.convert("RGB")
                if image_size is not None:
                    image = image.resize((image_size, image_size), Image.Resampling.BILINEAR)
                return np.asarray(image)
    except Exception as error:  # Pillow's readers raise some ten unrelated types on damaged files
        raise InputError(f"{where} is not a readable image: mend or remove it") from error
    raise InputError(f"{where} is of mode {mode}: convert it to 8 bits per channel")


def decode_files(files: Iterable[File], *, where: str, image_size: int | None = None) -> tuple[list[str], np.ndarray]:
    """The names and images, uint8 [files, height, width, 3], of encoded files, in the order they come.

    Raises:
        InputError: a broken image, or images of different sizes where `image_size` is None.
    """
    names: list[str] = []
    groups: list[np.ndarray] = []
    for group_names, images in _decoded_groups(iter(files), where, image_size):
        names += group_names
        groups.append(stack_images(group_names, images, where=where))
        check_one_size([names[0], group_names[0]], [groups[0][0], groups[-1][0]], where=where)
    return names, np.concatenate(groups) if groups else np.empty((0, 0, 0, 3), np.uint8)


def stack_images(names: list[str], images: list[np.ndarray], *, where: str) -> np.ndarray:
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


def resize_image(image: np.ndarray, image_size: int) -> np.ndarray:
    """A uint8 image [height, width, 1 or 3] at image_size x image_size (bilinear, aspect not kept)."""
    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    resized = np.asarray(picture.resize((image_size, image_size), Image.Resampling.BILINEAR))
    return resized.reshape(image_size, image_size, image.shape[-1])


def _decoded_groups(
    files: Iterator[File], where: str, image_size: int | None
) -> Iterator[tuple[list[str], list[np.ndarray]]]:
    # Reading and unpacking go on while two threads decode; the queue is bounded so that memory is too.
    def decode(group: list[File]) -> tuple[list[str], list[np.ndarray]]:
        images = [decode_image(data, where=f"{where}: {name}", image_size=image_size) for name, data in group]
        return [name for name, _ in group], images

    waiting: deque = deque()
    with ThreadPoolExecutor(2) as pool:
        while group := list(islice(files, FILES_PER_TASK)):
            waiting.append(pool.submit(decode, group))
            if len(waiting) > TASKS_WAITING:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
