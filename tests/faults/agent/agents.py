"""Real agents as processes, each on a loopback address of its own, and a client that is not ours.

Every wait is for something the agent says or for the end of its process; the timeouts only turn a
hang into a failure.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drumline_contract import (
    SIGNATURE_HEADER,
    AgentStatus,
    Env,
    FinalReport,
    GenerationRecord,
    Member,
    host_name,
    sign,
)
from tests.faults.agent.gate import Gate
from tests.patience import HANG_SECONDS

ROOT = Path(__file__).parents[3]
TOKEN = b"0123456789abcdef0123456789abcdef"
JOB_UID = "11111111-2222-3333-4444-555555555555"
IN_COMMAND = (Env.NAMESPACE, Env.JOB, Env.JOB_UID, Env.INDEX, Env.GENERATION)
"""Variables that the command of `join` sets."""
PORT = 29400


@dataclass
class Agent:
    """One agent process and everything it has printed."""

    index: int
    address: str
    folder: Path
    process: asyncio.subprocess.Process
    pod_uid: str
    lines: list[str] = field(default_factory=list)
    _read: int = 0
    """Lines that `until_line` has passed."""
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    _reader: asyncio.Task[None] | None = None

    def listen(self) -> None:
        """Read what it prints, from now on and whether anyone asks or not."""
        self._reader = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            async with self._news:
                self.lines.append(line.decode().rstrip("\n"))
                self._news.notify_all()
        async with self._news:
            self._reader = None
            self._news.notify_all()

    async def until_line(self, wanted: str) -> str:
        """The next line, after those passed before, that contains `wanted`."""
        try:
            async with asyncio.timeout(HANG_SECONDS):
                return await self._until_line(wanted)
        except TimeoutError:
            raise AssertionError(f"agent {self.index}: no {wanted!r} in:\n{self.text}") from None

    async def _until_line(self, wanted: str) -> str:
        async with self._news:
            while True:
                while self._read < len(self.lines):
                    self._read += 1
                    if wanted in self.lines[self._read - 1]:
                        return self.lines[self._read - 1]
                if self._reader is None:
                    raise AssertionError(
                        f"agent {self.index} ended without {wanted!r}:\n{self.text}"
                    )
                await self._news.wait()

    async def event(self, name: str) -> dict[str, Any]:
        """The next event of this name, after the lines passed before."""
        return json.loads(await self.until_line(f'"event":"{name}"'))

    async def seen(self, name: str) -> dict[str, Any]:
        """The first event of this name of all that it prints, lines passed before among them."""
        async with asyncio.timeout(HANG_SECONDS), self._news:
            await self._news.wait_for(lambda: self.events(name))
        return self.events(name)[0]

    async def ended(self) -> int:
        """Read to the end; the exit code."""
        async with asyncio.timeout(HANG_SECONDS):
            if self._reader is not None:
                await asyncio.shield(self._reader)
            return await self.process.wait()

    async def kill(self) -> None:
        """End the process as a node's failure does."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        if self._reader is not None:
            await self._reader
        await self.process.wait()

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def events(self, name: str) -> list[dict[str, Any]]:
        """All events of this name printed so far."""
        return [json.loads(line) for line in self.lines if f'"event":"{name}"' in line]

    def printed(self, rank: int) -> list[str]:
        """What a rank printed so far."""
        prefix = f"[rank {rank}] "
        return [line.removeprefix(prefix) for line in self.lines if line.startswith(prefix)]

    @property
    def report(self) -> FinalReport:
        return FinalReport.parse((self.folder / "termination-log").read_bytes())

    async def call(
        self, method: str, path: str, *, body: bytes = b"", signature: str = ""
    ) -> tuple[int, bytes, dict[str, str]]:
        """One request through the standard library's client: status, body, headers."""
        return await asyncio.to_thread(self._call, method, path, body, signature)

    def _call(
        self, method: str, path: str, body: bytes, signature: str
    ) -> tuple[int, bytes, dict[str, str]]:
        connection = http.client.HTTPConnection(self.address, PORT, timeout=HANG_SECONDS)
        try:
            headers = {SIGNATURE_HEADER: signature} if signature else {}
            connection.request(method, path, body=body or None, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.getheaders())
        finally:
            connection.close()

    async def push(self, record: GenerationRecord, *, token: bytes = TOKEN) -> tuple[int, bytes]:
        """Push a record as the operator does."""
        body = record.encode()
        status, answer, _ = await self.call(
            "PUT", "/v1/record", body=body, signature=sign(token, b"record", body)
        )
        return status, answer

    async def status(self, *, since: int | None = None, wait: float = 30) -> AgentStatus:
        """Signed read of the status; with `since` as soon as it is of another version."""
        query = "" if since is None else f"?since={since}&wait={wait}"
        code, body, _ = await self.call(
            "GET", f"/v1/status{query}", signature=sign(TOKEN, b"get", b"/v1/status")
        )
        assert code == 200
        return AgentStatus.parse(body)


