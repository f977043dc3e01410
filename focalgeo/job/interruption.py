"""Signals that ask a run to stop, held back until the step has ended."""

import contextlib
import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOPPED = "stopped; the same command goes on from what is saved"
_holding: list[None] = []  # one element within `deferred_signals`
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _handled() -> list[signal.Signals]:
    """The signals that stop a run; not SIGHUP where `nohup` has it ignored."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [each for each in SIGNALS if not (ignored and each is signal.SIGHUP)]


def stop_at_once(end: Callable[[str, int], object] | None = None) -> None:
    """From now on SIGINT, SIGTERM and SIGHUP end the process in one line, with exit code 128 + signal.

    No exception is raised for them: it would rise in the middle of a library's call, or be lost in a callback. What is
    on disk is consistent at any moment.

    end: ends this process and others with a line and a code. The main thread may then wait for others in compiled code,
    where Python heeds no signal: a thread does, if the signal is not held back or is the second one.
    """

    def stop(signum, frame):
        if end is not None:
            end(STOPPED, 128 + signum)
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a terminal that is gone
            os.write(sys.stderr.fileno(), f"\nfocalgeo: {STOPPED}\n".encode())
        os._exit(128 + signum)

    for signum in _handled():
        signal.signal(signum, stop)
    if end is not None:
        readable, writable = os.pipe()
        os.set_blocking(writable, False)
        signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        threading.Thread(target=_watch, args=(readable, end), daemon=True).start()


def _watch(readable: int, end: Callable[[str, int], object]) -> None:
    """End for a signal that the main thread, waiting in compiled code, has not answered in a second."""
    seen = 0
    while signum := os.read(readable, 1)[0]:
        if signum in SIGNALS:
            seen += 1
            if seen > 1 or not _holding:
                time.sleep(1)
                end(STOPPED, 128 + signum)


def end_at_once(code: int) -> None:
    """End the process at once, once all is written, so that no thread of a library adds to the error's one line."""
    with contextlib.suppress(OSError):  # of a terminal that is gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


@contextmanager
def deferred_signals() -> Iterator[Callable[[], int | None]]:
    """Within the block the first signal of SIGNALS is only noted; the yielded function returns its number, or None.

    The second one acts at once, so that a run that hangs can still be stopped. Handlers are restored on the way out.
    Outside of the main thread, where Python allows no handlers, nothing is deferred.
    """
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = {signum: signal.getsignal(signum) for signum in _handled()}

    def note(signum, frame):
        _let_go_of_terminal()
        seen.append(signum)
        for each, handler in before.items():
            signal.signal(each, handler)

    for signum in before:
        signal.signal(signum, note)
    _holding.append(None)
    try:
        yield lambda: seen[0] if seen else None
    finally:
        _holding.pop()
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _let_go_of_terminal() -> None:
    """Write to nowhere instead of to a terminal that is gone, where the next line would be an error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            descriptor = stream.fileno()
            os.tcgetpgrp(descriptor)
        except (OSError, ValueError) as error:  # ValueError: of a stream that is closed
            if getattr(error, "errno", None) == errno.EIO:
                with open(os.devnull, "wb") as nowhere:
                    os.dup2(nowhere.fileno(), descriptor)
