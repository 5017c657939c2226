"""A fork server: it imports the modules of a training once, and forks every run. No torch.

A training spends 7 to 10 seconds on imports before it starts; a forked one has them already. In
all other ways it is like a new interpreter: it has its own session, the server's environment, its
own signals and exit code, and it continues when the runner or the server is killed. The server only
imports: it loads no model, does not initialise CUDA, and has no thread except one of pyarrow's
allocator, which supports forks. It ends when the process that started it ends.

`multiprocessing` has a fork server, which is deliberately not used. It imports the runner's
`__main__` into every run, starts one more process that tracks resources, and exists once per
program, so that two engines could not have two environments.

A request goes over the server's socket. The answers come over a socket of the new process alone:
its process id with a descriptor of it, and its exit code when it has ended.
"""

import gc
import importlib
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

GONE = "the fork server that starts the runs was killed"
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
            self._server = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self.pid = self._server.pid
        self.close = weakref.finalize(self, _close, self._socket, self._server)

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
        request = pickle.dumps((target, arguments, os.getcwd()))
        answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                sent = [theirs.fileno(), stdout, stderr, *keep]
                socket.send_fds(self._socket, [request], sent)
            except (BrokenPipeError, ConnectionResetError):
                raise ConnectionError(GONE) from None
        pid, descriptors, *_ = socket.recv_fds(answers, MESSAGE_BYTES, 1)
        if not pid:
            raise ConnectionError(GONE)
        return WarmProcess(int(pid), descriptors[0], answers)

    def has_ended(self) -> bool:
        """Whether the server was killed."""
        return self._server.poll() is not None


class WarmProcess:
    """A forked process, with the methods of `subprocess.Popen` that a runner needs."""

    def __init__(self, pid: int, descriptor: int, answers: socket.socket):
        self.pid, self._code = pid, None
        self._descriptor, self._answers = descriptor, answers
        os.set_inheritable(descriptor, False)
        weakref.finalize(self, os.close, descriptor)

    def poll(self) -> int | None:
        """The exit code (minus the signal that killed it), or None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            ended = select.poll()
            ended.register(self._descriptor, select.POLLIN)
            if not ended.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self._code = int(self._answers.recv(MESSAGE_BYTES) or LOST)
        return self._code

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)


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
    running: dict[int, tuple[int, socket.socket]] = {}
    """By the descriptor of a process, readable once it has ended: its id, and where to answer."""
    events = select.poll()
    events.register(connection, select.POLLIN)
    while True:
        for descriptor, _ in events.poll():
            if descriptor != connection.fileno():
                events.unregister(descriptor)
                pid, answers = running.pop(descriptor)
                _answer(answers, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                answers.close()
                os.close(descriptor)
                continue
            request, received, *_ = socket.recv_fds(connection, MESSAGE_BYTES, MOST_DESCRIPTORS)
            if not request:
                os._exit(0)
            answers = socket.socket(fileno=received[0])
            pid = os.fork()
            if pid == 0:
                for one in (connection, answers, *(other for _, other in running.values())):
                    one.close()
                for one in running:
                    os.close(one)
                return _become(request, received[1:])
            for one in received[1:]:
                os.close(one)
            started = os.pidfd_open(pid)
            running[started] = pid, answers
            events.register(started, select.POLLIN)
            _answer(answers, pid, started)


def _answer(answers: socket.socket, number: int, *descriptors: int) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # nobody waits for it
        socket.send_fds(answers, [str(number).encode()], descriptors)


def _become(request: bytes, outputs: Sequence[int]) -> Callable[[], int | None]:
    """Make the forked process like a new interpreter; returns the function to call."""
    os.setsid()
    for number, descriptor in enumerate(outputs[:2], start=1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # seeded at import, and so the same in all processes
    target, arguments, folder = pickle.loads(request)
    os.chdir(folder)
    return partial(target, *arguments)


if __name__ == "__main__":
    number, *names = sys.argv[1:]
    try:
        code = serve(socket.socket(fileno=int(number)), names)()
    except KeyboardInterrupt:  # before the command could handle it: it has done nothing yet
        code = 128 + signal.SIGINT
    sys.exit(code)
