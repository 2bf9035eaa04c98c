"""Handle an outage of the checkpoint storage: the gang waits and retries without a time limit.

No rank makes steps while the gang waits. An outage uses one restart of the budget, even if the gang
retries often, until a checkpoint is committed again. Each retry is an incident of its own. The
agent's status has the sentence, and the operator copies it to the job's status.

    waits before the next attempt: 5, 10, 20, 40, 60, 60, ... s
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from drumline_agent.leader.root_cause import root_cause_of
from drumline_agent.protocol.member_reports import Fault
from drumline_agent.state.rank_status import RankStatusStore
from drumline_contract import ExitCode

FIRST_WAIT_SECONDS = 5.0
LAST_WAIT_SECONDS = 60.0


class StorageOutage:
    """State of an outage as the leader sees it; initially there is none.

    Args:
        status: status of the agent; shows the outage.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        status: RankStatusStore,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._status = status
        self._sleep = sleep
        self._tries = 0
        self._said = ""
        """The sentence of this outage; others may wait for something else."""
        self._saved_step: int | None = None
        """Step of the newest checkpoint when the outage began."""

    def caused(self, faults: Sequence[Fault]) -> bool:
        """Return whether an attempt ended because the storage failed."""
        return root_cause_of(faults).exit_code == ExitCode.STORAGE

    @property
    def ongoing(self) -> bool:
        """True if no checkpoint was committed since the storage failed last."""
        return self._tries > 0 and self._newest_step() == self._saved_step

    async def wait(self, fault: Fault) -> None:
        """Report the outage in the status, and wait before the next attempt."""
        self._tries = self._tries if self.ongoing else 0
        self._saved_step = self._newest_step()
        self._say(fault.cause)
        seconds = min(LAST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** min(self._tries, 16))
        self._tries += 1
        await self._sleep(seconds)

    def training_resumed(self) -> None:
        """Remove the message: a step was finished, or the gang is done."""
        if self._said and self._status.waiting_for == self._said:
            self._say("")

    def _newest_step(self) -> int | None:
        newest = self._status.newest_checkpoint
        return None if newest is None else newest.step

    def _say(self, sentence: str) -> None:
        self._said = sentence
        if self._status.waiting_for != sentence:
            self._status.waiting_for = sentence
            self._status.publish()
