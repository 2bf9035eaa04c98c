"""The bundled trainer under real agents: Gloo ranks that train to the end."""

from __future__ import annotations

import json

import pytest

from tests.faults.agent.agents import Band

pytestmark = [pytest.mark.gloo, pytest.mark.extended]


def training(steps: int) -> dict[str, str]:
    config = {
        "steps": steps,
        "global_batch_size": 8,
        "log_every_steps": 5,
        "heartbeat_seconds": 0.1,
        "data": {"sequence_length": 32},
    }
    return {"DRUMLINE_CONFIG": json.dumps(config)}


async def test_two_pods_of_two_ranks_train_to_the_end(band: Band) -> None:
    agents = await band.start_ready(2, variables=training(20))
    assert all(agent.events("agent_ready")[0]["zygote_threads"] == 1 for agent in agents)
    await agents[0].push(band.record(agents=2, ranks=2))

    assert [await agent.ended() for agent in agents] == [0, 0]
    first, second = (agent.report for agent in agents)
    assert (first.progress.step, second.progress.step) == (20, 20)
    assert first.error == second.error == ""
    assert first.progress.loss is not None
    assert first.progress.loss == second.progress.loss
    assert first.progress.loss < 5.0, "log(256) = 5.5 is where a byte model starts"
    assert any("step 20/20" in line for line in agents[0].printed(0))
