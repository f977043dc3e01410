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
from pathlib import Path

import numpy as np
import pandas as pd

from experiments import jobs, numbers
from experiments.causes import networks, spectra
from experiments.numbers import Interval, interval
from experiments.question import Flags, Job, Parts, Question

REGIMES = {"digits": "digits", "few": "digits, 150 images", "cifar10": "CIFAR-10, fitted"}
EXAMPLES = {"digits": None, "few": 150}  # of training
IMAGES = ("configs/cifar.py:fitted,fl3", 3)  # config, seeds
SURFACES = {  # number -> words
    f"{name} {loss} {split}": f"{title}, {'CE' if loss == 'CE' else 'own'}, {split}"
    for split in ("val", "train")
    for loss in ("CE", "own")
    for name, title in (("trace", "trace"), ("lambda_max", "λ_max"), ("scale_free_trace", "scale-free trace"))
}
SAME = 1e-5  # of probabilities
DECADES = 4
MEASURED = {"rescaled": networks.same_function, "reverse": networks.reverse}  # part -> its runs of networks


def plan(flags: Flags, parts: Parts) -> Iterator[Job]:
    """(b), then (a) and (d) on digits, then on images where --data names them."""
    for model in spectra.MODELS:
        yield Job({"model": model}, range(flags.seeds), partial(_of_spectra, model, flags.seeds), 25, part="spectra")
    for regime, examples in EXAMPLES.items():
        make = partial(_of_digits, regime, examples, flags.seeds)
        yield Job(
            {"regime": regime},
            range(flags.seeds),
            lambda out, make=make: make(networks.same_function),
            2,
            part="rescaled",
        )
        yield Job(
            {"regime": regime}, range(flags.seeds), lambda out, make=make: make(networks.reverse), 3, part="reverse"
        )
    for seed in range(IMAGES[1]) if flags.data else ():
        for part, measure in MEASURED.items():
            make = partial(_of_images, measure, seed, flags.data)
            yield Job({"regime": "cifar10"}, (seed,), make, 400, part=part)


def _of_spectra(model, seeds, out: Path):
    cells = [cell for cell in spectra.CELLS if cell.model == model]
    return [spectra.measure(cell, seed) for cell in cells for seed in range(seeds)]


def _of_digits(measure, regime, examples, seeds, out: Path):
    every = networks.on_digits(examples, seeds)
    return [{"regime": regime, "seed": seed} | run for seed, trained in every for run in measure(trained)]


def _of_images(measure, seed: int, data: str, out: Path):
    fields = jobs.T_ALONE | {"data.name": data, "data.split_seed": seed + 1}
    fields |= {"sweep.gamma": (0.0, networks.GAMMA), "sweep.seed": (seed,)}
    of = {"regime": "cifar10"}
    workdir = jobs.trained(IMAGES[0], out / jobs.folder(of, [seed]), fields)
    return [of | {"seed": seed} | run for run in measure(networks.of_workdir(workdir))]


# ---- statistics


def effect(runs: pd.DataFrame, number: str, by: str, *fixed: str) -> Interval:
    """The slope of a number over another by least squares, once each seed's mean is taken; further ones held."""
    columns = [number, by, *fixed]
    moments = np.array([group[columns].cov(ddof=0) * len(group) for _, group in runs.groupby("seed")])

    def slope(places):
        total = moments[places].sum(-3)
        return np.linalg.solve(total[..., 1:, 1:], total[..., 1:, :1])[..., 0, 0]

    return numbers.bootstrapped(len(moments), slope)


def decades(runs: pd.DataFrame, number: str) -> float:
    """The least over seeds of log10 of the largest over the least."""
    return float(runs.groupby("seed")[number].agg(lambda values: np.log10(values.max() / values.min())).min())


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


def claims(spectra=None, rescaled=None, reverse=None):
    """Of each design."""
    return []


QUESTION = Question(
    "causes",
    "Does less curvature cause calibration?",
    claims,
    jobs=plan,
    keys=dict.fromkeys(
        ("regime", "gamma", "of", "factor", "way", "exponent", "model", "spectrum", "truth", "scale", "first"), ()
    ),
    within=("factor",),
    seeds=20,
)
