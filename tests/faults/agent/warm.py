"""Agents forked from one process that has imported torch: a gang stands in half a second.

The agent, its zygote and its ranks run the code of a pod. The two starts of an interpreter are all
that is left out: an agent is a fork of the warm process, and so is its zygote. Nothing of another
cell is shared but the pages of imported modules.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from typing import Any

from drumline_agent.__main__ import main as agent_program
from drumline_agent.host import prctl
from drumline_agent.processes import zygote as zygote_program
from drumline_agent.processes import zygote_client
from drumline_contract import Env
from tests.faults.agent.agents import TOKEN, Agent, Band
from tests.gloo.gang import fork_server


def unseen(_: str) -> None:
    """Nobody writes down which processes are born."""


@dataclass(kw_only=True)
class WarmProcess:
    """One agent process: what `asyncio.subprocess.Process` would be, had it been executed."""

    stdout: asyncio.StreamReader
    process: BaseProcess
    returncode: int | None = None

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    async def wait(self) -> int:
        """Wait for the end: the exit code, negative for a signal."""
        if self.returncode is None:
            ended = asyncio.Event()
            # a descriptor of its own: an event loop takes each for one reader only
            sentinel = os.dup(self.process.sentinel)
            asyncio.get_running_loop().add_reader(sentinel, ended.set)
            try:
                await ended.wait()
            finally:
                asyncio.get_running_loop().remove_reader(sentinel)
                os.close(sentinel)
            self.process.join()
            self.returncode = self.process.exitcode
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Signal it if it still runs."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class WarmStarter:
    """Starts agents; one for the whole run."""

    def __init__(
        self, *, module: str = "drumline_trainer.rank", born: Callable[[str], None] = unseen
    ) -> None:
        """Prepare.

        Args:
            module: of the ranks.
            born: called in each new process with what it is, "agent" or "zygote".
        """
        self._context = fork_server(__name__, module)
        self._born = born
        os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"

    async def warm(self) -> None:
        """Wait until the warm process has imported everything."""
        process = self._context.Process(target=_nothing)
        await asyncio.to_thread(process.start)
        await asyncio.to_thread(process.join)

    async def start(self, environment: Mapping[str, str]) -> WarmProcess:
        """Fork an agent with exactly this environment; it prints into a pipe, as in a pod."""
        read_end, write_end = os.pipe()
        arguments = (dict(environment), _Handed(write_end), self._born)
        process = self._context.Process(target=_agent, args=arguments)
        await asyncio.to_thread(process.start)
        os.close(write_end)
        stdout = asyncio.StreamReader(limit=1 << 20)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stdout), os.fdopen(read_end, "rb", buffering=0)
        )
        return WarmProcess(process=process, stdout=stdout)


class _Handed:
    """A descriptor that goes to a forked process together with the request to fork it.

    One that it had to fetch later would stay open here if it were killed before: what it prints
    would never end.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[Any]]:
        return _as_it_is, (DupFd(self._descriptor),)  # while a process starts: with its request


def _as_it_is(item: Any) -> Any:
    return item


@dataclass(kw_only=True)
class WarmBand(Band):
    """Agents that are forked, not executed."""

    starter: WarmStarter

    def address(self, index: int, *, generation: int = 1) -> str:
        """Of a pod; used again after fifteen generations."""
        return super().address(index, generation=1 + (generation - 1) % 15)

    async def start(
        self,
        index: int,
        *,
        program: str = "run",
        variables: dict[str, str] | None = None,
        generation: int = 1,
    ) -> Agent:
        assert program == "run"
        pod_uid = f"pod-{index}" + (f"-g{generation}" if generation > 1 else "")
        address = self.address(index, generation=generation)
        folder = self.folder / f"agent-{index}-{len(self.agents)}"
        folder.mkdir()
        (folder / "token").write_bytes(TOKEN)
        process = await self.starter.start(
            {
                **self._environment(index, folder=folder),
                **(variables or {}),
                Env.POD_UID: pod_uid,
                Env.POD_IP: address,
                Env.GENERATION: str(generation),
                "DRUMLINE_AGENT_ADDRESS": address,
            }
        )
        agent = Agent(
            index=index,
            address=address,
            folder=folder,
            process=process,  # pyright: ignore[reportArgumentType]
            pod_uid=pod_uid,
        )
        agent.listen()
        self.agents.append(agent)
        return agent


def _nothing() -> None:
    """Be forked, and end."""


def _agent(environment: dict[str, str], output: Any, born: Callable[[str], None]) -> None:
    """The whole life of a forked agent."""
    prctl.die_with_parent(os.getppid())
    descriptor = output.detach()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    # the warm process's own objects remember what its descriptors were: a file, a terminal
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    os.environ.clear()
    os.environ.update(environment)
    born("agent")
    sys.argv = ["agent", "run"]
    zygote_client._spawn = partial(_fork_zygote, born=born)
    code = 1
    try:
        code = agent_program()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _fork_zygote(*, module: str, descriptor: int, born: Callable[[str], None]) -> int:
    """What `zygote_client._spawn` does by starting an interpreter."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        born("zygote")
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.closerange(3, descriptor)
        os.closerange(descriptor + 1, 4096)
        code = zygote_program.main([module, str(descriptor), str(parent)])
    finally:
        os._exit(code)
