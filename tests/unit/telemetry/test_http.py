"""/healthz, /readyz and /metrics."""

from __future__ import annotations

import aiohttp
import pytest

from drumline.kube.request import Verb
from drumline.telemetry.http import serve
from drumline.telemetry.metrics import Metrics
from tests.texts import missing


async def answers(*, unwell: str | None = None, unready: str | None = None) -> dict[str, str]:
    metrics = Metrics()
    metrics.observe_request(verb=Verb.CREATE, resource="pods", code=201, seconds=0.002)
    responses: dict[str, str] = {}
    async with (
        serve(
            host="127.0.0.1",
            port=0,
            metrics=metrics.render,
            healthy=lambda: unwell,
            ready=lambda: unready,
        ) as port,
        aiohttp.ClientSession() as session,
    ):
        for path in ("healthz", "readyz", "metrics"):
            async with session.get(f"http://127.0.0.1:{port}/{path}") as answer:
                responses[path] = f"{answer.status} {await answer.text()}"
    return responses


async def test_all_is_well() -> None:
    responses = await answers()
    assert responses["healthz"] == responses["readyz"] == "200 ok\n"


@pytest.mark.parametrize("probe", ["healthz", "readyz"])
async def test_a_probe_that_fails_says_why(probe: str) -> None:
    argument = {"healthz": "unwell", "readyz": "unready"}[probe]
    responses = await answers(**{argument: "the watch of pods is silent"})
    assert not missing(responses.pop(probe), "503")
    assert set(responses) == {"healthz", "readyz", "metrics"} - {probe}
    assert all(text.startswith("200 ") for text in responses.values())


async def test_metrics_are_prometheus_text() -> None:
    text = (await answers())["metrics"]
    sample = 'drumline_api_requests_total{code="201",resource="pods",verb="create"} 1.0'
    assert sample in text
    assert "process_resident_memory_bytes" in text


def test_every_metric_of_ours_has_our_prefix_and_a_unit_or_says_what_it_counts() -> None:
    families = [family for family in Metrics().registry.collect() if "drumline" in family.name]
    assert len(families) > 10
    for family in families:
        assert family.name.startswith("drumline_")
        assert family.documentation.endswith(".")
        if family.type == "histogram":
            assert family.name.endswith(("_seconds", "_ratio"))


def test_two_operators_in_the_same_process_count_apart() -> None:
    first, second = Metrics(), Metrics()
    first.scheduling.gangs_placed.labels(queue="q", gpu_pool="p").inc()
    assert b'drumline_gangs_placed_total{gpu_pool="p",queue="q"} 1.0' in first.render()
    assert b"drumline_gangs_placed_total{" not in second.render()
