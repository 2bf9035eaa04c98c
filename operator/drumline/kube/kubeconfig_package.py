"""Kubeconfigs of any form, through the `kubernetes` package: plugins, providers, several files.

The package logs a plugin's failure and continues without an identity. An unexpected value ends it
with any exception, and some of its messages quote whole entries with their keys. It also drops the
proxy and the name of the server. All of this is mended here.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from drumline.kube.impersonation import headers_of
from drumline.kube.kubeconfig import ContextEntries, KubeconfigError, KubeContext, entries, files_of
from drumline_contract.regular_files import open_regular

# The import takes 64 MB and half a second, and only a kubeconfig needs it.
if TYPE_CHECKING:
    from kubernetes.client import Configuration

_BEARER: Final = "Bearer "
_QUOTED_ENTRY: Final = re.compile(r"\{.*\}|<.*>", re.DOTALL)


def by_package(path: Path | None, *, context: str | None) -> KubeContext:
    """Return a context of any form. Blocks while an exec plugin runs.

    Args:
        path: the file. None: `$KUBECONFIG`, then `~/.kube/config`, as in kubectl.
        context: one of its contexts. None: the current one.

    Raises:
        KubeconfigError: the file is invalid, or its plugin gives no identity.
    """
    chosen = entries(path, context=context)
    # The package ignores `as`. Without these headers the command would run as the wrong user.
    try:
        acts_as = headers_of(chosen.user)
    except ValueError as error:
        raise KubeconfigError(str(error)) from error
    _check_token_file(chosen)
    with _collected() as said:
        loaded = _loaded(path, chosen.name)
    token = _token(loaded)
    certificate: str | None = loaded.cert_file
    # Without this check the server would see an anonymous user, and the user "log in again".
    if "exec" in chosen.user and token is None and certificate is None:
        why = _QUOTED_ENTRY.sub("...", said[-1]) if said else "it gave no token"
        raise KubeconfigError(f"the plugin that logs in (exec) failed: {why}")
    return KubeContext(
        server=str(chosen.cluster.get("server") or ""),
        token=token,
        ca_path=_path(loaded.ssl_ca_cert),
        certificate_path=_path(certificate),
        private_key_path=_path(loaded.key_file),
        insecure=not loaded.verify_ssl,
        namespace=_text(chosen.context.get("namespace"), "namespace") or "default",
        impersonation=acts_as,
        proxy=_proxy(chosen.cluster.get("proxy-url")),
        tls_server_name=_text(chosen.cluster.get("tls-server-name"), "tls-server-name"),
    )


def _check_token_file(chosen: ContextEntries) -> None:
    """Refuse a token file that is a pipe, for which the package would wait without an end."""
    named = _text(chosen.user.get("tokenFile"), "tokenFile")
    if named is not None:
        try:
            open_regular(chosen.folder / named).close()
        except OSError as error:
            raise KubeconfigError(f"tokenFile {named}: {error.strerror}") from error


def _loaded(path: Path | None, context: str) -> Configuration:
    from kubernetes.client import Configuration  # noqa: PLC0415 - 64 MB and 0.5 s no pod needs
    from kubernetes.config import config_exception, kube_config  # noqa: PLC0415 - as above

    # A fresh object: the package's global default would leak one context into the next.
    configuration = Configuration()
    try:
        cast("Any", kube_config).load_kube_config(
            # The package reads $KUBECONFIG once, at its import.
            config_file=os.pathsep.join(map(str, files_of(path))),
            context=context,
            client_configuration=configuration,
            # No write-back: a read-only home folder is common in a container.
            persist_config=False,
        )
    except Exception as error:  # the package checks few types, so a wrong one raises anything
        why = _QUOTED_ENTRY.sub("...", str(error))
        known = isinstance(error, OSError | ValueError | config_exception.ConfigException)
        raise KubeconfigError(why if known else f"{type(error).__name__}: {why}") from error
    return configuration


@contextmanager
def _collected() -> Generator[list[str]]:
    """Collect what is logged by the root logger, which the package uses."""
    said: list[str] = []
    collector = logging.Handler(logging.ERROR)
    collector.emit = lambda record: said.append(record.getMessage())
    root = logging.getLogger()
    root.addHandler(collector)
    try:
        yield said
    finally:
        root.removeHandler(collector)


def _token(loaded: Configuration) -> str | None:
    value: str | None = loaded.api_key.get("BearerToken")
    if value is None or value.startswith(_BEARER):
        return value and value.removeprefix(_BEARER)
    raise KubeconfigError("Kubernetes has no login by username and password; use a token")


def _proxy(value: Any) -> str | None:
    proxy = _text(value, "proxy-url")
    if proxy is not None and urlsplit(proxy).scheme not in ("http", "https"):
        raise KubeconfigError("proxy-url must be http:// or https://; a SOCKS proxy cannot be used")
    return proxy


def _text(value: Any, field: str) -> str | None:
    if value is None or isinstance(value, str):
        return value or None
    raise KubeconfigError(f"{field} must be a text")


def _path(value: str | None) -> Path | None:
    return None if value is None else Path(value)
