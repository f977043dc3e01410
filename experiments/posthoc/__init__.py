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
val lacks a class; weights by EM. "mixture or plainer", the rule before, is the simplest within half a standard error
of the best of as given where the score test of T = 1 has p of 0.05 or more, temperature scaling and the mixture. "as
given or mixture", the rule now, leaves temperature scaling out; its mixture has Platt scaling too, and gives each
member 0.2 / classes examples beforehand. That was picked on these sets, so ten sets of two classes were named to
confirm it before they were measured. Sets share examples over seeds: intervals are too narrow for other sets.

The rule was chosen by these runs, so what made them is gone: of the ten rules the table "rules" has, the command makes
"as given or mixture", "matrix scaling" and "temperature" anew, on all sets but the ten that confirmed it, and judges a
candidate beside them. `python -m experiments posthoc --only rules --candidate=mine:rule` measures mine.rule, a function
of choice.HeldOut; the same with --table=rules shows what it costs. A method in METHODS is judged by --only its name.
The record, below, is text that no command writes anew.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from experiments import numbers, timing
from experiments.numbers import Interval, column, interval, resampled_interval, rows_where, told
from experiments.peers import PEERS
from experiments.posthoc import choice, measured, two_classes
from experiments.posthoc.choice import RULE
from experiments.posthoc.measured import PLAIN
from experiments.question import Flags, Job, Parts, Question
from focalgeo.calibration import METHODS

TITLES = {
    "Wide ResNet": "Wide ResNet 16-4, CIFAR-100",
    "DenseNet": "DenseNet, CIFAR-100",
    measured.OWN: "small CNN, CIFAR-10 (JPEG)",
}
SCORES = {  # score -> scale, head
    "nll": (1000, "NLL, 1/1000 nat"),
    "ece": (1000, "ECE, 1/1000"),
    "brier": (1000, "Brier, 1/1000"),
    "accuracy": (100, "accuracy, points"),
}
OLD, MATRIX = "none beats", "matrix scaling"
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
NOISY = ("real", "posts", "two classes", "confirming")  # kinds of sets whose labels are real
WORST = 40  # of a set of "real" at one size of val
PAIRS = (  # method, minus which
    (PLAIN, "uncalibrated"),
    ("focal_temperature_scaling", PLAIN),
    ("focal_vector_scaling", "vector_scaling"),
    ("vector_scaling", PLAIN),
)


def plan(flags: Flags, parts: Parts) -> Iterator[Job]:
    """What is measured on splits of each network, on sets of two classes, and of rules, least work first."""
    seeds = range(flags.seeds)
    few = seeds[:10]
    installed = [name for name, peer in PEERS.items() if timing.version(peer.package)]
    of_methods = [("methods", name) for name in measured.method_names()] + [("peers", name) for name in installed]
    pieces = [(part, {"method": name}, partial(measured.of_method, name)) for part, name in of_methods]
    pieces.append(("choice", {}, measured.choice))
    networks = measured.sources(flags.predictions)
    for network, paths in networks.items():
        for part, of, measure in pieces:
            of = {"network": network} | of
            yield Job(of, seeds, lambda out, at=(paths, seeds, of, measure): measured.of_splits(*at), part=part)
    for name in two_classes.cases():
        yield Job({"set": name}, few, lambda out, at=name: two_classes.of_case(at, few), part="two_classes")
    networks |= measured.sources(flags.augmented, "small CNN, augmented")
    rules = choice.RULES | ({"candidate": flags.candidate} if flags.candidate else {})
    for (kind, name), (sizes, splits) in choice.sets(networks).items():
        for size in sizes:
            of = {"kind": kind, "set": name, "examples": size}
            yield Job(of, few, lambda out, at=(of, splits, few, rules): choice.of_set(*at), part="rules")


# ---- claims


def claims(methods=None, rules=None):
    """What the rule of choice is held to; for each network whether a method's NLL is below a simpler one's."""
    yield from () if rules is None else _of_rule(regrets(rules))
    for network, runs in by_method(methods) if methods is not None else ():
        for one, other in PAIRS:
            names = [name.replace("_", " ") for name in (one, other)]
            words = f"{network}: NLL on test after {names[0]} is below that after {names[1]}"
            difference = less(runs[one], runs[other], "nll")
            yield told("focalgeo", words, difference, scale=100, unit="1/100 nat", what="")


def less(one: pd.DataFrame, other: pd.DataFrame, score: str, scale: float = 1.0) -> Interval:
    """A score of some fits minus that of others, over the splits."""
    return resampled_interval(scale * (column(one, score) - column(other, score)).dropna())


