"""Data sets by name, and their batches: NumPy in, `focalgeo.types.Batch` out, deterministic in (seed, epoch)."""

from focalgeo.data.augmentation import AUGMENTATIONS, Augmentation, crop_flip, draw_crop_flip
from focalgeo.data.batching import Draw, epoch_draws, evaluation_batches, fetch, make_batch, num_batches
from focalgeo.data.checks import check_split
from focalgeo.data.embeddings import read_embeddings
from focalgeo.data.normalisation import NORMALISATIONS, Normalisation, measure_normalisation, normalise_images
from focalgeo.data.sources import load_dataset
from focalgeo.data.splits import split_indices

__all__ = [
    "AUGMENTATIONS",
    "NORMALISATIONS",
    "Augmentation",
    "Draw",
    "Normalisation",
    "check_split",
    "crop_flip",
    "draw_crop_flip",
    "epoch_draws",
    "evaluation_batches",
    "fetch",
    "load_dataset",
    "make_batch",
    "measure_normalisation",
    "normalise_images",
    "num_batches",
    "read_embeddings",
    "split_indices",
]
