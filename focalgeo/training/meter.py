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
        zeros = np.zeros(len(tags))
        self._sums = {name: np.asarray(sums.get(name, zeros)) for name in (*SUMMED, "seen")}
        self._tags, self._frozen, self._sweep = tags, np.array(frozen, bool), sweep
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
        (step, groups), self._pending = jax.device_get(self._pending), None
        metrics = {name: np.concatenate([np.ravel(group[name]) for group in groups]) for name in groups[0]}
        metrics = {name: values.astype(float) for name, values in metrics.items()}
        self.stop = bool(np.any(metrics.get("stop", 0)))
        self._freeze(int(step), metrics)
        running = ~self._frozen
        for name, values in self._sums.items():
            self._sums[name] = values + np.where(running, metrics["count" if name == "seen" else name], 0)
        self._timed += float(np.sum(metrics["count"], where=running))

    def _freeze(self, step: int, metrics: dict[str, np.ndarray]) -> None:
        """Note the members of a sweep that stop at this step; end a run alone."""
        finite = np.all([np.isfinite(metrics[name]) for name in FINITE], axis=0)
        for index in np.flatnonzero(~finite & ~self._frozen):
            name = next(name for name in FINITE if not np.isfinite(metrics[name][index]))
            what = f"the {name.replace('_', ' ')} is {metrics[name][index]} at step {step}"
            if not self._sweep:
                raise RunError(
                    f"{what}; what was saved before is kept. Lower config.optimizer.learning_rate or set "
                    "config.optimizer.clip_norm, in a new --workdir"
                )
            self._frozen[index] = True
            who = ", ".join(f"{key} {value}" for key, value in self._tags[index].items())
            files.say(f"member {who} stops, the others go on: {what}")
            self._stops.append((step, self._tags[index]))

    def text(self) -> str:
        """Mean loss, accuracy and rate since the last row, as text for the progress display."""
        running = ~self._frozen
        if not running.any():
            return "all members have stopped"
        loss, correct, count = (np.sum(self._sums[name], where=running) for name in ("loss", "correct", "count"))
        count = max(count, 1.0)
        return f"loss {loss / count:.4f}, accuracy {correct / count:.3f}, {self._rate():.0f} examples/s"

    def rows(self, step: int, epoch: float, learning_rate: np.ndarray) -> list[Scalar]:
        """The rows of the training split since the last ones, after which the sums start anew.

        learning_rate: of each member at this step.
        """
        rows, rate = [], self._rate() / max(np.sum(~self._frozen), 1)
        for index in np.flatnonzero(self._sums["count"]):
            tags = {**self._tags[index], "step": step, "epoch": epoch}
            sums = {name: values[index] for name, values in self._sums.items()}
            count, penalty = sums["count"], sums["penalty"]
            means = {"loss": sums["loss"] / count, "accuracy": sums["correct"] / count}
            now = {
                "learning_rate": float(learning_rate[index]),
                "examples_per_second": rate,
                "examples_seen": sums["seen"],
            }
            rows += [Scalar(name, value, int(count), "train", **tags) for name, value in means.items()]
            rows += [Scalar(name, value, None, "train", **tags) for name, value in now.items()]
            rows += [Scalar("penalty", penalty / count, int(count), "train", **tags)] if penalty else []
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
        self._total, self._tenth, self._text = total, first * 10 // max(total, 1), ""
        hidden = not (files.is_first() and sys.stderr.isatty())
        self.bar = tqdm(total=total, initial=first, unit="step", dynamic_ncols=True, disable=hidden)

    def describe(self, text: str) -> None:
        """Set the text beside the bar."""
        self._text = text
        self.bar.set_postfix_str(text, refresh=False)

    def advance(self, step: int) -> None:
        """Show that `step` steps are done."""
        self.bar.update(step - self.bar.n)
        if self.bar.disable and self._text and step * 10 // self._total > self._tenth:
            self._tenth = step * 10 // self._total
            files.say(f"step {step}/{self._total}: {self._text}")
            self._text = ""
