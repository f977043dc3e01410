"""Which post-hoc method, how often is the choice right, and how do other libraries do: on halves of predictions.

Data: logits/wide-resnet-16-4-cifar100.npz and densenet-cifar100.npz in FOCALGEO_DATA, softmax outputs of two networks
trained elsewhere, for the 10,000 test images of CIFAR-100 (from the examples of netcal's repository, Apache 2.0). The
small CNN is the main job's own, overfitted on purpose: configs/cifar10.py:quick with cross-entropy, no augmentation,
weight decay 0, 20 epochs, decay after 14 and 18, no curvature; its folder of predictions is --predictions.

Twenty times 10,000 examples are split at random into 5,000 to fit on and 5,000 to measure on. Intervals are the
corrected resampled t interval, mean +- t sqrt(1/20 + 1) sd (Nadeau & Bengio, Machine Learning 52, 2003). "Worse /
better" counts splits on which the paired bootstrap's 95% interval of the difference leaves out 0. Not repeated by the
command: with 100 classes and 1,000 examples stratified folds make the held-out NLL of matrix scaling 0.037 nats too
good, that of vector scaling 0.004; folds at random agree with fresh examples.

Two classes: breast cancer and digits of scikit-learn, digits with noise on the pixels; 20 Newsgroups (20news-bydate,
IBM or Mac, cars or motorcycles) and the sentences of the Stanford Sentiment Treebank in FOCALGEO_DATA, as counts of
words. At most 3,000 examples, ten times split at random into train, val and test of a third each. NLL of probabilities
no less than 1.2e-7, as scikit-learn's of float32: its isotonic regression says 0 of labels that come.

Rules of choice: ten random splits into val and at most 5,000 of test of the networks above, of the small CNN as
configs/cifar10.py:quick has it with cross-entropy (--augmented), of naive Bayes on 20 Newsgroups and of classifiers of
digits that are trained on 297; and of the sets of two classes. All rules see the same outputs, cross-fitted in five
folds. "three" mixes temperature, focal vector and matrix scaling, "mixture" also the outputs as given, focal
temperature scaling and with two classes beta calibration and isotonic regression, without numbers of each class where
val lacks a class; weights by EM. "mixture or plainer", the rule before, is the plainest within half a standard error
of the best of as given where the score test of T = 1 has p of 0.05 or more, temperature scaling and the mixture. "as
given or mixture", the rule now, leaves temperature scaling out; its mixture has Platt scaling too, and gives each
member 0.2 / classes examples beforehand. That was picked on these sets, so ten sets of two classes were named to
confirm it before they were measured. Sets share examples over seeds: intervals are too narrow for other sets.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from experiments import timing
from experiments.numbers import (
    Claim,
    Interval,
    column,
    interval,
    markdown,
    paired,
    resampled_interval,
    rows_where,
    told,
)
from experiments.peers import PEERS
from experiments.posthoc import assumed, choice, measured, two_classes
from experiments.posthoc.measured import PLAIN, TRUTHS
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
ANSWERS = {  # as it is answered now, and without
    "coverage": ("by cluster", "as independent"),
    "rounding": ("shared", "half a unit", "1.2e-38"),
}
_RULES = ("chosen", "least")
RULE, OLD, MATRIX = "as given or mixture", "none beats", "matrix scaling"
PARTS = {  # of what the rules are tried on -> kinds of sets, sizes of val, most regret, 1e-4 nats
    "real": (("real", "posts"), choice.SIZES, 5),
    "real, but for posts": (("real",), choice.SIZES, 5),
    "calibrated, 200": (("calibrated",), (200,), 40),
    "calibrated, 1,000": (("calibrated",), (1000,), 10),
    "calibrated, 5,000": (("calibrated",), (5000,), 3),
    "other truths": (("truths",), choice.SIZES, None),
    "two classes, to 200": (("two classes",), (100, 200), 20),
    "two classes, 700": (("two classes",), (700,), 20),
    "confirming, to 200": (("confirming",), (100, 200), 20),
    "confirming, 700": (("confirming",), (700,), 20),
}
WORST = 40  # of a set of "real" at one size of val
KEYS = (
    *("kind", "network", "method", "criterion", "truth", "classes", "examples"),
    *("set", "sizes", "clusters", "size", "decimals", "voters", "case", "answer"),
)
PAIRS = (  # method, less which, the paper that says so
    (PLAIN, "uncalibrated", "focalgeo"),
    ("focal_temperature_scaling", PLAIN, "focalgeo"),
    ("focal_vector_scaling", "vector_scaling", "focalgeo"),
    ("vector_scaling", PLAIN, "focalgeo"),
)


def plan(flags: Flags, parts: Parts) -> Iterator[Job]:
    """What is measured on splits of each network, then the simulation, least work first."""
    seeds = range(flags.seeds)
    installed = [name for name, peer in PEERS.items() if timing.version(peer.package)]
    of_methods = [("methods", name) for name in measured.method_names()] + [("peers", name) for name in installed]
    pieces = [(part, {"method": name}, partial(measured.of_method, name)) for part, name in of_methods]
    pieces += [("choice", {}, measured.choice), ("criterion", {}, measured.by_criteria)]
    for network, paths in measured.sources(flags.predictions).items():
        for part, of, measure in pieces:
            of = {"network": network} | of
            yield Job(of, seeds, lambda out, at=(paths, seeds, of, measure): measured.of_splits(*at), part=part)
    for name in two_classes.cases():
        yield Job({"set": name}, range(10), lambda out, at=name: two_classes.of_case(at, range(10)), part="two_classes")
    networks = measured.sources(flags.predictions) | measured.sources(flags.augmented, "small CNN, augmented")
    for (kind, name), (sizes, splits) in choice.sets(networks).items():
        for size in sizes:
            of = {"kind": kind, "set": name, "examples": size}
            yield Job(
                of, range(10), lambda out, at=(kind, name, splits, size, range(10)): choice.of_set(*at), part="rules"
            )
    for sizes, cells in assumed.CLUSTERS.items():
        for clusters, size in cells:
            of = {"sizes": sizes, "clusters": clusters, "size": size}
            yield Job(of, range(200), lambda out, at=of: assumed.coverage(**at, seeds=range(200)), part="coverage")
    for part, name, cases, measure in (
        ("rounding", "decimals", assumed.DECIMALS, assumed.rounding),
        ("votes", "voters", assumed.VOTERS, assumed.votes),
        ("absent", "case", assumed.ABSENT, assumed.absent),
    ):
        for case in cases:
            yield Job({name: case}, range(10), lambda out, at=(measure, case): at[0](at[1], range(10)), part=part)
    for (classes, examples), truth in product(CELLS, TRUTHS):
        repetitions = max(10, round(min(1.0, LONG / (classes * examples)) * flags.repetitions / 10) * 10)
        of = {"truth": truth, "classes": classes, "examples": examples}
        yield Job(of, (), lambda out, at=(of, repetitions): [measured.cell(*at)], part="simulation")


def less(one: pd.DataFrame, other: pd.DataFrame, score: str, scale: float = 1.0) -> Interval:
    """A score of some fits less that of others, over the splits."""
    return resampled_interval(scale * (column(one, score) - column(other, score)).dropna())


def by_method(runs: pd.DataFrame) -> Iterator[tuple[str, dict[str, pd.DataFrame]]]:
    """Each network with method -> its runs."""
    for network, group in runs.groupby("network", sort=False):
        yield network, dict(iter(group.groupby("method", sort=False)))


def claims(methods, rules=None) -> list[Claim]:
    """For each network whether a method's NLL is below a plainer one's; and what the rule of choice is held to."""
    made = [] if rules is None else _of_rule(rules)
    for network, runs in by_method(methods):
        for one, other, where in PAIRS:
            names = [name.replace("_", " ") for name in (one, other)]
            words = f"{network}: NLL on test after {names[0]} is below that after {names[1]}"
            difference = less(runs[one], runs[other], "nll")
            made.append(told(where, words, difference, scale=100, unit="1/100 nat", what=""))
    return made


def regrets(rules: pd.DataFrame) -> pd.DataFrame:
    """Of each split and rule: NLL less the least mean NLL of a method on that set and size, in 1e-4 nats.

    Of calibrated truths it is less that of the outputs as given.
    """
    cell = ["kind", "set", "examples"]
    methods = pd.DataFrame(list(rules.nll)).join(rules[[*cell, "seed"]])
    best = methods.drop(columns="seed").groupby(cell).mean().idxmin(axis=1)
    lines = []
    for row in rules.itertuples():
        least = "uncalibrated" if row.kind == "calibrated" else best[row.kind, row.set, row.examples]
        for name, (nll, brier, accuracy, ece, beyond) in row.rules.items():
            of = {"kind": row.kind, "set": row.set, "examples": row.examples, "seed": row.seed, "rule": name}
            numbers = {"brier": brier, "accuracy": accuracy, "ece": ece, "beyond": beyond}
            lines.append(of | numbers | {"regret": 1e4 * (nll - row.nll[least])})
    return pd.DataFrame(lines)


def _in_part(found, part):
    kinds, sizes, _ = PARTS[part]
    return found[found.kind.isin(kinds) & found.examples.isin(sizes)]


def _by_cell(found):
    return found.groupby(["set", "examples"]).regret.mean()


def _of_rule(rules):
    """Whether the rule keeps to what it is held to, over seeds of the mean of sets and sizes."""
    every, made = regrets(rules), []
    found = rows_where(every, rule=RULE)
    for part, (_, _, most) in PARTS.items():
        runs = _in_part(found, part)
        if most and len(runs):
            words = f"{RULE}, {part}: its NLL is at most {most} 1e-4 nats above the best method's"
            made.append(
                told("focalgeo", words, interval(runs.groupby("seed").regret.mean()), unit="1e-4 nats", margin=most)
            )
    real = _in_part(found, "real")
    worst = real[real.set.eq(_by_cell(real).idxmax()[0]) & real.examples.eq(_by_cell(real).idxmax()[1])]
    words = f"{RULE}: on no real set at one size it is more than {WORST} 1e-4 nats"
    made.append(
        told(
            "focalgeo",
            words,
            interval(worst.regret),
            unit="1e-4 nats",
            margin=WORST,
            what=f"worst, {worst.set.iloc[0]}, {worst.examples.iloc[0]}:",
        )
    )
    cifar = every[every.set.str.contains("CNN") & every.examples.eq(5000)]
    if len(cifar):
        one, other = (rows_where(cifar, rule=name).groupby("seed").regret.mean() for name in (RULE, MATRIX))
        made.append(
            told(
                "focalgeo",
                f"{RULE}: its NLL on CIFAR-10 with 5,000 is at most that of {MATRIX}",
                paired(one, other),
                unit="1e-4 nats",
                margin=1e-9,
            )
        )
    one, other = (
        100 * rows_where(every, rule=name).pipe(_noisy).groupby("seed").beyond.apply(lambda sign: (sign > 0).mean())
        for name in (RULE, OLD)
    )
    made.append(
        told(
            "focalgeo",
            f"{RULE}: no oftener worse than temperature scaling beyond noise than {OLD}",
            paired(one, other),
            unit="% of splits",
            margin=1e-9,
        )
    )
    return made


def _noisy(found):
    """Sets whose labels are real."""
    return found[found.kind.isin(["real", "posts", "two classes", "confirming"])]


def rules_table(rules) -> str:
    """Each rule's NLL on test less that of the best method in hindsight of a set and size, 1e-4 nats, means over these.

    In brackets the worst of them. On how many of a hundred splits of real labels NLL is worse / better than temperature
    scaling's beyond noise; ECE and accuracy in percent and Brier score in thousandths, of real sets.
    """
    every, lines = regrets(rules), []
    for name, found in every.groupby("rule", sort=False):
        cells = [_by_cell(_in_part(found, part)) for part in PARTS]
        cifar = found[found.set.str.contains("CNN") & found.examples.eq(5000)].regret.mean()
        noisy, real = _noisy(found), _in_part(found, "real")
        beyond = " / ".join(f"{100 * (noisy.beyond == sign).mean():.1f}" for sign in (1, -1))
        shown = [f"{100 * real.ece.mean():.2f}", f"{1000 * real.brier.mean():.1f}", f"{100 * real.accuracy.mean():.2f}"]
        lines.append(
            [
                name,
                *(f"{each.mean():.1f} ({each.max():.0f})" if len(each) else "" for each in cells),
                f"{cifar:.1f}",
                beyond,
                *shown,
            ]
        )
    heads = ("rule", *PARTS, "CIFAR-10, 5,000", "worse / better", "ECE", "Brier", "accuracy")
    return markdown(heads, lines)


def regrets_table(rules) -> str:
    """The same by set and number of examples of val, for some rules, beside the best method."""
    every, lines = regrets(rules), []
    best = pd.DataFrame(list(rules.nll)).join(rules[["set", "examples"]]).groupby(["set", "examples"]).mean()
    for (kind, name, examples), found in every.groupby(["kind", "set", "examples"], sort=False):
        cells = [f"{rows_where(found, rule=rule).regret.mean():.0f}" for rule in choice.RULES]
        nll = best.loc[name, examples]
        lines.append(
            [kind, name, f"{examples:,}", found.seed.nunique(), title(nll.idxmin()), f"{nll.min():.4f}", *cells]
        )
    return markdown(("kind", "set", "val", "splits", "best method", "its NLL", *choice.RULES), lines)


def title(name: str) -> str:
    """A method's title, as a part of a sentence."""
    return METHODS[name].title.lower()


