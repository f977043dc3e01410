"""The figures of the papers that need no training, redrawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from matplotlib.tri import Triangulation
from scipy import special

from experiments import figures
from experiments.theory.errata import PRINTED_PAIRS
from focalgeo import calibration, losses, theory

CURVES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # neighbours differ in lightness as well
TRUE_CLASS = "probability p of the true class"
P = np.linspace(0.001, 0.999, 999)
TRUE = np.array([0.55, 0.3, 0.15], np.float32)
PAIRS = ((0.5, 0.8), (2.0, 0.46))  # gamma and T of Komisarenko & Kull, Fig. 7
_CORNERS = np.array([[0.5, np.sqrt(0.75)], [0, 0], [1, 0]])  # of the drawn simplex: class 1 at the top, 2 left, 3 right


def _curves(axis, x, curves, title, ylabel, xlabel=TRUE_CLASS, **settings):
    """A curve for each gamma, or word, named by it."""
    for (name, y), colour in zip(curves.items(), CURVES, strict=False):
        axis.plot(x, y, color=colour, label=name if isinstance(name, str) else f"γ = {name:g}")
    axis.set(title=title, ylabel=ylabel, xlabel=xlabel, **settings)


def _with_legends(figure):
    for axis in figure.axes:
        if axis.get_legend_handles_labels()[1]:
            axis.legend(fontsize=8)
    return figure


def kimura_1():
    """Kimura & Naganuma, Fig. 1: the gradient's size by p; beside it what becomes of the curvature in the logit."""
    figure, [[whole, ratio]] = figures.panels(1, 2, 7.4, 3.4)
    slopes = {gamma: -np.asarray(theory.focal_slope(P, gamma)) for gamma in (0.0, 0.5, 1.0, 2.0, 3.0, 5.0)}
    ratios = {gamma: theory.logit_curvature_ratio(P, gamma) for gamma in slopes}
    _curves(whole, P, slopes, "Size of the gradient in p", "|dl/dp|", yscale="log", ylim=(1e-6, 1e3))
    words = "ρ, cross-entropy (γ = 0) is 1"
    _curves(ratio, P, ratios, "Curvature in the logit: ρ(p)", words, ylim=(-1.5, 4.6))
    return _with_legends(figure)


def mukhoti_4a_7():
    """Mukhoti et al., Figs. 4(a) and 7, with gamma* between them."""
    figure, [[ratio, star, optimum]] = figures.panels(1, 3, 7.5, 3.4)
    ratios = {gamma: theory.gradient_ratio(P, gamma) for gamma in (0.5, 1.0, 2.0, 3.0, 5.0, 7.0)}
    _curves(ratio, P, ratios, "Fig. 4(a): gradient ratio G(p, γ)", "G", ylim=(0, 2))
    ratio.axhline(1, color="0.5", linestyle=":")
    p0 = np.linspace(0.1, 0.6, 501)
    _curves(star, p0, {"γ*, 0 from p0 = 1/2 on": theory.gamma_star(p0)}, "γ*(p0): G = 1 there", "", ylim=(-0.3, 15))
    for at, gamma in ((0.1968, 5.0), (0.2526, 3.0), (0.2976, 2.0)):
        star.plot(at, gamma, "o", color="black", label=f"γ = {gamma:g} at p0 = {at:.3f}")
    true = np.linspace(0.005, 0.995, 199)
    rows = np.stack([true, 1 - true], axis=1)
    best = {gamma: theory.optimal_prediction(rows, gamma)[:, 0] for gamma in (0.0, 1.0, 2.0, 3.0, 5.0)}
    _curves(optimum, true, best, "Fig. 7: prediction of least risk", "q")
    optimum.plot(0.8, 0.6266, "o", color="black", label="0.8 → 0.627")
    return _with_legends(figure)


def komisarenko_1():
    """Komisarenko & Kull, Fig. 1: focal loss, its proper part and cross-entropy; the binary map."""
    figure, [[*of_losses, maps]] = figures.panels(1, 3, 7.5, 3.4)
    log_odds = np.linspace(-14, 14, 1401).astype(np.float32)
    q, labels, words = jax.nn.sigmoid(log_odds), np.ones(len(log_odds), np.int32), "predicted probability q"
    logits = jnp.stack([0 * log_odds, log_odds], axis=1)
    for axis, gamma in zip(of_losses, (0.5, 3.0), strict=True):
        proper = jax.jit(theory.proper_focal_loss)(logits, labels, gamma)
        curves = {"focal loss": losses.focal_loss(logits, labels, gamma), "its proper part": proper}
        curves["cross-entropy"] = -jnp.log(q)
        _curves(axis, q, curves, f"Loss of the true class, γ = {gamma:g}", "nats", words, ylim=(0, 3))
    gammas = (-0.95, -0.5, 0.0, 0.5, 1.0, 3.0)
    mapped = {gamma: jax.nn.sigmoid(calibration.binary_focal_calibration(log_odds, gamma)) for gamma in gammas}
    _curves(maps, q, mapped, "Focal calibration map", "", words)
    return _with_legends(figure)


