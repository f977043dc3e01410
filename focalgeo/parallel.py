"""Devices: the only file that names pmap.

One path serves one device and many, one run and the members of a sweep.
Parameters and everything else in a TrainState live once per device with equal
values (in_axes None); a batch is cut into one shard per device. A forgotten psum would be silent under that layout, so
every compiled step also returns one fingerprint of its new state per device, and `check_replicas` compares them.
"""

import math
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from focalgeo.types import Array, Batch, PyTree, RunError, TrainState

AXIS = "devices"
MEMBERS = "members"


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
    free = [_number_after("MemAvailable:", Path("/proc/meminfo"), unit=1024)]
    limit, used = (_number_after("", Path("/sys/fs/cgroup") / name) for name in ("memory.max", "memory.current"))
    cached = _number_after("inactive_file", Path("/sys/fs/cgroup/memory.stat")) or 0  # given back when it is needed
    free.append(None if limit is None or used is None else limit - used + cached)
    return min((each for each in free if each is not None), default=None)


def _number_after(label: str, path: Path, *, unit: int = 1) -> int | None:
    """The whole number that follows `label` at the start of a line; None if there is no such file, line or number."""
    try:
        found = re.search(rf"^{label}\s*(\d+)", path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else unit * int(found[1])


def replicated(tree: PyTree) -> PyTree:
    """The tree on all devices, laid out as a compiled step returns it: the first call then compiles for all calls."""
    return jax.device_put(tree, _layout(1))


def spread(tree: PyTree) -> PyTree:
    """The tree with the first axis of each leaf over all devices, or whole on each where they do not divide it.

    A function under jax.jit then computes with all devices and gives the result that one device gives.
    """
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), (AXIS,))

    def layout(leaf):
        divides = np.ndim(leaf) > 0 and np.shape(leaf)[0] % mesh.size == 0
        return jax.sharding.NamedSharding(mesh, PartitionSpec(AXIS) if divides else PartitionSpec())

    return jax.device_put(tree, jax.tree.map(layout, tree))


def like(tree: PyTree, laid_out: PyTree) -> PyTree:
    """The leaves of `tree` on the devices, laid out as those of `laid_out` are."""
    return jax.tree.map(lambda leaf, there: jax.device_put(leaf, there.sharding), tree, laid_out)


def _layout(ways: int) -> jax.sharding.NamedSharding:
    """That of states [members, ...]: whole on each device, or split between `ways` groups of devices."""
    if ways == 1:
        return jax.sharding.NamedSharding(jax.sharding.Mesh(np.asarray(jax.devices()), (AXIS,)), PartitionSpec())
    return jax.sharding.NamedSharding(_mesh(ways), PartitionSpec(MEMBERS))


def _mesh(ways: int) -> jax.sharding.Mesh:
    """All devices as [ways, rest]: members are spread over the first axis, a batch over the second."""
    return jax.sharding.Mesh(np.asarray(jax.devices()).reshape(ways, -1), (MEMBERS, AXIS))


def reduce_sum(tree: PyTree) -> PyTree:
    """Sum of every leaf over all devices, inside `pmapped` only; sums and counts are reduced first, divided after."""
    return jax.lax.psum(tree, AXIS)


def gather(tree: PyTree) -> PyTree:
    """All devices' examples [examples, ...] in every leaf, inside `pmapped` only; gradients flow back to owners."""
    return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, AXIS, tiled=True), tree)


def from_first_device(tree: PyTree) -> PyTree:
    """The first device's value of every leaf, on all devices; inside `pmapped` only."""
    return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, AXIS)[0], tree)


def shard(batch: Batch) -> Batch:
    """Cut a batch [examples, ...] into one shard per device, [devices, examples / devices, ...]."""
    return jax.tree.map(lambda leaf: leaf.reshape(jax.device_count(), -1, *leaf.shape[1:]), batch)


class Program(NamedTuple):
    """A compiled step of a sweep's members, some at a time, and how their states come to the devices and back.

    step: (chunks, host batch) -> (chunks, metrics, fingerprints), each a list with one entry per chunk; a chunk is the
    TrainState of some members, metrics are [members], fingerprints [ways, devices of a way]. States are donated.
    A batch is any tree with leaves [sources, examples, ...].
    place: TrainState [members, ...] -> chunks. whole: chunks -> TrainState [members, ...] in host memory.
    temporary: (TrainState, host batch) -> bytes that a device needs for one call beside states and batch.
    """

    step: Callable
    place: Callable
    whole: Callable
    temporary: Callable


