"""Waits of a gang whose storage fails, without waiting."""

from __future__ import annotations

from drumline_agent.leader.storage_outage import StorageOutage
from drumline_agent.protocol.leader_orders import CommittedCheckpoint
from drumline_agent.state.rank_status import RankStatusStore
from drumline_contract import AgentStatus, ExitCode
from tests.unit.agent.fault_examples import fault
from tests.unit.agent.settings_builder import agent_settings

FULL = fault(exit_code=ExitCode.STORAGE, cause="rank 0: StorageError: No space left on device")


class Story:
    """An outage whose waits are noted."""

    def __init__(self) -> None:
        self.status = RankStatusStore(agent_settings())
        self.waits: list[float] = []
        self.outage = StorageOutage(self.status, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


async def test_each_wait_is_longer_up_to_a_minute() -> None:
    story = Story()
    for _ in range(6):
        await story.outage.wait(FULL)
    assert story.waits == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]


async def test_the_sentence_is_published_until_training_goes_on() -> None:
    story = Story()
    before = story.status.version
    await story.outage.wait(FULL)
    assert story.status.status.waiting_for == FULL.cause
    assert AgentStatus.parse(story.status.status.encode()) == story.status.status
    assert story.status.version == before + 1
    story.outage.training_resumed()
    story.outage.training_resumed()
    assert (story.status.status.waiting_for, story.status.version) == ("", before + 2)


async def test_an_outage_ends_with_the_next_checkpoint_not_with_the_next_step() -> None:
    story = Story()
    assert not story.outage.ongoing
    await story.outage.wait(FULL)
    story.outage.training_resumed()
    assert story.outage.ongoing
    await story.outage.wait(FULL)
    story.status.note_checkpoint(CommittedCheckpoint(step=7, digest="d"))
    assert not story.outage.ongoing
    await story.outage.wait(FULL)
    assert story.waits == [5.0, 10.0, 5.0]


def test_it_is_the_root_cause_that_counts() -> None:
    outage = Story().outage
    boom = fault(at=FULL.at - 1.0)
    assert outage.caused([FULL])
    assert not outage.caused([FULL, boom])
