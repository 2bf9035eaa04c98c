"""How old the caches are is a metric at each scrape, whoever asks for /healthz or does not."""

from __future__ import annotations

from drumline.controller.cache.informers import Informers
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials, Token
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


def test_each_namespace_of_the_scope_says_whether_it_may_be_read() -> None:
    metrics = Metrics()
    credentials = Credentials(server="http://127.0.0.1:1", token=Token(lambda: None))
    scope = InstallationScope(namespaces=("nlp", "vision"))
    informers = Informers.of(KubeClient(credentials), metrics=metrics, scope=scope, devices=False)
    informers.jobs[1].is_forbidden = True
    name = "drumline_namespace_unreadable"
    values = [metrics.registry.get_sample_value(name, {"namespace": n}) for n in scope.namespaces]
    assert values == [0, 1]
