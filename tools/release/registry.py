"""A registry on loopback that serves image layouts for reading, as a mirror would.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md#pull
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tools.release.oci import INDEX_FILE, REFERENCE

_PATH = re.compile(
    r"/v2/(?P<name>[a-z0-9/-]+)/(?P<kind>manifests|blobs|tags)/(?P<reference>[\w.:-]+)"
)


@contextmanager
def serving(layouts: Mapping[str, Path]) -> Generator[str]:
    """Serve layouts by their repositories' names; gives the registry's host and port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            content, media_type = _answer(layouts, self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content or b"")

        do_HEAD = do_GET  # noqa: N815 - the standard library's name

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _answer(layouts: Mapping[str, Path], path: str) -> tuple[bytes | None, str]:
    if path == "/v2/":
        return b"{}", "application/json"
    parts = _PATH.fullmatch(path)
    if parts is None or parts["name"] not in layouts:
        return None, "application/json"
    folder = layouts[parts["name"]]
    manifests = json.loads((folder / INDEX_FILE).read_text())["manifests"]
    if parts["kind"] == "tags":
        tags = [each["annotations"][REFERENCE] for each in manifests]
        return json.dumps({"name": parts["name"], "tags": tags}).encode(), "application/json"
    digest, media_type = parts["reference"], "application/octet-stream"
    for each in manifests:
        if digest in {each["annotations"][REFERENCE], each["digest"]}:
            digest, media_type = each["digest"], each["mediaType"]
    blob = folder / "blobs" / "sha256" / digest.removeprefix("sha256:")
    return (blob.read_bytes(), media_type) if blob.is_file() else (None, media_type)
