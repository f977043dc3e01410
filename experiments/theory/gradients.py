"""Figures on the loss of one probability: gradients, their ratio to cross-entropy's, the optimum, the proper part."""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from experiments.theory.palette import CURVES, INK, MUTED, new_figure
from focalgeo.calibration import binary_focal_calibration
from focalgeo.losses import focal_loss
from focalgeo.theory import (
    focal_slope,
    gamma_star,
    gradient_ratio,
    logit_curvature_ratio,
    optimal_prediction,
    proper_focal_loss,
)

P = np.linspace(0.001, 0.999, 999)


def kimura_1() -> Figure:
    """Kimura & Naganuma, Fig. 1: the gradient's size by p; beside it what becomes of the curvature in the logit."""
    figure, (whole, near, ratio) = new_figure(1, 3, size=(10.5, 3.4))
    for gamma, colour in zip((0.0, 0.5, 1.0, 2.0, 3.0, 5.0), CURVES, strict=True):
        slope = -np.asarray(focal_slope(P, gamma))
        whole.semilogy(P, slope, color=colour, label=f"γ = {gamma:g}")
        near.plot(P, slope, color=colour)
        if gamma > 0:
            ratio.plot(P, logit_curvature_ratio(P, gamma), color=colour)
    whole.set(
        title="Size of the gradient in p", xlabel="probability p of the true class", ylabel="|dl/dp|", ylim=(1e-6, 1e3)
    )
    whole.legend(loc="lower left", ncols=2)
    near.set(title="The same near p = 1", xlabel="probability p of the true class", ylabel="|dl/dp|", xlim=(0.5, 1))
    near.set_ylim(0, 2.6)
    ratio.axhline(1, color=MUTED, linestyle=":", linewidth=1.2)
    ratio.axhline(0, color=MUTED, linewidth=0.8)
    ratio.text(1, 1.14, "cross-entropy", color=MUTED, ha="right", fontsize=8.5)
    ratio.set(
        title="Curvature in the logit: ρ(p)",
        xlabel="probability p of the true class",
        ylabel="ρ, cross-entropy = 1",
        ylim=(-1.5, 4.6),
    )
    return figure


def mukhoti_4a_7() -> Figure:
    """Mukhoti et al., Figs. 4(a) and 7, with gamma* between them."""
    figure, (ratio, star, optimum) = new_figure(1, 3, size=(10.5, 3.4))
    for gamma, colour in zip((0.5, 1.0, 2.0, 3.0, 5.0, 7.0), CURVES, strict=True):
        ratio.plot(P, gradient_ratio(P, gamma), color=colour, label=f"γ = {gamma:g}")
    ratio.axhline(1, color=MUTED, linestyle=":", linewidth=1.2)
    ratio.set(
        title="Fig. 4(a): gradient ratio G(p, γ)", xlabel="probability p of the true class", ylabel="G", ylim=(0, 2)
    )
    ratio.legend(loc="upper right", ncols=2)
    p0 = np.linspace(0.1, 0.6, 501)
    star.plot(p0, gamma_star(p0), color=INK)
    for at, up in ((0.1968, 5.0), (0.2526, 3.0), (0.2976, 2.0)):
        star.plot([at], [up], "o", color=CURVES[0], markersize=5)
        star.annotate(f"γ = {up:g} at p0 = {at:.3f}", (at, up), xytext=(9, 2), textcoords="offset points", fontsize=8.5)
    star.annotate("0 from 1/2 on", (0.5, 0), xytext=(0, 9), textcoords="offset points", fontsize=8.5)
    star.set(title="γ*(p0): G = 1 there, below 1 beyond", xlabel="p0", ylabel="γ*", ylim=(-0.3, 15))
    true = np.linspace(0.005, 0.995, 199)
    rows = np.stack([true, 1 - true], axis=1)
    optimum.plot([0, 1], [0, 1], color=MUTED, linestyle=":", linewidth=1.2)
    for gamma, colour in zip((1.0, 2.0, 3.0, 5.0), CURVES[1:5], strict=False):
        optimum.plot(true, optimal_prediction(rows, gamma)[:, 0], color=colour, label=f"γ = {gamma:g}")
    optimum.plot([0.8], [0.6266], "o", color=INK, markersize=4)
    arrow = {"arrowstyle": "-", "color": INK, "linewidth": 0.8}
    optimum.annotate("0.8 → 0.627", (0.8, 0.6266), xytext=(0.68, 0.33), fontsize=8.5, arrowprops=arrow)
    optimum.set(title="Fig. 7: prediction of least risk", xlabel="true probability p", ylabel="q")
    optimum.legend(loc="upper left")
    return figure


def komisarenko_1() -> Figure:
    """Komisarenko & Kull, Fig. 1: focal loss, its proper part and cross-entropy; the binary map."""
    figure, (half, three, maps) = new_figure(1, 3, size=(10.5, 3.4))
    log_odds = np.linspace(-14, 14, 1401).astype(np.float32)
    q = jax.nn.sigmoid(log_odds)
    logits = jnp.stack([jnp.zeros_like(log_odds), jnp.asarray(log_odds)], axis=1)
    labels = np.ones(len(log_odds), np.int32)
    for axes, gamma in ((half, 0.5), (three, 3.0)):
        axes.plot(q, -jnp.log(q), color=MUTED, linestyle="--", label="cross-entropy")
        axes.plot(q, focal_loss(logits, labels, gamma), color=CURVES[0], label="focal loss")
        axes.plot(q, jax.jit(proper_focal_loss)(logits, labels, gamma), color=CURVES[1], label="its proper part")
        axes.set(
            title=f"Loss of the true class, γ = {gamma:g}", xlabel="predicted probability q", ylabel="nats", ylim=(0, 3)
        )
        axes.legend(loc="upper right")
    maps.plot([0, 1], [0, 1], color=MUTED, linestyle=":", linewidth=1.2)
    for gamma, colour in zip((-0.95, -0.5, 0.5, 1.0, 3.0), CURVES, strict=False):
        mapped = jax.nn.sigmoid(binary_focal_calibration(log_odds, gamma))
        maps.plot(q, mapped, color=colour, linestyle="--" if gamma < 0 else "-", label=f"γ = {gamma:g}")
    maps.set(title="Focal calibration map", xlabel="predicted probability q", ylabel="calibrated probability")
    maps.legend(loc="upper left")
    return figure
