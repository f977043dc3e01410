"""Four designs that move curvature or calibration by itself, to see whether the other follows.

Regimes: digits, two layers, the recipe of configs/digits.py, as it is and with 150 training images, 20 seeds;
CIFAR-10 (JPEG), configs/cifar.py:fitted, a small ResNet that fits its 7,500 images, 3 seeds with their own images.
Curvature is that of mean cross-entropy, or of focal loss with gamma 3 ("own"), on the first 500 examples of val or
train (359 of digits' val; 100 images) in evaluation mode; ECE on test. 95% intervals over seeds.

Hypotheses and tests, written before the runs, but after a trial of (a) and (d) on two seeds of digits:
(a) Same function: layers are scaled against each other, or weights before batch norm, by 2^-8 to 2^8. 1. lambda_max and
trace move over four decades or more and probabilities by 1e-5 at most, in every seed; 2. ECE moves by less than 0.01
points; 3. the scale-free trace moves by less than 1%.
(b) Chosen spectra, a record of commit 2d99825: softmax regression and two-layer linear networks, 40
features of a chosen covariance with mean eigenvalue 1, 400 examples, five classes; labels are drawn from a known model
that reaches all coordinates, or only the eight of largest ("steep") or least eigenvalue ("flat"), its logits of
standard deviation 2. Gradient descent ends where the loss on train is 0.85 times that of the truth. Curvature by closed
forms on train; ECE and T on test, as the truth expects them. 4. features times 0.1 and 10 move both curvatures over
four decades and leave ECE and T as they are; 5. over spectra and places of the truth ECE grows neither with lambda_max
nor with the trace once accuracy and train loss are held: what moves it is where the truth lies, in steep or flat
directions.
(c) Dose and response: training is held at 0.1, 0.3, 1, 3 and 10 times the median trace of plain training, by the trace
of the Hessian, of Gauss-Newton, or the scale-free one. The response is the slope of ECE over log10 of the trace that
was reached, each seed's mean taken from all, with test accuracy and the log of train NLL as further regressors; its
interval is the bootstrap's over seeds. 6. Under the causal claim the slope is above 0 for both losses; we expect it
not to be, and what slope there is without accuracy and train loss held to vanish or turn when they are.
(d) The reverse: cross-entropy's network is given focal loss's mean confidence by a temperature folded into its last
layer ("folded"), or trained to it by a penalty whose weight follows the batch's mean confidence ("held", digits).
The share is the change of the log of a curvature over that under focal loss, by seed, where that is more than a tenth
and of one sign in all seeds; "own" goes from cross-entropy's surface at its network to focal loss's at its own.
7. Folding explains more than half of the change in trace and lambda_max in every regime.

The bound of focal loss's Gauss-Newton trace upward was halved after its runs, whose target of 10 times was missed by
11%. On CIFAR-10 (c) was added after the runs on digits: three targets of cross-entropy's Gauss-Newton trace, times the
median Hessian trace of its networks of (d), with clipped gradients, which those have not; bounds were found by trials.
With three doses a seed nothing can be held, and the slope is the mean of the seeds' own, its interval Student's t.
Focal loss was tried with one seed and the same bounds, and not kept: at 0.3, 1 and 3 times 31, 49 and 10% of its images
were right. All runs on CIFAR-10 are a record of commit 2d99825, which the command trains no more; what was found by (b)
and by (c) on CIFAR-10 is text, below.

Verdicts by regime: a curvature is a cause where (c) shows its slope above 0 for an invariant trace; a common
consequence of confidence where (d) explains more than half and (c) does not; else undecided.
"""

from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from experiments import figures, jobs, numbers
from experiments.causes import networks
from experiments.numbers import NOT, OUTPUTS, SHOWS, Claim, Interval, Number, interval, rows_where, shown
from experiments.question import Flags, Job, Parts, Question
from focalgeo.rows import Diagnostic, select

