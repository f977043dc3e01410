"""Four designs that move curvature or calibration by itself, to see whether the other follows.

Regimes: digits, two layers, the recipe of configs/digits.py, as it is and with 150 training images, 20 seeds;
CIFAR-10 (JPEG), configs/cifar.py:fitted, a small ResNet that fits its 7,500 images, 3 seeds with their own images.
Curvature is that of mean cross-entropy, or of focal loss with gamma 3 ("own"), on the first 500 examples of val or
train in evaluation mode; ECE on test. 95% intervals over seeds.

Hypotheses and tests, written before the runs, but after a trial of (a) and (d) on two seeds of digits:
(a) Same function: layers are scaled against each other, or weights before batch norm, by 2^-8 to 2^8. 1. lambda_max and
trace move over four decades or more and probabilities by 1e-5 at most, in every seed; 2. ECE moves by less than 0.01
points; 3. the scale-free trace moves by less than 1%.
(b) Chosen spectra: spectra.py says how. 4. features times 0.1 and 10 move both curvatures over four decades and leave
ECE and T as they are; 5. over spectra and places of the truth ECE grows neither with lambda_max nor with the trace once
accuracy and train loss are held: what moves it is where the truth lies, in steep or flat directions.
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

Verdicts by regime: a curvature is a cause where (c) shows its slope above 0 for an invariant trace; a common
consequence of confidence where (d) explains more than half and (c) does not; else not told.
"""

from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from experiments import figures, jobs, numbers
from experiments.causes import networks, spectra
from experiments.numbers import NOT, OUTPUTS, SHOWS, Claim, Interval, Number, interval, rows_where, shown
from experiments.question import Flags, Job, Parts, Question
from focalgeo.rows import Diagnostic, select

REGIMES = {"digits": "digits", "few": "digits, 150 images", "cifar10": "CIFAR-10, fitted"}
EXAMPLES = {"digits": None, "few": 150}  # of training
IMAGES = ("configs/cifar.py:fitted,fl3", 3)  # config, seeds
MODELS = spectra.MODELS
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
    "diagnostics.every": 100,
    "diagnostics.splits": ("train",),
} | jobs.T_ALONE
DOSED = {"digits": {}, "few": {"data.train_size": EXAMPLES["few"]}}
LOSSES = {0.0: "cross_entropy", networks.GAMMA: "focal_loss"}
FACTORS = ((0.1, 0.3, 1.0), (3.0, 10.0))  # of plain training's trace, downward and upward
MATRICES = {  # whose trace is held -> its number
    "hessian": "trace CE train",
    "scale_free": "scale_free_trace CE train",
    "gauss_newton": "trace, gauss_newton CE train",
}
BOUNDS = {  # of the penalty's weight, downward and upward
    (0.0, "hessian"): (0.004, 0.004),
    (0.0, "gauss_newton"): (0.004, 0.004),
    (0.0, "scale_free"): (0.04, 0.04),
    (3.0, "hessian"): (0.004, 0.001),
    (3.0, "gauss_newton"): (0.004, 0.001),
    (3.0, "scale_free"): (0.04, 0.01),
}
SHOWN = ("trace CE train", "lambda_max CE train", "trace own train", "lambda_max own train")  # in the figure
SAME, DECADES, REACH = 1e-5, 4, 0.1  # of probabilities, of curvature, of a target
CHOSEN = {
    "lambda_max": Number("λ_max, train"),
    "trace": Number("trace, train"),
    "accuracy": OUTPUTS["accuracy"],
    "ece": Number("ECE, %", 100),
    "temperature": Number("best T"),
    "train nll": Number("train NLL"),
    "steps": Number("steps"),
}
DOSE = {"reached": Number("trace reached, train")}
DOSE |= {name: OUTPUTS[name] for name in ("train accuracy", "accuracy", "ece", "ece after T", "temperature")}
DOSE |= {"train nll": Number("train NLL")}
WAYS = {name: OUTPUTS[name] for name in ("train accuracy", "accuracy", "ece", "ece after T", "nll", "temperature")}
WAYS |= {"confidence": Number("mean confidence, val, %", 100), "folded T": Number("folded T")}
WAYS |= {name: Number(title) for name, title in SURFACES.items()}
MEASURED = {"rescaled": networks.same_function, "reverse": networks.reverse}  # part -> its runs of networks


