"""Focal loss, calibration and the curvature of the loss surface, exact and fast, in JAX."""

__version__ = "0.1.0"
