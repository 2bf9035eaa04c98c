"""The page in the cluster: the process that the chart runs, and two tenants of a real API server.

Each tenant has a namespace, a role in it and a token. Every case is a request that one of them, or
a stranger, sends; in the end the process's whole output is searched for what it must not hold.
"""

from __future__ import annotations

import base64
import json
import re
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import aiohttp
import pytest

from drumline.kube.credentials import from_kubeconfig
from drumline_cli.decide.cycle import read_policy
from drumline_cli.decide.job_decisions import JobVerdict
from drumline_cli.decide.what_if import NewJob
from drumline_console.ui.callers import NAMESPACE_COOKIE, TOKEN_COOKIE
from drumline_console.ui.cluster_source import Caller, LiveCluster, SharedLimits
from drumline_console.ui.questions import Questions
from tests.integration.cli.test_overview import ENVIRONMENT, store
from tests.kube import Kube
from tests.operator_process import prepare
from tests.patience import HANG_SECONDS
from tests.unit.cli.manifests import a_running_status
from tools.cluster import Cluster
from tools.cluster.rest import Api

HOST = "page.example"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces"
RULES = [
    {
        "apiGroups": ["drumline.dev"],
        "resources": ["trainingjobs"],
        "verbs": ["get", "list", "create", "patch", "delete"],
    },
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["list"]},
]
OWN = {"Sec-Fetch-Site": "same-origin", "Origin": "null"}


@dataclass(frozen=True, slots=True)
class Tenant:
    namespace: str
    token: str

    @property
    def header(self) -> dict[str, str]:
        """As an authenticating proxy sets it."""
        return {"Authorization": f"Bearer {self.token}", "Cookie": self.own}

    @property
    def own(self) -> str:
        return f"{NAMESPACE_COOKIE}={self.namespace}"

    @property
    def cookie(self) -> dict[str, str]:
        """As the page's own form sets it."""
        return {"Cookie": f"{TOKEN_COOKIE}={self.token}; {self.own}"}


@dataclass(frozen=True, slots=True)
class Site:
    """The process, its tenants and everything that it has written."""

    address: str
    port: int
    left: Tenant
    right: Tenant
    log: Path
    kube: Kube


@pytest.fixture(scope="module")
def site(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("page")
    kube = Kube(control_plane.kubeconfig)
    prepare(kube)
    unique = uuid.uuid4().hex[:8]
    left, right = (_tenant(control_plane, kube, f"{side}-{unique}") for side in ("left", "right"))
    cluster = json.loads(control_plane.kubeconfig.read_text())["clusters"][0]["cluster"]
    authority = folder / "ca.crt"
    authority.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    environment = {
        **{name: value for name, value in ENVIRONMENT.items() if name != "KUBECONFIG"},
        "DRUMLINE_API_SERVER": cluster["server"],
        "DRUMLINE_API_SERVER_CA": str(authority),
        "DRUMLINE_HTTP_HOST": "127.0.0.1",
        "DRUMLINE_HTTP_PORT": "0",
        "DRUMLINE_LOG_LEVEL": "debug",
    }
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "drumline", "page"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        port = _port(process.stdout, output)
        rest = subprocess.Popen(["cat"], stdin=process.stdout, stdout=output)
        process.stdout.close()
        try:
            yield Site(f"http://127.0.0.1:{port}", port, left, right, log, kube)
        finally:
            process.terminate()
            assert process.wait(timeout=HANG_SECONDS) == 0
            rest.wait(timeout=HANG_SECONDS)
            kube.close()
    said = log.read_text()
    assert "page_stopped" in said
    for tenant in (left, right):
        assert tenant.token not in said
        assert tenant.token.split(".")[1] not in said


def _port(lines: IO[bytes], output: IO[bytes]) -> int:
    for line in lines:
        output.write(line)
        output.flush()
        said = json.loads(line)
        if said["event"] == "page_started":
            return said["port"]
    raise AssertionError("the page did not start")


def _tenant(cluster: Cluster, kube: Kube, namespace: str) -> Tenant:
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "own"}
    subject = {"kind": "ServiceAccount", "name": "own", "namespace": namespace}
    binding = {"metadata": {"name": "own"}, "roleRef": reference, "subjects": [subject]}
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    with Api(cluster.kubeconfig) as api:
        api.request("POST", accounts, {"metadata": {"name": "own"}})
        roles = f"{RBAC}/{namespace}"
        api.request("POST", f"{roles}/roles", {"metadata": {"name": "own"}, "rules": RULES})
        api.request("POST", f"{roles}/rolebindings", binding)
        answer = api.request("POST", f"{accounts}/own/token", {"spec": {}})
    store(kube, namespace, f"job-of-{namespace}", queue="q", status=a_running_status())
    return Tenant(namespace, answer["status"]["token"])


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    jar = aiohttp.DummyCookieJar()
    headers = {"Host": HOST}
    async with aiohttp.ClientSession(cookie_jar=jar, headers=headers) as session:
        yield session


