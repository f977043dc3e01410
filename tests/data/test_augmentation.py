"""Random crops and flips against an image-by-image oracle."""

import jax
import numpy as np
import pytest

from focalgeo.data import AUGMENTATIONS, crop_flip, sample_crop_flip


def random_crop_flip(x, rng, *, padding=4):
    changes = sample_crop_flip(rng, len(x), padding=padding)
    return np.asarray(jax.jit(crop_flip, static_argnames="padding")(x, changes, padding=padding))


def slow_crop_flip(x, rng, padding):
    """One image at a time; sampled in the documented order: all offsets, then all coins."""
    offsets = rng.integers(0, 2 * padding + 1, (len(x), 2))
    coins = rng.random(len(x)) < 0.5
    out = np.empty_like(x)
    for i, image in enumerate(x):
        height, width, channels = image.shape
        canvas = np.zeros((height + 2 * padding, width + 2 * padding, channels), x.dtype)
        canvas[padding : padding + height, padding : padding + width] = image
        top, left = offsets[i]
        crop = canvas[top : top + height, left : left + width]
        out[i] = crop[:, ::-1] if coins[i] else crop
    return out


@pytest.mark.parametrize("shape", [(40, 8, 6, 3), (7, 5, 9, 1), (0, 4, 4, 3)])
@pytest.mark.parametrize("padding", [0, 1, 4])
def test_agrees_with_oracle(shape, padding):
    x = np.random.default_rng(1).integers(1, 256, shape, dtype=np.uint8)
    got = random_crop_flip(x, np.random.default_rng(2), padding=padding)
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, slow_crop_flip(x, np.random.default_rng(2), padding))


def test_all_offsets_and_both_directions_occur_equally():
    x = np.zeros((18000, 9, 9, 1), np.uint8)
    x[:, 4, 4] = 1
    out = random_crop_flip(x, np.random.default_rng(3))
    counts = out[..., 0].sum(axis=0)
    expected = len(x) / 81
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)
    left_right = np.tile(np.arange(9, dtype=np.uint8)[None, None, :, None], (4000, 9, 1, 1))
    mirrored = random_crop_flip(left_right, np.random.default_rng(4), padding=0)[:, 0, 0, 0] == 8
    assert abs(mirrored.mean() - 0.5) < 5 * 0.5 / np.sqrt(4000)


def test_names_are_known_and_none_changes_nothing():
    x = np.random.default_rng(1).integers(0, 256, (5, 4, 4, 3), dtype=np.uint8)
    assert set(AUGMENTATIONS) == {"none", "crop_flip"}
    for augmentation in AUGMENTATIONS.values():
        changes = augmentation.sample(np.random.default_rng(0), len(x))
        assert augmentation.apply(x, changes).shape == x.shape
    np.testing.assert_array_equal(AUGMENTATIONS["none"].apply(x, {}), x)
