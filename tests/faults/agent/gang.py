"""A gang of real agents under a stand-in for the operator.

    async def test_...(gang: Gang) -> None:          # fixture of tests/faults/agent/conftest.py
        await gang.start(3, ranks=2, variables=gang.training(steps=60))
        await gang.push()                            # generation 1, to the leader
        pids = await gang.pids()                     # global rank -> process id
        await gang.reached(20)                       # step 20 of any rank's progress
        os.kill(pids[3], signal.SIGKILL)
        incident = await gang.incident()             # the next closed one, as the leader logs it
        await gang.replace(1)                        # kill pod 1, new pod, generation 2
        assert await gang.ended() == [0, 0, 0]       # exit codes by index
        gang.losses(), gang.weights()                # per step; digest of the last checkpoint

Each agent has a loopback address and a node of its own. Agents that were replaced stay in
`gang.former`. Nothing here sleeps or polls: every wait is for a line that an agent prints.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from drumline_contract import AgentStatus, GenerationRecord, Member, Notice, host_name, sign
from drumline_contract.config import merge
from drumline_trainer.metrics.losses import LOSSES_FILE, read_losses
from tests.faults.agent.agents import JOB_UID, TOKEN, Agent, Band
from tests.gloo.stored import whole_tensors

SMALL: dict[str, Any] = {
    "model": {"layers": 1, "hidden_size": 16, "ffn_size": 32, "heads": 2, "kv_heads": 1},
    "data": {"sequence_length": 16},
    "global_batch_size": 12,
    "checkpoint": {"every_steps": 1000},
    "log_every_steps": 5,
    "heartbeat_seconds": 0.05,
}
"""Steps of a few milliseconds; 12 sequences split over 1, 2, 3, 4 and 6 ranks."""


@dataclass
class Gang:
    """The agents of one job by index, and the membership they were last told."""

    band: Band
    agents: dict[int, Agent] = field(default_factory=dict)
    former: list[Agent] = field(default_factory=list)
    generation: int = 1
    ranks: int = 1
    variables: dict[str, str] = field(default_factory=dict)
    births: dict[int, int] = field(default_factory=dict)
    record_fields: dict[str, Any] = field(default_factory=dict)
    """Further fields of the records: restore_step, restarts_left, hang_timeout_seconds..."""

    @property
    def folder(self) -> Path:
        """The checkpoint folder that `training` names."""
        return self.band.folder / "checkpoints"

    @property
    def leader(self) -> Agent:
        """The agent of the lowest index."""
        return self.agents[min(self.agents)]

    def training(self, *, steps: int, **changes: Any) -> dict[str, str]:
        """Variables of a small real training with checkpoints; `changes` of its configuration."""
        self.folder.mkdir(exist_ok=True)
        config = merge(merge(SMALL, {"steps": steps}), changes)
        return {
            "DRUMLINE_CONFIG": json.dumps(config),
            "DRUMLINE_CHECKPOINT_FOLDER": str(self.folder),
        }

    async def start(
        self, count: int, *, ranks: int = 1, variables: dict[str, str] | None = None
    ) -> None:
        """Start agents 0..count-1 and wait until all are ready."""
        self.ranks, self.variables = ranks, variables or {}
        started = await self.band.start_ready(count, variables=self.variables)
        self.agents = dict(enumerate(started))
        self.births = dict.fromkeys(self.agents, 1)

    def record(self) -> GenerationRecord:
        """The record of the present agents."""
        members = tuple(
            Member(
                index=index,
                pod_uid=agent.pod_uid,
                address=agent.address,
                host=host_name("job", index),
                ranks=self.ranks,
                node=f"node-{agent.address}",
            )
            for index, agent in sorted(self.agents.items())
        )
        record = GenerationRecord(
            job_uid=JOB_UID, generation=self.generation, epoch=1, members=members
        )
        return replace(record, **self.record_fields)

    async def push(self) -> None:
        """Push the record to the leader, as the operator does."""
        status, answer = await self.leader.push(self.record())
        assert status == 200, answer

    async def renew(self, indices: Iterable[int]) -> None:
        """Replace these pods by new ones (the old ones are killed) without telling anyone yet."""
        self.generation += 1
        for index in indices:
            old = self.agents.pop(index)
            self.former.append(old)
            await old.kill()
            await self.admit(index)

    async def admit(self, index: int) -> Agent:
        """Start a pod for `index` in the present generation and wait until it is ready."""
        agent = await self.band.start(index, variables=self.variables, generation=self.generation)
        await agent.event("agent_ready")
        self.agents[index] = agent
        self.births[index] = self.generation
        return agent

    async def replace(self, *indices: int) -> None:
        """What the operator does about lost members: new pods, then the next generation."""
        await self.renew(indices)
        await self.push()

    async def pids(self) -> dict[int, int]:
        """Process ids by global rank, once the next attempt of every agent runs."""
        started = [await agent.event("ranks_started") for agent in self.agents.values()]
        return {int(rank): pid for event in started for rank, pid in event["pids"].items()}

    async def reached(self, step: int) -> None:
        """Wait for the progress line of this step (one every `log_every_steps`)."""
        await self.leader.until_line(f"step {step}/")

    async def incident(self) -> dict[str, Any]:
        """The next closed incident."""
        return (await self.leader.event("incident"))["incident"]

    async def notice(self, name: str, *, leave: bool = False, withdraw: bool = False) -> None:
        """Send a notice to the leader, as the operator does."""
        body = Notice(
            job_uid=JOB_UID, id=name, deadline=2e9, leave=leave, withdraw=withdraw
        ).encode()
        status, answer, _ = await self.leader.call(
            "PUT", "/v1/notice", body=body, signature=sign(TOKEN, b"notice", body)
        )
        assert status == 200, answer

    async def order(self, kind: str, **fields: Any) -> int:
        """Give the leader's pod an order, as a leader does; the status of its answer."""
        body = json.dumps({"kind": kind, **fields}).encode()
        signature = sign(TOKEN, b"round", body)
        return (await self.leader.call("PUT", "/v1/rounds", body=body, signature=signature))[0]

    async def status(self, *, since: int | None = None, wait: float = 30) -> AgentStatus:
        """The leader's status; with `since`, as soon as it is another version."""
        return await self.leader.status(since=since, wait=wait)

    async def ended(self) -> list[int]:
        """Exit codes of the present agents by index, once all have ended."""
        return await asyncio.gather(*(agent.ended() for _, agent in sorted(self.agents.items())))

    def losses(self) -> dict[int, float | None]:
        """Loss of every step."""
        return read_losses(self.folder / LOSSES_FILE)

    def weights(self) -> str:
        """Digest over the names and bits of the last checkpoint's tensors."""
        [*_, newest] = sorted(self.folder.glob("step-????????"))
        digest = hashlib.sha256()
        for name, tensor in sorted(whole_tensors(newest).items()):
            digest.update(name.encode())
            digest.update(tensor.tobytes())
        return digest.hexdigest()