def methods_table(methods, choice) -> str:
    """Each method less temperature scaling."""
    lines = []
    for network, runs in by_method(methods):
        chosen = Counter(rows_where(choice, network=network).chosen)
        for name, group in runs.items():
            cells = [_less(group, runs[PLAIN], score) for score in SCORES]
            lines.append([TITLES[network], title(name), *cells, chosen[name], _seconds(group)])
    heads = [head for _, head in SCORES.values()]
    return markdown(["network", "method", *heads, "recommended", "processor s"], lines)


def choice_table(choice) -> str:
    """The recommended methods, and on how many splits they were beyond noise worse / better than the plain ones."""
    lines = []
    for network, runs in choice.groupby("network", sort=False):
        said = ", ".join(f"{title(name)} {count}" for name, count in Counter(runs.chosen).items())
        for against in ("uncalibrated", PLAIN):
            compared = pd.DataFrame([row[against] for row in runs.against if against in row], columns=list(SCORES))
            less_nll = 1000 * compared.nll.str[0].reindex(range(len(runs)), fill_value=0.0)
            others = f"{len(compared)} of {len(runs)}", _cell(resampled_interval(less_nll))
            beyond = [_beyond(compared[score]) for score in ("nll", "brier", "ece")]
            beyond.append(_beyond(compared.accuracy, better=1))
            lines.append([TITLES[network], said, title(against), *others, *beyond])
    heads = ("network", "recommended, splits", "against", "another than it", SCORES["nll"][1])
    return markdown((*heads, "NLL worse / better", "Brier", "ECE", "accuracy"), lines)