def by_method(runs: pd.DataFrame) -> Iterator[tuple[str, dict[str, pd.DataFrame]]]:
    """Each network with method -> its runs."""
    for network, group in runs.groupby("network", sort=False):
        yield network, dict(iter(group.groupby("method", sort=False)))


def regrets(rules: pd.DataFrame) -> pd.DataFrame:
    """Of each split and rule: NLL minus the least mean NLL of a method on that set and size, in 1e-4 nats.

    Of calibrated truths minus that of the uncalibrated outputs.
    """
    cell = ["kind", "set", "examples"]
    methods = pd.DataFrame(list(rules.nll)).join(rules[[*cell, "seed"]])
    best = methods.drop(columns="seed").groupby(cell).mean().idxmin(axis=1)
    lines = []
    for row in rules.itertuples():
        least = "uncalibrated" if row.kind == "calibrated" else best[row.kind, row.set, row.examples]
        for name, (nll, *others) in row.rules.items():
            of = {"kind": row.kind, "set": row.set, "examples": row.examples, "seed": row.seed, "rule": name}
            scores = dict(zip(("brier", "accuracy", "ece", "beyond"), others, strict=True))
            lines.append(of | scores | {"regret": 1e4 * (nll - row.nll[least])})
    return pd.DataFrame(lines)


def _in_part(found, part):
    kinds, sizes, _ = PARTS[part]
    return found[found.kind.isin(kinds) & found.examples.isin(sizes)]


def _by_cell(found):
    return found.groupby(["set", "examples"]).regret.mean()


def _of_cifar(found):
    return found[found.set.str.contains("CNN") & found.examples.eq(5000)]


def _of_rule(every):
    """Whether the rule keeps to what it is held to, over seeds of the mean of sets and sizes."""

    def by_seed(rule, number=lambda runs: runs.regret.mean(), among=every):
        return rows_where(among, rule=rule).groupby("seed")[["regret", "beyond"]].apply(number)

    said = []
    for part, (_, _, most) in PARTS.items():
        runs = by_seed(RULE, among=_in_part(every, part))
        if most and len(runs):
            words = f"{part}: its NLL is at most {most} 1e-4 nats above the best method's"
            said.append((f", {words}", interval(runs), most, {}))
    if len(real := rows_where(_in_part(every, "real"), rule=RULE)):
        name, examples = _by_cell(real).idxmax()
        worst = interval(rows_where(real, set=name, examples=examples).regret)
        words = f": on no real set at one size it is more than {WORST} 1e-4 nats"
        said.append((words, worst, WORST, {"what": f"worst, {name}, {examples}:"}))
    if len(cifar := _of_cifar(every)):
        more = numbers.paired(*(by_seed(rule, among=cifar) for rule in (RULE, MATRIX)))
        said.append((f": its NLL on CIFAR-10 with 5,000 is at most that of {MATRIX}", more, 1e-9, {}))
    if OLD in set(every.rule):
        noisy = every[every.kind.isin(NOISY)]
        shares = (by_seed(rule, lambda runs: 100 * (runs.beyond > 0).mean(), noisy) for rule in (RULE, OLD))
        words = f": significantly worse than temperature scaling no more often than {OLD}"
        said.append((words, numbers.paired(*shares), 1e-9, {"unit": "% of splits"}))
    for words, difference, margin, how in said:
        yield told("focalgeo", f"{RULE}{words}", difference, margin=margin, **{"unit": "1e-4 nats"} | how)


# ---- tables


def rules_table(rules) -> str:
    """Each rule's NLL on test minus that of the best method in hindsight of a set and size, 1e-4 nats; means of them.

    In brackets the worst of them. On how many of a hundred splits of real labels NLL is significantly worse / better
    than temperature scaling's; ECE and accuracy in percent and Brier score in thousandths, of real sets.
    """

    def of_part(part, found):
        cells = _by_cell(_in_part(found, part))
        return f"{cells.mean():.1f} ({cells.max():.0f})" if len(cells) else ""

    def beyond(found):
        noisy = found[found.kind.isin(NOISY)]
        return " / ".join(f"{100 * (noisy.beyond == sign).mean():.1f}" for sign in (1, -1))

    def real(score, scale, digits, found):
        return f"{scale * _in_part(found, 'real')[score].mean():.{digits}f}"

    columns = {part: partial(of_part, part) for part in PARTS}
    columns |= {"CIFAR-10, 5,000": lambda found: f"{_of_cifar(found).regret.mean():.1f}", "worse / better": beyond}
    scores = {"ECE": ("ece", 100, 2), "Brier": ("brier", 1000, 1), "accuracy": ("accuracy", 100, 2)}
    columns |= {head: partial(real, *of) for head, of in scores.items()}
    return numbers.table(["rule"], dict(iter(regrets(rules).groupby("rule", sort=False))), columns)


