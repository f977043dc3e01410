"""Curvature and calibration over ways of training: do they go together once accuracy and confidence are held fixed?

digits, two layers, configs/digits_gamma.py; 14 ways of training x 20 seeds, each way one compiled sweep. "Own" is the
trained loss without a penalty, so that cross-entropy, MMCE, both trace penalties, SAM and ASAM have cross-entropy's
surface for their own. A run that does not train (accuracy below 20%) would be left out; of these none is. lambda_max by
Lanczos, traces by Hutch++, after training, on 359 examples of val and of train. Sharpness as the field measures it, on
train, as there: the worst rise of the loss within a ball of radius 0.5 and the mean rise by noise of 0.1, both measured
by each weight's size; the standard deviation of noise that adds 0.1 nats, or a tenth, to the loss, which is the larger
the flatter; the Fisher-Rao norm w'Fw.

Rank correlations, and partial ones: of ranks once a linear function of the ranks of accuracy and of the mean p of the
label on test is taken from both. Between ways: 14 means over seeds, 95% by the bootstrap over ways. Within: each run
minus the mean of its way, 95% by the bootstrap over seeds. Hypotheses, written before the run: 1. between ways ECE as
trained grows with the trace of cross-entropy's Hessian, and not with that of the own loss; 2. once accuracy and p of
the label are held fixed nothing of this is left; 3. within a way, over seeds, there is no correlation but for NLL
after T. Written before sharpness was measured: 4. between ways ECE goes with each measure of cross-entropy's sharpness
as with its trace (with noise borne the other way), but for the noise that adds a tenth, from which confidence has gone;
5. with accuracy and p of the label held fixed none of them differs significantly from 0.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from experiments import figures, jobs, numbers
from experiments.numbers import OUTPUTS, Claim, Interval, Number, rows_where, shown
from experiments.question import Question
from focalgeo import records

CONFIG = "configs/digits_gamma.py"


def _loss(name: str, **more: Any) -> dict[str, Any]:
    return {"loss.name": name} | {f"loss.{field}": value for field, value in more.items()}


WAYS = {  # of training -> title, and what its job has beside the config
    "ce": ("cross-entropy", _loss("cross_entropy")),
    "ls": ("label smoothing, 0.05", _loss("label_smoothed_cross_entropy", smoothing=0.05)),
    "brier": ("Brier", _loss("brier_loss")),
    "mmce": ("MMCE", _loss("mmce", penalty_weight=2.0)),
    "fl1": ("focal, γ = 1", _loss("focal_loss", gamma=1.0)),
    "fl3": ("focal, γ = 3", _loss("focal_loss", gamma=3.0)),
    "fl5": ("focal, γ = 5", _loss("focal_loss", gamma=5.0)),
    "flsd53": ("FLSD-53", _loss("flsd_53")),
    "adafocal": ("AdaFocal", _loss("adafocal_loss")),
    "dual": ("dual focal, γ = 3", _loss("dual_focal_loss", gamma=3.0)),
    "trace": ("trace penalty, 0.004", _loss("cross_entropy", trace_penalty=0.004)),
    "gn_trace": ("Gauss-Newton penalty, 0.004", _loss("cross_entropy", trace_penalty=0.004, trace_of="gauss_newton")),
    "sam": ("SAM, 0.05", _loss("cross_entropy") | {"optimizer.sam_radius": 0.05}),
    "asam": ("ASAM, 1", _loss("cross_entropy") | {"optimizer.sam_radius": 1.0, "optimizer.sam_adaptive": True}),
}
CURVATURE = {
    "lambda_max CE val": Number("λ_max, CE, val"),
    "trace CE val": Number("trace, CE, val"),
    "scale_free_trace CE val": Number("scale-free trace, CE, val"),
    "lambda_max own val": Number("λ_max, own, val"),
    "trace own val": Number("trace, own, val"),
    "trace CE train": Number("trace, CE, train"),
    "trace own train": Number("trace, own, train"),
}
_SHARPNESS = {
    "adaptive_sharpness": "adaptive sharpness",
    "average_sharpness": "mean adaptive sharpness",
    "pac_bayes_sigma": "noise that adds 0.1 nats",
    "relative_sigma": "noise that adds a tenth",
}
CURVATURE |= {
    f"{name} {of} train": Number(f"{title}, {of}, train") for of in ("CE", "own") for name, title in _SHARPNESS.items()
}
CURVATURE["fisher_rao_norm CE train"] = Number("Fisher–Rao norm, CE, train")
CALIBRATION = ("ece", "ece after T", "nll after T")
FIXED = ("accuracy", "p_y")
MEASURED = {
    "train accuracy": OUTPUTS["train accuracy"],
    "accuracy": Number("accuracy on test, %", 100),
    "p_y": Number("mean p of the label, %", 100),
    "ece": OUTPUTS["ece"],
    "ece after T": OUTPUTS["ece after T"],
    "nll": Number("NLL as trained, nats"),
    "nll after T": Number("NLL after T, nats"),
    "temperature": OUTPUTS["temperature"],
}


def p_y(run, rows, workdir):
    """The mean probability of the label on test."""
    test = records.read_predictions(workdir / "members" / f"seed={run['seed']}", "test")
    return {"p_y": float(special.softmax(test.logits, -1)[np.arange(len(test.labels)), test.labels].mean())}


def plan(flags, parts):
    """A sweep over seeds for each way of training."""
    for way, (_, fields) in WAYS.items():
        beside = {"sweep.gamma": (), "evaluation.methods": ("temperature_scaling",), "curvature.sharpness": True}
        yield jobs.sweep(
            {"training": way}, range(flags.seeds), CONFIG, beside | fields, seconds=6, parts=True, more=p_y
        )


def groups(runs) -> dict[str, pd.DataFrame]:
    """Title -> the runs of a way that have learned something, with the numbers of its own loss."""
    runs = numbers.with_own(numbers.learned(runs))
    every = {title: rows_where(runs, training=way) for way, (title, _) in WAYS.items()}
    return {title: group for title, group in every.items() if len(group)}


def between(runs, *names: str) -> Interval:
    """Over ways of training, each the mean of its seeds; 95% by the bootstrap over ways of training."""
    means = np.array([group[list(names)].mean() for group in groups(runs).values()])
    return numbers.bootstrapped(len(means), lambda ways: numbers.partial_rank_correlation(means[ways]))


def within(runs, *names: str) -> Interval:
    """Over runs, each minus the mean of its way of training; 95% by the bootstrap over seeds, of all ways at once."""
    ways = [group.set_index("seed")[list(names)] for group in groups(runs).values()]
    table = pd.concat(ways, axis=1, join="inner").sort_index().to_numpy()
    table = (table - table.mean(0)).reshape(len(table), len(ways), len(names))

    def statistic(seeds):
        return numbers.partial_rank_correlation(table[seeds].reshape(*seeds.shape[:-1], -1, len(names)))

    return numbers.bootstrapped(len(table), statistic)


def claims(runs):
    """ECE as trained against each curvature, between and within ways of training, plain and held fixed."""
    ways = {"between ways of training": between, "within a way of training": within}
    for (words, correlation), (name, (title, _)) in product(ways.items(), CURVATURE.items()):
        held, free = correlation(runs, name, "ece", *FIXED), correlation(runs, name, "ece")
        falls = "sigma" in name  # the larger, the flatter
        claim = f"{words}, accuracy and p_y held fixed: ECE as trained {'falls' if falls else 'grows'} with {title}"
        because = f"rank correlation {shown(held, signed=True)}; nothing held fixed {shown(free, signed=True)}"
        yield Claim("focalgeo", claim, numbers.verdict(held, falls=falls), because)


def correlations_table(runs, correlation: Callable):
    """Each curvature against each measure of calibration, plain and with accuracy and p_y held fixed."""
    titles = [OUTPUTS[name].title.removesuffix(", %") for name in CALIBRATION]
    yield "curvature", *(f"{title}{end}" for title in titles for end in ("", ", held fixed"))
    for name, (title, _) in CURVATURE.items():
        correlations = (correlation(runs, name, other, *fixed) for other, fixed in product(CALIBRATION, ((), FIXED)))
        yield title, *(shown(value, signed=True, digits=2) for value in correlations)


def confidence_table(runs):
    """Rank correlations over ways of training with the mean p of the label."""
    yield "", "with the mean p of the label"
    for name, (title, _) in ({"ece": OUTPUTS["ece"]} | CURVATURE).items():
        yield title, shown(between(runs, name, "p_y"), signed=True, digits=2)


def outputs_table(runs):
    """Accuracy and calibration by way of training, with the paired difference of ECE to cross-entropy."""
    ways = groups(runs)
    less = {"ece": Number("ECE minus cross-entropy's, %", 100)}
    columns = numbers.means(MEASURED)
    return numbers.table(["trained with"], ways, columns | numbers.changes(less, ways[WAYS["ce"][0]]))


def trace_and_ece(runs):
    """ECE as trained against both traces on val: each run faint, the mean of each way, named in the legend."""
    traces = {"CE": "trace of cross-entropy's Hessian on val", "own": "trace of the own loss's Hessian"}
    figure, panels = figures.row(traces.items(), 7.5, 4.6, sharey=True)
    for axis, (of, label) in panels:
        for place, (title, group) in enumerate(groups(runs).items()):
            look, trace = figures.look(place), group[f"trace {of} val"]
            axis.scatter(trace, 100 * group.ece, s=8, alpha=0.25, linewidths=0, **look)
            axis.scatter(trace.mean(), 100 * group.ece.mean(), s=46, edgecolor="white", label=title, **look)
        figures.logarithmic(axis, "x", "y")
        axis.set_xlabel(label)
    figure.axes[0].set_ylabel(f"test ECE as trained, %, n = {runs.seed.nunique()} seeds")
    return figures.legend(figure, "right center", 1)


QUESTION = Question(
    "curvature_of_losses",
    "Does calibration follow the curvature of any surface, once accuracy and confidence are held fixed?",
    claims,
    tables={
        "between": lambda runs: correlations_table(runs, between),
        "within": lambda runs: correlations_table(runs, within),
        "confidence": confidence_table,
        "curvature": lambda runs: numbers.means_table(["trained with"], groups(runs), CURVATURE, "seeds"),
        "changes": lambda runs: numbers.changes_table(["trained with"], groups(runs), CURVATURE, numbers.ratios),
        "outputs": outputs_table,
    },
    figures={"trace_and_ece": trace_and_ece},
    jobs=plan,
    keys={"training": WAYS},
    seeds=20,
    answers=("K 5, other algorithms",),
)
