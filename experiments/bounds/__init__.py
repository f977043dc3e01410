"""The bounds, the theorem and the conjecture of Kimura & Naganuma, in numbers of trained networks.

digits, two layers, configs/digits_gamma.py, seven values of gamma, 10 seeds.

Definition 3: the largest norm of the focal loss's gradient in the logits and its largest second derivative on a grid,
and the largest gradient over the examples of a split. Theorem 2: KL(p_theta || p_theta+d) over half d'Fd, F the
Fisher matrix of the predictions on val, for |d| of 0.1% to 100% of |theta|, in four random directions and up the
gradient of val's cross-entropy. Corollary 1, in two forms: a Gaussian about a network that half of the training
images trained is the prior, the same Gaussian about that network after 20 epochs more with all images the posterior;
the bound is of the error on the other half, sigma from four values (union bound), over 1,000 draws (Chernoff's bound
for their mean), 95% in all. And five networks of one gamma with the paper's Maxwell-Boltzmann prior, its energies
their cross-entropies on train, and the bound of val's examples; beside it the uniform prior. Equation 27: the rise of
train's NLL about a trained network, half of that at d plus that at -d, beside half d'Hd, H its Hessian, and half d'Fd,
along the Hessian's first eigenvector and in one random direction; the recipe of configs/digits.py with ReLU
and with tanh, five seeds. Confidence penalty:
cross-entropy + gamma KL(p || uniform) (confidence_penalised_cross_entropy), from which focal loss differs by a bound
(Lemma 1), trained at the same gamma.

Hypotheses, written before the run: 1. the constant in the logits does not fall with gamma, nor the largest gradient
on val; on train it does; 2. the quadratic form holds to a tenth at 1% of |theta| and fails at 10%, up the gradient
sooner; 3. the Gaussian bound is below 1 and does not fall with gamma, and the Maxwell-Boltzmann prior is not better
than the uniform one; 4. at the same gamma the penalty leads to other ECE and T; 5. cross-entropy's trace rises with
gamma for both losses. Intervals are over seeds; of finite sets over two groups of five.

Corollary 2, a record of commit 2d99825, below, that the command trains no more: a Gaussian over the weights, with its
KL from the Maxwell-Boltzmann prior as regulariser, the cross-entropy of the training set as energy. KL = -H(rho) + beta
E_rho[E] + ln Z(beta), and Z does not depend on rho, so that the bound is, but for a constant and a factor,
E_rho[cross-entropy] - H(rho) / (n lambda + beta): lambda, n and beta enter by one number, and gamma does not. Of a
Gaussian of fixed width the entropy is a constant, so the width was trained as well, from 0.01, by Adam at 0.02; 2,158
is 1,079 images times 2, which lambda stays below.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from experiments import figures, numbers
from experiments.bounds import measured
from experiments.bounds.measured import DISTANCES, GAMMAS
from experiments.numbers import NOT, OUTPUTS, SHOWS, UNTOLD, Claim, Interval, Number, interval, rows_where, shown
from experiments.question import Flags, Job, Parts, Question

CLOSE = 0.1  # of KL or NLL's rise and d'Fd / 2, within which they are the same
PERCENT = ("0.1%", "1%", "10%")  # every fourth of measured.RADII
ALIKE = {"ece": (0.01, "test ECE", 100), "nll": (0.02, "test NLL as trained", 1), "temperature": (0.05, "T", 1)}
GRADIENTS = ("gradient in logits, train", "gradient, train", "gradient in logits, val", "gradient, val")
NUMBERS = {name: OUTPUTS[name] for name in ("accuracy", "ece", "ece after T", "nll", "temperature")} | {
    "lambda_max CE val": Number("λ_max, CE, val"),
    "trace CE val": Number("trace, CE, val"),
    "trace own val": Number("trace, own, val"),
}
LOSSES = {"focal": "focal loss", "penalised": "the confidence penalty"}
KINDS = {"random": "in random directions", "uphill": "up the gradient"}
FALLING = {
    "trace CE val": "the trace of cross-entropy's Hessian on val",
    "trace own val": "the trace of the trained loss's own Hessian on val",
    "ece after T": "ECE after T",
}


def plan(flags: Flags, parts: Parts) -> Iterator[Job]:
    """Four sweeps with all that is measured of their networks; the constants; finite sets of networks."""
    yield Job({}, range(flags.seeds), lambda out: measured.measure(out, flags.seeds), 66)
    yield Job({}, (), lambda out: measured.lipschitz(), part="constants")
    yield Job({}, (), lambda out: measured.finite_bounds(out, flags.seeds), part="finite")
    yield Job({}, (), lambda out: measured.expansions(), part="expansions")


def with_bounds(runs) -> pd.DataFrame:
    """The runs with the numbers of their Gaussian bound, of those that have one."""
    runs = runs.dropna(subset="gaussian")
    return runs[["gamma", "seed"]].join(pd.DataFrame(runs.gaussian.tolist(), runs.index))


def ratios(runs, kind: str, gammas: Sequence[float] = GAMMAS) -> dict[float, Interval]:
    """Distance -> log of KL over d'Fd / 2, over seeds; each seed the mean of these gammas."""
    runs = runs[(runs.loss == "focal") & runs.gamma.isin(gammas)]
    logs = np.log(pd.DataFrame([of_kind[kind] for of_kind in runs.distances], runs.seed, DISTANCES))
    return {distance: interval(values) for distance, values in logs.groupby(level=0).mean().items()}


