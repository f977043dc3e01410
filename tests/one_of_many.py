"""One process of several, for test_processes.py: python one_of_many.py WHAT PORT PROCESSES PROCESS."""

import contextlib
import ctypes
import os
import signal
import sys
import time

from focalgeo import processes
from focalgeo.job import interruption
from focalgeo.types import InputError

what, *numbers = sys.argv[1:]
port, count, index = map(int, numbers)
act, _, who = what.partition(":")
interruption.stop_at_once()
flags = (
    {} if "SLURM_JOB_ID" in os.environ else {"coordinator": f"127.0.0.1:{port}", "processes": count, "process": index}
)
try:
    processes.join(**flags, join_timeout=60, heartbeat=10, then=lambda: interruption.stop_at_once(processes.stop))
except InputError as error:
    if processes.count() == 1:
        processes.write_line(f"focalgeo: {error}")
        os._exit(2)
    processes.end(str(error), 2)

import jax  # noqa: E402
import numpy as np  # noqa: E402

summed = jax.pmap(lambda values: jax.lax.psum(values, "devices"), axis_name="devices")
ones = np.ones((jax.local_device_count(), 4), np.float32)


def work(steps):
    for step in range(steps):
        jax.block_until_ready(summed(ones))
        if step == 50 and str(index) == who:
            yield
        time.sleep(0.002)


def fail():
    if act == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if act == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    if act == "end":
        processes.end("its own error", 2)
    if act == "raise":
        raise KeyError("wrong")
    if act in ("sleep", "hold"):  # the others wait in compiled code meanwhile
        print("asleep", flush=True)
        time.sleep(60)


line, code = "", 0
try:
    if act == "agree":
        found = [processes.broadcast("who", lambda: {"pid": os.getpid(), "index": index})["index"]]
        found += [processes.all_min("number", count - index), processes.on_this_host(), processes.index()]
        processes.check_equal("thing", {"a": [1, 2.5, None]}, "mend")
        found += [processes.broadcast(f"number {i}", lambda i=i: i * index) for i in range(20)][-1:]
        assert [processes.all_min("step", step + index) for step in range(250)] == list(range(250))
        print(*found, float(summed(ones)[0, 0]), flush=True)
        os.system("echo of another program")
    if act == "differ":
        processes.check_equal("thing", index == int(who), "make them equal")
    if act == "astray":
        processes.all_min("one", 1) if index == int(who) else processes.broadcast("other", lambda: 1)
        processes.broadcast("last", lambda: time.sleep(60))
    if act == "alike":
        time.sleep(0.5 * (index == 0))
        raise InputError("the same everywhere")
    if act == "slow":
        summed(ones)
        if str(index) == who:
            ctypes.PyDLL(None).sleep(5)
        time.sleep(1)
        if str(index) != who:
            processes.end("its own error", 2)
        time.sleep(60)
    if act == "work":
        print("at work", flush=True)
    with interruption.deferred_signals() if act == "hold" else contextlib.nullcontext():
        for _ in work(100 if act == "agree" else 10**6):
            fail()
except InputError as error:
    line, code = str(error), 2
except Exception as error:
    if processes.lost(error):
        processes.end_lost(error)
    line, code = f"{type(error).__name__}: {error}", 1
processes.end(line, code)
