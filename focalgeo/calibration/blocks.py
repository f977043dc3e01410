"""Sums and maps over blocks of rows, several at once, on the host."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache

import jax
import numpy as np
from threadpoolctl import ThreadpoolController

from focalgeo import checks
from focalgeo.types import Array, InputError

_LARGE = 2**22  # numbers of a table from which on its terms are of its own type: float64 would take twice the time
_BLOCK = 2**17  # numbers of a table that are worked on at once: they stay in the processor's cache
_FEWEST_ROWS = 8  # of a block: with fewer the calls cost more than the work
_KEPT = 2**25 - 2**16  # bytes, a little less than glibc's largest threshold


def on_host(examples: checks.Examples) -> checks.Examples:
    """The examples that count, as NumPy's arrays."""
    if checks.is_traced(examples):
        raise InputError("a fit is made on the host: call it outside jit and vmap, of each set of examples by itself")
    examples = checks.Examples(*map(np.asarray, examples))
    counted = examples.weight > 0
    return examples if counted.all() else checks.Examples(*(array[counted] for array in examples))


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """As a decorator: NumPy's and SciPy's products in one thread, as the blocks of `in_blocks` are in several.

    Of small products OpenBLAS's own threads wait for each other longer than they work.
    """
    with _libraries().limit(limits=1, user_api="blas"):
        yield


_libraries = cache(ThreadpoolController)  # looks for them once, on first use


def in_blocks(function: Callable, *arrays: Array) -> list:
    """The function of blocks of rows, some at once: what it makes of the first array's numbers stays small."""
    rows = max(_FEWEST_ROWS, _BLOCK // arrays[0].shape[1])
    starts = range(0, max(len(arrays[0]), 1), rows)
    parts = ([array[first : first + rows] for array in arrays] for first in starts)
    wide = jax.config.jax_enable_x64

    def of_part(part):
        with np.errstate(all="ignore"), jax.enable_x64(wide):  # each is of a thread
            return function(*part)

    if len(starts) == 1:
        return [of_part(part) for part in parts]
    np.empty(_KEPT, np.uint8)  # freed at once: glibc then keeps what blocks free, in place of asking for it anew
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(of_part, parts))


def mapped(function: Callable, table: Array) -> np.ndarray:
    """function(rows) of a table, which is of its shape, in blocks."""
    results = np.empty(table.shape, function(table[:1]).dtype)

    def of_part(rows, into):
        into[...] = function(rows)

    in_blocks(of_part, table, results)
    return results


def summed(function: Callable, table: Array, *arrays: Array) -> np.ndarray:
    """The function's arrays added up over blocks in float64; of small tables it takes float64 numbers."""
    wide = np.float64 if table.size < _LARGE else table.dtype
    parts = in_blocks(lambda rows, *others: function(rows.astype(wide, copy=False), *others), table, *arrays)
    return np.sum(parts, axis=0, dtype=np.float64)
