"""The figures of the papers that need no training, redrawn."""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.tri import Triangulation

from experiments import figures
from focalgeo import calibration, losses, theory

# neighbours differ in lightness as well
CURVES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
INK, MUTED = "#000000", "0.5"
P = np.linspace(0.001, 0.999, 999)
TRUE = np.array([0.55, 0.3, 0.15], np.float32)
PERCENTILES = (3, 12, 20)
PAIRS = ((0.5, 0.8), (2.0, 0.46))  # gamma and T of Komisarenko & Kull, Fig. 7
TRUE_CLASS = "probability p of the true class"
_CORNERS = np.array([[0.5, np.sqrt(0.75)], [0, 0], [1, 0]])


def _curves(axis: Any, x: Any, curves: Mapping[Any, Any], colours: Iterable[str] = CURVES, **style: Any) -> None:
    """A curve for each gamma, or word, named by it."""
    for (name, y), colour in zip(curves.items(), colours, strict=False):
        axis.plot(x, y, color=colour, label=name if isinstance(name, str) else f"γ = {name:g}", **style)


def _dress(axes: Any, *titles: str, **options: Any) -> None:
    """Titles, what all axes share, and legends."""
    for axis, title in zip(axes, titles, strict=True):
        axis.set(title=title, **options)
        if axis.get_legend_handles_labels()[1]:
            axis.legend(fontsize=8)


def kimura_1():
    """Kimura & Naganuma, Fig. 1: the gradient's size by p; beside it what becomes of the curvature in the logit."""
    figure, axes = figures.panels(1, 3, 10.5, 3.4)
    whole, near, ratio = axes[0]
    slopes = {gamma: -np.asarray(theory.focal_slope(P, gamma)) for gamma in (0.0, 0.5, 1.0, 2.0, 3.0, 5.0)}
    for axis in (whole, near):
        _curves(axis, P, slopes)
    _curves(ratio, P, {gamma: theory.logit_curvature_ratio(P, gamma) for gamma in slopes}, CURVES)
    whole.set(yscale="log", ylim=(1e-6, 1e3), ylabel="|dl/dp|")
    near.set(xlim=(0.5, 1), ylim=(0, 2.6))
    ratio.set(ylim=(-1.5, 4.6), ylabel="ρ, cross-entropy (γ = 0) is 1")
    _dress(
        axes[0], "Size of the gradient in p", "The same near p = 1", "Curvature in the logit: ρ(p)", xlabel=TRUE_CLASS
    )
    return figure


def mukhoti_4a_7():
    """Mukhoti et al., Figs. 4(a) and 7, with gamma* between them."""
    figure, axes = figures.panels(1, 3, 10.5, 3.4)
    ratio, star, optimum = axes[0]
    _curves(ratio, P, {gamma: theory.gradient_ratio(P, gamma) for gamma in (0.5, 1.0, 2.0, 3.0, 5.0, 7.0)})
    ratio.axhline(1, color=MUTED, linestyle=":")
    ratio.set(ylim=(0, 2), ylabel="G")
    p0 = np.linspace(0.1, 0.6, 501)
    star.plot(p0, theory.gamma_star(p0), color=INK)
    for at, gamma in ((0.1968, 5.0), (0.2526, 3.0), (0.2976, 2.0)):
        star.plot([at], [gamma], "o", color=CURVES[0], label=f"γ = {gamma:g} at p0 = {at:.3f}")
    star.set(ylim=(-0.3, 15), ylabel="γ*, 0 from p0 = 1/2 on")
    true = np.linspace(0.005, 0.995, 199)
    rows = np.stack([true, 1 - true], axis=1)
    _curves(optimum, true, {gamma: theory.optimal_prediction(rows, gamma)[:, 0] for gamma in (0.0, 1.0, 2.0, 3.0, 5.0)})
    optimum.plot([0.8], [0.6266], "o", color=INK, label="0.8 → 0.627")
    optimum.set(ylabel="q")
    titles = ("Fig. 4(a): gradient ratio G(p, γ)", "γ*(p0): G = 1 there", "Fig. 7: prediction of least risk")
    _dress(axes[0], *titles, xlabel=TRUE_CLASS)
    return figure


def komisarenko_1():
    """Komisarenko & Kull, Fig. 1: focal loss, its proper part and cross-entropy; the binary map."""
    figure, axes = figures.panels(1, 3, 10.5, 3.4)
    *of_losses, maps = axes[0]
    log_odds = np.linspace(-14, 14, 1401).astype(np.float32)
    q, labels = jax.nn.sigmoid(log_odds), np.ones(len(log_odds), np.int32)
    logits = jnp.stack([jnp.zeros_like(log_odds), jnp.asarray(log_odds)], axis=1)
    for axis, gamma in zip(of_losses, (0.5, 3.0), strict=True):
        focal, proper = (
            losses.focal_loss(logits, labels, gamma),
            jax.jit(theory.proper_focal_loss)(logits, labels, gamma),
        )
        _curves(axis, q, {"focal loss": focal, "its proper part": proper, "cross-entropy": -jnp.log(q)})
        axis.set(ylabel="nats", ylim=(0, 3))
    gammas = (-0.95, -0.5, 0.0, 0.5, 1.0, 3.0)
    _curves(maps, q, {gamma: jax.nn.sigmoid(calibration.binary_focal_calibration(log_odds, gamma)) for gamma in gammas})
    titles = ("Loss of the true class, γ = 0.5", "Loss of the true class, γ = 3", "Focal calibration map")
    _dress(axes[0], *titles, xlabel="predicted probability q")
    return figure


