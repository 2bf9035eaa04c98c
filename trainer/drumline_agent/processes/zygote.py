"""The zygote: a process that imports torch and the trainer once, then forks a process per rank.

`import torch` takes seconds. A fork of a process that has done it takes milliseconds and shares its
pages (a "zygote", as in Chromium and Android). That works only while the zygote has one thread and
no CUDA context, so it only imports, forks, waits and kills. Only the zygote signals ranks. Because
it reaps them, it cannot hit a process id that the kernel has reused.

Protocol, JSON datagrams over a unix socket whose other end the agent holds:

    agent -> zygote   {"fork": name, "order": {...}}  with descriptors: output, and of a rank
                      its messages and its orders
                      {"signal": name, "number": n}   to the process group of one child
    zygote -> agent   {"ready": {"seconds": s, "threads": n}} or {"failed": reason}
                      {"forked": name, "pid": pid}
                      {"exited": name, "code": c}     c < 0: killed by signal -c

The kernel kills the zygote when the agent dies, and its children when the zygote dies. When a
rank's process ends, the zygote kills the remaining processes of its group.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from drumline_agent.host import prctl
from drumline_agent.processes import rank_main

MAX_MESSAGE_BYTES = 128 * 1024


class Zygote:
    """The loop of the zygote process."""

    def __init__(self, *, channel: socket.socket, module: ModuleType) -> None:
        self._channel = channel
        self._module = module
        self._children: dict[str, int] = {}
        self._selector = selectors.DefaultSelector()
        # A signal wakes `select` through this socket, without a race between check and wait.
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        """Handle messages until the agent closes its end; then kill the children."""
        self._selector.register(self._channel, selectors.EVENT_READ, self._handle_message)
        self._selector.register(self._woken, selectors.EVENT_READ, self._reap)
        while self._handle_events(self._selector.select()):
            pass
        # The agent has closed its end: it is gone, and ranks must not outlive it.
        for name in self._children:
            self._signal(name, signal.SIGKILL)

    def _handle_events(self, ready: list[tuple[selectors.SelectorKey, int]]) -> bool:
        """Handle ready descriptors; False once the agent has closed its end."""
        return all(key.data() for key, _ in ready)

    def _handle_message(self) -> bool:
        body, descriptors, _, _ = socket.recv_fds(
            self._channel, MAX_MESSAGE_BYTES, 3, socket.MSG_CMSG_CLOEXEC
        )
        # End of file: the agent has ended.
        if not body:
            return False
        message: dict[str, Any] = json.loads(body)
        if "fork" in message:
            self._fork(message["fork"], message["order"], descriptors)
        else:
            self._signal(message["signal"], message["number"])
        return True

    def _fork(self, name: str, order: dict[str, Any], descriptors: list[int]) -> None:
        zygote_pid = os.getpid()
        pid = os.fork()
        # In the child: drop everything of the zygote, or a rank could read its messages.
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for resource in (self._channel, self._woken, self._waker, self._selector):
                resource.close()
            rank_main.run_child(
                module=self._module, order=order, descriptors=descriptors, parent_pid=zygote_pid
            )
        # In the zygote: open copies would keep pipes from ending.
        for descriptor in descriptors:
            os.close(descriptor)
        self._children[name] = pid
        self._send({"forked": name, "pid": pid})

    def _signal(self, name: str, number: int) -> None:
        pid = self._children.get(name)
        if pid is None:
            return  # it has ended in the meantime
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            os.kill(pid, number)  # it has not called setsid yet

    def _reap(self) -> bool:
        self._woken.recv(4096)
        for name, pid in list(self._children.items()):
            # WNOWAIT keeps the id reserved until its group is killed.
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # its id cannot be reused before the next line
            _, status = os.waitpid(pid, 0)
            del self._children[name]
            self._send({"exited": name, "code": os.waitstatus_to_exitcode(status)})
        return True

    def _send(self, message: dict[str, Any]) -> None:
        send_message(self._channel, message)


def send_message(
    channel: socket.socket, message: dict[str, Any], descriptors: list[int] | None = None
) -> None:
    """Send one datagram of the protocol.

    Args:
        channel: a Unix datagram socket.
        message: JSON values.
        descriptors: descriptors to pass on.
    """
    socket.send_fds(channel, [json.dumps(message).encode()], descriptors or [])


def main(arguments: list[str]) -> int:
    """Run as `python -m drumline_agent.processes.zygote MODULE DESCRIPTOR PARENT_PID`."""
    name, descriptor, parent_pid = arguments
    prctl.die_with_parent(int(parent_pid))
    os.setsid()
    # The agent decides when processes end. Blocked, not ignored: a signal that reaches a rank
    # between its fork and its first line stays pending.
    signal.pthread_sigmask(signal.SIG_BLOCK, rank_main.HELD_SIGNALS)
    started = time.monotonic()
    with socket.socket(fileno=int(descriptor)) as channel:
        os.set_inheritable(channel.fileno(), False)
        try:
            module = importlib.import_module(name)
            rank_main.preload(module)
        except Exception as error:  # noqa: BLE001 - whatever the import raises, the agent must know
            send_message(channel, {"failed": f"import {name}: {type(error).__name__}: {error}"})
            return 1
        # Garbage would be copied into every child with the first collection.
        gc.collect()
        gc.freeze()  # the collector of a child must not touch, and so copy, the shared pages
        # More than one thread makes forks unsafe, so the agent logs the number.
        threads = len(list(Path("/proc/self/task").iterdir()))
        seconds = round(time.monotonic() - started, 3)
        send_message(channel, {"ready": {"seconds": seconds, "threads": threads}})
        Zygote(channel=channel, module=module).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
