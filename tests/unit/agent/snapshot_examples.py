"""Snapshots and a gang with memory on several nodes."""

from __future__ import annotations

from drumline_agent.protocol.snapshot_info import SnapshotInfo
from drumline_contract import GenerationRecord, Member


def snapshot(rank: int, step: int, *, world_size: int = 2) -> SnapshotInfo:
    return SnapshotInfo(
        rank=rank,
        step=step,
        generation=1,
        attempt=0,
        world_size=world_size,
        bytes=3,
        sha256="d",
    )


def gang_on(*nodes: str, ranks: int = 1) -> GenerationRecord:
    members = tuple(
        Member(
            index=i, pod_uid=f"p{i}", address=f"10.0.0.{i}", host=f"h{i}", ranks=ranks, node=node
        )
        for i, node in enumerate(nodes)
    )
    return GenerationRecord(job_uid="job", generation=1, epoch=1, members=members)
