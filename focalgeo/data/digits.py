"""scikit-learn's handwritten digits, the data set that needs no download."""

import hashlib

import numpy as np

from focalgeo.data.splits import Source
from focalgeo.types import Split


def read_digits() -> Source:
    """1797 images of 8x8, uint8 [1797, 8, 8, 1] with values 0..16, as one split: no test split was published.

    Source: the test part of UCI's "Optical Recognition of Handwritten Digits", as scikit-learn ships it.
    """
    from sklearn.datasets import load_digits  # heavy, and only this source needs it

    digits = load_digits()
    split = Split(digits.images.astype(np.uint8)[..., None], digits.target.astype(np.int32))
    checksum = hashlib.sha256(split.x.tobytes() + split.y.astype("<i4").tobytes()).hexdigest()
    return Source({"train": split}, tuple(str(name) for name in digits.target_names), checksum)