async def got(
    http: aiohttp.ClientSession, site: Site, path: str, headers: dict[str, str]
) -> tuple[int, str]:
    async with http.get(site.address + path, headers=headers, allow_redirects=False) as answer:
        return answer.status, await answer.text()


async def sent(
    http: aiohttp.ClientSession,
    site: Site,
    path: str,
    headers: dict[str, str],
    fields: dict[str, str] | None = None,
) -> tuple[int, str]:
    async with http.post(
        site.address + path, headers=headers, data=fields or {}, allow_redirects=False
    ) as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize("way", ["header", "cookie"])
async def test_each_tenant_sees_his_namespace_alone(
    http: aiohttp.ClientSession, site: Site, way: str
) -> None:
    for mine, other in ((site.left, site.right), (site.right, site.left)) * 2:
        status, text = await got(http, site, "/", getattr(mine, way))
        assert status == 200
        assert f"{mine.namespace}/job-of-{mine.namespace}" in text
        assert other.namespace not in text
        assert f"Showing only jobs of namespace {mine.namespace}:" in text
        assert mine.token not in text


async def test_who_may_not_list_all_is_asked_for_his_namespace(
    http: aiohttp.ClientSession, site: Site
) -> None:
    header = {"Authorization": f"Bearer {site.left.token}"}
    status, text = await got(http, site, "/", header)
    assert (status, "Which namespace is yours?" in text) == (403, True)
    async with http.post(
        f"{site.address}/namespace",
        headers=header | OWN,
        data={"namespace": site.left.namespace},
        allow_redirects=False,
    ) as answer:
        assert (answer.status, answer.headers["Location"]) == (303, "./")
        cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith(f"{NAMESPACE_COOKIE}={site.left.namespace}; HttpOnly; Max-Age=28800;")


@pytest.mark.parametrize(
    "path",
    [
        "/job/{namespace}/job-of-{namespace}",
        "/job/{namespace}/job-of-{namespace}/clone",
        "/job/{namespace}/job-of-{namespace}/delete",
        "/job/{namespace}/none",
        "/job/{mine}%2F..%2F{namespace}/job-of-{namespace}",
        "/job/{mine}/..%2F..%2F{namespace}%2Ftrainingjobs%2Fjob-of-{namespace}",
    ],
)
async def test_nobody_reads_another_namespace(
    http: aiohttp.ClientSession, site: Site, path: str
) -> None:
    left, right = site.left, site.right
    await got(http, site, "/", right.header)  # what is remembered of him stays his
    asked = path.format(namespace=right.namespace, mine=left.namespace)
    status, text = await got(http, site, asked, left.header)
    assert status == 502
    assert "20 000" not in text
    assert re.search("not allowed to read|not found", text)


@pytest.mark.parametrize(
    ("action", "fields"),
    [
        ("suspend", {}),
        ("resume", {}),
        ("priority", {"priority": "drumline-training-pods"}),
        ("delete", {"uid": "{uid}"}),
        ("clone", {"name": "stolen"}),
    ],
)
async def test_nobody_acts_in_another_namespace(
    http: aiohttp.ClientSession, site: Site, action: str, fields: dict[str, str]
) -> None:
    left, right = site.left, site.right
    name = f"job-of-{right.namespace}"
    before = site.kube.get("trainingjobs", name, right.namespace)
    given = {key: value.format(uid=before["metadata"]["uid"]) for key, value in fields.items()}
    path = f"/job/{right.namespace}/{name}/{action}"
    status, text = await sent(http, site, path, left.header | OWN, given)
    assert (status, "not allowed to" in text) == (502, True)
    assert site.kube.get("trainingjobs", name, right.namespace) == before
    assert len(site.kube.list("trainingjobs", right.namespace)) == 1


async def test_a_namespace_that_is_not_his_shows_him_nothing(
    http: aiohttp.ClientSession, site: Site
) -> None:
    headers = {
        "Authorization": f"Bearer {site.left.token}",
        "Cookie": f"{NAMESPACE_COOKIE}={site.right.namespace}",
    }
    status, text = await got(http, site, "/", headers)
    assert (status, "job-of-" in text) == (502, False)


def altered(token: str) -> str:
    """Another signature."""
    head, body, _ = token.split(".")
    return f"{head}.{body}.{'A' * 342}"


