"""What runs on a GPU or TPU, against NumPy in float64 and against the CPU: `make test-accelerator`.

The tolerances below are for float32 with products at precision "highest". Elsewhere they are skipped; with
FOCALGEO_ACCELERATOR=cpu they run on the CPU.
"""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from reference import networks as oracle
from reference.curvature import MLP

from focalgeo import curvature, data, evaluation, losses, models, parallel
from focalgeo.training import optimiser
from focalgeo.training.step import make_step
from focalgeo.types import Batch, Split, TrainState

# Relative error of a vector in its norm, for one to a few layers. On a CPU it is 2e-7 (predictions) to 2e-6 (traces); a
# GPU's or TPU's exp, log and tanh add a few 1e-6. Factors rounded to TF32, emulated on a CPU, give 2e-4 (traces), 4e-4
# (predictions) and 7e-3 (products with the Hessian), to bfloat16 4e-3 and more: the last test holds that they are seen.
PRODUCT = 2e-5
# The same of a step, through batch norm and back: float32 is 7e-7 from float64 on a CPU, TF32 2e-4.
UPDATE = 3e-5

NETWORK = MLP(sizes=(32, 16, 10), examples=64)


@pytest.fixture(autouse=True)
def accelerator(request):
    """Skips a marked test where jax has the CPU alone, unless that is what was asked for."""
    wanted, found = os.environ.get("FOCALGEO_ACCELERATOR", "any"), jax.default_backend()
    assert wanted in ("any", "cpu"), f"FOCALGEO_ACCELERATOR={wanted}: it is any or cpu"
    if request.node.get_closest_marker("accelerator") and wanted != "cpu" and found == "cpu":
        pytest.skip("jax finds no GPU or TPU here; FOCALGEO_ACCELERATOR=cpu runs these tests on the CPU")


on_accelerator = pytest.mark.accelerator
pytestmark = pytest.mark.filterwarnings("default")  # a driver's and a plugin's warnings are not ours


def error(found, wanted):
    """|found - wanted| / |wanted| over all numbers of two trees."""
    found, wanted = (np.asarray(ravel_pytree(jax.device_get(tree))[0], np.float64) for tree in (found, wanted))
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


def make_network(matmul=jnp.matmul):
    """NETWORK's logits with products by `matmul`, in flax's signature."""

    def apply(variables, x):
        first, second = variables["params"]["first"], variables["params"]["second"]
        hidden = jnp.tanh(matmul(x, first["kernel"]) + first["bias"][None])
        return matmul(hidden, second["kernel"]) + second["bias"][None]

    return apply


def measured_hessian():
    """(matvec, params) of the mean cross-entropy of NETWORK, as measurements of a run take it."""
    params = jax.tree.map(jnp.float32, NETWORK.tree())
    batch = Batch(jnp.float32(NETWORK.x), jnp.int32(NETWORK.y), jnp.ones(len(NETWORK.y), bool))
    batch_loss = evaluation.make_batch_loss(make_network(), losses.cross_entropy, len(NETWORK.y))
    return evaluation.data_matvec(batch_loss, params, {}, [batch]), params


def plain_hessian(matmul=jnp.matmul):
    """The same by `hvp` of a user's own loss."""
    apply, params = make_network(matmul), jax.tree.map(jnp.float32, NETWORK.tree())

    def loss(params):
        return jnp.mean(losses.cross_entropy(apply({"params": params}, jnp.float32(NETWORK.x)), jnp.int32(NETWORK.y)))

    return jax.jit(lambda vector: curvature.hvp(loss, params, vector)), params


@pytest.fixture(scope="module")
def hessian():
    return NETWORK.hessian()


def product_error(matvec, params, hessian):
    vector = np.random.default_rng(1).normal(size=len(hessian)).astype(np.float32)
    product = ravel_pytree(matvec(ravel_pytree(params)[1](vector)))[0]
    return error(product, hessian @ vector)


@on_accelerator
@pytest.mark.parametrize("problem", [measured_hessian, plain_hessian], ids=["measurement", "hvp"])
def test_a_hessian_product_is_that_of_float64(hessian, problem):
    assert product_error(*problem(), hessian) < PRODUCT