def komisarenko_2_6(matching_temperatures, printed_pairs):
    """Komisarenko & Kull, Figs. 2 and 6: best 1/T by gamma and its error, beside the printed lines and pairs."""
    figure, axes = figures.panels(2, 3, 10.5, 6.2)
    for (line, error), fit in zip(axes.T, matching_temperatures, strict=True):
        gammas, temperatures, errors, of_line = (
            np.array([row[name] for row in fit["rows"]]) for name in fit["rows"][0]
        )
        (slope, intercept), (ours, ours_0) = fit["printed_line"], fit["our_line"]
        lines = {
            f"paper: {slope:g} γ + {intercept:g}": slope * gammas + intercept,
            f"fit up to γ = {fit['our_line_up_to_gamma']:g}: {ours:.3f} γ + {ours_0:.3f}": ours * gammas + ours_0,
        }
        _curves(line, gammas, lines)
        line.plot(gammas, 1 / temperatures, "o", color=INK, markersize=4, label="best 1/T")
        for row in printed_pairs:
            if row["num_classes"] == fit["num_classes"]:
                line.plot(row["gamma"], 1 / row["printed_temperature"], "x", color=CURVES[0], markersize=8)
        claim, ends = (1e-3, (1e-7, 1)) if fit["num_classes"] == 2 else (0.08, (5e-3, 0.3))
        shown = {"paper's line": of_line, f"paper's claim, {claim:g}": np.full(len(gammas), claim), "best T": errors}
        _curves(error, gammas, shown)
        line.set(ylabel="1/T (crosses: printed pairs)")
        error.set(yscale="log", ylim=ends, ylabel="largest error in probability")
    _dress(axes[0], "Two classes (Fig. 2)", "Three classes (Fig. 6)", "Four classes", xlabel="γ")
    _dress(axes[1], "", "", "", xlabel="γ")
    return figure


def komisarenko_3():
    """Komisarenko & Kull, Fig. 3: bounds of Proposition 3 for gamma = 4 and for all gamma."""
    figure, axes = figures.panels(1, 2, 9.5, 3.8)
    ratio, bounds = axes[0]
    s = np.linspace(0.02, 20, 800)
    ratio.plot(s, s / np.asarray(calibration.binary_focal_calibration(s, 4.0)), color=INK, label="s / map(s), γ = 4")
    for reach, colour in ((10.0, CURVES[1]), (20.0, CURVES[2])):
        found = theory.temperature_bounds(4.0, logit_range=reach)
        low = float(found.tight_low)
        ratio.plot([0, reach], [low, low], "--", color=colour, label=f"tight for |s| < {reach:g}: {low:.4f}")
    for bound in (found.low, found.high):
        ratio.axhline(float(bound), color=CURVES[0])
    gammas = np.linspace(0, 10, 81)
    rows = np.array([theory.temperature_bounds(gamma) for gamma in gammas.tolist()]).T * (gammas + 1)
    for (low, high), label, colour in zip(
        (rows[:2], rows[2:]), ("theory, every s", "tight, |s| < 20"), CURVES, strict=False
    ):
        bounds.fill_between(gammas, low, high, color=colour, alpha=0.4, linewidth=0, label=label)
    ratio.set(xlabel="log-odds s", ylabel="T", ylim=(0.195, 0.258))
    bounds.set(xlabel="γ", ylabel="T (γ + 1)")
    _dress(axes[0], "The temperature that the map acts with", "Bounds, as multiples of 1/(γ + 1)")
    return figure


def komisarenko_4():
    """Komisarenko & Kull, Fig. 4: isolines of the conditional risk at its 3rd, 12th and 20th percentile."""
    figure, axes = figures.panels(1, 4, 11, 3.3)
    q = _lattice(100)
    risks = {
        "Brier score": np.sum(q**2, axis=1) - 2 * q @ TRUE + 1,
        "Cross-entropy": np.asarray(theory.conditional_risk(TRUE[None], q, 0.0)),
        "Proper part, γ = 1": proper_risk(q, 1.0),
        "Proper part, γ = 3": proper_risk(q, 3.0),
    }
    for axis, (name, risk) in zip(axes[0], risks.items(), strict=True):
        _frame(axis, f"{name}\nleast risk {risk.min():.3f}")
        levels = np.percentile(risk, PERCENTILES)
        axis.tricontour(Triangulation(*_place(q)), risk, levels=levels, colors=CURVES[:3], linewidths=1.6)
        axis.plot(*_place(TRUE), "o", color=INK, markersize=5)
    lines = [Line2D([], [], color=colour) for colour in CURVES[:3]]
    names = [f"percentile {percent} of the risk" for percent in PERCENTILES]
    figure.legend(lines, names, loc="outside lower center", ncols=3)
    return figure