def komisarenko_2_6(matching_temperatures):
    """Komisarenko & Kull, Figs. 2 and 6: best 1/T by gamma and its error, beside the printed lines and pairs."""
    figure, axes = figures.panels(2, 3, 10.5, 6.2)
    titles = ("Two classes (Fig. 2)", "Three classes (Fig. 6)", "Four classes")
    for (line, error), fit, title in zip(axes.T, matching_temperatures, titles, strict=True):
        rows, classes = pd.DataFrame(fit["rows"]), fit["num_classes"]
        (slope, intercept), (ours, ours_0) = fit["printed_line"], fit["our_line"]
        lines = {
            f"paper: {slope:g} γ + {intercept:g}": slope * rows.gamma + intercept,
            f"fit up to γ = {fit['our_line_up_to_gamma']:g}: {ours:.3f} γ + {ours_0:.3f}": ours * rows.gamma + ours_0,
        }
        _curves(line, rows.gamma, lines, title, "1/T (crosses: printed pairs)", "γ")
        line.plot(rows.gamma, 1 / rows.temperature, "o", color="black", markersize=4, label="best 1/T")
        for _, of, gamma, printed, *_ in PRINTED_PAIRS:
            if of == classes:
                line.plot(gamma, 1 / printed, "x", color=CURVES[0], markersize=8)
        claim, ends = (1e-3, (1e-7, 1)) if classes == 2 else (0.08, (5e-3, 0.3))
        errors = {"paper's line": rows.error_of_printed_line, f"paper's claim, {claim:g}": 0 * rows.gamma + claim}
        errors["best T"] = rows.error
        _curves(error, rows.gamma, errors, "", "largest error in probability", "γ", yscale="log", ylim=ends)
    return _with_legends(figure)


def komisarenko_2_right(matching_temperatures):
    """Komisarenko & Kull, Fig. 2, right: the map of two classes in log-odds, with its nearest temperature scalings."""
    figure, axes = figures.panels(1, 2, 7.5, 3.6)
    s, rows = np.linspace(-10, 10, 401), pd.DataFrame(matching_temperatures[0]["rows"]).set_index("gamma")
    for axis, gamma, printed in zip(axes[0], (0.5, 3.0), (0.76, 0.36), strict=True):
        best = rows.temperature[gamma]
        curves = {
            f"focal map, γ = {gamma:g}": np.asarray(calibration.binary_focal_calibration(s.astype(np.float32), gamma)),
            f"T = {best:.3f}, nearest": s / best,
            f"T = {printed:g}, printed": s / printed,
        }
        _curves(axis, s, curves, f"γ = {gamma:g}, two classes", "log-odds after", "log-odds before")
    return _with_legends(figure)


def komisarenko_3():
    """Komisarenko & Kull, Fig. 3: bounds of Proposition 3 for gamma = 4, and the distance of the bounds by gamma."""
    figure, [[ratio, width]] = figures.panels(1, 2, 7.5, 3.6)
    s = np.linspace(0.02, 20, 800)
    ratios = {"s / map(s), γ = 4": s / np.asarray(calibration.binary_focal_calibration(s, 4.0))}
    _curves(ratio, s, ratios, "The temperature that the map acts with", "T", "log-odds s", ylim=(0.195, 0.258))
    for reach, colour in ((10.0, CURVES[1]), (20.0, CURVES[2])):
        of_map = theory.temperature_bounds(4.0, logit_range=reach)
        label = f"tight for |s| < {reach:g}: {of_map.tight_low:.4f}"
        ratio.plot([0, reach], [of_map.tight_low] * 2, "--", color=colour, label=label)
    for bound in (of_map.low, of_map.high):
        ratio.axhline(bound, color="0.5")
    gammas = np.linspace(0, 10, 101)
    curves = dict(zip(("theory", "tight for |s| < 20"), widths(gammas), strict=True))
    _curves(width, gammas, curves, "Distance of the bounds", "T_high − T_low", "γ")
    return _with_legends(figure)


def widths(gammas) -> np.ndarray:
    """T_high - T_low by gamma, [2, gammas]: the theory's and the tightest for log-odds within 20."""
    bounds = np.array([theory.temperature_bounds(gamma) for gamma in gammas], float)
    return (bounds[:, 1::2] - bounds[:, ::2]).T


