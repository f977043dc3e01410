"""Training with the trace penalty: what it does by its weight, with the rate chosen on val, and by its form.

Weights: digits, configs/digits_trace_sweep.py, ten seeds; CIFAR-10, 2,000 training images without augmentation, 25
epochs with the rate lowered after 18 and 23, otherwise configs/cifar10_trace.py:quick, three seeds. For each form and
weight the rate is one of three, that of the least NLL on val, mean over all seeds; test chooses nothing. "One rate":
rank correlations with the weight, by seed, over the seeds that learned with every weight; where a permutation test
does not reject at 5% that the numbers stand in random order, the interval is extended to 0, and one without width is
of seeds that all rank alike. "Stopped": the loss was no longer finite. "At chance": accuracy below 0.2; such runs are
counted, and left out elsewhere.

Forms, a record of commit 2d99825 that the command trains no more: the Hessian's trace, the Gauss-Newton matrix's, and
that over a quarter of the batch times four, from the same initial weights, batches and random vectors; digits, weights
0.001 and 0.004; CIFAR-10, configs/cifar10_trace.py:quick, 20,000 images, 4 epochs, weight 0.0003. Traces and lambda_max
are those of the Hessian of mean cross-entropy after training, whichever form was the penalty. Noise: the estimates and
gradients at the same parameters, at the start and after training.
"""

from collections.abc import Iterator, Mapping
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from experiments import figures, jobs, numbers
from experiments.numbers import Interval, Number, column, interval, learned, rows_where, shown
from experiments.question import Job, Question
from focalgeo import records

FORMS = {"hessian": "Hessian", "gauss_newton": "Gauss-Newton"}
CRITERION = "val nll"  # least over the rates, mean over seeds
COLUMNS = {
    "ece": Number("ECE, %", 100),
    "accuracy": Number("accuracy, %", 100),
    "nll": Number("NLL, 1/100 nat", 100),
    "trace train": Number("trace, train"),
    "trace val": Number("trace, val"),
    "lambda_max val": Number("λ_max, val"),
    "ece after T": Number("ECE after T, %", 100),
}
ALONG = {  # number -> where the paper says that it falls, words
    "ece": ("K Fig. 4", "ECE as trained"),
    "trace train": ("K 4.3", "the trace on train"),
    "trace val": ("K 4.3", "the trace on val"),
}
MARGIN = 0.01  # of accuracy that counts as none
SURE = 0.1  # ECE without penalty from which on a network is overconfident, as the paper's are: T is not stored
CALM = "without penalty ECE is {:.3g}%: not overconfident"


class Task(NamedTuple):
    """A config with the weights and rates that are swept; at once: how many seeds a job has."""

    title: str
    config: str
    weights: tuple[float, ...]
    rates: tuple[float, ...]
    seeds: int
    at_once: int
    seconds: float  # of a core, for one run
    changes: Mapping[str, Any] = {}


SPLITS = {"curvature.splits": ("val", "train")}
TASKS = {
    "digits": Task(
        "digits",
        "configs/digits_trace_sweep.py",
        (0.0, 0.0002, 0.0005, 0.001, 0.002, 0.004),
        (0.03, 0.1, 0.3),
        10,
        10,
        4,
    ),
    "cifar10": Task(
        "CIFAR-10 (JPEG)",
        "configs/cifar10_trace.py:quick",
        (0.0, 0.00003, 0.0001, 0.0003),
        (0.01, 0.02, 0.05),
        3,
        1,
        90,
        # few images without augmentation, so that the network fits them and becomes overconfident
        SPLITS
        | {"data.train_size": 2_000, "data.augment": "none"}
        | {"optimizer.epochs": 25, "optimizer.decay_epochs": (18, 23)},
    ),
}
PAPER = TASKS["cifar10"]._replace(  # the config's own network, recipe and weights: 1.1e15 operations a run
    config="configs/cifar10_trace.py",
    weights=(0.0, 0.00001, 0.00003, 0.0001, 0.0003),
    rates=(0.05, 0.1, 0.2),
    changes=SPLITS,
)


def train(out: Path, name: str, task: Task, form: str, seeds: tuple[int, ...], data: str | None) -> list:
    """The runs of a form. Runs without penalty are part of the Hessian's job."""
    fields = jobs.T_ALONE | task.changes | ({"data.name": data} if data else {})
    fields |= {
        "loss.trace_of": form,
        "sweep.trace_penalty": task.weights[form != "hessian" :],
        "sweep.learning_rate": task.rates,
        "sweep.seed": seeds,
    }
    folder = out / f"weights-{task.config.replace('/', '-')}-{form}-seeds={seeds[0]}-{seeds[-1]}"
    workdir = jobs.trained(task.config, folder, fields)
    made = {"record": jobs.record(workdir, task.config)}
    return [{"task": name} | run | made for run in runs_of(workdir, form)]


