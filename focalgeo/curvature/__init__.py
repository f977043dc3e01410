"""Curvature of any loss(params): exact products, and estimates that carry their error.

Everything here is a function of a matvec (tree -> tree) or of a scalar loss(params); it knows no models and no data.
Products run at full float32 precision on every device, also those of the given loss or matvec; only the trace as a term
of training (`value_and_trace`, `outputs_and_trace`) takes the precision in force.
"""

from focalgeo.curvature.arguments import check_deterministic
from focalgeo.curvature.density import (
    SpectralDensity,
    cumulative_distribution,
    share_in_bins,
    smoothed_density,
    spectral_density,
)
from focalgeo.curvature.diagonal import diagonal, leaf_traces
from focalgeo.curvature.eigenvalues import Eigenpairs, extreme_eigenvalues, lambda_max
from focalgeo.curvature.penalty import outputs_and_trace, value_and_trace
from focalgeo.curvature.planning import TraceTo, trace_to
from focalgeo.curvature.products import dense_hessian, fisher_vp, ggn_vp, hvp, linearized_hvp, restrict
from focalgeo.curvature.quadratic_forms import Parts, dominant_basis, quadratic_parts, trace_samples
from focalgeo.curvature.traces import sample_mean, trace

__all__ = [
    "Eigenpairs",
    "Parts",
    "SpectralDensity",
    "TraceTo",
    "check_deterministic",
    "cumulative_distribution",
    "dense_hessian",
    "diagonal",
    "dominant_basis",
    "extreme_eigenvalues",
    "fisher_vp",
    "ggn_vp",
    "hvp",
    "lambda_max",
    "leaf_traces",
    "linearized_hvp",
    "outputs_and_trace",
    "quadratic_parts",
    "restrict",
    "sample_mean",
    "share_in_bins",
    "smoothed_density",
    "spectral_density",
    "trace",
    "trace_samples",
    "trace_to",
    "value_and_trace",
]
