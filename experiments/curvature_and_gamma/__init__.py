"""Does focal loss flatten the loss surface, which surface, and is the flatter network better calibrated?

digits: configs/digits_gamma.py. CIFAR-10 (JPEG, re-encoded images): configs/cifar10_curvature.py, reduced networks on
5,000 images without augmentation (ResNets with a stem of stride 2, MobileNet-v2 of 4, ViT with patches of 8 pixels),
30 epochs, the ViT 40 with Adam. Graph convolutional networks: configs/digits_graph.py and configs/newsgroups_graph.py,
each example joined to the 10 nearest, a step of the whole graph. "own": the Hessian of the trained loss, CE: cross-
entropy's, on the first 359 (digits) or 500 examples of val and of train, of a graph on all nodes whose labels belong
to the split, after training. lambda_max by Lanczos, the trace by Hutch++, its parts by other random vectors. The
scale-free trace, the sum of theta^2 H_ii, does not change when one layer is multiplied and the next divided.

Changes are least-squares slopes over gamma, by seed, on CIFAR-10 up to 5, as larger gammas do not fit all images; they
are of the number itself where a trace is not above 0 in some run. Gamma 7 to 15 of the small ResNet serve the minimum.
For an inner minimum a parabola of ECE over the logarithm of the trace (the ViT: the trace itself) is fitted by seed,
or over seeds drawn anew; it shows where 97.5% of resamples have one inside the range and the least mean ECE lies
inside too, within networks for most of them; it does not where 2.5% or fewer have. It is not tested where cross-entropy
is not overconfident (T below 1.3), or where the mean ECE is least at the least mean trace, so that none is too low. By
the mean weight alone: cross-entropy's trace times the mean factor by which the focal loss's gradient is smaller; what
the whole has beyond it is no matter of scale.
"""

from collections.abc import Iterable, Iterator
from itertools import product

import pandas as pd

from experiments import figures, jobs, numbers
from experiments.curvature_and_gamma.minima import Minimum, inner_minimum, shared_minimum
from experiments.numbers import OUTPUTS, Claim, Number, has_log, rows_where, shown, slope
from experiments.question import Question, absolute

DIGITS = "digits"
GRAPHS = {"gcn_digits": "configs/digits_graph.py", "gcn_newsgroups": "configs/newsgroups_graph.py"}
NETWORKS = {  # name -> title, seconds of a core for one run
    DIGITS: ("two layers, digits", 3),
    "resnet18": ("small ResNet", 190),
    "resnet18_2w": ("ResNet of double width", 510),
    "mobilenet_v2": ("MobileNet-v2", 230),
    "vit": ("ViT", 350),
    "vgg19": ("VGG", 220),
    "gcn_digits": ("graph network, digits", 4),
    "gcn_newsgroups": ("graph network, posts", 40),
}
IMAGES = tuple(network for network in NETWORKS if network not in (DIGITS, *GRAPHS))
# beside the config's gammas, up to which ECE still falls in overconfident networks
LARGE = {"resnet18": (7.0, 10.0, 15.0)}
SURFACES = {  # number -> words
    "lambda_max own val": "λ_max of the trained loss's Hessian on val falls with γ",
    "lambda_max CE val": "λ_max of cross-entropy's Hessian on val falls with γ",
    "trace own val": "the trace of the trained loss's Hessian on val falls with γ",
    "trace CE val": "the trace of cross-entropy's Hessian on val falls with γ",
    "lambda_max CE train": "λ_max of cross-entropy's Hessian on train falls with γ",
    "trace CE train": "the trace of cross-entropy's Hessian on train falls with γ",
    "scale_free_trace CE val": "the scale-free trace of cross-entropy's Hessian on val falls with γ",
}
BELOW_1 = {"lambda_max own val": "λ_max of the trained loss's Hessian on val", "ece": "ECE"}  # of K, gamma >= 1
TRACES = {"trace CE val": "cross-entropy, val", "trace own val": "trained loss, val"}
CURVATURE = {
    "lambda_max CE val": Number("λ_max, CE, val"),
    "lambda_max own val": Number("λ_max, own, val"),
    "trace CE val": Number("trace, CE, val"),
    "trace own val": Number("trace, own, val"),
    "lambda_max CE train": Number("λ_max, CE, train"),
    "trace CE train": Number("trace, CE, train"),
    "trace own train": Number("trace, own, train"),
    "scale_free_trace CE val": Number("scale-free trace, CE, val"),
}
ENDS = {
    "train accuracy": OUTPUTS["train accuracy"],
    "accuracy": Number("accuracy on test, %", 100),
    "ece": Number("test ECE, %", 100),
    "ece after T": Number("ECE after T, %", 100),
    "temperature": Number("T"),
}
BY_PARTS = {  # each trace by the vectors of the tables, and by those of its parts
    "trace CE val": "trace, CE, val",
    "trace by parts CE val": "the same by its parts",
    "trace own val": "trace, own, val",
    "trace by parts own val": "the same by its parts",
}
PARTS = {
    "trace own val": Number("trace"),
    "trace, gauss_newton own val": Number("Gauss-Newton"),
    "trace, residual own val": Number("residual"),
    "trace, scale_only own val": Number("by the mean weight alone"),
}


