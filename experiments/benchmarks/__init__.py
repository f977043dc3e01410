"""How fast the search, curvature, sweeps and training are, beside loops and other libraries."""
