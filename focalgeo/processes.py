"""Processes that run one job together: how they join, agree and end. jax's distributed runtime joins and connects them.

Every process runs the same program. What could differ between them is decided by process 0 and told to all, through the
runtime's store of keys and texts: the devices take no part. The store has no passwords, so it holds JSON only.

Whatever ends one process ends all, by the key `_END` for which a thread of each process waits: it writes the one line
and leaves with the one exit code, whatever the other threads wait for. A process that is silent for three quarters of
the heartbeat ends all too, before the runtime itself would abort the others.
"""

import contextlib
import ctypes
import errno
import hashlib
import importlib.metadata
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from focalgeo.types import InputError, RunError, shown

FLAGS = {  # with an example of each
    "coordinator": "10.0.0.1:1234",
    "processes": "2",
    "process": "0",
    "join_timeout": "300",
    "heartbeat": "100",
}
_MOST_PROCESSES, _LONGEST = 1_000_000, 86_400  # seconds: a day
_END, _ALIVE, _LEFT = "focalgeo/end", "focalgeo/alive/", "focalgeo/left/"
_SILENT = 3.0  # seconds without a sign of life, of which there is one each second, after a collective has failed
_GO_ON = "what was saved is whole: give the same command on every host again to go on from there"


class _Cluster(NamedTuple):
    """The processes as this one sees them."""

    client: Any  # of the runtime's store
    count: int
    index: int
    heartbeat: float  # seconds
    hosts: list[str]  # name and boot of each process' machine; filled once all have said theirs
    seen: dict[int, tuple[str, float]]  # the last sign of life of each process, and when it was new


_cluster: _Cluster | None = None
_answered = [0.0]  # when process 0's store last answered
_given_up = threading.Event()  # the runtime has lost process 0
_calls = 0  # of `told` and the like: the same in all processes


def count() -> int:
    """The number of processes; 1 without a cluster."""
    return 1 if _cluster is None else _cluster.count


def index() -> int:
    """The number of this process, from 0."""
    return 0 if _cluster is None else _cluster.index


def is_first() -> bool:
    """Whether this is process 0, which alone writes and speaks."""
    return index() == 0


