"""Which post-hoc method, how often is the choice right, and how do other libraries do: on halves of predictions."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from experiments import figures, timing
from experiments.numbers import Claim, Interval, column, markdown, resampled_interval, rows_where, told
from experiments.posthoc import measured
from experiments.posthoc.measured import PLAIN, TRUTHS
from experiments.posthoc.peers import PEERS
from experiments.question import Flags, Job, Parts, Question, at_least
from focalgeo.calibration import METHODS

TITLES = {
    "Wide ResNet": "Wide ResNet 16-4, CIFAR-100",
    "DenseNet": "DenseNet, CIFAR-100",
    measured.OWN: "small CNN, CIFAR-10 (JPEG)",
}
CELLS = sorted(((classes, examples) for classes in measured.SPREAD for examples in (300, 1000, 5000)), key=np.prod)
LONG = 15_000  # numbers in the logits, above which fewer repetitions are made
SCORES = {  # score -> scale, head
    "nll": (1000, "NLL, 1/1000 nat"),
    "ece": (1000, "ECE, 1/1000"),
    "brier": (1000, "Brier, 1/1000"),
    "accuracy": (100, "accuracy, points"),
}
PAIRS = (  # method, less which, the paper that says so
    (PLAIN, "uncalibrated", "Mukhoti et al., 6"),
    ("focal_temperature_scaling", PLAIN, "Komisarenko & Kull, 4.2"),
    ("focal_vector_scaling", "vector_scaling", "focalgeo"),
    ("vector_scaling", PLAIN, "focalgeo"),
)


def plan(flags: Flags, parts: Parts) -> Iterator[Job]:
    """What is measured on splits of each network, then the simulation, least work first."""
    seeds = range(flags.seeds)
    installed = [name for name, peer in PEERS.items() if timing.version(peer.package)]
    for network, paths in measured.sources(flags.predictions).items():
        for part, names in (("methods", measured.method_names()), ("peers", installed)):
            for name in names:
                of = {"network": network, "method": name}
                yield Job(of, seeds, lambda out, at=(paths, of): measured.fits(*at, seeds), part=part)
        for part, make in (("choice", measured.choices), ("criterion", measured.by_criteria)):
            at = (paths, network, seeds)
            yield Job({"network": network}, seeds, lambda out, make=make, at=at: make(*at), part=part)
    for classes, examples in CELLS:
        repetitions = max(10, round(min(1.0, LONG / (classes * examples)) * flags.repetitions / 10) * 10)
        for truth in TRUTHS:
            of = {"truth": truth, "classes": classes, "examples": examples}
            make = lambda out, of=of, n=repetitions: [measured.cell(of, n)]  # noqa: E731
            yield Job(of, (), make, part="simulation")


def less(runs: pd.DataFrame, network: str, one: dict, other: dict, score: str, scale: float = 1.0) -> Interval:
    """A score of some of the network's fits less that of others, over the splits."""
    pair = [column(runs, score, network=network, **tags) for tags in (one, other)]
    return resampled_interval(scale * (pair[0] - pair[1]).dropna())


def claims(methods) -> list[Claim]:
    """For each network whether a method's NLL is below a plainer one's."""
    found = []
    for network in methods.network.unique():
        for one, other, where in PAIRS:
            difference = less(methods, network, {"method": one}, {"method": other}, "nll")
            names = [name.replace("_", " ") for name in (one, other)]
            words = f"{network}: NLL on test after {names[0]} is below that after {names[1]}"
            found.append(told(where, words, difference, scale=100, unit="1/100 nat", what=""))
    return found


def title(name: str) -> str:
    """A method's title, as a part of a sentence."""
    plain, comma, rest = name.partition(",")
    return METHODS[plain].title.lower() + comma + rest


