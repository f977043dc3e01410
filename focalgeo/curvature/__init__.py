"""Curvature of any loss(params): exact products, and estimates that carry their error.

Everything here is a function of a matvec (tree -> tree) or of a scalar loss(params); it knows no models and no data.
Products run at full float32 precision on every device, also those of the given loss or matvec; only the trace as a term
of training (`value_and_trace`, `outputs_and_trace`, `with_trace_penalty`) takes the precision in force.
"""

from focalgeo.curvature.density import (
    SpectralDensity,
    cumulative_distribution,
    share_in_bins,
    smoothed_density,
    spectral_density,
)
from focalgeo.curvature.lanczos import Eigenpairs, extreme_eigenvalues, lambda_max
from focalgeo.curvature.penalty import outputs_and_trace, value_and_trace, with_trace_penalty
from focalgeo.curvature.products import (
    check_deterministic,
    dense_hessian,
    empirical_fisher_vp,
    fisher_vp,
    ggn_vp,
    hvp,
    linearized_hvp,
    restrict,
)
from focalgeo.curvature.quadratic_forms import (
    Parts,
    diagonal,
    dominant_basis,
    leaf_traces,
    quadratic_parts,
    sample_mean,
    trace_samples,
)
from focalgeo.curvature.sharpness import adaptive_sharpness, fisher_rao, noise_rises, pac_bayes_sigma
from focalgeo.curvature.traces import trace
