"""What is lowered for TPU and CUDA: what is measured names full precision, training the config's.

QR and eigenvalue decompositions of small matrices (Lanczos, bases) name none: each platform has routines of its own.
"""

import functools
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lowered_programs import lowered_programs

from configs import digits
from experiments import programs
from focalgeo import calibration, curvature, evaluation, losses, models, parallel
from focalgeo.types import Batch, TrainState

RNG = np.random.default_rng(0)
KEY = jax.random.key(0)
LOGITS = RNG.normal(size=(60, 4)).astype(np.float32)
LABELS = RNG.integers(0, 4, 60).astype(np.int32)
LOG_PROBS = np.asarray(jax.nn.log_softmax(LOGITS))
TWO = LOG_PROBS[:, :2] - np.logaddexp(LOG_PROBS[:, :1], LOG_PROBS[:, 1:2])
GRID = {"gammas": (0.0, 1.0), "temperatures": (1.0, 1.5, 2.0)}
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
    return {"w": vector["w"] @ (np.eye(6, dtype=np.float32) + 1)}


def form(vector):
    return vector["w"] @ matvec(vector)["w"]


LIKE = {"w": np.ones(6, np.float32)}


def focal(logits, labels):
    return losses.focal_loss(logits, labels, 2.0)


def focal_of_values(logits, labels, values):
    return losses.focal_loss(logits, labels, values["gamma"])


@functools.cache
def problem():
    model, params, state = network()
    return evaluation.Problem(
        model.apply, {"cross_entropy": losses.cross_entropy, "focal": focal}, params, state, [BATCH]
    )


def measured():
    options = {"max_products": 4, "tolerance": 0.1, "num_probes": 4, "trace_method": "hutch++"}
    return evaluation.measure_curvature(problem(), KEY, split="val", **options)


def batch_loss():
    return evaluation.make_batch_loss(network()[0].apply, focal, 8)


def states():
    _, params, state = network()
    members = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), (params, state))
    values = {"gamma": np.float32([1, 2])}
    nothing = np.zeros(2, np.int32)
    return TrainState(nothing, *members, (), nothing, values, nothing, None, nothing)


def compared():
    few = {"methods": ("temperature_scaling", "vector_scaling"), "num_resamples": 100, "num_folds": 2}
    names = tuple(calibration.METRICS)
    return calibration.compare((LOGITS, LABELS), (LOGITS, LABELS), **few, criteria=("nll",), metrics=names)


def estimated(name):
    options = {"trained_gamma": 1.0} if name == "LossImplied" else {}
    fitted = getattr(calibration, name)(**options).fit(LOGITS, LABELS)
    return fitted.predict_proba(LOGITS)


def linearized():
    return curvature.linearized_hvp(loss, network()[1])(network()[1])


def restricted():
    part, few = curvature.restrict(loss, network()[1], "*kernel*")
    return curvature.hvp(part, few, few)


def density():
    return curvature.spectral_density(matvec, LIKE, KEY, num_probes=2, steps=3)


BINARY = ("binary_adaptive_ece", "binary_ece", "binary_reliability", "binary_smooth_ece")
# Arguments by their name, for functions that take no others; a room's functions use a name alike.
ARGUMENTS = {
    losses: {
        "logits": LOGITS, "labels": LABELS, "gamma": 2.0, "smoothing": 0.1, "p": np.exp(LOG_PROBS[:, 0]), "epoch": 1.0,
        "thresholds": np.float32([0.25]), "gammas": np.float32([5, 3]), "boundaries": np.float32([5]),
        "losses": LOGITS[:, 0], "alpha": np.ones(4, np.float32), "adafocal": losses.adafocal_state(),
        "state": losses.adafocal_state(), "confidence": np.exp(LOG_PROBS[:, 0]), "correct": LABELS > 1,
    },
    calibration: {
        "log_probs": LOG_PROBS, "logits": LOGITS, "labels": LABELS, "key": KEY, "num_resamples": 3, "gamma": 1.0,
        "metric": calibration.ece, "first_log_probs": LOG_PROBS, "second_log_probs": LOG_PROBS, "temperature": 2.0,
        "scales": np.ones(4, np.float32), "biases": np.ones(4, np.float32), "weights": np.eye(4, dtype=np.float32),
        "shares": np.float32([0.5, 0.25, 0.25]), "trained_gamma": 1.0, "probs": np.exp(LOG_PROBS),
        "successes": 3, "n": 9, "name": "focal_vector_scaling", "num_folds": 2, "seed": 0,
    },
    curvature: {
        "loss": loss, "matvec": matvec, "like": LIKE, "key": KEY, "num_probes": 4,
        "form": form, "num_samples": 2, "matvecs": [matvec], "num_products": 2, "logits": logits_of,
        "outputs": logits_of, "output_loss": mean_loss, "network": logits_of, "losses": {"loss": mean_loss},
        "samples": np.float32([1, 2]),
    },
    evaluation: {"key": KEY, "split": "val", "num_probes": 4, "steps": 2, "num_bins": 3, "num_vectors": 2},
}  # fmt: skip
CALLS = {  # of functions that need arguments of their own
    **{name: functools.partial(getattr(calibration, name), TWO, LABELS % 2) for name in BINARY},
    "binary_focal_calibration": lambda: calibration.binary_focal_calibration(LOGITS, 1.0),
    "grid_search": lambda: calibration.grid_search(LOGITS, LABELS, **GRID),
    "line_search": lambda: calibration.line_search(LOGITS, LABELS, **GRID),
    "isotonic_calibration": lambda: calibration.fit("isotonic", LOGITS, LABELS).predict_log_proba(LOGITS),
    "histogram_binning": lambda: calibration.fit("histogram_binning", LOGITS, LABELS).predict_log_proba(LOGITS),
    "compare": compared,
    **{name: functools.partial(estimated, name) for name in calibration._ESTIMATORS},
    "linearized_hvp": linearized,
    "restrict": restricted,
    "share_in_bins": lambda: curvature.share_in_bins(density(), np.float32([-99, 0, 99])),
    "cumulative_distribution": lambda: curvature.cumulative_distribution(density(), np.float32([0, 1])),
    "smoothed_density": lambda: curvature.smoothed_density(density(), np.float32([0, 1]), width=0.1),
    "trace_to": lambda: curvature.trace_to(matvec, LIKE, KEY, max_products=36),
    "attribution_rows": lambda: evaluation.attribution_rows(problem(), measured(), KEY, split="val", num_probes=4),
    "density_rows": lambda: evaluation.density_rows(problem(), measured(), KEY, split="val", num_probes=2, steps=2),
    "measure_curvature": measured,
    "make_batch_loss": lambda: batch_loss()(*network()[1:], BATCH),
    "data_matvec": lambda: evaluation.data_matvec(batch_loss(), *network()[1:], [BATCH])(network()[1]),
    "diagnose": lambda: evaluation.diagnose(network()[0].apply, focal_of_values, states(), batches=[BATCH]),
    "predict": lambda: evaluation.predict(
        parallel.pmapped_forward(network()[0].apply), {"params": network()[1], **network()[2]}, [BATCH]
    ),
}
UNTESTED = {  # reason -> names
    "a term of a training loss, at the precision of the training": ("outputs_and_trace", "value_and_trace"),
    "it calls no compiled program": (
        "best_point", "calibrator_json", "candidates", "check_last_layer",
        "check_predictions", "checked_methods", "choose", "comparisons", "configured", "folds",
        "hyperparameters", "make_loss", "plain_numbers", "read_calibrator", "searched_criteria", "surfaces",
        "usable",
    ),
    "compare calls it": (
        "calibration_rows", "class1_rows", "class_gap_rows", "cross_fit", "difference_rows", "fit_methods", "fit_rows",
        "group_rows", "measure_members", "reliability_rows", "searched", "searched_members",
    ),
    "diagnosis_rows bins numbers, by the functions of calibration": ("diagnosis_rows",),
}  # fmt: skip


