"""Scores of probabilities, seconds of a fit, and what was measured so far, one JSON line each."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from focalgeo.calibration import ece

CLIP = float(np.finfo(np.float32).eps)  # below it scikit-learn's log_loss of float32 probabilities does not go
_warm: set[tuple] = set()  # (name, shape of the logits) of the fits that this process has made


def scores(log_probs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """NLL in nats, ECE of 15 bins, Brier score and accuracy; and what share of the labels has a probability of 0.

    The NLL is of probabilities no less than CLIP: isotonic regression and histograms say 0 of labels that come.
    """
    log_probs = np.asarray(log_probs, np.float64)
    of_label = log_probs[np.arange(len(labels)), labels]
    probs = np.exp(log_probs)
    return {
        "nll": float(-np.maximum(of_label, np.log(CLIP)).mean()),
        "ece": float(ece(log_probs.astype(np.float32), labels)),
        "brier": float((np.square(probs).sum(1) - 2 * np.exp(of_label) + 1).mean()),
        "accuracy": float((log_probs.argmax(1) == labels).mean()),
        "zeros": float(np.isneginf(of_label).mean()),
    }


def timed(name: str, shape: tuple[int, ...], fit: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """What a fit returns, with its wall and processor seconds; its first in this process is made twice.

    What is loaded and compiled is so left out of "seconds", and is in "first_seconds".
    """
    taken = {}
    if (name, shape) not in _warm:
        _warm.add((name, shape))
        before = time.perf_counter()
        fit()
        taken["first_seconds"] = time.perf_counter() - before
    before = time.perf_counter(), time.process_time()
    found = fit()
    wall, processor = np.subtract((time.perf_counter(), time.process_time()), before)
    return found, {"seconds": float(wall), "processor_seconds": float(processor), **taken}


def read_lines(path: Path) -> list[dict]:
    """The rows of a file of JSON lines; none where there is no file. A line cut off by a stop is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def missing(path: Path, keys: Iterable[dict]) -> Iterator[dict]:
    """Those keys of which the file has no row, each with its number on standard error."""
    keys = list(keys)
    done = [row["key"] for row in read_lines(path)]
    for number, key in enumerate(keys, 1):
        if key not in done:
            said = ", ".join(str(value) for value in key.values())
            print(f"{path.stem} {number} of {len(keys)}: {said}", file=sys.stderr, flush=True)
            yield key


def remember(path: Path, key: dict, found: dict) -> None:
    """Append one row, on a line of its own even after one that was cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cut_off = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" * cut_off + json.dumps({"key": key, **found}) + "\n")
