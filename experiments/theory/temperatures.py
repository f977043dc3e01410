"""Figures on how near the focal map comes to temperature scaling."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.theory.palette import CURVES, INK, MUTED, new_figure
from focalgeo.calibration import binary_focal_calibration
from focalgeo.theory import temperature_bounds

NAMES = {2: "Two classes (Fig. 2)", 3: "Three classes (Fig. 6)", 4: "Four classes"}


def komisarenko_2_6(fits: list[dict[str, Any]], pairs: list[dict[str, Any]]) -> Figure:
    """Komisarenko & Kull, Figs. 2 and 6: best 1/T by gamma and its error, beside the printed lines and pairs."""
    figure, axes = new_figure(2, len(fits), size=(10.5, 6.2))
    for (line, error), fit in zip(axes.T, fits, strict=True):
        classes, rows = fit["num_classes"], fit["rows"]
        gammas = np.array([row["gamma"] for row in rows])
        slope, intercept = fit["printed_line"]
        ours, ours_0 = fit["our_line"]
        line.plot(
            gammas, [1 / row["temperature"] for row in rows], "o", color=CURVES[0], markersize=4, label="best 1/T"
        )
        line.plot(
            gammas, slope * gammas + intercept, "--", color=CURVES[1], label=f"paper: {slope:g} γ + {intercept:g}"
        )
        line.plot(
            gammas,
            ours * gammas + ours_0,
            "-",
            color=CURVES[0],
            linewidth=1,
            label=f"fit up to γ = {fit['our_line_up_to_gamma']:g}: {ours:.3f} γ + {ours_0:.3f}",
        )
        mine = [pair for pair in pairs if pair["num_classes"] == classes]
        if mine:
            points = np.array([(pair["gamma"], 1 / pair["printed_temperature"]) for pair in mine])
            line.plot(*points.T, "x", color=CURVES[1], markersize=7, markeredgewidth=2, label="printed pairs")
        line.set(title=NAMES[classes], xlabel="γ", ylabel="1/T")
        line.legend(loc="upper left")
        error.semilogy(gammas, [row["error"] for row in rows], "o-", color=CURVES[0], markersize=4, label="best T")
        error.semilogy(
            gammas, [row["error_of_printed_line"] for row in rows], "--", color=CURVES[1], label="paper's line"
        )
        claim = {2: 1e-3, 3: 0.08, 4: 0.08}[classes]
        error.axhline(claim, color=MUTED, linestyle=":", linewidth=1.2)
        error.set(xlabel="γ", ylabel="largest error in probability")
        error.set_title(f"Dotted: the paper's claim, {claim:g}", fontweight="normal")
        error.set_ylim(*((1e-7, 1) if classes == 2 else (5e-3, 0.3)))
        error.legend(loc="lower left" if classes == 2 else "lower right")
    return figure


def komisarenko_3() -> Figure:
    """Komisarenko & Kull, Fig. 3: bounds of Proposition 3 for gamma = 4 and for all gamma."""
    figure, (ratio, bounds) = new_figure(1, 2, size=(9.5, 3.8))
    s = np.linspace(0.02, 20, 800)
    theory = temperature_bounds(4.0)
    ratio.plot(s, s / np.asarray(binary_focal_calibration(s, 4.0)), color=INK, label="s / map(s), γ = 4")
    ratio.axhline(float(theory.low), color=CURVES[0], label="bounds in theory")
    ratio.axhline(float(theory.high), color=CURVES[0])
    for reach, colour in ((10.0, CURVES[1]), (20.0, CURVES[2])):
        low = float(temperature_bounds(4.0, logit_range=reach).tight_low)
        ratio.plot([0, reach], [low, low], "--", color=colour, label=f"tight for |s| < {reach:g}: {low:.4f}")
        ratio.plot([reach], [low], "o", color=colour, markersize=4)
    ratio.set(
        title="The temperature that the map acts with",
        xlabel="log-odds s",
        ylabel="T",
        ylim=(0.195, 0.258),
        xlim=(0, 20.5),
    )
    ratio.legend(loc="upper right", ncols=2)
    gammas = np.linspace(0, 10, 81)
    rows = np.array([temperature_bounds(gamma) for gamma in gammas.tolist()]).T * (gammas + 1)
    bounds.fill_between(gammas, rows[0], rows[1], color=CURVES[0], alpha=0.18, linewidth=0, label="theory, every s")
    bounds.fill_between(gammas, rows[2], rows[3], color=CURVES[1], alpha=0.45, linewidth=0, label="tight, |s| < 20")
    bounds.set(title="Bounds, as multiples of 1/(γ + 1)", xlabel="γ", ylabel="T (γ + 1)", ylim=(0.98, 1.27))
    bounds.legend(loc="upper left", ncols=2)
    return figure