def komisarenko_5():
    """Komisarenko & Kull, Fig. 5: where the focal map and temperature scalings, printed and best, move predictions."""
    figure, axes = figures.panels(2, 3, 9.6, 6.2)
    start = _lattice(9)
    log_q, tails = np.log(start).astype(np.float32), _place(start)
    for row, (gamma, printed, best) in zip(axes, ((1.0, 0.81, 0.658), (3.0, 0.46, 0.356)), strict=True):
        ends = {
            f"Focal map, γ = {gamma:g}": calibration.focal_calibration(log_q, gamma),
            f"Temperature {printed:g} (printed)": calibration.temperature_scaling(log_q, printed),
            f"Temperature {best:g} (best fit)": calibration.temperature_scaling(log_q, best),
        }
        for axis, (name, end), colour in zip(row, ends.items(), (INK, CURVES[1], CURVES[0]), strict=True):
            _frame(axis, name)
            moves = _place(np.exp(np.asarray(end, float))) - tails
            axis.quiver(*tails, *moves, angles="xy", scale_units="xy", scale=1, width=0.007, color=colour)
    return figure


def komisarenko_7():
    """Komisarenko & Kull, Fig. 7: focal map minus temperature scaling, top class's probability."""
    figure, axes = figures.panels(1, 2, 9, 3.9)
    q = logit_points()
    for axis, (gamma, temperature) in zip(axes[0], PAIRS, strict=True):
        difference = map_difference(q, gamma, temperature)
        largest, top = np.abs(difference).max(), np.take_along_axis(difference, q.argmax(1)[:, None], 1)[:, 0]
        _frame(axis, f"γ = {gamma:g}, T = {temperature:g}: largest {largest:.4f}")
        levels = np.linspace(-largest, largest, 21)
        shown = axis.tricontourf(Triangulation(*_place(q)), top, levels=levels, cmap="RdBu_r")
        bar = figure.colorbar(shown, ax=axis, shrink=0.8, format="%.3f", ticks=levels[::5])
        bar.set_label("focal map − temperature, top class")
    return figure


def proper_risk(q: np.ndarray, gamma: float) -> np.ndarray:
    """The expected proper part of the focal loss of predictions q [points, 3] where TRUE is true."""
    logits = jnp.log(jnp.asarray(q, jnp.float32))
    by_label = [
        jax.jit(theory.proper_focal_loss)(logits, np.full(len(q), label, np.int32), gamma) for label in range(3)
    ]
    return np.stack(by_label, axis=1) @ TRUE


def map_difference(q: np.ndarray, gamma: float, temperature: float) -> np.ndarray:
    """The focal map of q [points, 3] less its temperature scaling, in probability."""
    log_q = np.log(q).astype(np.float32)
    ends = calibration.focal_calibration(log_q, gamma), calibration.temperature_scaling(log_q, temperature)
    return np.subtract(*(np.exp(np.asarray(end, float)) for end in ends))


def _lattice(steps: int) -> np.ndarray:
    """Points inside the simplex, [points, 3]: (i + 1/3) / (steps + 1) in each coordinate."""
    i, j = (at.ravel() for at in np.meshgrid(np.arange(steps + 1), np.arange(steps + 1)))
    points = np.stack([steps - i - j, i, j], axis=1)
    return (points[i + j <= steps] + 1 / 3) / (steps + 1)


def logit_points(steps: int = 100) -> np.ndarray:
    """Softmax of logits of spread 10, [points, 3], finer towards the edges than a lattice of probabilities is."""
    s = np.linspace(-10, 10, 2 * steps + 1)
    z = np.stack([np.zeros((len(s), len(s))), *np.meshgrid(s, s)], axis=-1).reshape(-1, 3)
    weights = np.exp(z[np.ptp(z, axis=1) <= 10 + 1e-9])
    return weights / weights.sum(axis=1, keepdims=True)


def _place(q: np.ndarray) -> np.ndarray:
    """Drawing coordinates, [2, ...]: class 1 at the top, 2 left, 3 right."""
    return np.moveaxis(q @ _CORNERS, -1, 0)


def _frame(axis: Any, title: str) -> None:
    axis.plot(*_CORNERS[[0, 1, 2, 0]].T, color=MUTED, linewidth=1)
    for name, (x, y) in zip("123", _CORNERS, strict=True):
        axis.text(x, y + (0.03 if name == "1" else -0.09), f"class {name}", ha="center", color=MUTED, fontsize=8.5)
    axis.set(title=title, xlim=(-0.1, 1.1), ylim=(-0.22, 0.98), aspect="equal")
    axis.axis("off")
