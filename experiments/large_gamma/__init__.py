"""Does training fail from gamma 7 on, and is gamma 10 best where classes are rare?

digits, two layers, the recipe of configs/digits.py, 20 seeds side by side: all 1,079 training images, 150 of them, and
a long tail, of which every split keeps a tenth of the last class and shares between for the others. Images: the small
CNN of configs/cifar10.py:quick on 5,000 images of CIFAR-10 (JPEG) without augmentation, 12 epochs, three seeds. A run
is at chance below an accuracy of 0.2; of such a run calibration says nothing, and it is left out of means.
"""

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import digits, figures, jobs, numbers
from experiments.numbers import LEARNED, NOT, OUTPUTS, SHOWS, UNTOLD, Claim, learned, rows_where
from experiments.question import Flags, Job, Parts, Question
from focalgeo import losses, records

GAMMAS = (0.0, 1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0)
LARGE = (7.0, 10.0, 15.0)
TASKS = {  # name -> title, training examples, tail
    "digits": ("digits", None, 1.0),
    "few": ("digits, 150 training images", 150, 1.0),
    "rare": ("digits, a long tail of classes", None, 10.0),
}
IMAGES = "images"
TITLES = {name: title for name, (title, *_) in TASKS.items()} | {IMAGES: "CIFAR-10 (JPEG), small CNN"}
FIELDS = {
    "data.augment": "none",
    "data.train_size": 5000,
    "data.val_size": 5000,
    "optimizer.batch_size": 32,
    "optimizer.decay_epochs": (5, 9),
    "log_every": 500,
    "curvature.examples": 0,
    "sweep.gamma": GAMMAS,
    "sweep.at_once": 1,
} | jobs.T_ALONE
NUMBERS = {name: OUTPUTS[name] for name in ("accuracy", "ece", "ece after T", "nll", "nll after T", "temperature")}


def make_run(recipe: digits.Recipe) -> Callable:
    """(seed, gamma) -> logits of val and of test."""

    def run(seed, gamma):
        def objective(params, carried, x, y, mask):
            return jnp.sum(losses.focal_loss(recipe.logits(params, x), y, gamma) * mask) / jnp.sum(mask), carried

        params = recipe.trained(seed, objective)
        return tuple(recipe.logits(params, recipe.splits[name][0]) for name in ("val", "test"))

    return run


def on_digits(task: str, seeds: int) -> list[dict[str, Any]]:
    """The runs of a task on digits, all side by side."""
    _, examples, tail = TASKS[task]
    recipe, every = digits.read(examples, tail=tail), list(product(range(seeds), GAMMAS))
    outputs = jax.jit(jax.vmap(make_run(recipe)))(*map(jnp.array, zip(*every, strict=True)))
    return [
        {"task": task, "gamma": gamma, "seed": seed, **digits.scores(val, test, recipe)}
        for (seed, gamma), val, test in zip(every, *map(np.asarray, outputs), strict=True)
    ]


def on_images(seed: int, data: str | None, out: Path) -> list[dict[str, Any]]:
    """The runs of a seed on images; one whose loss was not finite has its gamma and seed alone."""
    fields = FIELDS | {"sweep.seed": (seed,), "data.split_seed": 1 + seed} | ({"data.name": data} if data else {})
    workdir = jobs.trained("configs/cifar10.py:quick", out / f"images,seed={seed}", fields)
    rows, runs = records.read_rows(workdir), []
    made = jobs.record(workdir, "configs/cifar10.py:quick", rows)
    for values, group in jobs.members(rows, {"gamma": "gamma", "seed": "seed"}):
        if values["gamma"] is None:  # of the job as a whole
            continue
        measured = {name: value for name, value in jobs.numbers(group) if name in NUMBERS}
        runs.append({"task": IMAGES, **values, "accuracy": 0.0, **measured, "record": made})
    return runs


def plan(flags: Flags, parts: Parts) -> Iterator[Job]:
    """Digits, then images seed by seed."""
    for task in TASKS:
        yield Job({"task": task}, range(flags.seeds), lambda out, task=task: on_digits(task, flags.seeds), 3)
    for seed in range(min(flags.seeds, 3)):
        make = lambda out, seed=seed: on_images(seed, flags.data, out)  # noqa: E731
        yield Job({"task": IMAGES}, (seed,), make, 400)


def claims(runs) -> list[Claim]:
    """Whether training fails at large gammas, and whether gamma 10 is best with rare classes."""
    told = []
    for task, group in runs.groupby("task", sort=False):
        for gamma in LARGE:
            large = rows_where(group, gamma=gamma)
            failed = int((large.accuracy < LEARNED).sum())
            said = SHOWS if failed > len(large) / 2 else NOT if failed == 0 else UNTOLD
            because = f"{failed} of {len(large)} runs are at chance"
            told.append(Claim("M 4", f"{TITLES[task]}: training fails at γ = {gamma:g}", said, because))
            less = numbers.change(learned(large), rows_where(group, gamma=3.0), "accuracy")
            claim = f"{TITLES[task]}: γ = {gamma:g} has a lower accuracy than γ = 3"
            told.append(numbers.told("M 4", claim, less, scale=100, unit="points"))
    rare = rows_where(runs, task="rare")
    for number, words in {"nll": "NLL as trained", "ece": "ECE as trained"}.items():
        for gamma in (0.0, 3.0):
            less = numbers.change(rows_where(rare, gamma=10.0), rows_where(rare, gamma=gamma), number)
            claim = f"{TITLES['rare']}: γ = 10 has a lower {words} than γ = {gamma:g}"
            scale, unit = (100, "points") if number == "ece" else (1, "nats")
            told.append(numbers.told("F 2", claim, less, scale=scale, unit=unit))
    return told


def ends_table(runs) -> str:
    """Accuracy and calibration by gamma, means over the seeds that learned; how many of all stayed at chance."""
    groups = {
        (TITLES[task], f"{gamma:g}"): group for (task, gamma), group in runs.groupby(["task", "gamma"], sort=False)
    }

    def at_chance(group):
        return int((group.accuracy < LEARNED).sum())

    means = {title: lambda group, cell=cell: cell(learned(group)) for title, cell in numbers.means(NUMBERS).items()}
    return numbers.table(["data", "γ"], groups, {"runs": len, "at chance": at_chance} | means)


def gammas(runs):
    """Test accuracy and ECE as trained against gamma; means over the seeds that learned."""
    figure, [axes] = figures.panels(1, 2, 8.6, 3.6)
    for axis, name in zip(axes, ("accuracy", "ece"), strict=True):
        groups = {TITLES[task]: group for task, group in learned(runs).groupby("task", sort=False)}
        lines = {title: numbers.levels(group.sort_values("gamma"), "gamma", name) for title, group in groups.items()}
        figures.lines(axis, lines, scale=100)
        axis.set(xlabel="γ", ylabel=NUMBERS[name].title, ylim=(0, None))
    figures.legend(figure)
    return figure


QUESTION = Question(
    "large_gamma",
    "Does training fail from gamma 7 on, and is gamma 10 best where classes are rare?",
    claims,
    tables={"ends": ends_table},
    figures={"gammas": gammas},
    jobs=plan,
    keys={"task": (*TASKS, IMAGES), "gamma": ()},
    within=("gamma", "seed"),
    options="--data=folder:cifar10.tar.xz",
    cost="480 runs on digits, minutes of 2 cores; 24 on images, 20 minutes of a core",
    seeds=20,
)
