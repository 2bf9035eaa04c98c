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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import yaml

from drumline.kube.impersonation import FIELDS, Headers, headers_of
from drumline.kube.yaml_bounds import MANIFESTS, excess

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
_MOST_NAMES: Final = 8
"""Names of entries in a message."""
_MOST_BYTES: Final = 4 * 2**20


class KubeconfigError(ValueError):
    """A kubeconfig that cannot be used. The message names the field, never its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeContext:
    """One context of a kubeconfig: one server, one identity.

    Attributes:
        server: URL of the API server, as the file has it.
        token: the bearer token, if that is how the identity is proved.
        ca_path: the CA bundle to trust; None trusts the system's.
        certificate_path: a client certificate, with `private_key_path` its key.
        insecure: trust any server certificate.
        namespace: namespace of the context.
        impersonation: the identity to act as, as headers.
        proxy: URL of the proxy between here and the server.
        tls_server_name: name in the server's certificate; None: the host of its URL.
    """

    server: str
    token: str | None
    ca_path: Path | None
    certificate_path: Path | None
    private_key_path: Path | None
    insecure: bool
    namespace: str
    impersonation: Headers = ()
    proxy: str | None = None
    tls_server_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextEntries:
    """The entries that a context names, as kubectl merges several files.

    Attributes:
        name: name of the context.
        context: its cluster, user and namespace.
        cluster: the server and its certificates.
        user: the identity; empty: anonymous.
        folder: the folder to which paths of the user are relative.
    """

    name: str
    context: Json
    cluster: Json
    user: Json
    folder: Path


def simple(path: Path | None, *, context: str | None) -> KubeContext | None:
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
        return KubeContext(
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


def entries(path: Path | None, *, context: str | None) -> ContextEntries:
    """Return what a context names; for kubeconfigs of any form.

    The first file that has an entry counts, as in kubectl.

    Args:
        path: the file; None takes the files of `$KUBECONFIG`, then `~/.kube/config`.
        context: one of its contexts; None takes the current one.

    Raises:
        KubeconfigError: no file is a kubeconfig, or one of these entries is missing.
    """
    documents: list[tuple[Path, Json]] = []
    problems: list[str] = []
    for file in files_of(path):
        try:
            documents.append((file, _read(file)))
        # One of several files may be missing, as in kubectl.
        except KubeconfigError as error:
            problems.append(str(error))
    if not documents:
        raise KubeconfigError("; ".join(problems))
    currents = (document.get("current-context") for _, document in documents)
    name = context or next((current for current in currents if current), None)
    if not isinstance(name, str):
        raise KubeconfigError("it has no current-context: name one with --context")

    def named(section: str, entry: Any, field: str) -> tuple[Path, Json]:
        for file, document in documents:
            inside = _named(document.get(section), entry, field)
            if inside is not None:
                return file, inside
        entries = (each for _, document in documents for each in _typed(document.get(section)))
        names = sorted({name for each in entries if isinstance(name := each.get("name"), str)})
        more = ", ..." if len(names) > _MOST_NAMES else ""
        known = f"; there are {', '.join(names[:_MOST_NAMES])}{more}" if names else ""
        raise KubeconfigError(f"{section} has no entry {entry!r}, or several{known}")

    _, chosen = named("contexts", name, "context")
    _, cluster = named("clusters", chosen.get("cluster"), "cluster")
    # A context without a user is anonymous. One whose user is missing is a mistake.
    user = chosen.get("user")
    anonymous: tuple[Path, Json] = (documents[0][0], {})
    file, identity = named("users", user, "user") if user else anonymous
    return ContextEntries(
        name=name, context=chosen, cluster=cluster, user=identity, folder=file.parent
    )


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
        return _read(file)
    except KubeconfigError:
        return None


def _read(file: Path) -> Json:
    """Return the mapping of a file.

    Raises:
        KubeconfigError: the file cannot be read, or is not such a mapping.
    """
    try:
        with file.open("rb") as opened:
            raw = opened.read(_MOST_BYTES + 1)
        text = raw.decode()
        problem = "too large" if len(raw) > _MOST_BYTES else excess(text, MANIFESTS)
        # CSafeLoader builds plain values only, and is much faster than the loader in Python.
        loaded: Any = None if problem else yaml.load(text, Loader=yaml.CSafeLoader)
    except OSError as error:
        raise KubeconfigError(error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise KubeconfigError(f"not UTF-8 at byte {error.start}") from error
    # The text around the problem may be a token, so only its line is quoted.
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise KubeconfigError(f"{line}not YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise KubeconfigError("not YAML") from error
    if not isinstance(loaded, dict):
        raise KubeconfigError(problem or "not a kubeconfig: it has no contexts")
    return cast("Json", loaded)


def _typed(entries: Any) -> list[Json]:
    """Return the entries of a section that are objects."""
    listed = cast("list[Any]", entries) if isinstance(entries, list) else []
    return [cast("Json", each) for each in listed if isinstance(each, dict)]


def _named(entries: Any, name: Any, field: str) -> Json | None:
    """Return the only entry of this name, or None."""
    # Two entries of one name are ambiguous. The caller then uses the kubernetes package.
    inside: list[Any] = [each.get(field) for each in _typed(entries) if each.get("name") == name]
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
