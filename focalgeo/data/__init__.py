"""Data sets by name, and their batches: NumPy in, `focalgeo.types.Batch` out, deterministic in (seed, epoch)."""

from focalgeo.data.batching import (
    AUGMENTATIONS,
    NORMALISATIONS,
    Normalisation,
    batch_specs,
    crop_flip,
    evaluation_batches,
    fetch,
    in_rows,
    make_batch,
    normalise_images,
    num_batches,
    sample_crop_flip,
)
from focalgeo.data.registry import load_dataset
from focalgeo.data.splits import gaps, split_indices
from focalgeo.data.texts import read_embeddings
