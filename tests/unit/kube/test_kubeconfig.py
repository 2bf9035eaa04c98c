"""Simple kubeconfigs mean what the kubernetes package says, and all others are left to it."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import RawTestServer
from kubernetes.client import Configuration
from kubernetes.config import kube_config

from drumline.kube import reads
from drumline.kube.client import KubeClient
from drumline.kube.credentials import NoCredentials, from_kubeconfig
from drumline.kube.errors import Unreachable
from drumline.kube.kinds import NAMESPACES
from drumline.kube.kubeconfig import KubeContext, simple
from drumline.kube.kubeconfig_package import by_package
from tests.unit.test_house import IMPORTS


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def written(folder: Path, **changes: Any) -> Path:
    cluster = {"server": "https://h:6443", **changes.pop("cluster", {})}
    user = changes.pop("user", {"token": "secret"})
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
            {"name": "there", "context": {"cluster": "c", "user": "u"}},
        ],
        "current-context": "here",
        **changes,
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


def by_the_package(path: Path, context: str | None) -> Configuration:
    loaded = Configuration()
    kube_config.load_kube_config(
        config_file=str(path), context=context, client_configuration=loaded, persist_config=False
    )
    return loaded


def content(path: Path | str | None) -> str | None:
    return None if path is None else Path(path).read_text()


@pytest.mark.parametrize("context", [None, "there"])
@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        ({}, {"token": "secret"}),
        ({"insecure-skip-tls-verify": True}, {"token": "secret"}),
        ({"certificate-authority": "ca"}, {"client-certificate": "crt", "client-key": "key"}),
        (
            {"certificate-authority-data": encoded("CA")},
            {
                "client-certificate-data": encoded("CRT"),
                "client-key-data": encoded("KEY"),
                "client-key": "key",
            },
        ),
        ({}, {}),
    ],
)
def test_it_means_what_the_package_says(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], context: str | None
) -> None:
    for name in ("ca", "crt", "key"):
        (tmp_path / name).write_text(name)
    path = written(tmp_path, cluster=cluster, user=user)
    read, expected = simple(path, context=context), by_the_package(path, context)
    assert read is not None
    assert read.server == expected.host
    assert expected.api_key.get("BearerToken") == (read.token and f"Bearer {read.token}")
    assert content(read.ca_path) == content(expected.ssl_ca_cert)
    assert content(read.certificate_path) == content(expected.cert_file)
    assert content(read.private_key_path) == content(expected.key_file)
    assert read.insecure is not expected.verify_ssl
    assert read.namespace == ("team" if context is None else "default")


@pytest.mark.parametrize(
    "changes",
    [
        {"user": {"exec": {"command": "login"}}},
        {"user": {"token": "t", "tokenFile": "f"}},
        {"user": {"username": "u", "password": "p"}},
        {"user": {"client-key-data": "no base64!"}},
        {"user": {"token": 7}},
        {"cluster": {"proxy-url": "http://proxy"}},
        {"cluster": {"tls-server-name": "other"}},
        {"current-context": "nowhere"},
        {"contexts": [3]},
        {"clusters": {}},
        {"users": [{"name": "u", "user": {"token": "a"}}] * 2},
    ],
)
def test_what_is_not_simple_is_left_to_the_package(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert simple(written(tmp_path, **changes), context=None) is None


def test_several_files_no_file_and_no_yaml_are_left_to_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert isinstance(simple(None, context=None), KubeContext)
    monkeypatch.setenv("KUBECONFIG", f"{path}:{path}")
    assert simple(None, context=None) is None
    assert simple(tmp_path / "none", context=None) is None
    path.write_text("{ no: yaml")
    assert simple(path, context=None) is None


def test_a_key_that_was_given_as_bytes_is_readable_for_its_owner_alone_and_goes_at_the_end(
    tmp_path: Path,
) -> None:
    data = {"client-certificate-data": encoded("CRT"), "client-key-data": encoded("KEY")}
    path = written(tmp_path, user=data)
    script = (
        "import json, pathlib; from drumline.kube.kubeconfig import simple\n"
        f"key = simple(pathlib.Path({str(path)!r}), context=None).private_key_path\n"
        "print(json.dumps([str(key), key.stat().st_mode & 0o777, key.read_text()]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=IMPORTS, capture_output=True, text=True, check=True
    )
    key, mode, text = json.loads(done.stdout)
    assert (mode, text) == (0o600, "KEY")
    assert not Path(key).exists()


def test_a_command_with_a_simple_kubeconfig_loads_no_heavy_package(tmp_path: Path) -> None:
    path = written(tmp_path)
    script = (
        "import sys, pathlib; from drumline_cli.overview import command\n"
        "from drumline.kube.credentials import from_kubeconfig\n"
        f"from_kubeconfig(pathlib.Path({str(path)!r}))\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=IMPORTS, capture_output=True, text=True, check=True
    )
    assert not {"kubernetes", "numpy", "pydantic"} & set(done.stdout.split())


ACTS_AS = {
    "as": "ada",
    "as-uid": "7",
    "as-groups": ["ml", "ops"],
    "as-user-extra": {"Reason/Why": ["audit", "test"]},
}
HEADERS = (
    ("Impersonate-User", "ada"),
    ("Impersonate-Uid", "7"),
    ("Impersonate-Group", "ml"),
    ("Impersonate-Group", "ops"),
    ("Impersonate-Extra-reason%2Fwhy", "audit"),
    ("Impersonate-Extra-reason%2Fwhy", "test"),
)


@pytest.mark.parametrize("user", [{"token": "t"}, {"token": "t", "username": "u"}])
def test_the_identity_to_act_as_is_never_dropped(tmp_path: Path, user: dict[str, Any]) -> None:
    path = written(tmp_path, user=user | ACTS_AS)
    assert from_kubeconfig(path).impersonation == HEADERS


def test_of_several_files_the_first_that_has_the_user_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    first = written(tmp_path, user={"token": "t"} | ACTS_AS)
    second = written(tmp_path / "other", user={"token": "t"})
    monkeypatch.setenv("KUBECONFIG", f"{first}:{second}")
    assert by_package(None, context=None).impersonation == HEADERS
    monkeypatch.setenv("KUBECONFIG", f"{second}:{first}")
    assert by_package(None, context=None).impersonation == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"as-groups": ["ml"]},
        {"as-uid": "7"},
        {"as": ["ada"]},
        {"as": "ada", "as-groups": "ml"},
        {"as": "ada", "as-user-extra": {"reason": "audit"}},
        {"as": "ada\r\nX-Other: 1"},
    ],
)
def test_an_identity_that_cannot_be_honoured_is_refused(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    with pytest.raises(NoCredentials, match="as"):
        from_kubeconfig(written(tmp_path, user={"token": "t"} | wrong))


def test_a_file_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    with pytest.raises(NoCredentials, match="nowhere does not exist"):
        from_kubeconfig()


PLUGIN = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
BOMB = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{last}'] * 9)}]\n"
    for last, name in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no contexts"),
        ("[]", "no contexts"),
        ("contexts: [", "line 2: not YAML"),
        ("[" * 100_000, "levels deep"),
        (BOMB, "aliases unfold"),
        ("a: \0", "not YAML"),
        ("contexts: 5", "current-context"),
        ("current-context: [a]", "current-context"),
        ("current-context: a\ncontexts: [null]", "contexts has no entry 'a'"),
        (
            "current-context: a\ncontexts: [{name: c}, {name: b}, 5]",
            "contexts has no entry 'a', or several; there are b, c$",
        ),
    ],
)
def test_what_is_no_kubeconfig_says_so(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(NoCredentials, match=said) as caught:
        from_kubeconfig(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"users": 5}, "users has no entry 'u'"),
        ({"users": []}, "users has no entry 'u'"),
        ({"clusters": []}, "clusters has no entry 'c'"),
        ({"cluster": {"server": ""}}, "server must be a URL"),
        ({"cluster": {"server": "h:6443"}}, "server must be a URL"),
        ({"cluster": {"server": "https://[::1"}}, "server must be a URL"),
        ({"cluster": {"server": "https://h:99999999"}}, "server must be a URL"),
        ({"cluster": {"server": "https://joe:hidden@h"}}, "server must be a URL"),
        ({"cluster": {"proxy-url": "socks5://h"}}, "proxy-url"),
        ({"cluster": {"tls-server-name": 5}}, "tls-server-name"),
        ({"user": {"token": "hidden\nX-Other: 1"}}, "line break"),
        ({"user": {"username": "u", "password": "hidden"}}, "username and password"),
        ({"user": {"tokenFile": "nowhere"}}, "tokenFile nowhere: No such file"),
        ({"user": {"exec": PLUGIN | {"command": "no-such-program"}}}, "no-such-program"),
        ({"user": {"exec": PLUGIN | {"command": "false"}}}, "exec.*returned 1"),
        ({"user": {"exec": PLUGIN | {"command": "true"}}}, "exec.*failed"),
        ({"user": {"exec": 5, "password": "hidden"}}, "exec.*failed"),
        ({"user": {"exec": None, "password": "hidden"}}, "exec.*failed"),
        ({"user": {"auth-provider": 5}}, "TypeError"),
        (
            {"contexts": [{"name": "here", "context": {"cluster": "c", "namespace": "a/b"}}]},
            "namespace",
        ),
    ],
)
def test_a_field_that_cannot_be_used_is_named_and_no_secret_is_quoted(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    said: str,
) -> None:
    with pytest.raises(NoCredentials, match=said) as caught:
        from_kubeconfig(written(tmp_path, **changes))
    assert "hidden" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_token_file_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NoCredentials, match="tokenFile pipe: not a regular file"):
        from_kubeconfig(written(tmp_path, user={"tokenFile": "pipe"}))


async def test_a_plugin_runs_once_before_the_first_request(tmp_path: Path) -> None:
    answer = {"apiVersion": PLUGIN["apiVersion"], "kind": "ExecCredential"}
    answer |= {"status": {"token": "t"}}
    program = f"open({str(tmp_path / 'runs')!r}, 'a').write('x'); print({json.dumps(answer)!r})"
    plugin = PLUGIN | {"command": sys.executable, "args": ["-c", program]}
    loaded = from_kubeconfig(written(tmp_path, user={"exec": plugin}))
    assert await loaded.token.current() == "t"
    assert (tmp_path / "runs").read_text() == "x"


async def test_a_plugin_that_fails_later_is_a_server_out_of_reach(tmp_path: Path) -> None:
    path = written(tmp_path)
    loaded = from_kubeconfig(path)
    path.unlink()
    loaded.token.forget()
    with pytest.raises(Unreachable, match="No such file"):
        await loaded.token.current()


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        ({"certificate-authority": "nowhere"}, {}),
        ({"certificate-authority": "pipe"}, {}),
        ({"certificate-authority": "kubeconfig"}, {}),
        ({"certificate-authority-data": encoded("CA")}, {}),
        ({}, {"client-certificate": "nowhere", "client-key": "nowhere"}),
        ({}, {"client-certificate-data": encoded("CRT"), "client-key-data": encoded("KEY")}),
    ],
)
def test_a_certificate_that_cannot_be_used_is_named(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    loaded = from_kubeconfig(written(tmp_path, cluster=cluster, user=user))
    with pytest.raises(NoCredentials, match="not a certificate that can be used") as caught:
        loaded.ssl_context()
    used = loaded.ca_path or loaded.certificate_path
    assert str(used) in str(caught.value)


async def test_requests_go_through_the_proxy_of_the_cluster(tmp_path: Path) -> None:
    seen: list[str] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        seen.append(str(request.url))
        return web.json_response({"metadata": {"name": "a"}})

    async with RawTestServer(answer) as proxy:
        cluster = {"server": "http://api.example", "proxy-url": str(proxy.make_url("/"))}
        async with KubeClient(from_kubeconfig(written(tmp_path, cluster=cluster))) as client:
            await reads.get(client, NAMESPACES, name="a")
    assert seen == ["http://api.example/api/v1/namespaces/a"]


async def test_kopf_is_not_given_a_login_that_it_would_not_honour(tmp_path: Path) -> None:
    for cluster in ({"proxy-url": "http://h"}, {"tls-server-name": "h"}):
        loaded = from_kubeconfig(written(tmp_path, cluster=cluster))
        with pytest.raises(NoCredentials, match="proxy-url and tls-server-name"):
            await loaded.connection_fields()