def title(name: str) -> str:
    """A method's title, as a part of a sentence."""
    return METHODS[name].title.lower()


def methods_table(methods, choice):
    """Each method minus temperature scaling."""
    yield "network", "method", *(head for _, head in SCORES.values()), "recommended", "processor s"
    for network, runs in by_method(methods):
        chosen = Counter(rows_where(choice, network=network).chosen)
        for name, group in runs.items():
            cells = [_less(group, runs[PLAIN], score) for score in SCORES]
            yield TITLES[network], title(name), *cells, chosen[name], _seconds(group)


def choice_table(choice):
    """The recommended methods, and on how many splits they were significantly worse / better than the plain ones."""
    heads = ("network", "recommended, splits", "against", "another than it", SCORES["nll"][1])
    yield *heads, "NLL worse / better", "Brier", "ECE", "accuracy"
    for network, runs in choice.groupby("network", sort=False):
        said = ", ".join(f"{title(name)} {count}" for name, count in Counter(runs.chosen).items())
        for against in ("uncalibrated", PLAIN):
            compared = pd.DataFrame([row[against] for row in runs.against if against in row], columns=list(SCORES))
            less_nll = 1000 * compared.nll.str[0].reindex(range(len(runs)), fill_value=0.0)
            others = f"{len(compared)} of {len(runs)}", _cell(resampled_interval(less_nll))
            beyond = [_beyond(compared[score]) for score in ("nll", "brier", "ece")]
            beyond.append(_beyond(compared.accuracy, better=1))
            yield TITLES[network], said, title(against), *others, *beyond


def peers_table(methods, peers):
    """Other libraries' NLL minus that of temperature scaling here, and minus that of the same method here."""
    heads = ("network", "library", "method", "NLL minus temperature scaling", "NLL minus the same here")
    yield *heads, "labels given 0", "processor s", "here"
    here = dict(by_method(methods))
    for (network, name), group in peers.groupby(["network", "method"], sort=False):
        peer = PEERS[name]
        named = [TITLES[network], f"{peer.package} {group.version.iloc[0]}", peer.title]
        if "error" in group and group.error.notna().any():
            yield *named, group.error.iloc[0], "", "", "", ""
            continue
        same = here[network].get(peer.counterpart)
        than_same, seconds = ("", "") if same is None else (_less(group, same, "nll"), _seconds(same))
        zeros = f"{100 * group.zeros.mean():.1f}%" if group.zeros.max() else "none"
        yield *named, _less(group, here[network][PLAIN], "nll"), than_same, zeros, _seconds(group), seconds


def two_classes_table(two_classes):
    """NLL on test of the choice minus that of the best of scikit-learn's three on each set, by its mean over splits.

    "Least" is the method of the least cross-fitted NLL on val, whatever the noise, in place of the choice.
    """
    heads = ("set, classifier", "val", "chosen, splits", "scikit-learn's best", "its NLL, 1/1000 nat")
    yield *heads, "choice minus it", "least minus it"
    for name, runs in two_classes.groupby("set", sort=False):
        nll = pd.DataFrame(list(runs.nll))
        theirs = nll.filter(like="scikit-learn")
        best = theirs.mean().idxmin()
        cells = []
        for names in (runs.chosen, runs.least):
            values = pd.Series([row[method] for row, method in zip(runs.nll, names, strict=True)])
            cells.append(_cell(resampled_interval(1000 * (values - nll[best]))))
        said = ", ".join(f"{title(method)} {count}" for method, count in Counter(runs.chosen).most_common())
        level = f"{1000 * nll[best].mean():.0f}"
        yield name, runs.examples.iloc[0], said, best.removeprefix("scikit-learn "), level, *cells


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
        "peers": peers_table,
        "two_classes": two_classes_table,
    },
    jobs=plan,
    keys=dict.fromkeys(("kind", "network", "method", "set", "examples"), ()),
    options="--predictions=runs/cifar10-ce/predictions --augmented=runs/cifar10-augmented/predictions",
    cost="hours on 2 cores, piece by piece",
    seeds=20,
    flags={
        "--predictions": {"type": Path, "help": "folder of val.npz and test.npz that a run of the main job left"},
        "--augmented": {"type": Path, "help": "the same of configs/cifar10.py:quick with cross-entropy as it is"},
        "--candidate": {"type": choice.named, "help": "module:function, a rule to be judged beside the one now"},
    },
)
