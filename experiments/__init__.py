"""Experiments: one question each, answered by one command."""