def asked(flags: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of `join` that flags among FLAGS ask for; JAX_COORDINATOR_ADDRESS stands for --coordinator.

    Raises:
        InputError: a flag is no address or no whole number in its range, or of the first three some are missing.
    """
    ranges = {"processes": (1, _MOST_PROCESSES), "process": (0, _MOST_PROCESSES - 1)}
    ranges |= {"join_timeout": (1, _LONGEST), "heartbeat": (1, _LONGEST)}
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
    from jax._src import clusters

    with warnings.catch_warnings(), contextlib.suppress(Exception):  # a launcher that is none of a cluster says so so
        warnings.simplefilter("ignore")  # of a Kubernetes pod without the package kubernetes
        kinds = clusters.ClusterEnv._cluster_types
        kind = next((kind for kind in kinds if not kind.opt_in_only_method and kind.is_env_present()), None)
        if kind is not None and kind.name == "slurm":  # SLURM_NTASKS may be the allocation's
            return int(os.environ.get("SLURM_STEP_NUM_TASKS") or kind.get_process_count())
        return 1 if kind is None else int(kind.get_process_count())
    return 1


def join(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    *,
    join_timeout: int = 300,
    heartbeat: int = 100,
) -> None:
    """Join the cluster that the arguments name or jax detects, if it is of more than one process; says so in a line.

    coordinator: HOST:PORT of process 0; the first three go together. Times are in seconds.

    Raises:
        InputError: the processes differ in devices or versions. RunError: they cannot be joined.
    """
    found = processes or detected()
    if found == 1:
        if processes is None and "JAX_COORDINATOR_ADDRESS" in os.environ:
            _say("JAX_COORDINATOR_ADDRESS is set without --processes and --process: this process runs alone")
        return
    import jax

    jax.config.update("jax_enable_preemption_service", False)  # it takes SIGTERM
    jax.config.update("jax_enable_recoverability", True)  # else the runtime aborts all when one leaves
    _hide_native_lines()
    _let_threads_speak_before_an_abort()
    where = [coordinator, found, process]
    try:
        _in_thread(lambda: _initialize(where, join_timeout, heartbeat), join_timeout)
    except TimeoutError:
        raise RunError(_why_not(*where, join_timeout)) from None
    except RunError:
        raise
    except Exception as error:
        raise RunError(f"{_number(*where)} cannot join {where[0]}: {error}") from error
    _enter(heartbeat)
    try:
        _in_thread(jax.local_devices)
    except RuntimeError as error:
        raise RunError(f"jax finds no devices: {error}") from error
    _introduce()


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
    while thread.is_alive() and not _given_up.is_set():
        if time.monotonic() > last:
            raise TimeoutError
        thread.join(0.1)
    if errors:
        raise errors[0]
    if _given_up.is_set():
        raise RuntimeError("process 0 left or refused it; all need the same --processes, each its own --process")


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
    own = ("[::1]" if host == "[::1]" else "127.0.0.1") if loopback else "[::]"
    if where[2] == 0 and not _is_free(own.strip("[]"), int(port)):  # the runtime may crash
        raise RunError(f"port {port} of --coordinator is in use on this host: choose another one, on every host")
    jax.distributed.initialize(
        *where,
        local_device_ids=local,
        cluster_detection_method="deactivate",
        initialization_timeout=join_timeout + 60,  # it would abort
        heartbeat_timeout_seconds=heartbeat,
        coordinator_bind_address=f"{own}:{port}" if loopback else None,
    )


def _is_free(host: str, port: int) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((host, port))
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True


def _number(coordinator: str, processes: int, process: int | None) -> str:
    return f"process {'?' if process is None else process} of {processes}"


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


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _enter(heartbeat: float) -> None:
    """From here on this process is one of a cluster: it gives signs of life and heeds the end."""
    global _cluster
    from jax._src import distributed

    state = distributed.global_state
    _cluster = _Cluster(state.client, state.num_processes, state.process_id, heartbeat, [], {})
    _answered[0] = time.monotonic()
    for loop in (_live, _heed):
        threading.Thread(target=loop, args=(_cluster,), daemon=True).start()


def _introduce() -> None:
    """Say who this process is, and see that all are of one kind."""
    import jax
    import jaxlib
    import numpy as np

    same("the number of processes", count(), "give the same --processes on every host")
    boot = Path("/proc/sys/kernel/random/boot_id")
    _cluster.hosts.extend(_gathered("host", [socket.gethostname(), boot.read_text() if boot.exists() else ""]))
    devices, own = jax.devices(), jax.local_devices()
    kind = own[0].platform
    own_ones = f"{len(own)} {kind} device{'s' if len(own) > 1 else ''}"
    _say(f"process {index()} of {count()} on {shown(_cluster.hosts[index()][0])}: {own_ones} of {len(devices)}")
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    versions = [f"jax {jax.__version__}, jaxlib {jaxlib.__version__}, numpy {np.__version__}"]
    versions += [f"focalgeo {importlib.metadata.version('focalgeo')} ({digest.hexdigest()[:8]})"]
    same("versions", ", ".join(versions), "install the same on every host")
    same("devices", f"{len(own)} {kind}", "give every process equally many")


def told(name: str, decide: Callable[[], Any]) -> Any:
    """The JSON value that `decide` gives on process 0, which alone calls it; all processes must ask for it in turn."""
    if _cluster is None:
        return decide()
    return _agreed(name, None, lambda: decide())


def _gathered(name: str, value: Any) -> list[Any]:
    """The JSON values of all processes, in their order."""
    return _agreed(name, value, lambda: [value, *(_get(f"{_calls}/{i}", name) for i in range(1, count()))])


def _agreed(name: str, value: Any, decide: Callable[[], Any]) -> Any:
    """Process 0's decision; each other process first shows its own value, by which it is seen to ask for the same."""
    global _calls
    _calls += 1
    if is_first():
        _set(f"{_calls}/all", name, decide())
    else:
        _set(f"{_calls}/{index()}", name, value)
    return _get(f"{_calls}/all", name)


def _set(key: str, name: str, value: Any) -> None:
    _cluster.client.key_value_set(f"focalgeo/{key}", json.dumps([name, value]))


def _get(key: str, name: str) -> Any:
    """The value of a key, once it is there."""
    while True:
        found = _waited(f"focalgeo/{key}", 1.0)
        if found is not None:
            asked, value = json.loads(found)
            if asked != name:
                raise RuntimeError(f"the processes are out of step: {name!r} here is {asked!r} elsewhere ({key})")
            return value


def _waited(key: str, seconds: float) -> str | None:
    """The text of a key, None where it does not come in time."""
    try:
        return _cluster.client.blocking_key_value_get(key, int(1000 * seconds))
    except Exception as error:
        if "DEADLINE_EXCEEDED" in str(error) or "timed out" in str(error):
            return None
        raise


def least(name: str, number: float) -> float:
    """The least of all processes' numbers."""
    return number if _cluster is None else min(_gathered(name, number))


def same(name: str, value: Any, mend: str) -> None:
    """Check that all processes hold the same JSON value, called `name`.

    Raises:
        InputError: on all processes: two that differ, and `mend`.
    """
    if _cluster is None:
        return
    text = json.dumps(value, sort_keys=True)
    held = _gathered(name, [hashlib.sha256(text.encode()).hexdigest(), shown(value, most=120)])
    other = next((i for i, each in enumerate(held) if each[0] != held[0][0]), None)
    if other is not None:
        raise InputError(
            f"the processes differ in {name}: {held[0][1]} of process 0, {held[other][1]} of process {other}: {mend}"
        )


def on_this_host() -> int:
    """Processes of this run on this machine, which share its memory."""
    return 1 if _cluster is None else _cluster.hosts.count(_cluster.hosts[index()])


def end(line: str, code: int) -> NoReturn:
    """End all processes with "focalgeo: {line}" on standard error, nothing for "", and this exit code; the first wins.

    What all processes come to alike, success and a stop that was agreed on, ends when process 0 comes to it. An error
    of another process waits a second for one of process 0, which may be the same; else the line names the process.
    """
    if not is_first():
        time.sleep(1)
        while code not in (1, 2, 3):
            time.sleep(1)
        line = f"{_named(index())}: {line}"
    stop(line, code)


def stop(line: str, code: int) -> NoReturn:
    """End all processes at once, as `end` does on process 0."""
    with contextlib.suppress(Exception):  # another has ended all, or process 0 is gone: `_heed` sees that too
        _cluster.client.key_value_set(_END, json.dumps([line, code]))
    while True:  # in `_heed`'s thread the process ends, whatever signals come
        time.sleep(1)


def lost(error: BaseException | None) -> bool:
    """Whether an exception is, or comes from, a collective that another process has left."""
    if _cluster is None or error is None:
        return False
    text = f"{type(error).__name__}: {error}"
    return bool(_COLLECTIVE.search(text)) or lost(error.__cause__ or error.__context__)


_COLLECTIVE = re.compile(
    r"gloo|nccl|connection (reset|closed|refused)|socket closed|broken pipe|coordination|unavailable", re.IGNORECASE
)


def end_lost() -> NoReturn:
    """End all because another process has left a collective; an end of its own explains it better, and comes first."""
    _look(_cluster)
    time.sleep(_SILENT)
    _look(_cluster)
    stop(_line_of_lost(_silent(_cluster, _SILENT)), 3)


def _line_of_lost(gone: list[int]) -> str:
    """The line for processes that are gone; [] where it is not known which."""
    who = _named(gone[0]) if gone else "another process"
    more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
    return f"{who}{more} {'are' if more else 'is'} gone or {'do' if more else 'does'} not answer; {_GO_ON}"


def _named(number: int) -> str:
    host = f" ({shown(_cluster.hosts[number][0])})" if _cluster.hosts else ""
    return f"process {number} of {count()}{host}"


def _live(cluster: _Cluster) -> None:
    """Give a sign of life each second, and note when process 0's store last took one."""
    every, signs = min(1.0, cluster.heartbeat / 10), 0
    while True:
        signs += 1
        with contextlib.suppress(Exception):
            cluster.client.key_value_set(f"{_ALIVE}{cluster.index}", str(signs), allow_overwrite=True)
            _answered[0] = time.monotonic()
        time.sleep(every)


def _look(cluster: _Cluster) -> None:
    """Note the newest signs of life."""
    now, found = time.monotonic(), {}
    with contextlib.suppress(Exception):
        found = dict(cluster.client.key_value_dir_get(_ALIVE))
    for number in range(cluster.count):
        sign = found.get(f"{_ALIVE}{number}", "")
        if number not in cluster.seen or (sign and cluster.seen[number][0] != sign):
            cluster.seen[number] = (sign, now)


def _silent(cluster: _Cluster, seconds: float) -> list[int]:
    """The processes without a new sign of life for so long."""
    return [number for number, (_, when) in sorted(cluster.seen.items()) if time.monotonic() - when >= 0.9 * seconds]


def _heed(cluster: _Cluster) -> None:
    """Wait for the end, and watch over the other processes meanwhile."""
    most = 0.75 * cluster.heartbeat
    fails = 0
    while True:
        try:
            found = _waited(_END, min(1.0, cluster.heartbeat / 10))
            fails = 0
        except Exception:  # process 0 is gone, or its answer is lost
            found, fails = None, fails + 1
            time.sleep(0.2)
        if found is not None:
            _leave(cluster, *json.loads(found))
        if cluster.index:
            if fails > 3 or _given_up.is_set() or time.monotonic() - _answered[0] > most:
                _leave(cluster, _line_of_lost([0]), 3)
            continue
        _look(cluster)
        gone = _silent(cluster, most)
        if gone:
            with contextlib.suppress(Exception):
                cluster.client.key_value_set(_END, json.dumps([_line_of_lost(gone), 3]))


def _leave(cluster: _Cluster, line: str, code: int) -> NoReturn:
    """Write the line and end this process; process 0, which holds the store, waits until the others have read it."""
    limit = threading.Timer(2 if cluster.index else 7, os._exit, (code,))  # calls without an answer wait for ever
    limit.daemon = True
    limit.start()
    with contextlib.suppress(Exception):  # a terminal that is gone
        sys.stdout.flush()
        if line:
            start = "\n" if sys.stderr.isatty() else ""
            sys.stderr.write(f"{start}focalgeo: {line}\n")
        sys.stderr.flush()
    with contextlib.suppress(Exception):
        if cluster.index:
            cluster.client.key_value_set(f"{_LEFT}{cluster.index}", "")
        last = time.monotonic() + 5
        while not cluster.index and time.monotonic() < last:
            _look(cluster)
            left = {int(key.rpartition("/")[2]) for key, _ in cluster.client.key_value_dir_get(_LEFT)}
            if left | set(_silent(cluster, _SILENT)) | {0} == set(range(cluster.count)):
                break
            time.sleep(0.05)
    os._exit(code)


def _let_threads_speak_before_an_abort() -> None:
    """Let the runtime's own abort sleep for six seconds, the signal's number, in which `_heed` ends the process."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))


_NOISE = re.compile(
    rb"\[Gloo\] |[IWE]\d{4} .*(coordination|distributed|recoverable)|RPC: /|Additional GRPC error|:UN[A-Z]+:|"
    rb"=== Source Location Trace|external/xla"
)
_FATAL = re.compile(rb"F\d{4} .*JAX distributed service")


def _hide_native_lines() -> None:
    """Keep the runtime's own lines about lost processes, and gloo's greetings, from standard output and error."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        old = getattr(sys, name)
        old.flush()
        real = os.dup(number)
        kind = {"encoding": old.encoding, "errors": old.errors, "closefd": False}
        new = open(real, "w", buffering=1 if old.line_buffering else -1, **kind)  # noqa: SIM115
        setattr(sys, name, new)
        readable, writable = os.pipe()
        os.dup2(writable, number)
        os.close(writable)
        threading.Thread(target=_pass_on, args=(readable, real), daemon=True).start()


def _pass_on(readable: int, real: int) -> None:
    """Write to `real` what others than Python write; the runtime's word that it gives up ends this process."""
    rest, fatal, noise = b"", False, False
    while chunk := os.read(readable, 65536):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if _FATAL.match(line):
                fatal = True
                _given_up.set()
            noise = fatal or _NOISE.match(line) or (noise and not line)
            if not noise:
                with contextlib.suppress(OSError):
                    os.write(real, line + b"\n")