# nothing trains the last any more: its rows are a record that tables and claims read
REGIMES = {"digits": "digits", "few": "digits, 150 images", "cifar10": "CIFAR-10, fitted"}
EXAMPLES = {"digits": None, "few": 150}  # of training
TITLES = {"trace": "trace", "lambda_max": "λ_max", "scale_free_trace": "scale-free trace"}
SURFACES = {  # number -> words
    f"{name} {loss} {split}": f"{title}, {'CE' if loss == 'CE' else 'own'}, {split}"
    for split in ("val", "train")
    for loss in ("CE", "own")
    for name, title in TITLES.items()
}
DIGITS = "configs/digits_gamma.py"
SCHEDULE = {  # of training to a target
    "optimizer.clip_norm": 1.0,
    "optimizer.epochs": 100,
    "optimizer.decay_epochs": (40, 80),
    "sweep.gamma": (),
    "curvature.splits": ("train",),
    "diagnostics.every": 100,
    "diagnostics.splits": ("train",),
} | jobs.T_ALONE
LOSSES = {0.0: "cross_entropy", networks.GAMMA: "focal_loss"}
FACTORS = ((0.1, 0.3, 1.0), (3.0, 10.0))  # of plain training's trace, downward and upward
MATRICES = {  # whose trace is held -> its number
    "hessian": "trace CE train",
    "scale_free": "scale_free_trace CE train",
    "gauss_newton": "trace, gauss_newton CE train",
}
BOUNDS = {"hessian": 0.004, "gauss_newton": 0.004, "scale_free": 0.04}  # of the weight
UPWARD = {"hessian": 4, "gauss_newton": 8, "scale_free": 4}  # of focal loss upward the bound is that part
SHOWN = ("trace CE train", "lambda_max CE train", "trace own train", "lambda_max own train")  # in the figure
SAME, DECADES, REACH = 1e-5, 4, 0.1  # of probabilities, of curvature, of a target
NUMBERS = OUTPUTS | {name: Number(title) for name, title in (TITLES | SURFACES).items()}
NUMBERS |= {name: Number(name) for name in ("train nll", "folded T", "confidence", MATRICES["gauss_newton"])}
DOSE = (*MATRICES.values(), "train accuracy", "train nll", "accuracy", "ece", "ece after T", "temperature")
WAYS = ("train accuracy", "accuracy", "ece", "ece after T", "temperature", "confidence", "folded T", *SURFACES)
MEASURED = {"rescaled": networks.same_function, "reverse": networks.reverse}  # part -> its runs of networks


def plan(flags: Flags, parts: Parts) -> Iterator[Job]:
    """(a), (d) and (c) on digits."""
    seeds = range(flags.seeds)
    for regime, examples in EXAMPLES.items():
        for part, measure in MEASURED.items():
            make = partial(_of_digits, measure, regime, examples, len(seeds))
            yield Job({"regime": regime}, seeds, make, 3, part=part)
    yield from _doses(flags, parts)


def _of_digits(measure, regime, examples, seeds, out: Path):
    every = networks.on_digits(examples, seeds)
    return [{"regime": regime, "seed": seed} | run for seed, trained in every for run in measure(trained)]


def _doses(flags, parts):
    """Plain training, then training to each target, whose traces follow from the medians of plain runs."""
    for gamma, loss in LOSSES.items():
        fields, seeds = SCHEDULE | {"loss.name": loss, "loss.gamma": gamma}, range(flags.seeds)
        of = {"regime": "digits", "gamma": gamma, "of": "", "doses": ""}
        yield jobs.sweep(of, seeds, DIGITS, fields, seconds=3, tags={"seed": "seed"}, parts=True, more=_train)
        plain = pd.DataFrame([run for run in parts.get("runs", []) if of.items() <= run.items()])
        for (matrix, name), factors in product(MATRICES.items() if len(plain) else (), FACTORS):
            median = float(plain[name].median())
            bound = BOUNDS[matrix] / (UPWARD[matrix] if gamma and factors[0] > 1 else 1)
            targets = tuple(round(factor * median, 5) for factor in factors)
            steered = {"loss.trace_of": matrix, "loss.trace_bound": bound, "sweep.trace_target": targets}
            doses = {"of": matrix, "doses": ", ".join(f"{factor:g}" for factor in factors)}
            how = {"tags": {"target": "trace_target", "seed": "seed"}, "parts": True}
            train = partial(_train, median=median)
            yield jobs.sweep(of | doses, seeds, DIGITS, fields | steered, seconds=30, more=train, **how)


def _train(run, rows, workdir, median=None):
    """The NLL on train after training, and the target as a factor of the plain runs' median."""
    rows = [row for row in select(rows, Diagnostic, name="nll", split="train") if row.outcome is None]
    factor = {} if median is None else {"factor": float(f"{run['target'] / median:.2g}")}
    return {"train nll": rows[-1].value} | factor


# ---- statistics


def effect(runs: pd.DataFrame, number: str, by: str, *fixed: pd.Series) -> Interval:
    """The slope of a number over log10 of another by least squares, once each seed's mean is taken; others held."""
    table = np.column_stack([runs[number], np.log10(runs[by]), *fixed])
    moments = np.array([np.cov(table[rows].T, ddof=0) * len(rows) for rows in runs.groupby("seed").indices.values()])

    def slope(places):
        total = moments[places].sum(-3)
        return np.linalg.solve(total[..., 1:, 1:], total[..., 1:, :1])[..., 0, 0]

    return numbers.bootstrapped(len(moments), slope)


