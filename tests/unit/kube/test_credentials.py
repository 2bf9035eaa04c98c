"""Credentials: read from files, as fresh as they are."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import kopf
import pytest

from drumline.kube import credentials
from drumline.kube.credentials import NoCredentials, Token


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text("drumline-system")
    (tmp_path / "ca.crt").write_text("ca")
    return tmp_path


async def test_a_pod_is_its_service_account(account: Path) -> None:
    loaded = credentials.from_service_account(host="10.96.0.1", port="443", folder=account)
    assert loaded.is_of_pod
    assert await loaded.connection_fields() == {
        "server": "https://10.96.0.1:443",
        "ca_path": str(account / "ca.crt"),
        "insecure": False,
        "token": "first",
        "certificate_path": None,
        "private_key_path": None,
        "default_namespace": "drumline-system",
    }


async def test_kopf_takes_the_same_login(account: Path) -> None:
    loaded = credentials.from_service_account(host="fd00::1", port="6443", folder=account)
    login = kopf.ConnectionInfo(**await loaded.connection_fields())
    assert login.server == "https://[fd00::1]:6443"
    assert login.as_http_headers() == {"Authorization": "Bearer first"}


async def test_a_rotated_token_is_used_within_a_minute(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    now = [0.0]
    token = Token(path.read_text, clock=lambda: now[0])
    assert await token.current() == "old"
    path.write_text("new")
    now[0] = 60.0
    assert await token.current() == "old"
    now[0] = 61.0
    assert await token.current() == "new"


async def test_a_refused_token_is_read_again_at_once(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    token = Token(path.read_text, clock=lambda: 0.0)
    await token.current()
    path.write_text("new")
    token.forget()
    assert await token.current() == "new"


def _kubeconfig(folder: Path, *, user: dict[str, Any], server: str = "https://h:6443/") -> Path:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": True}}
        ],
        "users": [{"name": "u", "user": user}],
        "contexts": [
            {"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
            {"name": "two", "context": {"cluster": "c", "user": "u"}},
        ],
        "current-context": "one",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(document))
    return path


async def test_a_kubeconfig_with_a_token(tmp_path: Path) -> None:
    path = _kubeconfig(tmp_path, user={"token": "secret"})
    loaded = credentials.from_kubeconfig(path)
    assert await loaded.connection_fields() == {
        "server": "https://h:6443",
        "ca_path": None,
        "insecure": True,
        "token": "secret",
        "certificate_path": None,
        "private_key_path": None,
        "default_namespace": "team",
    }
    assert credentials.from_kubeconfig(path, context="two").namespace == "default"


async def test_a_kubeconfig_with_a_client_certificate(tmp_path: Path) -> None:
    for name in ("crt", "key"):
        (tmp_path / name).write_text(name)
    user = {"client-certificate": str(tmp_path / "crt"), "client-key": str(tmp_path / "key")}
    loaded = credentials.from_kubeconfig(_kubeconfig(tmp_path, user=user))
    assert loaded.certificate_path == tmp_path / "crt"
    assert loaded.private_key_path == tmp_path / "key"
    assert await loaded.token.current() is None


async def test_a_kubeconfig_with_an_exec_plugin(tmp_path: Path) -> None:
    answer = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "from a plugin"},
    }
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", f"print({json.dumps(answer)!r})"],
        "interactiveMode": "Never",
    }
    loaded = credentials.from_kubeconfig(_kubeconfig(tmp_path, user={"exec": plugin}))
    assert await loaded.token.current() == "from a plugin"


def test_a_token_is_shared_by_event_loops_one_after_the_other() -> None:
    """As of a notebook whose connection is opened again: in each, many ask at the same time."""
    read = iter(("first", "second"))
    token = Token(lambda: next(read))

    async def asked_at_once() -> list[str | None]:
        return await asyncio.gather(*(token.current() for _ in range(3)))

    assert asyncio.run(asked_at_once()) == ["first"] * 3
    token.forget()
    assert asyncio.run(asked_at_once()) == ["second"] * 3


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    with pytest.raises(NoCredentials, match="nowhere"):
        credentials.from_kubeconfig(missing)
    with pytest.raises(NoCredentials, match="no service account is mounted"):
        credentials.from_service_account(host="h", port="443", folder=missing)


def test_a_kubeconfig_is_preferred_where_it_is_named(tmp_path: Path) -> None:
    path = _kubeconfig(tmp_path, user={"token": "t"})
    in_a_pod = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    assert credentials.discover(in_a_pod, kubeconfig=path).server == "https://h:6443"
    with pytest.raises(NoCredentials, match="no service account"):
        credentials.discover(in_a_pod)
