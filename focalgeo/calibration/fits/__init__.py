"""Fits of the maps' numbers: `focal` (temperature, gamma), `search` on a grid, `linear`, `variants`, `stacking`."""
