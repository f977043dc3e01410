"""The example in every public docstring gives what it says, and every function and class of these faces has one."""

import doctest
import inspect

import pytest

from focalgeo import calibration, curvature, losses, report

# What the examples take as given: imports, outputs of a classifier, and a loss to measure.
SETUP = """
import jax, jax.numpy as jnp, numpy as np
from focalgeo import calibration, curvature, losses, report

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

FACES = losses, calibration, curvature
FIGURES = "calibration_curve", "reliability", "risk_coverage", "confidence_histogram", "against_gamma"


def _is_public(name, member):
    is_result = inspect.isclass(member) and issubclass(member, tuple)
    own = getattr(member, "__module__", "").startswith("focalgeo")
    return not name.startswith("_") and own and callable(member) and not is_result


MEMBERS = {
    f"{face.__name__}.{name}": member
    for face in FACES
    for name, member in vars(face).items()
    if _is_public(name, member)
}
MEMBERS |= {f"{report.__name__}.{name}": getattr(report, name) for name in FIGURES}
# imported on first use; the estimators of one method have docstrings made of its title
MEMBERS["focalgeo.calibration.CalibratedClassifier"] = calibration.CalibratedClassifier


@pytest.mark.parametrize("name", MEMBERS)
def test_the_example_gives_what_it_says(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an example may write a file
    known = {}
    exec(SETUP, known)
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(MEMBERS[name]), known, name, None, None)
    assert example.examples, f"{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    said = []
    runner.run(example, out=said.append)
    assert not runner.failures, "".join(said)
