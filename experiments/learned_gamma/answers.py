"""The learned gamma beside cross-entropy, the sweep's choice on val and FLSD-53; where it ends; the tables."""

from collections.abc import Sequence
from typing import Any

from experiments.claims import Claim
from experiments.intervals import NOT, SHOWS, UNTOLD, alike, interval, is_known, paired, shown
from experiments.learned_gamma.training import GAMMAS, STARTS, TASKS
from experiments.writing import Interval, markdown

Runs = Sequence[dict[str, Any]]
ROOM = 0.01  # nats of test NLL, within which two are alike
NUMBERS = {  # number -> title, scale
    "accuracy": ("accuracy, %", 100),
    "nll": ("NLL as trained", 1),
    "nll after T": ("NLL after T", 1),
    "ece": ("ECE as trained, %", 100),
    "ece after T": ("ECE after T, %", 100),
    "temperature": ("T", 1),
}


def of(runs: Runs, task: str, kind: str, gamma: float) -> dict[int, dict[str, Any]]:
    """Seed -> run of a task, a kind and a gamma."""
    return {run["seed"]: run for run in runs if (run["task"], run["kind"], run["gamma"]) == (task, kind, gamma)}


def chosen(runs: Runs, task: str) -> dict[int, dict[str, Any]]:
    """Seed -> the run of the sweep whose NLL on val is least, as trained."""
    found: dict[int, dict[str, Any]] = {}
    for gamma in GAMMAS:
        for seed, run in of(runs, task, "fixed", gamma).items():
            if seed not in found or run["val nll"] < found[seed]["val nll"]:
                found[seed] = run
    return found


def rivals(runs: Runs, task: str) -> dict[str, dict[int, dict[str, Any]]]:
    """Title -> seed -> run, of what a learned gamma is compared with."""
    return {
        "cross-entropy": of(runs, task, "fixed", 0.0),
        "the sweep's choice on val": chosen(runs, task),
        "FLSD-53": of(runs, task, "flsd", 0.0),
    }


def less(one: dict[int, dict[str, Any]], other: dict[int, dict[str, Any]], name: str) -> Interval:
    """The mean difference over seeds, paired."""
    return paired(*({seed: run[name] for seed, run in own.items()} for own in (one, other)))


def claims(runs: Runs) -> list[Claim]:
    """Of every task and start: test NLL and ECE as trained against each rival; and whether the starts end together."""
    found = []
    for task in tasks(runs):
        title = TASKS[task][0]
        for start in STARTS:
            own = of(runs, task, "learned", start)
            for name, other in rivals(runs, task).items():
                found.append(_alike(f"{title}: γ learned from {start:g}", own, other, name))
        ends = less(_ended(runs, task, STARTS[1]), _ended(runs, task, STARTS[0]), "end")
        claim = f"{title}: γ ends within 0.5 of the same from {STARTS[0]:g} and from {STARTS[1]:g}"
        found.append(Claim("focalgeo", claim, alike(ends, 0.5), f"difference {shown(ends, signed=True)}"))
    return found


def _alike(words: str, own: dict, other: dict, name: str) -> Claim:
    """Shows where the test NLL is lower, or within ROOM above; not where it is further above."""
    change = less(own, other, "nll")
    said = UNTOLD if not is_known(change) else SHOWS if change.high < ROOM else NOT if change.low > ROOM else UNTOLD
    after, ece = less(own, other, "nll after T"), less(own, other, "ece")
    points = shown(ece, scale=100, signed=True)
    because = f"NLL {shown(change, signed=True)}, after T {shown(after, signed=True)} nats; ECE {points} points"
    return Claim("focalgeo", f"{words} has a test NLL at most {ROOM:g} above that of {name}", said, because)


def _ended(runs: Runs, task: str, start: float) -> dict[int, dict[str, float]]:
    return {seed: {"end": run["path"][-1]} for seed, run in of(runs, task, "learned", start).items()}


def tasks(runs: Runs) -> list[str]:
    """The tasks that have runs."""
    return [task for task in TASKS if any(run["task"] == task for run in runs)]


def table(runs: Runs, task: str) -> str:
    """Of one task every way of training, means over seeds; for a learned gamma where it ends."""
    lines = []
    ways = [(f"γ = {gamma:g}", of(runs, task, "fixed", gamma)) for gamma in GAMMAS]
    ways += [("the sweep's choice on val, by NLL", chosen(runs, task)), ("FLSD-53", of(runs, task, "flsd", 0.0))]
    ways += [(f"γ learned from {start:g}", of(runs, task, "learned", start)) for start in STARTS]
    for title, own in ways:
        cells = [
            shown(interval([run[name] for run in own.values()]), scale=scale) for name, (_, scale) in NUMBERS.items()
        ]
        lines.append([title, *cells, _end(own)])
    return markdown(["trained with", *(title for title, _ in NUMBERS.values()), "γ at the end"], lines)


def _end(own: dict[int, dict[str, Any]]) -> str:
    if any(run["kind"] == "flsd" for run in own.values()):
        return ""  # its own for each example
    return shown(interval([run["path"][-1] if "path" in run else run["gamma"] for run in own.values()]))
