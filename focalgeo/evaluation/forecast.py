"""Forecasts: the memory of a forward pass, and the memory and time that a measurement of curvature takes."""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from focalgeo import trees
from focalgeo.evaluation.curvature import Problem, add_product, count_examples, make_batch_loss, on_device
from focalgeo.precision import at_highest
from focalgeo.types import InputError, PyTree


class Forward(NamedTuple):
    """Forecast of a network's forward pass: its logits, and bytes of the outputs of products and convolutions."""

    logits: jax.ShapeDtypeStruct
    largest: int  # one of the outputs is held at least
    all: int  # which the pass back needs at once


def forecast_forward(apply: Callable, variables: PyTree, x: PyTree) -> Forward:
    """The forward pass apply(variables, x), arrays or their shapes; runs nothing."""
    traced = jax.jit(apply).trace(variables, x)
    outputs = list(_product_outputs(traced.jaxpr.jaxpr))
    return Forward(traced.out_info, max(outputs, default=0), sum(outputs))


def _product_outputs(jaxpr: Any) -> Iterator[int]:
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            yield tree_bytes([each.aval for each in equation.outvars])
        for parameter in equation.params.values():
            inner = getattr(parameter, "jaxpr", parameter)
            yield from _product_outputs(inner) if hasattr(inner, "eqns") else ()


def tree_bytes(tree: PyTree) -> int:
    """Bytes of all leaves, arrays or their shapes."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def check_fits(what: str, needed: int, available: int, *, mend: str) -> None:
    """Refuses what needs more bytes than are available, before any is allocated.

    Raises:
        InputError: what is needed, of what, and what makes it less.
    """
    if needed > available:
        raise InputError(f"{what} needs at least {_gigabytes(needed)}, {_gigabytes(available)} are free: {mend}")


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e9:.2g} GB"


class Forecast(NamedTuple):
    """Bytes that a measurement holds at its peak, beside the batches: one product's, and the vectors kept."""

    product: int
    vectors: int
    num_parameters: int

    @property
    def total(self) -> int:
        """Bytes in all."""
        return self.product + self.vectors


@at_highest
def forecast_memory(problem: Problem, *, num_vectors: int) -> Forecast:
    """The memory of Hessian products of the problem's losses with `num_vectors` vectors of its parameters kept.

    One product needs what the compiler states for it; the same compiled program measures later. Runs nothing.
    """
    count_examples(problem)
    problem = on_device(problem)
    vector_bytes = tree_bytes(problem.params)
    needs = [_product_bytes(_arguments(problem, name)) for name in problem.losses]
    return Forecast(max(needs), num_vectors * vector_bytes, trees.size(problem.params))


def _arguments(problem: Problem, name: str) -> tuple:
    """The arguments of `add_product` for the first batch, with the parameters in place of vectors of their shapes."""
    batch_loss = make_batch_loss(problem.apply, problem.losses[name], count_examples(problem))
    return problem.params, problem.params, batch_loss, problem.params, problem.model_state, next(iter(problem.batches))


def _product_bytes(arguments: tuple) -> int:
    found = add_product.lower(*arguments).compile().memory_analysis()
    if found is None:  # not every backend states it
        return 0
    return found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes


def check_memory(forecast: Forecast, available: int | None) -> None:
    """Refuses a measurement that does not fit in `available` bytes (None: unknown), before the system ends the process.

    Raises:
        InputError: what is needed, of what, and which fields make it less.
    """
    if available is None or forecast.total <= available:
        return
    needed, product, vectors, free = (
        f"{count / 1e9:.2g} GB" for count in (forecast.total, forecast.product, forecast.vectors, available)
    )
    raise InputError(
        f"curvature needs about {needed} ({product} for a batch's Hessian product, {vectors} for vectors of "
        f"{forecast.num_parameters:,} parameters), {free} are free: lower config.curvature.batch_size, or "
        "max_products, num_probes and density_steps, or set examples=0 to leave curvature out"
    )


@at_highest
def seconds_of_product(problem: Problem) -> float:
    """Seconds of one Hessian product over all batches, from one batch measured after compilation."""
    count_examples(problem)
    problem = on_device(problem)
    arguments = _arguments(problem, next(iter(problem.losses)))
    jax.block_until_ready(add_product(*arguments))
    began = time.perf_counter()
    jax.block_until_ready(add_product(*arguments))
    return sum(1 for _ in problem.batches) * (time.perf_counter() - began)
