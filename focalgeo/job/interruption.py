"""Signals that ask a run to stop, held back until the step has ended."""

import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from focalgeo.types import STOPPED

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _set(handler) -> dict[signal.Signals, object]:
    """Handle the signals that stop a run, but SIGHUP where `nohup` has it ignored; returns the handlers before."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return {signum: signal.signal(signum, handler) for signum in SIGNALS[: 2 if ignored else 3]}


def _restore(before: dict[signal.Signals, object]) -> None:
    for signum, handler in before.items():
        signal.signal(signum, handler)


def stop_at_once() -> None:
    """From now on SIGINT, SIGTERM and SIGHUP end the process in one line, with exit code 128 + signal.

    No exception is raised for them: it would rise in the middle of a library's call, or be lost in a callback. What is
    on disk is consistent at any moment.
    """

    def stop(signum, frame):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a terminal that is gone
            os.write(sys.stderr.fileno(), f"\nfocalgeo: {STOPPED}\n".encode())
        os._exit(128 + signum)

    _set(stop)


@contextmanager
def left_to_the_system() -> Iterator[None]:
    """Within the block signals kill this process even where it waits in compiled code, in which Python heeds none."""
    before = _set(signal.SIG_DFL)
    try:
        yield
    finally:
        _restore(before)


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

    def note(signum, frame):
        _let_go_of_terminal()
        seen.append(signum)
        _restore(before)

    before = _set(note)
    try:
        yield lambda: seen[0] if seen else None
    finally:
        _restore(before)


def _let_go_of_terminal() -> None:
    """Write to nowhere instead of to a terminal that is gone, where the next line would be an error."""
    for descriptor in (1, 2):
        try:
            os.tcgetpgrp(descriptor)
        except OSError as error:
            if error.errno == errno.EIO:
                with open(os.devnull, "wb") as nowhere:
                    os.dup2(nowhere.fileno(), descriptor)
