"""An agent's end of the client's socket, played: what it heard, and what it is told to say."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from drumline_client.wire import (
    VERSION,
    AgentMessage,
    ClientMessage,
    Hello,
    JoinRefused,
    Welcome,
    decode_client_message,
    encode,
)
from tests.patience import HANG_SECONDS

QUICK = Welcome(v=VERSION, report_seconds=0.05)
Kind = TypeVar("Kind")


class PlayedAgent:
    """Answers each hello with `greeting`; every message of every connection is in `heard`."""

    def __init__(self, path: Path, *, greeting: Welcome | JoinRefused) -> None:
        self.path = str(path)
        self.greeting = greeting
        self.heard: queue.Queue[ClientMessage | None] = queue.Queue()
        """None: a connection was closed."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        self._ranks: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def say(self, message: AgentMessage) -> None:
        """To the newest connection."""
        self._ranks[-1].sendall(encode(message))

    def say_bytes(self, line: bytes) -> None:
        self._ranks[-1].sendall(line)

    def wait_for(self, kind: type[Kind]) -> Kind:
        """The next message of a kind; others before it are dropped."""
        while True:
            message = self.heard.get(timeout=HANG_SECONDS)
            if isinstance(message, kind):
                return message

    def hang_up(self) -> None:
        """Lose the newest connection."""
        self._ranks[-1].shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        for rank in self._ranks:
            rank.close()

    def _accept(self) -> None:
        while True:
            try:
                rank, _ = self._listener.accept()
            except OSError:
                return
            self._ranks.append(rank)
            threading.Thread(target=self._read, args=(rank,), daemon=True).start()

    def _read(self, rank: socket.socket) -> None:
        with rank.makefile("rb") as lines:
            try:
                for line in lines:
                    message = decode_client_message(line)
                    if isinstance(message, Hello):
                        rank.sendall(encode(self.greeting))
                    self.heard.put(message)
            except (OSError, ValueError):
                pass
        self.heard.put(None)


@contextmanager
def played_agent(*, greeting: Welcome | JoinRefused = QUICK) -> Iterator[PlayedAgent]:
    """In a folder of its own: a socket's path has 107 bytes at most."""
    with TemporaryDirectory() as folder:
        agent = PlayedAgent(Path(folder) / "agent.sock", greeting=greeting)
        try:
            yield agent
        finally:
            agent.close()
