"""How old the caches are is a metric at each scrape, whoever asks for /healthz or does not."""

from __future__ import annotations

import re
import time
from pathlib import Path

from aiohttp import web
from aiohttp.test_utils import TestServer

from drumline.controller.informers.informers import Informers
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials, Token
from drumline.kube.errors import Forbidden
from drumline.scope import InstallationScope
from drumline.telemetry.metrics import Metrics


def test_the_age_of_every_cache_is_a_metric_from_the_start() -> None:
    metrics = Metrics()
    credentials = Credentials(server="http://127.0.0.1:1", token=Token(lambda: None))
    informers = Informers.of(
        KubeClient(credentials), metrics=metrics, scope=InstallationScope(), devices=True
    )
    name = "drumline_informer_freshness_seconds"
    ages = {
        informer.resource.plural: metrics.registry.get_sample_value(
            name, {"resource": informer.resource.plural}
        )
        for informer in informers.all()
    }
    assert set(ages.values()) == {float("inf")}, "none was heard of yet"
    assert {"trainingjobs", "resourceslices", "resourceclaims"} <= ages.keys()


def test_every_kind_that_is_watched_has_a_row_in_the_table_of_objects_that_count() -> None:
    credentials = Credentials(server="http://127.0.0.1:1", token=Token(lambda: None))
    informers = Informers.of(
        KubeClient(credentials), metrics=Metrics(), scope=InstallationScope(), devices=True
    )
    page = Path(__file__).parents[4] / "docs" / "architecture-scheduling.md"
    table = page.read_text().partition("## Objects that count")[2]
    rows = {row.split("|")[1].strip() for row in table.splitlines() if row.startswith("|")}
    kinds = {
        each.resource.kind for each in informers.all() if "drumline" not in each.resource.group
    }
    # Read once, before an eviction.
    kinds |= {"ResourceQuota", "LimitRange", "PodDisruptionBudget", "Secret"}
    named = {kind for row in rows for kind in re.findall(r"[A-Z][A-Za-z]+", row)}
    assert kinds - named == set()


def test_each_namespace_of_the_scope_says_whether_it_may_be_read() -> None:
    metrics = Metrics()
    credentials = Credentials(server="http://127.0.0.1:1", token=Token(lambda: None))
    scope = InstallationScope(namespaces=("nlp", "vision"))
    informers = Informers.of(KubeClient(credentials), metrics=metrics, scope=scope, devices=False)
    informers.jobs[1].is_forbidden = True
    name = "drumline_namespace_unreadable"
    values = [metrics.registry.get_sample_value(name, {"namespace": n}) for n in scope.namespaces]
    assert values == [0, 1]


async def test_a_namespace_that_is_gone_stops_no_look_at_jobs_and_job_sets() -> None:
    """Not whether there are JobSets, and nobody waits for it for ever."""

    async def handle(request: web.Request) -> web.Response:
        if "/namespaces/gone/" in request.path:
            return web.json_response({"code": 403, "message": "no"}, status=403)
        return web.json_response({"metadata": {"resourceVersion": "7"}, "items": []})

    metrics = Metrics()
    scope = InstallationScope(namespaces=("gone", "here"))
    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    async with TestServer(app) as server:
        credentials = Credentials(server=str(server.make_url("")), token=Token(lambda: None))
        async with KubeClient(credentials) as client:
            informers = Informers.of(client, metrics=metrics, scope=scope, devices=False)
            informers = await informers.with_workloads(client, metrics=metrics, scope=scope)
    kinds = [each.resource.plural for each in informers.workloads]
    assert kinds == ["jobs", "jobs", "jobsets", "jobsets"]
    for each in informers.workloads[::2]:
        error = Forbidden(code=403, reason="Forbidden", message="no")
        each._forbidden_since = time.monotonic() - 3600
        each._note_forbidden(error)
        assert each.has_synced, "taken for empty"
    for each in informers.workloads[1::2]:
        each._decoder.items([b"{}"])
    for kind in ("jobs", "jobsets"):
        name = "drumline_poisoned_objects_total"
        assert metrics.registry.get_sample_value(name, {"resource": kind}) == 1
        name = "drumline_informer_freshness_seconds"
        assert metrics.registry.get_sample_value(name, {"resource": kind}) is not None