def make_program(step: Callable, *, at_once: int, shared: tuple[PyTree, ...] = ()) -> Program:
    """The program that advances `at_once` members in one call of step(states, batch, *shared) -> (states, metrics).

    The devices are split between members as far as `at_once` divides evenly (members never wait for each other), and
    within each part between the examples of a batch. Batches are [sources, examples, ...] and sharded by examples.
    shared: trees that stay whole on each device, such as all training examples.
    """
    ways = math.gcd(at_once, jax.device_count())
    if ways > 1:
        compiled, shard_batch = _over_members(step, ways, len(shared))
    else:
        compiled, shard_batch = pmapped(step, num_shared=len(shared)), _sharded_sources
    layout = _layout(ways)
    shared = jax.device_put(shared, jax.sharding.NamedSharding(layout.mesh, PartitionSpec()))

    def step_all(chunks: list, batch: PyTree) -> tuple[list, list, list]:
        shards = shard_batch(batch)
        return tuple(map(list, zip(*(_in_turn(compiled(chunk, shards, *shared)) for chunk in chunks), strict=True)))

    def place(state: TrainState) -> list:
        chosen = [slice(start, start + at_once) for start in range(0, len(state.step), at_once)]
        return [jax.device_put(jax.tree.map(operator.itemgetter(some), state), layout) for some in chosen]

    def whole(chunks: list) -> TrainState:
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *jax.device_get(chunks))

    def temporary(state: TrainState, batch: PyTree) -> int:
        found = compiled.lower(place(state)[0], shard_batch(batch), *shared).compile().memory_analysis()
        return 0 if found is None else found.temp_size_in_bytes  # not every backend says

    return Program(step_all, place, whole, temporary)


def _in_turn(results: PyTree) -> PyTree:
    """The results, waited for where several devices are one CPU's.

    Its devices take independent programs in any order, and wait for each other for ever in the sums of different ones.
    """
    several = jax.device_count() > 1 and jax.default_backend() == "cpu"
    return jax.block_until_ready(results) if several else results


def _sharded_sources(batch: PyTree) -> PyTree:
    """[sources, examples, ...] -> [devices, sources, examples / devices, ...], on the devices for all chunks."""
    devices = jax.device_count()

    def cut(leaf):
        return np.moveaxis(leaf.reshape(leaf.shape[0], devices, -1, *leaf.shape[2:]), 1, 0)

    return spread(jax.tree.map(cut, batch))


def _over_members(step: Callable, ways: int, num_shared: int) -> tuple[Callable, Callable]:
    """The step with members over `ways` groups of devices, and the layout of its batches."""
    mesh, examples = _mesh(ways), PartitionSpec(None, AXIS)

    def replica(state: TrainState, batch: PyTree, *shared: PyTree):
        new_state, metrics, fingerprint = _own_noise(step)(state, batch, *shared)
        return new_state, metrics, fingerprint[None, None]

    by_member, whole = PartitionSpec(MEMBERS), (PartitionSpec(),) * num_shared
    specs = {
        "in_specs": (by_member, examples, *whole),
        "out_specs": (by_member, by_member, PartitionSpec(MEMBERS, AXIS)),
    }
    compiled = jax.jit(jax.shard_map(replica, mesh=mesh, check_vma=False, **specs), donate_argnums=0)
    layout = jax.sharding.NamedSharding(mesh, examples)
    return compiled, lambda batch: jax.device_put(batch, layout)


def pmapped(step: Callable, *, num_shared: int = 0) -> Callable:
    """Compile step(state, batch, *shared) -> (state, metrics) for all devices; shared: `num_shared` trees, never cut.

    The result maps (state, sharded batch, *shared) to (state, metrics, fingerprints).

    The state is donated. Each replica's noise key is its own: the state's key folded with the device's index.
    """
    axes = {"in_axes": (None, 0) + (None,) * num_shared, "out_axes": (None, None, 0)}
    return jax.pmap(_own_noise(step), axis_name=AXIS, donate_argnums=0, **axes)


def _own_noise(step: Callable) -> Callable:
    """The step with a noise key of this device's own, and a fingerprint of the new state beside the metrics."""

    def replica(state: TrainState, batch: PyTree, *shared: PyTree):
        keys = state.key.reshape(-1, state.key.shape[-1])  # one, or one for each member of a sweep
        own = jax.vmap(jax.random.fold_in, (0, None))(keys, jax.lax.axis_index(AXIS)).reshape(state.key.shape)
        new_state, metrics = step(state._replace(key=own), batch, *shared)
        new_state = new_state._replace(key=state.key)
        return new_state, metrics, _fingerprint(new_state)

    return replica


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
