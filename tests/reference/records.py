"""The papers' records recomputed from their definitions in 150 digits, where no other oracle holds them.

Imports no focalgeo.
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path

import mpmath
import numpy as np
from mpmath import mpf

DIGITS = 150  # 1 - q must survive at a logit gap of 100, and its powers
FOLDER = Path(__file__).parent / "papers"


@functools.cache
def stored() -> dict:
    """Every record, by key."""
    return {key: value for file in sorted(FOLDER.glob("*.json")) for key, value in json.loads(file.read_text()).items()}


def focal(p, gamma):
    """Focal loss of probability p."""
    return -((1 - p) ** gamma) * mpmath.log(p)


def ratio(p, gamma):
    """G, the gradient of the focal loss over that of cross-entropy."""
    return (1 - p) ** gamma - gamma * p * (1 - p) ** (gamma - 1) * mpmath.log(p)


def focal_map(q, gamma):
    """The focal calibration map of probabilities q."""
    weights = [value / ratio(value, gamma) for value in q]
    return [weight / mpmath.fsum(weights) for weight in weights]


def softmax(z, temperature=1):
    """Probabilities of logits z."""
    exponentials = [mpmath.exp(value / temperature) for value in z]
    return [value / mpmath.fsum(exponentials) for value in exponentials]


def logit(p):
    """Log-odds."""
    return mpmath.log(p / (1 - p))


def inverse_binary(p, gamma):
    """The q whose binary focal map is p."""
    return mpmath.findroot(
        lambda q: logit(focal_map([q, 1 - q], gamma)[0]) - logit(p), (mpf("0.001"), mpf("0.999")), solver="anderson"
    )


def entropy(p):
    """Entropy in nats; 0 log 0 is 0."""
    return -mpmath.fsum(value * mpmath.log(value) for value in p if value > 0)


def numbers(values):
    """Exact values of floats, or of decimals such as "1-1e-12"."""
    return [number(value) for value in values]


def number(value):
    """See `numbers`."""
    if isinstance(value, str) and value.startswith("1-"):
        return 1 - mpf(value[2:])
    return mpf(value)


def g_samples(record):
    p, gamma = mpf(str(record["p"])), mpf(record["gamma"])
    return {"g": ratio(p, gamma), "dg_dp": mpmath.diff(lambda x: ratio(x, gamma), p)}


def g_peak_and_crossing(record):
    gamma, peak, crossing = (mpf(record[name]) for name in ("gamma", "p_peak", "p0_where_g_eq_1"))
    peak = mpmath.findroot(lambda x: mpmath.diff(lambda y: ratio(y, gamma), x), peak)
    crossing = mpmath.findroot(lambda x: ratio(x, gamma) - 1, crossing)
    return {"p_peak": peak, "g_peak": ratio(peak, gamma), "p0_where_g_eq_1": crossing}


def lemma1(record):
    p, q, gamma = numbers(record["p"]), numbers(record["q"]), mpf(record["gamma"])
    cross = -mpmath.fsum(a * mpmath.log(b) for a, b in zip(p, q, strict=True) if a > 0)
    risk = mpmath.fsum(a * focal(b, gamma) for a, b in zip(p, q, strict=True) if a > 0)
    bound = cross - gamma * entropy(q)
    return {"FL": risk, "CE": cross, "H_q": entropy(q), "H_p": entropy(p), "lower_bound": bound, "gap": risk - bound}


def binary_map(record):
    q = number(record["q"])
    p, rest = focal_map([q, 1 - q], mpf(record["gamma"]))
    return {"phat": p, "one_minus_phat": rest, "logit_phat": mpmath.log(p / rest)}


def binary_map_slopes(record):
    gamma = mpf(record["gamma"])
    slope = mpmath.diff(lambda s: logit(focal_map(softmax([s, mpf(0)]), gamma)[0]), 0)
    return {
        "slope_at_0": slope,
        "slope_at_inf": 1 + gamma,
        "intercept_at_inf": -mpmath.log(1 + gamma),
        "T_at_0": 1 / slope,
    }


def multiclass_map(record):
    inputs = stored()["multiclass_inputs"][record["name"]]
    q = numbers(inputs["q"]) if "q" in inputs else softmax(numbers(inputs["z"]))
    p = focal_map(q, mpf(record["gamma"]))
    found = {"phat": p, "log_phat": [mpmath.log(value) for value in p]}
    return {name: value for name, value in found.items() if name in record}  # of 100 classes only some are stored


def optimal_binary(record):
    return {"q": inverse_binary(mpf(str(record["p"])), mpf(record["gamma"]))}


def inverse_map(record):
    p, q, gamma = numbers(map(str, record["p"])), numbers(record["q"]), mpf(record["gamma"])

    def unfitted(*parts):
        moved = focal_map([*parts, 1 - mpmath.fsum(parts)], gamma)
        return [found - wanted for found, wanted in zip(moved[:-1], p[:-1], strict=True)]

    found = list(mpmath.findroot(unfitted, q[:-1]))
    found.append(1 - mpmath.fsum(found))
    risk = mpmath.fsum(a * focal(b, gamma) for a, b in zip(p, found, strict=True))
    return {"q": found, "min_conditional_focal_risk": risk}


def proper_part(record):
    p, gamma = mpf(str(record["p"])), mpf(record["gamma"])
    inverse = inverse_binary(p, gamma)
    return {
        "inverse_q": inverse,
        "proper_loss_y1": focal(inverse, gamma),
        "focal_loss_y1": focal(p, gamma),
        "ce": -mpmath.log(p),
    }


def prop3(record):
    gamma = mpf(str(record["gamma"]))
    slope = mpmath.diff(lambda s: logit(focal_map(softmax([s, mpf(0)]), gamma)[0]), 0)
    return {
        "T_theory_low": 1 / (1 + gamma),
        "T_theory_high": 1 / (1 + gamma - mpmath.log1p(gamma) / 2),
        "slope_at_0": slope,
    }


RECOMPUTED: dict[str, Callable[[dict], dict]] = {
    "g_samples": g_samples,
    "g_peak_and_crossing": g_peak_and_crossing,
    "lemma1_examples": lemma1,
    "binary_map": binary_map,
    "binary_map_slopes": binary_map_slopes,
    "multiclass_map": multiclass_map,
    "optimal_q_binary": optimal_binary,
    "inverse_map_multiclass": inverse_map,
    "proper_part_binary": proper_part,
    "prop3_bounds": prop3,
}


def difference(key: str, record: dict) -> float:
    """Largest difference of a record's fields from those recomputed, relative to the largest entry of the field."""
    with mpmath.workdps(DIGITS):
        found = RECOMPUTED[key](record)
    worst = 0.0
    for name, value in found.items():
        ours, theirs = np.array(value, float), np.array(record[name], float)
        worst = max(worst, float(np.max(np.abs(ours - theirs)) / max(np.max(np.abs(theirs)), 1e-12)))
    return worst
