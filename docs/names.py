"""The public names by the site's page, each of which has a docstring with an example: losses, calibration and so on."""

import inspect
from types import ModuleType
from typing import get_args

from focalgeo import calibration, curvature, data, losses, models, report, rows, theory
from focalgeo.calibration import maps
from focalgeo.calibration.methods import estimators, exports
from focalgeo.calibration.metrics import streaming
from focalgeo.training import step

# what the examples take as given: imports, outputs of a classifier, and a loss to measure
SETUP = """
import jax, jax.numpy as jnp, numpy as np
from focalgeo import calibration, curvature, data, losses, models, report, rows, theory

logits = np.float32([[2, 1, 0], [0, 3, 1], [1, 0, 0.5], [0.5, 2, 1]])  # three classes
labels = np.array([0, 1, 2, 2])
log_probs = np.asarray(jax.nn.log_softmax(logits))
p = np.float32([0.1, 0.2, 0.3, 0.6, 0.8, 0.9])
two_classes = np.log(np.stack([1 - p, p], axis=1))  # log-probabilities
outcomes = np.array([0, 0, 1, 1, 0, 1])
rng = np.random.default_rng(0)
scores = np.float32(rng.normal(size=(300, 3)))
drawn = np.argmax(scores + rng.gumbel(size=(300, 3)), axis=1)  # labels for which the scores are right

params = {"b": jnp.float32(0.5), "w": jnp.float32([1, -1])}
loss = lambda params: 1.5 * params["b"]**2 + params["b"] * params["w"][0] + params["w"][0]**2 + 2 * params["w"][1]**2
matvec = lambda vector: curvature.hvp(loss, params, vector)  # by the matrix [[3, 1, 0], [1, 2, 0], [0, 0, 4]]
key = jax.random.key(0)
"""

GIVEN = f"""What the examples take as given:

```python{SETUP}```
"""
FIGURES = "calibration_curve", "reliability", "risk_coverage", "confidence_histogram", "against_gamma"
OTHER_MAPS = (
    *("loss_implied_temperature_scaling", "ensemble_temperature_scaling", "focal_matrix_scaling"),
    *("histogram_binning", "isotonic_calibration"),
)
EXPORTS = "to_onnx", "to_torch", "to_numpy"
ROWS = (
    "series",
    "select",
    "tagged",
    "encode",
    "finite",
    "Tagged",
    "Measured",
    *(kind.__name__ for kind in get_args(rows.Row)),
)
# page -> its modules, each with the names of it that are public; None for all that are focalgeo's own
PAGES: dict[str, dict[ModuleType, tuple[str, ...] | None]] = {
    "losses": {losses: None},
    "calibration": {calibration: None, maps: OTHER_MAPS, streaming: ("make", "Streaming"), exports: EXPORTS},
    "estimators": {estimators: tuple(name for name, each in vars(estimators).items() if hasattr(each, "_method"))},
    "curvature": {curvature: None},
    "figures": {report: FIGURES},
    "theory": {theory: None},
    "models": {models: ("build", "options", "check_options", "Model")},
    "pieces": {rows: ROWS, data: ("split_indices",), step: ("make_ascent",)},
}
PAGES["estimators"][estimators] += ("CalibratedClassifier",)


def members(page: str) -> dict[str, object]:
    """The page's names with what they are."""
    return {
        f"{module.__name__}.{name}": getattr(module, name)
        for module, names in PAGES[page].items()
        for name in (names or filter(lambda name: _is_own(name, getattr(module, name)), dir(module)))
    }


def _is_own(name, member):
    own = getattr(member, "__module__", "").startswith("focalgeo")
    return own and callable(member) and not name.startswith("_")


def is_result(member: object) -> bool:
    """Whether it has fields alone, and needs no example of its own."""
    return inspect.isclass(member) and issubclass(member, tuple | rows.Tagged)
