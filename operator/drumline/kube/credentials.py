"""Credentials for the API server: its address, the trusted CA, and a token that stays valid.

A pod reads the files that the kubelet mounts. A user's machine reads a kubeconfig: a simple one in
`kubeconfig`, any other (exec plugins) through the `kubernetes` package, imported only then. Bound
tokens rotate hourly under the same path. So a token is kept for at most a minute, and is read again
at once after a 401. The CA is read when a connection pool is built. A rotated CA stops new
connections, which the liveness probe sees as stale informers.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypedDict
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from drumline.kube import errors
from drumline.kube.impersonation import Headers
from drumline.kube.kinds import is_label
from drumline.kube.kubeconfig import KubeconfigError, KubeContext, files_of, simple
from drumline.kube.kubeconfig_package import by_package
from drumline_contract.regular_files import open_regular

SERVICE_ACCOUNT_FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# The kubelet rotates a token at 80 % of its hour, so a delay of one minute is safe.
_TOKEN_AGE_SECONDS: Final = 60.0


class NoCredentials(RuntimeError):  # noqa: N818 - read as a sentence: raise NoCredentials
    """No service account and no usable kubeconfig. The message names the places searched."""


class Token:
    """A bearer token behind a function that reads it again (and may block: it runs in a thread).

    Args:
        read: returns the token.
        renewable: whether a later read may return another token.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        read: Callable[[], str | None],
        *,
        renewable: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self.renewable = renewable
        self._clock = clock
        self._value: str | None = None
        self._read_at: float | None = None
        self._reading = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]()
        """A lock belongs to the first loop in which somebody waits for it."""

    async def current(self) -> str | None:
        """Return the token to send now, at most a minute old. None with client certificates.

        Raises:
            Unreachable: it cannot be read now, such as when a plugin fails.
        """
        # The first check avoids the lock on each request. The second one follows another reader.
        if self._is_stale():
            async with self._reading.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
                if self._is_stale():
                    # A thread: an exec plugin may take seconds, and a mounted file may be on a
                    # stuck disk.
                    try:
                        self.take(await asyncio.to_thread(self._read))
                    except (OSError, KubeconfigError) as error:
                        raise errors.Unreachable(f"no token: {error}", sent=False) from error
        return self._value

    def take(self, value: str | None) -> None:
        """Take a value that was read just now: a plugin runs once, and a pipe is read once."""
        self._value, self._read_at = value, self._clock()

    def forget(self) -> None:
        """Read it again before the next request: the server refused it."""
        self._read_at = None

    def _is_stale(self) -> bool:
        return self._read_at is None or self._clock() - self._read_at > _TOKEN_AGE_SECONDS


class ConnectionFields(TypedDict):
    """The credentials as plain data, with the argument names of `kopf.ConnectionInfo`."""

    server: str
    ca_path: str | None
    insecure: bool
    token: str | None
    certificate_path: str | None
    private_key_path: str | None
    default_namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Access to one API server with one identity.

    Attributes:
        server: its URL without a trailing slash.
        token: bearer token, if it proves this identity.
        ca_path: trusted CA bundle. None means the system's.
        certificate_path: client certificate. `private_key_path` is its key.
        insecure: whether to trust any server certificate. Only a kubeconfig can set it.
        namespace: namespace of this identity.
    """

    server: str
    token: Token
    ca_path: Path | None = None
    certificate_path: Path | None = None
    private_key_path: Path | None = None
    insecure: bool = False
    namespace: str = "default"
    impersonation: Headers = ()
    """Headers of the identity to impersonate. Empty for this identity itself."""
    proxy: str | None = None
    """URL of the proxy for all requests."""
    tls_server_name: str | None = None
    """Name in the server's certificate. None: the host of the URL."""
    is_of_pod: bool = False
    """True for the service account of this pod."""

    def ssl_context(self) -> ssl.SSLContext:
        """Return a new TLS context from the present files.

        Raises:
            NoCredentials: a file is missing, or is not what it should be.
        """
        with _named_errors(self.ca_path):
            context = ssl.create_default_context(cafile=self.ca_path)
        if self.certificate_path is not None:
            # The key must match the certificate. `load_cert_chain` raises at start, not at the
            # first call. Without a password here, OpenSSL would ask for one on the terminal.
            with _named_errors(self.certificate_path, self.private_key_path):
                context.load_cert_chain(self.certificate_path, self.private_key_path, password="")
        if self.insecure:
            # `check_hostname` must be off first: Python rejects CERT_NONE while it is on.
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    async def connection_fields(self) -> ConnectionFields:
        """Return the arguments of `kopf.ConnectionInfo`: one login serves both clients.

        Raises:
            NoCredentials: the kubeconfig impersonates another identity or needs a proxy or a name,
                which Kopf cannot do.
        """
        # Kopf's ConnectionInfo has no field for headers, so the identity would silently be dropped.
        if self.impersonation:
            raise NoCredentials(
                "an operator cannot impersonate another identity: remove `as` from the kubeconfig"
            )
        if self.proxy or self.tls_server_name:
            raise NoCredentials(
                "an operator cannot use proxy-url and tls-server-name: remove them from the"
                " kubeconfig"
            )
        return ConnectionFields(
            server=self.server,
            ca_path=_text(self.ca_path),
            insecure=self.insecure,
            token=await self.token.current(),
            certificate_path=_text(self.certificate_path),
            private_key_path=_text(self.private_key_path),
            default_namespace=self.namespace,
        )


