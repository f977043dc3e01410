"""How much of the way to the other loss's network a switched one has gone, by epoch, and where it ends."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.claims import Claim
from experiments.intervals import NOT, SHOWS, UNKNOWN, UNTOLD, alike, interval, is_known, paired, shown
from experiments.switch.runs import EPOCHS, GAMMAS, HALF, Way
from experiments.writing import Interval, markdown

Runs = Sequence[dict[str, Any]]
LOSS = {0.0: "cross-entropy", 3.0: "focal loss"}
POINTS = ((HALF, "kept"), (HALF, "fresh"), (EPOCHS, "fresh"))
POINT_WORDS = {
    (HALF, "kept"): "half way",
    (HALF, "fresh"): "half way, momentum from 0",
    (EPOCHS, "fresh"): "after the end",
}
EARLY = 2  # epochs after the switch
ROOM, LOG_ROOM, SHARE_ROOM = 0.01, 0.1, 0.25  # of ECE, of the log of the trace, of shares of the way
RESAMPLES = 2000
PATHS = {"ece": "ECE on val", "trace": "trace, CE, val", "lambda_max": "λ_max, CE, val"}


def of(runs: Runs, way: Way) -> dict[int, dict[str, Any]]:
    """Seed -> run of a way."""
    return {run["seed"]: run for run in runs if Way(*(run[name] for name in Way._fields)) == way}


def throughout(runs: Runs, gamma: float) -> dict[int, dict[str, Any]]:
    """Seed -> run that was trained with one loss to the end."""
    return of(runs, Way(gamma, 0, "fresh", gamma))


def at_epoch(run: dict[str, Any], name: str, epoch: float) -> float:
    """A number of a run's path; of curvature its logarithm, NaN where it is not above 0."""
    place = int(np.argmin(np.abs(np.array(run["path"]["epoch"]) - epoch)))
    value = run["path"][name][place]
    return value if name == "ece" else np.log(value) if value > 0 else np.nan


def gone(runs: Runs, source: float, point: tuple[int, str], name: str, epoch: float) -> np.ndarray:
    """[seeds, 2]: of each seed, how far a switched network is from one that was not, and how far the losses' ends are.

    Both are differences of the other loss's network less the first's; the first is of networks that went on from the
    same checkpoint for as many epochs, the second of those trained throughout.
    """
    other = GAMMAS[1 - GAMMAS.index(source)]
    switched, stayed = (of(runs, Way(source, *point, gamma)) for gamma in (other, source))
    ends = [throughout(runs, gamma) for gamma in (other, source)]
    seeds = sorted(set.intersection(*map(set, (switched, stayed, *ends))))
    pairs = [
        (
            at_epoch(switched[seed], name, epoch) - at_epoch(stayed[seed], name, epoch),
            at_epoch(ends[0][seed], name, EPOCHS) - at_epoch(ends[1][seed], name, EPOCHS),
        )
        for seed in seeds
    ]
    return np.array(pairs).reshape(-1, 2)


def shares(*groups: np.ndarray) -> list[np.ndarray]:
    """Of each group the share of the way, mean over mean, of all seeds and of resamples of seeds, the same for all."""
    count = min(map(len, groups))
    drawn = np.random.default_rng(0).integers(0, max(count, 1), (RESAMPLES, count))
    rows = np.concatenate([np.arange(count)[None], drawn])
    means = [group[:count][rows].mean(1) for group in groups]
    return [mean[:, 0] / mean[:, 1] for mean in means]


def share(runs: Runs, source: float, point: tuple[int, str], name: str, epoch: float) -> Interval:
    """The share of the way, with 95% by the bootstrap over seeds; unknown of fewer than five."""
    pairs = gone(runs, source, point, name, epoch)
    return _interval(shares(pairs)[0]) if len(pairs) >= 5 else UNKNOWN


def _interval(values: np.ndarray) -> Interval:
    if not np.isfinite(values).all():
        return UNKNOWN
    return Interval(float(values[0]), *np.quantile(values[1:], [0.025, 0.975]).tolist())


def claims(runs: Runs) -> list[Claim]:
    """Of each direction and point: where it ends, how fast ECE goes, whether curvature goes along."""
    found = []
    for point in POINTS:
        for source in GAMMAS:
            found += _of_switch(runs, source, point)
        found.append(_forth_and_back(runs, point))
    return found


def _words(source: float, point: tuple[int, str]) -> str:
    other = GAMMAS[1 - GAMMAS.index(source)]
    return f"{LOSS[source]} to {LOSS[other]}, {POINT_WORDS[point]}"


