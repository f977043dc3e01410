"""Devices and processes: the only pmap, the layout of arrays on devices, and how processes of one job agree.

One mechanism serves one device and many, one run and the members of a sweep. A batch is cut into one part for each
device; everything else in a TrainState lives once per device with equal values (in_axes None). A forgotten sum over
devices would be silent under that layout, so every compiled step also returns one fingerprint of its new state per
device, and `check_replicas` compares them. Where the members that advance together divide evenly, they are spread over
the devices instead: members never wait for each other.

The devices may be those of several processes, which jax.distributed joins. Every process runs the same calls; what it
passes in and gets back are arrays of its own devices, and the devices of process i are a block of all of them, in the
order of the processes. What could differ between processes is decided by process 0 and told to all (`broadcast`).

Curvature alone uses `spread` and `everywhere`: its products over batches are plain functions under jax.jit, which XLA
partitions by the layout of the examples over all devices; code that names no device axis also runs where there is none.
"""

import json
import operator
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from focalgeo import files
from focalgeo.trees import at_highest
from focalgeo.types import Array, InputError, Interrupted, PyTree, RunError, TrainState, shown

AXIS = "devices"
_MEMBERS = "members"
# Seconds that processes which have ended wait for process 0, which draws the report.
_LONG = 86_400


def interrupted() -> int | None:
    """The number of a signal that asks this process to stop; of several processes all stop where they next agree."""
    return None  # run.py puts another function in its place


def join(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    *,
    join_timeout: int = 300,
    heartbeat: int = 100,
) -> None:
    """Join the processes that the arguments name, or those that jax detects (SLURM, Open MPI, GKE, TPU); else go alone.

    coordinator: HOST:PORT of process 0; the first three go together. Times are in seconds: jax's runtime ends this
    process when another has given no sign of life for `heartbeat`.

    Raises:
        InputError: jax cannot use the arguments. RunError: the others do not come.
    """
    # Jax's own handling of preemption would take SIGTERM, at which a run saves and stops.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        with warnings.catch_warnings(action="ignore"):  # of a Kubernetes pod that is none of several
            jax.distributed.initialize(
                coordinator,
                processes,
                process,
                cluster_detection_method=None if coordinator is None else "deactivate",
                initialization_timeout=join_timeout,
                heartbeat_timeout_seconds=heartbeat,
                shutdown_timeout_seconds=_LONG,
            )
    except jax.errors.JaxRuntimeError as error:
        raise RunError(f"the other processes cannot be joined: {shown(error, most=200)}") from error
    except Exception as error:  # without arguments: of no launcher that jax knows, or once jax has begun to compute
        if coordinator is not None:
            flags = f"--coordinator={coordinator} --processes={processes} --process={process}"
            raise InputError(f"{flags}: {shown(error, most=200)}") from error