def _simulated(simulation, heads, cells):
    """A line for each cell. cells: of a cell and its right method."""
    lines = []
    for cell in simulation:
        size = [cell["truth"], cell["classes"], f"{cell['examples']:,}", cell["repetitions"]]
        lines.append([*size, *cells(cell, TRUTHS[cell["truth"]])])
    return markdown(["truth", "classes", "examples", "repetitions", *heads], lines)


def simulation_table(simulation) -> str:
    """What was chosen, in percent of the repetitions."""

    def cells(cell, right):
        order, shares = list(METHODS), 100 * pd.Series(cell["chosen"]) / cell["repetitions"]
        sides = shares.groupby([np.sign(order.index(name) - order.index(right)) for name in shares.index]).sum()
        most = shares.sort_values(ascending=False, kind="stable")
        said = ", ".join(f"{title(name)} {share:.0f}" for name, share in most.items())
        return [title(right), *(f"{sides.get(side, 0):.0f}" for side in (-1, 0, 1)), said]

    return _simulated(simulation, ("right method", "plainer %", "right %", "more complex %", "chosen %"), cells)


def excess_table(simulation) -> str:
    """The mean excess NLL over the truth, in thousandths of a nat."""

    def cells(cell, right):
        rules = ("uncalibrated", PLAIN, right, "chosen")
        return [f"{abs(1000 * cell['excess'][rule]):.1f}" for rule in rules]

    heads = ("as given", title(PLAIN), "right method", "chosen")
    return _simulated(simulation, heads, cells)


