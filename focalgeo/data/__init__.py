"""Data sets by name, and their batches: NumPy in, `focalgeo.types.Batch` out, deterministic in (seed, epoch)."""

from focalgeo.data.augmentation import AUGMENTATIONS, random_crop_flip
from focalgeo.data.batching import epoch_batches, evaluation_batches, num_batches
from focalgeo.data.checks import check_split
from focalgeo.data.normalisation import NORMALISATIONS, Normalisation, measure_normalisation, normalise_images
from focalgeo.data.sources import load_dataset
from focalgeo.data.splits import split_indices

__all__ = [
    "AUGMENTATIONS",
    "NORMALISATIONS",
    "Normalisation",
    "check_split",
    "epoch_batches",
    "evaluation_batches",
    "load_dataset",
    "measure_normalisation",
    "normalise_images",
    "num_batches",
    "random_crop_flip",
    "split_indices",
]
