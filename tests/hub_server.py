"""Serve the API of the Hugging Face Hub on loopback, and its CDN on another port.

The Hub sends small files itself. It redirects requests for LFS files to the CDN.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tools.cluster.ports import LOOPBACK

_JSON = {"Content-Type": "application/json"}
_PAGE = 3
"""Number of files on a page of a listing."""


def commit_of(number: int) -> str:
    """Return the name of the n-th commit."""
    return f"{number:040x}"


@dataclass(kw_only=True)
class Repository:
    """A repository with one commit. `files` maps each path to its content."""

    files: dict[str, bytes]
    commit: str = commit_of(1)
    token: str | None = None
    """Token that a request needs. None: the repository is public."""
    gated: bool = False
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    """Wrong sizes in the listing, by path."""
    sent: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Wrong contents that the server sends, by path."""

    def large(self, path: str) -> bool:
        """Return whether LFS stores the file."""
        return PurePosixPath(path).suffix in {".safetensors", ".parquet", ".bin"}

    def digest(self, path: str) -> str:
        """Return the digest that the Hub reports."""
        body = self.files[path]
        if self.large(path):
            return hashlib.sha256(body).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()  # noqa: S324 - git's

    def entry(self, path: str) -> dict[str, Any]:
        """Return the entry of the listing."""
        size = self.sizes.get(path, len(self.files[path]))
        entry: dict[str, Any] = {"type": "file", "path": path, "size": size, "oid": "0" * 40}
        if self.large(path):
            return entry | {"lfs": {"oid": self.digest(path), "size": size, "pointerSize": 130}}
        return entry | {"oid": self.digest(path)}


@dataclass(kw_only=True)
class Seen:
    """A request that the Hub or the CDN received."""

    host: str
    """`hub` or `cdn`."""
    method: str
    path: str
    token: str | None
    range: str | None


@dataclass(kw_only=True)
class Hub:
    """Addresses, contents and requests of both servers."""

    endpoint: str = ""
    cdn: str = ""
    models: dict[str, Repository] = field(default_factory=dict[str, Repository])
    datasets: dict[str, Repository] = field(default_factory=dict[str, Repository])
    seen: list[Seen] = field(default_factory=list[Seen])
    cuts: int = 0
    """Number of further answers of the CDN that end after half of their body."""
    status: int = 200
    """Status of every answer. 200: each request gets its own status."""


@contextmanager
def hub() -> Generator[Hub]:
    """Run both servers, and stop them at the end."""
    state = Hub()
    servers = [
        ThreadingHTTPServer((LOOPBACK, 0), partial(kind, state))
        for kind in (_HubHandler, _CdnHandler)
    ]
    state.endpoint, state.cdn = (
        f"http://{LOOPBACK}:{server.server_address[1]}" for server in servers
    )
    threads = [Thread(target=server.serve_forever) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield state
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    host: str

    def __init__(self, hub: Hub, *arguments: Any) -> None:
        self.hub = hub
        super().__init__(*arguments)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the library's
        """Print nothing."""

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self.do_GET()

    def do_GET(self) -> None:
        """Answer."""
        bearer = self.headers.get("Authorization")
        self.hub.seen.append(
            Seen(
                host=self.host,
                method=self.command,
                path=unquote(self.path),
                token=None if bearer is None else bearer.removeprefix("Bearer "),
                range=self.headers.get("Range"),
            )
        )
        if self.hub.status != 200:
            self.answer(self.hub.status)
            return
        self.respond()

    def respond(self) -> None:
        """Answer a request that `seen` already contains."""
        raise NotImplementedError

    def answer(
        self,
        status: int,
        body: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        cut: bool = False,
    ) -> None:
        """Send the answer. With `cut`, send half of the body."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if "Content-Length" not in (headers or {}):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = self.close_connection or cut


class _HubHandler(_Handler):
    host = "hub"

    def respond(self) -> None:
        url = urlsplit(self.path)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        api = parts[0] == "api"
        parts = parts[1:] if api else parts
        kind = parts[0] if parts[0] in ("models", "datasets") else "models"
        parts = parts[1:] if parts[0] == kind else parts
        where = self.hub.datasets if kind == "datasets" else self.hub.models
        repository = where.get("/".join(parts[:2]))
        if repository is None or not self.opens(repository):
            self.answer(401, headers={"X-Error-Code": "RepoNotFound"})
        elif repository.gated:
            self.answer(403, headers={"X-Error-Code": "GatedRepo"})
        elif api and len(parts) > 3 and parts[2] == "tree":
            self.tree(repository, query=parse_qs(url.query))
        elif api:
            revision = parts[3] if len(parts) > 3 else "main"
            if revision in ("main", repository.commit):
                body = {"id": "/".join(parts[:2]), "sha": repository.commit}
                self.answer(200, json.dumps(body).encode(), headers=_JSON)
            else:
                self.answer(404, headers={"X-Error-Code": "RevisionNotFound"})
        else:
            self.file(repository, "/".join(parts[4:]))

    def opens(self, repository: Repository) -> bool:
        return repository.token in (None, self.hub.seen[-1].token)

    def tree(self, repository: Repository, *, query: dict[str, list[str]]) -> None:
        start = int(query.get("cursor", ["0"])[0])
        paths = sorted(repository.files)
        body = [repository.entry(path) for path in paths[start : start + _PAGE]]
        following = f"{self.hub.endpoint}{urlsplit(self.path).path}?cursor={start + _PAGE}"
        more = {"Link": f'<{following}>; rel="next"'} if start + _PAGE < len(paths) else {}
        self.answer(200, json.dumps(body).encode(), headers=_JSON | more)

    def file(self, repository: Repository, path: str) -> None:
        if path not in repository.files:
            self.answer(404, headers={"X-Error-Code": "EntryNotFound"})
            return
        named = {"X-Repo-Commit": repository.commit, "ETag": f'"{repository.digest(path)}"'}
        body = repository.sent.get(path, repository.files[path])
        if repository.large(path):
            self.answer(
                302,
                headers={
                    "Location": f"{self.hub.cdn}/{repository.commit}/{path}?signature=secret",
                    "X-Linked-Etag": f'"{repository.digest(path)}"',
                    "X-Linked-Size": str(len(body)),
                    **named,
                },
            )
        elif self.command == "HEAD":
            self.answer(200, headers={**named, "Content-Length": str(len(body))})
        else:
            self.answer(200, body, headers=named)


class _CdnHandler(_Handler):
    host = "cdn"

    def respond(self) -> None:
        path = unquote(urlsplit(self.path).path).split("/", 2)[2]
        (repository,) = (
            each
            for each in (*self.hub.models.values(), *self.hub.datasets.values())
            if path in each.files
        )
        body = repository.sent.get(path, repository.files[path])
        span = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        start, stop = int(span[0]), int(span[2]) + 1 if span[2] else len(body)
        cut = self.hub.cuts > 0
        self.hub.cuts -= cut
        headers = {"Content-Range": f"bytes {start}-{stop - 1}/{len(body)}"}
        partial = "Range" in self.headers
        self.answer(206 if partial else 200, body[start:stop], headers=headers, cut=cut)
