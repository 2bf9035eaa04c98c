"""The agent's client of the zygote: starts it, has it fork and signal, receives its reports."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from dataclasses import dataclass, field
from typing import Any

from drumline_agent.base.exit_codes import describe_exit_code, pod_exit_code
from drumline_agent.base.outcome import Failed
from drumline_agent.processes import zygote
from drumline_agent.processes.reaper import Reaper
from drumline_contract import ExitCode

KILL_SECONDS = 5.0
"""A killed process may be stuck in the kernel for longer: it is not waited for any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteReady:
    """The zygote has imported and can fork."""

    seconds: float
    """Time it took to import."""
    threads: int


@dataclass(slots=True, kw_only=True)
class Child:
    """A process forked by the zygote."""

    name: str
    pid: asyncio.Future[int] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Set once it has been forked; 0 if it never was."""
    exited: asyncio.Future[int] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Its exit code, negative for a signal."""


class ZygoteClient:
    """The only zygote of an agent."""

    def __init__(self, *, module: str, reaper: Reaper) -> None:
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[ZygoteReady] = loop.create_future()
        self.gone: asyncio.Future[Failed] = loop.create_future()
        """Why the zygote has ended."""
        self._children: dict[str, Child] = {}
        self._failure = ""
        self._channel, zygote_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with zygote_end:
            self._pid = _spawn(module=module, descriptor=zygote_end.fileno())
        self._ended = reaper.watch(self._pid)
        self._ended.add_done_callback(self._on_end)
        loop.add_reader(self._channel, self._receive)

    async def wait_until_ready(self) -> ZygoteReady:
        """Wait until it can fork."""
        return await asyncio.shield(self._ready)

    async def wait_until_gone(self) -> Failed:
        """Wait for `gone`."""
        return await asyncio.shield(self.gone)

    def fork(self, name: str, order: dict[str, Any], *, descriptors: list[int]) -> Child:
        """Have a child forked; the descriptors are closed here once they have been sent.

        Args:
            name: unique name of the child.
            order: request for a rank or a store.
            descriptors: pipes for the child.
        """
        child = Child(name=name)
        self._children[name] = child
        try:
            zygote.send_message(self._channel, {"fork": name, "order": order}, descriptors)
        except OSError:
            self._mark_lost(child)  # the zygote has ended: so does `gone`
        # The zygote has received copies. Ours would keep the pipes open.
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return child

    def signal(self, child: Child, number: int) -> None:
        """Signal a child's process group; nothing happens if it has ended."""
        if child.exited.done():
            return
        try:
            zygote.send_message(self._channel, {"signal": child.name, "number": int(number)})
        except OSError:
            self._mark_lost(child)

    async def close(self) -> None:
        """Kill the zygote; the kernel kills its children with it."""
        if not self._ended.done():
            os.kill(self._pid, signal.SIGKILL)
        await asyncio.wait([self._ended], timeout=KILL_SECONDS)
        asyncio.get_running_loop().remove_reader(self._channel)
        self._channel.close()

    def _receive(self) -> bool:
        """Handle the next message; False if there is none."""
        try:
            body = self._channel.recv(zygote.MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            body = b""
        # The zygote has closed its end. Its exit is handled by `_on_end`.
        if not body:
            asyncio.get_running_loop().remove_reader(self._channel)
            return False
        match json.loads(body):
            case {"ready": facts}:
                self._ready.set_result(ZygoteReady(**facts))
            case {"failed": reason}:
                self._failure = reason
            case {"forked": name, "pid": pid}:
                _settle(self._children[name].pid, pid)
            case {"exited": name, "code": code}:
                _settle(self._children.pop(name).exited, code)
            case message:
                raise ValueError(f"unknown message of the zygote: {message}")
        return True

    def _on_end(self, ended: asyncio.Future[int]) -> None:
        while self._receive():
            pass  # its last messages may still be in the socket
        code = ended.result()
        reason = self._failure or f"the zygote ended: {describe_exit_code(code)}"
        self.gone.set_result(
            Failed(exit_code=pod_exit_code(code) or ExitCode.APPLICATION, reason=reason)
        )
        # The kernel kills them with the zygote, and no message will report it.
        for child in list(self._children.values()):
            self._mark_lost(child)

    def _mark_lost(self, child: Child) -> None:
        _settle(child.pid, 0)
        _settle(child.exited, -signal.SIGKILL)  # the kernel kills it with its parent


def _settle(future: asyncio.Future[int], result: int) -> None:
    if not future.done():
        future.set_result(result)


def _spawn(*, module: str, descriptor: int) -> int:
    os.set_inheritable(descriptor, True)
    environment = {
        # numpy's OpenBLAS starts its threads on import; a forking process must not have any.
        "OPENBLAS_NUM_THREADS": "1",
        # c10d would warn of every connection from an address without a name; pods have none.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        **os.environ,
    }
    return os.posix_spawn(
        sys.executable,
        [
            sys.executable,
            "-m",
            "drumline_agent.processes.zygote",
            module,
            str(descriptor),
            str(os.getpid()),
        ],
        environment,
    )
