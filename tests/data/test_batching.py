"""Batches: complete, padded, masked, deterministic, resumable, augmented against an oracle, normalised."""

import functools
import hashlib

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from focalgeo import data
from focalgeo.data import AUGMENTATIONS, NORMALISATIONS, Normalisation
from focalgeo.types import InputError, Split

CROP_FLIP = AUGMENTATIONS["crop_flip"]
OPTIONS = {"augmentation": CROP_FLIP, "normalise": NORMALISATIONS["unit"]}


def make_split(n=23):
    rng = np.random.default_rng(5)
    x = rng.integers(1, 256, (n, 6, 6, 3), dtype=np.uint8)
    x[:, 0, 0, 0] = np.arange(n) + 1  # a name for every image
    return Split(x, rng.integers(0, 10, n).astype(np.int32))


def specs(split, *, augmentation=AUGMENTATIONS["none"], **options):
    return data.batch_specs(split, augmentation=augmentation, **{"batch_size": 5, "seed": 3, "epoch": 2} | options)


def epoch(split, *, augmentation=AUGMENTATIONS["none"], normalise=None, **options):
    make = jax.jit(functools.partial(data.make_batch, augmentation=augmentation, normalise=normalise))
    return [jax.device_get(make(split, spec)) for spec in specs(split, augmentation=augmentation, **options)]


def evaluation(split, **options):
    return [*data.evaluation_batches(split, **{"batch_size": 5} | options)]


def assert_same(left, right):
    for a, b in zip(left, right, strict=True):
        for one, other in zip(a, b, strict=True):
            assert_array_equal(one, other)
            assert one.dtype == other.dtype