def criterion_table(criterion) -> str:
    """Fits by NLL and by ECE, less temperature scaling by NLL."""
    lines, scores = [], list(SCORES)[:3]
    for (network, method, by), runs in criterion.groupby(["network", "method", "criterion"], sort=False):
        if (method, by) != (PLAIN, "nll"):
            plain = rows_where(criterion, network=network, method=PLAIN, criterion="nll")
            cells = [_less(runs, plain, score) for score in scores]
            said = f"{_beyond(runs.nll_difference)} of {len(runs)}"
            lines.append([TITLES[network], title(method), by.upper(), *cells, said])
    heads = [SCORES[score][1] for score in scores]
    return markdown(["network", "method", "fitted by", *heads, "NLL worse / better"], lines)


def peers_table(methods, peers) -> str:
    """Other libraries' NLL less that of temperature scaling here, and less that of the same method here."""
    lines, here = [], dict(by_method(methods))
    for (network, name), group in peers.groupby(["network", "method"], sort=False):
        peer = PEERS[name]
        named = [TITLES[network], f"{peer.package} {group.version.iloc[0]}", peer.title]
        if "error" in group and group.error.notna().any():
            lines.append([*named, group.error.iloc[0], "", "", "", ""])
            continue
        same = here[network].get(peer.counterpart)
        than_same, seconds = ("", "") if same is None else (_less(group, same, "nll"), _seconds(same))
        zeros = f"{100 * group.zeros.mean():.1f}%" if group.zeros.max() else "none"
        lines.append([*named, _less(group, here[network][PLAIN], "nll"), than_same, zeros, _seconds(group), seconds])
    heads = ("network", "library", "method", "NLL less temperature scaling", "NLL less the same here")
    return markdown((*heads, "labels given 0", "processor s", "here"), lines)


