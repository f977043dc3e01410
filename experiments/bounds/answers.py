"""Whether each statement shows on these networks, and the tables."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.bounds.measured import DISTANCES
from experiments.claims import Claim
from experiments.intervals import NOT, SHOWS, UNTOLD, alike, clipped, interval, is_known, paired, shown, verdict
from experiments.writing import Interval, markdown

Runs = Sequence[dict[str, Any]]
CLOSE = 0.1  # of KL and d'Fd / 2, within which they are the same
ALIKE = {"ece": (0.01, "test ECE", 100), "nll": (0.02, "test NLL as trained", 1), "temperature": (0.05, "T", 1)}
GRADIENTS = ("gradient in logits, train", "gradient, train", "gradient in logits, val", "gradient, val")
OUTPUTS = {
    "accuracy": ("accuracy, %", 100),
    "ece": ("ECE as trained, %", 100),
    "ece after T": ("ECE after T, %", 100),
    "nll": ("NLL as trained", 1),
    "temperature": ("T", 1),
    "lambda_max CE val": ("λ_max, CE, val", 1),
    "trace CE val": ("trace, CE, val", 1),
    "trace own val": ("trace, own, val", 1),
}


def of(runs: Runs, loss: str, gamma: float) -> dict[int, dict[str, Any]]:
    """Seed -> run of a loss and gamma."""
    return {run["seed"]: run for run in runs if (run["loss"], run["gamma"]) == (loss, gamma)}


def gammas(runs: Runs, loss: str = "focal") -> list[float]:
    """The gammas of a loss."""
    return sorted({run["gamma"] for run in runs if run["loss"] == loss})


def slope(runs: Runs, loss: str, number: str, *, log: bool = True) -> Interval:
    """The least-squares slope over gamma of a number's logarithm, or of the number, by seed."""
    by_seed: dict[int, list[tuple[float, float]]] = {}
    for run in runs:
        if run["loss"] == loss:
            value = run[number]
            by_seed.setdefault(run["seed"], []).append((run["gamma"], np.log(value) if log else value))
    return interval([np.polyfit(*zip(*sorted(pairs), strict=True), 1)[0] for pairs in by_seed.values()])


def ratios(runs: Runs, kind: str, distance: float, *, gamma: float | None = None) -> Interval:
    """Log of KL over d'Fd / 2 at a distance, over seeds; each seed the mean of its gammas, or of one gamma alone."""
    place = DISTANCES.index(distance)
    by_seed: dict[int, list[float]] = {}
    for run in runs:
        if run["loss"] == "focal" and gamma in (None, run["gamma"]):
            by_seed.setdefault(run["seed"], []).append(np.log(run["distances"][kind][place]))
    return interval([np.mean(each) for each in by_seed.values()])


def claims(runs: Runs, constants: Sequence[dict[str, float]], finite: Runs) -> list[Claim]:
    """Of Definition 3, Theorem 2, Corollaries 1 and 2, and Conjecture 1."""
    return [
        *_definition_3(runs, constants),
        *_theorem_2(runs),
        *_corollary_1(runs, finite),
        *_corollary_2(runs),
        *_conjecture_1(runs),
    ]


def _definition_3(runs: Runs, constants: Sequence[dict[str, float]]) -> list[Claim]:
    found = []
    for name, words in (
        ("gradient", "the Lipschitz constant of focal loss in the logits falls with γ"),
        ("second derivative", "the Lipschitz constant of its gradient in the logits falls with γ"),
    ):
        values = [row[name] for row in constants]
        falls = bool(np.all(np.diff(values) < 0))
        each = ", ".join(f"{row[name]:.3g}" for row in constants)
        because = f"{each} at γ = {', '.join(format(row['gamma'], 'g') for row in constants)}; computed, no sample"
        found.append(Claim("K Def. 3", words, SHOWS if falls else NOT, because))
    for name in GRADIENTS:
        change = slope(runs, "focal", name)
        words = f"the largest {name.replace(',', ' over examples of')} falls with γ, of trained networks"
        because = f"change of log for a unit of γ {shown(change, signed=True)}"
        found.append(Claim("K Def. 3", words, verdict(change), because))
    return found


def _theorem_2(runs: Runs) -> list[Claim]:
    found = []
    for kind, words in (("random", "in random directions"), ("uphill", "up the gradient")):
        for distance in (0.01, 0.1):
            change = ratios(runs, kind, distance)
            claim = f"KL is half d'Fd to a tenth, {100 * distance:g}% of the parameters' norm away, {words}"
            because = f"log of KL over half d'Fd {shown(change, signed=True)}"
            found.append(Claim("K Thm 2", claim, alike(change, np.log1p(CLOSE)), because))
    return found


