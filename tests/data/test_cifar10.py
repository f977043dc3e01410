"""The real CIFAR-10 archive, when FOCALGEO_DATA names the folder that holds it."""

import time

import numpy as np
import pytest

from focalgeo.data import load_dataset, measure_normalisation


@pytest.mark.long
def test_cifar10_from_its_archive(tmp_path, real_archive):
    archive = real_archive("cifar10-jpeg.tar.xz")
    name = f"folder:{archive}"
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        data = load_dataset(name, cache_dir=tmp_path)
        seconds.append(time.perf_counter() - start)
    print(f"decoded in {seconds[0]:.2f} s, from the cache in {seconds[1]:.2f} s")
    assert data.class_names[:3] == ("airplane", "automobile", "bird")
    assert [split.x.shape for split in (data.train, data.val, data.test)] == [
        (n, 32, 32, 3) for n in (45000, 5000, 10000)
    ]
    np.testing.assert_array_equal(np.bincount(np.concatenate([data.train.y, data.val.y])), [5000] * 10)
    np.testing.assert_array_equal(np.bincount(data.test.y), [1000] * 10)
    # Sorted by class, 5000 each: the papers' first validation indices fall into these classes.
    assert data.val.y[:5].tolist() == [index // 5000 for index in (26247, 35067, 34590, 16668, 12196)]
    np.testing.assert_allclose(measure_normalisation(data.train).mean, (0.4914, 0.4822, 0.4465), atol=0.005)
    small = load_dataset(name, cache_dir=tmp_path, train_size=4000, val_size=1000, test_size=1000)
    assert [len(split.y) for split in small[1:4]] == [4000, 1000, 1000]
    assert np.bincount(small.test.y).min() > 60
