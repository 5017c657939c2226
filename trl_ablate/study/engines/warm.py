"""A fork server: it imports the modules of a training once, and forks every run. No torch.

A training spends 7 to 10 seconds on imports before it starts; a forked one has them already. In
all other ways it is like a new interpreter: it has its own session, the server's environment, its
own signals and exit code, and it continues when the runner or the server is killed. The server only
imports: it loads no model, does not initialise CUDA, and has no thread except one of pyarrow's
allocator, which supports forks. It ends when the process that started it ends.

`multiprocessing` has a fork server, which is deliberately not used. It imports the runner's
`__main__` into every run, starts one more process that tracks resources, and exists once per
program, so that two engines could not have two environments.

For each request the server forks a waiter, which forks the run and answers over a socket of this
run: its process id, and its exit code when it has ended.
"""

import gc
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

IMPORTS_OF_A_TRAINING = ("trl_ablate.cli.train", "trl_ablate.training.lifecycle")
SUPPORTED = sys.platform == "linux"
"""Elsewhere a process that has imported torch cannot be forked safely."""

LOST = 255
"""The exit code of a process whose waiter was killed, as the real one is unknown."""

NOBODY_THERE = (BrokenPipeError, ConnectionResetError)
MESSAGE_BYTES, MOST_DESCRIPTORS = 2**17, 8


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
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env=environment, pass_fds=(theirs.fileno(),), start_new_session=True,
            )  # fmt: skip
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
        with theirs, suppress(*NOBODY_THERE):
            socket.send_fds(self._socket, [request], [theirs.fileno(), stdout, stderr, *keep])
        pid = answers.recv(MESSAGE_BYTES)
        if not pid:
            raise ConnectionError("the fork server that starts the runs was killed")
        return WarmProcess(int(pid), answers)

    def has_ended(self) -> bool:
        """Whether the server was killed."""
        return self._server.poll() is not None


class WarmProcess:
    """A forked process, with the methods of `subprocess.Popen` that a runner needs."""

    def __init__(self, pid: int, answers: socket.socket):
        self.pid, self._answers, self._code = pid, answers, None

    def poll(self) -> int | None:
        """The exit code (minus the signal that killed it), or None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            self._answers.settimeout(timeout)
            try:
                self._code = int(self._answers.recv(MESSAGE_BYTES) or LOST)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0) from None
        return self._code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


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
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # how a waiter ended is of no use
    while True:
        request, descriptors, *_ = socket.recv_fds(connection, MESSAGE_BYTES, MOST_DESCRIPTORS)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            connection.close()
            answers, *kept = descriptors
            _fork_and_wait(answers, kept)
            return _become(request, kept[:2])
        for one in descriptors:
            os.close(one)


def _fork_and_wait(answers: int, kept: Sequence[int]) -> None:
    """Returns in the new process alone. `answers` stays open in it, too: if the waiter is killed,
    the runner learns when it ends."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # a fork forgets one that has come
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        return
    for one in kept:  # of which some are locks
        os.close(one)
    with suppress(*NOBODY_THERE):
        os.write(answers, str(pid).encode())
        os.write(answers, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
    os._exit(0)


def _become(request: bytes, outputs: Sequence[int]) -> Callable[[], int | None]:
    """Make the forked process like a new interpreter; returns the function to call."""
    os.setsid()
    for number, descriptor in enumerate(outputs, start=1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if random := sys.modules.get("numpy.random"):
        random.seed()  # seeded at import, and so the same in all processes
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
