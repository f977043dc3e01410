"""Curvature of many losses' networks, and whether calibration follows it with accuracy and confidence held fixed."""
