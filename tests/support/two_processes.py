"""Two processes that know of each other, forked from one that has imported torch."""

import os
import socket
from collections.abc import Callable

from tests.support.warm import fork


def environment(rank: int, port: int) -> dict[str, str]:
    """What a launcher tells the first or the second of two processes."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
    return {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in place.items()}}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def in_two_processes(target: Callable[..., None], *arguments: object) -> None:
    """Do `target(*arguments)` in two processes that know of each other."""
    port = free_port()
    for running in [fork(_one_of_two, rank, port, target, arguments) for rank in (0, 1)]:
        ended = running.wait()
        assert ended.code == 0, ended.printed


def _one_of_two(rank: int, port: int, target: Callable[..., None], arguments: tuple) -> None:
    os.environ.update(environment(rank, port))
    target(*arguments)