@pytest.mark.parametrize("n", [1, 5, 23])
@pytest.mark.parametrize("multiple_of", [1, 2, 8])
@pytest.mark.parametrize("make", [epoch, evaluation])
def test_every_example_once_whatever_the_padding(n, multiple_of, make):
    split = make_split(n)
    batches, rows = make(split, multiple_of=multiple_of), {1: 5, 2: 6, 8: 8}[multiple_of]
    assert make(split, normalise=NORMALISATIONS["cifar10"])[-1].x.dtype == np.float32
    assert len(batches) == data.num_batches(split, 5) == -(-n // 5)
    for batch in batches:
        assert (batch.x.shape, batch.y.shape, batch.mask.shape) == ((rows, 6, 6, 3), (rows,), (rows,))
        assert (batch.x.dtype, batch.y.dtype, batch.mask.dtype) == (np.uint8, np.int32, bool)
        assert batch.mask.sum() <= 5
        assert (batch.x[~batch.mask] == split.x[0]).all()
        assert (batch.y[~batch.mask] == split.y[0]).all()
    names = np.concatenate([b.x[b.mask][:, 0, 0, 0] for b in batches]).astype(int) - 1
    assert sorted(names) == list(range(n))
    assert_array_equal(np.concatenate([b.y[b.mask] for b in batches]), split.y[names])
    if make is evaluation:
        assert names.tolist() == list(range(n))


def test_order_and_augmentation_depend_on_seed_epoch_and_batch_alone():
    split = make_split()
    base = epoch(split)
    assert_same(base, epoch(split))
    one, four = (epoch(split, augmentation=CROP_FLIP, multiple_of=m) for m in (1, 4))
    for a, b in zip(one, four, strict=True):
        assert_array_equal(a.x[a.mask], b.x[b.mask])
    for other in (epoch(split, seed=4), epoch(split, epoch=3)):
        assert any((a.y != b.y).any() for a, b in zip(base, other, strict=True))
    same = Split(np.tile(make_split(1).x, (10, 1, 1, 1)), np.zeros(10, np.int32))
    epochs = [epoch(same, augmentation=CROP_FLIP, **options) for options in ({}, {"epoch": 3}, {"seed": 4})]
    assert len({batch.x.tobytes() for batches in epochs for batch in batches}) == 6
    drawn = []
    drawing = CROP_FLIP._replace(sample=lambda rng, n: drawn.append(rng.random()) or {})
    list(specs(split, augmentation=drawing))
    assert np.random.default_rng([3, 2]).random() not in drawn  # the stream that has shuffled
    assert len({*drawn}) == 5


@pytest.mark.parametrize("start", [0, 1, 5])
def test_resumed_and_fetched_batches_are_the_same_bits(start):
    split = make_split()
    whole = epoch(split, **OPTIONS)
    assert_same(whole[start:], epoch(split, start=start, **OPTIONS))
    fetched = [
        data.make_batch(*data.fetch(split, spec), **OPTIONS)
        for spec in specs(split, start=start, augmentation=CROP_FLIP)
    ]
    assert_same(whole[start:], jax.device_get(fetched))


def test_specs_are_the_same_bits_everywhere():
    """Golden; legitimate reasons to change: NumPy's generators give other numbers."""
    each = specs(make_split(), augmentation=CROP_FLIP)
    whole = b"".join(part.tobytes() for spec in each for part in (*spec[:2], *spec.changes.values()))
    assert hashlib.sha256(whole).hexdigest() == "875e06c68f237583a0c2df4ab0e4594409afadac2a64739a2f8ac43a4f6cf7a0"


def test_examples_that_stay_as_rows_make_the_same_batches():
    split = make_split(11)
    rows = data.in_rows(split)
    assert rows.x.shape == (11, 6 * 6 * 3)
    for spec in specs(split, augmentation=CROP_FLIP):
        expected = data.make_batch(split, spec, augmentation=CROP_FLIP)
        assert_same([data.make_batch(rows, spec, augmentation=CROP_FLIP, shape=(6, 6, 3))], [expected])


def test_labels_below_0_count_for_nothing():
    nodes = np.array([[0, -1, 1], [-1, -1, 0], [1, 1, -1]], np.int32)
    split = Split(np.arange(3, dtype=np.int32), nodes)
    batches = evaluation(split, batch_size=2)
    assert [batch.mask.astype(int).tolist() for batch in batches] == [[[1, 0, 1], [0, 0, 1]], [[1, 1, 0], [0, 0, 0]]]
    trained = epoch(split, batch_size=2)
    for batch in [*batches, *trained]:
        labels = nodes[batch.x[:, None], np.arange(3)]
        assert_array_equal(batch.y[batch.mask], labels[batch.mask])
        assert (batch.y >= 0).all()
    assert sum(batch.mask.sum() for batch in trained) == (nodes >= 0).sum()


def random_crop_flip(x, rng, *, padding=4):
    changes = data.sample_crop_flip(rng, len(x), padding=padding)
    return np.asarray(jax.jit(data.crop_flip, static_argnames="padding")(x, changes, padding=padding))


def slow_crop_flip(x, rng, padding):
    """One image at a time; sampled in the documented order: all offsets, then all coins."""
    offsets = rng.integers(0, 2 * padding + 1, (len(x), 2))
    coins = rng.random(len(x)) < 0.5
    out = np.empty_like(x)
    for i, image in enumerate(x):
        height, width, _ = image.shape
        canvas = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
        top, left = offsets[i]
        crop = canvas[top : top + height, left : left + width]
        out[i] = crop[:, ::-1] if coins[i] else crop
    return out


@pytest.mark.parametrize(("shape", "padding"), [((40, 8, 6, 3), 4), ((7, 5, 9, 1), 1), ((7, 5, 9, 1), 0)])
def test_crops_agree_with_an_oracle(shape, padding):
    x = np.random.default_rng(1).integers(1, 256, shape, dtype=np.uint8)
    found = random_crop_flip(x, np.random.default_rng(2), padding=padding)
    assert found.dtype == np.uint8
    assert_array_equal(found, slow_crop_flip(x, np.random.default_rng(2), padding))


def test_all_offsets_and_both_directions_occur_equally():
    changes = data.sample_crop_flip(np.random.default_rng(3), 18_000)
    counts = np.array([np.bincount(axis, minlength=9) for axis in changes["offsets"].T])
    assert counts.shape == (2, 9)
    assert np.abs(counts - 2000).max() < 5 * np.sqrt(2000)
    assert abs(changes["mirrored"].mean() - 0.5) < 5 * 0.5 / np.sqrt(18_000)


@pytest.mark.parametrize("name", NORMALISATIONS)
def test_normalisation_against_float64(name):
    x = np.arange(256, dtype=np.uint8)[:, None].repeat(3, axis=1)
    mean, std, scale = (np.asarray(v, np.float64) for v in NORMALISATIONS[name])
    found = data.normalise_images(x, NORMALISATIONS[name])
    assert found.dtype == np.float32
    assert_allclose(found, (x / scale - mean) / std, rtol=2e-7, atol=2e-6)


def test_unusable_normalisation():
    with pytest.raises(InputError, match="normalisation"):
        data.normalise_images(make_split().x, Normalisation((0.0, 0.0), (1.0,)))
