"""Calibrated probabilities for a PyTorch classifier: its outputs on held-out examples are all that is needed.

python examples/pytorch_outputs.py
"""

import numpy as np
import torch

from focalgeo import calibration


def outputs(model, batches):
    """Logits and labels of all batches, as NumPy arrays."""
    model.eval()
    with torch.no_grad():
        pairs = [(model(x), y) for x, y in batches]
    return tuple(torch.cat(part).numpy() for part in zip(*pairs, strict=True))


class Sure(torch.nn.Module):
    """Stands in for your classifier: right most of the time, and far too sure."""

    def forward(self, x):
        return 8 * x


rng = np.random.default_rng(0)
labels = rng.integers(3, size=4000)
features = np.eye(3, dtype=np.float32)[labels] + rng.normal(size=(4000, 3)).astype(np.float32)
batches = [
    (torch.from_numpy(features[i : i + 500]), torch.from_numpy(labels[i : i + 500])) for i in range(0, 4000, 500)
]
val, test = outputs(Sure(), batches[:4]), outputs(Sure(), batches[4:])

fitted = calibration.fit("temperature_scaling", *val)
before, after = calibration.temperature_scaling(test[0], 1.0), fitted.predict_log_proba(test[0])
print(f"T {fitted.parameters['temperature']:.2f}")
print(f"ECE {calibration.ece(before, test[1]):.3f} as trained, {calibration.ece(after, test[1]):.3f} after")

np.savez("val.npz", logits=val[0], labels=val[1])  # or the whole page, with a choice between methods:
np.savez("test.npz", logits=test[0], labels=test[1])
print("python -m focalgeo.calibrate --val=val.npz --test=test.npz --out=runs/mine")
