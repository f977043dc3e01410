"""Programs of a measurement: Hessian products, Lanczos, the search over (gamma, temperature) and the bootstrap."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments.accelerators.counts import product_flops
from experiments.accelerators.steps import Call, Program, make_job, shapes
from focalgeo import calibration, checks, curvature, parallel
from focalgeo.calibration.search import GAMMAS, TEMPERATURES, plain_surfaces
from focalgeo.curvature.lanczos import expanded, krylov_start
from focalgeo.evaluation.curvature import add_product, make_batch_loss, on_device
from focalgeo.job import measurement, preparation
from focalgeo.types import PyTree


def hessian_product(config) -> Program:
    """The Hessian product of one batch, as lambda_max, trace and density call it; examples are spread over devices."""
    problem, arguments = _problem(config)
    batch = problem.batches[0]
    own = product_flops(jax.grad(arguments[2]), problem.params, problem.model_state, batch)

    def call(devices: Sequence[jax.Device]) -> Call:
        whole = _laid_out(arguments[:-1], devices)
        return Call(add_product, (*whole, _laid_out(batch, devices, spread=True)))

    def start() -> Callable[[], PyTree]:
        held = on_device(problem)
        placed = (*parallel.everywhere(arguments[:-1]), held.batches[0])
        return lambda: add_product(*placed)

    return Program(call, start, own)


def lanczos_step(config) -> Program:
    """One product's way into the basis of config.curvature.max_products vectors: what is beside the product itself."""
    problem, _ = _problem(config)
    size = sum(np.size(leaf) for leaf in jax.tree.leaves(problem.params))
    function = jax.jit(expanded, donate_argnums=0)
    steps = config.curvature.max_products
    vector = jax.ShapeDtypeStruct((size,), jnp.float32)
    block = jax.ShapeDtypeStruct((1, size), jnp.float32)
    krylov = jax.eval_shape(lambda block: krylov_start(block, steps=steps), block)

    def call(devices: Sequence[jax.Device]) -> Call:
        return Call(function, _laid_out((krylov, vector), devices))

    def start() -> Callable[[], PyTree]:
        product = jnp.ones(size, jnp.float32)
        state = krylov_start(product[None] / jnp.sqrt(size), steps=steps)

        def run() -> PyTree:
            nonlocal state
            state = function(state._replace(step=state.step * 0), product)
            return state

        return run

    return Program(call, start, product_flops(expanded, krylov, vector))


def whole_measurement(config, *, what: str) -> Program:
    """lambda_max or the spectral density of one batch's Hessian as a single program, its loop and products inside."""
    _, arguments = _problem(config)
    settings = config.curvature

    def measured(key, arguments: tuple) -> PyTree:
        zeros, _, *rest = arguments

        def matvec(vector: PyTree) -> PyTree:
            return add_product(jax.tree.map(jnp.zeros_like, zeros), vector, *rest)

        if what == "density":
            options = {"num_probes": settings.density_probes, "steps": settings.density_steps}
            return curvature.spectral_density(matvec, zeros, key, **options)
        options = {"max_products": settings.max_products, "tolerance": settings.tolerance}
        return curvature.lambda_max(matvec, zeros, key, **options)

    function, key = jax.jit(measured), jax.random.PRNGKey(0)

    def call(devices: Sequence[jax.Device]) -> Call:
        whole, batch = _laid_out((key, arguments[:-1]), devices), _laid_out(arguments[-1], devices, spread=True)
        return Call(function, (whole[0], (*whole[1], batch)))

    def start() -> Callable[[], PyTree]:
        placed = jax.device_put(arguments)
        return lambda: function(key, placed)

    return Program(call, start, None)


def search(examples: int, classes: int) -> Program:
    """The plain search: ECE and NLL at 10 gammas times 500 temperatures, on one device."""
    grid = np.float32(GAMMAS), np.float32(TEMPERATURES)
    return _on_examples(examples, classes, lambda z, y: plain_surfaces(checks.predicted_logits(z, y), *grid))


def bootstrap(examples: int, classes: int, *, num_resamples: int = 1000) -> Program:
    """The bootstrap of the ECE, on one device."""
    key = jax.random.PRNGKey(0)

    def resampled(logits, labels) -> PyTree:
        return calibration.bootstrap(calibration.ece, jax.nn.log_softmax(logits), labels, key, num_resamples)

    return _on_examples(examples, classes, resampled)


def _on_examples(examples: int, classes: int, function: Callable) -> Program:
    function = jax.jit(function)
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(examples, classes)).astype(np.float32)
    labels = rng.integers(0, classes, examples).astype(np.int32)

    def call(devices: Sequence[jax.Device]) -> Call:
        return Call(function, _laid_out((logits, labels), devices[:1]))

    def start() -> Callable[[], PyTree]:
        placed = jax.device_put((logits, labels))
        return lambda: function(*placed)

    return Program(call, start, None)


def _problem(config) -> tuple[Any, tuple]:
    """The problem of cross-entropy at parameters that are 0.01, and the arguments of its first Hessian product."""
    job = make_job(config)
    state = jax.tree.map(
        lambda leaf: np.full(leaf.shape, 0.01, np.float32).astype(leaf.dtype),
        preparation.state_shapes(job.prepared, job.members[0]),
    )
    problem = measurement.make_problem(job.members[0], job.prepared, state, "val")
    loss = make_batch_loss(problem.apply, problem.losses["cross_entropy"], job.config.curvature.examples)
    first = problem.batches[0]
    return problem, (problem.params, problem.params, loss, problem.params, problem.model_state, first)


def _laid_out(tree: PyTree, devices: Sequence[jax.Device], *, spread: bool = False) -> PyTree:
    """Shapes with the layout of `parallel.spread`, examples filled up to a multiple of the devices, or `everywhere`."""
    mesh = Mesh(np.asarray(devices), (parallel.AXIS,))
    layout = NamedSharding(mesh, PartitionSpec(parallel.AXIS) if spread else PartitionSpec())

    def of_leaf(leaf):
        rows = (-(-leaf.shape[0] // len(devices)) * len(devices), *leaf.shape[1:]) if spread else leaf.shape
        return leaf.update(shape=rows, sharding=layout)

    return jax.tree.map(of_leaf, shapes(tree))