@contextmanager
def _named_errors(*paths: Path | None) -> Generator[None]:
    """Name the files in errors of OpenSSL, which has no names, and would wait for a pipe."""
    try:
        for path in filter(None, paths):
            open_regular(path).close()
        yield
    except OSError as error:  # an SSLError is one
        named = " and ".join(str(path) for path in paths if path) or "the system's certificates"
        why = error.strerror or str(error)
        raise NoCredentials(f"{named}: not a certificate that can be used: {why}") from error


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def from_service_account(
    *,
    host: str,
    port: str,
    folder: Path = SERVICE_ACCOUNT_FOLDER,
) -> Credentials:
    """Return the credentials that the kubelet mounted into this pod.

    Args:
        host: `KUBERNETES_SERVICE_HOST`.
        port: `KUBERNETES_SERVICE_PORT`.
        folder: folder of the mounted token, CA and namespace.

    Raises:
        NoCredentials: a file is missing.
    """
    try:
        namespace = (folder / "namespace").read_text().strip()
    except OSError as error:
        raise NoCredentials(f"no service account is mounted: {error}") from error
    # An IPv6 address of a dual-stack Service needs brackets in a URL.
    address = f"[{host}]" if ":" in host else host
    token_path = folder / "token"
    return Credentials(
        server=f"https://{address}:{port}",
        token=Token(lambda: token_path.read_text().strip()),
        ca_path=folder / "ca.crt",
        namespace=namespace,
        is_of_pod=True,
    )


def from_kubeconfig(path: Path | None = None, *, context: str | None = None) -> Credentials:
    """Return the credentials of a kubeconfig. Blocks while an exec plugin runs.

    Args:
        path: the file. None: `$KUBECONFIG`, then `~/.kube/config`, as in kubectl.
        context: one of its contexts. None: the current one.

    Raises:
        NoCredentials: the file is missing or invalid, or does not contain the context.
    """
    files = files_of(path)
    named = " and ".join(map(str, files))
    if not any(file.exists() for file in files):
        raise NoCredentials(f"{named} does not exist")
    try:
        known = _context(path, context)
        # An exec plugin's token expires, so each renewal loads the file again.
        token = Token(lambda: _context(path, context).token)
        token.take(known.token)
        return Credentials(
            server=_server(known.server),
            token=token,
            ca_path=known.ca_path,
            certificate_path=known.certificate_path,
            private_key_path=known.private_key_path,
            insecure=known.insecure,
            namespace=known.namespace,
            impersonation=known.impersonation,
            proxy=known.proxy,
            tls_server_name=known.tls_server_name,
        )
    except KubeconfigError as error:
        raise NoCredentials(f"{named}: {error}") from error


def discover(environment: Mapping[str, str], *, kubeconfig: Path | None = None) -> Credentials:
    """Return the service account in a pod, otherwise a kubeconfig. An explicit one wins.

    Raises:
        NoCredentials: neither is usable.
    """
    host = environment.get("KUBERNETES_SERVICE_HOST")
    if kubeconfig is None and host:
        port = environment.get("KUBERNETES_SERVICE_PORT", "443")
        return from_service_account(host=host, port=port)
    return from_kubeconfig(kubeconfig)


def _context(path: Path | None, context: str | None) -> KubeContext:
    """Return a context that can be used.

    Raises:
        KubeconfigError: it cannot.
    """
    # The fast path covers static tokens and client certificates, without a 64 MB import.
    known = simple(path, context=context)
    if known is None:
        known = by_package(path, context=context)
    # A line break would end the header of a request.
    if known.token is not None and not (known.token.isprintable() and known.token.isascii()):
        raise KubeconfigError("the token has characters that no token has, such as a line break")
    if not is_label(known.namespace):
        raise KubeconfigError(f"the context's namespace {known.namespace!r} is not a name")
    return known


def _server(url: str) -> str:
    """Return the URL without a trailing slash.

    Raises:
        KubeconfigError: it is not the URL of a server.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # brackets that are not closed, or a port out of range
        usable = False
    # The text may have a password, so the message does not quote it.
    if not usable or not url.isprintable() or any(mark in url for mark in "@?# "):
        raise KubeconfigError("the cluster's server must be a URL such as https://HOST:6443")
    return url.rstrip("/")
