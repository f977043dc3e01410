"""Programs of a measurement for some devices: Hessian products, Lanczos, the search and the bootstrap."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments import programs
from experiments.programs import Program
from focalgeo import calibration, checks, curvature, parallel
from focalgeo.calibration import search
from focalgeo.curvature import lanczos
from focalgeo.evaluation.curvature import add_product, make_batch_loss
from focalgeo.job import measurement, preparation
from focalgeo.types import PyTree

Devices = Sequence[jax.Device]


def hessian_product(config: Any, devices: Devices) -> Program:
    """The Hessian product of one batch, as lambda_max, trace and density call it; examples are spread over devices."""
    *whole, batch = _product_arguments(config)
    return Program(add_product, (*_laid_out(tuple(whole), devices), _laid_out(batch, devices, spread=True)))


def lanczos_step(config: Any, devices: Devices) -> Program:
    """One product's way into the basis of config.curvature.max_products vectors: what is beside the product itself."""
    size = sum(leaf.size for leaf in jax.tree.leaves(_product_arguments(config)[0]))
    vector, block = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((size,), (1, size)))
    krylov = jax.eval_shape(lambda block: lanczos.krylov_start(block, steps=config.curvature.max_products), block)
    return Program(jax.jit(lanczos.expanded, donate_argnums=0), _laid_out((krylov, vector), devices))


def whole_measurement(config: Any, devices: Devices, *, what: str) -> Program:
    """lambda_max or the spectral density of one batch's Hessian as a single program, its loop and products inside."""
    settings = config.curvature
    estimate = {
        "density": partial(
            curvature.spectral_density, num_probes=settings.density_probes, steps=settings.density_steps
        ),
        "lambda_max": partial(curvature.lambda_max, max_products=settings.max_products, tolerance=settings.tolerance),
    }[what]

    def measured(key, zeros, *rest):
        point = jax.tree.map(jnp.zeros_like, zeros)
        return estimate(lambda vector: add_product(point, vector, *rest), zeros, key)

    params, _, *whole, batch = _product_arguments(config)
    arguments = _laid_out((jax.random.PRNGKey(0), params, *whole), devices)
    return Program(jax.jit(measured), (*arguments, _laid_out(batch, devices, spread=True)))


def grid_search(examples: int, classes: int, devices: Devices) -> Program:
    """The plain search: ECE and NLL at 10 gammas times 500 temperatures, on one device."""
    grid = np.float32(search.GAMMAS), np.float32(search.TEMPERATURES)

    def surfaces(logits, labels):
        return search.plain_surfaces(checks.predicted_logits(logits, labels), *grid)

    return Program(jax.jit(surfaces), _examples(examples, classes, devices))


def bootstrap(examples: int, classes: int, devices: Devices) -> Program:
    """The bootstrap of the ECE by 1,000 resamples, on one device."""

    def resampled(logits, labels):
        log_probs = jax.nn.log_softmax(logits)
        return calibration.bootstrap(calibration.ece, log_probs, labels, jax.random.PRNGKey(0), 1000)

    return Program(jax.jit(resampled), _examples(examples, classes, devices))


def _examples(count: int, classes: int, devices: Devices) -> PyTree:
    """Logits and labels on the first device."""
    return _laid_out((np.zeros((count, classes), np.float32), np.zeros(count, np.int32)), devices[:1])


def _product_arguments(config: Any) -> tuple:
    """Those of the first Hessian product of cross-entropy, at parameters that are 0.01."""
    made = programs.make_training(config)
    shapes = preparation.state_shapes(made.prepared, made.members[0])
    state = jax.tree.map(lambda leaf: np.full(leaf.shape, 0.01, np.float32).astype(leaf.dtype), shapes)
    problem = measurement.make_problem(made.members[0], made.prepared, state, "val")
    loss = make_batch_loss(problem.apply, problem.losses["cross_entropy"], made.config.curvature.examples)
    return problem.params, problem.params, loss, problem.params, problem.model_state, problem.batches[0]


def _laid_out(tree: PyTree, devices: Devices, *, spread: bool = False) -> PyTree:
    """Shapes with the layout of `parallel.spread`, examples filled up to a multiple of the devices, or `everywhere`."""
    layout = NamedSharding(Mesh(np.asarray(devices), (parallel.AXIS,)), PartitionSpec(*[parallel.AXIS] * spread))

    def of_leaf(leaf):
        rows = (-(-leaf.shape[0] // len(devices)) * len(devices), *leaf.shape[1:]) if spread else leaf.shape
        return leaf.update(shape=rows, sharding=layout)

    return jax.tree.map(of_leaf, programs.shapes(tree))
