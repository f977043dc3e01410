"""Statements of the papers that are false or misprinted, each with numbers that show it."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy import special, stats

from focalgeo import calibration, theory

STEPS: dict[int, int | None] = {}  # classes -> the lattice of matching temperatures, where it is not theory's
PRINTED_PAIRS = (  # figure, classes, gamma, T, what holds, and how many times the best error the printed T has
    ("Fig. 2", 2, 0.5, 0.76, "T = 0.731", 5),
    ("Fig. 2", 2, 3.0, 0.36, "T = 0.276 (0.36: three classes)", 100),
    ("Fig. 5", 3, 1.0, 0.81, "T = 0.66 (0.81 belongs to γ = 0.5)", 2),
    ("Fig. 5", 3, 3.0, 0.46, "T = 0.36 (0.46 belongs to γ = 2)", 1.8),
)
KIMURA, KOMISARENKO, MUKHOTI = "Kimura & Naganuma", "Komisarenko & Kull", "Mukhoti et al."


class Erratum(NamedTuple):
    """One statement; `numbers` are the counterexample, `refuted` is computed from them."""

    paper: str
    where: str
    printed: str
    holds: str
    numbers: dict[str, float]
    refuted: bool


def matched(gamma: float, classes: int, *temperatures: float) -> list[float]:
    """The temperature nearest to the focal map of gamma, its error, and the errors of other temperatures."""
    of = {"steps": STEPS.get(classes)}
    best = float(theory.matching_temperature(gamma, classes, **of))
    return [best, *(float(theory.temperature_mismatch(gamma, at, classes, **of)) for at in (best, *temperatures))]


def errata() -> Iterator[Erratum]:
    """All errata."""
    for row in itertools.chain(_bounds(), _matches(), _maps(), _gradients(), _entropy(), _code()):
        yield row._replace(numbers={name: float(value) for name, value in row.numbers.items()}, refuted=bool(row[-1]))


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
        not low < mapped < high and true[0] < mapped < true[1],
    )
    narrow, wide = (theory.temperature_bounds(gamma, logit_range=reach).tight_low for reach in (10.0, 20.0))
    yield Erratum(
        KOMISARENKO,
        "Fig. 3",
        "tight T_low = 0.206 for γ = 4, logits in (−20, 20)",
        "0.206 belongs to (−10, 10)",
        {"T_low for 10": narrow, "T_low for 20": wide},
        np.floor(1000 * wide) != 206 and np.floor(1000 * narrow) == 206,
    )


def _matches():
    for where, classes, gamma, printed, holds, times in PRINTED_PAIRS:
        best, error, of_printed = matched(gamma, classes, printed)
        numbers = {"γ": gamma, "best T": best, "its error": error, "error of printed T": of_printed}
        said = f"T = {printed:g} for γ = {gamma:g}"
        yield Erratum(KOMISARENKO, where, said, holds, numbers, of_printed > times * error)
    worst, line, four = matched(0.425, 2)[1], matched(0.01, 2, 1 / (0.95 * 0.01 + 0.85))[2], matched(9.0, 4)[1]
    small = {f"T of γ = 3, {classes} classes": matched(3.0, classes)[0] for classes in (2, 3)}
    for where, said, holds, numbers, refuted in (
        (
            "3.2",
            "the error stays below 1e-3",
            "it passes 1e-3 for γ from 0.225 to 0.75",
            {"γ": 0.425, "error": worst},
            worst > 1e-3,
        ),
        (
            "3.2",
            "1/T = 0.95 γ + 0.85",
            "no range of γ gives both numbers; at γ = 0 the true 1/T is 1",
            {"γ": 0.01, "error of the line": line},
            line > 0.03,
        ),
        ("4.1", "temperatures of 0.4 to 0.5 for common γ", "0.28 to 0.36", small, max(small.values()) < 0.4),
        (
            "3.3",
            "four classes: error at most 8%",
            "12 to 13% at γ = 9; a coarse lattice hides it",
            {"γ": 9.0, "error": four},
            four > 0.09,
        ),
    ):
        yield Erratum(KOMISARENKO, where, said, holds, numbers, refuted)


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
        four < 0.32 and many < 0.3,
    )
    slope = theory.focal_slope_at_zero(-0.95)
    yield Erratum(
        KOMISARENKO,
        "Fig. 1",
        "a negative γ is an inverse sigmoid",
        "from about −0.885 to 0; below that it sharpens near 1/2",
        {"γ": -0.95, "slope at 1/2": slope},
        slope > 1,
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
        printed[0] > printed[1] and true[0] < true[1],
    )


def _gradients():
    largest = theory.gradient_ratio(0.2, np.linspace(-0.99, -0.01, 99)).max()
    at_zero = theory.gradient_ratio(0.2, 0.0)
    yield Erratum(
        MUKHOTI,
        "App. B",
        "the principal branch W_0 gives a negative γ",
        "for p0 < 1/2 it gives 0, a root for every p0; no negative γ solves G = 1",
        {"p0": 0.2, "G at γ = 0": at_zero, "largest G over γ < 0": largest},
        at_zero == 1 and largest < 1,
    )
    confident = theory.gamma_star(0.6)
    yield Erratum(
        MUKHOTI,
        "Prop. 2",
        "the proposition guides γ for p > 1/2",
        "γ* is 0 from p0 = 1/2 on: every γ damps there",
        {"γ* at 0.6": confident},
        confident == 0,
    )
    ratio, low = theory.logit_curvature_ratio(np.array([0.5, 0.03]), 2.0)
    yield Erratum(
        KIMURA,
        "Eq. 28",
        "curvature is that of cross-entropy times (1−p)^γ",
        "the ratio is ρ(p) = G − (1−p)G′: above 1 for p from 0.093 to 0.628 at γ = 2, negative below 0.058",
        {"γ": 2.0, "p": 0.5, "(1−p)^γ": 0.25, "ρ": ratio, "ρ at p = 0.03": low},
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
        entropy > other,
    )
    yield Erratum(
        f"{KIMURA}; {MUKHOTI}",
        "Lemma 1; App. H",
        "(1−q)^γ ≥ 1 − γq, range of γ not given",
        "needs γ ≥ 1; the lemma itself held in every search for γ ≥ 0 (first line of App. H: + γ Σ p q log q)",
        {"γ": 0.5, "q": 0.5, "(1−q)^γ": 0.5**0.5, "1 − γq": 0.75},
        0.5**0.5 < 0.75,
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
