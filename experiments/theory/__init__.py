"""Which statements of the papers hold: their figures that need no training, redrawn, and a table of errata."""
