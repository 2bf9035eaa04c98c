"""Kubeconfigs that only need a token or a client certificate, read without `kubernetes`.

That package takes half a second to import, which is most of the time of a short command. Features
that only it supports (exec plugins, auth providers, several files, proxies) are left to it:
`simple` returns None for any unknown field.
"""

from __future__ import annotations

import atexit
import base64
import binascii
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import yaml

from drumline.kube.impersonation import FIELDS, Headers, headers_of

Json = Mapping[str, Any]

# Only these fields are understood. Any other one sends the file to the kubernetes package.
_CLUSTER: Final = frozenset(
    (
        "server",
        "certificate-authority",
        "certificate-authority-data",
        "insecure-skip-tls-verify",
        "extensions",
    )
)
_USER: Final = frozenset(
    (
        "token",
        "client-certificate",
        "client-certificate-data",
        "client-key",
        "client-key-data",
        *FIELDS,
    )
)
_CONTEXT: Final = frozenset(("cluster", "user", "namespace", "extensions"))
# A kubeconfig has a few KB. The bound keeps a wrong path from filling the memory.
_MOST_BYTES: Final = 4 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleKubeconfig:
    """One context of a kubeconfig: one server, one identity.

    Attributes:
        server: URL of the API server, as the file has it.
        token: the bearer token, if that is how the identity is proved.
        ca_path: the CA bundle to trust; None trusts the system's.
        certificate_path: a client certificate, with `private_key_path` its key.
        insecure: trust any server certificate.
        namespace: namespace of the context.
        impersonation: the identity to act as, as headers.
    """

    server: str
    token: str | None
    ca_path: Path | None
    certificate_path: Path | None
    private_key_path: Path | None
    insecure: bool
    namespace: str
    impersonation: Headers = ()


def simple(path: Path | None, *, context: str | None) -> SimpleKubeconfig | None:
    """Return the context if it is simple and in one readable file, otherwise None.

    Args:
        path: the file. None: `$KUBECONFIG`, then `~/.kube/config`.
        context: one of its contexts. None: the current one.
    """
    # Phase 1: find the context, its cluster and its user. Any doubt returns None.
    file = _file(path)
    document = None if file is None else _document(file)
    if file is None or document is None:
        return None
    name = context or document.get("current-context")
    chosen = _named(document.get("contexts"), name, "context")
    if chosen is None or not chosen.keys() <= _CONTEXT:
        return None
    cluster = _named(document.get("clusters"), chosen.get("cluster"), "cluster")
    user = _named(document.get("users"), chosen.get("user"), "user")
    if cluster is None or user is None:
        return None
    # Phase 2: reject fields that change how to connect, such as `exec` and `proxy-url`.
    if not (cluster.keys() <= _CLUSTER and user.keys() <= _USER):
        return None
    # Phase 3: check the types, because YAML turns an unquoted token of digits into a number.
    texts = [
        value
        for key, value in (*cluster.items(), *user.items(), *chosen.items())
        if key not in {"insecure-skip-tls-verify", "extensions", *FIELDS}
    ]
    if not all(isinstance(text, str) and text for text in texts) or "server" not in cluster:
        return None
    # Phase 4: embedded certificates become files, because OpenSSL loads them from a path.
    try:
        return SimpleKubeconfig(
            server=cluster["server"],
            token=user.get("token"),
            ca_path=_path(cluster, "certificate-authority", file),
            certificate_path=_path(user, "client-certificate", file),
            private_key_path=_path(user, "client-key", file),
            insecure=cluster.get("insecure-skip-tls-verify") is True,
            namespace=chosen.get("namespace") or "default",
            impersonation=headers_of(user),
        )
    except (binascii.Error, ValueError):  # the package says what is wrong with it
        return None


def impersonation(path: Path | None, *, context: str | None) -> Headers:
    """Return the headers of the identity that a context acts as; for kubeconfigs of any form.

    The first file that has an entry counts, as in kubectl.

    Args:
        path: the file; None takes the files of `$KUBECONFIG`, then `~/.kube/config`.
        context: one of its contexts; None takes the current one.

    Raises:
        ValueError: a field of the user has another type, or groups are named without a user.
    """
    documents = [parsed for file in files_of(path) if (parsed := _document(file)) is not None]
    currents = (document.get("current-context") for document in documents)
    name = context or next((current for current in currents if current), None)
    chosen = _first(documents, "contexts", name, "context")
    user = _first(documents, "users", chosen.get("user"), "user") if chosen else None
    return headers_of(user or {})


def _first(documents: Sequence[Json], section: str, name: Any, field: str) -> Json | None:
    entries = (_named(document.get(section), name, field) for document in documents)
    return next((entry for entry in entries if entry is not None), None)


def files_of(path: Path | None) -> list[Path]:
    """Return the files that make up the kubeconfig; None: as the environment says."""
    if path is not None:
        return [path.expanduser()]
    # Empty parts are skipped, as kubectl skips them: `KUBECONFIG=:file` names one file.
    named = [name for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    return [Path(name).expanduser() for name in named or ["~/.kube/config"]]


def _file(path: Path | None) -> Path | None:
    if path is not None:
        return path.expanduser()
    named = os.environ.get("KUBECONFIG", "")
    # Several files must be merged, which the kubernetes package does.
    if os.pathsep in named:
        return None
    return Path(named or "~/.kube/config").expanduser()


def _document(file: Path) -> Json | None:
    try:
        with file.open("rb") as opened:
            text = opened.read(_MOST_BYTES + 1)
        # CSafeLoader builds plain values only, and is much faster than the loader in Python.
        loaded: Any = yaml.load(text, Loader=yaml.CSafeLoader) if len(text) <= _MOST_BYTES else None
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return None
    return cast("Json", loaded) if isinstance(loaded, dict) else None


def _named(entries: Any, name: Any, field: str) -> Json | None:
    """Return the only entry of this name, or None."""
    if not isinstance(entries, list):
        return None
    typed = [cast("Json", each) for each in cast("list[Any]", entries) if isinstance(each, dict)]
    # Two entries of one name are ambiguous. The caller then uses the kubernetes package.
    inside: list[Any] = [each.get(field) for each in typed if each.get("name") == name]
    if len(inside) != 1 or not isinstance(inside[0], dict):
        return None
    return cast("Json", inside[0])


def _path(fields: Json, name: str, file: Path) -> Path | None:
    """Return the path of a named file, or of a new one with embedded bytes, which win."""
    if data := fields.get(f"{name}-data"):
        return _written(base64.b64decode(data, validate=True))
    # Paths in a kubeconfig are relative to its folder, not to the working directory.
    return file.parent / fields[name] if name in fields else None


def _written(content: bytes) -> Path:
    """Write a file for this process alone, because TLS reads certificates from files."""
    # mkstemp creates the file with mode 0600, so the key is readable only by this user.
    handle, name = tempfile.mkstemp(prefix="drumline-")
    with os.fdopen(handle, "wb") as opened:
        opened.write(content)
    path = Path(name)
    atexit.register(path.unlink, missing_ok=True)
    return path
