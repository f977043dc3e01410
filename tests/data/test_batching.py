"""Batches: complete, padded, masked, deterministic, resumable, normalised."""

import functools
import hashlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from focalgeo.data import (
    AUGMENTATIONS,
    NORMALISATIONS,
    Normalisation,
    batch_specs,
    evaluation_batches,
    fetch,
    in_rows,
    make_batch,
    measure_normalisation,
    normalise_images,
    num_batches,
)
from focalgeo.types import InputError, Split

UNIT = NORMALISATIONS["unit"]
CROP_FLIP = AUGMENTATIONS["crop_flip"]


def make_split(n=23):
    rng = np.random.default_rng(5)
    x = rng.integers(1, 256, (n, 6, 6, 3), dtype=np.uint8)
    x[:, 0, 0, 0] = np.arange(n) + 1  # a name for every image
    return Split(x, rng.integers(0, 10, n).astype(np.int32))


def epoch(split, *, augmentation=AUGMENTATIONS["none"], normalise=None, **options):
    options = {"batch_size": 5, "seed": 3, "epoch": 2, "augmentation": augmentation} | options
    make = jax.jit(functools.partial(make_batch, augmentation=augmentation, normalise=normalise))
    return [jax.device_get(make(split, spec)) for spec in batch_specs(split, **options)]


