"""The processes of one job as one of them sees them: how they agree, and how they end.

Two threads run in each process. One sends heartbeats to the runtime's store; the other watches for the end, which
whoever ends first writes there, and ends its own process with that line and code, whatever the main thread waits for.
"""

import contextlib
import hashlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from focalgeo.processes import native
from focalgeo.types import InputError, Interrupted, RunError, shown

_JOINED, _ALIVE, _END, _LEFT = "focalgeo/joined/", "focalgeo/alive/", "focalgeo/end", "focalgeo/left/"
_SILENT = 3.0  # seconds without a heartbeat, of which there is one each second, after a collective has failed
_PATIENCE = 5.0  # seconds without an answer of process 0's store: a connection between hosts may be reset
_SLOW = 8.0  # seconds in which a process that holds Python's lock may not read the end
_GO_ON = "what was saved is whole: give the same command on every host again to go on from there"


class _Cluster(NamedTuple):
    """The processes as this one sees them."""

    client: Any  # of the runtime's store
    count: int
    index: int
    heartbeat: float  # seconds
    hosts: list[list[str]]  # name and machine of each process' host; filled once all have said theirs
    heard: dict[int, tuple[str, float]]  # the last heartbeat of each process, and when it was new
    pauses: list[float]  # when this process last went on after it stood still, and for how many seconds
    own_end: list[tuple[str, int]]  # line and code of this process' end, once all are known to end so


_cluster: _Cluster | None = None
_last_answer = [0.0]  # of process 0's store
_kept = 1  # the first call whose keys are in the store
_calls = 0  # of `broadcast` and the like: the same in all processes


def count() -> int:
    """The number of processes; 1 without a cluster."""
    return 1 if _cluster is None else _cluster.count


def index() -> int:
    """The number of this process, from 0."""
    return 0 if _cluster is None else _cluster.index


def is_first() -> bool:
    """Whether this is process 0, which alone writes and speaks."""
    return index() == 0


def say(line: str) -> None:
    """Write a line on standard error, where it does not mix with results; of several processes, process 0 alone."""
    if is_first():
        write_line(line)


def write_line(line: str) -> None:
    """Write a line of this process on standard error; one that cannot be written, on a full disk, is lost."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def enter(heartbeat: float) -> None:
    """From here on this process is one of a cluster: it sends heartbeats and watches for the end.

    Raises:
        InputError: another process has joined under this one's number. It goes on, and this one is none of the cluster.
    """
    global _cluster
    from jax._src import distributed

    state = distributed.global_state
    try:
        state.client.key_value_set(f"{_JOINED}{state.process_id}", "")
    except Exception as error:
        if "ALREADY_EXISTS" not in str(error):
            raise
        what = f"process {state.process_id} of {state.num_processes} has already joined"
        raise InputError(f"{what}: each process needs a --process of its own") from None
    _cluster = _Cluster(state.client, state.num_processes, state.process_id, heartbeat, [], {}, [0.0, 0.0], [])
    _last_answer[0] = time.monotonic()
    for loop in (_send_heartbeats, _watch):
        threading.Thread(target=loop, args=(_cluster,), daemon=True).start()


def share_host(name: str, machine: str) -> None:
    """Tell all processes this one's host: its name, and what only processes of the same machine have."""
    _cluster.hosts.extend(gather("host", [name, machine]))


def broadcast(name: str, decide: Callable[[], Any]) -> Any:
    """The JSON value that `decide` gives on process 0, which alone calls it; all processes must ask for it in turn."""
    if _cluster is None:
        return decide()
    return _agreed(name, None, lambda call: decide())


def gather(name: str, value: Any) -> list[Any]:
    """The JSON values of all processes, in their order."""

    def all_of(call: int) -> list[Any]:
        found = [value, *(_get(f"{call}/{i}", name) for i in range(1, count()))]
        _forget(call)  # which all have reached
        return found

    return _agreed(name, value, all_of)


def _forget(call: int) -> None:
    """Remove from the store what calls before this one left there, a hundred at a time."""
    global _kept
    while call - _kept >= 100:
        for each in range(_kept, _kept + 99):
            _cluster.client.key_value_delete(f"focalgeo/{each}")
        _kept += 99