def runs_of(workdir: Path, form: str) -> Iterator[dict[str, Any]]:
    """The runs of a job; one that stopped, its loss no longer finite, has None for each number."""
    tags = {"penalty": "trace_penalty", "rate": "learning_rate", "seed": "seed"}
    for values, rows in jobs.members(records.read_rows(workdir), tags):
        if None not in values.values():
            measured = {name.replace(" CE ", " "): value for name, value in jobs.numbers(rows)}
            measured = {name: measured.get(name, np.nan) for name in (*COLUMNS, CRITERION)}
            finite = np.isfinite(list(measured.values())).all()
            numbers_of = measured if finite else dict.fromkeys(measured)
            yield {"form": form if values["penalty"] else "none", **values, **numbers_of}


def plan(flags, parts):
    """Of each task weights and rates of each form."""
    for name, task in TASKS.items():
        data = flags.data if name == "cifar10" else None
        task = PAPER if (name, flags.scale) == ("cifar10", "paper") else task
        count, seconds = flags.seeds or task.seeds, task.seconds * len(task.rates) * len(task.weights)
        for first, form in product(range(0, count, task.at_once), FORMS):
            seeds = tuple(range(first, min(first + task.at_once, count)))
            make = partial(train, name=name, task=task, form=form, seeds=seeds, data=data)
            yield Job({"task": name, "form": form}, seeds, make, seconds, part="weights")


# ---- the rate chosen on val, and what a number does along the weights

Cells = dict[float, pd.DataFrame]  # penalty -> runs


def of_form(runs, form: str) -> Cells:
    """The runs of each penalty; penalty 0 is the same for all forms."""
    return dict(list(runs[runs.form.isin([form, "none"])].groupby("penalty")))


def criterion(runs) -> pd.Series:
    """Rate -> mean NLL on val over the seeds that every rate has; infinite where a run stopped."""
    values = runs.fillna({CRITERION: np.inf}).pivot(index="seed", columns="rate", values=CRITERION)
    return values.dropna().mean()


def at_best_rate(runs, form: str) -> Cells:
    """The runs of each penalty at the rate of least mean NLL on val, where one has all its runs."""
    cells = {}
    for penalty, group in of_form(runs, form).items():
        means = criterion(group)
        if np.isfinite(means).any():
            cells[penalty] = rows_where(group, rate=means.idxmin())
    return cells


def along(cells: Cells, name: str) -> tuple[Interval, int]:
    """Rank correlation of the number with the penalty, by seed, over the seeds that learned with every one; how many.

    -1 falls throughout. Few ranks of few seeds are often all alike, and the t interval then has no width: where a
    permutation test does not reject, at 5%, that each seed's numbers stand in random order, the interval is extended to
    0.
    """
    table = pd.concat([column(learned(group), name) for group in cells.values()], axis=1, join="inner").to_numpy()
    value = interval([stats.spearmanr(range(len(cells)), row).statistic for row in table]).clipped(-1, 1)
    if value.known and by_chance(abs(value.mean), len(cells), len(table)) >= 0.05:
        value = value._replace(low=min(value.low, 0.0), high=max(value.high, 0.0))
    return value, len(table)


@cache
def by_chance(mean: float, count: int, seeds: int, draws: int = 20_000) -> float:
    """How often the mean rank correlation of so many random orders is at least that far from 0."""
    rng = np.random.default_rng(0)
    orders = rng.permuted(np.broadcast_to(np.arange(count), (draws, seeds, count)), axis=-1)
    centred = np.arange(count) - (count - 1) / 2
    means = (orders @ centred).mean(-1) / (centred @ centred)
    return float((np.abs(means) >= mean - 1e-9).mean())


def by_task(weights) -> dict[str, pd.DataFrame]:
    """Task -> its runs."""
    return {task: group for task in TASKS if len(group := rows_where(weights, task=task))}


def claims(weights):
    """For each task and form: ECE and traces fall with the weight, and accuracy is kept."""
    for (task, runs), (form, name) in product(by_task(weights).items(), FORMS.items()):
        cells, title = at_best_rate(runs, form), f"{TASKS[task].title}, {name}"
        plain = learned(cells[0.0])
        why = CALM.format(100 * plain.ece.mean()) if plain.ece.mean() <= SURE else ""
        for number, (source, words) in ALONG.items():
            ranks, what = along(cells, number)[0], "rank correlation with λ, by seed,"
            told = numbers.told(source, f"{title}: {words} falls with λ", ranks, what=what)
            yield numbers.outside(told, why if number == "ece" else "")
        whole = (at for at, group in cells.items() if at and len(learned(group)) == len(group))
        best, largest = min(whole, key=lambda at: cells[at][CRITERION].mean()), max(cells)
        claim = f"{title}: with the λ above 0 of least NLL on val, ECE is below that without penalty"
        less = numbers.change(learned(cells[best]), plain, "ece")
        told = numbers.told("K Fig. 4", claim, less, scale=100, unit="points of ECE", what=f"λ = {best:g},")
        yield numbers.outside(told, why)
        lost = numbers.change(cells[largest], cells[0.0], "accuracy")  # runs at chance count too
        claim = f"{title}: the largest λ, {largest:g}, costs less than a point of accuracy"
        yield numbers.told("focalgeo", claim, lost, falls=False, margin=MARGIN, scale=100, unit="points", what="")
        for rate, group in runs.groupby("rate"):
            at_rate, largest = of_form(group, form), max(group[group.form == form].penalty)
            plain = at_rate[0.0]
            if len(learned(plain)) == len(plain) and plain.ece.mean() > SURE:
                claim = f"{title}, rate {rate:g}, ECE {100 * plain.ece.mean():.3g}%: λ = {largest:g} lowers ECE"
                less = numbers.change(learned(at_rate[largest]), plain, "ece")
                yield numbers.told("K Fig. 4", claim, less, scale=100, unit="points", what="")


