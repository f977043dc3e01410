"""Does focal loss flatten the loss surface, which surface, and is the flatter network better calibrated?"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from experiments import figures, jobs, numbers
from experiments.curvature_and_gamma.minima import inner_minimum, shared_minimum
from experiments.numbers import NOT, OUTPUTS, SHOWS, UNTOLD, Claim, Number, has_log, interval, rows_where, shown, slope
from experiments.question import Flags, Job, Parts, Question

DIGITS = "digits"
NETWORKS = {  # name -> title, seconds of a core for one run
    DIGITS: ("two layers, digits", 3),
    "resnet18": ("small ResNet", 190),
    "resnet18_2w": ("ResNet of double width", 510),
    "mobilenet_v2": ("MobileNet-v2", 230),
    "vit": ("ViT", 350),
    "vgg19": ("VGG", 220),
}
SURFACES = {  # number -> words
    "lambda_max own val": "λ_max of the trained loss's Hessian on val falls with γ",
    "lambda_max CE val": "λ_max of cross-entropy's Hessian on val falls with γ",
    "trace own val": "the trace of the trained loss's Hessian on val falls with γ",
    "trace CE val": "the trace of cross-entropy's Hessian on val falls with γ",
    "lambda_max CE train": "λ_max of cross-entropy's Hessian on train falls with γ",
    "trace CE train": "the trace of cross-entropy's Hessian on train falls with γ",
    "scale_free_trace CE val": "the scale-free trace of cross-entropy's Hessian on val falls with γ",
}
TRACES = {"trace CE val": "cross-entropy, val", "trace own val": "trained loss, val"}
CURVATURE = {
    "lambda_max CE val": "λ_max, CE, val",
    "lambda_max own val": "λ_max, own, val",
    "trace CE val": "trace, CE, val",
    "trace own val": "trace, own, val",
    "lambda_max CE train": "λ_max, CE, train",
    "trace CE train": "trace, CE, train",
    "trace own train": "trace, own, train",
    "scale_free_trace CE val": "scale-free trace, CE, val",
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


def plan(flags: Flags, parts: Parts) -> Iterator[Job]:
    """Sweeps over the configs' gammas: digits in one job, of the others all networks of a seed before the next."""
    tags = {"gamma": "gamma", "seed": "seed"}
    seeds, seconds = range(flags.seeds or 20), 7 * NETWORKS[DIGITS][1]
    how = {"tags": tags, "parts": True}
    yield jobs.sweep({"network": DIGITS}, seeds, "configs/digits_gamma.py", {}, seconds=seconds, **how)
    for seed in range(flags.seeds or 3):
        for network, (_, seconds) in list(NETWORKS.items())[1:]:
            config = f"configs/cifar10_curvature.py:{network}{',paper' if flags.scale == 'paper' else ''}"
            fields = {"data.name": flags.data} if flags.data else {}
            yield jobs.sweep({"network": network}, (seed,), config, fields, seconds=5 * seconds, **how)


# ---- statistics


def by_network(runs) -> dict[str, pd.DataFrame]:
    """Network -> its runs, with the numbers of their own loss, and each trace by other random vectors too."""
    runs = numbers.with_own(runs)
    for name in [name for name in runs if ", gauss_newton " in name]:
        where = name.partition(", gauss_newton ")[2]
        runs[f"trace by parts {where}"] = runs[name] + runs[f"trace, residual {where}"]
    return {network: own for network in NETWORKS if len(own := rows_where(runs, network=network))}


def images(runs) -> dict[str, pd.DataFrame]:
    """Those of the networks on CIFAR-10."""
    return {network: own for network, own in by_network(runs).items() if network != DIGITS}


def along(runs, name: str) -> numbers.Interval:
    """The slope over gamma: of the logarithm where all runs have one, else of the number."""
    return slope(runs, name, log=has_log(runs, name))


def of_gamma(runs) -> dict[str, pd.DataFrame]:
    """Gamma, as text -> runs."""
    return {f"{gamma:g}": own for gamma, own in runs.groupby("gamma")}


def claims(runs):
    """Each claim for each network, and of two networks or more of CIFAR-10 those on all of them."""
    told = [claim for network, own in by_network(runs).items() for claim in _of_network(NETWORKS[network][0], own)]
    return told + (_of_all(images(runs)) if len(images(runs)) > 1 else [])


def _of_network(title: str, runs) -> list[Claim]:
    told = []
    for name, words in SURFACES.items():
        what = f"change of {'log' if has_log(runs, name) else 'the number'} for a unit of γ"
        told.append(numbers.told("K Fig. 2", f"{title}: {words}", along(runs, name), what=what))
    for trace, words in TRACES.items():
        best = inner_minimum(runs, trace)
        because = f"{_parabola(best)}; least ECE inside in {best.inside} of {best.groups} seeds"
        claim = f"{title}: ECE has a minimum inside the range of the trace ({words})"
        told.append(Claim("K Fig. 3", claim, best.verdict, because))
    return told