def _agreed(name: str, value: Any, decide: Callable[[int], Any]) -> Any:
    """Process 0's decision; each other process first shows its own value, by which it is seen to ask for the same."""
    global _calls
    _calls, call = _calls + 1, _calls + 1
    if is_first():
        _set(f"{call}/all", name, decide(call))
    else:
        _set(f"{call}/{index()}", name, value)
    return _get(f"{call}/all", name)


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


def all_min(name: str, number: float) -> float:
    """The least of all processes' numbers."""
    return number if _cluster is None else min(gather(name, number))


def check_equal(name: str, value: Any, mend: str) -> None:
    """Check that all processes hold the same JSON value, called `name`.

    Raises:
        InputError: on all processes: two that differ, and `mend`.
    """
    if _cluster is None:
        return
    text = json.dumps(value, sort_keys=True)
    held = gather(name, [hashlib.sha256(text.encode()).hexdigest(), shown(value, most=120)])
    other = next((i for i, each in enumerate(held) if each[0] != held[0][0]), None)
    if other is not None:
        raise InputError(
            f"the processes differ in {name}: {held[0][1]} of process 0, {held[other][1]} of process {other}: {mend}"
        )


def on_this_host() -> int:
    """Processes of this run on this machine, which share its memory."""
    if _cluster is None:
        return 1
    machines = [machine for _, machine in _cluster.hosts]
    return machines.count(machines[index()])


def end(line: str, code: int) -> NoReturn:
    """End all processes with "focalgeo: {line}" on standard error, nothing for "", and this exit code; the first wins.

    What all processes come to alike, success and a stop that was agreed on, ends when process 0 comes to it. An error
    of another process waits a second for one of process 0, which may be the same; else the line names the process.
    """
    if not is_first():
        time.sleep(1)
        if code > 128:  # agreed on by all: holds even if process 0 goes before this one has read it
            _cluster.own_end.append((line, code))
        while code not in (1, 2, 3):
            time.sleep(1)
        line = f"{_named(index())}: {line}"
    stop(line, code)


def stop(line: str, code: int) -> NoReturn:
    """End all processes at once, as `end` does on process 0."""
    with contextlib.suppress(Exception):  # another has ended all, or process 0 is gone: `_watch` sees that too
        _cluster.client.key_value_set(_END, json.dumps([line, code]))
        _cluster.own_end.append((line, code))
    while True:  # in `_watch`'s thread the process ends, whatever signals come
        time.sleep(1)


def lost(error: BaseException | None) -> bool:
    """Whether an exception is, or comes from, a collective that failed, as it does when another process is gone."""
    if _cluster is None or error is None:
        return False
    of_runtime = type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError")
    pattern = _OF_RUNTIME if of_runtime else _COLLECTIVE
    said = not isinstance(error, (InputError, RunError, Interrupted, OSError)) and pattern.search(str(error))
    return bool(said) or lost(error.__cause__ or error.__context__)


_STATUS = "(UNKNOWN|INTERNAL|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED|FAILED_PRECONDITION): "
_COLLECTIVE = re.compile(f"{_STATUS}.*(?i:gloo|nccl|coordination)", re.DOTALL)
_OF_RUNTIME = re.compile("gloo|nccl|coordination|connection|socket|broken pipe|unavailable", re.IGNORECASE)


def end_lost(error: BaseException) -> NoReturn:
    """End all because a collective failed; an end that another process had time to write explains it, and is first."""
    _read_heartbeats(_cluster)
    time.sleep(_SILENT)
    _read_heartbeats(_cluster)
    gone = _silent(_cluster, _SILENT)
    stop(_line_of_lost(gone) if gone else f"{_named(index())} lost another: {shown(error, most=150)}; {_GO_ON}", 3)


def _line_of_lost(gone: list[int]) -> str:
    """The line for processes that are gone; if this one has just stood still for too long, the others said so of it."""
    resumed, seconds = _cluster.pauses
    most = 0.75 * _cluster.heartbeat
    if seconds > most and time.monotonic() - resumed < 2 * most:
        gone = [index()]
    if len(gone) == 1:
        return f"{_named(gone[0])} is gone or does not answer; {_GO_ON}"
    return f"{_named(gone[0])} and {len(gone) - 1} more are gone or do not answer; {_GO_ON}"


