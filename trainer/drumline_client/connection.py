"""Connect a rank to its pod's agent, with one daemon thread that reads and writes.

The training thread makes no system call to report a step. The connection's thread reads the newest
report twice per second and sends it if it changed. Rare messages (a part was saved, the work is
done) are delivered immediately. The caller waits for them, because the process may exit next.
Nothing here raises into the script. A lost agent is reported once as a warning, and retried every
RECONNECT_SECONDS.

A forked child, such as a worker of a data loader, inherits memory but no thread. It closes its copy
of the socket, and the connection is closed there.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import Callable, Final

from drumline_client.wire import (
    MAX_LINE_BYTES,
    AgentMessage,
    ClientMessage,
    Hello,
    JoinRefused,
    StepReport,
    Welcome,
    WireError,
    decode_agent_message,
    encode,
)

CONNECT_SECONDS: Final = 2.0
"""Seconds for which `open` waits for the agent's welcome."""
DELIVER_SECONDS: Final = 1.0
"""Seconds to wait for a message that must not be lost."""
RECONNECT_SECONDS: Final = 5.0
KEEPALIVE_SECONDS: Final = 10.0
"""Seconds after which an unchanged report is sent again."""
QUEUED_MESSAGES: Final = 16
"""Maximum number of queued messages while the agent is lost. The oldest are dropped."""
SEND_SECONDS: Final = 5.0
"""Seconds after which an agent that does not read counts as lost."""

logger = logging.getLogger("drumline_client")


class AgentConnection:
    """Connection to the socket of the pod's agent."""

    def __init__(
        self,
        path: str,
        *,
        hello: Callable[[], Hello],
        newest_report: Callable[[], StepReport],
        on_message: Callable[[AgentMessage], ClientMessage | None],
        on_lost: Callable[[], None],
    ) -> None:
        """Create the connection.

        Args: the socket; values to send; handler of a message, which returns its reply.
        """
        self._path = path
        self._hello = hello
        self._newest_report = newest_report
        self._on_message = on_message
        self._on_lost = on_lost
        # The default of the protocol applies until the welcome arrives.
        self._report_seconds = Welcome(v=0).report_seconds
        self._queued: deque[ClientMessage] = deque(maxlen=QUEUED_MESSAGES)
        self._delivered = threading.Condition()
        self._socket: socket.socket | None = None
        # The socket pair wakes the thread's select for urgent messages.
        self._wake_read, self._wake_write = socket.socketpair()
        # The training thread must never block on a full wake buffer.
        self._wake_write.setblocking(False)
        self._tried = threading.Event()
        self._warned = False
        self.closed = False
        """Closed permanently: refused, or in a forked child."""

    def open(self) -> None:
        """Start the thread, and wait until the agent has answered or cannot be reached."""
        # A weak reference: the fork hook cannot be removed and would keep the connection alive.
        this = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: (self := this()) and self.close_in_child())
        threading.Thread(target=self._run, name="drumline-client", daemon=True).start()
        self._tried.wait(CONNECT_SECONDS)

    def deliver(self, message: ClientMessage) -> None:
        """Send a message that must not be lost.

        Wait at most DELIVER_SECONDS, and not for a lost agent.
        """
        if self.closed:
            return
        with self._delivered:
            self._queued.append(message)
            self._wake()
            # A lost agent has no socket, so the wait ends at once.
            self._delivered.wait_for(
                lambda: self._socket is None or message not in self._queued, DELIVER_SECONDS
            )

    def close(self) -> None:
        """End the thread. Queued messages are dropped."""
        self.closed = True
        self._wake()

    def close_in_child(self) -> None:
        """Close the connection after a fork, and leave the agent to the parent."""
        self.closed = True
        for inherited in (self._socket, self._wake_read, self._wake_write):
            if inherited is not None:
                inherited.close()

    def _wake(self) -> None:
        with suppress(OSError):  # it has been woken more often than it could look
            self._wake_write.send(b".")

    def _run(self) -> None:
        while not self.closed:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
                    # The timeout bounds sends. Reads follow a select and do not block.
                    agent.settimeout(SEND_SECONDS)
                    agent.connect(self._path)
                    self._socket = agent
                    self._talk(agent)
            except (OSError, ValueError) as error:  # a WireError is a ValueError
                self._warn(
                    f"the agent at {self._path} is lost ({error}); training continues without it"
                )
            # Waiting callers must not wait for an agent that is gone.
            with self._delivered:
                self._socket = None
                self._delivered.notify_all()
            self._on_lost()
            # The first attempt is over, whatever its result, so `open` returns.
            self._tried.set()
            if not self.closed:
                time.sleep(RECONNECT_SECONDS)

    def _talk(self, agent: socket.socket) -> None:
        """Exchange messages until the connection is closed.

        Raises:
            OSError: the connection failed.
            WireError: the agent sent an invalid line.
        """
        # The hello must be the first line on the socket.
        agent.sendall(encode(self._hello()))
        with selectors.PollSelector() as selector:  # select() fails above 1023 open files
            selector.register(agent, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            self._exchange(agent, selector)

    def _exchange(self, agent: socket.socket, selector: selectors.BaseSelector) -> None:
        rest, sent, sent_at = b"", None, 0.0
        while not self.closed:
            # select returns at the latest when the next report is due.
            readable = [key.fileobj for key, _ in selector.select(self._report_seconds)]
            if self._wake_read in readable:
                self._wake_read.recv(4096)
            if agent in readable:
                received = agent.recv(1 << 16)
                # An empty read is the end of the stream. The loop would otherwise spin.
                if not received:
                    raise ConnectionError("the agent closed the connection")
                rest = self._take_lines(rest + received, agent)
            self._send_queued(agent)  # first: what a rank has said is older than its newest step
            report = self._newest_report()
            # Unchanged reports are sent seldom, as a sign of life.
            if report != sent or time.monotonic() - sent_at > KEEPALIVE_SECONDS:
                agent.sendall(encode(report))
                sent, sent_at = report, time.monotonic()

    def _take_lines(self, received: bytes, agent: socket.socket) -> bytes:
        """Process each whole line. Return the unfinished rest."""
        *lines, rest = received.split(b"\n")
        # The bound keeps a faulty agent from filling this process's memory.
        if len(rest) > MAX_LINE_BYTES:
            raise WireError("a line without a newline")
        for line in lines:
            message = decode_agent_message(line)
            if isinstance(message, Welcome):
                # Clamp: 0 would spin, and a large value would hide the rank.
                self._report_seconds = min(max(message.report_seconds, 0.05), 60.0)
            elif isinstance(message, JoinRefused):
                # A rejection is final. A reconnect would only be rejected again.
                self.closed = True
                self._warn(f"the agent rejected this process: {message.reason}")
            reply = None if message is None else self._on_message(message)
            # The handler ran before the event, so `open` returns with the welcome known.
            if isinstance(message, (Welcome, JoinRefused)):
                self._tried.set()
            if reply is not None:
                agent.sendall(encode(reply))
        return rest

    def _send_queued(self, agent: socket.socket) -> None:
        while self._queued:
            # The head stays queued until sent, so that a lost connection resends it.
            message = self._queued[0]
            agent.sendall(_fitting(message))
            with self._delivered:
                if self._queued[0] is message:  # else it was dropped meanwhile for newer ones
                    self._queued.popleft()
                self._delivered.notify_all()

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("drumline: %s", text)


def _fitting(message: ClientMessage) -> bytes:
    """Return the message's line, without its texts if escapes make it too long."""
    try:
        return encode(message)
    except WireError:
        return encode(replace(message, path="", error="too long to show"))