@on_accelerator
def test_lambda_max_is_that_of_float64(hessian):
    matvec, params = measured_hessian()
    found = curvature.lambda_max(matvec, params, jax.random.key(0), max_products=100, tolerance=1e-4)
    assert found.converged
    assert error(found.value, np.linalg.eigvalsh(hessian)[-1]) < PRODUCT


@on_accelerator
@pytest.mark.parametrize("method", ["hutchinson", "hutch++", "xtrace"])
def test_a_trace_is_that_of_the_float64_matrix_with_the_same_probes(hessian, method):
    matvec, params = measured_hessian()
    matrix, unravel = jnp.float32(hessian), ravel_pytree(params)[1]

    def exact(tree):
        return unravel(jnp.matmul(matrix, ravel_pytree(tree)[0], precision="highest"))

    found, wanted = (
        curvature.trace(each, params, jax.random.key(0), num_probes=30, method=method) for each in (matvec, exact)
    )
    assert error(found.value, wanted.value) < PRODUCT


def small_cnn(axis_name=None):
    return models.build("cnn", 4, widths=(8, 16), axis_name=axis_name)


def images():
    """A batch whose last four examples are padding."""
    count = -(-32 // parallel.device_count()) * parallel.device_count()
    random = np.random.default_rng(2)
    x, y = random.normal(size=(count, 8, 8, 3)).astype(np.float32), random.integers(0, 4, count).astype(np.int32)
    return Batch(x, y, np.arange(count) < 28)


def training(gamma):
    """(a state on the host, tx)."""
    tx = optimiser.make_optimiser(
        "sgd", optimiser.step_schedule([2], 0.1), momentum=0.9, nesterov=False, weight_decay=5e-4, clip_norm=0.0
    )
    variables = dict(small_cnn().init(jax.random.PRNGKey(0), jnp.zeros((2, 8, 8, 3))))
    params = variables.pop("params")
    values = {"gamma": np.float32(gamma)}
    state = TrainState(np.int32(0), params, variables, tx.init(params), jax.random.PRNGKey(1), values, np.float32(0.1))
    return jax.device_get(state), tx


def moved(after, before):
    after, before = (jax.device_get((state.params, state.model_state)) for state in (after, before))
    return jax.tree.map(np.subtract, after, before)


def moved_on_the_cpu(state, tx):
    step = make_step(small_cnn().apply, losses.make_loss("focal_loss"), tx, lambda tree: tree)
    with jax.default_device(jax.devices("cpu")[0]):
        after, _ = jax.jit(step)(state, images())
    return moved(after, state)


def parallel_step(tx):
    apply = small_cnn(parallel.AXIS).apply
    return make_step(apply, losses.make_loss("focal_loss"), tx, parallel.reduce_sum)


@on_accelerator
def test_a_training_step_moves_parameters_and_statistics_as_on_the_cpu():
    state, tx = training(gamma=2.0)
    with jax.default_matmul_precision("highest"):
        after, _, fingerprints = parallel.pmapped(parallel_step(tx))(state, parallel.shard(images()))
    parallel.check_replicas(fingerprints)
    assert error(moved(after, state), moved_on_the_cpu(state, tx)) < UPDATE


def prediction_error(apply):
    state, _ = training(gamma=2.0)
    variables, batch = {"params": state.params, **state.model_state}, images()
    padded = data.evaluation_batches(Split(batch.x, batch.y), batch_size=20, multiple_of=parallel.device_count())
    found = evaluation.predict(parallel.pmapped_forward(apply), variables, padded)
    np.testing.assert_array_equal(found.labels, batch.y)
    return error(found.logits, oracle.forward(oracle.cnn, variables, batch.x)[0])


@on_accelerator
def test_predictions_are_those_of_float64():
    assert prediction_error(small_cnn().apply) < PRODUCT


@pytest.mark.parametrize("bits", [10, 7], ids=["TF32", "bfloat16"])
def test_the_tolerance_tells_products_of_fewer_digits_apart(hessian, bits):
    def rounded(left, right):
        left, right = (jax.lax.reduce_precision(each, 8, bits) for each in (left, right))
        return jnp.matmul(left, right, precision="highest")

    assert product_error(*plain_hessian(rounded), hessian) > 5 * PRODUCT
