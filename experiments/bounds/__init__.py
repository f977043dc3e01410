"""The bounds, the theorem and the conjecture of Kimura & Naganuma, in numbers of trained networks."""

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from experiments import figures, numbers
from experiments.bounds import measured
from experiments.bounds.measured import DISTANCES, GAMMAS
from experiments.numbers import (
    NOT,
    OUTPUTS,
    SHOWS,
    UNTOLD,
    Claim,
    Interval,
    Number,
    column,
    interval,
    rows_where,
    shown,
)
from experiments.question import Flags, Job, Parts, Question

CLOSE = 0.1  # of KL and d'Fd / 2, within which they are the same
ALIKE = {"ece": (0.01, "test ECE", 100), "nll": (0.02, "test NLL as trained", 1), "temperature": (0.05, "T", 1)}
GRADIENTS = ("gradient in logits, train", "gradient, train", "gradient in logits, val", "gradient, val")
NUMBERS = {name: OUTPUTS[name] for name in ("accuracy", "ece", "ece after T", "nll", "temperature")} | {
    "lambda_max CE val": Number("λ_max, CE, val"),
    "trace CE val": Number("trace, CE, val"),
    "trace own val": Number("trace, own, val"),
}
LOSSES = {"focal": "focal", "penalised": "confidence penalty"}
KINDS = {"random": "in random directions", "uphill": "up the gradient"}
BY_GAMMA = "change for a unit of γ"


def plan(flags: Flags, parts: Parts) -> Iterator[Job]:
    """Four sweeps with all that is measured of their networks; the constants; the finite sets of networks."""
    yield Job({}, range(flags.seeds), lambda out: measured.measure(out, flags.seeds), 66)
    yield Job({}, (), lambda out: measured.lipschitz(), part="constants")
    yield Job({}, (), lambda out: measured.finite_bounds(out, flags.seeds), part="finite")


def with_bounds(runs) -> pd.DataFrame:
    """The runs with the numbers of their Gaussian bound, of those that have one."""
    runs = runs[runs.gaussian.map(lambda bound: isinstance(bound, dict))].reset_index(drop=True)
    return runs[["loss", "gamma", "seed"]].join(pd.DataFrame(runs.gaussian.tolist()))


def ratios(runs, kind: str, distance: float, gammas: Iterable[float] = GAMMAS) -> Interval:
    """Log of KL over d'Fd / 2 at a distance, over seeds; each seed the mean of these gammas."""
    runs = runs[(runs.loss == "focal") & runs.gamma.isin(gammas)]
    logs = np.log([distances[kind][DISTANCES.index(distance)] for distances in runs.distances])
    return interval(pd.Series(logs).groupby(runs.seed.to_numpy()).mean())


def claims(runs, constants: list[dict], finite: list[dict]):
    """Of Definition 3, Theorem 2, Corollaries 1 and 2, and Conjecture 1."""
    told = []
    for name, words in (
        ("gradient", "the Lipschitz constant of focal loss in the logits falls with γ"),
        ("second derivative", "the Lipschitz constant of its gradient in the logits falls with γ"),
    ):
        values = [row[name] for row in constants]
        because = ", ".join(f"{value:.3g}" for value in values)
        because += f" at γ = {', '.join(format(row['gamma'], 'g') for row in constants)}; computed, no sample"
        told.append(Claim("K Def. 3", words, SHOWS if np.all(np.diff(values) < 0) else NOT, because))
    by_log, focal = "change of log for a unit of γ", rows_where(runs, loss="focal")
    for name in GRADIENTS:
        words = f"the largest {name.replace(',', ' over examples of')} falls with γ, of trained networks"
        told.append(numbers.told("K Def. 3", words, numbers.slope(focal, name), what=by_log))
    for kind, words in KINDS.items():
        for distance in (0.01, 0.1):
            change = ratios(runs, kind, distance)
            claim = f"KL is half d'Fd to a tenth, {100 * distance:g}% of the parameters' norm away, {words}"
            because = f"log of KL over half d'Fd {shown(change, signed=True)}"
            told.append(Claim("K Thm 2", claim, numbers.alike(change, np.log1p(CLOSE)), because))
    told += _corollary_1(with_bounds(runs), pd.DataFrame(finite))
    for gamma in (1.0, 3.0):
        for number, (room, words, scale) in ALIKE.items():
            less = numbers.paired(*(column(runs, number, loss=loss, gamma=gamma) for loss in LOSSES))
            unit = " points" if scale == 100 else ""
            claim = f"γ = {gamma:g}: focal loss and cross-entropy + γ KL(p, uniform) are alike in {words}, "
            because = f"focal less the other {shown(less, scale=scale, signed=True)}{unit}"
            told.append(Claim("K Cor. 2", f"{claim}to {scale * room:g}{unit}", numbers.alike(less, room), because))
    for loss, words in (("focal", "of focal loss"), ("penalised", "of the confidence penalty")):
        for number, said in (
            ("trace CE val", "the trace of cross-entropy's Hessian on val"),
            ("trace own val", "the trace of the trained loss's own Hessian on val"),
            ("ece after T", "ECE after T"),
        ):
            claim = f"{said} falls with the γ {words}"
            told.append(
                numbers.told("K Conj. 1", claim, numbers.slope(rows_where(runs, loss=loss), number), what=by_log)
            )
    return told


