"""Benchmarks, each a module to be run; what PyTorch must find in the environment is set before any of them loads it."""

import os

# Unset, a step of ResNet-18 took PyTorch three times as long on cores that other work shared: an unfair rival.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