def plan(flags, parts):
    """Sweeps over the configs' gammas: digits, graphs in a job each, else all networks of a seed before the next.

    Then the large gammas, a job for each run.
    """

    def job(network, seeds, config, fields, gammas, **of):
        how = {"tags": {"gamma": "gamma", "seed": "seed"}, "parts": True, "seconds": gammas * NETWORKS[network][1]}
        return jobs.sweep({"network": network} | of, seeds, config, fields, **how)

    yield job(DIGITS, range(flags.seeds or 20), "configs/digits_gamma.py", {}, 7)
    for network, config in GRAPHS.items():
        fields = {"data.name": f"graph:{flags.posts}"} if "newsgroups" in network else {}
        yield job(network, range(flags.seeds or 5), config, fields, 7)
    words = ",paper" if flags.scale == "paper" else ""
    for seed, network in product(range(flags.seeds or 3), IMAGES):
        yield job(network, (seed,), f"configs/cifar10_curvature.py:{network}{words}", jobs.data_of(flags), 5)
    for network, seed in product(LARGE, range(flags.seeds or 3)):
        for gamma in LARGE[network]:
            fields = jobs.data_of(flags) | {"sweep.gamma": (gamma,)}
            yield job(network, (seed,), f"configs/cifar10_curvature.py:{network}{words}", fields, 1, gamma=gamma)


# ---- statistics


def by_network(runs) -> dict[str, pd.DataFrame]:
    """Network -> its runs, with the numbers of their own loss, and each trace by other random vectors too."""
    runs = numbers.with_own(runs)
    for of in ("CE val", "own val"):
        runs[f"trace by parts {of}"] = runs[f"trace, gauss_newton {of}"] + runs[f"trace, residual {of}"]
    return {network: of_network for network in NETWORKS if len(of_network := rows_where(runs, network=network))}


def images(runs) -> dict[str, pd.DataFrame]:
    """Those of the networks on CIFAR-10."""
    return {network: of_network for network, of_network in by_network(runs).items() if network in IMAGES}


def along(runs, name: str) -> numbers.Interval:
    """The slope over gamma: of the logarithm where all runs have one, else of the number; of images up to gamma 5."""
    runs = runs if LARGE.keys().isdisjoint(runs.get("network", ())) else runs[runs.gamma <= 5]
    return slope(runs, name, log=has_log(runs, name))


def of_gamma(runs) -> dict[str, pd.DataFrame]:
    """Gamma, as text -> runs."""
    return {f"{gamma:g}": of_network for gamma, of_network in runs.groupby("gamma")}


