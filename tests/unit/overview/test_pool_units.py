"""Figures of a pool with partitions say that they count parts; what is added up is in GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.overview.archived import ended_job
from drumline.overview.jobs import job_row, job_rows
from drumline.overview.nodes import node_rows
from drumline.overview.pool_units import PoolUnits
from drumline.overview.queues import queue_rows, share_rows
from drumline.overview.usage import usage_rows
from drumline.overview.why import why_card
from drumline_cli.overview import tables
from tests.texts import missing
from tests.unit.overview.objects import (
    NOW,
    a_cluster,
    a_job,
    a_node,
    a_pool,
    a_queue,
    at,
    running,
)

THIRD = "nvidia.com/mig-3g.40gb"
MIXED = a_pool(
    "mixed", partitions={"partsPerGpu": 7, "resources": [{"resource": THIRD, "parts": 3}]}
)
QUEUE = a_queue(
    "research",
    quotas=[
        {"gpuPool": "gpus", "nominalGpus": 16},
        {"gpuPool": "mixed", "nominalGpus": 14},
    ],
)


def on_parts(name: str, **fields: Any) -> dict[str, Any]:
    """A job of two pods on 3/7 of a GPU each."""
    spec = {"nodes": 2, "gpusPerNode": 1, "gpuPool": "mixed", "gpuPartition": THIRD}
    return a_job(name, spec=spec, **fields)


def holding(*, parts: int = 3) -> dict[str, Any]:
    """The status of such a job that runs since 700 s."""
    places = {"gpuPool": "mixed", "prefix": "m-", "nodes": ["1", "1"]}
    account = {"until": at(-700), "parts": parts, "partsPerGpu": 7}
    return running(assignment=places, gpuSeconds=account)


def test_a_quota_of_parts_says_so_and_the_line_is_in_gpus() -> None:
    held = on_parts("held", status=holding())
    cluster = a_cluster(MIXED, a_pool(), QUEUE, held, on_parts("next"), a_job("whole"))
    (row,) = queue_rows(cluster)
    whole, parts = row.quotas
    assert (whole.used_gpus, whole.parts_per_gpu) == (0, 1)
    assert (parts.used_gpus, parts.nominal_gpus, parts.parts_per_gpu) == (6, 14, 7)
    assert not missing(tables.quota_sentence(whole), "0 of 16 GPUs")
    assert not missing(tables.quota_sentence(parts), "6 of 14", "7", "GPU")
    assert row.waiting_gpus == pytest.approx(8 + 6 / 7)
    text = tables.queues([row], now=NOW)
    assert not missing(text, "2 jobs", "8.86 GPUs")
    assert "2 x mig-3g.40gb" in text


def test_shares_add_up_gpus() -> None:
    cluster = a_cluster(MIXED, QUEUE, on_parts("held", status=holding()))
    (row,) = share_rows(cluster)
    assert (row.nominal_gpus, row.borrowed_gpus) == (18, 0)
    assert row.used_gpus == pytest.approx(6 / 7)
    assert " 0.86/18 " in tables.shares([row], now=NOW)


def test_a_job_shows_its_parts_and_sums_count_what_they_are_of_a_gpu() -> None:
    cluster = a_cluster(MIXED, on_parts("held", status=holding()), a_job("whole"))
    held, whole = job_rows(cluster.jobs, now=NOW, places={}, units=PoolUnits(cluster.pools))
    assert (held.gpus, held.partition, held.gpu_seconds) == (2, THIRD, 600)
    assert (held.whole_gpus, whole.whole_gpus) == (pytest.approx(6 / 7), 8)
    assert (whole.partition, whole.in_gpus) == ("", None)
    assert "2 x mig-3g.40gb" in tables.jobs([held], now=NOW, namespaces=False)


def test_a_job_that_waits_is_of_the_unit_of_its_pool() -> None:
    cluster = a_cluster(MIXED, on_parts("next"))
    known = job_row(cluster.jobs[0], now=NOW, position=1, units=PoolUnits(cluster.pools))
    assert known.whole_gpus == pytest.approx(6 / 7)
    assert job_row(cluster.jobs[0], now=NOW, position=1).whole_gpus == 2, "no pool is known"


def test_use_is_in_gpu_seconds_whatever_became_of_the_pool() -> None:
    cluster = a_cluster(on_parts("held", status=holding()))
    (row,) = usage_rows(cluster.jobs, by=["queue"], since=None, now=NOW)
    assert (row.gpu_seconds, row.productive) == (600, 600)
    gone = ended_job(cluster.jobs[0], deleted_at=at(0))
    (after,) = usage_rows([gone], by=["queue"], since=None, now=NOW + 99)
    assert after.gpu_seconds == 600


def test_why_says_what_comes_before_in_gpus_and_who_holds_parts() -> None:
    waits = on_parts("mine", created=-10)
    cluster = a_cluster(
        MIXED, QUEUE, on_parts("held", status=holding()), on_parts("first", created=-900), waits
    )
    mine = next(job for job in cluster.jobs if job.metadata.name == "mine")
    card = why_card(cluster, mine)
    assert card.gpus_ahead == pytest.approx(6 / 7)
    text = tables.why(card, now=NOW)
    assert not missing(text, "0.86 GPUs")
    assert not missing(text, "team/held", "research", "2", "mig-3g.40gb")


def test_a_node_counts_parts_and_its_whole_gpus_apart() -> None:
    node = a_node("m-1", pool="mixed")
    node["status"]["allocatable"] = {"nvidia.com/gpu": "2", THIRD: "4", "cpu": "9"}
    cluster = a_cluster(MIXED, a_pool(), node, a_node("n-1"), on_parts("held", status=holding()))
    plain, mixed = node_rows(cluster)
    assert (plain.gpus, plain.parts_per_gpu, plain.whole_gpus) == (8, 1, None)
    assert (mixed.gpus, mixed.held_gpus) == (2 * 7 + 4 * 3, 6)
    assert (mixed.parts_per_gpu, mixed.whole_gpus) == (7, 2)
    assert "6/26 parts" in tables.nodes([mixed])
