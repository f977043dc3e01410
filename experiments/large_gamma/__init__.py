"""Does training fail from gamma 7 on, and is gamma 10 best where classes are rare?

digits, two layers, the recipe of configs/digits.py, 20 seeds side by side: all 1,079 training images, 150 of them, and
a long tail, of which every split keeps a tenth of the last class and shares between for the others. Images: the small
CNN of configs/cifar10.py:quick on 5,000 images of CIFAR-10 (JPEG) without augmentation, 12 epochs, three seeds. A run
is at chance below an accuracy of 0.2; of such a run calibration says nothing, and it is left out of means.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import digits, figures, jobs, numbers
from experiments.numbers import LEARNED, NOT, OUTPUTS, SHOWS, UNTOLD, Claim, learned, rows_where
from experiments.question import Job, Question

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
BEST = (("nll", "NLL", 1, "nats"), ("ece", "ECE", 100, "points"))  # of which gamma is best with rare classes
NUMBERS = {name: OUTPUTS[name] for name in ("accuracy", "ece", "ece after T", "nll", "nll after T", "temperature")}


def make_run(recipe: digits.Recipe) -> Callable:
    """(seed, gamma) -> logits of val and of test."""

    def run(seed, gamma):
        params = recipe.trained_with_focal(seed, gamma)
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


def plan(flags, parts):
    """Digits, then images seed by seed; a run whose loss was not finite counts as one at chance."""
    for task in TASKS:
        yield Job({"task": task}, range(flags.seeds), lambda out, task=task: on_digits(task, flags.seeds), 3)
    for seed in range(min(flags.seeds, 3)):
        fields = FIELDS | jobs.data_of(flags) | {"data.split_seed": 1 + seed}
        how = {"tags": {"gamma": "gamma", "seed": "seed"}, "stopped": {"accuracy": 0.0}, "seconds": 400}
        yield jobs.sweep({"task": IMAGES}, (seed,), "configs/cifar10.py:quick", fields, **how)


def claims(runs):
    """Whether training fails at large gammas, and whether gamma 10 is best with rare classes."""
    for (task, group), gamma in product(runs.groupby("task", sort=False), LARGE):
        large, failed = rows_where(group, gamma=gamma), at_chance(rows_where(group, gamma=gamma))
        said = SHOWS if failed > len(large) / 2 else NOT if failed == 0 else UNTOLD
        because = f"{failed} of {len(large)} runs are at chance"
        yield Claim("M 4", f"{TITLES[task]}: training fails at γ = {gamma:g}", said, because)
        less = numbers.change(learned(large), rows_where(group, gamma=3.0), "accuracy")
        claim = f"{TITLES[task]}: γ = {gamma:g} has a lower accuracy than γ = 3"
        yield numbers.told("M 4", claim, less, scale=100, unit="points")
    rare = rows_where(runs, task="rare")
    for (name, words, scale, unit), gamma in product(BEST, (0.0, 3.0)):
        less = numbers.change(rows_where(rare, gamma=10.0), rows_where(rare, gamma=gamma), name)
        claim = f"{TITLES['rare']}: γ = 10 has a lower {words} as trained than γ = {gamma:g}"
        told = numbers.told("F 2", claim, less, scale=scale, unit=unit)
        yield numbers.outside(told, numbers.too_calm(rows_where(rare, gamma=0.0)))


def at_chance(runs) -> int:
    """How many runs have learned nothing."""
    return int((runs.accuracy < LEARNED).sum())


def ends_table(runs):
    """Accuracy and calibration by gamma, means over the seeds that learned; how many of all stayed at chance."""
    groups = {(TITLES[task], f"{gamma:g}"): of for (task, gamma), of in runs.groupby(["task", "gamma"], sort=False)}
    means = {title: lambda group, cell=cell: cell(learned(group)) for title, cell in numbers.means(NUMBERS).items()}
    return numbers.table(["data", "γ"], groups, {"runs": len, "at chance": at_chance} | means)


def gammas(runs):
    """Test accuracy and ECE as trained against gamma; means over the seeds that learned."""
    figure, panels = figures.row(("accuracy", "ece"), 7.5, 3.6)
    groups = learned(runs).sort_values("gamma").groupby("task", sort=False)
    groups = {title: groups.get_group(task) for task, title in TITLES.items()}
    for axis, name in panels:
        lines = {title: numbers.levels(group, "gamma", name) for title, group in groups.items()}
        figures.lines(axis, lines, scale=100)
        axis.set(xlabel="γ", ylabel=NUMBERS[name].title, ylim=(0, None))
    return figures.legend(figure)


QUESTION = Question(
    "large_gamma",
    "Does training fail from gamma 7 on, and is gamma 10 best where classes are rare?",
    claims,
    tables={"ends": ends_table},
    figures={"gammas": gammas},
    jobs=plan,
    keys={"task": (*TASKS, IMAGES), "gamma": ()},
    options="--data=folder:cifar10.tar.xz",
    cost="480 runs on digits, minutes of 2 cores; 24 on images, 20 minutes of a core",
    seeds=20,
)
