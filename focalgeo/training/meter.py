"""Running sums of a step's metrics, read one step late so that the device never waits for the host."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import jax
import numpy as np

from focalgeo.types import RunError

SUMMED = ("loss", "penalty", "correct", "count")
FINITE = ("loss", "penalty", "gradient_norm", "parameter_norm")


class Meter:
    """Sums of each member since its last row of training; `sums` is what a checkpoint must keep of them."""

    def __init__(self, sums: dict[str, list[float]], places: Sequence[dict], stopped: Sequence[bool], *, alone: bool):
        """A meter that goes on from `sums` (empty: from nothing); places[i] are the row fields of member i.

        alone: the only member is no sweep's, so that a run without it has no sense.
        """
        self._alone = alone
        zeros = np.zeros(len(places))
        self._sums = {name: np.asarray(sums.get(name, zeros)) for name in (*SUMMED, "seen")}
        self._places, self._stopped = places, np.array(stopped, bool)
        self._pending, self._events = None, []
        self.restart_clock()

    @property
    def sums(self) -> dict[str, list[float]]:
        """The sums as JSON takes them."""
        return {name: values.tolist() for name, values in self._sums.items()}

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

    def add(self, step: int, metrics: list[dict]) -> None:
        """Take the metrics of step number `step`, one dict per chunk, after those of the step before have been read."""
        self.settle()
        self._pending = (step, metrics)

    def settle(self) -> None:
        """Read the metrics that are still on the device.

        Raises:
          RunError: the loss, or the norm of the gradient or of the new parameters, of a run alone is not finite.
        """
        if self._pending is None:
            return
        step, on_device = self._pending
        chunks = jax.device_get(on_device)
        metrics = {name: np.concatenate([chunk[name] for chunk in chunks]).astype(float) for name in chunks[0]}
        self._pending = None
        self._stop(step, metrics)
        running = ~self._stopped
        for name in SUMMED:
            self._sums[name] = self._sums[name] + np.where(running, metrics[name], 0)
        self._sums["seen"] = self._sums["seen"] + np.where(running, metrics["count"], 0)
        self._timed += float(np.sum(metrics["count"], where=running))

    def _stop(self, step: int, metrics: dict[str, np.ndarray]) -> None:
        """Note the members of a sweep that stop at this step; end a run alone."""
        finite = np.all([np.isfinite(metrics[name]) for name in FINITE], axis=0)
        for index in np.flatnonzero(~finite & ~self._stopped):
            place = self._places[index]
            name = next(name for name in FINITE if not np.isfinite(metrics[name][index]))
            what = f"the {name.replace('_', ' ')} is {metrics[name][index]} at step {step}"
            self._stopped[index] = True
            if self._alone:
                raise RunError(
                    f"{what}; what was saved before is kept. Lower config.optimizer.learning_rate or set "
                    "config.optimizer.clip_norm, in a new --workdir"
                )
            who = ", ".join(f"{key} {value}" for key, value in place.items())
            print(f"member {who} stops, the others go on: {what}", file=sys.stderr, flush=True)
            self._events.append({**place, "name": "stopped", "value": step, "step": step})

    def text(self) -> str:
        """How it goes since the last row, in words for the progress display."""
        running = ~self._stopped
        sums = {name: float(np.sum(values, where=running)) for name, values in self._sums.items()}
        count = max(sums["count"], 1.0)
        return f"loss {sums['loss'] / count:.4f}, accuracy {sums['correct'] / count:.3f}, {self._rate():.0f} examples/s"

    def rows(self, place: dict, learning_rate: np.ndarray) -> list[dict]:
        """The rows since the last row, after which the sums start anew; learning_rate: of each member."""
        rows = []
        for index, own in enumerate(self._places):
            count = self._sums["count"][index]
            if count == 0:
                continue
            where, n = {**own, **place}, int(count)
            values = {name: self._sums[name][index] for name in self._sums}
            rows += [
                {**where, "name": "loss", "value": values["loss"] / count, "n": n},
                {**where, "name": "accuracy", "value": values["correct"] / count, "n": n},
                {**where, "name": "learning_rate", "value": float(learning_rate[index])},
                {**where, "name": "examples_per_second", "value": self._rate() / max(np.sum(~self._stopped), 1)},
                {**where, "name": "examples_seen", "value": values["seen"]},
            ]
            if values["penalty"]:
                rows.append({**where, "name": "penalty", "value": values["penalty"] / count, "n": n})
        self._sums |= {name: np.zeros(len(self._places)) for name in SUMMED}
        self.restart_clock()
        return rows

    def events(self, steps_per_epoch: int) -> list[dict]:
        """The rows "stopped" of the members that have stopped since the last call; value is the step."""
        events, self._events = self._events, []
        return [{**event, "epoch": event["step"] / steps_per_epoch} for event in events]

    def _rate(self) -> float:
        return self._timed / max(time.perf_counter() - self._began, 1e-9)
