"""Fast grid search on the CPU: the surfaces of `plain_surfaces`, N times as fast."""

from focalgeo.calibration.fast_search.streaming import SearchInputs, surfaces

__all__ = ["SearchInputs", "surfaces"]