def near(expansions) -> pd.DataFrame:
    """The rows with logs of half d'Hd over NLL's rise, by distance, and the "radius" to which it is right to CLOSE.

    Between two radii by their logs; NaN where it is wrong at the least, the largest radius where it is nowhere.
    """
    off, radii = abs(np.log(np.stack(expansions.ratios) + 1e-9)), np.log(measured.RADII)
    wrong = ~(off <= np.log1p(CLOSE))  # NaN too
    first = np.where(wrong.any(1), wrong.argmax(1), len(radii))
    ends = [(row[at - 1 : at + 1], radii[at - 1 : at + 1]) for row, at in zip(off, first, strict=True)]
    radius = [np.exp(np.interp(np.log1p(CLOSE), *pair)) if len(pair[0]) else np.nan for pair in ends]
    logs = {name: np.log(expansions.ratios.str[4 * place]) for place, name in enumerate(PERCENT)}
    return expansions.assign(radius=radius, **logs, fisher=np.log(expansions.fisher))


def claims(runs, constants, finite, expansions):
    """Of Definition 3, Theorem 2, Equation 27, Corollary 1, and Conjecture 1."""
    constants = pd.DataFrame(constants)
    gammas = ", ".join(f"{gamma:g}" for gamma in constants.gamma)
    for name, words in {"gradient": "focal loss", "second derivative": "its gradient"}.items():
        falls = constants[name].diff().dropna().lt(0).all()
        values = ", ".join(f"{value:.3g}" for value in constants[name])
        words = f"the Lipschitz constant of {words} in the logits falls with γ"
        because = f"{values} at γ = {gammas}; computed, no sample"
        yield Claim("K Def. 3", words, SHOWS if falls else NOT, because)
    by_log, focal = "change of log for a unit of γ", rows_where(runs, loss="focal")
    for name in GRADIENTS:
        words = f"the largest {name.replace(',', ' over examples of')} falls with γ, of trained networks"
        yield numbers.told("K Def. 3", words, numbers.slope(focal, name), what=by_log)
    for kind, words in KINDS.items():
        for distance in (0.01, 0.1):
            change = ratios(runs, kind)[distance]
            claim = f"KL is half d'Fd to a tenth, {100 * distance:g}% of the parameters' norm away, {words}"
            because = f"log of KL over half d'Fd {shown(change, signed=True)}"
            yield Claim("K Thm. 2", claim, numbers.alike(change, np.log1p(CLOSE)), because)
    yield from _equation_27(near(expansions))
    yield from _corollary_1(with_bounds(runs), pd.DataFrame(finite))
    for gamma in (1.0, 3.0):
        pair = [rows_where(runs, loss=loss, gamma=gamma) for loss in LOSSES]
        for number, (room, words, scale) in ALIKE.items():
            less, unit = numbers.change(*pair, number), " points" if scale == 100 else ""
            claim = f"γ = {gamma:g}: focal loss and cross-entropy + γ KL(p, uniform) are alike in {words}, "
            because = f"focal minus the other {shown(less, scale=scale, signed=True)}{unit}"
            yield Claim("focalgeo", f"{claim}to {scale * room:g}{unit}", numbers.alike(less, room), because)
    for loss, words in LOSSES.items():
        for number, said in FALLING.items():
            slope = numbers.slope(rows_where(runs, loss=loss), number)
            yield numbers.told("K Conj. 1", f"{said} falls with the γ of {words}", slope, what=by_log)


