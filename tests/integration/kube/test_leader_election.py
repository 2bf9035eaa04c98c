"""At no moment may two processes write, whatever their clocks, connections and names do."""

from __future__ import annotations

import asyncio
import json

import pytest

from drumline.kube import errors, reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.kinds import CONFIG_MAPS, LEASES
from drumline.kube.leader_election import LeaderElector, LeaseTiming
from tests.integration.kube.conftest import Gate


class Clock:
    """A monotonic clock that stands still until told otherwise."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _elector(
    client: KubeClient,
    namespace: str,
    identity: str,
    clock: Clock,
) -> LeaderElector:
    return LeaderElector(
        client,
        namespace=namespace,
        name="operator",
        identity=identity,
        clock=clock,
    )


async def _rival(client: KubeClient, namespace: str, clock: Clock) -> LeaderElector:
    """Another candidate that has just looked at the lease, in vain."""
    rival = _elector(client, namespace, "b", clock)
    assert not await rival.try_acquire()
    return rival


async def test_the_first_leads_and_the_second_waits(
    client: KubeClient, namespace: str, clock: Clock
) -> None:
    first = _elector(client, namespace, "a", clock)
    assert await first.acquire() == 1
    rival = await _rival(client, namespace, clock)
    first.check()
    assert (rival.is_leader, rival.epoch) == (False, 0)
    with pytest.raises(errors.NotLeader):
        rival.check()


async def test_a_leader_that_stopped_renewing_is_silent_long_before_the_next_leads(
    client: KubeClient, namespace: str, clock: Clock
) -> None:
    first = _elector(client, namespace, "a", clock)
    await first.acquire()
    rival = await _rival(client, namespace, clock)
    both: list[tuple[float, bool, bool]] = []
    for _ in range(34):
        clock.now += 0.5
        await rival.try_acquire()
        both.append((clock.now - 1000.0, first.is_leader, rival.is_leader))
    assert next(at for at, _, second in both if second) == 15.0
    assert [at for at, leading, _ in both if leading][-1] == 10.0  # 15 less a write's deadline
    assert rival.epoch == 2


async def test_a_renewed_lease_is_never_taken(
    client: KubeClient, namespace: str, clock: Clock
) -> None:
    first = _elector(client, namespace, "a", clock)
    await first.acquire()
    rival = await _rival(client, namespace, clock)
    for _ in range(8):
        clock.now += 5
        assert await first.try_renew()
        assert not await rival.try_acquire()
    assert first.is_leader
    assert first.epoch == 1


async def test_the_deposed_learns_of_it_and_its_writes_stay_home(
    client: KubeClient, namespace: str, clock: Clock
) -> None:
    first = _elector(client, namespace, "a", clock)
    await first.acquire()
    rival = await _rival(client, namespace, clock)
    clock.now += 15
    assert await rival.try_acquire()
    with pytest.raises(errors.NotLeader, match="held by b"):
        await first.hold()
    assert (first.is_leader, first.epoch) == (False, 0)
    fenced = KubeClient(client._credentials, fence=first.check)
    async with fenced:
        with pytest.raises(errors.NotLeader):
            await writes.create(
                fenced, CONFIG_MAPS, namespace=namespace, body={"metadata": {"name": "late"}}
            )
    with pytest.raises(errors.NotFound):
        await reads.get(client, CONFIG_MAPS, namespace=namespace, name="late")


async def test_a_late_renewal_without_another_holder_continues_the_term(
    client: KubeClient, namespace: str, clock: Clock
) -> None:
    first = _elector(client, namespace, "a", clock)
    await first.acquire()
    clock.now += 60
    assert not first.is_leader
    assert await first.try_renew()
    assert first.is_leader
    assert first.epoch == 1


async def test_a_namesake_waits_as_anyone_and_begins_a_term_of_its_own(
    client: KubeClient, namespace: str, clock: Clock
) -> None:
    first = _elector(client, namespace, "same", clock)
    await first.acquire()
    namesake = _elector(client, namespace, "same", clock)
    assert not await namesake.try_acquire()
    clock.now += 15
    assert await namesake.try_acquire()
    assert namesake.epoch == 2
    with pytest.raises(errors.NotLeader):
        await first.try_renew()


async def test_of_two_that_take_it_at_once_a_single_process_gets_it(
    client: KubeClient, namespace: str, clock: Clock
) -> None:
    electors = [_elector(client, namespace, f"e{i}", clock) for i in range(8)]
    outcomes = await asyncio.gather(*(elector.try_acquire() for elector in electors))
    assert outcomes.count(True) == 1
    assert [elector.is_leader for elector in electors] == outcomes


async def test_a_released_lease_is_free_at_once(
    client: KubeClient, namespace: str, clock: Clock
) -> None:
    first = _elector(client, namespace, "a", clock)
    await first.acquire()
    await first.release()
    assert not first.is_leader
    rival = _elector(client, namespace, "b", clock)
    assert await rival.acquire() == 2
    assert await first.try_acquire() is False


async def test_each_term_of_a_process_has_its_own_epoch(
    client: KubeClient, namespace: str, clock: Clock
) -> None:
    elector = _elector(client, namespace, "a", clock)
    epochs = []
    for _ in range(3):
        epochs.append(await elector.acquire())
        await elector.release()
    assert epochs == [1, 2, 3]


async def test_a_deleted_lease_is_written_again_by_its_holder_not_taken_by_the_waiting(
    client: KubeClient, namespace: str, clock: Clock
) -> None:
    first = _elector(client, namespace, "a", clock)
    await first.acquire()
    rival = await _rival(client, namespace, clock)
    await writes.delete(client, LEASES, namespace=namespace, name="operator", uid=None)
    assert not await rival.try_acquire()
    assert await first.try_renew()
    clock.now += 10
    assert not await rival.try_acquire()
    assert (first.is_leader, first.epoch) == (True, 1)


async def test_the_waiting_take_a_deleted_lease_after_its_duration(
    client: KubeClient, namespace: str, clock: Clock
) -> None:
    first = _elector(client, namespace, "a", clock)
    await first.acquire()
    rival = await _rival(client, namespace, clock)
    await writes.delete(client, LEASES, namespace=namespace, name="operator", uid=None)
    assert not await rival.try_acquire()
    clock.now += 15
    assert await rival.try_acquire()
    with pytest.raises(errors.NotLeader, match="held by b"):
        await first.try_renew()


async def test_epochs_grow_even_if_the_lease_was_deleted(
    client: KubeClient, namespace: str, clock: Clock
) -> None:
    heir = _elector(client, namespace, "b", clock)
    assert await heir.acquire() == 1
    assert await heir.raise_epoch(above=0) == 1
    assert await heir.raise_epoch(above=7) == heir.epoch == 8  # of a job that it read since
    assert await heir.try_renew()
    rival = await _rival(client, namespace, clock)
    await heir.release()
    assert await rival.acquire() == 9


async def test_a_term_that_is_over_has_no_epoch_to_raise(
    client: KubeClient, namespace: str, clock: Clock
) -> None:
    former = _elector(client, namespace, "a", clock)
    await former.acquire()
    await former.release()
    with pytest.raises(errors.NotLeader):
        await former.raise_epoch(above=7)


async def test_a_renewal_whose_answer_was_lost_does_not_end_the_term(
    client: KubeClient, namespace: str, clock: Clock
) -> None:
    first = _elector(client, namespace, "a", clock)
    await first.acquire()
    stored = json.loads(await reads.get(client, LEASES, namespace=namespace, name="operator"))
    stored["spec"]["renewTime"] = "2026-11-01T00:00:00.000000Z"
    await writes.replace(client, LEASES, namespace=namespace, name="operator", body=stored)
    clock.now += 5
    assert not await first.try_renew()
    assert await first.try_renew()
    clock.now += 10
    assert first.is_leader


async def test_an_unreachable_server_closes_the_fence_but_does_not_end_the_term(
    gated_client: KubeClient, gate: Gate, namespace: str, clock: Clock
) -> None:
    first = _elector(gated_client, namespace, "a", clock)
    await first.acquire()
    await gate.shut()
    clock.now += 10.5
    assert not await first.try_renew()
    assert not first.is_leader
    await gate.open()
    assert await first.try_renew()
    assert (first.is_leader, first.epoch) == (True, 1)


def test_a_schedule_that_a_slow_renewal_breaks_is_refused() -> None:
    with pytest.raises(ValueError, match="must last 18 s"):
        LeaseTiming(duration_seconds=15, renew_seconds=10)
