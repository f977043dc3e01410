"""Matching temperatures, bounds and anchors of the papers, with the printed number beside ours."""

from typing import Any

import numpy as np

from focalgeo.theory import gradient_ratio, matching_temperature, optimal_prediction, temperature_mismatch

GAMMAS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)
PRINTED_LINES = {2: (0.95, 0.85), 3: (0.64, 0.91), 4: (0.47, 0.85)}  # 1/T = slope * gamma + intercept
FIT_TO = {2: 5.0, 3: 10.0, 4: 10.0}  # largest gamma of the least-squares line; the papers do not print theirs
PRINTED_PAIRS = ((2, 0.5, 0.76), (2, 3.0, 0.36), (3, 1.0, 0.81), (3, 3.0, 0.46), (3, 0.5, 0.8), (3, 2.0, 0.46))
PAIR_FIGURES = ("Fig. 2", "Fig. 2", "Fig. 5", "Fig. 5", "Fig. 7", "Fig. 7")


def matches(num_classes: int, gammas: tuple[float, ...] = GAMMAS, steps: int | None = None) -> dict[str, Any]:
    """Best temperature and its error by gamma, and the error of the paper's line; `steps` sets the lattice."""
    slope, intercept = PRINTED_LINES[num_classes]
    rows = []
    for gamma in gammas:
        best = float(matching_temperature(gamma, num_classes, steps=steps))
        line = 1 / (slope * gamma + intercept)
        error, error_of_line = (
            float(temperature_mismatch(gamma, temperature, num_classes, steps=steps)) for temperature in (best, line)
        )
        rows.append({"gamma": gamma, "temperature": best, "error": error, "error_of_printed_line": error_of_line})
    fitted = [(row["gamma"], 1 / row["temperature"]) for row in rows if row["gamma"] <= FIT_TO[num_classes]]
    ours = np.polyfit(*np.array(fitted).T, 1)
    return {
        "num_classes": num_classes,
        "printed_line": [slope, intercept],
        "our_line": [float(ours[0]), float(ours[1])],
        "our_line_up_to_gamma": FIT_TO[num_classes],
        "rows": rows,
    }


def printed_pairs(steps: int | None = None) -> list[dict[str, Any]]:
    """Each (gamma, T) that the papers print: its error, the best T and the best error."""
    rows = []
    for figure, (classes, gamma, printed) in zip(PAIR_FIGURES, PRINTED_PAIRS, strict=True):
        best = float(matching_temperature(gamma, classes, steps=steps))
        errors = [float(temperature_mismatch(gamma, t, classes, steps=steps)) for t in (printed, best)]
        rows.append(
            {
                "figure": figure,
                "num_classes": classes,
                "gamma": gamma,
                "printed_temperature": printed,
                "printed_error": errors[0],
                "temperature": best,
                "error": errors[1],
            }
        )
    return rows


def anchors() -> list[dict[str, Any]]:
    """Single numbers that the papers print, beside ours."""
    return [
        {
            "what": "best prediction for p = 0.8, gamma = 2 (Komisarenko & Kull, 3.1)",
            "printed": "around 0.62",
            "ours": float(optimal_prediction([0.8, 0.2], 2.0)[0]),
        },
        {
            "what": "G(0.2, 5), the reason for gamma = 5 below 0.2 (Mukhoti et al., 4)",
            "printed": "about 1",
            "ours": float(gradient_ratio(0.2, 5.0)),
        },
        {
            "what": "G(0.25, 3) (Mukhoti et al., 4)",
            "printed": "about 1",
            "ours": float(gradient_ratio(0.25, 3.0)),
        },
        {
            "what": "G(0.5, 7) (Mukhoti et al., Fig. 4a)",
            "printed": "nearly 0",
            "ours": float(gradient_ratio(0.5, 7.0)),
        },
    ]
