"""Plain NumPy for a page to show: it applies a calibrator.json on a machine without focalgeo, method by method.

Each text takes `logits`, an array [examples, classes], and leaves `probs` of that shape. It computes in float64 and in
logarithms, and sums 1 - q over the other classes, so that it keeps its digits where q rounds to 1.
tests/test_snippets.py runs the texts and compares them with the methods themselves.
"""

_READ = """\
import json, pathlib, numpy as np; c = json.loads(pathlib.Path("calibrator.json").read_text())["parameters"]
"""
# q of the logits z, t the top class, and the focal map w = log q - g log(1 - q) - log(1 - g q log(q) / (1 - q))
_Q = 'a = z - lse(z); t = np.eye(len(z.T))[z.argmax(-1)] > 0; q = np.exp(a); g = c.get("gamma", 0)'
_FOCAL = """\
log_r = np.where(t, lse(np.where(t, -np.inf, a)), np.log1p(-np.where(t, 0, q))); r = np.maximum(np.exp(log_r), 1e-300)
w = a - g * log_r - np.log1p(-g * q * np.where(q > 0.5, np.log1p(-np.minimum(r, 0.5)), a) / r); w = w - lse(w)
"""
_FAMILY = f"""\
{_READ}\
lse = lambda v: np.logaddexp.reduce(v, -1, keepdims=True); z = logits.astype(float) / c.get("temperature", 1)
{_Q}; b = c.get("biases", 0)
{_FOCAL}\
w = (np.inner(w, c["weights"]) if "weights" in c else w * c.get("scales", 1)) + b; probs = np.exp(w - lse(w))
"""
_IMPLIED = f"""\
{_READ}\
lse = lambda v: np.logaddexp.reduce(v, -1, keepdims=True); z = logits.astype(float)
{_Q}
{_FOCAL}\
w = w / c["temperature"]; probs = np.exp(w - lse(w))
"""
_ENSEMBLE = f"""\
{_READ}\
softmax = lambda v: np.exp(v - np.logaddexp.reduce(v, -1, keepdims=True)); z = logits.astype(float)
first, second, rest = c["shares"]
probs = first * softmax(z / c["temperature"]) + second * softmax(z) + rest / z.shape[-1]
"""
_HISTOGRAM = f"""\
{_READ}\
z = logits.astype(float); t = np.eye(len(z.T))[z.argmax(-1)] > 0  # the top class
rest = np.logaddexp.reduce(np.where(t, -np.inf, z), -1, keepdims=True)
p = np.array(c["accuracies"])[np.searchsorted(c["edges"], z.max(-1, keepdims=True) - rest)]
probs = np.where(t, p, (1 - p) * np.exp(np.minimum(z - rest, 0)))
"""
_ISOTONIC = f"""\
{_READ}\
z = logits.astype(float); log_p = z - np.logaddexp.reduce(z, -1, keepdims=True)
f = np.interp(log_p, c["thresholds"], c["probabilities"]); probs = f / f.sum(-1, keepdims=True)
"""
_FOCAL_FAMILY = (
    "uncalibrated",
    "temperature_scaling",
    "focal_temperature_scaling",
    "vector_scaling",
    "focal_vector_scaling",
    "structured_matrix_scaling",
    "loss_implied_map",
)
SNIPPETS = {  # by the method's name
    **dict.fromkeys(_FOCAL_FAMILY, _FAMILY),
    "loss_implied_temperature_scaling": _IMPLIED,
    "ensemble_temperature_scaling": _ENSEMBLE,
    "histogram_binning": _HISTOGRAM,
    "isotonic": _ISOTONIC,
}
