"""Statements of the papers that are false or misprinted, with the range tried; and readings that make others true."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy import special, stats

from focalgeo import calibration, theory

STEPS: dict[int, int | None] = {}  # classes -> the lattice of matching temperatures, where it is not theory's
LINES = {2: (0.95, 0.85), 3: (0.64, 0.91), 4: (0.47, 0.85)}  # classes -> printed 1/T = slope * gamma + intercept
PRINTED_PAIRS = (  # figure, classes, gamma, T, what holds, and how many times the best error the printed T has
    ("Fig. 2", 2, 3.0, 0.36, "T = 0.276; the paper's line gives 0.27 (0.36: three classes)", 100),
    ("Fig. 5", 3, 1.0, 0.81, "T = 0.66; the paper's line gives 0.65 (0.81 belongs to γ = 0.5)", 2),
    ("Fig. 5", 3, 3.0, 0.46, "T = 0.36; the paper's line gives 0.35 (0.46 belongs to γ = 2)", 1.8),
)
SPREAD = "largest difference in probability, all logits within a spread of 10"
KIMURA, KOMISARENKO, MUKHOTI = "Kimura & Naganuma", "Komisarenko & Kull", "Mukhoti et al."


class Erratum(NamedTuple):
    """One statement; `numbers` are the counterexample, `refuted` is computed from them."""

    paper: str
    where: str
    printed: str
    holds: str
    numbers: dict[str, float]
    tried: str  # the range over which it was looked for
    refuted: bool


class Reading(NamedTuple):
    """A statement that is true as somebody may read it, and not as others may; `numbers` are those of both."""

    paper: str
    where: str
    printed: str
    reading: str
    numbers: dict[str, float]
    elsewhere: str
    holds: bool


def matched(gamma: float, classes: int, *temperatures: float) -> list[float]:
    """The temperature nearest to the focal map of gamma, its error, and the errors of other temperatures."""
    of = {"steps": STEPS.get(classes)}
    best = float(theory.matching_temperature(gamma, classes, **of))
    return [best, *(float(theory.temperature_mismatch(gamma, at, classes, **of)) for at in (best, *temperatures))]


def _plain(row):
    """With numbers of Python for JSON, and a bool at the end."""
    row = row._replace(numbers={name: float(value) for name, value in row.numbers.items()})
    return row._replace(**{row._fields[-1]: bool(row[-1])})


def errata() -> Iterator[Erratum]:
    """All errata."""
    return map(_plain, itertools.chain(_bounds(), _matches(), _maps(), _gradients(), _entropy(), _code()))


def readings() -> Iterator[Reading]:
    """Statements that a reading within their words makes true."""
    return map(_plain, _readings())


def _readings():
    gammas = np.linspace(0, 6.25, 26)[1:]
    slope, intercept = np.polyfit([0, *gammas], [1, *(1 / matched(gamma, 2)[0] for gamma in gammas)], 1)
    low, low_at_0 = np.polyfit(gammas[gammas <= 3], [1 / matched(gamma, 2)[0] for gamma in gammas[gammas <= 3]], 1)
    yield Reading(
        KOMISARENKO,
        "3.2",
        "1/T = 0.95 γ + 0.85 for two classes",
        "least squares over γ from 0 to 6.25",
        {"slope": slope, "intercept": intercept, "slope up to 3": low, "intercept up to 3": low_at_0},
        "the paper gives no range; up to γ = 3 the intercept is higher",
        abs(slope - 0.95) < 0.01 and abs(intercept - 0.85) < 0.005,
    )
    slope, intercept = LINES[2]
    of_line, best = 1 / (slope * 0.5 + intercept), matched(0.5, 2)[0]
    yield Reading(
        KOMISARENKO,
        "Fig. 2",
        "T = 0.76 for γ = 0.5 and two classes",
        "T of the paper's own line",
        {"T of the line": of_line, "best T": best},
        "the best single temperature is lower",
        abs(of_line - 0.76) < 0.006,
    )
    common = {(gamma, classes): matched(gamma, classes)[0] for gamma in (2.0, 3.0) for classes in (2, 3, 4)}
    yield Reading(
        KOMISARENKO,
        "4.1",
        "a temperature of about 0.4 to 0.5 for common γ",
        "γ = 2 with three classes, γ = 3 with four",
        {f"γ {gamma:g}, {classes} classes": at for (gamma, classes), at in common.items()},
        "of six cases with γ of 2 or 3 and two to four classes two lie there",
        all(0.4 <= common[case] <= 0.5 for case in ((2.0, 3), (3.0, 4))),
    )
    slopes = {gamma: float(theory.focal_slope_at_zero(gamma)) for gamma in (-0.5, -0.88, -0.95)}
    yield Reading(
        KOMISARENKO,
        "Fig. 1",
        "a negative γ gives an inverse sigmoid",
        "γ from about -0.885 to 0",
        {f"slope at 1/2 of γ = {gamma:g}": slope for gamma, slope in slopes.items()},
        "nearer -1 the map is steeper than 1 at 1/2",
        slopes[-0.5] < 1 and slopes[-0.88] < 1,
    )
    q, powers = np.meshgrid(np.linspace(0, 1, 101), np.linspace(1, 10, 37))
    yield Reading(
        KIMURA,
        "Lemma 1, proof",
        "(1−q)^γ ≥ 1 − γq",
        "γ of 1 and more, as the other paper's App. H says",
        {"least difference for γ from 1 to 10": ((1 - q) ** powers - (1 - powers * q)).min()}
        | {"difference at γ = 1/2, q = 1/2": 0.5**0.5 - 0.75},
        "below 1 it fails; the lemma itself held in every search for γ ≥ 0",
        ((1 - q) ** powers >= 1 - powers * q - 1e-12).all(),
    )
    coarse, fine = lattice_error(9.0, 0.5), matched(9.0, 4)[1]
    yield Reading(
        KOMISARENKO,
        "3.3",
        "four classes: an error of at most 8%",
        "γ = 9, logits from -5 to 5 by 0.5",
        {"error by 0.5": coarse, "error on a finer lattice": fine},
        "the paper gives no step for four classes; by its step for three the error is larger",
        coarse < 0.08,
    )


def lattice_error(gamma: float, step: float) -> float:
    """The least over T of the largest difference, of four classes whose logits lie from -5 to 5 by `step`."""
    at = np.arange(-5, 5 + 1e-9, step)
    logits = np.stack(np.meshgrid(at, at, at, at), axis=-1).reshape(-1, 4)
    logits = np.unique(logits - logits[:, :1], axis=0)
    mapped = np.exp(np.array(calibration.focal_calibration(logits.astype(np.float32), gamma), float))
    return min(abs(mapped - special.softmax(logits / at, axis=1)).max() for at in np.linspace(0.14, 0.26, 25))


def _bounds():
    gamma, s = 4.0, -2.0
    bounds, mapped = theory.temperature_bounds(gamma), calibration.binary_focal_calibration(s, gamma)
    ends = np.array(bounds[:2], float)
    mapped, high, low, *true = special.expit([float(mapped), *(s * ends), *(s / ends)])
    numbers = {"gamma": gamma, "s": s, "map": mapped, "printed low": low, "printed high": high}
    yield Erratum(
        KOMISARENKO,
        "Prop. 3",
        "sigmoid(s/(γ+1)) and sigmoid(s/(γ+1−ln(γ+1)/2)) enclose the map",
        "s/T with T = 1/(γ+1) and 1/(γ+1−ln(γ+1)/2), that is s times those numbers; equality at s = 0",
        numbers | {"true low": true[0], "true high": true[1]},
        "γ = 4, one s: the statement is of every s and γ",
        not low < mapped < high and true[0] < mapped < true[1],
    )
    narrow, wide = (theory.temperature_bounds(gamma, logit_range=reach).tight_low for reach in (10.0, 20.0))
    yield Erratum(
        KOMISARENKO,
        "Fig. 3",
        "tight T_low = 0.206 for γ = 4, logits in (−20, 20)",
        "0.206 belongs to (−10, 10)",
        {"T_low for 10": narrow, "T_low for 20": wide},
        "γ = 4, logits within 10 and within 20",
        np.floor(1000 * wide) != 206 and np.floor(1000 * narrow) == 206,
    )


def _matches():
    for where, classes, gamma, printed, holds, times in PRINTED_PAIRS:
        best, error, of_printed = matched(gamma, classes, printed)
        numbers = {"γ": gamma, "best T": best, "its error": error, "error of printed T": of_printed}
        said = f"T = {printed:g} for γ = {gamma:g}"
        yield Erratum(KOMISARENKO, where, said, holds, numbers, SPREAD, of_printed > times * error)
    worst = matched(0.425, 2)[1]
    yield Erratum(
        KOMISARENKO,
        "3.2",
        "two classes: the error stays below 1e-3",
        "it passes 1e-3, by a fifth at most, for γ from 0.225 to 0.75",
        {"γ": 0.425, "error": worst},
        "all logits, and those within 5, 10 and 20; within 2 it is true",
        worst > 1e-3,
    )


def _maps():
    def top(q, gamma):
        return np.exp(calibration.focal_calibration(np.log(q).astype(np.float32), gamma))[0]

    four, many = top([0.32, 0.32, 0.32, 0.04], 0.25), top([0.3] + [0.7 / 99] * 99, 1.0)
    yield Erratum(
        KOMISARENKO,
        "Prop. 5",
        "the map raises the top probability for every γ > 0",
        "true where max q ≥ 1/2, hence for two classes; false for four and more",
        {"K = 4, q 0.32, map": four, "K = 100, q 0.3, map": many},
        "γ = 0.25 with four classes, γ = 1 with a hundred: the statement is of every γ and number of classes",
        four < 0.32 and many < 0.3,
    )
    # 0.8 L(q, 1) + 0.2 L(1-q, 0) with L(q, 0) = l(1-q), so that both terms are l(q); gamma = 2
    q = np.array([0.7, 0.99])
    printed, true = -((1 - q) ** 2) * np.log(q), theory.conditional_risk([0.8, 0.2], np.stack([q, 1 - q], -1), 2.0)
    numbers = {"printed risk of q = 0.7": printed[0], "of q = 0.99": printed[1]}
    yield Erratum(
        KOMISARENKO,
        "3.2",
        "risk p L(q, 1) + (1−p) L(1−q, 0)",
        "p L(q, 1) + (1−p) L(q, 0); the printed one is least at q = 1 whatever p is",
        numbers | {"true risk of 0.7": true[0], "of 0.99": true[1]},
        "p = 0.8, γ = 2: the statement is a definition",
        printed[0] > printed[1] and true[0] < true[1],
    )


def _gradients():
    largest = theory.gradient_ratio(0.2, np.linspace(-0.99, -0.01, 99)).max()
    at_zero = theory.gradient_ratio(0.2, 0.0)
    yield Erratum(
        MUKHOTI,
        "App. B",
        "the principal branch W_0 gives a negative γ",
        "for p0 < 1/2, where the policies use it, it gives 0; no negative γ solves G = 1 there",
        {"p0": 0.2, "G at γ = 0": at_zero, "largest G over γ < 0": largest},
        "p0 = 0.2, γ from -0.99 to 0; for p0 above 1/2 the root is negative",
        at_zero == 1 and largest < 1,
    )
    confident, below = theory.gamma_star(0.6), theory.gradient_ratio(0.6, np.linspace(0.01, 20, 400)).max()
    yield Erratum(
        MUKHOTI,
        "4, after Prop. 2",
        "for any p0 a γ* can be computed that has G above 1 below p0 and under 1 above it",
        "for p0 below 1/2; from there on G is under 1 for every γ above 0, and γ* is 0, which has G = 1 everywhere",
        {"γ* at 0.6": confident, "largest G at 0.6": below},
        "p0 = 0.6, γ up to 20",
        confident == 0 and below < 1,
    )
    generator = np.random.default_rng(0)
    logits, labels = generator.normal(size=(500, 10)) * 3, generator.integers(0, 10, 500)

    def nll(logits, labels, temperature):
        return -special.log_softmax(logits / temperature, axis=1)[np.arange(len(labels)), labels].mean()

    one = np.array([[0.0, 1.0]]), np.array([1])
    in_temperature = np.diff([nll(*one, at) for at in (0.5, 1.0, 1.5)], 2)[0]  # of a convex function none is below 0
    in_inverse = np.diff([nll(logits, labels, 1 / at) for at in np.linspace(0.02, 5, 300)], 2).min()
    yield Erratum(
        MUKHOTI,
        "6",
        "NLL is not convex in the temperature, so that an optimiser may stop at a local optimum",
        "it is not convex in T, but it is in 1/T, as log-sum-exp is: a local optimum is the only one",
        {"second difference at T = 0.5, 1, 1.5 of logits 0, 1": in_temperature}
        | {"least second difference in 1/T of drawn rows": in_inverse},
        "one row of two classes; 500 drawn rows of ten, 1/T from 0.02 to 5",
        in_temperature < 0 and in_inverse > 0,
    )
    ratio, low = theory.logit_curvature_ratio(np.array([0.5, 0.03]), 2.0)
    yield Erratum(
        KIMURA,
        "Eq. 28",
        "curvature is that of cross-entropy times (1−p)^γ",
        "the ratio is ρ(p) = G − (1−p)G′: above 1 for p from 0.093 to 0.628 at γ = 2, negative below 0.058",
        {"γ": 2.0, "p": 0.5, "(1−p)^γ": 0.25, "ρ": ratio, "ρ at p = 0.03": low},
        "γ = 2, p = 0.03 and 0.5, curvature in the logit",
        ratio > 1,
    )


def _entropy():
    family = theory.maxwell_boltzmann([0.0, 1.0, 2.0, 3.0], 1.0)[1]
    entropy, other = stats.entropy(np.array([family, [0.4, 0.3, 0.2, 0.1]]), axis=1)
    yield Erratum(
        KIMURA,
        "Thm. 1, proof",
        "maximising conditional entropy is minimising entropy",
        "the exponential family maximises it",
        {"entropy": entropy, "entropy of (.4, .3, .2, .1), same mean": other},
        "four states, temperature 1",
        entropy > other,
    )


def _code():
    logits, labels = _confident_outputs()
    gamma, temperature = np.float32([-0.75, 0.05])
    mapped = _faulty_map(logits, gamma, temperature)
    claimed, sums = -np.log(mapped[np.arange(len(labels)), labels]).mean(dtype=np.float64), mapped.sum(axis=1)
    true = calibration.nll(calibration.focal_temperature_scaling(logits, gamma, temperature), labels)
    right = calibration.nll(calibration.temperature_scaling(logits, 3.0), labels)
    numbers = {"γ": gamma, "T": temperature, "its NLL by the code": claimed, "true NLL there": true}
    numbers |= {"NLL at γ = 0, T = 3": right, "rows patched": (sums > 2).mean(), "sum of a patched row": sums.max()}
    yield Erratum(
        KOMISARENKO,
        "published code",
        "rows whose weights overflow float32 are set to 1 − 1e-5 at their top class",
        "they get it in every class that is the top of any row: they sum to K, and their NLL is 1e-5 whatever the "
        "label, so a search by NLL ends at a small T (whether published numbers passed through it is not known)",
        numbers,
        "2,000 drawn rows of ten classes, γ = -0.75, T = 0.05",
        claimed < right < true and (sums > 2).any(),
    )


def _confident_outputs():
    """Drawn logits float32 [2000, 10] and labels: calibrated at T = 3, right in 92%."""
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(2000, 10))
    scores[np.arange(2000), generator.integers(0, 10, 2000)] += generator.gamma(3.0, 3.0, 2000)
    below = special.softmax(scores, axis=1).cumsum(axis=1)
    return (3 * scores).astype(np.float32), np.argmax(below > generator.random((2000, 1)), axis=1)


def _faulty_map(logits, gamma, temperature):
    """Focal temperature scaling in float32 probabilities, with the published code's fault in what is not finite."""
    q = special.softmax(logits / temperature, axis=1)
    q = np.clip(q, np.float32(1e-12), np.float32(1 - 1e-12))  # which is 1 in float32
    with np.errstate(all="ignore"):
        weights = q / ((1 - q) ** gamma - gamma * q * (1 - q) ** (gamma - 1) * np.log(q))
        probs = weights / weights.sum(axis=1, keepdims=True)
    rows = np.flatnonzero(~np.isfinite(probs).all(axis=1))
    probs[rows] = 1e-5 / logits.shape[1]
    probs[rows, np.argmax(logits, axis=1)[:, None]] = 1 - 1e-5  # [rows] against [examples, 1]: all pairs of both
    return probs