def connect() -> None:
    """Let all processes and devices meet: a CPU's first sum waits for half a minute only, later ones for long.

    Raises:
        InputError: the processes differ in devices or versions.
    """
    files.process = jax.process_index()
    if count() == 1:
        return
    devices = jax.local_devices()
    here = f"process {files.process} of {count()} on {shown(platform.node())}"
    files.write_line(f"{here}: {len(devices)} of {device_count()} {devices[0].platform} devices")
    if device_count() != count() * len(devices):
        raise InputError(f"{count()} processes have {device_count()} devices: give every process equally many")
    jax.block_until_ready(jax.pmap(partial(jax.lax.psum, axis_name=AXIS), AXIS)(np.zeros(len(devices))))
    alike = {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy", "focalgeo")}
    alike["devices"] = devices[0].device_kind
    check_equal("versions or devices", alike, "install the same on every host, with devices of one kind")


def leave(code: int) -> None:
    """Part from the other processes: together where all have ended alike, with 0 or by a signal.

    After an error process 0, without which jax's runtime ends the others, waits until they have said theirs.
    """
    if count() > 1 and (code == 0 or code > 128):
        jax.distributed.shutdown()
    elif count() > 1 and files.is_first():
        time.sleep(2)


def count() -> int:
    """The number of processes."""
    return jax.process_count()


def exchange(name: str, value: Any) -> list[Any]:
    """The JSON values of all processes, in their order; all must ask for the same name in turn.

    Raises:
        Interrupted: a signal has asked one of them to stop. RunError: they are out of step.
    """
    if count() == 1:
        return [value]
    text = json.dumps([name, value, interrupted() or 0]).encode()
    longest = int(np.max(multihost_utils.process_allgather(np.int32(len(text)))))
    # Of few lengths, as each compiles a program.
    padded = text.ljust(1 << longest.bit_length())
    texts = multihost_utils.process_allgather(np.frombuffer(padded, np.uint8))
    names, values, signals = zip(*(json.loads(text.tobytes()) for text in texts), strict=True)
    if len(set(names)) > 1:
        raise RunError(f"the processes are out of step: {name!r} here, {shown(names)} of all")
    if any(signals):
        raise Interrupted(max(signals))
    return list(values)


def broadcast(name: str, decide: Callable[[], Any]) -> Any:
    """The JSON value that `decide` gives on process 0, which alone calls it; all raise its InputError or RunError."""
    if count() == 1:
        return decide()
    value, error = None, None
    if files.is_first():
        try:
            value = decide()
        except (InputError, RunError) as raised:
            error = [isinstance(raised, InputError), str(raised)]
    value, error = exchange(name, [value, error])[0]
    if error is not None:
        raise (InputError if error[0] else RunError)(error[1])
    return value


def check_equal(name: str, value: Any, mend: str) -> None:
    """Check that all processes hold the same JSON value, called `name`.

    Raises:
        InputError: in all processes: two values that differ, and `mend`.
    """
    values = exchange(name, value)
    for number, other in enumerate(values):
        if other != values[0]:
            here, there = shown(values[0], most=120), shown(other, most=120)
            raise InputError(
                f"the processes differ in {name}: {here} of process 0, {there} of process {number}: {mend}"
            )


def device_count() -> int:
    """Number of devices of all processes; batches are padded to a multiple of it."""
    return jax.device_count()


def free_memory() -> float:
    """Bytes that a device can still give, the least of all processes' first ones; infinite if not known.

    On a CPU they are the machine's, of which each process on it has an equal part. All processes must call it together.
    """
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        free = stats["bytes_limit"] - stats["bytes_in_use"]
    else:
        free = files.free_memory() / exchange("host", platform.node()).count(platform.node())
    return min(exchange("free memory", free))


def _layout(devices, *axes):
    return NamedSharding(Mesh(devices, (AXIS,)), PartitionSpec(*axes))


def replicated(tree: PyTree) -> PyTree:
    """The tree on each device of this process, laid out as compiled steps return it: no call compiles again."""
    return jax.device_put(tree, _layout(jax.local_devices()))


def _cut(tree):
    """Leaves [devices of this process, ...], one part on each."""
    return jax.device_put(tree, _layout(jax.local_devices(), AXIS))


def everywhere(tree: PyTree) -> PyTree:
    """The tree on each device of all processes, for functions under jax.jit that read what `spread` gives."""
    return jax.tree.map(_put, tree)


def spread(tree: PyTree) -> PyTree:
    """The tree with the first axis of each leaf over all devices, or complete on each where they do not divide it.

    A function under jax.jit then computes with all devices and gives the result that one device gives.
    """

    def laid_out(leaf):
        divides = np.ndim(leaf) > 0 and np.shape(leaf)[0] % device_count() == 0
        return _put(leaf, *[AXIS] * divides)

    return jax.tree.map(laid_out, tree)


def _put(leaf, *axes: str):
    """The leaf, equal in all processes, on the devices of all of them, its axes over these.

    On an only device it lies as jax lays out what is made there: else each function would compile for both.
    """
    # In the order that pmap has: a block of devices for each process.
    devices = sorted(jax.devices(), key=operator.attrgetter("process_index"))
    sharding = _layout(devices, *axes)
    if sharding.mesh.size == 1:
        return jax.device_put(leaf)
    if sharding.is_fully_addressable or not getattr(leaf, "is_fully_addressable", True):
        return jax.device_put(leaf, sharding)
    # Given this layout, jax.device_put would compare the arrays of all processes.
    leaf = np.asarray(leaf)
    return jax.make_array_from_callback(leaf.shape, sharding, leaf.__getitem__)


def to_host(tree: PyTree) -> PyTree:
    """NumPy arrays of leaves that may lie on devices of all processes."""

    def whole(leaf):
        is_here = getattr(leaf, "is_fully_addressable", True) or leaf.is_fully_replicated
        return np.asarray(leaf if is_here else multihost_utils.process_allgather(leaf, tiled=True))

    return jax.tree.map(whole, tree)


def from_first(tree: PyTree) -> PyTree:
    """NumPy arrays of process 0, bit for bit, in all processes; the others give arrays of the same shapes and types."""
    if count() == 1:
        return tree
    tree = jax.tree.map(np.asarray, tree)
    # As bytes, since they are sent by sums, which would turn -0 into 0.
    as_bytes = jax.tree.map(lambda leaf: np.frombuffer(leaf.tobytes(), np.uint8), tree)
    sent = multihost_utils.broadcast_one_to_all(as_bytes)
    return jax.tree.map(lambda leaf, part: np.asarray(part).view(leaf.dtype).reshape(leaf.shape), tree, sent)


def of_all_processes(tree: PyTree) -> PyTree:
    """Leaves [n of this process, ...] -> [n of all, ...] in the order of the processes, as NumPy arrays if several."""
    return tree if count() == 1 else multihost_utils.process_allgather(tree, tiled=True)


def reduce_sum(tree: PyTree) -> PyTree:
    """Sum of every leaf over all devices, inside `pmapped` only; sums and counts are reduced first, divided after."""
    return jax.lax.psum(tree, AXIS)


def gather(tree: PyTree, axis: str = AXIS) -> PyTree:
    """All devices' examples [examples, ...] in every leaf, inside `pmapped` only; gradients flow back to owners."""
    return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, axis, tiled=True), tree)


