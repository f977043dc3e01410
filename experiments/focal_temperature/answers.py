"""Gains of focal temperature scaling, slopes of T over gamma, T on train; tables and verdicts."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cells import LOSSES, TASKS
from experiments.claims import Claim
from experiments.intervals import NOT, SHOWS, UNTOLD, interval, paired, resampled_interval, shown, verdict
from experiments.writing import Interval, markdown
from focalgeo.theory import matching_temperature

Runs = Sequence[dict[str, Any]]
TABLE_1 = json.loads((Path(__file__).parent / "table1.json").read_text(encoding="utf-8"))
TEMPERATURE, FOCAL = "temperature_scaling", "focal_temperature_scaling"
OTHERS = "others"
GAMMAS = {"fl1": 1.0, "fl2": 2.0, "fl3": 3.0, "fl7": 7.0}  # of the focal losses
STRAIGHT = 0.9  # correlation of T and gamma above which they are called linear (PAPERS: corr > .9)
SAME = 0.1  # points of ECE, within which two searches count as equal


def groups(runs: Runs) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """(task, loss) -> its runs; of others' outputs a loss is a file's name and a seed one random half."""
    found: dict[tuple[str, str], list] = {}
    for run in runs:
        found.setdefault((run["task"], run["loss"]), []).append(run)
    return found


def title(key: tuple[str, str]) -> str:
    """As "20 Newsgroups, FL-3"."""
    task, loss = key
    return f"others' {loss}" if task == OTHERS else f"{TASKS[task].title}, {LOSSES[loss]}"


def less(key: tuple[str, str], own: Runs, one: Callable, other: Callable) -> Interval:
    """The mean of one less other by seed; halves of the same examples overlap, which widens their interval."""
    pairs = [{run["seed"]: value for run in own if (value := each(run)) is not None} for each in (one, other)]
    if key[0] != OTHERS:
        return paired(*pairs)
    return resampled_interval([pairs[0][seed] - pairs[1][seed] for seed in pairs[0] if seed in pairs[1]])


def metric(method: str, name: str) -> Callable[[dict[str, Any]], float | None]:
    """A test metric by a method, 1/100; None where the run has none."""

    def of_run(run: dict[str, Any]) -> float | None:
        found = run["metrics"]["test"].get(method, {}).get(name)
        return None if found is None else 100 * found

    return of_run


def relative_gain(criterion: str, name: str) -> Callable[[dict[str, Any]], float | None]:
    """How much lower the metric is with focal temperature scaling, in % of temperature scaling's."""

    def of_run(run: dict[str, Any]) -> float | None:
        plain, focal = (metric(f"{method}/{criterion}", name)(run) for method in (TEMPERATURE, FOCAL))
        return None if plain is None or focal is None or plain == 0 else 100 * (plain - focal) / plain

    return of_run


def mean(key: tuple[str, str], own: Runs, of_run: Callable) -> Interval:
    """The interval over the seeds, or over the halves."""
    return less(key, own, of_run, lambda run: 0.0)


def slope(run: dict[str, Any], criterion: str) -> tuple[float, float]:
    """Slope of the best T on val over gamma_ev up to 1, and their correlation."""
    pairs = zip(run["temperatures"]["gammas"], run["temperatures"]["val"][criterion], strict=True)
    gammas, temperatures = np.array([(gamma, best) for gamma, best in pairs if gamma <= 1]).T
    straight = np.corrcoef(gammas, temperatures)[0, 1] if np.ptp(temperatures) else 0.0
    return float(np.polyfit(gammas, temperatures, 1)[0]), float(straight)


def at_gamma_0(run: dict[str, Any], split: str, criterion: str = "nll") -> float | None:
    """The best plain temperature on a split."""
    own = run["temperatures"]
    return own[split][criterion][list(own["gammas"]).index(0.0)] if split in own else None


# ---- claims