def methods_table(methods, choice) -> str:
    """Each method less temperature scaling."""
    lines = []
    for network in methods.network.unique():
        chosen = list(rows_where(choice, network=network).chosen)
        for name in rows_where(methods, network=network).method.unique():
            own, plain = {"method": name}, {"method": PLAIN}
            cells = [_cell(less(methods, network, own, plain, score, scale)) for score, (scale, _) in SCORES.items()]
            seconds = _seconds(methods, network, name)
            lines.append([TITLES[network], title(name), *cells, str(chosen.count(name)), seconds])
    heads = [head for _, head in SCORES.values()]
    return markdown(["network", "method", *heads, "recommended", "processor s"], lines)


def choice_table(choice) -> str:
    """The recommended methods, and on how many splits they were beyond noise worse / better than the plain ones."""
    lines = []
    for network in choice.network.unique():
        runs = rows_where(choice, network=network)
        said = ", ".join(f"{title(name)} {count}" for name, count in Counter(runs.chosen).items())
        for against in ("uncalibrated", PLAIN):
            compared = [row.get(against) for row in runs.against]
            cells = [_beyond(compared, metric) for metric in ("nll", "brier", "ece", "accuracy")]
            mean = _cell(resampled_interval([1000 * row["nll"][0] if row else 0.0 for row in compared]))
            others = f"{len(list(filter(None, compared)))} of {len(runs)}"
            lines.append([TITLES[network], said, title(against), others, mean, *cells])
    heads = ("network", "recommended, splits", "against", "another than it", SCORES["nll"][1])
    return markdown((*heads, "NLL worse / better", "Brier", "ECE", "accuracy"), lines)


def _simulated(simulation: list[dict], heads: Sequence[str], cells: Callable[[dict, str], list[str]]) -> str:
    """A line for each cell. cells: of a cell and its right method."""
    lines = []
    for cell in simulation:
        size = [cell["truth"], str(cell["classes"]), f"{cell['examples']:,}", str(cell["repetitions"])]
        lines.append([*size, *cells(cell, TRUTHS[cell["truth"]][0])])
    return markdown(["truth", "classes", "examples", "repetitions", *heads], lines)


def simulation_table(simulation) -> str:
    """What was chosen, in percent of the repetitions."""

    def cells(cell: dict, right: str) -> list[str]:
        order, share, sides = list(METHODS), 100 / cell["repetitions"], {-1: 0, 0: 0, 1: 0}
        for name, count in cell["chosen"].items():
            sides[np.sign(order.index(name) - order.index(right))] += count
        most = sorted(cell["chosen"].items(), key=lambda item: -item[1])
        said = ", ".join(f"{title(name)} {share * count:.0f}" for name, count in most)
        return [title(right), *(f"{share * count:.0f}" for count in sides.values()), said]

    return _simulated(simulation, ("right method", "plainer %", "right %", "more complex %", "chosen %"), cells)


def excess_table(simulation) -> str:
    """The mean excess NLL over the truth, in thousandths of a nat."""

    def cells(cell: dict, right: str) -> list[str]:
        rules = ("uncalibrated", PLAIN, right, "chosen", "at_least_temperature", "least")
        return [f"{abs(1000 * cell['excess'][rule]):.1f}" for rule in rules]

    heads = ("as given", title(PLAIN), "right method", "chosen", "chosen or temperature", "least")
    return _simulated(simulation, heads, cells)


def criterion_table(criterion) -> str:
    """Fits by NLL and by ECE, less temperature scaling by NLL."""
    lines, plain = [], {"method": PLAIN, "criterion": "nll"}
    scores = {score: at for score, at in SCORES.items() if score != "accuracy"}
    for (network, method, by), runs in criterion.groupby(["network", "method", "criterion"], sort=False):
        own = {"method": method, "criterion": by}
        if own != plain:
            cells = [_cell(less(criterion, network, own, plain, score, scale)) for score, (scale, _) in scores.items()]
            low, high = runs.nll_difference.str[1], runs.nll_difference.str[2]
            said = f"{sum(low > 0)} / {sum(high < 0)} of {len(runs)}"
            lines.append([TITLES[network], title(method), by.upper(), *cells, said])
    heads = [head for _, head in scores.values()]
    return markdown(["network", "method", "fitted by", *heads, "NLL worse / better"], lines)