def claims(runs):
    """Each claim for each network, and of two networks or more of CIFAR-10 those on all of them."""
    for network, of_network in by_network(runs).items():
        title = NETWORKS[network][0]
        for name, words in SURFACES.items():
            what = f"change of {'log' if has_log(of_network, name) else 'the number'} for a unit of γ"
            yield numbers.told("K Fig. 2", f"{title}: {words}", along(of_network, name), what=what)
        for trace in TRACES:
            best = inner_minimum(of_network, trace)
            told = _minimum(title, trace, best, f"least ECE inside in {best.inside} of {best.groups} seeds")
            yield numbers.outside(told, untried(of_network, trace))
        if 0.5 in of_network.gamma.values:
            yield from _below_1(title, of_network)
    yield _in_every("K Thm. 2, sentence", "", by_network(runs), "trace CE train")
    if len(every := images(runs)) > 1:
        yield from _of_all(every)


def _below_1(title: str, runs: pd.DataFrame) -> Iterator[Claim]:
    """Whether gamma 0.5 is worse than gamma 1; by ECE where cross-entropy is overconfident."""
    plain, half, one = (rows_where(runs, gamma=gamma) for gamma in (0.0, 0.5, 1.0))
    for name, words in BELOW_1.items():
        claim = f"{title}: γ = 0.5 has a higher {words} than γ = 1"
        told = numbers.told("K, gamma >= 1", claim, numbers.change(half, one, name), falls=False)
        yield numbers.outside(told, numbers.too_calm(plain) if name == "ece" else "")


def _in_every(source: str, where: str, runs: dict[str, pd.DataFrame], name: str) -> Claim:
    """The paper's "for all architectures": supported where each shows it, contradicted where one has the opposite."""
    verdicts = {NETWORKS[at][0]: numbers.verdict(along(of_network, name)) for at, of_network in runs.items()}
    because = numbers.by_verdict(verdicts)
    return Claim(source, f"every network{where}: {SURFACES[name]}", numbers.joined(verdicts.values()), because)


def _of_all(runs: dict[str, pd.DataFrame]) -> Iterator[Claim]:
    """What is asked of all networks on CIFAR-10; a minimum within networks of those in which one is tested."""
    for name in SURFACES:
        yield _in_every("K Fig. 2", " on CIFAR-10", runs, name)
    for trace, within in product(TRACES, (True, False)):
        left = [at for at, of_network in runs.items() if within and untried(of_network, trace)]
        asked = {at: of_network for at, of_network in runs.items() if at not in left}
        why = "" if len(asked) > 1 else "fewer than two networks are in the regime"
        best = shared_minimum(runs if why else asked, trace, within=within)
        networks = f"inside for {best.inside} of {best.groups} networks"
        least = networks if within else ("at an end", "inside")[best.inside]
        because = f"inner minimum in {100 * best.share:.3g}% of resamples; least mean ECE {least}"
        because += f"; not tested: {', '.join(NETWORKS[at][0] for at in left)}" if left else ""
        title = f"CIFAR-10, {'within networks' if within else 'over networks and γ together'}"
        yield numbers.outside(_minimum(title, trace, best, because), why)
    for trace, words in TRACES.items():
        means = pd.concat([of_network.groupby("gamma")[[trace, "ece"]].mean() for of_network in runs.values()])
        ranks = numbers.rank_correlation(means[trace], means.ece)
        claim = f"CIFAR-10, over networks and γ: ECE as trained grows with the trace ({words}; rank correlation)"
        yield Claim("K 4.2", claim, numbers.verdict(ranks, falls=False), shown(ranks))


def untried(runs, trace: str) -> str:
    """Why no run here could show that ECE rises again once a trace is too low; "" if one could."""
    least = runs.groupby("gamma")[["ece", trace]].mean().idxmin()
    lowest = f"ECE is least at the least trace, γ = {least.ece:g}" if least.nunique() == 1 else ""
    return numbers.too_calm(runs[runs.gamma == 0]) or lowest


