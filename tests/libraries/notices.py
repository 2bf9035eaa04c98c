"""A run whose agent has agreed beforehand on the step to save at."""

from __future__ import annotations

from drumline_client.environment import RankPlace
from drumline_client.run import Run
from drumline_client.wire import ProposalAccepted, SaveAgreed, SaveProposal
from tests.played_agent import PlayedAgent


def run_that_saves(agent: PlayedAgent, *, step: int, leave: bool = True) -> Run:
    run = Run(agent.path, place=RankPlace(rank=0, local_rank=0, world_size=1))
    agent.say(SaveProposal(id="spot/1", step=step, leave=leave))
    agent.wait_for(ProposalAccepted)
    agent.say(SaveAgreed("spot/1"))
    return run
