"""A GPU that fails ends its pod alone: the others keep their processes for its successor."""

from __future__ import annotations

import pytest

from drumline_contract import ExitCode, FaultClass
from tests.faults.agent.gang import Gang
from tests.faults.agent.scripts import script

ECC = "CUDA error: uncorrectable ECC error encountered"
FAILS = [
    "beat(3)",
    f"if placement.generation == 1:\n    raise RuntimeError({ECC!r})",
    "beat(3); done(9)",
]
STAYS = ["beat(3)", "hang(until=0, generation=2)", "print(now().generation)", "done(9)"]


@pytest.mark.parametrize("index", [0, 1], ids=["the leader's pod", "another pod"])
async def test_the_pod_ends_alone_and_the_others_resume_with_its_successor(
    gang: Gang, index: int
) -> None:
    other = 1 - index
    ranks = {f"r{index}": FAILS, f"r{other}": STAYS}
    await gang.start(2, variables=script(**ranks))
    failing, staying = gang.agents[index], gang.agents[other]
    await gang.push()
    before = await gang.pids()

    assert await failing.ended() == ExitCode.DEVICE
    report = failing.report
    assert (report.failed_rank, report.fault_class) == (index, FaultClass.INFRASTRUCTURE)
    assert ECC in report.error
    if index == 1:  # no restart in place was tried
        assert ECC in (await staying.seen("fault"))["cause"]
    assert len(failing.events("ranks_started")) == 1

    await gang.replace(index)
    after = await gang.pids()
    assert after[other] == before[other]
    assert await gang.ended() == [0, 0]
    assert staying.printed(other) == ["2"]