def plan(flags: Flags, parts: Parts) -> Iterator[Job]:
    """(b), then (a) and (d) on digits, then on images where --data names them."""
    seeds = range(flags.seeds)
    for model in MODELS:
        yield Job({"model": model}, seeds, partial(_of_spectra, model, seeds), 25, part="spectra")
    for regime, examples in EXAMPLES.items():
        for part, measure in MEASURED.items():
            make = partial(_of_digits, measure, regime, examples, len(seeds))
            yield Job({"regime": regime}, seeds, make, 3, part=part)
    yield from _doses(flags, parts)
    for seed in range(IMAGES[1]) if flags.data else ():
        for part, measure in MEASURED.items():
            make = partial(_of_images, measure, seed, flags.data)
            yield Job({"regime": "cifar10"}, (seed,), make, 400, part=part)


def _of_spectra(model, seeds, out: Path):
    cells = [cell for cell in spectra.CELLS if cell.model == model]
    return [spectra.measure(cell, seed) for cell in cells for seed in seeds]


def _of_digits(measure, regime, examples, seeds, out: Path):
    every = networks.on_digits(examples, seeds)
    return [{"regime": regime, "seed": seed} | run for seed, trained in every for run in measure(trained)]


def _of_images(measure, seed: int, data: str, out: Path):
    fields = jobs.T_ALONE | {"data.name": data, "data.split_seed": seed + 1}
    fields |= {"sweep.gamma": (0.0, networks.GAMMA), "sweep.seed": (seed,)}
    of = {"regime": "cifar10"}
    workdir = jobs.trained(IMAGES[0], out / jobs.folder(of, [seed]), fields)
    return [of | {"seed": seed} | run for run in measure(networks.of_workdir(workdir))]


def _doses(flags, parts):
    """Plain training, then training to each target, whose traces follow from the plain runs' medians."""
    runs, seeds = pd.DataFrame(parts.get("runs", [])), range(flags.seeds)
    for (regime, fields), (gamma, loss) in product(DOSED.items(), LOSSES.items()):
        fields = SCHEDULE | fields | {"loss.name": loss, "loss.gamma": gamma}
        of = {"regime": regime, "gamma": gamma, "of": "", "up": False}
        tags = {"target": "trace_target", "seed": "seed"}
        yield jobs.sweep(of, seeds, DIGITS, fields, seconds=3, tags={"seed": "seed"}, parts=True, more=_train)
        plain = rows_where(runs, **of) if len(runs) else runs
        for (matrix, name), up in product(MATRICES.items() if len(plain) else (), (False, True)):
            median, bound = float(plain[name].median()), BOUNDS[gamma, matrix][up]
            targets = tuple(round(factor * median, 5) for factor in FACTORS[up])
            steered = {"loss.trace_of": matrix, "loss.trace_bound": bound, "sweep.trace_target": targets}
            more = partial(_train, median=median)
            of = of | {"of": matrix, "up": up}
            yield jobs.sweep(of, seeds, DIGITS, fields | steered, seconds=30, tags=tags, parts=True, more=more)


def _train(run, rows, workdir, median=None):
    """The NLL on train after training, and the target as a factor of the plain runs' median."""
    rows = [row for row in select(rows, Diagnostic, name="nll", split="train") if row.outcome is None]
    factor = {} if median is None else {"factor": float(f"{run['target'] / median:.2g}")}
    return {"train nll": rows[-1].value} | factor


# ---- statistics


