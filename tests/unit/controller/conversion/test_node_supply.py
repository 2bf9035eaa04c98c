"""What was learned of a pool's autoscaler is read as it was written."""

from __future__ import annotations

import pytest

from drumline.controller.pools.node_supply import NodeSupply, supply_fields, supply_of
from drumline.lifecycle.model.timestamps import timestamp
from drumline_api.gpupool import GpuPoolSpec, GpuPoolStatus
from drumline_scheduler.autoscaling.node_demands import NodeBackoff
from drumline_scheduler.forecast.node_times import NodeTimes
from tests.unit.controller.conversion.test_autoscaling import a_spec

T0 = 1_700_000_000.0


def backoff(zone: str) -> NodeBackoff:
    return NodeBackoff(
        pool="h100", zone=zone, pool_nodes=5, until=T0, timeouts=2, why="no capacity"
    )


def test_a_new_leader_knows_what_the_one_before_has_learned() -> None:
    learned = NodeSupply(
        times=NodeTimes().with_time("h100", 60.2).with_time("h100", 90.0),
        backoffs=(backoff("a"), backoff("b")),
    )
    status = supply_fields("h100", a_spec(zones=["a", "b"]), learned)
    GpuPoolStatus.model_validate(status)
    known = supply_of({"h100": status, "other": {}})
    assert known.times.seconds == {"h100": (61.0, 90.0)}
    assert known.backoffs == learned.backoffs


def test_zones_that_the_pool_does_not_name_any_more_are_forgotten() -> None:
    learned = NodeSupply(backoffs=(backoff("a"), backoff("gone")))
    status = supply_fields("h100", a_spec(zones=["a"]), learned)
    assert [pause["zone"] for pause in status["autoscaling"]["pauses"]] == ["a"]


@pytest.mark.parametrize(
    "spec", [None, GpuPoolSpec.model_validate({"nodeSelector": {"a": "b"}}), a_spec()]
)
def test_a_pool_of_which_nothing_is_known_says_nothing(spec: GpuPoolSpec | None) -> None:
    assert supply_fields("h100", spec, NodeSupply(backoffs=(backoff("a"),))) == {}


def test_a_status_that_cannot_be_read_counts_as_none() -> None:
    pause = {"zone": "", "poolNodes": 2, "until": timestamp(T0), "timeouts": 1}
    broken = [
        {"autoscaling": {"startSeconds": "soon"}},
        {"autoscaling": {"pauses": [{**pause, "until": "later"}]}},
        {"autoscaling": 7},
    ]
    for status in broken:
        assert supply_of({"h100": status}) == NodeSupply()
