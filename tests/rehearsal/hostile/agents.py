"""A pod that speaks the protocol of an agent, or does not: one listener, one behaviour.

The kubelet's probe is always answered, so that the pod counts as ready. Records are accepted unless
the behaviour says otherwise, so that the job counts as running and is watched.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

AGENT_PORT = 29400
SIGNATURE = "x-drumline-signature"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, and the way to answer it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: socket.socket

    def answer(self, body: bytes) -> None:
        """A good answer with this body."""
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
        self.connection.sendall(head + body)


@dataclass(slots=True, kw_only=True)
class Pod:
    """What the pod knows of itself."""

    record: bytes = b""
    signature: str = ""
    generation: int = 0
    asked: int = 0
    """How often its status was asked for."""
    has_record: threading.Event = field(default_factory=threading.Event)

    def status(self, **changes: Any) -> bytes:
        """A status as the contract has it, with these fields in place of true ones."""
        whole = {
            "job_uid": os.environ["DRUMLINE_JOB_UID"],
            "pod_uid": os.environ["DRUMLINE_POD_UID"],
            "index": int(os.environ["DRUMLINE_INDEX"]),
            "generation": self.generation,
            "attempt": 0,
            "phase": "running",
            "progress": {"step": 1, "total_steps": 100},
            "version": self.asked,
        }
        return json.dumps({**whole, **changes}).encode()


Behaviour = Callable[[Pod, Call], None]


def serve(pod: Pod, behave: Behaviour) -> None:
    """Answer for ever, each connection in a thread."""
    with socket.create_server(("", AGENT_PORT), backlog=512) as listener:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_serve, args=(pod, behave, connection), daemon=True).start()


def accepting(on_status: Behaviour) -> Behaviour:
    """Accept every record; behave when the status is asked for."""

    def behave(pod: Pod, call: Call) -> None:
        if call.method == "GET":
            pod.asked += 1
            on_status(pod, call)
            return
        if call.path == "/v1/record":
            pod.record, pod.signature = call.body, call.headers.get(SIGNATURE, "")
            pod.generation = json.loads(call.body)["generation"]
            pod.has_record.set()
        call.answer(json.dumps({"generation": pod.generation}).encode())

    return behave


def _serve(pod: Pod, behave: Behaviour, connection: socket.socket) -> None:
    with connection:
        try:
            call = _read(connection)
            if call.path == "/readyz":
                call.answer(b"ready")
            else:
                behave(pod, call)
        except (OSError, ValueError):
            return


def _read(connection: socket.socket) -> Call:
    head = b""
    while b"\r\n\r\n" not in head:
        head += _more(connection)
    text, _, body = head.partition(b"\r\n\r\n")
    first, *lines = text.decode().split("\r\n")
    method, path, _ = first.split()
    pairs = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    while len(body) < int(headers.get("content-length", "0")):
        body += _more(connection)
    return Call(method=method, path=path, headers=headers, body=body, connection=connection)


def _more(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionError("closed")
    return data