def assert_same(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        for one, other in zip(a, b, strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype


@pytest.mark.parametrize("n", [1, 4, 5, 20, 23])
@pytest.mark.parametrize("multiple_of", [1, 2, 8])
@pytest.mark.parametrize("make", ["epoch", "evaluation"])
def test_every_example_once_whatever_the_padding(n, multiple_of, make):
    split = make_split(n)
    if make == "epoch":
        batches = epoch(split, multiple_of=multiple_of)
    else:
        batches = list(evaluation_batches(split, batch_size=5, multiple_of=multiple_of))
    rows = {1: 5, 2: 6, 8: 8}[multiple_of]
    assert len(batches) == num_batches(split, 5) == -(-n // 5)
    for batch in batches:
        assert batch.x.shape == (rows, 6, 6, 3)
        assert batch.y.shape == batch.mask.shape == (rows,)
        assert batch.y.dtype == np.int32
        assert batch.mask.dtype == bool
        if make == "evaluation":
            assert not batch.x[~batch.mask].any()
            assert not batch.y[~batch.mask].any()
        assert batch.mask.sum() <= 5
    names = np.concatenate([b.x[b.mask][:, 0, 0, 0] for b in batches]).astype(int) - 1
    assert sorted(names) == list(range(n))
    np.testing.assert_array_equal(np.concatenate([b.y[b.mask] for b in batches]), split.y[names])
    if make == "evaluation":
        assert names.tolist() == list(range(n))


def test_padding_stays_zero_after_normalisation():
    batch = next(evaluation_batches(make_split(3), batch_size=4, normalise=NORMALISATIONS["cifar10"]))
    assert batch.x.dtype == np.float32
    assert not batch.x[3:].any()


def test_order_depends_on_seed_and_epoch_alone():
    split = make_split()
    base = epoch(split)
    assert_same(base, epoch(split))
    for other in (epoch(split, seed=4), epoch(split, epoch=3)):
        assert any((a.y != b.y).any() for a, b in zip(base, other, strict=True))


@pytest.mark.parametrize("start", [0, 1, 4, 5])
def test_resumed_batches_are_the_same_bits(start):
    split = make_split()
    options = {"augmentation": CROP_FLIP, "normalise": UNIT}
    assert_same(epoch(split, **options)[start:], epoch(split, start=start, **options))


def test_augmentation_differs_between_batches_epochs_and_seeds():
    split = Split(np.tile(make_split(1).x, (10, 1, 1, 1)), np.zeros(10, np.int32))
    batches = [
        batch.x
        for options in ({}, {"epoch": 3}, {"seed": 4})
        for batch in epoch(split, augmentation=CROP_FLIP, **options)
    ]
    assert len({batch.tobytes() for batch in batches}) == 6


def test_first_batch_does_not_reuse_the_shuffling_stream():
    seen = []
    split = make_split()
    list(
        batch_specs(
            split,
            batch_size=5,
            seed=3,
            epoch=2,
            augmentation=CROP_FLIP._replace(sample=lambda rng, n: seen.append(rng.random()) or {}),
        )
    )
    assert np.random.default_rng([3, 2]).random() not in seen
    assert len(set(seen)) == 5


def test_number_of_devices_changes_neither_examples_nor_augmentation():
    split = make_split()
    one, four = (epoch(split, augmentation=CROP_FLIP, multiple_of=m) for m in (1, 4))
    for a, b in zip(one, four, strict=True):
        np.testing.assert_array_equal(a.x[a.mask], b.x[b.mask])


def test_another_process_makes_the_same_bits():
    split = make_split()
    program = (
        "import hashlib, numpy as np\n"
        "from focalgeo.data import AUGMENTATIONS, batch_specs\n"
        "from focalgeo.types import Split\n"
        f"x = np.frombuffer({split.x.tobytes()!r}, np.uint8).reshape(-1, 6, 6, 3)\n"
        f"split = Split(x, np.array({split.y.tolist()}, np.int32))\n"
        "specs = batch_specs(split, batch_size=5, seed=3, epoch=2, augmentation=AUGMENTATIONS['crop_flip'])\n"
        "parts = [part for spec in specs for part in (spec.indices, spec.mask, *spec.changes.values())]\n"
        "print(hashlib.sha256(b''.join(part.tobytes() for part in parts)).hexdigest())\n"
    )
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    specs = batch_specs(split, batch_size=5, seed=3, epoch=2, augmentation=CROP_FLIP)
    parts = [part for spec in specs for part in (spec.indices, spec.mask, *spec.changes.values())]
    assert there == hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


def test_examples_that_stay_as_rows_make_the_same_batches():
    rng = np.random.default_rng(0)
    split = Split(rng.integers(0, 256, (11, 8, 6, 3), np.uint8), rng.integers(0, 5, 11).astype(np.int32))
    rows = in_rows(split)
    assert rows.x.shape == (11, 8 * 6 * 3)
    for spec in batch_specs(split, batch_size=4, seed=0, epoch=0, augmentation=CROP_FLIP):
        expected = make_batch(split, spec, augmentation=CROP_FLIP)
        found = make_batch(rows, spec, augmentation=CROP_FLIP, shape=split.x.shape[1:])
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_fetched_examples_make_the_batches_of_resident_ones():
    split = make_split()
    options = {"augmentation": CROP_FLIP, "normalise": UNIT}
    specs = batch_specs(split, batch_size=5, seed=3, epoch=2, augmentation=CROP_FLIP)
    fetched = [make_batch(*fetch(split, spec), **options) for spec in specs]
    assert_same(epoch(split, **options), jax.device_get(fetched))


def test_labels_below_0_count_for_nothing():
    nodes = np.array([[0, -1, 1], [-1, -1, 0], [1, 1, -1]], np.int32)
    split = Split(np.arange(3, dtype=np.int32), nodes)
    batches = list(evaluation_batches(split, batch_size=2))
    assert [batch.mask.tolist() for batch in batches] == [
        [[True, False, True], [False, False, True]],
        [[True, True, False], [False, False, False]],
    ]
    for batch in [*batches, *epoch(split, batch_size=2)]:
        chosen = nodes[batch.x[:, None], np.arange(3)]
        np.testing.assert_array_equal(batch.y[batch.mask], chosen[batch.mask])
        assert (batch.y >= 0).all()
    assert sum(batch.mask.sum() for batch in epoch(split, batch_size=2)) == (nodes >= 0).sum()


@pytest.mark.parametrize(
    "options",
    [{"batch_size": 0}, {"seed": -1}, {"epoch": -1}, {"start": -1}, {"start": 6}, {"multiple_of": 0}],
)
def test_wrong_arguments_are_refused_at_the_call(options):
    with pytest.raises(InputError, match="give"):
        batch_specs(make_split(), **({"batch_size": 5, "seed": 3, "epoch": 2} | options))


@pytest.mark.parametrize("name", ["cifar10", "unit", "digits"])
def test_normalisation_against_float64(name):
    x = np.arange(256, dtype=np.uint8)[:, None].repeat(3, axis=1)
    mean, std, scale = (np.asarray(v, np.float64) for v in NORMALISATIONS[name])
    x = x[x[:, 0] <= scale]
    got = normalise_images(x, NORMALISATIONS[name])
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, (x / scale - mean) / std, rtol=0, atol=2e-6)


def test_without_normalisation_values_stay_as_stored():
    assert epoch(make_split())[0].x.dtype == np.uint8


def test_measured_normalisation_standardises():
    split = make_split()
    measured = measure_normalisation(split)
    out = normalise_images(split.x, measured).astype(np.float64)
    np.testing.assert_allclose(out.mean(axis=(0, 1, 2)), 0, atol=1e-6)
    np.testing.assert_allclose(out.std(axis=(0, 1, 2)), 1, atol=1e-6)
    np.testing.assert_allclose(measured.mean, (split.x / 255).mean(axis=(0, 1, 2)), rtol=1e-12)


@pytest.mark.parametrize(
    "normalisation",
    [
        Normalisation((0.0, 0.0), (1.0,)),
        Normalisation((0.0,), (1.0, 1.0)),
        Normalisation((0.0,), (0.0,)),
        Normalisation((0.0,), (1.0,), 0.0),
    ],
)
def test_unusable_normalisation(normalisation):
    with pytest.raises(InputError, match="normalisation"):
        normalise_images(make_split().x, normalisation)


def test_constant_channel_cannot_be_measured():
    with pytest.raises(InputError, match="channel 0"):
        measure_normalisation(Split(np.zeros((3, 2, 2, 1), np.uint8), np.zeros(3, np.int32)))
