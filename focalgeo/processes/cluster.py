"""The processes of one job as one of them sees them: how they agree, and how they end.

Two threads watch in each process. One gives signs of life to the runtime's store; the other waits for the end, which
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
from focalgeo.types import InputError, shown

_END, _ALIVE, _LEFT = "focalgeo/end", "focalgeo/alive/", "focalgeo/left/"
_SILENT = 3.0  # seconds without a sign of life, of which there is one each second, after a collective has failed
_GO_ON = "what was saved is whole: give the same command on every host again to go on from there"


class _Cluster(NamedTuple):
    """The processes as this one sees them."""

    client: Any  # of the runtime's store
    count: int
    index: int
    heartbeat: float  # seconds
    hosts: list[list[str]]  # name and boot of each process' machine; filled once all have said theirs
    seen: dict[int, tuple[str, float]]  # the last sign of life of each process, and when it was new


_cluster: _Cluster | None = None
_answered = [0.0]  # when process 0's store last answered
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


def enter(heartbeat: float) -> None:
    """From here on this process is one of a cluster: it gives signs of life and heeds the end."""
    global _cluster
    from jax._src import distributed

    state = distributed.global_state
    _cluster = _Cluster(state.client, state.num_processes, state.process_id, heartbeat, [], {})
    _answered[0] = time.monotonic()
    for loop in (_live, _heed):
        threading.Thread(target=loop, args=(_cluster,), daemon=True).start()


def meet(host: list[str]) -> None:
    """Tell all processes this one's host: its name and boot."""
    _cluster.hosts.extend(all_gather("host", host))


def broadcast(name: str, decide: Callable[[], Any]) -> Any:
    """The JSON value that `decide` gives on process 0, which alone calls it; all processes must ask for it in turn."""
    if _cluster is None:
        return decide()
    return _agreed(name, None, lambda call: decide())


def all_gather(name: str, value: Any) -> list[Any]:
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
    return number if _cluster is None else min(all_gather(name, number))


def check_equal(name: str, value: Any, mend: str) -> None:
    """Check that all processes hold the same JSON value, called `name`.

    Raises:
        InputError: on all processes: two that differ, and `mend`.
    """
    if _cluster is None:
        return
    text = json.dumps(value, sort_keys=True)
    held = all_gather(name, [hashlib.sha256(text.encode()).hexdigest(), shown(value, most=120)])
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
    """Whether an exception is, or comes from, a collective that failed, as it does when another process is gone."""
    if _cluster is None or error is None:
        return False
    of_runtime = type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError")
    pattern = _OF_RUNTIME if of_runtime else _COLLECTIVE
    return bool(pattern.search(str(error))) or lost(error.__cause__ or error.__context__)


_COLLECTIVE = re.compile("gloo|nccl|coordination", re.IGNORECASE)
_OF_RUNTIME = re.compile("gloo|nccl|coordination|connection|socket|broken pipe|unavailable", re.IGNORECASE)


def end_lost(error: BaseException) -> NoReturn:
    """End all because a collective failed; an end that another process had time to write explains it, and is first."""
    _look(_cluster)
    time.sleep(_SILENT)
    _look(_cluster)
    gone = _silent(_cluster, _SILENT)
    stop(_line_of_lost(gone) if gone else f"{_named(index())} lost another: {shown(error, most=150)}; {_GO_ON}", 3)


def _line_of_lost(gone: list[int]) -> str:
    if len(gone) == 1:
        return f"{_named(gone[0])} is gone or does not answer; {_GO_ON}"
    return f"{_named(gone[0])} and {len(gone) - 1} more are gone or do not answer; {_GO_ON}"


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
            if fails > 3 or native.given_up.is_set() or time.monotonic() - _answered[0] > most:
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
    with contextlib.suppress(Exception):
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