def public():
    """Functions, and estimators, by room and name; what only holds results is no function."""
    exempt = {name for names in UNTESTED.values() for name in names}
    return [
        (room, name)
        for room in ARGUMENTS
        for name in room.__all__
        if name not in exempt and (inspect.isfunction(getattr(room, name)) or name in CALLS)
    ]


def arguments(room, name):
    """What the function's parameters take by their names, in order and by keyword; a new name needs an entry above."""
    needed = [each for each in inspect.signature(getattr(room, name)).parameters.values() if each.default is each.empty]
    needed = [each for each in needed if each.kind is not each.VAR_KEYWORD]
    known = ARGUMENTS[room] | ({"params": network()[1], "vector": network()[1]} if room is curvature else {})
    unknown = [each.name for each in needed if each.name not in known]
    assert not unknown, f"{name}: no arguments for {unknown}; add them, a call, or a reason to leave it out"
    given = [(each, known[each.name]) for each in needed]
    named = {each.name: value for each, value in given if each.kind is each.KEYWORD_ONLY}
    return [value for each, value in given if each.kind is not each.KEYWORD_ONLY], named


def call(room, name):
    """Calls the function, as CALLS says or with the arguments that its parameters name."""
    if name in CALLS:
        return CALLS[name]()
    positional, named = arguments(room, name)
    return getattr(room, name)(*positional, **named)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("room", "name"), public(), ids=lambda each: each if isinstance(each, str) else "")
def test_every_product_names_full_precision_on_tpu_and_cuda(room, name, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")  # of two ways to compute, the one taken there
    network()
    with lowered_programs() as lowered:
        jax.block_until_ready(call(room, name))
    assert not lowered.refused
    assert not [each for each in lowered.precisions if each[-1].count("HIGHEST") != 2]


def test_all_public_functions_are_known():
    names = {name for room in ARGUMENTS for name in room.__all__}
    exempt = [name for names in UNTESTED.values() for name in names]
    assert {*exempt, *CALLS} <= names
    assert not {*exempt} & {*CALLS}
    for room, name in public():
        if name not in CALLS:
            arguments(room, name)


@pytest.mark.parametrize(
    ("precision", "ambient", "named"),
    [
        ("default", None, "DEFAULT"),
        ("default", "highest", "HIGHEST"),
        ("high", "highest", "HIGH"),
        ("highest", None, "HIGHEST"),
    ],
)
@pytest.mark.parametrize("trace_of", ["hessian", "gauss_newton"])
def test_a_training_step_has_the_precision_of_the_config(precision, ambient, named, trace_of):
    config = digits.get_config()
    config.model.precision, config.loss.trace_penalty, config.loss.trace_of = precision, 0.01, trace_of
    with jax.default_matmul_precision(ambient):
        text = programs.training_step(programs.make_training(config), jax.devices()[:1]).lower().as_text()
    products = re.findall(r"dot_general.*precision = \[(\w+, \w+)\].*-> (.*)", text)
    found = {each for each, result in products if result != "tensor<1xf32>"}  # norms are measured
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
    short = [each[0] for each in lowered.precisions if each[-1].count("HIGHEST") != 2]
    assert sorted(short) == ["cuda", "tpu"]
    assert {each[0] for each in lowered.precisions if "convolution" in each[1]} == {"cuda", "tpu"}