def unsigned(token: str) -> str:
    """The same claims, signed by nobody."""
    none = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    return f"{none}.{token.split('.')[1]}."


@pytest.mark.parametrize("path", ["/", "/what-if?ask=new&queue=q&nodes=1&gpus=8", "/job/{ns}/any"])
@pytest.mark.parametrize(
    "token",
    [
        None,
        lambda _: "no-token-of-anybody",
        altered,
        unsigned,
        lambda token: token[:-1],
        lambda token: f"{token} {token}",
        lambda _: "x" * 3801,
    ],
    ids=["none", "made-up", "altered", "unsigned", "cut", "two", "long"],
)
async def test_a_token_that_the_cluster_does_not_know_shows_the_login(
    http: aiohttp.ClientSession, site: Site, token: Any, path: str
) -> None:
    await got(http, site, "/", site.left.header)
    asked = path.format(ns=site.left.namespace)
    given = None if token is None else token(site.left.token)
    for headers in (
        {"Authorization": f"Bearer {given}"} if given else {},
        {"Cookie": f"{TOKEN_COOKIE}={given}"} if given and " " not in given else {},
    ):
        status, text = await got(http, site, asked, headers)
        assert (status, "Log in" in text) == (401, True)
        assert "job-of-" not in text
        assert given is None or given not in text


@pytest.mark.parametrize("way", ["header", "cookie"])
@pytest.mark.parametrize(
    "from_where",
    [
        {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "null"},
        {"Sec-Fetch-Site": "same-site", "Origin": f"https://other.{HOST}"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://evil.example"},
        {"Origin": "https://evil.example"},
        {"Origin": f"https://{HOST}.evil.example"},
        {"Origin": "null"},
        {},
    ],
)
async def test_another_site_presses_no_button(
    http: aiohttp.ClientSession, site: Site, way: str, from_where: dict[str, str]
) -> None:
    left = site.left
    name = f"job-of-{left.namespace}"
    before = site.kube.get("trainingjobs", name, left.namespace)
    for path in (f"/job/{left.namespace}/{name}/suspend", "/logout", "/namespace", "/login"):
        headers = getattr(left, way) | from_where
        status, _ = await sent(http, site, path, headers, {"token": left.token})
        assert status == 403
    assert site.kube.get("trainingjobs", name, left.namespace) == before


async def test_a_tenant_acts_on_his_own_jobs(http: aiohttp.ClientSession, site: Site) -> None:
    left = site.left
    path = f"/job/{left.namespace}/job-of-{left.namespace}"
    for action, spec in (("suspend", True), ("resume", False)):
        assert (await sent(http, site, f"{path}/{action}", left.header | OWN))[0] == 303
        stored = site.kube.get("trainingjobs", f"job-of-{left.namespace}", left.namespace)
        assert stored["spec"]["suspend"] is spec
    fields = {"name": "copy", "changes": "nodes=2"}
    assert (await sent(http, site, f"{path}/clone", left.header | OWN, fields))[0] == 303
    copy = site.kube.get("trainingjobs", "copy", left.namespace)
    assert copy["spec"]["nodes"] == 2
    priority = {"priority": "drumline-training-pods"}
    of_copy = f"/job/{left.namespace}/copy"
    assert (await sent(http, site, f"{of_copy}/priority", left.header | OWN, priority))[0] == 303
    copy = site.kube.get("trainingjobs", "copy", left.namespace)
    assert copy["spec"]["priorityClassName"] == "drumline-training-pods"
    status, text = await sent(
        http, site, f"{of_copy}/delete", left.header | OWN, {"uid": str(uuid.uuid4())}
    )
    assert (status, "delete" in text) == (502, True)  # another one of its name
    uid = {"uid": copy["metadata"]["uid"]}
    assert (await sent(http, site, f"{of_copy}/delete", left.header | OWN, uid))[0] == 303
    assert not site.kube.exists("trainingjobs", "copy", left.namespace)


async def test_what_the_api_server_refuses_is_said_in_its_words(
    http: aiohttp.ClientSession, site: Site
) -> None:
    left = site.left
    path = f"/job/{left.namespace}/job-of-{left.namespace}/clone"
    fields = {"name": "copy", "changes": "nodes=0"}
    status, text = await sent(http, site, path, left.header | OWN, fields)
    assert status == 502
    assert "spec.nodes" in text
    assert "greater than or equal to 1" in text


async def test_questions_need_the_right_to_see_the_whole_cluster(
    http: aiohttp.ClientSession, site: Site
) -> None:
    path = "/what-if?ask=new&queue=q&nodes=1&gpus=8"
    status, text = await got(http, site, path, site.left.header)
    assert status == 502
    assert "of the whole cluster: not allowed to read" in text


async def test_logging_in_sets_a_cookie_that_no_script_and_no_other_site_gets(
    http: aiohttp.ClientSession, site: Site
) -> None:
    fields = {"token": f" {site.left.token}\n", "namespace": site.left.namespace}
    async with http.post(
        f"{site.address}/login", headers=OWN, data=fields, allow_redirects=False
    ) as answer:
        assert (answer.status, answer.headers["Location"]) == (303, "./")
        cookies = answer.headers.getall("Set-Cookie")
    assert [cookie.partition("=")[0] for cookie in cookies] == [TOKEN_COOKIE, NAMESPACE_COOKIE]
    for cookie in cookies:
        assert set(cookie.split("; ")[1:]) == {
            *("HttpOnly", "Secure", "SameSite=Strict", "Path=/", "Max-Age=28800"),
        }
    async with http.post(
        f"{site.address}/logout", headers=OWN | site.left.cookie, allow_redirects=False
    ) as answer:
        assert (answer.status, answer.headers["Location"]) == (303, "login")
        gone = answer.headers.getall("Set-Cookie")
    assert all('=""; ' in cookie and "Max-Age=0" in cookie for cookie in gone)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
async def test_no_token_goes_into_a_cookie_that_every_port_gets(
    http: aiohttp.ClientSession, site: Site, host: str
) -> None:
    headers = OWN | {"Host": f"{host}:8080"}
    async with http.post(
        f"{site.address}/login",
        headers=headers,
        data={"token": site.left.token},
        allow_redirects=False,
    ) as answer:
        assert answer.status == 401
        assert "Set-Cookie" not in answer.headers
        assert "http://drumline.localhost:8080/" in await answer.text()


async def test_requests_that_are_none_leave_no_token_in_the_log(site: Site) -> None:
    """The server's own errors quote what they could not read."""
    token = site.left.token
    for lines in (
        f"GET / HTTP/1.1\r\nHost: {HOST}\r\nAuthorization : Bearer {token}\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {token}\x00\r\n\r\n",
        f"GET /{token} HTTP/9.9\r\nHost: {HOST}\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: {HOST}\r\nCookie: {token * 20}\r\n\r\n",
        f"Bearer {token}\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", site.port), timeout=HANG_SECONDS) as connection:
            connection.sendall(lines.encode())
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(65536)
        assert not answer or b" 400 " in answer.partition(b"\r\n")[0]


