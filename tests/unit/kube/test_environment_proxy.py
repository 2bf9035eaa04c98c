"""The proxy that the environment names for a server."""

from __future__ import annotations

import pytest

from drumline.kube.environment_proxy import proxy_for

PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("server", "exceptions", "expected"),
    [
        ("https://api.example", "", PROXY),
        ("http://api.example", "", None),
        ("https://localhost:6443", "", None),
        ("https://127.0.0.7:6443", "", None),
        ("https://[::1]:6443", "", None),
        ("https://api.example", "*", None),
        ("https://API.example", "other, EXAMPLE", None),
        ("https://api.example", ".example", None),
        ("https://api.example", "*.example", None),
        ("https://example", "example", None),
        ("https://example", ".example", PROXY),
        ("https://api.example", "ple", PROXY),
        ("https://api.example", "example:443", None),
        ("https://api.example:6443", "example:443", PROXY),
        ("https://10.1.2.3:6443", "10.0.0.0/8", None),
        ("https://10.1.2.3:6443", "10.1.2.3/8", None),
        ("https://11.1.2.3:6443", "10.0.0.0/8,10.1.2.3,10/99", PROXY),
        ("https://10.1.2.3:6443", "10.1.2.3", None),
        ("https://10.1.2.3:6443", "10.1.2.3:6443", None),
        ("https://10.1.2.3:6443", "10.1.2.3:1", PROXY),
        ("https://[fd00::1]:6443", "fd00::/8", None),
        ("https://[fd00::1]:6443", "FD00:0::1", None),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", None),
        ("https://[fd00::1]:6443", "[fd00::1]:1", PROXY),
    ],
)
def test_exceptions_are_those_of_kubectl(
    server: str, exceptions: str, expected: str | None
) -> None:
    environment = {"HTTPS_PROXY": PROXY, "NO_PROXY": exceptions, "ALL_PROXY": "http://all"}
    assert proxy_for(server, environment) == expected


def test_variables_may_be_in_lower_case_and_without_a_scheme() -> None:
    assert proxy_for("http://a", {"http_proxy": "u:p@proxy:1", "no_proxy": "b"}) == (
        "http://u:p@proxy:1"
    )
    assert proxy_for("https://b", {"https_proxy": PROXY, "no_proxy": "b"}) is None
    assert proxy_for("https://b", {"https_proxy": PROXY, "HTTPS_PROXY": ""}) == PROXY


def test_a_proxy_of_another_kind_is_refused_without_its_password() -> None:
    with pytest.raises(ValueError, match="HTTPS_PROXY") as refused:
        proxy_for("https://a", {"https_proxy": "socks5://u:hunter2@h"})
    assert "hunter2" not in str(refused.value)
