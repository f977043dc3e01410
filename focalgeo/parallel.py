"""Devices: training and prediction by pmap, which no other file names, and how arrays are laid out on the devices.

One mechanism serves one device and many, one run and the members of a sweep. A batch is cut into one part for each
device; everything else in a TrainState lives once per device with equal values (in_axes None). A forgotten sum over
devices would be silent under that layout, so every compiled step also returns one fingerprint of its new state per
device, and `check_replicas` compares them. Where the members that advance together divide evenly, they are spread over
the devices instead: members never wait for each other.

Curvature alone uses `spread`: its products over batches are plain functions under jax.jit, which XLA
partitions by the layout of the examples; code that names no device axis also runs where there is none.
"""

import math
import operator
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from focalgeo import files
from focalgeo.types import Array, Batch, PyTree, RunError, TrainState

AXIS = "devices"


def device_count() -> int:
    """Number of devices; batches are padded to a multiple of it.

    Raises:
        RunError: jax runs in several processes, which the files that a run writes are not made for.
    """
    if jax.process_count() > 1:
        raise RunError(f"jax runs in {jax.process_count()} processes: start one process that sees all devices")
    return jax.device_count()


def free_memory() -> int | None:
    """Bytes that the first device can still give: its own memory, or on a CPU the machine's; None if not known."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats["bytes_in_use"]
    free = files.free_memory()
    return None if free == math.inf else int(free)


def replicated(tree: PyTree) -> PyTree:
    """The tree on all devices, in the layout that a compiled step returns: its second call then compiles nothing."""
    return jax.device_put(tree, jax.sharding.NamedSharding(_mesh(), PartitionSpec()))


def spread(tree: PyTree) -> PyTree:
    """The tree with the first axis of each leaf over all devices, or complete on each where they do not divide it.

    A function under jax.jit then computes with all devices and gives the result that one device gives.
    """
    mesh = _mesh()

    def layout(leaf):
        divides = np.ndim(leaf) > 0 and np.shape(leaf)[0] % mesh.size == 0
        return jax.sharding.NamedSharding(mesh, PartitionSpec(AXIS) if divides else PartitionSpec())

    return jax.device_put(tree, jax.tree.map(layout, tree))


def like(tree: PyTree, laid_out: PyTree) -> PyTree:
    """The leaves of `tree` on the devices, in the shapes and the layout of those of `laid_out`."""
    return jax.tree.map(lambda leaf, there: jax.device_put(leaf.reshape(there.shape), there.sharding), tree, laid_out)


def _mesh() -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.asarray(jax.devices()), (AXIS,))


def reduce_sum(tree: PyTree) -> PyTree:
    """Sum of every leaf over all devices, inside `pmapped` only; sums and counts are reduced first, divided after."""
    return jax.lax.psum(tree, AXIS)


def gather(tree: PyTree) -> PyTree:
    """All devices' examples [examples, ...] in every leaf, inside `pmapped` only; gradients flow back to owners."""
    return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, AXIS, tiled=True), tree)


def from_first_device(tree: PyTree) -> PyTree:
    """The first device's value of every leaf, on all devices; inside `pmapped` only."""
    return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, AXIS)[0], tree)


def shard(tree: PyTree, *, axis: int = 0) -> PyTree:
    """Cut an axis of every leaf into one part per device, [..., n, ...] -> [devices, ..., n / devices, ...]."""
    devices = jax.device_count()

    def cut(leaf: Array) -> Array:
        return np.moveaxis(leaf.reshape(*leaf.shape[:axis], devices, -1, *leaf.shape[axis + 1 :]), axis, 0)

    return jax.tree.map(cut, tree)


class Program(NamedTuple):
    """A compiled step of a sweep's members, one group at a time, and the way of their states to devices and back.

    step: (groups, host batch) -> (groups, metrics, fingerprints), each a list with one entry per group. A batch is any
    tree with leaves [streams, examples, ...]. The groups given are donated.
    place: TrainState [members, ...] -> groups, on the devices.
    states: groups -> a TrainState [members of the group, ...] of each, still on the devices.
    gather: groups -> TrainState [members, ...] in host memory.
    temporary: (TrainState, host batch) -> bytes that a device needs for one call beside states and batch.
    """

    step: Callable[[list, PyTree], tuple[list, list, list]]
    place: Callable[[TrainState], list]
    states: Callable[[list], list[TrainState]]
    gather: Callable[[list], TrainState]
    temporary: Callable[[TrainState, PyTree], int]