def claims(runs: Runs) -> list[Claim]:
    """Of each statement a claim over all trained networks, and for each file of others' outputs."""
    trained = [run for run in runs if run["task"] != OTHERS]
    by_task = {task: [run for run in trained if run["task"] == task] for task in TASKS}
    others = {key: own for key, own in groups(runs).items() if key[0] == OTHERS}
    found = []
    for criterion, name, words in (
        ("adaptive_ece", "adaptive_ece", "by AdaECE lowers test AdaECE"),
        ("ece", "ece", "by ECE lowers test ECE"),
        ("nll", "nll", "by NLL lowers test NLL"),
    ):
        gain = relative_gain(criterion, name)
        for label, value in [
            ("trained here", _over_losses(trained, gain)),
            *((f"trained here, {TASKS[task].title}", _over_losses(own, gain)) for task, own in by_task.items() if own),
            *((title(key), mean(key, own, gain)) for key, own in others.items()),
        ]:
            claim = f"{label}: focal temperature scaling {words} against temperature scaling"
            found.append(Claim("F Table 1", claim, verdict(value, falls=False), f"gain {shown(value, signed=True)} %"))
    return [*found, *_linear(runs), *_train(trained), *_searches(runs)]


def _over_losses(runs: Runs, of_run: Callable) -> Interval:
    """The mean over tasks and losses, by seed, over the seeds that all of them have; those of one seed are left out."""
    by_key = {
        key: {run["seed"]: value for run in own if (value := of_run(run)) is not None}
        for key, own in groups(runs).items()
    }
    if any(len(values) > 1 for values in by_key.values()):
        by_key = {key: values for key, values in by_key.items() if len(values) > 1}
    shared = set.intersection(*map(set, by_key.values())) if by_key else set()
    return interval([float(np.mean([values[seed] for values in by_key.values()])) for seed in sorted(shared)])


def _linear(runs: Runs) -> list[Claim]:
    found = []
    for criterion in ("ece", "nll"):
        fits = [slope(run, criterion) for run in runs]
        if fits:
            rising = sum(up > 0 and straight > STRAIGHT for up, straight in fits)
            told = SHOWS if rising == len(fits) else NOT
            because = f"in {rising} of {len(fits)} runs; least correlation {min(r for _, r in fits):.3f}"
            claim = (
                f"the best T by {criterion.upper()} rises with gamma_ev along a line (correlation above {STRAIGHT:g})"
            )
            found.append(Claim("F Fig. 8", claim, told if len(fits) > 1 else UNTOLD, because))
    return found


def _train(trained: Runs) -> list[Claim]:
    """T on train of the focal losses, and what is left to generalisation."""
    found = []
    for (task, loss), own in groups(trained).items():
        if loss in ("fl1", "fl2", "fl3"):
            value = interval([at_gamma_0(run, "train") for run in own])
            inside = value.low > 0.4 and value.high < 0.5
            outside = value.high < 0.4 or value.low > 0.5
            told = SHOWS if inside else NOT if outside else UNTOLD
            claim = f"{title((task, loss))}: T on train is between 0.4 and 0.5"
            found.append(Claim("F 4.1", claim, told, f"T {shown(value)}"))
    return found


def _searches(runs: Runs) -> list[Claim]:
    found = []
    for label, own in (("trained here", [run for run in runs if run["task"] != OTHERS]), *_others(runs)):
        if not own:
            continue
        key = (own[0]["task"], "") if own[0]["task"] == OTHERS else ("", "")
        line, grid = (metric(f"{FOCAL}/{criterion}", "ece") for criterion in ("line_search", "ece"))
        more = less(key, own, line, grid) if key[0] else _over_losses(own, _difference(line, grid))
        claim = f"{label}: the line search's test ECE is at most {SAME:g} point above the grid's"
        shifted = Interval(more.mean - SAME, more.low - SAME, more.high - SAME)
        found.append(Claim("F 5.2", claim, verdict(shifted), f"difference {shown(more, signed=True)}"))
    return found


def _others(runs: Runs) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(title(key), own) for key, own in groups(runs).items() if key[0] == OTHERS]


def _difference(one: Callable, other: Callable) -> Callable[[dict[str, Any]], float | None]:
    def of_run(run: dict[str, Any]) -> float | None:
        values = one(run), other(run)
        return None if None in values else values[0] - values[1]

    return of_run


# ---- tables


def table_1(runs: Runs) -> str:
    """Laid out as the paper's Table 1: NLL by NLL and AdaECE by AdaECE, T and gamma, both methods, and the gains."""
    rows = []
    for key, own in groups(runs).items():
        rows.append([title(key), str(len(own)), *_cells(key, own)])
        theirs = TABLE_1["CIFAR-10"].get(key[1]) if key[0] == "cifar10" else None
        if theirs:
            rows.append(["paper, CIFAR-10, ResNet-50", "5", *_paper_cells(theirs)])
    heads = ["outputs", "seeds", "accuracy, %", "NLL, T", "NLL, focal T", "gain, %", "AdaECE, T", "AdaECE, focal T"]
    return markdown([*heads, "gain, %", "T by AdaECE", "gamma, T by AdaECE"], rows)


