"""Why focal temperature scaling and class-wise scaling add up, and whether the fitted gamma is that of training."""
