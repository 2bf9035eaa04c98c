"""Stand-ins for agents: they speak the contract over HTTP and say what a test tells them to.

Each listens on a loopback address of its own and the agents' port, as agents do in their pods.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from drumline_contract import (
    AGENT_PORT,
    SIGNATURE_HEADER,
    AgentPhase,
    AgentStatus,
    GenerationRecord,
    Notice,
    NoticeAnswer,
    Progress,
    verify,
)
from tests.patience import HANG_SECONDS


class FakeAgent:
    """The agent of one pod.

    Args:
        address: Loopback address it listens on.
        token: What its operator signs with.
        job_uid: Of its job.
        pod_uid: Of its pod.
        index: Of its pod.
        port: Where it listens; 0 lets the system choose.
    """

    def __init__(
        self,
        address: str,
        *,
        token: bytes,
        job_uid: str,
        pod_uid: str,
        index: int = 0,
        port: int = AGENT_PORT,
    ) -> None:
        self.address = address
        self.token = token
        self.records: list[GenerationRecord] = []
        self.notices: list[Notice] = []
        self.requests: list[str] = []
        self.saves: Progress | None = None
        """The checkpoint that it answers every notice with at once; None: it does not answer."""
        self.status = AgentStatus(
            job_uid=job_uid,
            pod_uid=pod_uid,
            index=index,
            generation=0,
            attempt=0,
            phase=AgentPhase.WAITING,
            progress=Progress(),
            version=1,
        )
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer((address, port), self._handler())
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.server_address[1]

    def change(self, **fields: Any) -> None:
        """Say something else from now on; whoever waits for news is answered."""
        with self._changed:
            self.status = replace(self.status, version=self.status.version + 1, **fields)
            self._changed.notify_all()

    def wait_for(self, what: Any, *, seconds: float = HANG_SECONDS) -> None:
        """Return once `what(self)` holds: it is looked at after every request and change."""
        with self._changed:
            assert self._changed.wait_for(lambda: what(self), timeout=seconds), self.requests[-5:]

    def die(self) -> None:
        """Answer nothing any more: connections are refused, those under way are cut."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        with self._changed:
            self._changed.notify_all()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        agent = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                agent._answer_get(self)

            def do_PUT(self) -> None:
                agent._answer_put(self)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002, ARG002
                return

        return Handler

    def _answer_get(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        signature = request.headers.get(SIGNATURE_HEADER, "")
        if not verify(self.token, signature, b"get", parts.path.encode()):
            return _send(request, 401, b"{}")
        query = parse_qs(parts.query)
        with self._changed:
            self.requests.append(request.path)
            self._changed.notify_all()
            if "since" in query:
                since, wait = int(query["since"][0]), float(query["wait"][0])
                self._changed.wait_for(lambda: self.status.version != since, timeout=wait)
            body = self.status.encode()
        return _send(request, 200, body)

    def _answer_put(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        kind = request.path.removeprefix("/v1/")
        if not verify(self.token, request.headers[SIGNATURE_HEADER], kind.encode(), body):
            return _send(request, 401, b"{}")
        with self._changed:
            self.requests.append(request.path)
            if kind == "record":
                self._take_record(GenerationRecord.parse(body))
            else:
                self._take_notice(Notice.parse(body))
            self._changed.notify_all()
            state = {"generation": self.status.generation}
        return _send(request, 200, json.dumps(state).encode())

    def _take_record(self, record: GenerationRecord) -> None:
        known = self.records[-1] if self.records else None
        if known and (known.generation, known.members) == (record.generation, record.members):
            return  # it was given twice, as its first answer came late
        self.records.append(record)
        self.change(generation=record.generation, phase=AgentPhase.RUNNING)

    def _take_notice(self, notice: Notice) -> None:
        known = any(
            each.id == notice.id and (each.withdraw or not notice.withdraw) for each in self.notices
        )
        self.notices.append(notice)
        if known:  # whoever asks again, with another deadline perhaps: the answer stands
            return
        if notice.withdraw:
            self.change(notice=None)
        elif self.saves is None:
            self.change(notice=NoticeAnswer(id=notice.id))
        else:
            step, digest = self.saves.checkpoint_step, self.saves.checkpoint_digest
            answer = NoticeAnswer(id=notice.id, step=step, digest=digest)
            self.change(notice=answer, progress=self.saves)


def _send(request: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
    try:
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)
    except OSError:  # whoever asked has gone
        time.sleep(0)
