"""Digits on an accelerator: the precision of products in all that is measured, emulated on the CPU."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from accelerator_digits import bfloat16_passes
from sklearn.datasets import load_digits

from focalgeo import calibration, curvature, evaluation, losses, models, parallel
from focalgeo.precision import at_precision
from focalgeo.types import Batch, InputError

EXAMPLES = 200


class Trained:
    """A network after some steps of gradient descent on digits, made once at full precision."""

    def __init__(self, name, options, examples, steps):
        digits = load_digits()
        x = (digits.images[:examples, ..., None] / 16).astype(np.float32)
        self.batch = Batch(x, digits.target[:examples].astype(np.int32), np.ones(examples, bool))
        self.model = models.build(name, num_classes=10, **options)
        variables = dict(self.model.init(jax.random.key(0), x[:1]))
        start, self.state = variables.pop("params"), variables
        step = jax.jit(lambda params: jax.tree.map(lambda p, g: p - 0.3 * g, params, jax.grad(self.loss)(params)))
        self.params = start
        for _ in range(steps):
            self.params = step(self.params)
        keys = iter(jax.random.split(jax.random.key(1), len(jax.tree.leaves(start))))
        self.vector = jax.tree.map(lambda leaf: jax.random.normal(next(keys), leaf.shape), start)

    def logits(self, params):
        return self.model.apply({"params": params, **self.state}, self.batch.x)

    def loss(self, params):
        return jnp.mean(losses.focal_loss(self.logits(params), self.batch.y, 3.0))

    def matvec(self):
        return jax.jit(functools.partial(curvature.hvp, self.loss, self.params))

    def problem(self):
        of_logits = {"cross_entropy": losses.cross_entropy, "focal_loss": _focal}
        return evaluation.Problem(self.model.apply, of_logits, self.params, self.state, [self.batch])


def _focal(logits, labels):
    return losses.focal_loss(logits, labels, 3.0)


@functools.cache
def mlp():
    return Trained("mlp", {}, EXAMPLES, 60)


@functools.cache
def cnn():
    return Trained("cnn", {"widths": (8, 16)}, 64, 20)


@functools.cache
def outputs():
    """Overconfident logits [examples, classes] whose classes differ in scale and bias, and labels."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(1500, 5))
    labels = (logits / 1.7 + np.linspace(-1, 1, 5) + rng.gumbel(size=logits.shape)).argmax(-1)
    return logits.astype(np.float32), labels.astype(np.int32)


def log_probs():
    return np.asarray(jax.nn.log_softmax(outputs()[0]))


def _top(of):
    return curvature.lambda_max(of.matvec(), of.params, jax.random.key(2), max_products=30)


def _trace(of, method):
    return curvature.trace(of.matvec(), of.params, jax.random.key(3), 12, method=method).value


def _moments(of):
    found = curvature.spectral_density(of.matvec(), of.params, jax.random.key(4), num_probes=2, steps=8)
    return [jnp.sum(found.weights * found.nodes**power, axis=1) for power in (1, 2)]


def _parts(of):
    problem = of.problem()
    measured = evaluation.measure_curvature(
        problem, jax.random.key(5), split="val", max_products=20, tolerance=1e-2, num_probes=6, trace_method="hutch++"
    )
    rows = evaluation.attribution_rows(problem, measured, jax.random.key(6), split="val", num_probes=6)
    return np.array([row.value for row in rows if row.name == "attribution"])


def _predicted(of):
    forward = parallel.pmapped_forward(of.model.apply)
    return evaluation.predict(forward, {"params": of.params, **of.state}, [of.batch]).logits