def coverage_table(coverage) -> str:
    """How often the 95% intervals hold the true number, in percent."""
    scores, lines = ("accuracy", "nll", "ece"), []
    for (sizes, clusters, size), runs in coverage.groupby(["sizes", "clusters", "size"], sort=False):
        cells = [[100 * runs[runs.answer == each][score].mean() for score in scores] for each in ANSWERS["coverage"]]
        lines.append(
            [
                sizes,
                clusters,
                size,
                len(runs) // 2,
                *(" / ".join(f"{pair:.0f}" for pair in pairs) for pairs in zip(*cells, strict=True)),
            ]
        )
    heads = (
        "sizes",
        "clusters",
        "mean size",
        "data sets",
        *(f"{score}, by cluster / as independent" for score in scores),
    )
    return markdown(heads, lines)


def rounding_table(rounding) -> str:
    """NLL after temperature scaling, percent more than that of exact probabilities, and the temperature."""
    lines = []
    for decimals, runs in rounding.groupby("decimals", sort=False):
        nll, temperature = (runs.pivot(index="seed", columns="answer", values=name) for name in ("nll", "temperature"))
        more = [100 * (nll[each] / nll.exact - 1) for each in ANSWERS["rounding"]]
        fitted = [temperature[each].mean() for each in ("exact", *ANSWERS["rounding"])]
        lines.append([decimals, *(f"{each.mean():+.1f}" for each in more), *(f"{each:.2f}" for each in fitted)])
    heads = [f"NLL, % more, {each}" for each in ANSWERS["rounding"]]
    return markdown(["decimals", *heads, *(f"T, {each}" for each in ("exact", *ANSWERS["rounding"]))], lines)


