"""Outputs of others, halved at random: each half fits, the other tests; which two questions measure."""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from experiments.question import Job
from focalgeo.data.logits_files import Keys, read_outputs

SPLITS = 20
Pair = tuple[np.ndarray, np.ndarray]  # logits and labels


def folder(text: str) -> Path:
    """The type of a flag that names a folder of .npz files with probs or logits, and labels."""
    if not any(Path(text).glob("*.npz")):
        raise argparse.ArgumentTypeError(f"{text}: holds no .npz file: name a folder of outputs")
    return Path(text)


FLAG = {"--logits": {"type": folder, "metavar": "FOLDER", "help": "others' outputs, .npz files"}}


def jobs(logits: Path | None, name: str, part: str, measure: Callable[[Pair, Pair], dict[str, Any]]) -> Iterator[Job]:
    """A job for each file: a run for each random half. name: what the runs call the file."""
    for path in sorted(logits.glob("*.npz")) if logits else ():

        def make(out: Path, path: Path = path) -> list[dict[str, Any]]:
            outputs, runs = read_outputs(str(path), Keys(), where=path.stem), []
            for seed in range(SPLITS):
                order = np.random.default_rng(seed).permutation(len(outputs.labels))
                val, test = ((outputs.logits[half], outputs.labels[half]) for half in np.array_split(order, 2))
                runs.append({name: path.stem, "seed": seed} | measure(val, test))
            return runs

        yield Job({name: path.stem}, range(SPLITS), make, 12, part=part)
