"""Credentials for the API server: its address, the trusted CA, and a token that stays valid.

A pod reads the files that the kubelet mounts. A user's machine reads a kubeconfig: a simple one in
`kubeconfig`, any other (exec plugins) through the `kubernetes` package, imported only then. Bound
tokens rotate hourly under the same path. So a token is kept for at most a minute, and is read again
at once after a 401. The CA is read when a connection pool is built. A rotated CA stops new
connections, which the liveness probe sees as stale informers.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict
from weakref import WeakKeyDictionary

from yaml import YAMLError

from drumline.kube.impersonation import Headers
from drumline.kube.kubeconfig import files_of, impersonation, simple

# The import takes 64 MB and half a second, and only a kubeconfig needs it.
if TYPE_CHECKING:
    from kubernetes.client import Configuration

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
        """Return the token to send now, at most a minute old. None with client certificates."""
        # The first check avoids the lock on each request. The second one follows another reader.
        if self._is_stale():
            async with self._reading.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
                if self._is_stale():
                    # A thread: an exec plugin may take seconds, and a mounted file may be on a
                    # stuck disk.
                    self._value = await asyncio.to_thread(self._read)
                    self._read_at = self._clock()
        return self._value

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

    def ssl_context(self) -> ssl.SSLContext:
        """Return a new TLS context from the present files."""
        context = ssl.create_default_context(cafile=self.ca_path)
        if self.certificate_path is not None:
            # The key must match the certificate. `load_cert_chain` raises at start, not at the
            # first call.
            context.load_cert_chain(self.certificate_path, self.private_key_path)
        if self.insecure:
            # `check_hostname` must be off first: Python rejects CERT_NONE while it is on.
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    async def connection_fields(self) -> ConnectionFields:
        """Return the arguments of `kopf.ConnectionInfo`: one login serves both clients.

        Raises:
            NoCredentials: the kubeconfig impersonates another identity, which Kopf cannot do.
        """
        # Kopf's ConnectionInfo has no field for headers, so the identity would silently be dropped.
        if self.impersonation:
            raise NoCredentials(
                "an operator cannot impersonate another identity: remove `as` from the kubeconfig"
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
    )


def from_kubeconfig(path: Path | None = None, *, context: str | None = None) -> Credentials:
    """Return the credentials of a kubeconfig. Blocks while an exec plugin runs.

    Args:
        path: the file. None: `$KUBECONFIG`, then `~/.kube/config`, as in kubectl.
        context: one of its contexts. None: the current one.

    Raises:
        NoCredentials: the file is missing or invalid, or does not contain the context.
    """
    # The fast path covers static tokens and client certificates, without a 64 MB import.
    known = simple(path, context=context)
    if known is not None:
        return Credentials(
            server=known.server.rstrip("/"),
            token=Token(lambda: _token_of(path, context)),
            ca_path=known.ca_path,
            certificate_path=known.certificate_path,
            private_key_path=known.private_key_path,
            insecure=known.insecure,
            namespace=known.namespace,
            impersonation=known.impersonation,
        )
    files = files_of(path)
    named = " and ".join(map(str, files))
    if not any(file.exists() for file in files):
        raise NoCredentials(f"{named} does not exist")
    # kubernetes ignores `as`. Without these headers the command would run as the wrong user.
    try:
        acts_as = impersonation(path, context=context)
    except ValueError as error:
        raise NoCredentials(f"{named}: {error}") from error
    loaded = _load_kubeconfig(path, context)
    return Credentials(
        server=str(loaded.host).rstrip("/"),
        # An exec plugin's token expires, so each renewal loads the file and runs the plugin again.
        token=Token(lambda: _bearer(_load_kubeconfig(path, context))),
        ca_path=_path(loaded.ssl_ca_cert),
        certificate_path=_path(loaded.cert_file),
        private_key_path=_path(loaded.key_file),
        insecure=not loaded.verify_ssl,
        namespace=_context_namespace(path, context),
        impersonation=acts_as,
    )


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


def _token_of(path: Path | None, context: str | None) -> str | None:
    """Return the token in the present file."""
    known = simple(path, context=context)
    return _bearer(_load_kubeconfig(path, context)) if known is None else known.token


def _load_kubeconfig(path: Path | None, context: str | None) -> Configuration:
    kube_config = _kube_config()
    from kubernetes.client import Configuration  # noqa: PLC0415 - see _kube_config

    # A fresh object: the package's global default would leak one context into the next.
    configuration = Configuration()
    try:
        kube_config.load_kube_config(
            config_file=_location(path),
            context=context,
            client_configuration=configuration,
            # No write-back: a read-only home folder is common in a container.
            persist_config=False,
        )
    except (kube_config.ConfigException, OSError, ValueError, YAMLError) as error:
        named = " and ".join(map(str, files_of(path)))
        raise NoCredentials(f"{named}: {error}") from error
    return configuration


def _context_namespace(path: Path | None, context: str | None) -> str:
    contexts, active = _kube_config().list_kube_config_contexts(_location(path))
    chosen = active if context is None else next(c for c in contexts if c["name"] == context)
    return chosen["context"].get("namespace") or "default"


def _kube_config() -> Any:
    from kubernetes.config import kube_config  # noqa: PLC0415 - 64 MB and 0.5 s no pod needs

    return kube_config


def _location(path: Path | None) -> str | None:
    return None if path is None else os.fspath(path.expanduser())


def _bearer(loaded: Any) -> str | None:
    value = loaded.api_key.get("BearerToken")
    return None if value is None else value.removeprefix("Bearer ")


def _path(value: str | None) -> Path | None:
    return None if value is None else Path(value)