def _minimum(title: str, trace: str, best: Minimum, because: str) -> Claim:
    where = f"vertex {shown(best.vertex)} of the range" if shown(best.vertex) else "no vertex is a minimum"
    parabola = f"coefficient {shown(best.curvature, scale=100)} points of ECE, {where}"
    claim = f"{title}: ECE has a minimum inside the range of the trace ({TRACES[trace]})"
    return Claim("K Fig. 3", claim, best.verdict, f"{parabola}; {because}")


# ---- tables


def slopes_table(runs):
    """Change in % for a unit of gamma, of the logarithm; ECE as trained without and with the largest gamma, in %."""
    names = ("lambda_max own val", "lambda_max CE val", "trace own val", "trace CE val")
    yield "network", *(CURVATURE[name].title for name in names), "ECE, γ = 0", "least ECE", "ECE, largest γ"
    for network, group in by_network(runs).items():
        slopes = [shown(along(group, name), scale=100, signed=True) if has_log(group, name) else "" for name in names]
        eces = 100 * group.groupby("gamma").ece.mean()
        ends = (f"{eces[gamma]:.1f} (γ = {gamma:g})" for gamma in (eces.idxmin(), eces.index[-1]))
        yield NETWORKS[network][0], *slopes, f"{eces[0]:.1f}", *ends


def _slopes(runs, names: Iterable[str]) -> Iterator[list[str]]:
    """A row of the changes of logarithms along gamma, and one of the numbers themselves, where there are any."""
    for words, logs in (("change of log by γ", True), ("change by γ", False)):
        cells = [shown(along(runs, name), signed=True) if has_log(runs, name) == logs else "" for name in names]
        if any(cells):
            yield [words, *cells]


def of_networks(runs):
    """Of each network: curvature by gamma, its changes from gamma 0, and outputs."""
    tables, less = {}, {"ece": Number("ECE minus ECE at γ = 0, %", 100)}
    for network, of_network in by_network(runs).items():
        gammas, means = of_gamma(of_network), numbers.means(CURVATURE)
        rows = [[gamma, *(cell(group) for cell in means.values())] for gamma, group in gammas.items()]
        tables[f"{network} curvature"] = [["γ", *means], *rows, *_slopes(of_network, CURVATURE)]
        outputs = numbers.means(ENDS) | numbers.changes(less, gammas["0"])
        tables[f"{network} outputs"] = numbers.table(["γ"], gammas, outputs)
        base, changes = gammas.pop("0"), {}
        for name, number in CURVATURE.items():
            changes |= (numbers.ratios if has_log(of_network, name) else numbers.changes)({name: number}, base)
        tables[f"{network} changes"] = numbers.table(["γ"], gammas, changes)
    return tables


def attribution(runs):
    """Of each network and gamma: parts of the trained loss's trace on val, and the trace by the mean weight alone."""
    groups = {
        (NETWORKS[network][0], gamma): group
        for network, of_network in by_network(runs).items()
        for gamma, group in of_gamma(of_network[of_network.gamma > 0]).items()
    }
    return numbers.table(["network", "γ"], groups, numbers.means(PARTS))


def other_vectors(runs):
    """Of each network: the change of both traces along gamma, and of the sums of their parts, by other vectors."""
    yield "network", "", *BY_PARTS.values()
    for network, of_network in by_network(runs).items():
        for row in _slopes(of_network, BY_PARTS):
            yield NETWORKS[network][0], *row


def minima_table(runs):
    """Shares in % of the resamples with an inner minimum of ECE over both traces and the sums of their parts.

    By one parabola for all networks on CIFAR-10, and without each of them; over logarithms where all traces have one.
    """
    every = images(runs)
    kinds = {"within networks": every, "together": every}
    for left in every:
        others = {network: of_network for network, of_network in every.items() if network != left}
        kinds[f"together, without {NETWORKS[left][0]}"] = others
    yield "", *BY_PARTS.values()
    for title, of_kind in kinds.items():
        minima = (shared_minimum(of_kind, trace, within=title == "within networks") for trace in BY_PARTS)
        yield title, *(numbers.plain(100 * best.share) for best in minima)


