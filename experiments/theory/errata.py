"""Statements of the papers that are false or misprinted, each with numbers that show it."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from focalgeo import calibration, theory

# the grid on which the published code's fault is shown: gamma = 0 is temperature scaling
CODE_GAMMAS = np.float32([-0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1, 3, 5])
CODE_TEMPERATURES = (0.05 * np.arange(1, 101)).astype(np.float32)

KIMURA, KOMISARENKO, MUKHOTI = "Kimura & Naganuma", "Komisarenko & Kull", "Mukhoti et al."


class Erratum(NamedTuple):
    """One statement; `numbers` are the counterexample, `refuted` is computed from them."""

    paper: str
    where: str
    printed: str
    holds: str
    numbers: dict[str, float]
    refuted: bool


def errata(steps: dict[int, int | None] | None = None) -> list[Erratum]:
    """All errata; `steps` sets the lattice of the matching temperatures by number of classes."""
    steps = steps or {2: None, 3: None, 4: None}
    return [*_bounds(), *_matches(steps), *_maps(), *_gradients(), *_entropy(), *_code()]


def _bounds() -> list[Erratum]:
    gamma, s = 4.0, -2.0
    found = theory.temperature_bounds(gamma)
    mapped = _sigmoid(calibration.binary_focal_calibration(s, gamma))
    low, high = (_sigmoid(s / x) for x in (gamma + 1, gamma + 1 - np.log(gamma + 1) / 2))
    right_low, right_high = (_sigmoid(s / float(t)) for t in (found.low, found.high))
    numbers = {"gamma": gamma, "s": s, "map": mapped, "printed low": high, "printed high": low}
    numbers |= {"true low": right_low, "true high": right_high}
    narrow, wide = (float(theory.temperature_bounds(gamma, logit_range=r).tight_low) for r in (10.0, 20.0))
    return [
        Erratum(
            KOMISARENKO,
            "Prop. 3",
            "sigmoid(s/(γ+1)) and sigmoid(s/(γ+1−ln(γ+1)/2)) enclose the map",
            "s/T with T = 1/(γ+1) and 1/(γ+1−ln(γ+1)/2), that is s times those numbers; equality at s = 0",
            numbers,
            not high < mapped < low and right_low < mapped < right_high,
        ),
        Erratum(
            KOMISARENKO,
            "Fig. 3",
            "tight T_low = 0.206 for γ = 4, logits in (−20, 20)",
            "0.206 belongs to (−10, 10)",
            {"T_low for 10": narrow, "T_low for 20": wide},
            np.floor(1000 * wide) != 206 and np.floor(1000 * narrow) == 206,
        ),
    ]


def _matches(steps: dict[int, int | None]) -> list[Erratum]:
    def best(gamma: float, classes: int) -> float:
        return float(theory.matching_temperature(gamma, classes, steps=steps[classes]))

    def error(gamma: float, temperature: float, classes: int) -> float:
        return float(theory.temperature_mismatch(gamma, temperature, classes, steps=steps[classes]))

    def pair(gamma: float, printed: float, classes: int) -> dict[str, float]:
        right = best(gamma, classes)
        wrong_error, right_error = error(gamma, printed, classes), error(gamma, right, classes)
        return {"γ": gamma, "best T": right, "its error": right_error, "error of printed T": wrong_error}

    low, high = pair(0.5, 0.76, 2), pair(3.0, 0.36, 2)
    one, three = pair(1.0, 0.81, 3), pair(3.0, 0.46, 3)
    worst = error(0.425, best(0.425, 2), 2)
    four = error(9.0, best(9.0, 4), 4)
    line = error(0.01, 1 / (0.95 * 0.01 + 0.85), 2)
    small = {f"T of γ = 3, {classes} classes": best(3.0, classes) for classes in (2, 3)}
    where = "Fig. 2"
    return [
        Erratum(KOMISARENKO, where, "T = 0.76 for γ = 0.5", "T = 0.731", low, _worse(low, 5)),
        Erratum(KOMISARENKO, where, "T = 0.36 for γ = 3", "T = 0.276 (0.36: three classes)", high, _worse(high, 100)),
        Erratum(
            KOMISARENKO,
            "3.2",
            "the error stays below 1e-3",
            "it passes 1e-3 for γ from 0.225 to 0.75",
            {"γ": 0.425, "error": worst},
            worst > 1e-3,
        ),
        Erratum(
            KOMISARENKO,
            "3.2",
            "1/T = 0.95 γ + 0.85",
            "no range of γ gives both numbers; at γ = 0 the true 1/T is 1",
            {"γ": 0.01, "error of the line": line},
            line > 0.03,
        ),
        Erratum(
            KOMISARENKO, "Fig. 5", "γ = 1 with T = 0.81", "T = 0.66 (0.81 belongs to γ = 0.5)", one, _worse(one, 2)
        ),
        Erratum(
            KOMISARENKO, "Fig. 5", "γ = 3 with T = 0.46", "T = 0.36 (0.46 belongs to γ = 2)", three, _worse(three, 1.8)
        ),
        Erratum(
            KOMISARENKO,
            "4.1",
            "temperatures of 0.4 to 0.5 for common γ",
            "0.28 to 0.36",
            small,
            max(*small.values()) < 0.4,
        ),
        Erratum(
            KOMISARENKO,
            "3.3",
            "four classes: error at most 8%",
            "12 to 13% at γ = 9; a coarse lattice hides it",
            {"γ": 9.0, "error": four},
            four > 0.09,
        ),
    ]


def _maps() -> list[Erratum]:
    q4, q100 = np.array([0.32, 0.32, 0.32, 0.04]), np.array([0.3] + [0.7 / 99] * 99)
    tops = {"K = 4, q 0.32, map": _top(q4, 0.25), "K = 100, q 0.3, map": _top(q100, 1.0)}
    slope = float(theory.focal_slope_at_zero(-0.95))
    risks = {"printed risk of q = 0.7": _printed_risk(0.7), "of q = 0.99": _printed_risk(0.99)}
    risks["true risk of 0.7"] = float(theory.conditional_risk([0.8, 0.2], [0.7, 0.3], 2.0))
    risks["of 0.99"] = float(theory.conditional_risk([0.8, 0.2], [0.99, 0.01], 2.0))
    return [
        Erratum(
            KOMISARENKO,
            "Prop. 5",
            "the map raises the top probability for every γ > 0",
            "true where max q ≥ 1/2, hence for two classes; false for four and more",
            tops,
            tops["K = 4, q 0.32, map"] < 0.32 and tops["K = 100, q 0.3, map"] < 0.3,
        ),
        Erratum(
            KOMISARENKO,
            "Fig. 1",
            "a negative γ is an inverse sigmoid",
            "from about −0.885 to 0; below that it sharpens near 1/2",
            {"γ": -0.95, "slope at 1/2": slope},
            slope > 1,
        ),
        Erratum(
            KOMISARENKO,
            "3.2",
            "risk p L(q, 1) + (1−p) L(1−q, 0)",
            "p L(q, 1) + (1−p) L(q, 0); the printed one is least at q = 1 whatever p is",
            risks,
            risks["printed risk of q = 0.7"] > risks["of q = 0.99"] and risks["true risk of 0.7"] < risks["of 0.99"],
        ),
    ]


def _gradients() -> list[Erratum]:
    below = np.linspace(-0.99, -0.01, 99)
    largest = float(jnp.max(theory.gradient_ratio(0.2, below)))
    at_zero = float(theory.gradient_ratio(0.2, 0.0))
    confident = float(theory.gamma_star(0.6))
    ratio, low = (float(theory.logit_curvature_ratio(p, 2.0)) for p in (0.5, 0.03))
    return [
        Erratum(
            MUKHOTI,
            "App. B",
            "the principal branch W_0 gives a negative γ",
            "for p0 < 1/2 it gives 0, a root for every p0; no negative γ solves G = 1",
            {"p0": 0.2, "G at γ = 0": at_zero, "largest G over γ < 0": largest},
            at_zero == 1 and largest < 1,
        ),
        Erratum(
            MUKHOTI,
            "Prop. 2",
            "the proposition guides γ for p > 1/2",
            "γ* is 0 from p0 = 1/2 on: every γ damps there",
            {"γ* at 0.6": confident},
            confident == 0,
        ),
        Erratum(
            KIMURA,
            "Eq. 28",
            "curvature is that of cross-entropy times (1−p)^γ",
            "the ratio is ρ(p) = G − (1−p)G′: above 1 for p from 0.093 to 0.628 at γ = 2, negative below 0.058",
            {"γ": 2.0, "p": 0.5, "(1−p)^γ": 0.25, "ρ": ratio, "ρ at p = 0.03": low},
            ratio > 1,
        ),
    ]


def _entropy() -> list[Erratum]:
    probs = np.asarray(theory.maxwell_boltzmann([0.0, 1.0, 2.0, 3.0], 1.0)[1], float)
    competitor = np.array([0.4, 0.3, 0.2, 0.1])
    entropies = {"entropy": _entropy_of(probs), "entropy of (.4, .3, .2, .1), same mean": _entropy_of(competitor)}
    powers = {"γ": 0.5, "q": 0.5, "(1−q)^γ": 0.5**0.5, "1 − γq": 0.75}
    return [
        Erratum(
            KIMURA,
            "Thm. 1, proof",
            "maximising conditional entropy is minimising entropy",
            "the exponential family maximises it",
            entropies,
            entropies["entropy"] > entropies["entropy of (.4, .3, .2, .1), same mean"],
        ),
        Erratum(
            f"{KIMURA}; {MUKHOTI}",
            "Lemma 1; App. H",
            "(1−q)^γ ≥ 1 − γq, range of γ not given",
            "needs γ ≥ 1; the lemma itself held in every search for γ ≥ 0 (first line of App. H: + γ Σ p q log q)",
            powers,
            powers["(1−q)^γ"] < powers["1 − γq"],
        ),
    ]


def _code() -> list[Erratum]:
    logits, labels = _confident_outputs()
    points = [(gamma, temperature) for gamma in CODE_GAMMAS for temperature in CODE_TEMPERATURES]
    found = [_faulty_map(logits, *point) for point in points]
    with np.errstate(divide="ignore"):  # some probabilities are 0
        claims = [float(-np.log(probs[np.arange(len(labels)), labels]).mean(dtype=np.float64)) for probs in found]
    index = int(np.argmin(claims))
    gamma, temperature = points[index]
    true = float(calibration.nll(calibration.focal_temperature_scaling(logits, gamma, temperature), labels))
    right = calibration.grid_search(logits, labels, CODE_GAMMAS, CODE_TEMPERATURES, criterion="nll")
    patched = found[index].sum(axis=1) > 2
    numbers = {"γ found": float(gamma), "T found": float(temperature), "its NLL by the code": claims[index]}
    numbers |= {"true NLL there": true, "rows patched": float(patched.mean())}
    numbers |= {"sum of a patched row": float(found[index].sum(axis=1).max())}
    numbers |= {"best γ": float(right.gamma), "best T": float(right.temperature), "best NLL": float(right.value)}
    return [
        Erratum(
            KOMISARENKO,
            "published code",
            "rows whose weights overflow float32 are set to 1 − 1e-5 at their top class",
            "they get it in every class that is the top of any row: they sum to K, and their NLL is 1e-5 whatever the "
            "label, so a search by NLL ends at a small T (whether published numbers passed through it is not known)",
            numbers,
            claims[index] < float(right.value) < true and patched.any(),
        )
    ]


def _confident_outputs() -> tuple[np.ndarray, np.ndarray]:
    """Drawn logits float32 [2000, 10] and labels: calibrated at T = 3, right in 92%."""
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(2000, 10))
    scores[np.arange(2000), generator.integers(0, 10, 2000)] += generator.gamma(3.0, 3.0, 2000)
    probs = np.exp(scores - scores.max(axis=1, keepdims=True))
    below = np.cumsum(probs, axis=1) / probs.sum(axis=1, keepdims=True)
    return (3 * scores).astype(np.float32), np.argmax(below > generator.random((2000, 1)), axis=1)


def _faulty_map(logits: np.ndarray, gamma: np.float32, temperature: np.float32) -> np.ndarray:
    """Focal temperature scaling in float32 probabilities, with the published code's fault in what is not finite."""
    scores = logits / temperature
    q = np.exp(scores - scores.max(axis=1, keepdims=True))
    q = np.clip(q / q.sum(axis=1, keepdims=True), np.float32(1e-12), np.float32(1 - 1e-12))  # which is 1 in float32
    with np.errstate(all="ignore"):
        weights = q / ((1 - q) ** gamma - gamma * q * (1 - q) ** (gamma - 1) * np.log(q))
        probs = weights / weights.sum(axis=1, keepdims=True)
    rows = np.flatnonzero(~np.isfinite(probs).all(axis=1))
    probs[rows] = 1e-5 / logits.shape[1]
    probs[rows, np.argmax(logits, axis=1)[:, None]] = 1 - 1e-5  # [rows] against [examples, 1]: all pairs of both
    return probs


def _worse(pair: dict[str, float], times: float) -> bool:
    return pair["error of printed T"] > times * pair["its error"]


def _printed_risk(q: float) -> float:
    """0.8 L(q, 1) + 0.2 L(1-q, 0) with L(q, 0) = l(1-q), so that both terms are l(q); gamma = 2."""
    return float(-((1 - q) ** 2) * np.log(q))


def _top(q: np.ndarray, gamma: float) -> float:
    return float(jnp.exp(calibration.focal_calibration(np.log(q).astype(np.float32), gamma))[0])


def _sigmoid(x: Any) -> float:
    return float(1 / (1 + np.exp(-np.float64(x))))


def _entropy_of(q: np.ndarray) -> float:
    return float(-np.sum(q * np.log(q)))