def _corollary_1(runs: Runs, finite: Runs) -> list[Claim]:
    bounded = [run | {"bound": run["gaussian"]["bound"]} for run in runs if "gaussian" in run]
    every = [interval([run["bound"] for run in of(bounded, "focal", gamma).values()]) for gamma in gammas(bounded)]
    told = all(is_known(each) for each in every)
    below = SHOWS if all(each.high < 1 for each in every) else NOT if any(each.low >= 1 for each in every) else UNTOLD
    because = "; ".join(f"γ = {gamma:g}: {shown(each)}" for gamma, each in zip(gammas(bounded), every, strict=True))
    claim = "the bound about a network of half the data is below 1 at every γ"
    found = [Claim("K Cor. 1", claim, below if told else UNTOLD, because)]
    change = slope(bounded, "focal", "bound", log=False)
    claim = "this bound falls with γ"
    found.append(Claim("K Cor. 1", claim, verdict(change), f"change for a unit of γ {shown(change, signed=True)}"))
    by_group: dict[int, list[float]] = {}  # groups of different gammas share seeds, and so are not independent
    for row in finite:
        by_group.setdefault(row["group"], []).append(row["boltzmann"] - row["uniform"])
    less = interval([np.mean(own) for own in by_group.values()])
    claim = "with the Maxwell-Boltzmann prior the bound for five networks is lower than with a uniform one"
    found.append(Claim("K Cor. 1", claim, verdict(less), f"difference {shown(less, signed=True)}"))
    return found


def _corollary_2(runs: Runs) -> list[Claim]:
    found = []
    for gamma in (1.0, 3.0):
        one, other = of(runs, "focal", gamma), of(runs, "penalised", gamma)
        for number, (room, words, scale) in ALIKE.items():
            change = paired(*({seed: run[number] for seed, run in own.items()} for own in (one, other)))
            unit = " points" if scale == 100 else ""
            both = "focal loss and cross-entropy + γ KL(p, uniform)"
            claim = f"γ = {gamma:g}: {both} are alike in {words}, to {scale * room:g}{unit}"
            because = f"focal less the other {shown(change, scale=scale, signed=True)}{unit}"
            found.append(Claim("K Cor. 2", claim, alike(change, room), because))
    return found


def _conjecture_1(runs: Runs) -> list[Claim]:
    found = []
    for loss, words in (("focal", "of focal loss"), ("penalised", "of the confidence penalty")):
        for number, said in (
            ("trace CE val", "the trace of cross-entropy's Hessian on val"),
            ("trace own val", "the trace of the trained loss's own Hessian on val"),
            ("ece after T", "ECE after T"),
        ):
            change = slope(runs, loss, number)
            because = f"change of log for a unit of γ {shown(change, signed=True)}"
            found.append(Claim("K Conj. 1", f"{said} falls with the γ {words}", verdict(change), because))
    return found


def constants_table(constants: Sequence[dict[str, float]]) -> str:
    """The computed constants by gamma."""
    heads = ["γ", "largest gradient in the logits", "largest second derivative"]
    lines = [[f"{row['gamma']:g}", f"{row['gradient']:.4g}", f"{row['second derivative']:.4g}"] for row in constants]
    return markdown(heads, lines)


def gradients_table(runs: Runs) -> str:
    """Largest gradients of trained networks by gamma, means over seeds."""
    lines = [
        [
            f"{gamma:g}",
            *(shown(interval([run[name] for run in of(runs, "focal", gamma).values()])) for name in GRADIENTS),
        ]
        for gamma in gammas(runs)
    ]
    return markdown(["γ", *(f"largest {name}" for name in GRADIENTS)], lines)


def distances_table(runs: Runs) -> str:
    """KL over half d'Fd by distance, geometric means over seeds: all gammas, and the first and the last."""
    lines = []
    ends = (None, gammas(runs)[0], gammas(runs)[-1])
    for kind, words in (("random", "random directions"), ("uphill", "up the gradient")):
        for gamma in ends:
            found = [ratios(runs, kind, distance, gamma=gamma) for distance in DISTANCES]
            cells = [shown(Interval(*(float(np.exp(end)) for end in each))) for each in found]
            lines.append([words, "all" if gamma is None else f"{gamma:g}", *cells])
    return markdown(["", "γ", *(f"{100 * distance:g}% away" for distance in DISTANCES)], lines)


def bounds_table(runs: Runs, finite: Runs) -> str:
    """The bounds by gamma beside the test errors, %, means over seeds, or over groups of networks."""
    lines = []
    for gamma in sorted({row["gamma"] for row in finite}):
        own = [run["gaussian"] for run in of(runs, "focal", gamma).values() if "gaussian" in run]
        groups = [row for row in finite if row["gamma"] == gamma]
        cells = [_share([each[name] for each in own]) for name in ("bound", "drawn", "error")]
        cells.append(shown(interval([each["divergence"] for each in own])))
        cells += [_share([row[name] for row in groups]) for name in ("boltzmann", "uniform", "error")]
        lines.append([f"{gamma:g}", *cells])
    heads = ["γ", "bound, half the data, %", "error over draws, other half, %", "test error of the centre, %"]
    heads += ["KL, nats", "bound, five networks, Maxwell-Boltzmann, %", "uniform, %", "test error, %"]
    return markdown(heads, lines)


def _share(values: Sequence[float]) -> str:
    return shown(clipped(interval(values), 0, 1), scale=100)


def objectives_table(runs: Runs) -> str:
    """Focal loss and the confidence penalty at every gamma, means over seeds."""
    lines = []
    for loss, words in (("focal", "focal"), ("penalised", "confidence penalty")):
        for gamma in gammas(runs, loss):
            own = of(runs, loss, gamma).values()
            cells = [shown(interval([run[name] for run in own]), scale=scale) for name, (_, scale) in OUTPUTS.items()]
            lines.append([words, f"{gamma:g}", str(len(own)), *cells])
    return markdown(["loss", "γ", "n", *(title for title, _ in OUTPUTS.values())], lines)
