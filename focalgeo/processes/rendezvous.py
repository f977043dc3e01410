"""The rendezvous of a job's processes before jax's runtime connects them: who is there, and whether all can go on.

Process 0 listens at the coordinator's address until all others have come, and then makes way for the runtime, which
listens there in its place. The runtime alone would take whoever comes last for a process, and end the one that had the
number before; and nobody would hear of an error before joining.
"""

import contextlib
import errno
import json
import selectors
import socket
import sys
import time
from typing import Any, NamedTuple

from focalgeo.types import InputError, RunError, shown

_LONGEST = 10_000  # bytes of a message


class Attendance(NamedTuple):
    """One process at the rendezvous."""

    address: str  # HOST:PORT of process 0
    bind: str  # where process 0 listens
    processes: int
    process: int
    seconds: float  # that it waits
    trouble: str  # the line for which it cannot go on, or ""


def attend(own: Attendance) -> None:
    """Wait until all processes have come; one that cannot go on ends all.

    A line that others may still have to hear is said at once, and the error that is raised after it has none.

    Raises:
        InputError: a process cannot go on, has another number of processes, or has the number of another one.
        RunError: some did not come in time, or process 0 cannot listen.
    """
    if own.process == 0:
        _Reception(own).run()
    else:
        _visit(own)


def _named(process: int, processes: int) -> str:
    return f"process {process} of {processes}"


def _late(own: Attendance, why: str) -> str:
    return (
        f"{_named(own.process, own.processes)} waited {own.seconds:g} s for the others at {own.address}: {why}; start "
        "the same command on every host, with the same --coordinator and --processes, within --join_timeout seconds"
    )


def _taken(process: int, processes: int) -> str:
    return f"{_named(process, processes)} has already joined: each host needs a --process of its own"


def say(line: str) -> None:
    """Write a line of the command's own on standard error, if that takes one."""
    with contextlib.suppress(OSError):  # of a terminal that is gone, or a full disk
        print(f"focalgeo: {line}", file=sys.stderr, flush=True)


class _Reception:
    """Process 0's side: who has come, each with its connection, which holds the number for as long as it is open."""

    def __init__(self, own: Attendance):
        self.own, self.trouble = own, own.trouble
        self.present: dict[int, socket.socket | None] = {}  # None: was told the trouble
        self.selector = selectors.DefaultSelector()

    def run(self) -> None:
        with _listening(self.own.bind) as server:
            self.selector.register(server, selectors.EVENT_READ)
            last = time.monotonic() + self.own.seconds
            if self.trouble:
                say(self.trouble)
            while len(self.present) < self.own.processes - 1 and time.monotonic() < last:
                for key, _ in self.selector.select(0.1):
                    self._accept(server) if key.fileobj is server else self._read(key.fileobj, key.data)
        if self.trouble:
            raise InputError("")
        missing = [number for number in range(1, self.own.processes) if number not in self.present]
        if missing:
            more = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
            line = _late(self.own, f"not all of them came, process {missing[0]}{more} missing")
            self._tell(line, 3)
            raise RunError(line)
        self._tell("", 0)

    def _accept(self, server: socket.socket) -> None:
        connection, _ = server.accept()
        connection.setblocking(False)
        self.selector.register(connection, selectors.EVENT_READ, bytearray())

    def _read(self, connection: socket.socket, buffer: bytearray) -> None:
        try:
            received = connection.recv(4096)
        except OSError:
            received = b""
        buffer += received
        if not received or len(buffer) > _LONGEST:
            self._drop(connection)
        elif buffer.endswith(b"\n"):
            try:
                message = json.loads(buffer)
                numbers = int(message["process"]), int(message["processes"])
                texts = str(message["host"]), str(message["trouble"])
            except (ValueError, KeyError, TypeError):
                return self._drop(connection)
            self._admit(connection, *numbers, *texts)

    def _admit(self, connection: socket.socket, process: int, processes: int, host: str, trouble: str) -> None:
        count = self.own.processes
        if process in self.present and not self.trouble:
            _send(connection, _taken(process, count), 2)
            return self._drop(connection)
        if 0 < process < count:
            self.present[process] = connection
        if processes != count:
            differ = f"{count} of process 0, {processes} of process {process}"
            self._end(f"the processes differ in the number of processes: {differ}: give the same on every host")
        elif trouble:
            self._end(f"{_named(process, count)} ({host}): {trouble}")
        if self.trouble:
            _send(connection, self.trouble, 2)
            self._drop(connection, forget=False)

    def _end(self, trouble: str) -> None:
        """All end with this line, those that have yet to come too."""
        if not self.trouble:
            self.trouble = trouble
            say(trouble)
            self._tell(trouble, 2)

    def _tell(self, line: str, code: int) -> None:
        for connection in filter(None, list(self.present.values())):
            _send(connection, line, code)
            self._drop(connection, forget=False)

    def _drop(self, connection: socket.socket, *, forget: bool = True) -> None:
        """Close a connection; its process may come again, unless it has been told all."""
        if connection.fileno() != -1:
            self.selector.unregister(connection)
            connection.close()
        for number in [number for number, each in self.present.items() if each is connection]:
            if forget:
                del self.present[number]
            else:
                self.present[number] = None


