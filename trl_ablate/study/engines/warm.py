"""A fork server: it imports the modules of a training once, and forks every run. No torch.

A training spends 7 to 10 seconds on imports before it starts; a forked one has them already. In
all other ways it is like a new interpreter: it has its own session, the server's environment, its
own signals and exit code, and it continues when the runner or the server is killed. The server only
imports: it loads no model, does not initialise CUDA, and has no thread except one of pyarrow's
allocator, which supports forks. It ends when the process that started it ends.

`multiprocessing` has a fork server, which is deliberately not used. It imports the runner's
`__main__` into every run, starts one more process that tracks resources, and exists once per
program, so that two engines could not have two environments.
"""

import gc
import importlib
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

IMPORTS_OF_A_TRAINING = (
    "trl_ablate.cli.train",
    "trl_ablate.training.lifecycle",
)
SUPPORTED = sys.platform == "linux"
"""Elsewhere a process that has imported torch cannot be forked safely."""

LOST = 255
"""The exit code of a process whose server was killed, as the real one is unknown."""

MESSAGE_BYTES = 2**17
MOST_DESCRIPTORS = 8


class ForkServer:
    """Starts processes in which these modules are already imported.

    Args:
        modules: imported before the first process; if one cannot be imported, the
            processes import it themselves and fail as a new interpreter does.
        environment: of the server and all its processes; libraries read it as they are imported.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            server = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self.pid = server.pid
        self._gone = self._ready = False
        self._running: dict[int, WarmProcess] = {}
        self.close = weakref.finalize(self, _close, self._socket, server)

    def start(
        self,
        target: Callable[..., int | None],
        *arguments: object,
        stdout: int,
        stderr: int,
        keep: Sequence[int] = (),
    ) -> "WarmProcess":
        """Start a process that calls `target(*arguments)`, both pickled, in this process's folder.

        Args:
            stdout, stderr: descriptors for its output.
            keep: descriptors that stay open in it, so that their locks are held.
        """
        while not self._ready:
            self._hear()
        request = pickle.dumps((target, arguments, os.getcwd()))
        try:
            socket.send_fds(self._socket, [request], [stdout, stderr, *keep])
        except (BrokenPipeError, ConnectionResetError):
            raise ServerGone from None
        while (started := self._hear()) is None:
            pass
        return started

    def has_ended(self) -> bool:
        """Whether the server was killed; first reads all messages that it has sent."""
        with suppress(ServerGone):
            while self._speaks():
                self._hear()
        return self._gone

    def hear_of(self, process: "WarmProcess") -> None:
        """Wait for the exit code of an ended process."""
        with suppress(ServerGone):
            while process.code is None:
                self._hear()

    def _speaks(self) -> bool:
        """Whether there is a message, or the server has ended."""
        return is_readable(self._socket.fileno(), 0)

    def _hear(self) -> "WarmProcess | None":
        """Wait for one message and process it; returns the process if it reports a started one."""
        if self._gone:
            raise ServerGone
        try:
            data, descriptors, *_ = socket.recv_fds(self._socket, MESSAGE_BYTES, 1)
        except ConnectionResetError:
            data, descriptors = b"", []
        if not data:
            self._gone = True
            raise ServerGone
        match json.loads(data):
            case ["ready"]:
                self._ready = True
            case ["started", pid]:
                self._running[pid] = WarmProcess(self, pid, descriptors[0])
                return self._running[pid]
            case ["ended", pid, code]:
                self._running.pop(pid).code = code
        return None


class ServerGone(ConnectionError):
    """The fork server has ended unexpectedly."""

    def __init__(self):
        super().__init__("the fork server that starts the runs was killed")


class WarmProcess:
    """A forked process, with the methods of `subprocess.Popen` that a runner needs."""

    def __init__(self, server: ForkServer, pid: int, descriptor: int):
        self.pid = pid
        self.code: int | None = None
        self._server = server
        self._descriptor = descriptor
        os.set_inheritable(descriptor, False)
        weakref.finalize(self, os.close, descriptor)

    def poll(self) -> int | None:
        """The exit code (minus the signal that killed it), or None while it runs."""
        if self.code is None and self._server.has_ended() and self._has_ended(0):
            self.code = LOST
        return self.code

    def wait(self, timeout: float | None = None) -> int:
        if not self._has_ended(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        self._server.hear_of(self)
        return LOST if self.code is None else self.code

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def _has_ended(self, timeout: float | None) -> bool:
        """Whether it ends within `timeout` seconds; None: wait until it ends."""
        return is_readable(self._descriptor, timeout)


def is_readable(descriptor: int, timeout: float | None) -> bool:
    """Whether it is readable, or at its end, within `timeout` seconds; None: wait until it is."""
    events = select.poll()
    events.register(descriptor, select.POLLIN)
    return bool(events.poll(None if timeout is None else 1000 * timeout))


def _close(connection: socket.socket, server: subprocess.Popen) -> None:
    connection.close()
    server.kill()  # it may be importing, and has no data to lose
    server.wait()


def serve(connection: socket.socket, modules: Sequence[str]) -> Callable[[], int | None]:
    """Fork a process for every request, until the process at the other end has ended. Only the
    forked processes return, each with the function to call, so that they end as any Python program
    does."""
    for module in modules:
        with suppress(Exception):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # else garbage collection in a run would copy every page shared with the server
    _send(connection, ["ready"])
    running: dict[int, int] = {}
    """Process ids by pidfd, which is readable once the process has ended."""
    events = select.poll()
    events.register(connection, select.POLLIN)
    while True:
        for descriptor, _ in events.poll():
            if descriptor != connection.fileno():
                events.unregister(descriptor)
                _report_end(connection, running.pop(descriptor))
                os.close(descriptor)
                continue
            request, received, *_ = socket.recv_fds(connection, MESSAGE_BYTES, MOST_DESCRIPTORS)
            if not request:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                connection.close()
                for other in running:
                    os.close(other)
                return _become(request, received)
            for one in received:
                os.close(one)
            started = os.pidfd_open(pid)
            running[started] = pid
            events.register(started, select.POLLIN)
            _send(connection, ["started", pid], started)


def _report_end(connection: socket.socket, pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    _send(connection, ["ended", pid, os.waitstatus_to_exitcode(status)])


def _send(connection: socket.socket, message: list[object], *descriptors: int) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # the next request detects the end
        socket.send_fds(connection, [json.dumps(message).encode()], descriptors)


def _become(request: bytes, received: Sequence[int]) -> Callable[[], int | None]:
    """Make the forked process like a new interpreter; returns the function to call."""
    os.setsid()
    for number, descriptor in enumerate(received[:2], start=1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # seeded at import, and so the same in all processes
    target, arguments, folder = pickle.loads(request)
    os.chdir(folder)
    return partial(target, *arguments)


def main() -> Callable[[], int | None]:
    descriptor, *modules = sys.argv[1:]
    return serve(socket.socket(fileno=int(descriptor)), modules)


if __name__ == "__main__":
    try:
        code = main()()
    except KeyboardInterrupt:  # before the command could handle it: it has done nothing yet
        code = 128 + signal.SIGINT
    sys.exit(code)