def make_program(step: Callable, *, at_once: int, shared: tuple[PyTree, ...] = ()) -> Program:
    """The program that advances `at_once` members in one call of step(states, batches, *shared) -> (states, metrics).

    The members of a group are spread over the devices where they divide evenly, else the examples of a batch are.
    Members on several devices each (axis_index_groups) would be a third layout, in which every network's batch norm had
    to be told its group: 4 members on 8 devices share each batch instead.
    shared: trees that are complete on each device, such as all training examples.
    """
    apart = device_count() > 1 and at_once % device_count() == 0
    compiled = (pmapped_members if apart else pmapped)(step, num_shared=len(shared))
    shared = replicated(shared)

    def on_devices(batch: PyTree) -> PyTree:
        return replicated(batch) if apart else spread(shard(batch, axis=1))

    def step_all(groups: list, batch: PyTree) -> tuple[list, list, list]:
        batch = on_devices(batch)
        return tuple(map(list, zip(*(_in_turn(compiled(group, batch, *shared)) for group in groups), strict=True)))

    def place(states: TrainState) -> list:
        chosen = (slice(start, start + at_once) for start in range(0, len(states.step), at_once))
        groups = [jax.tree.map(operator.itemgetter(some), states) for some in chosen]
        return [spread(shard(group)) if apart else replicated(group) for group in groups]

    def states(groups: list) -> list[TrainState]:
        return list(map(_one_axis, groups)) if apart else groups

    def gather(groups: list) -> TrainState:
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *jax.device_get(states(groups)))

    def temporary(states: TrainState, batch: PyTree) -> int:
        found = compiled.lower(place(states)[0], on_devices(batch), *shared).compile().memory_analysis()
        return 0 if found is None else found.temp_size_in_bytes  # not every backend says

    return Program(step_all, place, states, gather, temporary)


@jax.jit
def _one_axis(states: TrainState) -> TrainState:
    """[devices, members / devices, ...] -> [members, ...]."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), states)


def _in_turn(results: PyTree) -> PyTree:
    """The results, after waiting for them where several devices are one CPU's.

    Its devices take independent programs in any order, and wait for each other for ever in the sums of different ones.
    """
    several = jax.device_count() > 1 and jax.default_backend() == "cpu"
    return jax.block_until_ready(results) if several else results


def pmapped(step: Callable, *, num_shared: int = 0) -> Callable:
    """Compile step(state, batch, *shared) -> (state, metrics) for all devices; shared: `num_shared` trees, never cut.

    The result maps (state, sharded batch, *shared) to (state, metrics, fingerprints [devices]).

    The state is donated. Each replica's noise key is its own: the state's key folded with the device's index.
    """

    def replica(state: TrainState, batch: PyTree, *shared: PyTree) -> tuple:
        return _one_step(step, jax.lax.axis_index(AXIS), state, batch, *shared)

    axes = {"in_axes": (None, 0) + (None,) * num_shared, "out_axes": (None, None, 0)}
    return jax.pmap(replica, axis_name=AXIS, donate_argnums=0, **axes)


def pmapped_members(step: Callable, *, num_shared: int = 0) -> Callable:
    """Compile step(states, batch, *shared) -> (states, metrics) for members that are spread over the devices.

    The result maps (states [devices, members / devices, ...], batch, *shared) to (states, metrics, fingerprints
    [devices, 1]); every device sees the complete batch. The states are donated. A step's sums over `AXIS` then run over
    an axis of length 1, so that a member's numbers are those of a run on one device.
    """

    def on_one_device(*arguments: PyTree) -> tuple:
        results = jax.vmap(step, in_axes=None, axis_name=AXIS, axis_size=1)(*arguments)
        return jax.tree.map(operator.itemgetter(0), results)

    def replica(states: TrainState, batch: PyTree, *shared: PyTree) -> tuple:
        states, metrics, fingerprint = _one_step(on_one_device, 0, states, batch, *shared)
        return states, metrics, fingerprint[None]

    return jax.pmap(replica, donate_argnums=0, in_axes=(0, None) + (None,) * num_shared)


def _one_step(step: Callable, index: Array | int, state: TrainState, batch: PyTree, *shared: PyTree) -> tuple:
    """The step with the noise key of device number `index`, and a fingerprint of the new state beside the metrics."""
    keys = state.key.reshape(-1, state.key.shape[-1])  # one, or one for each member of a sweep
    own = jax.vmap(jax.random.fold_in, (0, None))(keys, index).reshape(state.key.shape)
    new_state, metrics = step(state._replace(key=own), batch, *shared)
    new_state = new_state._replace(key=state.key)
    return new_state, metrics, _fingerprint(new_state)


def pmapped_forward(forward: Callable) -> Callable:
    """Compile forward(variables, x) -> outputs for all devices.

    The result maps (variables, batch) to the outputs [examples, ...] on the host.
    """
    compiled = jax.pmap(forward, axis_name=AXIS, in_axes=(None, 0))

    def outputs(variables: PyTree, batch: Batch) -> np.ndarray:
        sharded = np.asarray(jax.device_get(compiled(replicated(variables), shard(batch).x)))
        return sharded.reshape(-1, *sharded.shape[2:])

    return outputs


def check_replicas(fingerprints: Array) -> None:
    """Raise RunError unless the states of the last axis' devices agree bit for bit (fingerprints: uint32)."""
    seen = np.asarray(jax.device_get(fingerprints))
    if np.any(seen != seen[..., :1]):
        raise RunError("the devices hold different parameters: a reduction over devices is missing in the step")


def _fingerprint(tree: PyTree) -> Array:
    """Sum of all leaves' bits modulo 2^32: cheap beside a training step, and different where states differ."""
    return sum(jnp.sum(_bits(leaf), dtype=jnp.uint32) for leaf in jax.tree.leaves(tree))


def _bits(leaf: Array) -> Array:
    leaf = jnp.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return jax.lax.bitcast_convert_type(leaf.astype(jnp.float32), jnp.uint32)
    return leaf.astype(jnp.uint32)
