"""What one installation of several reads, and what it decides about."""

from __future__ import annotations

from dataclasses import replace

from drumline.controller.informers.informers import Informers
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials, Token
from drumline.scope import EVERYWHERE, InstallationScope
from drumline.settings import Settings
from drumline.telemetry.metrics import Metrics

HERE = Credentials(server="http://127.0.0.1:1", token=Token(lambda: None))


def test_alone_it_covers_everything_but_what_belongs_to_others() -> None:
    assert InstallationScope.of(Settings()) == replace(EVERYWHERE, home="drumline-system")
    assert EVERYWHERE.covers("any")
    assert EVERYWHERE.reads == (None,)
    assert EVERYWHERE.selector == "!drumline.dev/installation"


def test_among_others_it_covers_what_the_deployment_names() -> None:
    scope = InstallationScope.of(
        Settings(watch_namespaces=("nlp", "vision"), installation="research")
    )
    assert scope.covers("nlp")
    assert scope.covers("vision")
    assert not scope.covers("shop")
    assert scope.reads == ("nlp", "vision")
    assert scope.selector == "drumline.dev/installation=research"


def test_the_platform_checks_nodes_from_its_own_namespace() -> None:
    scope = InstallationScope.of(Settings(namespace="platform"))
    assert scope.may_check("platform")
    assert not scope.may_check("team-a")
    assert not EVERYWHERE.may_check("")


async def test_jobs_are_read_where_they_are_ours_and_pods_everywhere() -> None:
    scope = InstallationScope(namespaces=("nlp", "vision"), installation="research")
    async with KubeClient(HERE) as client:
        informers = Informers.of(client, metrics=Metrics(), scope=scope, devices=False)
        paths = [each._watch_request(seconds=1) for each in informers.all()]
    jobs = "/apis/drumline.dev/v1alpha1/namespaces"
    assert [request.path for request in paths[:2]] == [
        f"{jobs}/nlp/trainingjobs",
        f"{jobs}/vision/trainingjobs",
    ]
    selectors = {
        request.resource.plural: (request.path, request.query.get("labelSelector", ""))
        for request in paths[2:]
    }
    ours = "drumline.dev/installation=research"
    assert selectors["trainingqueues"][1] == selectors["gpupools"][1] == ours
    assert selectors["pods"] == ("/api/v1/pods", "")
    assert selectors["nodes"] == ("/api/v1/nodes", "")