def fixed(runs: pd.DataFrame) -> tuple[pd.Series, ...]:
    """What is held: accuracy on test and the log of train NLL."""
    return runs.accuracy, np.log(runs["train nll"])


def by_regime(runs: pd.DataFrame | None) -> dict[str, pd.DataFrame]:
    """Title -> runs."""
    if runs is None:
        return {}
    return {title: group for regime, title in REGIMES.items() if len(group := rows_where(runs, regime=regime))}


def decades(runs: pd.DataFrame, number: str) -> pd.Series:
    """By seed log10 of the largest over the least."""
    return np.log10(runs.groupby("seed")[number].max() / runs.groupby("seed")[number].min())


def points(runs: pd.DataFrame) -> float:
    """How far ECE moves, in points: the most of any seed."""
    return 100 * float(runs.groupby("seed").ece.agg(np.ptp).max())


def changed(reverse: pd.DataFrame, name: str, way: str) -> pd.Series:
    """Seed -> log of a curvature at a way's network over cross-entropy's at its own; "loss": own there."""
    start = np.log(numbers.column(reverse, name.replace(" own ", " CE "), way="ce"))
    return (np.log(numbers.column(reverse, name, way="ce" if way == "loss" else way)) - start).dropna()


def share(reverse: pd.DataFrame, name: str, way: str) -> Interval:
    """Of the change under focal loss, by seed; unknown where that change is less than a tenth or of either sign."""
    whole = changed(reverse, name, "focal")
    if not (whole.abs() > 0.1).all() or whole.min() * whole.max() < 0:
        return numbers.UNKNOWN
    return interval((changed(reverse, name, way) / whole).dropna())


def steered(runs: pd.DataFrame | None) -> dict[str, pd.DataFrame]:
    """Loss and matrix -> the runs that learned under its targets, with the trace that each reached."""
    groups = {}
    for gamma, matrix in product(LOSSES, MATRICES) if runs is not None else ():
        group = numbers.learned(rows_where(runs, gamma=gamma, of=matrix))
        if len(group):
            title = f"digits, {'focal' if gamma else 'CE'}, {matrix.replace('_', ' ')}"
            groups[title] = group.assign(reached=group[MATRICES[matrix]])
    return groups


# ---- claims


def claims(rescaled=None, reverse=None, runs=None):
    """Of each design that has runs."""
    designs = {_of_rescaled: by_regime(rescaled), _of_reverse: by_regime(reverse), _of_dose: steered(runs)}
    for of, groups in designs.items():
        for title, group in groups.items():
            yield from of(title, group)


def _grows(title, runs, words="accuracy and train loss held", held=fixed, number="ece"):
    """Whether calibration's number grows with the trace that was reached."""
    slope, free = (effect(runs, number, "reached", *columns) for columns in (held(runs), ()))
    because = "points a decade {}; not held {}".format(*(shown(each, scale=100, signed=True) for each in (slope, free)))
    claim = f"{title}: {OUTPUTS[number].title[:-3]} grows with the trace, {words}"
    return Claim("focalgeo", claim, numbers.verdict(slope, falls=False), because)


def _of_dose(title, runs):
    off, nll = (runs.reached / runs.target - 1).abs().groupby(runs.factor).median(), runs["train nll"]
    shows, because = SHOWS if off.max() <= REACH else NOT, f"most {100 * off.max():.2g}%, at {off.idxmax():g} times"
    yield Claim("focalgeo", f"{title}: each target is reached within 10%, median over seeds", shows, because)
    yield _grows(title, runs)
    yield _grows(title, runs, number="ece after T")
    words = "accuracy, train loss and its square held (chosen after the runs)"
    yield _grows(title, runs, words, lambda runs: (runs.accuracy, nll, nll**2))
    for half, there in (("up to", runs.factor <= 1), ("from", runs.factor >= 1)):
        yield _grows(f"{title}, {half} plain training's trace (chosen after the runs)", runs[there])


def _of_rescaled(regime, runs):
    moved, ece = min(decades(runs, f"{name} CE val").min() for name in ("trace", "lambda_max")), points(runs)
    shows = SHOWS if moved > DECADES - SAME and ece < 0.01 else NOT
    words = "other weights of the same function move trace and λ_max by four decades, ECE by less than 0.01 points"
    yield Claim("focalgeo", f"{regime}: {words}", shows, f"least {moved:.3g} decades, most {ece:.2g} points")
    free, away = 100 * (10 ** decades(runs, "scale_free_trace CE val").max() - 1), runs.away.max()
    claim = f"{regime}: the scale-free trace then moves by less than 1%, probabilities by at most 1e-5"
    yield Claim("focalgeo", claim, SHOWS if free < 1 and away <= SAME else NOT, f"most {free:.2g}%, {away:.2g}")


