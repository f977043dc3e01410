"""Data sets by name, and their batches: NumPy in, `focalgeo.types.Batch` out, deterministic in (seed, epoch)."""

from focalgeo.data.batching import (
    BatchSpec,
    batch_specs,
    evaluation_batches,
    fetch,
    in_rows,
    make_batch,
    num_batches,
)
from focalgeo.data.images import (
    AUGMENTATIONS,
    NORMALISATIONS,
    Augmentation,
    Normalisation,
    crop_flip,
    measure_normalisation,
    normalise_images,
    sample_crop_flip,
)
from focalgeo.data.registry import load_dataset
from focalgeo.data.splits import check_split, gaps, split_indices
from focalgeo.data.vocabulary import read_embeddings

__all__ = [
    "AUGMENTATIONS",
    "NORMALISATIONS",
    "Augmentation",
    "BatchSpec",
    "Normalisation",
    "batch_specs",
    "check_split",
    "crop_flip",
    "evaluation_batches",
    "fetch",
    "gaps",
    "in_rows",
    "load_dataset",
    "make_batch",
    "measure_normalisation",
    "normalise_images",
    "num_batches",
    "read_embeddings",
    "sample_crop_flip",
    "split_indices",
]