def _corollary_1(bounds, finite) -> list[Claim]:
    by_gamma = {gamma: numbers.level(bounds, "bound", gamma=gamma) for gamma in sorted(bounds.gamma.unique())}
    verdicts = [SHOWS if value.high < 1 else NOT if value.low >= 1 else UNTOLD for value in by_gamma.values()]
    said = numbers.joined(verdicts) if all(value.known for value in by_gamma.values()) else UNTOLD
    because = "; ".join(f"γ = {gamma:g}: {shown(value)}" for gamma, value in by_gamma.items())
    # groups of different gammas share seeds, and so are not independent
    less = interval((finite.boltzmann - finite.uniform).groupby(finite.group).mean())
    claim = "with the Maxwell-Boltzmann prior the bound for five networks is lower than with a uniform one"
    return [
        Claim("K Cor. 1", "the bound about a network of half the data is below 1 at every γ", said, because),
        numbers.told("K Cor. 1", "this bound falls with γ", numbers.slope(bounds, "bound", log=False), what=BY_GAMMA),
        numbers.told("K Cor. 1", claim, less),
    ]


def constants_table(constants: list[dict]):
    """The computed constants by gamma."""
    heads = ["γ", "largest gradient in the logits", "largest second derivative"]
    return numbers.markdown(
        heads, [[f"{row['gamma']:g}", *(f"{row[name]:.4g}" for name in list(row)[1:])] for row in constants]
    )


def gradients_table(runs):
    """Largest gradients of trained networks by gamma, means over seeds."""
    rows = [
        [f"{gamma:g}", *(shown(numbers.level(runs, name, loss="focal", gamma=gamma)) for name in GRADIENTS)]
        for gamma in GAMMAS
    ]
    return numbers.markdown(["γ", *(f"largest {name}" for name in GRADIENTS)], rows)


def distances_table(runs):
    """KL over half d'Fd by distance, geometric means over seeds: all gammas, and the first and the last."""
    rows = []
    for kind, words in KINDS.items():
        for title, gammas in {"all": GAMMAS, f"{GAMMAS[0]:g}": GAMMAS[:1], f"{GAMMAS[-1]:g}": GAMMAS[-1:]}.items():
            cells = [shown(ratios(runs, kind, distance, gammas).mapped(np.exp)) for distance in DISTANCES]
            rows.append([words.removeprefix("in "), title, *cells])
    return numbers.markdown(["", "γ", *(f"{100 * distance:g}% away" for distance in DISTANCES)], rows)


def bounds_table(runs, finite: list[dict]):
    """The bounds by gamma beside the test errors, %, means over seeds, or over groups of networks."""
    bounds, finite, rows = with_bounds(runs), pd.DataFrame(finite), []

    def share(values: pd.Series) -> str:
        return shown(interval(values).clipped(0, 1), scale=100)

    for gamma in sorted(finite.gamma.unique()):
        own, groups = rows_where(bounds, gamma=gamma), rows_where(finite, gamma=gamma)
        cells = [*(share(own[name]) for name in ("bound", "drawn", "error")), shown(interval(own.divergence))]
        rows.append([f"{gamma:g}", *cells, *(share(groups[name]) for name in ("boltzmann", "uniform", "error"))])
    heads = ["γ", "bound, half the data, %", "error over draws, other half, %", "test error of the centre, %"]
    heads += ["KL, nats", "bound, five networks, Maxwell-Boltzmann, %", "uniform, %", "test error, %"]
    return numbers.markdown(heads, rows)


def objectives_table(runs):
    """Focal loss and the confidence penalty at every gamma, means over seeds."""
    groups = {
        (words, f"{gamma:g}"): rows_where(runs, loss=loss, gamma=gamma)
        for loss, words in LOSSES.items()
        for gamma in GAMMAS
    }
    return numbers.means_table(["loss", "γ"], groups, NUMBERS)


def draw(runs):
    """Theorem 2 at growing distances, and T and the trace of both losses against gamma."""
    figure, axes = figures.panels(1, 3, 10.2, 3.4)
    first, *others = axes[0]
    percent = 100 * np.array(DISTANCES)
    for place, (kind, words) in enumerate(KINDS.items()):
        found = [ratios(runs, kind, distance).mapped(np.exp) for distance in DISTANCES]
        look = figures.look(place) | {"linestyle": figures.STYLES[place]}
        figures.intervals(first, percent, found, label=words.removeprefix("in "), **look)
    first.axhline(1, color="0.5", linewidth=0.8)
    first.set(xlabel="distance, % of the parameters' norm", ylabel="KL over half d'Fd")
    figures.logarithmic(first, "x", "y")
    first.set_xticks(percent, [f"{each:g}" for each in percent])
    first.legend(frameon=False, fontsize=9)
    titles = {"temperature": "T by val's NLL", "trace CE val": "trace, cross-entropy's Hessian, val"}
    for axis, (number, words) in zip(others, titles.items(), strict=True):
        for place, (loss, title) in enumerate((("focal", "focal loss"), ("penalised", "confidence penalty"))):
            found = [numbers.level(runs, number, loss=loss, gamma=gamma) for gamma in GAMMAS]
            look = figures.look(1 - place) | {"marker": "os"[place], "linestyle": figures.STYLES[place]}
            figures.intervals(axis, GAMMAS, found, label=title, **look)
        axis.set(xlabel="γ", ylabel=words)
    others[0].legend(frameon=False, fontsize=9)
    others[0].set_title(f"n = {runs.seed.nunique()} seeds", fontsize=9, loc="left")
    return figure


QUESTION = Question(
    "bounds",
    "What do the bounds, the theorem and the conjecture of Kimura & Naganuma say in numbers?",
    claims,
    tables={
        "constants": constants_table,
        "gradients": gradients_table,
        "distances": distances_table,
        "bounds": bounds_table,
        "objectives": objectives_table,
    },
    figures={"bounds": draw},
    jobs=plan,
    keys={"loss": LOSSES, "gamma": ()},
    within=("gamma",),
    cores="2 cores; those of halves more",
    least=5,
)