def _of_switch(runs: Runs, source: float, point: tuple[int, str]) -> list[Claim]:
    words, other = _words(source, point), GAMMAS[1 - GAMMAS.index(source)]
    switched, whole = of(runs, Way(source, *point, other)), throughout(runs, other)
    ece = less(switched, whole, "ece")
    trace = paired(*({seed: at_epoch(run, "trace", EPOCHS) for seed, run in own.items()} for own in (switched, whole)))
    early = share(runs, source, point, "ece", EARLY)
    half = UNTOLD if not is_known(early) else SHOWS if early.low > 0.5 else NOT if early.high < 0.5 else UNTOLD
    along = together(runs, source, point)
    percent = {"scale": 100, "signed": True}
    return [
        Claim(
            "focalgeo",
            f"{words}: test ECE ends within a point of {LOSS[other]}'s throughout",
            alike(ece, ROOM),
            f"difference {shown(ece, **percent)} points",
        ),
        Claim(
            "focalgeo",
            f"{words}: the trace of cross-entropy's Hessian on val ends within a tenth of it",
            alike(trace, LOG_ROOM),
            f"difference of log {shown(trace, signed=True)}",
        ),
        Claim(
            "focalgeo",
            f"{words}: after {EARLY} epochs more than half of the way of ECE is gone",
            half,
            f"{shown(early, scale=100)}%",
        ),
        Claim(
            "focalgeo",
            f"{words}: by then the trace has gone as much of its way, to a quarter of it",
            alike(along, SHARE_ROOM),
            f"share of the trace less that of ECE {shown(along, **percent)} points",
        ),
    ]


def less(one: dict[int, dict[str, Any]], other: dict[int, dict[str, Any]], name: str) -> Interval:
    """The mean difference over seeds, paired."""
    return paired(*({seed: run[name] for seed, run in own.items()} for own in (one, other)))


def together(runs: Runs, source: float, point: tuple[int, str]) -> Interval:
    """The trace's share of its way less that of ECE, early on."""
    trace, ece = (gone(runs, source, point, name, EARLY) for name in ("trace", "ece"))
    if len(ece) < 5:
        return UNKNOWN
    one, other = shares(trace, ece)
    return _interval(one - other)


def _forth_and_back(runs: Runs, point: tuple[int, str]) -> Claim:
    forth, back = (gone(runs, source, point, "ece", EARLY) for source in GAMMAS)
    more = UNKNOWN
    if min(len(forth), len(back)) >= 5:
        one, other = shares(forth, back)
        more = _interval(one - other)
    said = UNTOLD if not is_known(more) else SHOWS if more.low > 0 else NOT if more.high < 0 else UNTOLD
    claim = f"{POINT_WORDS[point]}: after {EARLY} epochs ECE has gone more of its way to focal loss than back"
    return Claim("focalgeo", claim, said, f"difference {shown(more, scale=100, signed=True)} points of the way")


def shares_table(runs: Runs) -> str:
    """The share of the way, %, some epochs after the switch."""
    epochs = (2, 6, 10, 20, 30)
    lines = []
    for point in POINTS:
        for source in GAMMAS:
            for name, title in PATHS.items():
                found = [share(runs, source, point, name, epoch) for epoch in epochs]
                lines.append([_words(source, point), title, *(shown(each, scale=100) for each in found)])
    return markdown(["switch", "of", *(f"{epoch} epochs, %" for epoch in epochs)], lines)


def ends_table(runs: Runs) -> str:
    """Where each way ends: numbers on test, curvature of cross-entropy on val, means over seeds."""
    numbers = {
        "accuracy": ("accuracy, %", 100),
        "ece": ("ECE as trained, %", 100),
        "ece after T": ("ECE after T, %", 100),
        "nll": ("NLL as trained", 1),
        "nll after T": ("NLL after T", 1),
        "temperature": ("T", 1),
        "lambda_max CE val": ("λ_max, CE, val", 1),
        "trace CE val": ("trace, CE, val", 1),
    }
    lines = []
    for way in dict.fromkeys(Way(*(run[name] for name in Way._fields)) for run in runs):
        own = of(runs, way).values()
        cells = [shown(interval([run[name] for run in own]), scale=scale) for name, (_, scale) in numbers.items()]
        lines.append([_title(way), str(len(own)), *cells])
    return markdown(["trained with", "n", *(title for title, _ in numbers.values())], lines)


def _title(way: Way) -> str:
    if not way.at:
        return f"{LOSS[way.gamma]} throughout"
    goes_on = "goes on with it" if way.source == way.gamma else f"then {LOSS[way.gamma]}"
    return f"{LOSS[way.source]}, {POINT_WORDS[way.at, way.optimizer]}, {goes_on}"