async def test_probes_ask_for_nothing(http: aiohttp.ClientSession, site: Site) -> None:
    assert await got(http, site, "/healthz", {}) == (200, "ok\n")


async def test_a_question_is_answered_from_the_objects_of_the_api_server(
    control_plane: Cluster, site: Site
) -> None:
    unique = uuid.uuid4().hex[:8]
    pool, node, queue = (f"{kind}-{unique}" for kind in ("pool", "node", "line"))
    spec: dict[str, Any] = {"quotas": [{"gpuPool": pool, "nominalGpus": 8}]}
    drumline = {"apiVersion": "drumline.dev/v1alpha1"}
    site.kube.create(
        {**drumline, "kind": "TrainingQueue", "metadata": {"name": queue}, "spec": spec}
    )
    spec = {"nodeSelector": {"pool": pool}}
    site.kube.create({**drumline, "kind": "GpuPool", "metadata": {"name": pool}, "spec": spec})
    metadata = {"name": node, "labels": {"pool": pool}}
    site.kube.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    allocatable = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
    ready = [{"type": "Ready", "status": "True"}]
    site.kube.patch_status("nodes", node, {"allocatable": allocatable, "conditions": ready}, None)
    # a new node has a taint until a controller has seen that it is ready
    site.kube.patch("nodes", node, {"spec": {"taints": None}})
    live = LiveCluster(
        Caller(credentials=from_kubeconfig(control_plane.kubeconfig)),
        limits=SharedLimits(Questions(read_policy(None))),
    )
    answer = await live.what_if(NewJob(queue=queue, nodes=1, gpus_per_node=8))
    site.kube.delete("nodes", node)
    then = answer.changed[0].then
    assert then is not None
    assert (then.job, then.verdict, then.nodes) == ("default/what-if", JobVerdict.PLACED, (node,))
    assert answer.remarks == ()
    # within the same seconds another question is asked of the same objects
    answer = await live.what_if(NewJob(queue=queue, nodes=2, gpus_per_node=8))
    then = answer.changed[0].then
    assert then is not None
    assert (then.verdict, then.reason) == (JobVerdict.WAITS, "ExceedsQuota")
