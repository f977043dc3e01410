"""Joining the other processes of a job: by flags, or as jax detects a launcher's processes."""

import contextlib
import errno
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import socket
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from focalgeo.processes import cluster, native
from focalgeo.types import InputError, RunError, shown

FLAGS = {  # with an example of each
    "coordinator": "10.0.0.1:1234",
    "processes": "2",
    "process": "0",
    "join_timeout": "300",
    "heartbeat": "100",
}
_LAUNCHERS = ("SLURM_", "OMPI_", "KUBERNETES_", "TPU_", "JAX_FORCE_TPU")  # what their variables begin with
_STARTED = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_SHORTEST_HEARTBEAT = 5  # seconds: of 2 a busy host of 2 cores lets pass more without a sign
_MOST_PROCESSES, _LONGEST = 1_000_000, 86_400  # seconds: a day


def asked(flags: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of `join` that flags among FLAGS ask for; JAX_COORDINATOR_ADDRESS stands for --coordinator.

    Raises:
        InputError: a flag is no address or no whole number in its range, or of the first three some are missing.
    """
    ranges = {"processes": (1, _MOST_PROCESSES), "process": (0, _MOST_PROCESSES - 1)}
    ranges |= {"join_timeout": (1, _LONGEST), "heartbeat": (_SHORTEST_HEARTBEAT, _LONGEST)}
    found: dict[str, Any] = {}
    for name, (low, high) in ranges.items():
        if name in flags:
            text = flags[name]
            if not re.fullmatch("[0-9]{1,9}", text) or not low <= int(text) <= high:
                raise InputError(f"--{name} is {shown(text)}: it must be a whole number from {low} to {high}")
            found[name] = int(text)
    if not {"coordinator", "processes", "process"} & set(flags):
        return found
    where = os.environ.get("JAX_COORDINATOR_ADDRESS")
    address = flags.get("coordinator", where)
    if address is not None:
        matched = re.fullmatch(r"(\[[0-9A-Za-z:.%]+\]|[0-9A-Za-z._-]+):([0-9]{1,5})", address)
        if not matched or not 1 <= int(matched[2]) <= 65535:
            name = "--coordinator" if "coordinator" in flags else "JAX_COORDINATOR_ADDRESS"
            raise InputError(f"{name} is {shown(address)}: it must be HOST:PORT, {FLAGS['coordinator']} for example")
        found["coordinator"] = address
    for name in ("coordinator", "processes", "process"):
        if name not in found:
            example = " ".join(f"--{name}={FLAGS[name]}" for name in ("coordinator", "processes", "process"))
            raise InputError(f"--{name} is missing: three flags go together, for example {example}")
    if found["process"] >= found["processes"]:
        most = found["processes"] - 1
        raise InputError(f"--process is {found['process']}: of {most + 1} processes the last is {most}")
    return found


def detected() -> int:
    """The number of processes that a launcher has started, as jax finds it (SLURM, Open MPI, GKE, TPU); else 1."""
    if not any(name.startswith(_LAUNCHERS) for name in os.environ) and importlib.util.find_spec("libtpu") is None:
        return 1
    from jax._src import clusters

    with warnings.catch_warnings(), contextlib.suppress(Exception):  # a launcher that is none of a cluster says so so
        warnings.simplefilter("ignore")  # of a Kubernetes pod without the package kubernetes
        kinds = clusters.ClusterEnv._cluster_types
        kind = next((kind for kind in kinds if not kind.opt_in_only_method and kind.is_env_present()), None)
        if kind is not None and kind.name == "slurm":  # SLURM_NTASKS may be the allocation's
            return int(os.environ.get("SLURM_STEP_NUM_TASKS") or kind.get_process_count())
        return 1 if kind is None else int(kind.get_process_count())
    return 1


def launched() -> int:
    """The number of processes that a launcher has started of this very command, by its variables; else 1.

    A TPU pod's hosts and a pod of GKE have none of them: what is started there once is one process.
    """
    found = [os.environ.get(name, "") for name in _STARTED]
    return max([1, *(int(text) for text in found if re.fullmatch("[0-9]{1,9}", text))])


def join(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    *,
    join_timeout: int = 300,
    heartbeat: int = 100,
    then: Callable[[], None] = lambda: None,
) -> None:
    """Join the cluster that the arguments name or jax detects, if it is of more than one process; says so in a line.

    coordinator: HOST:PORT of process 0; the first three go together. Times are in seconds.
    then: is called once this process is one of several, before what may take long.

    Raises:
        InputError: another process has this one's number, or they differ in devices, versions or settings. RunError:
            they cannot be joined.
    """
    found = processes or detected()
    if found == 1:
        if processes is None:
            _check_alone()
            if "JAX_COORDINATOR_ADDRESS" in os.environ:
                cluster.write_line(
                    "JAX_COORDINATOR_ADDRESS is set without --processes and --process: this process runs alone"
                )
        return
    import jax

    jax.config.update("jax_enable_preemption_service", False)  # it takes SIGTERM
    jax.config.update("jax_enable_recoverability", True)  # else the runtime aborts all when one leaves
    native.hide_lines()
    native.delay_aborts()
    where = [coordinator, found, process]
    try:
        _in_thread(lambda: _initialize(where, join_timeout, heartbeat), join_timeout)
    except TimeoutError:
        raise RunError(_why_not(*where, join_timeout)) from None
    except RunError:
        raise
    except Exception as error:
        raise RunError(f"{_number(*where)} cannot join {where[0]}: {shown(error, most=200)}") from error
    cluster.enter(heartbeat)
    then()
    try:
        _in_thread(jax.local_devices)
    except RuntimeError as error:
        raise RunError(f"jax finds no devices: {error}") from error
    _introduce()


def _check_alone() -> None:
    """Refuse to run the whole job in each of several processes whose launcher jax does not know."""
    for name in ("SLURM_NTASKS", *_STARTED):
        if not re.fullmatch("[0-9]{1,9}", os.environ.get(name, "1")):
            raise InputError(f"{name} is {shown(os.environ[name])}: it must be the launcher's number of processes")
    if launched() > 1:  # Open MPI 5, MPICH
        raise InputError(
            f"a launcher has started {launched()} processes, and jax does not know it: give each --coordinator="
            f"HOST:PORT --processes={launched()} and its own --process, as of $OMPI_COMM_WORLD_RANK or $PMI_RANK"
        )


def _in_thread(act: Callable[[], Any], seconds: float = float("inf")) -> None:
    """Run `act` in a thread, as it may wait in compiled code, where no signal is heeded."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    last = time.monotonic() + seconds
    while thread.is_alive() and not native.given_up.is_set():
        if time.monotonic() > last:
            raise TimeoutError
        thread.join(0.1)
    if errors:
        raise errors[0]
    if native.given_up.is_set():
        raise RunError("process 0 is gone while the others joined it: give the same command on every host again")


def _initialize(where: list[Any], join_timeout: int, heartbeat: int) -> None:
    """Join as jax does; `where` is the coordinator, the number of processes and this one's, filled in where None."""
    import jax
    from jax._src import clusters

    local = None
    if where[2] is None:
        address = os.environ.get("JAX_COORDINATOR_ADDRESS")
        detect = clusters.ClusterEnv.auto_detect_unset_distributed_params
        *where[:], local = detect(address, where[1], None, None, None, join_timeout)
    host, _, port = where[0].rpartition(":")
    loopback = host in ("localhost", "[::1]") or host.startswith("127.")
    bind = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", f"[::]:{port}")
    if loopback:
        bind = f"{'[::1]' if host == '[::1]' else '127.0.0.1'}:{port}"
    if where[2] == 0 and not _is_free(bind):  # the runtime may crash
        raise RunError(f"port {port} of --coordinator is in use on this host: choose another one, on every host")
    jax.distributed.initialize(
        *where,
        local_device_ids=local,
        cluster_detection_method="deactivate",
        initialization_timeout=join_timeout + 60,  # it would abort
        heartbeat_timeout_seconds=10 * heartbeat,  # `cluster` is quicker; a job may be suspended as a whole
        coordinator_bind_address=bind,
    )


def _number(coordinator: str, processes: int, process: int | None) -> str:
    return f"process {'?' if process is None else process} of {processes}"


def _is_free(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.socket(socket.AF_INET6 if "[" in host else socket.AF_INET) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((host.strip("[]"), int(port)))
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True


def _why_not(coordinator: str | None, processes: int, process: int | None, seconds: int) -> str:
    """The line for others that did not come in time."""
    why = "not all of them came"
    try:
        host, _, port = (coordinator or "").rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
    except socket.gaierror:
        why = "no such host is known here"
    except ConnectionRefusedError:
        why = "nothing listens there, as process 0 does once it runs"
    except (OSError, ValueError):
        why = "it cannot be reached from here"
    return (
        f"{_number(coordinator, processes, process)} waited {seconds} s for the others at {coordinator}: {why}; start "
        "the same command on every host, with the same --coordinator and --processes, within --join_timeout seconds"
    )


def _introduce() -> None:
    """Say who this process is, and see that all are of one kind."""
    import jax
    import jaxlib
    import numpy as np

    cluster.check_equal("the number of processes", cluster.count(), "give the same --processes on every host")
    host, boot = socket.gethostname(), Path("/proc/sys/kernel/random/boot_id")
    cluster.share_host(host, boot.read_text().strip() if boot.exists() else host)
    devices, own = jax.devices(), jax.local_devices()
    platform = own[0].platform
    own_ones = f"{len(own)} {platform} device{'s' if len(own) > 1 else ''}"
    cluster.write_line(f"process {cluster.index()} of {cluster.count()} on {shown(host)}: {own_ones} of {len(devices)}")
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.parent.rglob("*.py")):
        digest.update(path.read_bytes())
    versions = [f"jax {jax.__version__}, jaxlib {jaxlib.__version__}, numpy {np.__version__}"]
    versions += [f"focalgeo {importlib.metadata.version('focalgeo')} ({digest.hexdigest()[:8]})"]
    cluster.check_equal("versions", ", ".join(versions), "install the same on every host")
    cluster.check_equal("devices", f"{len(own)} {own[0].device_kind}", "give every process equally many of one kind")
    for name, value in _settings().items():
        cluster.check_equal(name, value, "set it alike on every host")
    _check_order(jax.process_index(), [device.process_index for device in devices])


_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_disable_jit",
)
_OF_ONE_HOST = ("--xla_force_host_platform_device_count", "--xla_dump", "--xla_gpu_cuda_data_dir")


def _settings() -> dict[str, Any]:
    """The settings by which programs or their numbers differ."""
    import jax

    found = {name: getattr(jax.config, name) for name in _SETTINGS}
    for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE"):
        given = os.environ.get(name, "").split()
        found[name] = " ".join(each for each in given if not each.startswith(_OF_ONE_HOST))
    return found


def _check_order(index: int, of_devices: list[int]) -> None:
    """Check that the devices' own numbers of the processes are those of the runtime, which data are cut by."""
    if index != cluster.index() or of_devices != sorted(of_devices):
        raise RunError(
            f"this is process {cluster.index()} to the launcher and {index} to the devices, which come in the order "
            f"{shown(of_devices, most=60)}: give --coordinator, --processes and --process in the devices' order"
        )