def komisarenko_4():
    """Komisarenko & Kull, Fig. 4: isolines of the conditional risk at its 3rd, 12th and 20th percentile."""
    figure, axes = figures.panels(1, 4, 7.5, 3.3)
    q, percentiles = _lattice(100), (3, 12, 20)
    risks = {
        "Brier score": np.sum(q**2, axis=1) - 2 * q @ TRUE + 1,
        "Cross-entropy": np.asarray(theory.conditional_risk(TRUE, q, 0.0)),
        "Proper part, γ = 1": proper_risk(q, 1.0),
        "Proper part, γ = 3": proper_risk(q, 3.0),
    }
    for axis, (name, risk) in zip(axes[0], risks.items(), strict=True):
        _simplex(axis, f"{name}\nleast risk {risk.min():.3f}")
        levels = np.percentile(risk, percentiles)
        axis.tricontour(Triangulation(*_place(q)), risk, levels=levels, colors=CURVES[:3], linewidths=1.6)
        axis.plot(*_place(TRUE), "o", color="black", markersize=5)
    for percent, colour in zip(percentiles, CURVES, strict=False):
        axis.plot([], [], color=colour, label=f"percentile {percent} of the risk")
    figures.legend(figure)
    return figure


def komisarenko_5():
    """Komisarenko & Kull, Fig. 5: where the focal map and temperature scalings, printed and best, move predictions."""
    figure, axes = figures.panels(2, 3, 7.5, 6.2)
    start = _lattice(9)
    log_q, tails = np.log(start).astype(np.float32), _place(start)
    for row, gamma, temperatures in zip(axes, (1.0, 3.0), ((0.81, 0.658), (0.46, 0.356)), strict=True):
        ends = {f"Focal map, γ = {gamma:g}": calibration.focal_calibration(log_q, gamma)}
        for words, at in zip(("printed", "best fit"), temperatures, strict=True):
            ends[f"Temperature {at:g} ({words})"] = calibration.temperature_scaling(log_q, at)
        for axis, (name, end), colour in zip(row, ends.items(), ("black", CURVES[1], CURVES[0]), strict=True):
            _simplex(axis, name)
            moves = _place(np.exp(end)) - tails
            axis.quiver(*tails, *moves, angles="xy", scale_units="xy", scale=1, width=0.007, color=colour)
    return figure


def komisarenko_7():
    """Komisarenko & Kull, Fig. 7: focal map minus temperature scaling, top class's probability."""
    figure, axes = figures.panels(1, 2, 7.5, 3.9)
    q = logit_points()
    for axis, (gamma, temperature) in zip(axes[0], PAIRS, strict=True):
        difference = map_difference(q, gamma, temperature)
        largest, top = np.abs(difference).max(), np.take_along_axis(difference, q.argmax(1)[:, None], 1)[:, 0]
        _simplex(axis, f"γ = {gamma:g}, T = {temperature:g}: largest {largest:.4f}")
        levels = np.linspace(-largest, largest, 21)
        surface = axis.tricontourf(Triangulation(*_place(q)), top, levels=levels, cmap="RdBu_r")
        bar = figure.colorbar(surface, ax=axis, shrink=0.8, format="%.3f", ticks=levels[::5])
        bar.set_label("focal map − temperature, top class")
    return figure


def proper_risk(q: np.ndarray, gamma: float) -> np.ndarray:
    """The expected proper part of the focal loss of predictions q [points, 3] where TRUE is true."""
    logits = np.repeat(np.log(q, dtype=np.float32)[:, None], 3, axis=1)
    labels = np.broadcast_to(np.arange(3, dtype=np.int32), q.shape)
    return np.asarray(jax.jit(theory.proper_focal_loss)(logits, labels, gamma)) @ TRUE


def map_difference(q: np.ndarray, gamma: float, temperature: float) -> np.ndarray:
    """The focal map of q [points, 3] minus its temperature scaling, in probability."""
    log_q = np.log(q).astype(np.float32)
    ends = calibration.focal_calibration(log_q, gamma), calibration.temperature_scaling(log_q, temperature)
    return np.subtract(*np.exp(np.array(ends, float)))


def _lattice(steps):
    """Points inside the simplex, [points, 3]: (i + 1/3) / (steps + 1) in each coordinate."""
    i, j = np.indices((steps + 1, steps + 1)).reshape(2, -1)[::-1]
    points = np.stack([steps - i - j, i, j], axis=1)
    return (points[i + j <= steps] + 1 / 3) / (steps + 1)


def logit_points(steps: int = 100) -> np.ndarray:
    """Softmax of logits of spread 10, [points, 3], finer towards the edges than a lattice of probabilities is."""
    s = np.linspace(-10, 10, 2 * steps + 1)
    z = np.stack(np.meshgrid(0, s, s), axis=-1).reshape(-1, 3)
    return special.softmax(z[np.ptp(z, axis=1) <= 10 + 1e-9], axis=1)


def _place(q):
    """Drawing coordinates, [2, ...]."""
    return np.moveaxis(q @ _CORNERS, -1, 0)


def _simplex(axis, title):
    axis.plot(*_CORNERS[[0, 1, 2, 0]].T, color="0.5", linewidth=1)
    for name, (x, y) in zip("123", _CORNERS, strict=True):
        axis.text(x, y + (0.03 if name == "1" else -0.09), f"class {name}", ha="center", color="0.5", fontsize=8.5)
    axis.set(title=title, xlim=(-0.1, 1.1), ylim=(-0.22, 0.98), aspect="equal")
    axis.axis("off")