def peers_table(methods, peers) -> str:
    """Other libraries' NLL less that of temperature scaling here, and less that of the same method here."""
    lines, runs = [], pd.concat([methods, peers])
    for (network, name), own in peers.groupby(["network", "method"], sort=False):
        peer, same = PEERS[name], PEERS[name].counterpart
        named = [TITLES[network], f"{peer.package} {own.version.iloc[0]}", peer.title]
        if "error" in own and own.error.notna().any():
            lines.append([*named, own.error.iloc[0], "", "", "", ""])
            continue
        cells = [
            _cell(less(runs, network, {"method": name}, {"method": other}, "nll", 1000)) if other else ""
            for other in (PLAIN, same)
        ]
        zeros = f"{100 * own.zeros.mean():.1f}%" if own.zeros.max() else "none"
        here = _seconds(methods, network, same) if same else ""
        lines.append([*named, *cells, zeros, _seconds(peers, network, name), here])
    heads = ("network", "library", "method", "NLL less temperature scaling", "NLL less the same here")
    return markdown((*heads, "labels given 0", "processor s", "here"), lines)


def _cell(value: Interval) -> str:
    if value.low == value.high == 0:
        return "0"
    mean, low, high = ("0.0" if abs(number) < 0.05 else f"{number:+.1f}" for number in value)
    return f"{mean} ({low} to {high})"


def _beyond(compared: list[dict | None], metric: str) -> str:
    sign = -1 if metric == "accuracy" else 1
    ends = [sorted(sign * end for end in row[metric][1:]) for row in compared if row]
    return f"{sum(low > 0 for low, _ in ends)} / {sum(high < 0 for _, high in ends)}"


def _seconds(runs: pd.DataFrame, network: str, method: str) -> str:
    return f"{column(runs, 'processor_seconds', network=network, method=method).median():.2g}"


def forest(methods, peers):
    """A panel for each network: each method's NLL less that of temperature scaling; other libraries in orange."""
    networks, runs = list(methods.network.unique()), pd.concat([methods, peers])
    labels = {name: title(name) for name in methods.method.unique() if name != PLAIN}
    labels |= {name: f"{PEERS[name].package}: {PEERS[name].title}" for name in peers.method.unique()}
    figure, axes = figures.panels(1, len(networks), 3.2 + 2.6 * len(networks), 0.8 + 0.22 * len(labels), sharey=True)
    for axis, network in zip(axes[0], networks, strict=True):
        for place, name in enumerate(labels):
            value = less(runs, network, {"method": name}, {"method": PLAIN}, "nll", 1000)
            colour = figures.RED if name in PEERS else figures.BLUE
            figures.intervals(axis, [-place], [value], along="x", color=colour, marker="o")
        axis.axvline(0, color="0.5", linewidth=1)
        axis.set_xscale("symlog", linthresh=30, linscale=2)
        axis.set_xticks((-20, 0, 20, 300), ("-20", "0", "20", "300"))
        axis.set(title=TITLES[network].replace(", ", "\n"))
    axes[0, 0].set_yticks(range(0, -len(labels), -1), list(labels.values()))
    figure.supxlabel("NLL less temperature scaling's, thousandths of a nat (left is better)", fontsize=9)
    return figure


QUESTION = Question(
    "posthoc",
    "Which post-hoc method, how often is the choice right, and how do other libraries do?",
    claims,
    tables={
        "methods": methods_table,
        "choice": choice_table,
        "simulation": simulation_table,
        "excess": excess_table,
        "criterion": criterion_table,
        "peers": peers_table,
    },
    figures={"nll": forest},
    jobs=plan,
    keys={name: () for name in ("network", "method", "criterion", "truth", "classes", "examples")},
    options="--predictions=runs/cifar10-ce/predictions",
    cost="hours on 2 cores, piece by piece",
    seeds=20,
    flags={
        "--predictions": {"type": Path, "help": "folder of val.npz and test.npz that a run of the main job left"},
        "--repetitions": {"type": at_least(10), "default": 100, "help": "of a cell of the simulation (default 100)"},
    },
)
