"""What the notifier sends to: web and mail servers on loopback that keep what they get."""

from __future__ import annotations

import json
import queue
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage, Message
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tools.cluster.certificates import Authority

RECEIVE_SECONDS = 200.0
"""The operator makes forecasts every minute, and a preemption waits for one."""


@dataclass(frozen=True, kw_only=True)
class Posted:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass(kw_only=True)
class WebServer:
    """Answers as it is told to, 200 otherwise."""

    url: str
    answers: queue.SimpleQueue[tuple[int, dict[str, str]]] = field(
        default_factory=queue.SimpleQueue[tuple[int, dict[str, str]]]
    )
    posted: queue.SimpleQueue[Posted] = field(default_factory=queue.SimpleQueue[Posted])

    def next(self) -> Posted:
        return self.posted.get(timeout=RECEIVE_SECONDS)


@contextmanager
def web_server(*, tls: ssl.SSLContext | None = None) -> Iterator[WebServer]:
    server = WebServer(url="")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posted = Posted(path=self.path, headers=dict(self.headers), body=json.loads(body))
            status, headers = (200, {}) if server.answers.empty() else server.answers.get()
            server.posted.put(posted)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            """Say nothing."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        listening.socket = tls.wrap_socket(listening.socket, server_side=True)
    server.url = f"{'https' if tls else 'http'}://127.0.0.1:{listening.server_address[1]}"
    with _served(listening):
        yield server


@dataclass(frozen=True, kw_only=True)
class Received:
    """A mail as it came: envelope, login, whether in TLS, and the parsed message."""

    sender: str
    recipients: tuple[str, ...]
    login: str
    in_tls: bool
    raw: bytes

    @property
    def mail(self) -> EmailMessage:
        parsed: Message = message_from_bytes(self.raw, policy=default)
        assert isinstance(parsed, EmailMessage)
        return parsed


@dataclass(kw_only=True)
class MailServer:
    """A little of RFC 5321, with STARTTLS and AUTH; refuses recipients by code where told to."""

    port: int
    refusals: dict[str, int] = field(default_factory=dict[str, int])
    farewell: str = "221 bye"
    received: queue.SimpleQueue[Received] = field(default_factory=queue.SimpleQueue[Received])

    def next(self) -> Received:
        return self.received.get(timeout=RECEIVE_SECONDS)


class _MailSession(socketserver.StreamRequestHandler):
    mailbox: MailServer
    tls: ssl.SSLContext | None
    login, in_tls = "", False

    def handle(self) -> None:
        self._reset()
        self._say("220 ready")
        while line := self.rfile.readline().decode().strip():
            verb = line.split()[0].upper()
            if verb == "QUIT":
                self._say(self.mailbox.farewell)
                return
            self._obey(verb, line)

    def finish(self) -> None:
        super().finish()
        self.request.close()

    def _reset(self) -> None:
        self.sender, self.recipients = "", list[str]()

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())

    def _obey(self, verb: str, line: str) -> None:
        match verb:
            case "EHLO":
                offered = ["STARTTLS"] if self.tls is not None and not self.in_tls else []
                offered += ["AUTH PLAIN"] if self.in_tls else []
                self._say("250-channel")
                for extension in offered:
                    self._say(f"250-{extension}")
                self._say("250 HELP")
            case "STARTTLS" if self.tls is not None:
                self._say("220 go ahead")
                self.request = self.tls.wrap_socket(self.request, server_side=True)
                self.rfile = self.request.makefile("rb")
                self.wfile = self.request.makefile("wb", buffering=0)
                self.in_tls = True
            case "AUTH":
                self.login = line.split()[2]
                self._say("235 welcome")
            case "MAIL":
                self.sender = line.partition("<")[2].partition(">")[0]
                self._say("250 ok")
            case "RCPT":
                recipient = line.partition("<")[2].partition(">")[0]
                code = self.mailbox.refusals.get(recipient, 250)
                self.recipients += [recipient] if code == 250 else []
                self._say(f"{code} {recipient}")
            case "DATA":
                self._take()
            case _:
                self._say("250 ok")

    def _take(self) -> None:
        self._say("354 go ahead")
        lines: list[bytes] = []
        while (line := self.rfile.readline()) != b".\r\n":
            lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
        self.mailbox.received.put(
            Received(
                sender=self.sender,
                recipients=tuple(self.recipients),
                login=self.login,
                in_tls=self.in_tls,
                raw=b"".join(lines),
            )
        )
        self._reset()
        self._say("250 taken")


@contextmanager
def mail_server(*, tls: ssl.SSLContext | None = None) -> Iterator[MailServer]:
    server = MailServer(port=0)
    session = type("Session", (_MailSession,), {"mailbox": server, "tls": tls})
    listening = socketserver.ThreadingTCPServer(("127.0.0.1", 0), session)
    server.port = listening.server_address[1]
    with _served(listening):
        yield server


@contextmanager
def _served(listening: socketserver.ThreadingTCPServer | ThreadingHTTPServer) -> Iterator[None]:
    listening.daemon_threads = True
    thread = threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()


def server_tls(authority: Authority, folder: Path) -> ssl.SSLContext:
    """What a server on 127.0.0.1 shows."""
    pair = authority.issue(common_name="channel", names=["127.0.0.1"])
    certificate, key = pair.write(folder, "channel")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


def write_secret(folder: Path, name: str, **values: str) -> None:
    """A Secret as the kubelet mounts it."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    for key, value in values.items():
        (folder / name / key).write_text(value)
