from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from drumline_agent.api.departures import Departures
from drumline_agent.api.routes import Api
from drumline_agent.api.service import Service
from drumline_agent.member.member import MemberAgent
from drumline_agent.processes.local_ranks import LocalRanks
from drumline_agent.processes.zygote_client import ZygoteClient
from drumline_agent.protocol.inventory import Inventory
from drumline_agent.protocol.leader_orders import Go, Prepare, SnapshotSource
from drumline_agent.protocol.member_reports import Fault
from drumline_agent.protocol.snapshot_info import SnapshotInfo
from drumline_agent.snapshots.catalog import SnapshotCatalog
from drumline_agent.state.incident_log import IncidentLog
from drumline_agent.state.notices import SaveNotices
from drumline_agent.state.rank_status import RankStatusStore
from drumline_agent.state.record_store import RecordStore
from drumline_contract import FaultClass, GenerationRecord, Member, sign
from tests.unit.agent.settings_builder import agent_settings

SETTINGS = agent_settings()
RECORD = GenerationRecord(
    job_uid=SETTINGS.job_uid,
    generation=1,
    epoch=1,
    members=(
        Member(index=0, pod_uid=SETTINGS.pod_uid, address="127.0.0.1", host="h", ranks=1, node="a"),
    ),
)
SHARD = SnapshotInfo(rank=0, step=9, generation=1, attempt=0, world_size=1, bytes=3, sha256="d")


def member_of(snapshots: SnapshotCatalog) -> tuple[MemberAgent, RecordStore]:
    status, settings = RankStatusStore(SETTINGS), SETTINGS
    records = RecordStore(
        token=settings.token,
        job_uid=settings.job_uid,
        pod_uid=settings.pod_uid,
        index=settings.index,
        lowest_generation=1,
    )
    departures = Departures()
    service = Service(
        settings=settings,
        status=status,
        records=records,
        departures=departures,
        notices=SaveNotices(status),
        api=Api(token=settings.token, records=records, status=status, departures=departures),
        stop=asyncio.Event(),
    )
    member = MemberAgent(
        service=service,
        make_ranks=lambda listener: LocalRanks(
            settings=settings, zygote=cast("ZygoteClient", None), status=status, listener=listener
        ),
        snapshots=snapshots,
        incidents=IncidentLog(status),
    )
    return member, records


def offer(records: RecordStore, record: GenerationRecord) -> None:
    body = record.encode()
    records.offer(body, signature=sign(SETTINGS.token, b"record", body))


async def test_no_room_for_a_snapshot_is_a_fault_of_the_attempt(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    member, records = member_of(SnapshotCatalog(in_the_way))
    faults: list[Fault] = []
    member.report = faults.append
    offer(records, RECORD)

    await member.obey(Prepare(generation=1, attempt=0))
    go = Go(
        generation=1,
        attempt=0,
        store_port=1,
        restore_step=9,
        fetch=(SnapshotSource(holder=0, shard=SHARD),),
        floor=None,
        incidents=[],
    )
    for _ in range(2):
        await member.obey(go)
    [fault] = faults
    assert (fault.membership, fault.fault_class) == ((1, 0), "Infrastructure")
    assert "file" in fault.cause


@pytest.mark.parametrize(
    ("consequence", "failed_at", "expected"), [(True, 92.5, 90.0), (False, 92.5, 92.5)]
)
async def test_a_pod_lost_before_training_was_lost_at_its_last_sign_of_life(
    tmp_path: Path, *, consequence: bool, failed_at: float, expected: float
) -> None:
    member, records = member_of(SnapshotCatalog(tmp_path))
    peer = replace(RECORD.members[0], index=1, pod_uid="peer")
    before = replace(RECORD, members=(*RECORD.members, peer))
    offer(records, before)
    member.note_new_record()
    await member.obey(Prepare(generation=1, attempt=0))
    member.last_heard = lambda: {1: 90.0}
    member.on_fault(
        Fault(
            generation=1,
            attempt=0,
            index=0,
            rank=0,
            fault_class=FaultClass.INFRASTRUCTURE,
            cause="Connection closed by peer",
            at=failed_at,
            detected_at=failed_at,
            exit_code=1,
            consequence=consequence,
        )
    )

    fresh = replace(peer, pod_uid="fresh")
    offer(records, replace(before, generation=2, members=(*RECORD.members, fresh)))
    member.note_new_record()

    inventory = await member.obey(Prepare(generation=2, attempt=0))
    assert isinstance(inventory, Inventory)
    assert inventory.broken is not None
    assert inventory.broken.at == expected