def _named(number: int) -> str:
    host = f" ({shown(_cluster.hosts[number][0])})" if _cluster.hosts else ""
    return f"process {number} of {count()}{host}"


def _send_heartbeats(cluster: _Cluster) -> None:
    """Send a heartbeat each second, and note when process 0's store last took one."""
    every, sent = min(1.0, cluster.heartbeat / 10), 0
    while True:
        sent += 1
        with contextlib.suppress(Exception):
            cluster.client.key_value_set(f"{_ALIVE}{cluster.index}", str(sent), allow_overwrite=True)
            _last_answer[0] = time.monotonic()
        time.sleep(every)


def _read_heartbeats(cluster: _Cluster) -> None:
    """Note the newest heartbeats."""
    now, found = time.monotonic(), {}
    with contextlib.suppress(Exception):
        found = dict(cluster.client.key_value_dir_get(_ALIVE))
    for number in range(cluster.count):
        beat = found.get(f"{_ALIVE}{number}", "")
        if number not in cluster.heard or (beat and cluster.heard[number][0] != beat):
            cluster.heard[number] = (beat, now)


def _silent(cluster: _Cluster, seconds: float) -> list[int]:
    """The other processes without a new heartbeat for so long, in which this one has not stood still."""
    now, resumed = time.monotonic(), cluster.pauses[0]
    found = {number: now - max(when, resumed) for number, (_, when) in sorted(cluster.heard.items())}
    return [number for number, silence in found.items() if number != cluster.index and silence >= 0.9 * seconds]


def _note_pause(cluster: _Cluster, since: float) -> None:
    """Note that this process has stood still since then, if it has, as when a whole job is suspended."""
    now = time.monotonic()
    if now - since > max(3.0, 0.25 * cluster.heartbeat):
        cluster.pauses[:] = [now, now - since]


def _watch(cluster: _Cluster) -> None:
    """Watch for the end, and over the other processes meanwhile."""
    most = 0.75 * cluster.heartbeat
    answered = turn = time.monotonic()
    while True:
        _note_pause(cluster, turn)
        turn = time.monotonic()
        try:
            found = _waited(_END, min(1.0, cluster.heartbeat / 10))
            answered = time.monotonic()
        except Exception:  # process 0 is gone, or its answer is lost
            found = None
            time.sleep(0.2)
        if found is not None:
            _leave(cluster, *json.loads(found))
        if cluster.index:
            _note_pause(cluster, turn)
            now, resumed = time.monotonic(), cluster.pauses[0]
            unanswered = now - max(answered, resumed) > min(_PATIENCE, 0.5 * cluster.heartbeat)
            if unanswered or now - max(_last_answer[0], resumed) > most or native.given_up.is_set():
                _leave(cluster, *(cluster.own_end or [(_line_of_lost([0]), 3)])[0])
            continue
        _note_pause(cluster, turn)
        _read_heartbeats(cluster)
        gone = _silent(cluster, most)
        if gone:
            with contextlib.suppress(Exception):
                cluster.client.key_value_set(_END, json.dumps([_line_of_lost(gone), 3]))


def _leave(cluster: _Cluster, line: str, code: int) -> NoReturn:
    """Write the line and end this process; process 0, which holds the store, waits until the others have read it."""
    patience = _SILENT if code == 3 else _SLOW  # 3: a process may be gone
    limit = threading.Timer(2 if cluster.index else _SLOW + 4, os._exit, (code,))  # calls may wait for ever
    limit.daemon = True
    limit.start()
    with contextlib.suppress(Exception):  # a terminal that is gone
        sys.stdout.flush()
    with contextlib.suppress(Exception):
        if line:
            start = "\n" if sys.stderr.isatty() else ""
            sys.stderr.write(f"{start}focalgeo: {line}\n")
        sys.stderr.flush()
    with contextlib.suppress(Exception):
        if cluster.index:
            cluster.client.key_value_set(f"{_LEFT}{cluster.index}", "")
        last = time.monotonic() + _SLOW + 2
        while not cluster.index and time.monotonic() < last:
            _read_heartbeats(cluster)
            left = {int(key.rpartition("/")[2]) for key, _ in cluster.client.key_value_dir_get(_LEFT)}
            if left | set(_silent(cluster, patience)) | {0} == set(range(cluster.count)):
                break
            time.sleep(0.05)
    os._exit(code)