CASES = {  # what is computed, and how far it may lie from its value in float32, relative to its norm
    "hvp": (lambda: curvature.hvp(mlp().loss, mlp().params, mlp().vector), 1e-5),
    "hvp of convolutions": (lambda: curvature.hvp(cnn().loss, cnn().params, cnn().vector), 1e-5),
    "linearized_hvp": (lambda: curvature.linearized_hvp(mlp().loss, mlp().params)(mlp().vector), 1e-5),
    "fisher_vp": (lambda: curvature.fisher_vp(mlp().logits, mlp().params, mlp().vector), 1e-5),
    "lambda_max": (lambda: _top(mlp()).value, 1e-5),
    "lambda_max, residual": (lambda: _top(mlp()).residual, 1e-2),
    "trace": (lambda: _trace(mlp(), "hutchinson"), 1e-5),
    "trace by hutch++": (lambda: _trace(mlp(), "hutch++"), 1e-5),
    "trace by xtrace": (lambda: _trace(mlp(), "xtrace"), 1e-5),
    "diagonal": (lambda: curvature.diagonal(mlp().matvec(), mlp().params, jax.random.key(0), 2).value, 1e-5),
    "spectral_density": (lambda: _moments(mlp()), 1e-5),
    "attribution": (lambda: _parts(mlp()), 1e-4),
    "predictions": (lambda: _predicted(mlp()), 1e-6),
    "grid_search, nll": (lambda: calibration.grid_search(*outputs(), (0.0, 1.0), (1.0, 1.5)).nll, 1e-6),
    "grid_search, ece": (lambda: calibration.grid_search(*outputs(), (0.0, 1.0), (1.0, 1.5)).ece, 1e-5),
    "fit_temperature": (lambda: calibration.fit_temperature(*outputs())[1:3], 1e-6),
    "fit_focal_temperature": (lambda: calibration.fit_focal_temperature(*outputs())[:3], 1e-4),
    "fit_vector_scaling": (lambda: calibration.fit("vector_scaling", *outputs()).params, 1e-4),
    "fit_matrix_scaling": (lambda: calibration.fit("structured_matrix_scaling", *outputs()).params, 1e-4),
    "fit_ensemble_temperature": (lambda: calibration.fit("ensemble_temperature_scaling", *outputs()).params, 1e-4),
    "ece": (lambda: calibration.ece(log_probs(), outputs()[1]), 1e-5),
    "classwise_ece": (lambda: calibration.classwise_ece(log_probs(), outputs()[1]), 1e-5),
    "reliability": (lambda: calibration.reliability(log_probs(), outputs()[1]), 1e-6),
    "mmce": (lambda: losses.mmce(*outputs()), 1e-5),
}


def error(found, wanted):
    """Norm of the difference over the norm, over all leaves that are floating; infinite where NaN."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    pairs = [[np.asarray(each, np.float64).ravel() for each in pair] for pair in pairs]
    difference, size = (np.concatenate(each) for each in zip(*((a - b, b) for a, b in pairs), strict=True))
    known = ~np.isnan(size)
    return float(np.linalg.norm(difference[known]) / np.linalg.norm(size[known]))


CORRECTED = {  # coarse products cost them steps, not digits, or they have none
    "ece",
    "fit_ensemble_temperature",
    "fit_focal_temperature",
    "fit_temperature",
    "fit_vector_scaling",
    "reliability",
}


@functools.cache
def values(told):
    """Every case's value: at full precision for None, else in bfloat16 passes; one context shares what it compiles."""
    for make in (mlp, cnn, outputs):
        make()
    with contextlib.nullcontext() if told is None else bfloat16_passes(told=told):
        return {name: jax.device_get(compute()) for name, (compute, _) in CASES.items()}


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_digits_are_those_of_float32_where_products_are_bfloat16_passes(name):
    assert error(values(True)[name], values(None)[name]) <= CASES[name][1]


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(CASES.keys() - CORRECTED))
def test_without_their_named_precisions_the_digits_are_lost(name):
    assert error(values(False)[name], values(None)[name]) > CASES[name][1]


@pytest.mark.parametrize("name", ["Highest", "", None, 3])
def test_a_precision_that_is_none_is_refused_at_once(name):
    with pytest.raises(InputError, match="it must be default, high or highest"):
        at_precision(jnp.sin, name)
