"""Running sums of a step's metrics, read one step late so that the device never waits for the host."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import jax

from focalgeo.types import RunError

SUMMED = ("loss", "penalty", "correct", "count")


class Meter:
    """Sums since the last row of training; `sums` is what a checkpoint must keep of them."""

    def __init__(self, sums: dict[str, float]):
        """A meter that goes on from `sums` (empty: from nothing)."""
        self.sums = {name: 0.0 for name in (*SUMMED, "seen")} | sums
        self._pending = None
        self.restart_clock()

    def restart_clock(self) -> None:
        """Count the rate from now on, so that compilation is left out."""
        self._began, self._timed = time.perf_counter(), 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Read all metrics, then stop the clock for the block: validating and saving are not training."""
        self.settle()
        entered = time.perf_counter()
        yield
        self._began += time.perf_counter() - entered

    def add(self, step: int, metrics: dict) -> None:
        """Take the metrics of step number `step`, after those of the step before have been read."""
        self.settle()
        self._pending = (step, metrics)

    def settle(self) -> None:
        """Read the metrics that are still on the device.

        Raises:
          RunError: the loss, or the norm of the gradient or of the new parameters, is not finite.
        """
        if self._pending is None:
            return
        step, on_device = self._pending
        metrics = {name: float(value) for name, value in jax.device_get(on_device).items()}
        self._pending = None
        for name in ("loss", "penalty", "gradient_norm", "parameter_norm"):
            if not math.isfinite(metrics[name]):
                raise RunError(
                    f"the {name.replace('_', ' ')} is {metrics[name]} at step {step}; what was saved before is "
                    "kept. Lower config.optimizer.learning_rate or set config.optimizer.clip_norm, in a new --workdir"
                )
        added = {name: self.sums[name] + metrics[name] for name in SUMMED}
        self.sums = {**added, "seen": self.sums["seen"] + metrics["count"]}
        self._timed += metrics["count"]

    def text(self) -> str:
        """How it goes since the last row, in words for the progress display."""
        count = max(self.sums["count"], 1.0)
        loss, accuracy = self.sums["loss"] / count, self.sums["correct"] / count
        return f"loss {loss:.4f}, accuracy {accuracy:.3f}, {self._rate():.0f} images/s"

    def rows(self, place: dict, learning_rate: float) -> list[dict]:
        """The rows since the last row, after which the sums start anew."""
        count = self.sums["count"]
        rows = [
            {**place, "name": "loss", "value": self.sums["loss"] / count, "n": int(count)},
            {**place, "name": "accuracy", "value": self.sums["correct"] / count, "n": int(count)},
            {**place, "name": "learning_rate", "value": learning_rate},
            {**place, "name": "examples_per_second", "value": self._rate()},
            {**place, "name": "examples_seen", "value": self.sums["seen"]},
        ]
        if self.sums["penalty"]:
            rows.append({**place, "name": "penalty", "value": self.sums["penalty"] / count, "n": int(count)})
        self.sums = {name: 0.0 for name in SUMMED} | {"seen": self.sums["seen"]}
        self.restart_clock()
        return rows

    def _rate(self) -> float:
        return self._timed / max(time.perf_counter() - self._began, 1e-9)