def from_first_device(tree: PyTree) -> PyTree:
    """The first device's value of every leaf, on all devices; inside `pmapped` only."""
    return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, AXIS)[0], tree)


def shard(tree: PyTree, *, axis: int = 0) -> PyTree:
    """Cut an axis of every leaf into one part per device: [..., n, ...] -> [own devices, ..., n / all devices, ...].

    Of several processes each takes the parts of its own devices.
    """
    own = jax.local_device_count()
    first = jax.process_index() * own
    return jax.tree.map(lambda leaf: np.stack(np.split(leaf, device_count(), axis)[first : first + own]), tree)


class Program(NamedTuple):
    """A compiled step of a sweep's members, one group at a time, and the way of their states to devices and back.

    step: (groups, host batch) -> (groups, metrics, fingerprints), each a list with one entry per group. A batch is any
    tree with leaves [streams, examples, ...]. Metrics are of all members and the same in all processes. The groups
    given are donated.
    place: TrainState [members, ...] -> groups, on the devices.
    put: a TrainState [members of the group, ...] -> the group.
    states: groups -> a TrainState [members of the group, ...] of each, still on the devices but where members are
    spread over those of several processes: then in host memory.
    gather: groups -> TrainState [members, ...] in host memory.
    """

    step: Callable
    place: Callable
    put: Callable
    states: Callable
    gather: Callable


def make_program(
    step: Callable,
    *,
    at_once: int,
    shared: tuple[PyTree, ...] = (),
    fetch: Callable = lambda spec: spec,
) -> Program:
    """The program that advances `at_once` members in one call of step(states, batches, *shared) -> (states, metrics).

    The members of a group are spread over the devices where they divide evenly, else the examples of a batch are.
    Members on several devices each (axis_index_groups) would be a third layout, in which every network's batch norm
    would need its group: 4 members on 8 devices share each batch instead.
    shared: trees that are complete on each device, such as all training examples.
    fetch: makes of what a process needs of a batch, the example axis the last that leaves share, what its devices get.
    """
    apart = device_count() > 1 and at_once % device_count() == 0
    compiled = pmapped(step, apart=apart, num_shared=len(shared))
    shared = replicated(shared)

    def on_devices(batch):
        return replicated(fetch(batch)) if apart else _cut(fetch(shard(batch, axis=1)))

    def step_all(groups, batch):
        batch = on_devices(batch)
        results = (in_turn(compiled(group, batch, *shared)) for group in groups)
        return tuple(map(list, zip(*results, strict=True)))

    def put(group):
        return _cut(shard(group)) if apart else replicated(group)

    def place(states):
        return [
            put(jax.tree.map(operator.itemgetter(slice(start, start + at_once)), states))
            for start in range(0, len(states.step), at_once)
        ]

    def states(groups):
        return [of_all_processes(_one_axis(group)) for group in groups] if apart else groups

    def gather(groups):
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *jax.device_get(states(groups)))

    return Program(step_all, place, put, states, gather)


@jax.jit
def _one_axis(states: TrainState) -> TrainState:
    """[devices, members / devices, ...] -> [members, ...]."""
    return jax.tree.map(lambda leaf: jax.lax.collapse(leaf, 0, 2), states)