def _equation_27(rows):
    for (activation, direction), group in rows.groupby(["activation", "direction"], sort=False):
        for matrix, more in {"H": 0.0, "F": group.fisher}.items():
            change = interval((group[PERCENT[0]] + more).groupby(group.seed).mean())
            claim = (
                f"{activation}: NLL rises by half d'{matrix}d to a tenth, {PERCENT[0]} of the norm away, {direction}"
            )
            because = f"log of half d'{matrix}d over the rise {shown(change, signed=True)}"
            yield Claim("K Eq. 27", claim, numbers.alike(change, np.log1p(CLOSE)), because)
        if activation == "tanh":
            wider = numbers.slope(group, "radius")
            claim = f"tanh: the distance to which half d'Hd is right to a tenth grows with γ, {direction}"
            yield numbers.told("focalgeo", claim, wider, falls=False, what="change of log for a unit of γ")


def _corollary_1(bounds, finite):
    by_gamma = numbers.levels(bounds, "gamma", "bound")
    verdicts = [SHOWS if value.high < 1 else NOT if value.low >= 1 else UNTOLD for value in by_gamma.values()]
    said = numbers.joined(verdicts) if all(value.known for value in by_gamma.values()) else UNTOLD
    because = "; ".join(f"γ = {gamma:g}: {shown(value)}" for gamma, value in by_gamma.items())
    slope = numbers.slope(bounds, "bound", log=False)
    # groups of different gammas share seeds, and so are not independent
    less = interval((finite.boltzmann - finite.uniform).groupby(finite.group).mean())
    claim = "with the Maxwell-Boltzmann prior the bound for five networks is lower than with a uniform one"
    counts = by_count(bounds)
    falls = numbers.paired(counts[max(counts)], counts[min(counts)])
    few = f"the bound falls with the number of examples, from {min(counts)} to {max(counts)}"
    yield numbers.told("K Cor. 1", few, falls)
    yield Claim("K Cor. 1", "the bound about a network of half the data is below 1 at every γ", said, because)
    yield numbers.told("K Cor. 1", "this bound falls with γ", slope, what="change for a unit of γ")
    yield numbers.told("K Cor. 1", claim, less)


def by_count(bounds) -> dict[int, pd.Series]:
    """Number of examples -> the bound of so many, by seed, a mean over gamma."""
    table = pd.DataFrame(bounds["by count"].tolist(), bounds.index).rename(columns=int)
    return {count: table[count].groupby(bounds.seed).mean() for count in sorted(table)}


def counts_table(runs):
    """The Gaussian bound by the number of examples it is of, %, means over seeds of means over gamma."""
    counts = by_count(with_bounds(runs))
    yield "examples", *counts
    yield "bound, %", *(shown(interval(of), scale=100) for of in counts.values())


def gradients_table(runs):
    """Largest gradients of trained networks by gamma, means over seeds."""
    groups = {f"{gamma:g}": group for gamma, group in rows_where(runs, loss="focal").groupby("gamma")}
    return numbers.table(["γ"], groups, numbers.means({name: Number(f"largest {name}") for name in GRADIENTS}))


