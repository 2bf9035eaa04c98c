"""The notifier as a process, with the chart's rights: real jobs, a web server, a mail server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.channel_servers import (
    MailServer,
    WebServer,
    mail_server,
    server_tls,
    web_server,
    write_secret,
)
from tests.integration.operator.chart_rights import token_of
from tests.integration.operator.conftest import HIGH, HIGH_CLASS, Site
from tests.integration.operator.proxy import Proxy
from tests.kube import Json, Kube, phase_is
from tests.operator_process import ROOT
from tests.patience import HANG_SECONDS
from tools.cluster.certificates import new_authority

pytestmark = [
    pytest.mark.usefixtures("operator"),
    pytest.mark.extended(keep=5, of="corners of a cluster"),
]

SETTINGS = (
    "notifications.enabled=true",
    "notifications.config.channels.any.slack.urlFrom.secret=any",
    "notifications.config.channels.any.slack.urlFrom.key=url",
)


@dataclass(kw_only=True)
class NotifierProcess:
    """`python -m drumline notifier`; its log is read line by line."""

    kubeconfig: Path
    folder: Path
    namespaces: str = ""
    """Whose jobs it reads, as in DRUMLINE_WATCH_NAMESPACES."""
    process: subprocess.Popen[str] | None = None

    def start(self) -> int:
        """Start it; returns its port once it knows the jobs."""
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}",
            "DRUMLINE_NAMESPACE": "drumline-system",
            "DRUMLINE_WATCH_NAMESPACES": self.namespaces,
            "DRUMLINE_NOTIFICATIONS": str(self.folder / "config.json"),
            "DRUMLINE_NOTIFICATIONS_SECRETS": str(self.folder),
            "DRUMLINE_HTTP_HOST": "127.0.0.1",
            "DRUMLINE_HTTP_PORT": "0",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "drumline", "notifier"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        port: int = self.wait("notifier_started")["port"]
        self.wait("record_written")
        return port

    def end(self, *, kill: bool = False) -> int:
        """SIGTERM or SIGKILL; returns the exit code."""
        assert self.process is not None
        (self.process.kill if kill else self.process.terminate)()
        self.process.communicate(timeout=HANG_SECONDS)
        code, self.process = self.process.returncode, None
        return code

    def wait(self, event: str, **fields: Any) -> dict[str, Any]:
        """The next line of its log that says this."""
        assert self.process is not None
        assert self.process.stdout is not None
        seen: list[str] = []
        for line in self.process.stdout:
            seen.append(line)
            said = json.loads(line) if line.startswith("{") else {}
            if said.items() >= {"event": event, **fields}.items():
                return said
        raise AssertionError("".join(seen))


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        yield server


@pytest.fixture
def mail(tmp_path: Path) -> Iterator[MailServer]:
    authority = new_authority()
    write_secret(tmp_path, "smtp", user="u", words="w", ca=authority.pem.decode())
    with mail_server(tls=server_tls(authority, tmp_path)) as server:
        yield server


@contextmanager
def notifying(
    api: Kube,
    site: Site,
    folder: Path,
    *,
    web: WebServer,
    mail: MailServer,
    rights: Sequence[str] = (),
    namespaces: str = "",
) -> Iterator[NotifierProcess]:
    """It runs with a record of its own, and tells of this corner's jobs alone."""
    write_secret(folder, "slack", url=f"{web.url}/slack")
    secrets = {"usernameFrom": "user", "passwordFrom": "words", "caFrom": "ca"}
    config = {
        "channels": {
            "slack": {"slack": {"urlFrom": {"secret": "slack", "key": "url"}}},
            "events": {"webhook": {"url": f"{web.url}/events"}},
            "mail": {
                "jobsMayChoose": True,
                "mail": {
                    "host": "127.0.0.1",
                    "port": mail.port,
                    "sender": "drumline@example.com",
                    "allowedDomains": ["example.com"],
                    **{field: {"secret": "smtp", "key": key} for field, key in secrets.items()},
                },
            },
        },
        "routes": [
            {"channels": ["events"], "queues": [site.queue]},
            {"channels": ["slack"], "queues": [site.queue], "kinds": ["Failed"]},
        ],
    }
    (folder / "config.json").write_text(json.dumps(config))
    with (
        token_of(api, "drumline-notifier", *SETTINGS, *rights) as token,
        Proxy(api.kubeconfig, folder, token=token) as proxy,
    ):
        if api.exists("configmaps", "drumline-notifier", "drumline-system"):
            api.delete("configmaps", "drumline-notifier", "drumline-system")
        notifier = NotifierProcess(
            kubeconfig=proxy.kubeconfig, folder=folder, namespaces=namespaces
        )
        notifier.start()
        try:
            yield notifier
        finally:
            if notifier.process is not None:
                notifier.end(kill=True)
        assert proxy.refused == []
        assert {write.about for write in proxy.writes} == {"configmaps"}


@pytest.fixture
def notifier(
    api: Kube, site: Site, tmp_path: Path, web: WebServer, mail: MailServer
) -> Iterator[NotifierProcess]:
    with notifying(api, site, tmp_path, web=web, mail=mail) as process:
        yield process


def news(web: WebServer, count: int) -> list[tuple[str, str]]:
    """The next CloudEvents as job and kind."""
    events = [web.next() for _ in range(count)]
    assert {event.path for event in events} == {"/events"}
    return [(event.body["data"]["name"], event.body["data"]["kind"]) for event in events]