@dataclass
class Band:
    """Makes the agents of one job, and stops them all at the end."""

    folder: Path
    prefix: str = field(
        default_factory=lambda: "127.{}.{}".format(*random.sample(range(1, 255), 2))
    )
    agents: list[Agent] = field(default_factory=list)
    gates: list[Gate] = field(default_factory=list)

    def gate(self) -> Gate:
        """A closed gate."""
        self.gates.append(Gate(self.folder / f"gate-{len(self.gates)}"))
        return self.gates[-1]

    def address(self, index: int, *, generation: int = 1) -> str:
        """Of the pod of this index created for this generation."""
        return f"{self.prefix}.{16 * (generation - 1) + index + 1}"

    async def start(
        self,
        index: int,
        *,
        program: str = "run",
        arguments: Sequence[str] = (),
        variables: dict[str, str] | None = None,
        generation: int = 1,
    ) -> Agent:
        """Start the agent of a pod created for `generation`; `variables` join its environment."""
        pod_uid = f"pod-{index}" + (f"-g{generation}" if generation > 1 else "")
        address = self.address(index, generation=generation)
        environment = {
            Env.POD_UID: pod_uid,
            Env.POD_IP: address,
            Env.GENERATION: str(generation),
            "DRUMLINE_AGENT_ADDRESS": address,
        }
        folder = self.folder / f"agent-{index}-{len(self.agents)}"
        folder.mkdir()
        (folder / "token").write_bytes(TOKEN)
        environment = {
            **self._environment(index, folder=folder),
            **environment,
            **(variables or {}),
        }
        if program == "join":  # its container has them in the command
            arguments = [f"{name}={environment.pop(name)}" for name in IN_COMMAND]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "drumline_agent",
            program,
            *arguments,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=1 << 20,
        )
        agent = Agent(index=index, address=address, folder=folder, process=process, pod_uid=pod_uid)
        agent.listen()
        self.agents.append(agent)
        return agent

    async def start_ready(
        self, count: int, *, program: str = "run", variables: dict[str, str] | None = None
    ) -> list[Agent]:
        """Start agents 0..count-1 and wait until all are ready."""
        agents = [
            await self.start(index, program=program, variables=variables) for index in range(count)
        ]
        for agent in agents:
            await agent.event("agent_started" if program == "join" else "agent_ready")
        return agents

    def record(self, *, agents: int, ranks: int, generation: int = 1) -> GenerationRecord:
        """The record that names the first `agents` agents with `ranks` ranks each."""
        return GenerationRecord(
            job_uid=JOB_UID,
            generation=generation,
            epoch=1,
            members=tuple(
                Member(
                    index=index,
                    pod_uid=f"pod-{index}",
                    address=self.address(index),
                    host=host_name("job", index),
                    ranks=ranks,
                )
                for index in range(agents)
            ),
        )

    async def stop(self) -> None:
        for gate in self.gates:
            gate.close()
        for agent in self.agents:
            await agent.kill()
            # shown with a test that fails: what killed ranks, and when, stands nowhere else
            print(f"agent {agent.index}, {agent.address}:\n{agent.text}")

    def _environment(self, index: int, *, folder: Path) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join([str(ROOT / "trainer"), str(ROOT)]),
            Env.NAMESPACE: "default",
            Env.JOB: "job",
            Env.JOB_UID: JOB_UID,
            Env.INDEX: str(index),
            "DRUMLINE_AGENT_PORT": str(PORT),
            "DRUMLINE_TOKEN_FILE": str(folder / "token"),
            "DRUMLINE_GANG_FOLDER": str(folder / "gang"),
            "DRUMLINE_SNAPSHOT_FOLDER": str(folder / "snapshots"),
            "DRUMLINE_TERMINATION_LOG": str(folder / "termination-log"),
            "DRUMLINE_PEER_LOST_SECONDS": "5",
            # parking took 6 s where ten processes wanted each core
            "DRUMLINE_QUIESCE_SECONDS": "20",
        }
