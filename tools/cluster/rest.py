"""The least client that starting a cluster needs: JSON over one kept-alive TLS connection.

Standard library only, so that the tool depends on nothing it is used to test. One `Api` belongs
to one thread.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

TOO_MANY_REQUESTS = 429
"""Also what a kind answers whose storage is not ready yet."""
IDLE_SECONDS = 30
"""A connection that rested longer is opened again: the server closes those by itself."""


class ApiStatusError(RuntimeError):
    """The API server answered with an error status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Api:
    """Requests to the API server that a kubeconfig written by certificates.py names.

    Args:
        kubeconfig: an administrator's.
        user: whom to impersonate; of a service account its groups come by themselves.
    """

    def __init__(self, kubeconfig: Path, *, user: str | None = None) -> None:
        self._headers = {"Accept": "application/json"}
        if user is not None:
            self._headers["Impersonate-User"] = user
        config = json.loads(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        address = urlsplit(cluster["server"])
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=authority)
        with tempfile.NamedTemporaryFile() as pem:
            for part in ("client-certificate-data", "client-key-data"):
                pem.write(base64.b64decode(user[part]))
            pem.flush()
            context.load_cert_chain(pem.name)
        self._connection = http.client.HTTPSConnection(
            address.hostname or "", address.port, context=context, timeout=30
        )
        self._used_at = time.monotonic()

    def request(self, method: str, path: str, body: Any = None, *, patience: int = 15) -> Any:
        """The decoded answer. A body of bytes is sent as it is.

        Raises:
            ApiStatusError: any status of 400 or more.
            OSError: no connection.
        """
        text = body if body is None or isinstance(body, bytes) else json.dumps(body)
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {**self._headers, "Content-Type": kind}
        if time.monotonic() > self._used_at + IDLE_SECONDS:
            self.close()
        try:
            self._connection.request(method, path, body=text, headers=headers)
            response = self._connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException):
            self.close()
            raise
        self._used_at = time.monotonic()
        if response.status == TOO_MANY_REQUESTS and patience > 0:  # it asks to be asked again
            time.sleep(1)
            return self.request(method, path, body, patience=patience - 1)
        if response.status >= 400:
            raise ApiStatusError(response.status, answer.decode(errors="replace")[:500])
        return json.loads(answer) if answer.startswith(b"{") else answer.decode()

    def stream(self, path: str) -> Iterator[bytes]:
        """The lines of a watch, until the server ends it.

        Raises:
            ApiStatusError: the watch was refused.
        """
        self._connection.request("GET", path, headers=self._headers)
        response = self._connection.getresponse()
        if response.status >= 400:
            raise ApiStatusError(response.status, response.read().decode(errors="replace")[:500])
        while line := response.readline():
            yield line

    def answers(self, path: str) -> bool:
        """Whether a GET of this path succeeds now."""
        try:
            self.request("GET", path)
        except (ApiStatusError, OSError, http.client.HTTPException):
            return False
        return True

    def close(self) -> None:
        """Drop the connection; the next request opens another."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