def _listening(bind: str) -> socket.socket:
    host, _, port = bind.rpartition(":")
    host = host.strip("[]")
    try:
        if host == "::" and socket.has_dualstack_ipv6():
            return socket.create_server(("", int(port)), family=socket.AF_INET6, dualstack_ipv6=True, backlog=4096)
        family = socket.AF_INET6 if ":" in host and host != "::" else socket.AF_INET
        return socket.create_server(("" if host == "::" else host, int(port)), family=family, backlog=4096)
    except OSError as error:
        why = "in use on this host" if error.errno == errno.EADDRINUSE else f"not to be had: {error.strerror or error}"
        raise RunError(f"port {port} of --coordinator is {why}: choose another one, on every host") from error


def _send(connection: socket.socket, line: str, code: int) -> None:
    with contextlib.suppress(OSError):  # it has gone
        connection.sendall(json.dumps({"line": line, "code": code}).encode() + b"\n")


def _visit(own: Attendance) -> None:
    """Every other process' side: come, and wait for process 0's word."""
    host, _, port = own.address.rpartition(":")
    began, said, why = time.monotonic(), False, ""
    message = {"process": own.process, "processes": own.processes, "host": shown(socket.gethostname())}
    text = json.dumps({**message, "trouble": own.trouble}).encode() + b"\n"
    while True:
        answer = None
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=2) as connection:
                why = "not all of them came"
                connection.sendall(text)
                answer = _answer(own, connection, began + own.seconds)
        except socket.gaierror:
            why = "no such host is known here"
        except ConnectionRefusedError:
            why = "nothing listens there, as process 0 does once it runs"
        except OSError:
            why = why or "it cannot be reached from here"
        if answer is not None:
            line, code = answer
            if code:
                raise (RunError if code == RunError.exit_code else InputError)("" if said else line)
            return
        if own.trouble and not said and time.monotonic() - began > 2:
            said = True
            say(f"{_named(own.process, own.processes)} ({shown(socket.gethostname())}): {own.trouble}")
        if time.monotonic() - began > own.seconds:
            raise InputError("") if said else RunError(_late(own, why))
        time.sleep(0.2)


def _answer(own: Attendance, connection: socket.socket, last: float) -> tuple[str, int] | None:
    """Process 0's word; None if the connection ends without one."""
    received = b""
    connection.settimeout(0.2)
    while (
        not received.endswith(b"\n") and time.monotonic() < last + 2
    ):  # it may be about to say that others are missing
        try:
            more = connection.recv(4096)
        except TimeoutError:
            continue
        if not more:
            return None
        received += more
        if not received.startswith(b"{"[: len(received)]):
            return _of_stranger(own, received)
    try:
        found: dict[str, Any] = json.loads(received)
        return str(found["line"]), int(found["code"])
    except (ValueError, KeyError, TypeError):
        return None


def _of_stranger(own: Attendance, received: bytes) -> tuple[str, int]:
    """What is wrong where another program than process 0 answers; the runtime begins with HTTP/2's settings."""
    if received[3:4] == b"\x04":
        who = _named(own.process, own.processes)
        mend = "each host needs a --process of its own, and all the same --processes"
        return f"{who} comes too late, all at {own.address} have already joined: {mend}", 2
    return f"another program listens at {own.address}: choose another port, on every host", 3