def _cells(key: tuple[str, str], own: Runs) -> list[str]:
    cells = [shown(mean(key, own, metric("uncalibrated", "accuracy")))]
    for name in ("nll", "adaptive_ece"):
        cells += [shown(mean(key, own, metric(f"{method}/{name}", name))) for method in (TEMPERATURE, FOCAL)]
        cells.append(shown(mean(key, own, relative_gain(name, name)), signed=True))
    fits = [[run["fits"][f"{method}/adaptive_ece"] for run in own] for method in (TEMPERATURE, FOCAL)]
    plain, gamma, focal = (
        np.mean([fit[name] for fit in each])
        for each, name in ((fits[0], "temperature"), (fits[1], "calibration_gamma"), (fits[1], "temperature"))
    )
    return [*cells, f"{plain:.3g}", f"{gamma:.2g}, {focal:.3g}"]


def _paper_cells(theirs: dict[str, dict[str, float]]) -> list[str]:
    plain, focal = theirs["temperature"], theirs["focal temperature"]
    cells = [f"{plain['accuracy']:g}"]
    for name, scale in (("nll", 100), ("ece", 1)):
        gain = 100 * (plain[name] - focal[name]) / plain[name]
        cells += [f"{scale * plain[name]:.3g}", f"{scale * focal[name]:.3g}", f"{gain:+.2g}"]
    return [*cells, f"{plain['T by ece']:g}", f"{focal['gamma']:g}, {focal['T by ece']:g}"]


def lines_table(runs: Runs) -> str:
    """Of each network: slope and correlation of the best T over gamma_ev, by each criterion."""
    rows = []
    for key, own in groups(runs).items():
        cells = []
        for criterion in ("nll", "ece", "adaptive_ece"):
            fits = [slope(run, criterion) for run in own]
            steep = mean(key, own, lambda run, criterion=criterion: slope(run, criterion)[0])
            cells += [shown(steep), f"{min(straight for _, straight in fits):.3f}"]
        rows.append([title(key), *cells])
    heads = [f"{what}, {name}" for name in ("NLL", "ECE", "AdaECE") for what in ("slope", "least correlation")]
    return markdown(["outputs", *heads], rows)


def train_table(runs: Runs) -> str:
    """Of each trained network: the best T on train, on val, and val over train, which generalisation is left with."""
    rows = []
    for (task, loss), own in groups(runs).items():
        if task == OTHERS:
            continue
        ratio = [at_gamma_0(run, "val") / at_gamma_0(run, "train") for run in own]
        two = own[0]["classes"] == 2 and loss in GAMMAS
        cells = [shown(interval([at_gamma_0(run, split) for run in own])) for split in ("train", "val")]
        theory = f"{float(matching_temperature(GAMMAS[loss], 2)):.3g}" if two else ""
        rows.append([title((task, loss)), *cells, shown(interval(ratio)), theory])
    return markdown(
        ["network", "T_train", "T on val", "T_gen = T on val / T_train", "T of the focal map (theory)"], rows
    )


def methods_table(runs: Runs) -> str:
    """Of each network: line search less grid, loss-implied map less T, focal vector scaling less plain."""
    pairs = (
        (metric(f"{FOCAL}/line_search", "ece"), metric(f"{FOCAL}/ece", "ece")),
        (metric("loss_implied_temperature_scaling/nll", "nll"), metric(f"{TEMPERATURE}/nll", "nll")),
        (metric("focal_vector_scaling/nll", "nll"), metric("vector_scaling/nll", "nll")),
        (metric("focal_vector_scaling/nll", "nll"), metric(f"{FOCAL}/nll", "nll")),
    )
    rows = [
        [title(key), *(shown(less(key, own, *pair), signed=True) for pair in pairs)]
        for key, own in groups(runs).items()
    ]
    heads = [
        "ECE, line search less grid",
        "NLL, loss-implied map and T less T",
        "NLL, focal vector less vector scaling",
    ]
    return markdown(["outputs", *heads, "NLL, focal vector scaling less focal T"], rows)
