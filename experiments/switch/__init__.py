"""A network that changes its loss on the way: how fast curvature and calibration follow."""
