"""Outputs in, rows out: methods compared, what speaks against the outputs, other tests, dense outputs."""