def _of_all(runs: dict[str, pd.DataFrame]):
    """The paper's "for all architectures": shown where each shows it, not shown where one has the opposite."""
    told = []
    for name, words in SURFACES.items():
        verdicts = {NETWORKS[network][0]: numbers.verdict(along(own, name)) for network, own in runs.items()}
        named = {said: [title for title, its in verdicts.items() if its == said] for said in (SHOWS, NOT, UNTOLD)}
        because = ". ".join(f"{said}: {'; '.join(titles)}" for said, titles in named.items() if titles)
        joined = numbers.joined(list(verdicts.values()))
        told.append(Claim("K Fig. 2", f"every network on CIFAR-10: {words}", joined, because))
    for trace, words in TRACES.items():
        for where in ("within networks", "over networks and γ together"):
            best = shared_minimum(runs, trace, within=where.startswith("within"))
            inside = f"least mean ECE {'inside' if best.inside else 'at an end'}"
            if where.startswith("within"):
                inside = f"least mean ECE inside for {best.inside} of {best.groups} networks"
            because = f"{_parabola(best)}; inner minimum in {100 * best.share:.3g}% of resamples; {inside}"
            claim = f"CIFAR-10, {where}: ECE has a minimum inside the range of the trace ({words})"
            told.append(Claim("K Fig. 3", claim, best.verdict, because))
    for trace, words in TRACES.items():
        means = pd.concat([own.groupby("gamma")[[trace, "ece"]].mean() for own in runs.values()])
        found = numbers.rank_correlation(means[trace], means.ece)
        claim = f"CIFAR-10, over networks and γ: ECE as trained grows with the trace ({words}; rank correlation)"
        told.append(Claim("K 4.2", claim, numbers.verdict(found, falls=False), shown(found)))
    return told


def _parabola(best: Any) -> str:
    vertex = shown(best.vertex)
    where = f"vertex {vertex} of the range" if vertex else "no vertex is a minimum"
    return f"coefficient {shown(best.curvature, scale=100)} points of ECE, {where}"


# ---- tables


def _slopes(runs, names: Iterable[str]) -> Iterator[list[str]]:
    """A row of the changes of logarithms along gamma, and one of the numbers themselves, where there are any."""
    for words, logs in (("change of log by γ", True), ("change by γ", False)):
        cells = [shown(along(runs, name), signed=True) if has_log(runs, name) == logs else "" for name in names]
        if any(cells):
            yield [words, *cells]


def of_networks(runs):
    """Of each network: curvature by gamma, its changes from gamma 0, and outputs."""
    found = {}
    for network, own in by_network(runs).items():
        gammas, base = of_gamma(own), rows_where(own, gamma=0.0)
        rows = [[at, *(shown(numbers.level(group, name)) for name in CURVATURE)] for at, group in gammas.items()]
        heads = ["γ", *CURVATURE.values()]
        found[f"{network} curvature"] = numbers.markdown(heads, [*rows, *_slopes(own, CURVATURE)])
        changes, outputs = [], []
        heads = [f"{title}, %" if has_log(own, name) else title for name, title in CURVATURE.items()]
        for at, group in gammas.items():
            cells = [cell(group) for cell in numbers.means(ENDS).values()]
            less = numbers.change(group, base, "ece")
            outputs.append([at, *cells, "" if at == "0" else shown(less, scale=100, signed=True)])
            changes.append([at, *(_change(own, group, base, name) for name in CURVATURE)])
        found[f"{network} changes"] = numbers.markdown(["γ", *heads], changes[1:])
        heads = ["γ", *(title for title, _ in ENDS.values()), "ECE less that at γ = 0, %"]
        found[f"{network} outputs"] = numbers.markdown(heads, outputs)
    return found


def _change(runs, one, base, name: str):
    """In % where all runs of the network have logarithms, paired by seed."""
    if has_log(runs, name):
        return shown(numbers.ratio(one, base, name), scale=100, signed=True)
    return shown(numbers.change(one, base, name), signed=True)


def attribution(runs):
    """Of each network and gamma: parts of the trained loss's trace on val, and the trace by the mean weight alone."""
    groups = {
        (NETWORKS[network][0], at): group
        for network, own in by_network(runs).items()
        for at, group in of_gamma(own[own.gamma > 0]).items()
    }
    return numbers.table(["network", "γ"], groups, numbers.means(PARTS))


def other_vectors(runs):
    """Of each network: the change of both traces along gamma, and of the sums of their parts, by other vectors."""
    rows = [[NETWORKS[name][0], *row] for name, own in by_network(runs).items() for row in _slopes(own, BY_PARTS)]
    return numbers.markdown(["network", "", *BY_PARTS.values()], rows)