def test_each_change_is_one_message_also_over_restarts(
    site: Site, notifier: NotifierProcess, web: WebServer, mail: MailServer
) -> None:
    site.submit("llama", nodes=1, gpusPerNode=8, recovery={"maxRestarts": 1})
    patch = {"metadata": {"annotations": {"drumline.dev/notify": "mail:ada@example.com,slack"}}}
    site.kube.patch("trainingjobs", "llama", patch, site.namespace)
    site.wait("llama", phase_is("Running"))
    assert news(web, 1) == [("llama", "Started")]
    assert mail.next().mail["Subject"] == f"{site.namespace}/llama has started"
    assert notifier.end() == 0

    site.end_pods("llama", exit_code=1)  # a restart: of no interest
    site.wait("llama", lambda job: job is not None and job["status"].get("restarts") == 1)
    site.wait("llama", phase_is("Running"))
    notifier.start()
    assert notifier.end(kill=True) < 0
    site.end_pods("llama", exit_code=1)
    site.wait("llama", phase_is("Failed"))
    notifier.start()

    posted = sorted((web.next() for _ in range(2)), key=lambda each: each.path)
    assert [each.path for each in posted] == ["/events", "/slack"]
    data = posted[0].body["data"]
    assert (data["kind"], data["restarts"]) == ("Failed", 1)
    assert data["culprit"]["pod"].startswith("llama-0-g")
    assert "has failed" in posted[1].body["text"]
    got = mail.next()
    assert (got.recipients, got.in_tls) == (("ada@example.com",), True)
    assert "Culprit: " in got.mail.get_content()
    notifier.wait("record_written", pending=0)
    assert notifier.end() == 0

    notifier.start()
    assert notifier.end() == 0
    assert web.posted.empty()
    assert mail.received.empty()


@pytest.mark.usefixtures("notifier")
def test_a_preempted_job_is_said_to_return_and_runs_again(
    api: Kube, site: Site, web: WebServer
) -> None:
    api.ensure(HIGH_CLASS)
    site.submit("low", nodes=4, gpusPerNode=8)
    site.wait("low", phase_is("Running"))
    assert news(web, 1) == [("low", "Started")]
    site.submit("high", nodes=4, gpusPerNode=8, priorityClassName=HIGH, activeDeadlineSeconds=3600)
    preempted, started = sorted(
        (web.next() for _ in range(2)), key=lambda each: each.body["data"]["kind"]
    )
    data = preempted.body["data"]
    assert (data["name"], data["kind"]) == ("low", "Preempted")
    assert f"preempted by {site.namespace}/high" in data["message"]
    assert data["expectedReturn"] <= data["expectedReturnBy"]
    assert started.body["data"]["name"] == "high"
    site.end_pods("high")
    again = sorted((web.next() for _ in range(2)), key=lambda each: each.body["data"]["kind"])
    assert [(each.body["data"]["name"], each.body["data"]["kind"]) for each in again] == [
        ("high", "Finished"),
        ("low", "Started"),
    ]
    assert again[1].body["data"]["before"] == "Preempted"


@pytest.fixture
def narrow_notifier(
    api: Kube, site: Site, tmp_path: Path, web: WebServer, mail: MailServer
) -> Iterator[NotifierProcess]:
    """With rights in this corner's namespace alone."""
    rights = (f"watchNamespaces={{{site.namespace}}}",)
    with notifying(
        api, site, tmp_path, web=web, mail=mail, rights=rights, namespaces=site.namespace
    ) as process:
        yield process


@pytest.mark.usefixtures("narrow_notifier")
def test_a_budget_that_is_nearly_spent_is_a_message_about_its_queue(
    site: Site, web: WebServer
) -> None:
    budget = {"gpuHours": 100, "windowDays": 7}
    site.kube.patch("trainingqueues", site.queue, {"spec": {"budget": budget}})

    def is_counted(queue: Json | None) -> bool:
        return "budget" in (queue or {}).get("status", {})

    queue = site.kube.wait("trainingqueues", site.queue, None, is_counted)
    assert queue is not None
    status = queue["status"]
    status["budget"]["spentGpuHours"] = 80
    site.kube.patch_status("trainingqueues", site.queue, status, None)
    body = web.next().body
    assert (body["type"], body["subject"]) == (
        "dev.drumline.trainingqueue.budget",
        f"queue/{site.queue}",
    )
    assert body["data"]["message"].startswith("It has had 80 of 100 GPU-hours in 7 days (80%).")


def test_a_channel_that_is_away_gets_its_messages_later(
    site: Site, notifier: NotifierProcess, web: WebServer
) -> None:
    web.answers.put((503, {}))
    site.submit("llama", nodes=1, gpusPerNode=8)
    first, second = web.next(), web.next()
    assert first.body == second.body
    notifier.wait("notification_sent", id=first.body["id"])


def test_of_two_notifiers_the_later_goes_on(
    site: Site, notifier: NotifierProcess, web: WebServer
) -> None:
    later = NotifierProcess(kubeconfig=notifier.kubeconfig, folder=notifier.folder)
    later.start()
    site.submit("llama", nodes=1, gpusPerNode=8)
    assert notifier.process is not None
    output = notifier.process.communicate(timeout=HANG_SECONDS)[0]
    assert "ConfigMap drumline-notifier was changed" in output
    assert notifier.process.returncode == 1
    notifier.process = None
    assert news(web, 1) == [("llama", "Started")]
    assert later.end() == 0
    assert web.posted.empty()


def test_probes_and_a_wrong_configuration(notifier: NotifierProcess) -> None:
    notifier.end()
    port = notifier.start()
    for probe in ("healthz", "readyz"):
        with urlopen(f"http://127.0.0.1:{port}/{probe}") as answer:
            assert answer.read() == b"ok\n"
    notifier.end()
    (notifier.folder / "config.json").write_text('{"channels": {"a": {}}}')
    with pytest.raises(AssertionError, match=r"channels\.a: .* exactly one of slack"):
        notifier.start()
    assert notifier.end() == 2
