"""Closed forms of the papers, as functions of numbers, corrected where the papers are wrong."""

# ruff: noqa: F401
from focalgeo.theory.gradient import focal_slope, gamma_star, gradient_ratio, logit_curvature_ratio
from focalgeo.theory.information import maxwell_boltzmann, softmax_divergence, softmax_fisher
from focalgeo.theory.pac_bayes import PacBayes, pac_bayes_bound, pac_bayes_lambda, pac_bayes_value
from focalgeo.theory.risk import conditional_risk, focal_lower_bound, optimal_prediction, proper_focal_loss
from focalgeo.theory.temperature import (
    TemperatureBounds,
    focal_slope_at_zero,
    matching_temperature,
    temperature_bounds,
    temperature_mismatch,
)