def minima_table(runs):
    """Shares in % of the resamples with an inner minimum of ECE over both traces and the sums of their parts.

    By one parabola for all networks on CIFAR-10, and without each of them; over logarithms where all traces have one.
    """
    every = images(runs)
    kinds = {"within networks": (every, True), "together": (every, False)}
    for network in every:
        others = {name: own for name, own in every.items() if name != network}
        kinds[f"together, without {NETWORKS[network][0]}"] = (others, False)
    rows = []
    for title, (own, within) in kinds.items():
        shares = [shared_minimum(own, trace, within=within).share for trace in BY_PARTS]
        rows.append([title, *("" if np.isnan(share) else f"{100 * share:.3g}" for share in shares)])
    return numbers.markdown(["", *BY_PARTS.values()], rows)


# ---- figures

LOOKS = {  # of a Hessian: colour, marker, words
    "CE": (figures.BLUE, "o", "cross-entropy"),
    "own": (figures.RED, "s", "the trained loss"),
}


def _title(network: str, runs) -> str:
    return f"{NETWORKS[network][0]}, n = {runs.seed.nunique()}"


def curvature(runs):
    """Curvature against gamma, two panels for each network: geometric means where all runs have logarithms."""
    networks = by_network(runs)
    columns, height = min(3, len(networks)), -(-len(networks) // 3)
    figure, axes = figures.panels(2 * height, columns, 2.5 * columns + 0.6, 3.5 * height + 0.4)
    for axis in axes.flat[2 * len(networks) :]:
        axis.set_axis_off()
    for place, (network, own) in enumerate(networks.items()):
        pair = axes[2 * (place // columns) : 2 * (place // columns) + 2, place % columns]
        for axis, (name, words) in zip(
            pair, {"lambda_max": "λ_max on val", "trace": "trace on val"}.items(), strict=True
        ):
            logs = all(has_log(own, f"{name} {surface} val") for surface in LOOKS)
            measure, back = (np.log, np.exp) if logs else (np.asarray, np.asarray)
            for shift, (surface, (colour, marker, label)) in zip((-0.06, 0.06), LOOKS.items(), strict=True):
                groups = own.groupby("gamma")[f"{name} {surface} val"]
                found = [interval(measure(values.dropna())).mapped(back) for _, values in groups]
                look = {"color": colour, "marker": marker, "label": f"Hessian of {label}"}
                figures.intervals(axis, np.array(list(groups.groups)) + shift, found, **look)
            if logs:
                figures.logarithmic(axis, "y")
            else:
                axis.axhline(0, color="0.6", linewidth=0.8)
            axis.set_ylabel("" if place % columns else words)
        pair[0].set_title(_title(network, own), fontsize=9)
        pair[0].tick_params(labelbottom=False)
        pair[1].set_xlabel("γ of the training loss")
    figures.legend(figure, "upper center", 2)
    return figure


def trace_and_ece(runs):
    """ECE against the trace of both Hessians: each run faint, the means of a network joined in the order of gamma.

    A row of panels for CIFAR-10 and one for digits, where there are runs of both.
    """
    networks = by_network(runs)
    colours = ("#000000", figures.BLUE, figures.GREEN, figures.RED, "#cc79a7", "#e69f00")
    looks = {
        name: {"color": colour, "marker": "os^DvP"[at]}
        for at, (name, colour) in enumerate(zip(NETWORKS, colours, strict=True))
    }
    rows = [group for group in (images(runs), {name: own for name, own in networks.items() if name == DIGITS}) if group]
    figure, axes = figures.panels(len(rows), 2, 9.4, 3.9 * len(rows) + 0.5, sharey="row")
    for line, group in zip(axes, rows, strict=True):
        for axis, (surface, (*_, words)) in zip(line, LOOKS.items(), strict=True):
            trace = f"trace {surface} val"
            for network, own in group.items():
                axis.scatter(own[trace], 100 * own.ece, s=16, alpha=0.55, linewidths=0, **looks[network])
                means = own.groupby("gamma")[[trace, "ece"]].mean()
                points = means[trace], 100 * means.ece
                axis.plot(*points, markersize=5, linewidth=1.2, label=_title(network, own), **looks[network])
                first = [values.iloc[:1] for values in points]
                axis.plot(*first, markersize=6, markerfacecolor="white", zorder=3, **looks[network])
            if all(has_log(own, trace) for own in group.values()):
                figures.logarithmic(axis, "x")
            else:
                axis.axvline(0, color="0.6", linewidth=0.8)
            axis.set_xlabel(f"trace of the Hessian of {words} on val")
        line[0].set_ylabel("test ECE as trained, %")
    axes[0, 0].plot([], [], color="0.3", marker="o", markerfacecolor="white", linestyle="", label="open: γ = 0")
    figures.legend(figure, "upper center", 3)
    return figure


QUESTION = Question(
    "curvature_and_gamma",
    "Does focal loss flatten the loss surface, which one, and is the flatter network better calibrated?",
    claims,
    tables={"attribution": attribution, "other vectors": other_vectors, "minima": minima_table},
    texts=of_networks,
    figures={"curvature": curvature, "trace_and_ece": trace_and_ece},
    jobs=plan,
    keys={"network": NETWORKS, "gamma": ()},
    within=("gamma",),
    cores="a core",
    answers=("K Fig. 2", "K Fig. 3"),
    seeds=None,
    least=1,
)
