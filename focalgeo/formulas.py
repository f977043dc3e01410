"""The calibration methods as plain NumPy, for a page to show and a file to hold: no focalgeo is needed to run them.

Each text reads a calibrator.json, takes `logits`, an array [examples, classes], and leaves `probs` of that shape. It
computes in float64 and in logarithms, and sums 1 - q over the other classes, so that it keeps its digits where q rounds
to 1.
"""

CALIBRATOR = 'pathlib.Path("calibrator.json").read_text()'  # what each text reads
_READ = f"""\
import json, pathlib, numpy as np; c = json.loads({CALIBRATOR})["parameters"]
"""
# q of the logits z, t the top class, and the focal map w = log q - g log(1 - q) - log(1 - g q log(q) / (1 - q))
_Q = 'a = z - lse(z); t = np.eye(len(z.T))[z.argmax(-1)] > 0; q = np.exp(a); g = c.get("gamma", 0)'
_FOCAL = """\
lr = np.where(t, lse(np.where(t, -np.inf, a)), np.log1p(-np.where(t, 0, q))); r = np.maximum(np.exp(lr), 1e-300)
w = a - g * lr - np.log1p(-g * q * np.where(q > 0.5, np.log1p(-np.minimum(r, 0.5)), a) / r); w = w - lse(w)
"""
# Before the lines of a method that was fitted to probabilities with zeros, which are log 1.2e-38 among the logits.
_ZEROS = f"""\
import json, pathlib, numpy as np; stand = json.loads({CALIBRATOR})["zeros"]; most = stand["value"]
zero = np.abs(logits + 87.33654) < 1e-4; rest = np.where(zero, 0, np.exp(np.minimum(logits, 0))).sum(-1, keepdims=True)
share = (1 - rest) / np.maximum(zero.sum(-1, keepdims=True), 1) if stand["name"] == "row_share" else most
least = np.where(zero | np.isinf(logits), 0, logits).min(-1, keepdims=True) - np.log(2)
share = np.maximum(np.minimum(np.log(np.clip(share, most / 10, most)), least), -87.33654)
logits = np.where(zero & (np.abs(rest - 1) < 0.5), share, logits)
"""
_FAMILY = f"""\
{_READ}\
lse = lambda v: np.logaddexp.reduce(v, -1, keepdims=True); z = np.float64(logits).clip(-1e99) / c.get("temperature", 1)
{_Q}
{_FOCAL}\
w = w * c.get("scales", 1) + c.get("biases", 0); probs = np.exp(w - lse(w))
"""
_MATRIX = f"""\
{_READ}\
lse = lambda v: np.logaddexp.reduce(v, -1, keepdims=True); z = np.float64(logits) / c["temperature"]
w = z - lse(z); never = np.isneginf(w)  # of classes that cannot be
w = np.where(never, -np.inf, np.inner(np.where(never, 0, w), c["weights"]) + c["biases"]); probs = np.exp(w - lse(w))
"""
_IMPLIED = f"""\
{_READ}\
lse = lambda v: np.logaddexp.reduce(v, -1, keepdims=True); z = np.float64(logits).clip(-1e99)
{_Q}
{_FOCAL}\
w = w / c["temperature"]; probs = np.exp(w - lse(w))
"""
_ENSEMBLE = f"""\
{_READ}\
softmax = lambda v: np.exp(v - np.logaddexp.reduce(v, -1, keepdims=True)); z = logits.astype(float)
first, second, rest = c["shares"]; can = z > -np.inf
probs = first * softmax(z / c["temperature"]) + second * softmax(z) + rest * can / can.sum(-1, keepdims=True)
"""
_HISTOGRAM = f"""\
{_READ}\
z = np.float64(logits).clip(-1e99); t = np.eye(len(z.T))[z.argmax(-1)] > 0  # the top class
rest = np.logaddexp.reduce(np.where(t, -np.inf, z), -1, keepdims=True)
p = np.array(c["accuracies"])[np.searchsorted(c["edges"], z.max(-1, keepdims=True) - rest)]
p = np.where(rest < -1e90, 1, p)  # of the only class that can be
probs = np.where(t, p, (1 - p) * np.exp(np.minimum(z - rest, 0)))
"""
_ISOTONIC = f"""\
{_READ}\
z = logits.astype(float); log_p = z - np.logaddexp.reduce(z, -1, keepdims=True)
f = np.interp(log_p, c["thresholds"], c["probabilities"]) * (z > -np.inf); probs = f / f.sum(-1, keepdims=True)
"""
_BY_GROUP = f"""\
import json, pathlib, numpy as np; c = json.loads({CALIBRATOR})
names = np.array(c["groups"]); group = np.broadcast_to(group, len(logits)).astype(str)  # group [examples], or one
if {{*group}} - {{*names}}: raise ValueError(f"give group: for each example one of {{', '.join(names[:5])}}, ...")
t = np.array(c["parameters"]["temperature"])[np.searchsorted(names, group)]
z = logits.astype(float) / t[:, None]; probs = np.exp(z - np.logaddexp.reduce(z, -1, keepdims=True))
"""
_STACKING = f"""\
{_READ}\
lse = lambda v: np.logaddexp.reduce(v, -1, keepdims=True); parts = [*c.items()]; probs = 0
for name in [k[9:] for k in c if k.startswith("share_of_")]:
    share = dict(parts)["share_of_" + name]; c = {{k.split(".")[1]: v for k, v in parts if k.startswith(name + ".")}}
    z = np.float64(logits).clip(-1e99) / c.get("temperature", 1)
    {_Q}
{"".join(f"    {line}{chr(10)}" for line in _FOCAL.splitlines())}\
    v = np.inner(np.where(w < -1e90, 0, w), c["weights"]) if "weights" in c else w * c.get("scales", 1)
    w = np.where(w < -1e90, -np.inf, v + c.get("biases", 0))
    if name[:4] in ("plat", "beta", "bina"):
        s = z[..., 1] - z[..., 0]; log_p, log_q = -np.logaddexp(0, -s), -np.logaddexp(0, s)
        a, b, d = (c.get(k, 0) for k in ("aab" if name[0] == "p" else "abc")); v = a * log_p - b * log_q + d
        if "thresholds" in c: p = np.interp(s, c["thresholds"], c["probabilities"]); v = np.log(p / (1 - p))
        w = np.where(z < -1e90, -np.inf, -np.logaddexp(0, np.stack([v, -v], -1)))
    probs = probs + share * np.exp(w - lse(w))
"""
_BINARY = f"""\
{_READ}\
z = np.float64(logits).clip(-1e99); s = z[..., 1] - z[..., 0]; log_p, log_q = -np.logaddexp(0, -s), -np.logaddexp(0, s)
t = {{}}
w = np.where(z < -1e90, -np.inf, -np.logaddexp(0, np.stack([t, -t], -1)))  # -inf of a class that cannot be
probs = np.exp(w - np.logaddexp.reduce(w, -1, keepdims=True))
"""
_FOCAL_FAMILY = (
    "uncalibrated",
    "temperature_scaling",
    "focal_temperature_scaling",
    "vector_scaling",
    "focal_vector_scaling",
    "loss_implied_map",
)
SNIPPETS = {  # by the method's name
    **dict.fromkeys(_FOCAL_FAMILY, _FAMILY),
    "temperature_scaling_by_group": _BY_GROUP,
    "structured_matrix_scaling": _MATRIX,
    "loss_implied_temperature_scaling": _IMPLIED,
    "ensemble_temperature_scaling": _ENSEMBLE,
    "stacking": _STACKING,
    "histogram_binning": _HISTOGRAM,
    "isotonic": _ISOTONIC,
    "platt_scaling": _BINARY.format('c["a"] * s + c["b"]'),
    "beta_calibration": _BINARY.format('c["a"] * log_p - c["b"] * log_q + c["c"]'),
    "quadratic_scaling": _BINARY.format('c["a"] * s**2 + c["b"] * s + c["c"]'),
    "binary_isotonic": _BINARY.format('np.interp(s, c["thresholds"], c["probabilities"]); t = np.log(t / (1 - t))'),
}


def text(name: str, *, zeros: bool) -> str:
    """The lines of a method; "" where it has none. `zeros`: whether calibrator.json says what zeros stand for."""
    return (_ZEROS if zeros and name in SNIPPETS else "") + SNIPPETS.get(name, "")
