"""A TPU's float32 products on the CPU: operands rounded to bfloat16 wherever a program names no precision."""

import contextlib

import jax
from jax.extend.core.primitives import conv_general_dilated_p, dot_general_p
from jax.interpreters import mlir

MANTISSA_BITS = {  # kept of an operand at each precision; all 23 at the highest
    jax.lax.Precision.DEFAULT: 7,  # one pass in bfloat16
    jax.lax.Precision.HIGH: 15,  # three passes
}


@contextlib.contextmanager
def bfloat16_passes(*, told=True):
    """Everything compiled and run inside multiplies matrices and convolves as a TPU does unless told otherwise.

    Float32 operands of a product of default precision are rounded to 7 bits of mantissa, of high precision to 15, those
    of the highest stay; sums are float32. It acts where a program is lowered, after derivatives, vmap and loops.

    told: False takes every product for one of default precision, as if no program named any.
    """
    kept = mlir._platform_specific_lowerings["cpu"]
    rules = {primitive: kept[primitive] for primitive in (dot_general_p, conv_general_dilated_p)}
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    jax.clear_caches()
    try:
        for primitive, rule in rules.items():
            mlir.register_lowering(primitive, _rounding(rule.rule, told), platform="cpu")
        yield
    finally:
        for primitive, rule in rules.items():
            kept[primitive] = rule
        jax.clear_caches()
        jax.config.update("jax_enable_compilation_cache", before)


def _rounding(plain, told):
    """The lowering rule `plain` of a product, of operands rounded as its precision says."""

    def lower(context, *operands, precision, **params):
        bits = MANTISSA_BITS.get(_named(precision) if told else jax.lax.Precision.DEFAULT)
        if bits is None or any(aval.dtype != "float32" for aval in context.avals_in):
            return plain(context, *operands, precision=precision, **params)
        round_off = mlir.lower_fun(
            lambda *values: [jax.lax.reduce_precision(value, exponent_bits=8, mantissa_bits=bits) for value in values]
        )
        rounded = round_off(context.replace(avals_out=context.avals_in), *operands)
        return plain(context, *mlir.ir_tree_registry.flatten(rounded)[0], precision=precision, **params)

    return lower


def _named(precision):
    """The lower of both operands' precisions; None is the default, and a named algorithm counts as the highest."""
    both = precision if isinstance(precision, tuple) else (precision,)
    both = [jax.lax.Precision.DEFAULT if each is None else each for each in both]
    return next((each for each in MANTISSA_BITS if each in both), jax.lax.Precision.HIGHEST)
