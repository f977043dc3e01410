"""Outputs of a network that is too sure, made by a seed."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

SPREAD, TOO_SURE = 2.0, 1.7  # of the true logits, and what the given ones are times them


def made(examples: int, classes: int, seeds: Iterable[int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of each seed logits float32 [examples, classes], and labels int32 drawn from the softmax of the true ones."""
    for seed in seeds:
        generator = np.random.default_rng([seed, examples, classes])
        truth = SPREAD * generator.standard_normal((examples, classes), dtype=np.float32)
        labels = np.concatenate([_drawn(rows, generator) for rows in np.array_split(truth, -(-truth.size // 10**7))])
        yield np.float32(TOO_SURE) * truth, labels


def _drawn(logits, generator):
    return (logits + generator.gumbel(size=logits.shape)).argmax(axis=1).astype(np.int32)


def machines(rows: Iterable[Mapping[str, Any]]) -> str:
    """The machines that some rows were measured on, each once."""
    told = [", ".join(f"{name} {value}" for name, value in row["machine"].items()) for row in rows]
    return "; ".join(dict.fromkeys(told))