def in_turn(results: PyTree) -> PyTree:
    """The results, after waiting for them where several devices are one CPU's.

    Its devices take independent programs in any order, and wait for each other for ever in the sums of different ones.
    """
    several = jax.device_count() > 1 and jax.default_backend() == "cpu"
    return jax.block_until_ready(results) if several else results


def pmapped(
    step: Callable, *, apart: bool = False, num_shared: int = 0, devices: Sequence[jax.Device] | None = None
) -> Callable:
    """Compile step(state, batch, *shared) -> (state, metrics) for all devices; shared: `num_shared` trees, never cut.

    The result maps (state, sharded batch, *shared) to (state, metrics, fingerprints [devices]). devices: others than
    jax's own, such as a topology's, to compile for.

    The state is donated. Each replica's noise key is its own: the state's key folded with the device's index.

    With `apart` the step is of members that are spread over the devices: (states [devices, members / devices, ...],
    batch, *shared) to (states, metrics, fingerprints [devices, 1]); every device sees the complete batch. A step's sums
    over `AXIS` then run over an axis of length 1, so that a member's numbers are those of a run on one device. Each
    device gets the metrics of all members: several processes run the program of one.
    """

    def replica(states, batch, *shared):
        if not apart:
            return _one_step(step, jax.lax.axis_index(AXIS), states, batch, *shared)

        # An axis of length 1 stands for the devices, so that the step's sums over them serve here too.
        def on_one_device(*arguments):
            alone = jax.vmap(step, in_axes=None, axis_name=AXIS, axis_size=1)
            return jax.tree.map(operator.itemgetter(0), alone(*arguments))

        states, metrics, fingerprint = _one_step(on_one_device, 0, states, batch, *shared)
        return states, gather(metrics, _MEMBERS), fingerprint[None]

    of_state, of_batch = (0, None) if apart else (None, 0)
    return jax.pmap(
        replica,
        axis_name=_MEMBERS if apart else AXIS,
        in_axes=(of_state, of_batch) + (None,) * num_shared,
        out_axes=(of_state, None, 0),
        donate_argnums=0,
        devices=devices,
    )


def _one_step(step, index, state, batch, *shared):
    """The step with the noise key of device number `index`, and a fingerprint of the new state beside the metrics."""
    fold_in = jnp.vectorize(jax.random.fold_in, signature="(k),()->(k)")  # of one key, or of each member's
    # The folded key is for this step's noise alone: with it the replicas' states would differ from now on.
    new_state, metrics = step(state._replace(key=fold_in(state.key, index)), batch, *shared)
    new_state = new_state._replace(key=state.key)

    def bits(leaf):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            leaf = jax.lax.bitcast_convert_type(leaf.astype(jnp.float32), jnp.uint32)
        return jnp.sum(leaf.astype(jnp.uint32), dtype=jnp.uint32)

    # The sum of all leaves' bits modulo 2^32: cheap beside a training step, and different where states differ.
    return new_state, metrics, sum(map(bits, jax.tree.leaves(new_state)))


def pmapped_forward(forward: Callable) -> Callable:
    """Compile forward(variables, x) -> outputs for all devices, its products at full precision.

    The result maps (variables, batch) to the outputs [examples, ...] on the host, of all processes' examples.
    """
    compiled = forward_program(forward)

    def outputs(variables, batch):
        return np.concatenate(np.asarray(of_all_processes(compiled(variables, _cut(shard(batch.x))))))

    return outputs


def forward_program(forward: Callable, *, devices: Sequence[jax.Device] | None = None) -> Callable:
    """The program of `pmapped_forward`: (variables, x [devices, ...]) -> [devices, ...]; devices as for `pmapped`."""
    return jax.pmap(at_highest(forward), axis_name=AXIS, in_axes=(None, 0), devices=devices)


def check_replicas(fingerprints: Array) -> None:
    """Raise RunError unless the devices hold the same states, bit for bit; all processes call it together.

    fingerprints: uint32, [groups, devices of this process] of `pmapped`, [groups, devices, 1] of `pmapped` with
    `apart`, where each device has members of its own.
    """
    seen = np.asarray(jax.device_get(fingerprints))
    if seen.ndim == 2:
        seen = of_all_processes(seen.T).T
    if np.any(seen != seen[..., :1]):
        raise RunError("the devices hold different parameters: a reduction over devices is missing in the step")
