"""Experience with autoscalers in a GpuPool's status, where it survives changes of leaders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from drumline.lifecycle.model.timestamps import parse_timestamp, timestamp
from drumline_api.autoscaling import NodeSupplyStatus, ZonePauseStatus
from drumline_api.gpupool import GpuPoolSpec
from drumline_api.load import ApiError, parse
from drumline_scheduler.autoscaling.node_demands import NodeBackoff
from drumline_scheduler.forecast.node_times import NodeTimes

SUPPLY_FIELD = "autoscaling"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSupply:
    """Times that nodes took to come, and zones in which none came."""

    times: NodeTimes = field(default_factory=NodeTimes)
    backoffs: tuple[NodeBackoff, ...] = ()


def supply_of(statuses: Mapping[str, Mapping[str, Any]]) -> NodeSupply:
    """Return the experience in the statuses of pools, by name. Unreadable ones are skipped."""
    seconds: dict[str, tuple[float, ...]] = {}
    backoffs: list[NodeBackoff] = []
    for pool, status in statuses.items():
        try:
            known = parse(NodeSupplyStatus, status.get(SUPPLY_FIELD, {}), at=SUPPLY_FIELD)
            paused = [_backoff(pool, pause) for pause in known.pauses or ()]
        except (ApiError, ValueError):
            continue
        backoffs += paused
        if known.start_seconds:
            seconds[pool] = tuple(map(float, known.start_seconds))
    return NodeSupply(times=NodeTimes(seconds=seconds), backoffs=tuple(backoffs))


def supply_fields(pool: str, spec: GpuPoolSpec | None, supply: NodeSupply) -> dict[str, Any]:
    """Return the field of a pool's status, or none without experience or autoscaling.

    Args:
        pool: name of the pool.
        spec: its spec. Pauses of zones that it does not name are left out.
        supply: experience with all pools.
    """
    if spec is None or spec.autoscaling is None:
        return {}
    zones = spec.autoscaling.zones or [""]
    known = NodeSupplyStatus(
        start_seconds=[round(each) for each in supply.times.seconds.get(pool, ())] or None,
        pauses=[*_pauses(pool, zones, supply.backoffs)] or None,
    )
    fields = known.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {SUPPLY_FIELD: fields} if fields else {}


def _pauses(
    pool: str, zones: Iterable[str], backoffs: Iterable[NodeBackoff]
) -> Iterable[ZonePauseStatus]:
    return (
        ZonePauseStatus(
            zone=backoff.zone,
            pool_nodes=backoff.pool_nodes,
            until=timestamp(backoff.until),
            timeouts=backoff.timeouts,
            message=backoff.why or None,
        )
        for backoff in backoffs
        if backoff.pool == pool and backoff.zone in zones
    )


def _backoff(pool: str, pause: ZonePauseStatus) -> NodeBackoff:
    return NodeBackoff(
        pool=pool,
        zone=pause.zone,
        pool_nodes=pause.pool_nodes,
        until=parse_timestamp(pause.until),
        timeouts=pause.timeouts,
        why=pause.message or "",
    )