# ---- tables and figure


def tables(weights):
    """Of every task a table for each form, one of the rates, and one at one rate."""
    texts = {}
    for task, runs in by_task(weights).items():
        texts |= {f"{task} {form}": weights_table(runs, form) for form in FORMS}
        texts |= {f"{task} rates": rates_table(runs), f"{task} one rate": one_rate_table(runs)}
    return texts


def weights_table(runs, form: str):
    """Means over seeds for each penalty at the rate chosen on val, with differences of ECE and accuracy to none."""
    groups = {}
    for penalty, group in at_best_rate(runs, form).items():
        ended = learned(group)
        groups[f"{penalty:g}", f"{group.rate.iloc[0]:g}", len(group), len(group) - len(ended)] = ended
    less = {"ece": Number("ECE minus ECE at λ = 0", 100), "accuracy": Number("accuracy less", 100)}
    columns = numbers.means(COLUMNS) | numbers.changes(less, next(iter(groups.values())))
    return numbers.table(["λ", "rate", "seeds", "at chance"], groups, columns)


def rates_table(runs):
    """Mean NLL on val by rate, the chosen one in bold, and how many of its runs are at chance or stopped."""
    yield "form", "λ", *(f"rate {rate:g}" for rate in sorted(runs.rate.unique()))
    for form, title in FORMS.items():
        for penalty, group in of_form(runs, form).items():
            means, cells = criterion(group), []
            for rate, mean in means.items():
                bold = "**" if rate == means.idxmin() else ""
                at_rate = rows_where(group, rate=rate)
                lost = len(at_rate) - len(learned(at_rate))
                text = f"{100 * mean:.4g}" if np.isfinite(mean) else "stopped"
                cells.append(f"{bold}{text}{bold}" + (f" ({lost} at chance)" if lost else ""))
            yield title, f"{penalty:g}", *cells


def one_rate_table(runs):
    """Rank correlations with the penalty at one rate, over the seeds that learned with every penalty."""
    yield "form", "rate", "seeds", *(COLUMNS[name].title.removesuffix(", %") for name in ALONG)
    for (form, title), rate in product(FORMS.items(), sorted(runs.rate.unique())):
        ranks, counts = zip(*(along(of_form(rows_where(runs, rate=rate), form), name) for name in ALONG), strict=True)
        yield title, f"{rate:g}", counts[0], *(shown(value, signed=True) for value in ranks)


def draw(weights):
    """ECE, accuracy and trace against the weight, at the rates chosen on val: a row for each task."""
    tasks, names = by_task(weights), ("ece", "accuracy", "trace train")
    figure, axes = figures.panels(len(tasks), len(names), 10.5, 3.3 * len(tasks) + 0.4)
    for row, (task, runs) in zip(axes, tasks.items(), strict=True):
        cells = {title: at_best_rate(runs, form).items() for form, title in FORMS.items()}
        for axis, name in zip(row, names, strict=True):
            level = lambda group, name=name: numbers.level(learned(group), name)  # noqa: E731
            levels = {title: {at: level(group) for at, group in of_form} for title, of_form in cells.items()}
            figures.lines(axis, levels, scale=COLUMNS[name].scale)
            axis.set(xlabel="weight λ of the penalty", ylabel=COLUMNS[name].title)
        row[1].set_title(f"{TASKS[task].title}, n = {runs.seed.nunique()}")
        figures.logarithmic(row[2], "y")
    return figures.legend(figure)


QUESTION = Question(
    "trace_penalty",
    "What does training with the trace penalty do, by its weight and by its form, and what does it cost?",
    claims,
    texts=tables,
    figures={"weights": draw},
    jobs=plan,
    keys={"task": (), "form": (), "penalty": (), "rate": ()},
    cost=lambda weights: f"{len(weights)} runs over weights and rates",
    answers=("K Fig. 4",),
    seeds=None,
)
