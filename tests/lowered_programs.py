"""The products in every program that a call lowers, as StableHLO for TPU and CUDA, which the CPU lowers too."""

import contextlib
import sys
from typing import NamedTuple

import jax
from jax.interpreters import mlir

PLATFORMS = ("tpu", "cuda")
PRODUCTS = ("stablehlo.dot_general", "stablehlo.convolution")


class Lowered(NamedTuple):
    """What was lowered for the platforms: the products' precisions, and programs that a platform does not have."""

    precisions: list[tuple[str, str, str]]  # platform, product as text, its precisions; of floating-point operands
    refused: list[tuple[str, str]]  # platform, what jax says


@contextlib.contextmanager
def lowered_programs():
    """Yields a `Lowered` that grows by every program compiled inside, those of loops on the host included.

    Programs that were compiled before are lowered anew.
    """
    module = sys.modules[mlir.register_lowering.__module__]
    plain, found = module.lower_jaxpr_to_module, Lowered([], [])

    def lower(*args, platforms, **options):
        for platform in PLATFORMS:
            try:
                made = plain(*args, platforms=(platform,), **options).module
            except NotImplementedError as error:
                found.refused.append((platform, str(error)))
            else:
                found.precisions.extend((platform, *each) for each in _products(made.operation))
        return plain(*args, platforms=platforms, **options)

    jax.clear_caches()
    module.lower_jaxpr_to_module = lower
    try:
        yield found
    finally:
        module.lower_jaxpr_to_module = plain
        jax.clear_caches()


def _products(operation):
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _products(inner.operation)
                if inner.operation.name in PRODUCTS and "f" in str(inner.operation.operands[0].type).rpartition("x")[2]:
                    named = inner.operation.attributes
                    given = str(named["precision_config"]) if "precision_config" in named else "none"
                    yield str(inner.operation)[:200], given
