"""Standbys: for each process of a pod one that has imported what the script needs, and waits.

A rank that starts again takes the standby of its slot (its local rank), and a new standby is
started once that rank trains. The standby's program is `drumline_client.standby`, run by the
interpreter of the user's command; it never forks, so each is good for one start.

A standby is taken only if it is ready and what its imports saw is what the rank would see:
the interpreter, the script, and each variable but those that are another in every attempt.
Otherwise the rank starts as if there were none. Nothing waits for a standby.

Messages of a standby come from the tenant's program. Their size is limited, and they can delay only
the start of their own rank, by TAKE_SECONDS.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from drumline_agent.base.events import AgentEvent, log
from drumline_agent.base.exit_codes import describe_exit_code
from drumline_agent.commands.command_process import (
    CommandNotStartedError,
    StartedProcess,
    start_process,
)
from drumline_agent.processes.reaper import Reaper
from drumline_client import environment as client_environment
from drumline_client.environment import SNAPSHOTS_VARIABLE
from drumline_contract import PythonProgram, plain

PROGRAM: Final = str(Path(client_environment.__file__).with_name("standby.py"))
TAKE_SECONDS: Final = 5.0
"""For a ready standby to say that it is the rank now; it takes a millisecond."""
MAX_SAID_BYTES: Final = 16 * 1024
RENEWED: Final = frozenset(
    (
        *("MASTER_ADDR", "MASTER_PORT", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
        *("JAX_COORDINATOR_ADDRESS", "TORCHELASTIC_RESTART_COUNT", SNAPSHOTS_VARIABLE),
    )
)
"""Variables that are others in each attempt: an import that kept them would be wrong with any
standby. All others, RANK among them (Lightning's import reads it), must be what they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStart:
    """Command and environment of a rank."""

    command: Sequence[str]
    environment: Mapping[str, str]

    @property
    def seen_by_imports(self) -> tuple[Any, ...]:
        """Parameters that must be equal for a standby and the rank that takes it over."""
        program = PythonProgram.parse(self.command)
        fixed = {name: value for name, value in self.environment.items() if name not in RENEWED}
        return program.interpreter, program.target, fixed


class Standby:
    """One such process."""

    def __init__(
        self, *, slot: int, start: RankStart, started: StartedProcess, channel: socket.socket
    ) -> None:
        """Listen to a process that imports.

        Args:
            slot: slot of the standby.
            start: start of the rank that it was started beside.
            started: its process.
            channel: channel to the process.
        """
        self._start = start
        self.seen = start.seen_by_imports
        self.started = started
        self._channel = channel
        self.ready = False
        self.listening = asyncio.create_task(self._listen(slot), name=f"standby {slot}")

    @property
    def lost(self) -> bool:
        """True if it can never be used."""
        return self.started.exited.done() or (self.listening.done() and not self.ready)

    async def take(self, start: RankStart) -> bool:
        """Make it the rank. False: it has not answered, and must be killed."""
        message = {
            "argv": list(PythonProgram.parse(start.command).own_arguments),
            "cwd": str(Path.cwd()),
            "environ": changes(self._start.environment, start.environment),
        }
        body = json.dumps(message).encode() + b"\n"
        # Bounded: a standby that does not answer is replaced by a normal start.
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(TAKE_SECONDS):
                await asyncio.get_running_loop().sock_sendall(self._channel, body)
                taken = (await self._said()).get("taken") is True
            self._channel.close()
            return taken
        return False

    def drop(self) -> None:
        """Kill the standby, which is not needed any more."""
        self.listening.cancel()
        # not before: the loop may still listen to it
        self.listening.add_done_callback(lambda _: self._channel.close())
        self.started.kill()
        self.started.reader.close()

    async def _listen(self, slot: int) -> None:
        """Wait until it has imported."""
        began = time.monotonic()
        try:
            said = await self._said()
        except OSError as error:
            said = {"reason": str(error)}
        self.ready = said.get("ready") is True
        if self.ready:
            seconds = round(time.monotonic() - began, 3)
            log(AgentEvent.STANDBY_READY, slot=slot, pid=self.started.pid, seconds=seconds)
            return
        # Without a message it has ended, and its last lines tell why.
        reason = said.get("reason") or await self._last_words()
        log(AgentEvent.STANDBY_FAILED, slot=slot, reason=plain(str(reason)))

    async def _last_words(self) -> str:
        code = await asyncio.shield(self.started.exited)
        self.started.reader.finish()
        last = self.started.lines.last
        return f"{describe_exit_code(code)}{': ' if last else ''}{last}"

    async def _said(self) -> dict[str, Any]:
        """Return its next message, or an empty one if it closed its end or sent something else."""
        loop, body = asyncio.get_running_loop(), b""
        while not body.endswith(b"\n"):
            chunk = await loop.sock_recv(self._channel, MAX_SAID_BYTES)
            body += chunk
            if not chunk or len(body) > MAX_SAID_BYTES:
                return {}
        try:
            said = json.loads(body)
        except (ValueError, RecursionError):
            return {}
        return cast("dict[str, Any]", said) if isinstance(said, dict) else {}


class Standbys:
    """The standbys of a pod, by slot."""

    def __init__(self, *, modules: Sequence[str], reaper: Reaper) -> None:
        """Start without standbys.

        Args:
            modules: modules to import in advance. Empty: no standbys are started.
            reaper: waits for them.
        """
        self._modules = modules
        self._reaper = reaper
        self._standbys: dict[int, Standby] = {}
        self._beginning: dict[int, asyncio.Task[None]] = {}

    def prepare(self, slot: int, start: RankStart) -> None:
        """Start a standby for a rank with this start. Do nothing if the slot has a fitting one."""
        if not self._modules or slot in self._beginning:
            return
        # Keep a standby that fits. Another command or environment needs a new process.
        standby = self._standbys.get(slot)
        if standby is not None:
            if not standby.lost and standby.seen == start.seen_by_imports:
                return
            self._standbys.pop(slot).drop()
        task = asyncio.create_task(self._begin(slot, start), name=f"start standby {slot}")
        self._beginning[slot] = task
        task.add_done_callback(lambda _: self._beginning.pop(slot, None))

    async def take(self, slot: int, start: RankStart) -> StartedProcess | None:
        """Turn a slot's standby into the rank. None: the rank must be started without one."""
        standby = self._standbys.get(slot)
        # A standby that still imports would make the rank wait longer than a normal start.
        if standby is None or not (standby.ready or standby.lost):
            return None
        del self._standbys[slot]
        if standby.lost or standby.seen != start.seen_by_imports or not await standby.take(start):
            standby.drop()
            return None
        return standby.started

    def close(self) -> None:
        """Kill them all."""
        for task in self._beginning.values():
            task.cancel()
        for standby in self._standbys.values():
            standby.drop()
        self._standbys = {}

    async def _begin(self, slot: int, start: RankStart) -> None:
        program = PythonProgram.parse(start.command)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        # Our copy of the child's end is closed, so that its exit ends the connection.
        with theirs:
            words = [PROGRAM, str(theirs.fileno()), ",".join(self._modules)]
            try:
                started = await start_process(
                    [*program.interpreter, *words, *program.own_arguments],
                    environment=start.environment,
                    reaper=self._reaper,
                    inherits=[theirs.fileno()],
                )
            except (OSError, CommandNotStartedError) as error:
                ours.close()
                log(AgentEvent.STANDBY_FAILED, slot=slot, reason=str(error))
                return
        self._standbys[slot] = Standby(slot=slot, start=start, started=started, channel=ours)


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changes from one environment to another. None removes a variable.

    The whole environment is not replaced, because an import may have set variables.
    """
    removed: dict[str, str | None] = dict.fromkeys(before.keys() - after.keys())
    return removed | {name: text for name, text in after.items() if before.get(name) != text}
