"""Random halves of stored predictions: 20 of each network's, 5,000 examples to fit on and 5,000 to measure on."""

import os
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import log_softmax

from focalgeo.data.logits_files import Keys, read_outputs

MOST_EXAMPLES = 10_000  # of each network, so that the halves of all are of one size
FILES = {
    "Wide ResNet": "logits/wide-resnet-16-4-cifar100.npz",
    "DenseNet": "logits/densenet-cifar100.npz",
}
OWN = "small CNN"
TITLES = {
    "Wide ResNet": "Wide ResNet 16-4, CIFAR-100",
    "DenseNet": "DenseNet, CIFAR-100",
    OWN: "small CNN, CIFAR-10 (JPEG)",
}


class Half(NamedTuple):
    """Logits [examples, classes] float32, the exponentials of a row summing to 1, and labels [examples] int32."""

    logits: np.ndarray
    labels: np.ndarray


class Split(NamedTuple):
    """Two halves of a network's predictions, at random in a seed."""

    network: str
    seed: int
    val: Half
    test: Half


def sources(predictions: Path | None) -> dict[str, tuple[Path, ...]]:
    """The files of each network that are there: in the folder FOCALGEO_DATA, and those of a run of the main job."""
    data = Path(os.environ.get("FOCALGEO_DATA") or "unset")
    found = {name: (data / path,) for name, path in FILES.items()}
    if predictions is not None:
        found[OWN] = (predictions / "val.npz", predictions / "test.npz")
    return {name: paths for name, paths in found.items() if all(path.exists() for path in paths)}


@lru_cache(maxsize=4)
def pooled(paths: tuple[Path, ...]) -> Half:
    """All examples of some files, their logits as log-probabilities, which other libraries can be given too."""
    parts = [read_outputs(str(path), Keys(), where=path.stem) for path in paths]
    log_probs = log_softmax(np.concatenate([part.logits for part in parts]).astype(np.float64), axis=1)
    return Half(log_probs.astype(np.float32), np.concatenate([part.labels for part in parts]))


@lru_cache(maxsize=2)
def halves(network: str, paths: tuple[Path, ...], seed: int) -> Split:
    """A split of at most MOST_EXAMPLES of the examples, each half without the other's."""
    logits, labels = pooled(paths)
    chosen = np.random.default_rng(seed).permutation(len(labels))[:MOST_EXAMPLES]
    first, second = chosen[: len(chosen) // 2], chosen[len(chosen) // 2 :]
    return Split(network, seed, Half(logits[first], labels[first]), Half(logits[second], labels[second]))
