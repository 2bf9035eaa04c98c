"""What queues have had is counted while it is held, decays, and survives a change of leaders."""

from __future__ import annotations

from math import log

import pytest

from drumline.controller.queues.usage_history import WRITE_SECONDS, QueueUsageHistory
from drumline.lifecycle.model.timestamps import timestamp
from drumline_scheduler.model import Snapshot
from tests.builders import T0
from tests.unit.scheduler.builders import admitted, cluster, gang, node

HALF_LIFE = 1000.0
HALF_A_LIFE_HELD = HALF_LIFE / log(2) / 2
"""What a share of 1 that was held for one half-life counts: the other half is forgotten."""


def half_held() -> Snapshot:
    """Queue `research` holds 2 of 4 GPUs."""
    return cluster(node("n0"), node("n1"), running=[admitted(gang("a", gpus=2), "n0")])


def empty() -> Snapshot:
    return cluster(node("n0"), node("n1"))


def test_nothing_is_known_before_the_first_look() -> None:
    assert QueueUsageHistory(half_life=HALF_LIFE).at(T0) == {}


def test_what_is_held_counts_from_look_to_look_and_decays_afterwards() -> None:
    past = QueueUsageHistory(half_life=HALF_LIFE)
    past.observe(half_held(), now=T0)
    assert past.at(T0) == {}
    full = past.at(T0 + HALF_LIFE)
    assert full == {"research": pytest.approx(0.5 * HALF_A_LIFE_HELD)}
    past.observe(half_held(), now=T0 + 300)
    past.observe(empty(), now=T0 + HALF_LIFE)
    assert past.at(T0 + HALF_LIFE) == {"research": pytest.approx(full["research"])}
    assert past.at(T0 + 2 * HALF_LIFE) == {"research": pytest.approx(full["research"] / 2)}


def test_a_new_leader_reads_it_from_the_queues() -> None:
    past = QueueUsageHistory(half_life=HALF_LIFE)
    past.restore(
        {
            "research": {"shareSeconds": 400, "shareSecondsAt": timestamp(T0 - HALF_LIFE)},
            "ahead": {"shareSeconds": 400, "shareSecondsAt": timestamp(T0 + 60)},
            "fresh": {},
            "odd": {"shareSeconds": "many", "shareSecondsAt": "once"},
        },
        now=T0,
    )
    assert past.at(T0) == {"research": pytest.approx(200.0), "ahead": pytest.approx(400.0)}


def test_a_status_is_refreshed_rarely_by_itself_and_with_whatever_else_is_written() -> None:
    past = QueueUsageHistory(half_life=HALF_LIFE)
    past.restore({"q": {"shareSeconds": 400, "shareSecondsAt": timestamp(T0)}}, now=T0)
    before = {"shareSeconds": 400, "shareSecondsAt": timestamp(T0), "gpus": "0/4"}
    same = {"shareSeconds": 400, "shareSecondsAt": timestamp(T0)}
    soon, late = T0 + WRITE_SECONDS - 1, T0 + WRITE_SECONDS
    assert past.status_fields("q", before=before, changed=False, now=soon) == same
    assert past.status_fields("q", before=before, changed=True, now=soon) == {
        "shareSeconds": 264,
        "shareSecondsAt": timestamp(soon),
    }
    assert past.status_fields("q", before=before, changed=False, now=late)["shareSeconds"] == 264


def test_a_queue_that_never_held_anything_says_nothing() -> None:
    past = QueueUsageHistory(half_life=HALF_LIFE)
    past.observe(empty(), now=T0)
    assert past.status_fields("q", before={}, changed=True, now=T0 + WRITE_SECONDS) == {}
    gone = {"shareSeconds": 1, "shareSecondsAt": timestamp(T0 - WRITE_SECONDS)}
    assert past.status_fields("q", before=gone, changed=False, now=T0) == {
        "shareSeconds": 0,
        "shareSecondsAt": timestamp(T0),
    }
