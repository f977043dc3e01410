"""The surface of a calibration search as a heat map."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from focalgeo.report.formats import plain, significant
from focalgeo.report.selection import Column, Row, fit
from focalgeo.report.style import COLOURS, LIGHT, MAP_COLOURS, styled


def surface_figure(rows: Sequence[Row], search: Mapping[str, np.ndarray], criterion: str) -> Figure:
    """Draw the criterion ("ece" or "nll") on validation over (gamma, T) as a heat map that marks both fitted optima.

    Gammas are categories, evenly spaced; T and colour are logarithmic. The axis starts at a quarter of the smallest
    best T, to leave room for the valley.
    """
    gammas, temperatures = np.asarray(search["gammas"], float), np.asarray(search["temperatures"], float)
    surface = np.asarray(search[criterion], float)
    best = temperatures[np.argmin(surface, axis=1)]
    shown = temperatures >= best.min() / 4
    with styled():
        figure = Figure(figsize=(4.1, 4.3))
        axes = figure.subplots()
        mesh = _draw_surface(axes, gammas, temperatures[shown], surface[:, shown])
        dots = {"markersize": 3.2, "markeredgecolor": COLOURS["ink"], "markeredgewidth": 0.5, "color": LIGHT}
        axes.plot(best, np.arange(len(gammas)), "o", label="best T of each γ", **dots)
        _mark_fits(axes, rows, gammas, criterion)
        bar = figure.colorbar(mesh, ax=axes, pad=0.02, aspect=28)
        _format_colour_bar(bar, criterion)
        _draw_legend(figure, axes)
    return figure


def _draw_legend(figure: Figure, axes: Any) -> None:
    handles = axes.get_legend_handles_labels()
    legend = figure.legend(*handles, loc="outside lower center", ncols=2, fontsize=8, columnspacing=1.4)
    for mark in legend.legend_handles[1:]:
        mark.set_markeredgecolor(mark.get_markerfacecolor())  # a light edge on light paper only shrinks the mark


def _edges(values: np.ndarray) -> np.ndarray:
    middle = np.sqrt(values[1:] * values[:-1])
    return np.concatenate([values[:1], middle, values[-1:]])


def _draw_surface(axes: Any, gammas: np.ndarray, temperatures: np.ndarray, surface: np.ndarray) -> Any:
    finite = surface[np.isfinite(surface) & (surface > 0)]
    norm = LogNorm(finite.min(), finite.max())
    rows = np.arange(len(gammas) + 1) - 0.5
    shown = np.clip(surface, norm.vmin, norm.vmax)  # an ECE of 0 has no logarithm, and an NLL may be infinite
    mesh = axes.pcolormesh(_edges(temperatures), rows, shown, norm=norm, cmap="viridis", rasterized=True)
    axes.grid(visible=False)
    axes.set_xscale("log")
    axes.set(
        xlabel="temperature T",
        ylabel="calibration γ (0: temperature scaling)",
        xlim=(temperatures[0], temperatures[-1]),
    )
    every = -(-len(gammas) // 16)
    axes.set_yticks(np.arange(len(gammas))[::every], [plain(gamma) for gamma in gammas[::every]])
    ticks = [t for t in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10) if temperatures[0] <= t <= temperatures[-1]]
    axes.set_xticks(ticks, [plain(t) for t in ticks])
    axes.minorticks_off()
    return mesh


def _mark_fits(axes: Any, rows: Sequence[Row], gammas: np.ndarray, criterion: str) -> None:
    marks = (("temperature_scaling", "o", 14), ("focal_temperature_scaling", "*", 12))  # the star fits into the circle
    for name, marker, size in marks:
        temperature = fit(rows, Column(name, criterion), "temperature")
        gamma = fit(rows, Column(name, criterion), "calibration_gamma") or 0.0
        if temperature is not None:
            title = {"temperature_scaling": "temperature", "focal_temperature_scaling": "focal temperature"}[name]
            style = {"markersize": size, "markeredgecolor": LIGHT, "markeredgewidth": 1.3, "linestyle": "none"}
            level = int(np.argmin(np.abs(gammas - gamma)))
            axes.plot(temperature, level, marker, color=COLOURS[MAP_COLOURS[name]], label=f"{title} scaling", **style)


def _format_colour_bar(bar: Any, criterion: str) -> None:
    bar.set_label("ECE on validation" if criterion == "ece" else "NLL on validation (nats)")
    low, high = bar.norm.vmin, bar.norm.vmax
    ticks = np.geomspace(low, high, 5)
    show = (lambda value: f"{100 * value:.2g}%") if criterion == "ece" else (lambda value: significant(value, 2))
    bar.set_ticks(ticks, labels=[show(tick) for tick in ticks])
    bar.minorticks_off()
    bar.outline.set_visible(False)
