"""M Fig. 8: test images that cross-entropy's network gets right, and wrong, with confidences before and after T."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from experiments import cells, jobs
from experiments.cells import LOSSES
from experiments.during_training.numbers import Runs
from focalgeo import job
from focalgeo.config import load_config, with_values
from focalgeo.job.preparation import prepare
from focalgeo.types import InputError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHOWN = ("ce", "fl3")
EACH = 4  # right and wrong images, as in the paper


def draw(runs: Runs, folder: Path, data: str) -> None:
    """Write images.png: the first stored images that both networks of the first seed get right, and both wrong.

    Raises:
        InputError: the data are not those of the runs, or no seed has both losses.
    """
    own = pair(runs)
    chosen = choose(own)
    split = test_split(data)
    images = own["ce"]["diagnostics"]["images"]
    index, label = np.asarray(images["index"]), np.asarray(images["label"])
    if len(split.y) <= index.max() or (split.y[index] != label).any():
        raise InputError(f"--cifar10 {data}: its test images are not those of the stored runs: give the same files")
    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(2, EACH, figsize=(9.6, 5.6))
    for axis in axes.flat:
        axis.axis("off")
    for row, places in zip(axes, chosen, strict=True):
        for axis, place in zip(row, places, strict=False):
            _panel(axis, split.x[index[place]], own, place)
    figure.tight_layout()
    figure.savefig(folder / "images.png", dpi=120, bbox_inches="tight", pil_kwargs={"optimize": True})
    plt.close(figure)


def pair(runs: Runs) -> dict[str, dict]:
    """Loss -> run of the first seed that both losses have.

    Raises:
        InputError: there is none.
    """
    seeds = [{run["seed"] for run in runs if run["loss"] == loss} for loss in SHOWN]
    both = set.intersection(*seeds)
    if not both:
        raise InputError("no seed has runs of both CE and FL-3: train them with python -m experiments.cells")
    return {run["loss"]: run for run in runs if run["loss"] in SHOWN and run["seed"] == min(both)}


def choose(own: dict[str, dict]) -> tuple[list[int], list[int]]:
    """Places of the first images, one a class, that both networks get right, and that both get wrong."""
    found = [run["diagnostics"]["images"] for run in own.values()]
    label = np.asarray(found[0]["label"])
    right = np.array([np.asarray(images["predicted"]) == label for images in found])
    return _one_a_class(right.all(0), label), _one_a_class(~right.any(0), label)


def _one_a_class(wanted: np.ndarray, label: np.ndarray) -> list[int]:
    firsts = {int(label[place]): int(place) for place in np.flatnonzero(wanted)[::-1]}
    return sorted(firsts.values())[:EACH]


def test_split(data: str):
    """The test images and labels in the order of the runs' predictions."""
    config = load_config(jobs.ROOT / "configs" / "cifar.py", f"{cells.TASKS['cifar10'].small},ce")
    return prepare(job.check_config(with_values(config, {"data.name": data}))).dataset.test


def _panel(axis: Axes, image: np.ndarray, own: dict[str, dict], place: int) -> None:
    lines = []
    for loss, run in own.items():
        found = run["diagnostics"]["images"]
        before, after = (100 * found[key][place] for key in ("confidence", "after"))
        lines.append(f"{LOSSES[loss]}: {CLASSES[found['predicted'][place]]} {before:.1f} → {after:.1f}%")
    axis.imshow(image, interpolation="nearest")
    axis.set_title(CLASSES[own["ce"]["diagnostics"]["images"]["label"][place]], fontsize=10)
    axis.text(0.5, -0.04, "\n".join(lines), transform=axis.transAxes, ha="center", va="top", fontsize=9)