def votes_table(votes) -> str:
    """NLL on test, means over splits, by what a zero counts as."""
    scores = ("uncalibrated", "temperature", "chosen")
    lines = [
        [*of, *(f"{runs[score].mean():.2f}" for score in scores)]
        for of, runs in votes.groupby(["voters", "answer"], sort=False)
    ]
    return markdown(["voters", "a zero is", *(f"NLL, {score}" for score in scores)], lines)


def absent_table(absent) -> str:
    """Accuracy in points and NLL of the choice less those of the outputs as given, on test."""
    lines = []
    for (case, answer), runs in absent.groupby(["case", "answer"], sort=False):
        chosen = ", ".join(f"{title(name)} {count}" for name, count in Counter(runs.chosen).items())
        accuracy, nll = (_cell(interval(scale * runs[name])) for name, scale in (("accuracy", 100), ("nll", 1000)))
        lines.append([case, f"{runs.absent.mean():.1f}", answer, accuracy, nll, chosen])
    heads = ("val lacks", "classes absent", "numbers of each class", "accuracy, points", "NLL, 1/1000 nat", "chosen")
    return markdown(heads, lines)


def two_classes_table(two_classes) -> str:
    """NLL on test of the choice less that of the best of scikit-learn's three on each set, by its mean over splits.

    "Least" is the method of the least cross-fitted NLL on val, whatever the noise, in place of the choice.
    """
    lines = []
    for name, runs in two_classes.groupby("set", sort=False):
        nll = pd.DataFrame(list(runs.nll))
        theirs = nll.filter(like="scikit-learn")
        best = theirs.mean().idxmin()
        of = {
            rule: pd.Series([row[method] for row, method in zip(runs.nll, runs[rule], strict=True)]) for rule in _RULES
        }
        cells = [_cell(resampled_interval(1000 * (values - nll[best]))) for values in of.values()]
        said = ", ".join(f"{title(method)} {count}" for method, count in Counter(runs.chosen).most_common())
        level = f"{1000 * nll[best].mean():.0f}"
        lines.append([name, runs.examples.iloc[0], said, best.removeprefix("scikit-learn "), level, *cells])
    heads = ("set, classifier", "val", "chosen, splits", "scikit-learn's best", "its NLL, 1/1000 nat")
    return markdown((*heads, "choice less it", "least less it"), lines)


def _less(one, other, score):
    return _cell(less(one, other, score, SCORES[score][0]))


def _cell(value):
    if value.low == value.high == 0:
        return "0"
    mean, low, high = ("0.0" if abs(number) < 0.05 else f"{number:+.1f}" for number in value)
    return f"{mean} ({low} to {high})"


def _beyond(intervals, better=-1):
    """How many of the differences lie on the worse side of 0 / on the better."""
    signs = [np.sign(low) if low * high > 0 else 0 for _, low, high in intervals]
    return f"{signs.count(-better)} / {signs.count(better)}"


def _seconds(runs):
    return f"{runs.processor_seconds.median():.2g}"


QUESTION = Question(
    "posthoc",
    "Which post-hoc method, how often is the choice right, and how do other libraries do?",
    claims,
    tables={
        "methods": methods_table,
        "choice": choice_table,
        "rules": rules_table,
        "regrets": regrets_table,
        "simulation": simulation_table,
        "excess": excess_table,
        "criterion": criterion_table,
        "peers": peers_table,
        "coverage": coverage_table,
        "rounding": rounding_table,
        "votes": votes_table,
        "absent": absent_table,
        "two_classes": two_classes_table,
    },
    jobs=plan,
    keys={name: () for name in KEYS},
    options="--predictions=runs/cifar10-ce/predictions --augmented=runs/cifar10-augmented/predictions",
    cost="hours on 2 cores, piece by piece",
    seeds=20,
    flags={
        "--predictions": {"type": Path, "help": "folder of val.npz and test.npz that a run of the main job left"},
        "--augmented": {"type": Path, "help": "the same of configs/cifar10.py:quick with cross-entropy as it is"},
        "--repetitions": {"type": at_least(10), "default": 100, "help": "of a cell of the simulation (default 100)"},
    },
)