def distances_table(runs):
    """KL over half d'Fd by distance, geometric means over seeds: all gammas, and the first and the last."""
    yield "", "γ", *(f"{100 * distance:g}% away" for distance in DISTANCES)
    for kind, words in KINDS.items():
        for title, gammas in {"all": GAMMAS, f"{GAMMAS[0]:g}": GAMMAS[:1], f"{GAMMAS[-1]:g}": GAMMAS[-1:]}.items():
            cells = (shown(log.mapped(np.exp)) for log in ratios(runs, kind, gammas).values())
            yield words.removeprefix("in "), title, *cells


def expansions_table(expansions):
    """Half d'Hd over the rise of NLL by distance, geometric means over seeds; the largest one that is right to 10%.

    "F / H": d'Fd over d'Hd. "below 0.1": a seed is wrong there.
    """
    yield (
        "network",
        "direction",
        "γ",
        *(f"{number} away" for number in PERCENT),
        "right to 10% within, %",
        "F / H",
    )
    for keys, group in near(expansions).groupby(["activation", "direction", "gamma"], sort=False):
        ratios = [shown(numbers.level(group, name).mapped(np.exp)) for name in (*PERCENT, "fisher")]
        radius = interval(group.radius)
        within = f"below {100 * measured.RADII[0]:g}" if group.radius.isna().any() else shown(radius, scale=100)
        yield *keys[:2], f"{keys[2]:g}", *ratios[:-1], within, ratios[-1]


def bounds_table(runs, finite):
    """The bounds by gamma beside the test errors, %, means over seeds, or over groups of networks."""

    def shares(runs, *names):
        return [shown(interval(runs[name]).clipped(0, 1), scale=100) for name in names]

    heads = ("bound, half the data, %", "error over draws, other half, %", "test error of the centre, %", "KL, nats")
    yield "γ", *heads, "bound, five networks, Maxwell-Boltzmann, %", "uniform, %", "test error, %"
    for gamma, groups in pd.DataFrame(finite).groupby("gamma"):
        group = rows_where(with_bounds(runs), gamma=gamma)
        gaussian = *shares(group, "bound", "drawn", "error"), shown(interval(group.divergence))
        yield f"{gamma:g}", *gaussian, *shares(groups, "boltzmann", "uniform", "error")


def objectives_table(runs):
    """Focal loss and the confidence penalty at every gamma, means over seeds."""
    groups = {(LOSSES[loss], f"{gamma:g}"): group for (loss, gamma), group in runs.groupby(["loss", "gamma"])}
    return numbers.means_table(["loss", "γ"], groups, NUMBERS)


def draw(runs):
    """T and the trace of both losses against gamma."""
    figure, [axes] = figures.panels(1, 2, 7.0, 3.4)
    titles = {"temperature": "T by val's NLL", "trace CE val": "trace, cross-entropy's Hessian, val"}
    for axis, (number, words) in zip(axes, titles.items(), strict=True):
        figures.lines(axis, {LOSSES[loss]: numbers.levels(runs, "gamma", number, loss=loss) for loss in LOSSES})
        axis.set(xlabel="γ", ylabel=words)
    axes[0].legend(title=f"n = {runs.seed.nunique()} seeds")
    return figure


QUESTION = Question(
    "bounds",
    "What do the bounds, the theorem and the conjecture of Kimura & Naganuma say in numbers?",
    claims,
    tables={
        "gradients": gradients_table,
        "distances": distances_table,
        "expansions": expansions_table,
        "bounds": bounds_table,
        "counts": counts_table,
        "objectives": objectives_table,
    },
    figures={"bounds": draw},
    jobs=plan,
    keys={"loss": LOSSES, "gamma": ()},
    within=("gamma",),
    answers=("K Cor. 2",),
    cores="2 cores; those of halves more",
    least=5,
)
