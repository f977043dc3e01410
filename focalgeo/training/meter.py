"""Meter and progress: sums of a step's metrics, read one step late so that the device never waits for the host."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import jax
import numpy as np
from tqdm import tqdm

from focalgeo import files
from focalgeo.rows import Scalar
from focalgeo.training.step import FINITE
from focalgeo.types import RunError

SUMMED = ("loss", "penalty", "correct", "count")


class Meter:
    """Sums of each member since its last row of training; `sums` is what a checkpoint must keep of them."""

    def __init__(self, sums: dict[str, list[float]], tags: Sequence[dict], frozen: Sequence[bool], *, sweep: bool):
        """A meter that goes on from `sums` (empty: from zero); tags[i] are those of member i's rows.

        sweep: whether a member that stops leaves others that go on. A run alone ends there.
        """
        self._sweep = sweep
        zeros = np.zeros(len(tags))
        self._sums = {name: np.asarray(sums.get(name, zeros)) for name in (*SUMMED, "seen")}
        self._tags, self._frozen = tags, np.array(frozen, bool)
        self._pending, self._stops = None, []
        self.stop = False  # whether a process was asked to stop, as of the last step that was read
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
        """Take the metrics of step number `step`, one dict per group, after those of the step before have been read."""
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
        groups = jax.device_get(on_device)
        metrics = {name: np.concatenate([np.ravel(group[name]) for group in groups]) for name in groups[0]}
        metrics = {name: values.astype(float) for name, values in metrics.items()}
        self.stop = bool(np.any(metrics.get("stop", 0)))
        self._pending = None
        self._stop(step, metrics)
        running = ~self._frozen
        for name in SUMMED:
            self._sums[name] = self._sums[name] + np.where(running, metrics[name], 0)
        self._sums["seen"] = self._sums["seen"] + np.where(running, metrics["count"], 0)
        self._timed += float(np.sum(metrics["count"], where=running))

    def _stop(self, step: int, metrics: dict[str, np.ndarray]) -> None:
        """Note the members of a sweep that stop at this step; end a run alone."""
        finite = np.all([np.isfinite(metrics[name]) for name in FINITE], axis=0)
        for index in np.flatnonzero(~finite & ~self._frozen):
            name = next(name for name in FINITE if not np.isfinite(metrics[name][index]))
            what = f"the {name.replace('_', ' ')} is {metrics[name][index]} at step {step}"
            self._frozen[index] = True
            if not self._sweep:
                raise RunError(
                    f"{what}; what was saved before is kept. Lower config.optimizer.learning_rate or set "
                    "config.optimizer.clip_norm, in a new --workdir"
                )
            who = ", ".join(f"{key} {value}" for key, value in self._tags[index].items())
            files.say(f"member {who} stops, the others go on: {what}")
            self._stops.append((step, self._tags[index]))

    def text(self) -> str:
        """Mean loss, accuracy and rate since the last row, as text for the progress display."""
        running = ~self._frozen
        if not running.any():
            return "all members have stopped"
        sums = {name: float(np.sum(values, where=running)) for name, values in self._sums.items()}
        count = max(sums["count"], 1.0)
        return f"loss {sums['loss'] / count:.4f}, accuracy {sums['correct'] / count:.3f}, {self._rate():.0f} examples/s"

    def rows(self, step: int, epoch: float, learning_rate: np.ndarray) -> list[Scalar]:
        """The rows of the training split since the last ones, after which the sums start anew.

        learning_rate: of each member at this step.
        """
        rows = []
        for index, own in enumerate(self._tags):
            count = self._sums["count"][index]
            if count == 0:
                continue
            tags, n = {**own, "step": step, "epoch": epoch}, int(count)
            values = {name: self._sums[name][index] for name in self._sums}
            rows += [
                Scalar("loss", values["loss"] / count, n, "train", **tags),
                Scalar("accuracy", values["correct"] / count, n, "train", **tags),
                Scalar("learning_rate", float(learning_rate[index]), None, "train", **tags),
                Scalar("examples_per_second", self._rate() / max(np.sum(~self._frozen), 1), None, "train", **tags),
                Scalar("examples_seen", values["seen"], None, "train", **tags),
            ]
            if values["penalty"]:
                rows.append(Scalar("penalty", values["penalty"] / count, n, "train", **tags))
        self._sums |= {name: np.zeros(len(self._tags)) for name in SUMMED}
        self.restart_clock()
        return rows

    def stops(self, steps_per_epoch: int) -> list[Scalar]:
        """The rows "stopped" of the members that have stopped since the last call; value is the step."""
        stops, self._stops = self._stops, []
        return [Scalar("stopped", step, **own, step=step, epoch=step / steps_per_epoch) for step, own in stops]

    def _rate(self) -> float:
        return self._timed / max(time.perf_counter() - self._began, 1e-9)


class Progress:
    """A bar on a terminal (loss, accuracy, images per second, time left); elsewhere one line per tenth of the steps."""

    def __init__(self, total: int, first: int):
        """A display of the progress from step `first` to step `total`."""
        self._total = total
        self._tenth = first * 10 // max(total, 1)
        terminal = files.is_first() and sys.stderr.isatty()
        self._bar = tqdm(total=total, initial=first, unit="step", dynamic_ncols=True) if terminal else None
        self._text = ""

    def describe(self, text: str) -> None:
        """Set the text beside the bar."""
        self._text = text
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)

    def advance(self, step: int) -> None:
        """Show that `step` steps are done."""
        if self._bar is not None:
            self._bar.update(step - self._bar.n)
        elif step * 10 // self._total > self._tenth and self._text:
            self._tenth = step * 10 // self._total
            files.say(f"step {step}/{self._total}: {self._text}")
            self._text = ""

    def close(self) -> None:
        """End the display."""
        if self._bar is not None:
            self._bar.close()
