"""Devices and processes: the only file that names pmap.

One path serves one device and many. Parameters and everything else in a TrainState live once per device with equal
values (in_axes None); a batch is cut into one shard per device. A forgotten psum would be silent under that layout, so
every compiled step also returns one fingerprint of its new state per device, and `check_replicas` compares them.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo.types import Array, Batch, PyTree, RunError, TrainState

AXIS = "devices"


def device_count() -> int:
    """Number of devices over all processes; batches are padded to a multiple of it."""
    return jax.device_count()


def is_main_process() -> bool:
    """Whether this process writes files and prints; true in a run of one process."""
    return jax.process_index() == 0


def reduce_sum(tree: PyTree) -> PyTree:
    """Sum of every leaf over all devices, inside `pmapped` only; sums and counts are reduced first, divided after."""
    return jax.lax.psum(tree, AXIS)


def shard(batch: Batch) -> Batch:
    """Cut a batch [examples, ...] into this process's shards [local devices, examples / devices, ...]."""
    devices, local = jax.device_count(), jax.local_device_count()
    first = jax.process_index() * local
    return jax.tree.map(lambda leaf: leaf.reshape(devices, -1, *leaf.shape[1:])[first : first + local], batch)


def pmapped(step: Callable) -> Callable:
    """Compile step(state, batch) -> (state, metrics) for all devices.

    The result maps (state, sharded batch) to (state, metrics, fingerprints).

    The state is donated. Each replica's noise key is its own: the state's key folded with the device's index.
    """

    def replica(state: TrainState, batch: Batch):
        own_key = jax.random.fold_in(state.key, jax.lax.axis_index(AXIS))
        new_state, metrics = step(state._replace(key=own_key), batch)
        new_state = new_state._replace(key=state.key)
        return new_state, metrics, _fingerprint(new_state)

    return jax.pmap(replica, axis_name=AXIS, in_axes=(None, 0), out_axes=(None, None, 0), donate_argnums=0)


def pmapped_forward(forward: Callable) -> Callable:
    """Compile forward(variables, x) -> outputs for all devices.

    The result maps (variables, batch) to the outputs [examples, ...] on the host.
    """
    compiled = jax.pmap(forward, axis_name=AXIS, in_axes=(None, 0))

    def outputs(variables: PyTree, batch: Batch) -> np.ndarray:
        sharded = np.asarray(jax.device_get(compiled(variables, shard(batch).x)))
        return sharded.reshape(-1, *sharded.shape[2:])

    return outputs


def check_replicas(fingerprints: Array) -> None:
    """Raise RunError unless the new states on all devices agree bit for bit (fingerprints: uint32 [devices])."""
    seen = np.asarray(jax.device_get(fingerprints))
    if np.any(seen != seen[0]):
        raise RunError(
            f"the {seen.size} devices hold different parameters after the first step: "
            "a reduction over devices is missing in the step"
        )


def _fingerprint(tree: PyTree) -> Array:
    """Sum of all leaves' bits modulo 2^32: cheap beside a training step, and different where states differ."""
    return sum(jnp.sum(_bits(leaf), dtype=jnp.uint32) for leaf in jax.tree.leaves(tree))


def _bits(leaf: Array) -> Array:
    leaf = jnp.asarray(leaf)
    return jax.lax.bitcast_convert_type(
        leaf.astype(jnp.float32) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, jnp.uint32
    )