def effect(runs: pd.DataFrame, number: str, by: str, *fixed: str) -> Interval:
    """The slope of a number over another by least squares, once each seed's mean is taken; further ones held."""
    columns = [number, by, *fixed]
    moments = np.array([group[columns].cov(ddof=0) * len(group) for _, group in runs.groupby("seed")])

    def slope(places):
        total = moments[places].sum(-3)
        return np.linalg.solve(total[..., 1:, 1:], total[..., 1:, :1])[..., 0, 0]

    return numbers.bootstrapped(len(moments), slope)


def by_regime(runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Title -> runs."""
    return {title: group for regime, title in REGIMES.items() if len(group := rows_where(runs, regime=regime))}


def decades(runs: pd.DataFrame, number: str, *, most: bool = False) -> float:
    """The least over seeds, or the most, of log10 of the largest over the least."""
    ratios = np.log10(runs.groupby("seed")[number].max() / runs.groupby("seed")[number].min())
    return float(ratios.max() if most else ratios.min())


def spread(runs: pd.DataFrame, number: str) -> float:
    """The largest over seeds of the largest less the least."""
    return float(runs.groupby("seed")[number].agg(np.ptp).max())


def changed(reverse: pd.DataFrame, name: str, way: str) -> pd.Series:
    """Seed -> log of a curvature at a way's network over cross-entropy's at its own; "loss": own there."""
    start = np.log(numbers.column(reverse, name.replace(" own ", " CE "), way="ce"))
    return np.log(numbers.column(reverse, name, way="ce" if way == "loss" else way)) - start


def share(reverse: pd.DataFrame, name: str, way: str) -> Interval:
    """Of the change under focal loss, by seed; unknown where that change is less than a tenth or of either sign."""
    whole = changed(reverse, name, "focal")
    if not (whole.abs() > 0.1).all() or whole.min() * whole.max() < 0:
        return numbers.UNKNOWN
    return interval((changed(reverse, name, way) / whole).dropna())


def places(spectra: pd.DataFrame) -> pd.DataFrame:
    """The cells of one scale and one start, with logarithms of their curvature."""
    runs = rows_where(spectra, scale=1.0, first=1.0)
    return runs.assign(**{f"log {name}": np.log10(runs[name]) for name in ("lambda_max", "trace")})


def steered(runs: pd.DataFrame) -> dict[tuple[str, str, str], pd.DataFrame]:
    """Regime, loss and matrix -> the runs that learned under its targets, with what was reached and its logarithms."""
    groups = {}
    for regime, gamma, matrix in product(DOSED, LOSSES, MATRICES):
        group = numbers.learned(rows_where(runs, regime=regime, gamma=gamma, of=matrix))
        group = group.assign(reached=group.get(MATRICES[matrix]))
        logs = {"log trace": np.log10(group.reached), "log nll": np.log(group["train nll"])}
        if len(group):
            groups[REGIMES[regime], LOSSES[gamma], matrix] = group.assign(**logs)
    return groups


# ---- claims


def claims(spectra=None, rescaled=None, reverse=None, runs=None):
    """Of each design that has runs."""
    told = []
    if rescaled is not None:
        told += [claim for regime, runs in by_regime(rescaled).items() for claim in _of_rescaled(regime, runs)]
    if spectra is not None:
        told += _of_spectra(spectra)
    if reverse is not None:
        told += [claim for regime, runs in by_regime(reverse).items() for claim in _of_reverse(regime, runs)]
    if runs is not None:
        told += [claim for title, of_dose in steered(runs).items() for claim in _of_dose(", ".join(title), of_dose)]
    return told


def _of_dose(title, runs):
    off = (runs.reached / runs.target - 1).abs().groupby(runs.factor).median()
    because = f"most {100 * off.max():.2g}%, at {off.idxmax():g} times"
    shows = SHOWS if off.max() <= REACH else NOT
    yield Claim("focalgeo", f"{title}: each target is reached within 10%, median over seeds", shows, because)
    for name, words in (("ece", "ECE as trained"), ("ece after T", "ECE after T")):
        held, free = (effect(runs, name, "log trace", *fixed) for fixed in (("accuracy", "log nll"), ()))
        claim = f"{title}: {words} grows with the trace, accuracy and train loss held"
        because = (
            f"points a decade {shown(held, scale=100, signed=True)}; not held {shown(free, scale=100, signed=True)}"
        )
        yield Claim("focalgeo", claim, numbers.verdict(held, falls=False), because)


def _of_rescaled(regime, runs):
    moved, away = min(decades(runs, "trace CE val"), decades(runs, "lambda_max CE val")), runs.away.max()
    ece, free = spread(runs, "ece"), 10 ** decades(runs, "scale_free_trace CE val", most=True) - 1
    words = "trace and λ_max of CE on val move by four decades, probabilities by 1e-5 at most"
    for claim, shows, because in (
        (words, moved >= DECADES and away <= SAME, f"least {moved:.3g} decades, most {away:.2g}"),
        ("ECE then moves by less than 0.01 points", ece < 1e-4, f"most {100 * ece:.2g} points"),
        ("the scale-free trace then moves by less than 1%", free < 0.01, f"most {100 * free:.2g}%"),
    ):
        yield Claim("focalgeo", f"{regime}, rescaled: {claim}", SHOWS if shows else NOT, because)


def _of_spectra(spectra):
    scaled = rows_where(spectra, model="softmax", spectrum="power", truth="all")
    moved, ece = min(decades(scaled, "trace"), decades(scaled, "lambda_max")), spread(scaled, "ece")
    words = "softmax regression: features of another scale move curvature by four decades, ECE by under 0.01 points"
    shows = moved > DECADES - SAME and ece < 1e-4
    told = [Claim("focalgeo", words, SHOWS if shows else NOT, f"{moved:.3g} decades; {100 * ece:.2g} points")]
    for model, by in (("softmax", "lambda_max"), ("linear", "lambda_max"), ("linear", "trace")):
        runs = rows_where(places(spectra), model=model)
        held, free = (effect(runs, "ece", f"log {by}", *fixed) for fixed in (("accuracy", "train nll"), ()))
        claim = f"{MODELS[model]}, chosen spectra: ECE grows with {TITLES[by]}, accuracy and train loss held"
        because = (
            f"points a decade {shown(held, scale=100, signed=True)}; not held {shown(free, scale=100, signed=True)}"
        )
        told.append(Claim("focalgeo", claim, numbers.verdict(held, falls=False), because))
    for model, group in places(spectra).groupby("model", sort=False):
        steep, flat = (rows_where(group, spectrum="power", truth=truth) for truth in ("steep", "flat"))
        claim = f"{MODELS[model]}, one spectrum: ECE is lower where the truth lies in the steep directions"
        less = numbers.change(steep, flat, "ece")
        told.append(numbers.told("focalgeo", claim, less, scale=100, unit="points"))
    return told


def _of_reverse(regime, runs):
    for name, title in SURFACES.items():
        part = share(runs, name, "folded")
        claim = f"{regime}: a temperature explains more than half of what focal loss changes of {title}"
        because = (
            f"share {shown(part)}" if part.known else "the change is under a tenth, or of either sign, in some seed"
        )
        more = Interval(*(number - 0.5 for number in part))
        yield Claim("focalgeo", claim, numbers.verdict(more, falls=False), because)


# ---- tables and figure


def dose_table(runs):
    """At each target: means over seeds."""
    groups = {
        (*title, f"{factor:g}"): group
        for title, of_dose in steered(runs).items()
        for factor, group in of_dose.groupby("factor")
    }
    return numbers.means_table(["regime", "loss", "trace of", "target, of plain"], groups, DOSE)


def spectra_table(spectra):
    """Every cell: means over seeds."""
    keys = ["model", "spectrum", "truth", "scale", "first"]
    groups = {tuple(map(str, key)): group for key, group in spectra.groupby(keys, sort=False)}
    return numbers.means_table(keys, groups, CHOSEN)


def ways_table(reverse):
    """Outputs and curvature of each way in each regime: means over seeds."""
    groups = {
        (regime, way): runs
        for regime, of_regime in by_regime(reverse).items()
        for way, runs in of_regime.groupby("way", sort=False)
    }
    return numbers.means_table(["regime", "network"], groups, WAYS)


def shares_table(reverse):
    """Factors by which focal loss, a folded temperature or a held confidence change curvature; shares by seed."""
    rows = []
    for regime, runs in by_regime(reverse).items():
        for name, title in SURFACES.items():
            factors = [interval(changed(runs, name, way)).mapped(np.exp) for way in ("focal", "folded")]
            parts = [share(runs, name, way) for way in ("folded", "held", "loss")]
            rows.append([regime, title, *(shown(value) for value in (*factors, *parts))])
    heads = [
        "regime",
        "curvature",
        "focal loss, times",
        "a temperature, times",
        "its share",
        "share of a held confidence",
    ]
    return numbers.markdown([*heads, "share of the other loss alone"], rows)


def overview(spectra, rescaled, reverse, runs):
    """ECE where curvature alone is moved, in three designs; curvature where confidence alone is."""
    figure, [[same, chosen], [dose, back]] = figures.panels(2, 2, 10.4, 7.4)
    along = lambda runs, by, x: {np.exp(np.log(g[x]).mean()): numbers.level(g, "ece") for _, g in runs.groupby(by)}  # noqa: E731
    lines = {regime: along(group, "exponent", "lambda_max CE val") for regime, group in by_regime(rescaled).items()}
    figures.lines(same, lines, scale=100, linestyle="")
    softmax = rows_where(spectra, model="softmax")
    where = {"all": "in all directions", "steep": "in steep directions", "flat": "in flat directions"}
    lines = {
        f"truth {words}": along(rows_where(softmax, truth=truth, scale=1.0), "spectrum", "lambda_max")
        for truth, words in where.items()
    }
    lines["one spectrum, other scales"] = along(
        rows_where(softmax, spectrum="power", truth="all"), "scale", "lambda_max"
    )
    figures.lines(chosen, {name: dict(sorted(line.items())) for name, line in lines.items()}, scale=100)
    lines = {
        f"{', '.join(title[:2])}, {title[2]}": along(group, "factor", "factor")
        for title, group in steered(runs).items()
    }
    figures.lines(dose, lines, scale=100)
    for axis, title, label in (
        (same, "the same function at other weights", "λ_max, cross-entropy, val"),
        (chosen, "softmax regression, chosen spectra", "λ_max, train"),
        (dose, "training to a target trace", "target, of plain training's trace"),
    ):
        axis.set(title=title, xlabel=label, ylabel="test ECE as trained, %", xscale="log")
        axis.legend(fontsize=7)
    ways = {"focal": "focal loss", "folded": "a temperature in the last layer", "held": "confidence held in training"}
    for place, (way, words) in enumerate(ways.items()):
        values = {
            f"{regime}, {title}": interval(changed(group, name, way)).mapped(np.exp)
            for regime, group in by_regime(reverse).items()
            for name, title in SURFACES.items()
            if name in SHOWN
        }
        at = np.arange(len(values)) + 0.2 * (1 - place)
        figures.intervals(back, at, values.values(), along="x", label=words, linestyle="", **figures.look(place))
    back.set(title="curvature where confidence is changed", xlabel="times cross-entropy's", xscale="log")
    back.set_yticks(range(len(values)), values, fontsize=7)
    back.axvline(1, color="0.5", linewidth=0.8)
    back.legend(fontsize=7)
    return figure


QUESTION = Question(
    "causes",
    "Does less curvature cause calibration?",
    claims,
    tables={"dose": dose_table, "spectra": spectra_table, "shares": shares_table, "ways": ways_table},
    figures={"overview": overview},
    jobs=plan,
    keys=dict.fromkeys(
        ("regime", "gamma", "of", "up", "factor", "way", "exponent", "model", "spectrum", "truth", "scale", "first"), ()
    ),
    within=("factor", "exponent", "way"),
    seeds=20,
)
