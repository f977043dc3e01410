"""The runtime's compiled code when another process is gone: it writes to the descriptors and aborts."""

import contextlib
import ctypes
import os
import re
import signal
import sys
import threading

given_up = threading.Event()  # the runtime has lost process 0, and aborts


def delay_aborts() -> None:
    """Let the runtime's own abort sleep for six seconds, the signal's number, in which `_watch` ends the process."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))


_NOISE = re.compile(
    rb"\[Gloo\] |\[external/.*gloo/|[IWE]\d{4} .*(coordination|distributed|recoverable)|RPC: /|"
    rb"Additional GRPC error|:UN[A-Z]+:|=== Source Location Trace|external/xla"
)
_GREETING = re.compile(  # of gloo for each device, piece by piece, so that those of several devices mingle
    rb"(\[Gloo\] Rank |\d+| is connected to | peer ranks\. |Expected number of connected peer ranks is : )*"
)
_FATAL = re.compile(rb"F\d{4} .*JAX distributed service")


def hide_lines() -> None:
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
    rest, fatal = b"", False
    while chunk := os.read(readable, 65536):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if _FATAL.match(line):
                fatal = True
                given_up.set()
            if not (fatal or _NOISE.match(line) or _GREETING.fullmatch(line)):
                with contextlib.suppress(OSError):
                    os.write(real, line + b"\n")
