"""HTTP/1.1 messages, parsed strictly and purely: bytes in, values or `HttpError` out.

It accepts only what our own clients, the kubelet's probes and Prometheus send: one request per
connection, absolute paths, a body only by Content-Length. Everything that parsers are known to
disagree on (folded headers, bare line feeds, Transfer-Encoding, repeated headers) is rejected.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import BinaryIO

from drumline_contract import MAX_BODY_BYTES

MAX_HEAD_BYTES = 8 * 1024
FILES_PATH = "/v1/snapshots/"
"""Below this path bodies are files: streamed, never held in memory, and of any size."""
MAX_FILE_BYTES = 1 << 40
_REQUEST_LINE = re.compile(r"([A-Z]{1,16}) (/[!-~]{0,255}) HTTP/1\.[01]")
_STATUS_LINE = re.compile(r"HTTP/1\.[01] ([1-5][0-9]{2})(?: [\t -~]*)?")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}):[ \t]*([\t -~]*)")
_LENGTH = re.compile(r"[0-9]{1,13}")


class HttpError(Exception):
    """The status and reason of the answer to a request that is rejected."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """Request line and headers; header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    content_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A whole request."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""

    def encode(self, *, host: str, body_bytes: int | None = None) -> bytes:
        """Return the bytes on the wire. The connection ends with the response.

        With `body_bytes`, a body of that size follows from another source.
        """
        length = len(self.body) if body_bytes is None else body_bytes
        headers = {**self.headers, "Host": host, "Content-Length": str(length)}
        return _head(f"{self.method} {self.path} HTTP/1.1", headers) + self.body


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """A whole response; its body may be a file that is sent after it."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict[str, str])
    file: BinaryIO | None = None
    """Open for reading; closed once it is sent."""
    file_bytes: int = 0

    def encode(self) -> bytes:
        """Return the bytes on the wire except for the file; the connection ends with them."""
        headers = {
            "Content-Type": self.content_type,
            **self.headers,
            "Content-Length": str(len(self.body) + self.file_bytes),
        }
        return (
            _head(f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}", headers) + self.body
        )


def parse_request_head(block: bytes) -> RequestHead:
    r"""Parse everything up to and including the empty line (`\r\n\r\n`).

    Raises:
        HttpError: 400 malformed, 413 body too large, 431 head too large.
    """
    start, headers = _split(block)
    match = _REQUEST_LINE.fullmatch(start)
    if match is None:
        raise HttpError(HTTPStatus.BAD_REQUEST, "malformed request line")
    length = _content_length(headers, path=match[2])
    if length and match[1] in ("GET", "HEAD"):
        raise HttpError(HTTPStatus.BAD_REQUEST, f"{match[1]} takes no body")
    return RequestHead(method=match[1], path=match[2], headers=headers, content_length=length)


def parse_response_head(block: bytes, *, path: str = "") -> tuple[int, dict[str, str], int]:
    """Return status, headers and Content-Length of a response about `path`.

    Raises:
        HttpError: the block does not begin a response.
    """
    start, headers = _split(block)
    match = _STATUS_LINE.fullmatch(start)
    if match is None:
        raise HttpError(HTTPStatus.BAD_REQUEST, "malformed status line")
    return int(match[1]), headers, _content_length(headers, path=path)


def _head(start: str, headers: dict[str, str]) -> bytes:
    lines = [start, *(f"{name}: {value}" for name, value in headers.items()), "Connection: close"]
    return "\r\n".join([*lines, "", ""]).encode("ascii")


def _split(block: bytes) -> tuple[str, dict[str, str]]:
    if len(block) > MAX_HEAD_BYTES:
        raise HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "head too large")
    if not block.endswith(b"\r\n\r\n"):
        raise HttpError(HTTPStatus.BAD_REQUEST, "head does not end")
    try:
        start, *lines = block[:-4].decode("ascii").split("\r\n")
    except UnicodeDecodeError:
        raise HttpError(HTTPStatus.BAD_REQUEST, "head is not ASCII") from None
    headers: dict[str, str] = {}
    for line in lines:
        match = _HEADER.fullmatch(line)
        if match is None:
            raise HttpError(HTTPStatus.BAD_REQUEST, "malformed header")
        name = match[1].lower()
        if name in headers:
            raise HttpError(HTTPStatus.BAD_REQUEST, f"header {name} is repeated")
        headers[name] = match[2].rstrip(" \t")
    return start, headers


def _content_length(headers: dict[str, str], *, path: str) -> int:
    if "transfer-encoding" in headers:
        raise HttpError(HTTPStatus.BAD_REQUEST, "Transfer-Encoding is not supported")
    text = headers.get("content-length", "0")
    if _LENGTH.fullmatch(text) is None:
        raise HttpError(HTTPStatus.BAD_REQUEST, "malformed Content-Length")
    if int(text) > (MAX_FILE_BYTES if path.startswith(FILES_PATH) else MAX_BODY_BYTES):
        raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body too large")
    return int(text)