def _of_reverse(regime, runs):
    for name, title in SURFACES.items():
        part = share(runs, name, "folded")
        claim = f"{regime}: a temperature explains more than half of what focal loss changes of the {title}"
        more = numbers.verdict(Interval(*(number - 0.5 for number in part)), falls=False)
        because = f"share {shown(part)}" if part.known else "unknown: the change is small or either way"
        yield Claim("focalgeo", claim, more, because)


# ---- tables and figure


def means(runs, keys, names):
    """Means over seeds of these numbers, by what the keys tell apart."""
    groups = {tuple(map(str, key)): group for key, group in runs.groupby(keys, sort=False)}
    return numbers.means_table(keys, groups, {name: NUMBERS[name] for name in names})


def slopes_table(runs):
    """Points of ECE a decade of the trace: at equal accuracy and train loss, nothing held, and after T as the first."""
    yield "trace", "ECE as trained, held", "free", "ECE after T, held"
    for title, dose in steered(runs).items():
        kinds = (("ece", fixed(dose)), ("ece", ()), ("ece after T", fixed(dose)))
        slopes = [effect(dose, name, "reached", *held) for name, held in kinds]
        yield title, *(shown(slope, scale=100, signed=True) for slope in slopes)


def dose_table(runs):
    """Plain training, and each target as a factor of its median trace: means over seeds."""
    runs = runs.assign(factor=runs["factor"].astype(object).fillna(""))
    return means(runs, ["regime", "gamma", "of", "factor"], DOSE)


def ways_table(reverse):
    """Outputs and curvature of each way in each regime: means over seeds."""
    return means(reverse, ["regime", "way"], WAYS)


def shares_table(reverse):
    """Factors by which focal loss and a folded temperature change curvature; shares of it, by seed.

    held: of a confidence held in training; loss: of the other loss at cross-entropy's network.
    """
    yield "regime", "curvature", "focal loss, times", "temperature, times", "its share", "held", "loss"
    for (regime, runs), (name, title) in product(by_regime(reverse).items(), SURFACES.items()):
        factors = [interval(changed(runs, name, way)).mapped(np.exp) for way in ("focal", "folded")]
        parts = [share(runs, name, way) for way in ("folded", "held", "loss")]
        yield regime, title, *map(shown, [*factors, *parts])


def overview(rescaled, reverse, runs):
    """ECE where curvature alone is moved, in two designs; curvature where confidence alone is."""
    figure, [[same, dose, back]] = figures.panels(1, 3, 14.4, 4.2)
    along = lambda runs, by, x: {np.exp(np.log(g[x]).mean()): numbers.level(g, "ece") for _, g in runs.groupby(by)}  # noqa: E731
    weights = {regime: along(group, "exponent", "lambda_max CE val") for regime, group in by_regime(rescaled).items()}
    targets = {title: along(group, "factor", "factor") for title, group in steered(runs).items()}
    for axis, lines, title, label in (
        (same, weights, "the same function at other weights", "λ_max, cross-entropy, val"),
        (dose, targets, "training to a target trace", "target, of plain training's trace"),
    ):
        style = {} if axis is dose else {"linestyle": ":"}
        figures.lines(axis, {name: dict(sorted(line.items())) for name, line in lines.items()}, scale=100, **style)
        axis.set(title=title, xlabel=label, ylabel="test ECE as trained, %", xscale="log")
    ways = {"focal": "focal loss", "folded": "a temperature in the last layer", "held": "confidence held in training"}
    names = list(product(by_regime(reverse).items(), SHOWN))
    for place, (way, words) in enumerate(ways.items()):
        values = [interval(changed(group, name, way)).mapped(np.exp) for (_, group), name in names]
        at = np.arange(len(values)) + 0.2 * (1 - place)
        figures.intervals(back, at, values, along="x", label=words, linestyle="", **figures.look(place))
    back.set(title="curvature where confidence is changed", xlabel="times cross-entropy's", xscale="log")
    back.set_yticks(range(len(names)), [f"{regime}, {SURFACES[name]}" for (regime, _), name in names], fontsize=7)
    dose.set_ylim(0, 24)
    for axis in figure.axes:
        axis.legend(fontsize=7)
    return figure


KEYS = ("regime", "gamma", "of", "doses", "factor", "way", "exponent")  # by which runs are sorted
QUESTION = Question(
    "causes",
    "Does less curvature cause calibration?",
    claims,
    tables={
        "slopes": slopes_table,
        "dose": dose_table,
        "shares": shares_table,
        "ways": ways_table,
    },
    figures={"overview": overview},
    jobs=plan,
    keys=dict.fromkeys(KEYS, ()),
    within=("factor", "exponent", "way"),
    seeds=20,
)