# ---- figures

SURFACE = {"CE": "cross-entropy", "own": "the trained loss"}


def curvature(runs):
    """Curvature on val against gamma, a column for each network; logarithmic where all runs have logarithms."""
    networks = by_network(runs)
    figure, axes = figures.panels(2, len(networks), 2.6 * len(networks), 5.6, sharex=True)
    for pair, (network, of_network) in zip(axes.T, networks.items(), strict=True):
        for axis, number in zip(pair, ("lambda_max", "trace"), strict=True):
            names = {f"Hessian of {words}": f"{number} {of} val" for of, words in SURFACE.items()}
            figures.lines(axis, {label: numbers.levels(of_network, "gamma", name) for label, name in names.items()})
            if all(has_log(of_network, name) for name in names.values()):
                figures.logarithmic(axis, "y")
        pair[0].set_title(f"{NETWORKS[network][0]}, n = {of_network.seed.nunique()}")
        pair[1].set_xlabel("γ of the training loss")
    axes[0, 0].set_ylabel("λ_max on val")
    axes[1, 0].set_ylabel("trace on val")
    return figures.legend(figure, "upper center")


def trace_and_ece(runs):
    """ECE against the trace of both Hessians: each run faint, the means of a network joined in the order of gamma.

    A row of panels for CIFAR-10, one for digits and one for graphs, of those that have runs.
    """
    networks = by_network(runs)
    looks = {network: figures.look(place) for place, network in enumerate(networks)}
    kinds = [networks.keys() & kind for kind in (IMAGES, (DIGITS,), GRAPHS)]
    rows = [[network for network in networks if network in kind] for kind in kinds if kind]
    figure, axes = figures.panels(len(rows), 2, 7.5, 3.9 * len(rows) + 0.5, sharey="row")
    for line, row in zip(axes, rows, strict=True):
        for axis, (of, words) in zip(line, SURFACE.items(), strict=True):
            trace = f"trace {of} val"
            for network in row:
                of_network, look, title = networks[network], looks[network], NETWORKS[network][0]
                axis.scatter(of_network[trace], 100 * of_network.ece, s=16, alpha=0.5, linewidths=0, **look)
                means = of_network.groupby("gamma")[[trace, "ece"]].mean()
                axis.plot(means[trace], 100 * means.ece, label=f"{title}, n = {of_network.seed.nunique()}", **look)
                axis.plot(means[trace].iloc[0], 100 * means.ece.iloc[0], **look, markerfacecolor="white", zorder=3)
            if all(has_log(networks[network], trace) for network in row):
                figures.logarithmic(axis, "x")
            axis.set_xlabel(f"trace of the Hessian of {words} on val")
        line[0].set_ylabel("test ECE as trained, %")
    return figures.legend(figure, "upper center", 3, "open: γ = 0")


QUESTION = Question(
    "curvature_and_gamma",
    "Does focal loss flatten the loss surface, which one, and is the flatter network better calibrated?",
    claims,
    tables={"slopes": slopes_table, "attribution": attribution, "other vectors": other_vectors, "minima": minima_table},
    texts=of_networks,
    figures={"curvature": curvature, "trace_and_ece": trace_and_ece},
    jobs=plan,
    keys={"network": NETWORKS, "gamma": ()},
    within=("gamma",),
    cores="a core",
    answers=("K Fig. 2", "K Fig. 3", "K 5, architectures"),
    seeds=None,
    least=1,
    flags={"--posts": {"type": absolute, "default": "newsgroups", "help": "newsgroups:PATH (default downloads them)"}},
)
