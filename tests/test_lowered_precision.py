"""What is lowered for TPU and CUDA: what is measured names full precision, training the config's.

QR and eigenvalue decompositions of small matrices (Lanczos, bases) name none: each platform has routines of its own.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lowered_programs import lowered_programs

from configs import digits
from experiments import programs
from focalgeo import calibration, curvature, evaluation, losses, models
from focalgeo.types import Batch

RNG = np.random.default_rng(0)
KEY = jax.random.key(0)
LOGITS = RNG.normal(size=(60, 4)).astype(np.float32)
LABELS = RNG.integers(0, 4, 60).astype(np.int32)
LOG_PROBS = np.asarray(jax.nn.log_softmax(LOGITS))
X = RNG.normal(size=(8, 6, 6, 1)).astype(np.float32)
BATCH = Batch(X, LABELS[:8], np.ones(8, bool))


@functools.cache
def network():
    """A network with convolutions, its parameters and its other variables."""
    model = models.build("cnn", num_classes=4, widths=(3,))
    variables = dict(model.init(KEY, X[:1]))
    return model, variables.pop("params"), variables


def logits_of(params):
    model, _, state = network()
    return model.apply({"params": params, **state}, X)


def mean_loss(outputs):
    return jnp.mean(losses.focal_loss(outputs, LABELS[:8], 2.0))


def loss(params):
    return mean_loss(logits_of(params))


def matvec(vector):
    """Of a quadratic form whose product is the user's own and names no precision."""
    return vector @ (np.eye(6, dtype=np.float32) + 1)


LIKE = np.ones(6, np.float32)
OF = (matvec, LIKE, KEY)


def problem():
    model, params, state = network()
    named = {"cross_entropy": losses.cross_entropy, "focal": lambda z, y: losses.focal_loss(z, y, 2.0)}
    return evaluation.Problem(model.apply, named, params, state, [BATCH])


def measured():
    options = {"max_products": 4, "tolerance": 0.1, "num_probes": 4, "trace_method": "hutch++"}
    return evaluation.measure_curvature(problem(), KEY, split="val", **options)


def at_network(product):
    return lambda: product(network()[1])


CALLS = {
    **{name: functools.partial(getattr(losses, name), LOGITS, LABELS) for name in ("cross_entropy", "mmce")},
    "focal_loss": lambda: jax.grad(lambda z: losses.focal_loss(z, LABELS, 2.0).sum())(LOGITS),
    "weighted_mmce": lambda: losses.weighted_mmce(LOGITS, LABELS),
    "hvp": at_network(lambda p: curvature.hvp(loss, p, p)),
    "linearized_hvp": at_network(lambda p: curvature.linearized_hvp(loss, p)(p)),
    "ggn_vp": at_network(lambda p: curvature.ggn_vp(logits_of, mean_loss, p, p)),
    "fisher_vp": at_network(lambda p: curvature.fisher_vp(logits_of, p, p)),
    "dense_hessian": at_network(lambda p: curvature.dense_hessian(loss, p)),
    "quadratic_parts": at_network(lambda p: curvature.quadratic_parts(logits_of, {"loss": mean_loss}, p, p)),
    "check_deterministic": at_network(lambda p: curvature.check_deterministic(loss, p)),
    "lambda_max": lambda: curvature.lambda_max(*OF),
    "spectral_density": lambda: curvature.spectral_density(*OF, num_probes=2, steps=3),
    "trace": lambda: [curvature.trace(*OF, 4, method=method) for method in ("hutchinson", "hutch++", "xtrace")],
    "diagonal": lambda: curvature.diagonal(*OF, 4),
    "trace_samples": lambda: curvature.trace_samples(lambda v: v @ matvec(v), LIKE, KEY, 2, basis=np.eye(6)[:2]),
    "dominant_basis": lambda: curvature.dominant_basis([matvec], LIKE, KEY, 2),
    "focal_temperature_scaling": lambda: calibration.focal_temperature_scaling(LOGITS, 1.0, 2.0),
    "inverse_focal_calibration": lambda: calibration.inverse_focal_calibration(LOG_PROBS, 1.0),
    "grid_search": lambda: calibration.grid_search(LOGITS, LABELS, (0.0, 1.0), (1.0, 2.0)),
    "line_search": lambda: calibration.line_search(LOGITS, LABELS, (0.0, 1.0), (1.0, 1.5, 2.0)),
    "bootstrap": lambda: calibration.bootstrap(calibration.ece, LOG_PROBS, LABELS, KEY, 3),
    **{
        name: functools.partial(getattr(calibration, name), LOG_PROBS, LABELS)
        for name in ("ece", "classwise_ece", "debiased_ece", "smooth_ece", "nll")
    },
    **{
        name: functools.partial(
            calibration.fit, name, LOGITS, LABELS, trained_gamma=1.0 if "trained_gamma" in method.options else None
        )
        for name, method in calibration.METHODS.items()
        if method.most_classes != 2
    },
    "platt_scaling": lambda: calibration.fit("platt_scaling", LOGITS[:, :2], LABELS % 2),
    "measure_curvature": measured,
    "sharpness_rows": lambda: evaluation.sharpness_rows(problem(), KEY, split="val"),
    "attribution_rows": lambda: evaluation.attribution_rows(problem(), measured(), KEY, split="val", num_probes=4),
}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_every_product_names_full_precision_on_tpu_and_cuda(name, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")  # of two ways to compute, the one taken there
    network()
    with lowered_programs() as lowered:
        jax.tree.map(jax.block_until_ready, CALLS[name]())
    assert not lowered.refused
    assert not [product for product in lowered.precisions if product[-1].count("HIGHEST") != 2]


@pytest.mark.parametrize(
    ("precision", "ambient", "named"),
    [("default", "highest", "HIGHEST"), ("high", "highest", "HIGH"), ("highest", None, "HIGHEST")],
)
@pytest.mark.parametrize("trace_of", ["hessian", "gauss_newton"])
def test_a_training_step_has_the_precision_of_the_config(precision, ambient, named, trace_of):
    config = digits.get_config()
    config.model.precision, config.loss.trace_penalty, config.loss.trace_of = precision, 0.01, trace_of
    with jax.default_matmul_precision(ambient):
        text = programs.training_step(programs.make_training(config), jax.devices()[:1]).lower().as_text()
    products = re.findall(r"dot_general.*contracting_dims = \[(.*?)\].*precision = \[(\w+, \w+)\].*-> (.*)", text)
    # norms and v . Hv are measured; the derivative of v . Hv multiplies by a number, and contracts nothing
    found = {names for contracted, names, result in products if contracted and result != "tensor<1xf32>"}
    assert found == {f"{named}, {named}"}


def test_predictions_have_full_precision_whatever_that_of_training():
    config = digits.get_config()
    config.model.precision = "default"
    text = programs.prediction(config, jax.devices()[:1]).lower().as_text()
    assert set(re.findall(r"precision = \[(\w+, \w+)\]", text)) == {"HIGHEST, HIGHEST"}


def test_a_product_that_names_no_precision_is_seen():
    with lowered_programs() as lowered:
        jax.jit(lambda x: x @ x.T)(LOGITS)
        with jax.default_matmul_precision("highest"):
            jax.jit(logits_of)(network()[1])
    short = [product[0] for product in lowered.precisions if product[-1].count("HIGHEST") != 2]
    assert sorted(short) == ["cuda", "tpu"]
    assert {product[0] for product in lowered.precisions if "convolution" in product[1]} == {"cuda", "tpu"}
