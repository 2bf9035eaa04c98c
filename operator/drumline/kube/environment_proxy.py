"""The proxy that environment variables name for a server, by the rules of Go's clients.

kubectl follows these rules, so a kubeconfig that it can use is used the same way here:

    HTTPS_PROXY=proxy:3128  NO_PROXY=.corp,10.0.0.0/8
    https://api.example        ->  http://proxy:3128
    https://api.corp           ->  none
    https://10.1.2.3:6443      ->  none
    https://localhost:6443     ->  none, whatever the variables say

Python's own rules know no networks in NO_PROXY.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit


def proxy_for(server: str, environment: Mapping[str, str]) -> str | None:
    """Return the URL of the proxy. None: the server is asked directly.

    Raises:
        ValueError: the proxy cannot be used. The message has no password.
    """
    parts = urlsplit(server)
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    variable = f"{parts.scheme}_proxy"
    named = _value(environment, variable)
    if not named or _is_excepted(host, port, _value(environment, "no_proxy")):
        return None
    proxy = named if "://" in named else f"http://{named}"
    if urlsplit(proxy).scheme not in ("http", "https"):
        raise ValueError(f"{variable.upper()} must be http:// or https://, as SOCKS cannot be used")
    return proxy


def _value(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name.upper()) or environment.get(name) or ""


def _is_excepted(host: str, port: int, exceptions: str) -> bool:
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(
        _is_meant(each, host=host, port=port, address=address)
        for each in exceptions.lower().replace(",", " ").split()
    )


def _is_meant(
    exception: str, *, host: str, port: int, address: IPv4Address | IPv6Address | None
) -> bool:
    """Return whether one entry of NO_PROXY covers the server."""
    if exception == "*":
        return True
    if address is not None and "/" in exception:
        try:
            return address in ip_network(exception, strict=False)
        except ValueError:
            return False
    # An entry with a port covers this port alone. An IPv6 address has more than one colon.
    name, colon, wanted = exception.rpartition(":")
    if colon and wanted.isdecimal() and (":" not in name or name.endswith("]")):
        if int(wanted) != port:
            return False
        exception = name
    named = _address(exception.strip("[]"))
    if named is not None:
        return named == address
    suffix = exception.removeprefix("*")
    return host == suffix or host.endswith(f".{suffix.removeprefix('.')}")


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
