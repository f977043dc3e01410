"""Figures on the simplex of three classes: isolines of risk, arrows and differences of maps."""

from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.tri
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.theory.palette import CURVES, INK, MUTED, new_figure
from focalgeo.calibration import focal_calibration, temperature_scaling
from focalgeo.theory import conditional_risk, proper_focal_loss

TRUE = np.array([0.55, 0.3, 0.15], np.float32)
PERCENTILES = (3, 12, 20)
_CORNERS = np.array([[0.5, np.sqrt(0.75)], [0, 0], [1, 0]])


def komisarenko_4() -> Figure:
    """Komisarenko & Kull, Fig. 4: isolines of the conditional risk at its 3rd, 12th and 20th percentile."""
    q = _lattice(100)
    risks = {
        "Brier score": np.sum(q**2, axis=1) - 2 * q @ TRUE + 1,
        "Cross-entropy": np.asarray(conditional_risk(TRUE[None], q, 0.0)),
        "Proper part, γ = 1": _proper_risk(q, 1.0),
        "Proper part, γ = 3": _proper_risk(q, 3.0),
    }
    figure, axes = new_figure(1, 4, size=(11, 3.3))
    for axis, (name, risk) in zip(axes, risks.items(), strict=True):
        _frame(axis, name)
        levels = np.percentile(risk, PERCENTILES)
        axis.tricontour(_triangles(q), risk, levels=levels, colors=CURVES[:3], linewidths=1.6)
        axis.plot(*_place(TRUE), "o", color=INK, markersize=5)
        axis.text(0.5, -0.2, f"least risk {risk.min():.3f}", ha="center", color=MUTED, fontsize=8.5)
    lines = [Line2D([], [], color=colour) for colour in CURVES[:3]]
    names = [f"percentile {percent} of the risk" for percent in PERCENTILES]
    figure.legend(lines, names, loc="outside lower center", ncols=3)
    return figure


def komisarenko_5() -> Figure:
    """Komisarenko & Kull, Fig. 5: where the focal map and temperature scalings, printed and best, move predictions."""
    figure, axes = new_figure(2, 3, size=(9.6, 6.2))
    for row, (gamma, printed, best) in zip(axes, ((1.0, 0.81, 0.658), (3.0, 0.46, 0.356)), strict=True):
        start = _lattice(9)
        log_q = np.log(start).astype(np.float32)
        ends = {
            f"Focal map, γ = {gamma:g}": focal_calibration(log_q, gamma),
            f"Temperature {printed:g} (printed)": temperature_scaling(log_q, printed),
            f"Temperature {best:g} (best fit)": temperature_scaling(log_q, best),
        }
        for axis, (name, end), colour in zip(row, ends.items(), (INK, CURVES[1], CURVES[0]), strict=True):
            _frame(axis, name)
            tails, heads = _place(start), _place(np.exp(np.asarray(end, float)))
            axis.quiver(*tails, *(heads - tails), angles="xy", scale_units="xy", scale=1, width=0.007, color=colour)
    return figure


def komisarenko_7(pairs: tuple[tuple[float, float], ...] = ((0.5, 0.8), (2.0, 0.46))) -> Figure:
    """Komisarenko & Kull, Fig. 7: focal map minus temperature scaling, top class's probability."""
    figure, axes = new_figure(1, len(pairs), size=(9, 3.9))
    q = _logit_points()
    for axis, (gamma, temperature) in zip(axes, pairs, strict=True):
        difference = _difference(q, gamma, temperature)
        largest = np.abs(difference).max()
        top = difference[np.arange(len(q)), q.argmax(axis=1)]
        _frame(axis, f"γ = {gamma:g}, T = {temperature:g}: largest {largest:.4f}")
        levels = np.linspace(-largest, largest, 21)
        shown = axis.tricontourf(_triangles(q), top, levels=levels, cmap="RdBu_r")
        bar = figure.colorbar(shown, ax=axis, shrink=0.8, format="%.3f", ticks=levels[::5])
        bar.set_label("focal map − temperature, top class")
    return figure


def simplex_numbers() -> dict[str, Any]:
    """The numbers behind the isolines and the heat map."""
    uniform = np.full((1, 3), 1 / 3, np.float32)
    q = _logit_points()
    return {
        "least_risk": {"cross_entropy": float(conditional_risk(TRUE, TRUE, 0.0))}
        | {f"proper_gamma_{gamma:g}": float(_proper_risk(TRUE[None], gamma)[0]) for gamma in (1.0, 3.0)},
        "risk_of_uniform": {f"proper_gamma_{gamma:g}": float(_proper_risk(uniform, gamma)[0]) for gamma in (1.0, 3.0)},
        "largest_difference": {
            f"gamma_{gamma:g}_T_{temperature:g}": float(np.abs(_difference(q, gamma, temperature)).max())
            for gamma, temperature in ((0.5, 0.8), (2.0, 0.46))
        },
    }


def _proper_risk(q: np.ndarray, gamma: float) -> np.ndarray:
    logits = jnp.log(jnp.asarray(q, jnp.float32))
    losses = [jax.jit(proper_focal_loss)(logits, np.full(len(q), label, np.int32), gamma) for label in range(3)]
    return np.stack(losses, axis=1) @ TRUE


def _difference(q: np.ndarray, gamma: float, temperature: float) -> np.ndarray:
    log_q = np.log(q).astype(np.float32)
    return np.exp(np.asarray(focal_calibration(log_q, gamma), float)) - np.exp(
        np.asarray(temperature_scaling(log_q, temperature), float)
    )


def _lattice(steps: int) -> np.ndarray:
    """Points inside the simplex, [points, 3]: (i + 1/3) / (steps + 1) in each coordinate."""
    i, j = np.meshgrid(np.arange(steps + 1), np.arange(steps + 1))
    keep = i + j <= steps
    i, j = i[keep], j[keep]
    return (np.stack([steps - i - j, i, j], axis=1) + 1 / 3) / (steps + 1)


def _logit_points(steps: int = 100) -> np.ndarray:
    """Softmax of logits of spread 10, finer towards the edges than a lattice of probabilities is."""
    s = np.linspace(-10, 10, 2 * steps + 1)
    z = np.stack([np.zeros((len(s), len(s))), *np.meshgrid(s, s)], axis=-1).reshape(-1, 3)
    z = z[np.ptp(z, axis=1) <= 10 + 1e-9]
    weights = np.exp(z)
    return weights / weights.sum(axis=1, keepdims=True)


def _place(q: np.ndarray) -> np.ndarray:
    """Drawing coordinates, [2, ...]: class 1 at the top, 2 left, 3 right."""
    return np.moveaxis(q @ _CORNERS, -1, 0)


def _triangles(q: np.ndarray) -> matplotlib.tri.Triangulation:
    return matplotlib.tri.Triangulation(*_place(q))


def _frame(axis: Any, title: str) -> None:
    axis.plot(*_CORNERS[[0, 1, 2, 0]].T, color=MUTED, linewidth=1)
    for name, (x, y), shift in zip("123", _CORNERS, ((0, 0.03), (-0.03, -0.09), (0.03, -0.09)), strict=True):
        axis.text(x + shift[0], y + shift[1], f"class {name}", ha="center", color=MUTED, fontsize=8.5)
    axis.set_title(title, loc="center")
    axis.set(xlim=(-0.1, 1.1), ylim=(-0.22, 0.98), aspect="equal")
    axis.axis("off")
