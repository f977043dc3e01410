"""The map in plain NumPy, for a page to show: it applies a calibrator.json on a machine without focalgeo."""

# Float64. 1 - q is summed over the other classes, so it keeps its digits where q rounds to 1.
# tests/test_calibrate.py runs these lines and compares them with calibration.focal_temperature_scaling.
SNIPPET = """\
import json, pathlib, numpy as np; c = json.loads(pathlib.Path("calibrator.json").read_text())
z = (logits - logits.max(-1, keepdims=True)).astype(float) / c["temperature"]  # logits: [examples, classes]
log_q = z - np.log(np.exp(z).sum(-1, keepdims=True)); q = np.exp(log_q)
r = np.maximum(q @ (1 - np.eye(q.shape[-1])), 1e-300); s = np.where(q > 0.5, np.log1p(-np.minimum(r, 0.5)), log_q)
w = log_q - c["gamma"] * np.log(r) - np.log1p(-c["gamma"] * q * s / r)
probs = np.exp(w - w.max(-1, keepdims=True)); probs /= probs.sum(-1, keepdims=True)
"""
